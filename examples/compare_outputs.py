"""Compares two folders that ``polyconv run --save`` wrote: the same outputs, the same values.

``python examples/compare_outputs.py A B`` prints the largest difference of every output and fails where
one is above 1e-5, or where an output is in one folder only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

LIMIT = 1e-5


def main() -> int:
    """Print one line per output; 4 if the folders differ."""
    first, second = (Path(word) for word in sys.argv[1:3])
    names = sorted({file.name for folder in (first, second) for file in folder.glob("*.npy")})
    if not names:
        print(f"{first} and {second} hold no outputs")
        return 4
    agree = True
    for name in names:
        if not ((first / name).exists() and (second / name).exists()):
            print(f"{name:16} only in {first if (first / name).exists() else second}")
            agree = False
            continue
        a, b = np.load(first / name), np.load(second / name)
        if a.shape != b.shape:
            print(f"{name:16} {a.shape} against {b.shape}")
            agree = False
            continue
        largest = float(np.abs(a - b).max(initial=0.0))
        print(f"{name:16} {a.shape!s:20} largest difference {largest:.2g}")
        agree &= largest <= LIMIT
    print("the folders agree" if agree else "the folders DIFFER")
    return 0 if agree else 4


if __name__ == "__main__":
    sys.exit(main())
