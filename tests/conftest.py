"""What holds for all tests: choices rest on predictions, whatever was tuned on this machine; no time is asserted.

Sessions find nothing that others have left of their runs, so that each goes all of its way; ``test_kept_runs.py`` has
those that do.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ["POLYCONV_WISDOM"] = "off"
os.environ["POLYCONV_KEPT_RUNS"] = "0"
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
