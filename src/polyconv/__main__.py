"""``python -m polyconv`` is the command line."""

from __future__ import annotations

import sys

from polyconv.cli import main

if __name__ == "__main__":
    sys.exit(main())
