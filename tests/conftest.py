"""What holds for all tests: choices rest on predictions, whatever was tuned on this machine; no time is asserted."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ["POLYCONV_WISDOM"] = "off"
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
