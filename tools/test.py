"""Sets everything up and passes the tests.

``python3 tools/test.py [PYTEST WORDS...]`` installs the checkout and what its tests need into .venv and runs
pytest on as many processes as this one may use CPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys

from environment import ROOT, environment


def main() -> int:
    """Run pytest and return its exit code."""
    python = environment("test")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    command = [python, "-m", "pytest", "-n", str(cpus), "--dist", "worksteal", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
