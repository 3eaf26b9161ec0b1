"""``python -m polyconv.cli`` is the command ``polyconv``; nothing else stands here."""

from __future__ import annotations

import sys

from polyconv.cli import main

sys.exit(main())
