"""What holds for all tests: choices rest on predictions, whatever was tuned on this machine."""

from __future__ import annotations

import os

os.environ["POLYCONV_WISDOM"] = "off"
