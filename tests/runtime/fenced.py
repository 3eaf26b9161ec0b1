"""Arrays that end where memory ends, or begin where it begins: the first byte beyond them cannot be touched.

Run as a program it computes problems of the corpus on such arrays and compares with ordinary ones; an
access outside an operand, or outside a table, packed weights or workspace of polyconv's own, kills it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import sys
from dataclasses import replace
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
LINE = 64
Array = np.ndarray[Any, Any]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def fenced(shape: int | tuple[int, ...], dtype: Any, *, at_end: bool = True, step: int = 1) -> Array:
    """Zeros with a page that nobody may touch right after them, or right before.

    Parameters
    ----------
    step : int
        The array begins at a multiple of this, so fewer than ``step`` bytes may lie between it and the page.
    """
    kind = np.dtype(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    inside = -(-max(count, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, inside + 2 * PAGE)
    raw = np.frombuffer(memory, np.uint8)
    for page in (0, inside + PAGE):
        if _libc.mprotect(raw.ctypes.data + page, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + (inside - -(-count // step) * step if at_end else 0)
    return raw[start : start + count].view(kind).reshape(shape)


def _plain(a: Array, at_end: bool) -> Array:
    return fenced(a.shape, a.dtype, at_end=at_end)


def _reversed(a: Array, at_end: bool) -> Array:
    return _plain(a, at_end)[tuple(slice(None, None, -1) for _ in a.shape)]


def _every_other(a: Array, at_end: bool) -> Array:
    """Along the last axis; no element lies between the last one of them and the end."""
    if not a.size:
        return _plain(a, at_end)
    memory = fenced(2 * a.size - 1, a.dtype, at_end=at_end)
    strides = tuple(2 * s for s in np.empty(a.shape, a.dtype).strides)
    return np.lib.stride_tricks.as_strided(memory, a.shape, strides)


def _transposed(a: Array, at_end: bool) -> Array:
    return fenced(a.shape[::-1], a.dtype, at_end=at_end).T


FORMS = (_plain, _reversed, _every_other, _transposed)


def fenced_copy(a: Array | None, form: int, *, at_end: bool) -> Array | None:
    """The same values in such memory."""
    if a is None:
        return None
    copy = FORMS[form % len(FORMS)](a, at_end)
    copy[...] = a
    return copy


def main(seed: int, count: int) -> None:
    """Compute ``count`` problems, forced through every algorithm that takes them."""
    faulthandler.enable()
    from polyconv.runtime import arrays

    # before anything takes the function by its name: tables, packed weights and workspaces get a fence, too
    arrays.aligned = lambda shape, dtype, make=np.zeros: fenced(shape, dtype, step=LINE)

    from polyconv.algorithms.table import ALGORITHMS
    from polyconv.conformance import corpus
    from polyconv.conformance.judge import complaint, expected
    from polyconv.conformance.operands import Operands, operands
    from polyconv.errors import Unsupported
    from polyconv.problem.problem import Problem
    from polyconv.recent import compute

    def result(p: Problem, made: Operands, out: Array | None, name: str, index: int) -> Array:
        options = {"algorithm": name, "threads": 1 + index % 2, "workspace_limit": 0 if index % 5 == 0 else None}
        y = compute(p, made.x, made.w, made.bias, made.residual, out=out, **made.keywords(), **options)
        return np.asarray(y[0] if p.op == "causal_conv" else y)

    done = dict.fromkeys(ALGORITHMS, 0)
    for index, p in enumerate(corpus.problems(seed, count, budget=150_000)):
        plain = operands(p, np.random.default_rng(index), kind="nonfinite" if index % 9 == 0 else "normal")
        for name in ALGORITHMS:
            try:
                right = result(p, plain, None, name, index)
            except Unsupported:
                continue
            done[name] += 1
            for at_end in (True, False):
                print(p, name, "end" if at_end else "start", file=sys.stderr)  # the last one is what killed it
                names = ("x", "w", "bias", "residual", "offset", "mask", "past")
                made = replace(plain, **{n: fenced_copy(getattr(plain, n), index, at_end=at_end) for n in names})
                out = FORMS[index // len(FORMS) % len(FORMS)](right, at_end)
                got = result(p, made, out, name, index)
                if got.tobytes() != right.tobytes():  # a depthwise sum follows the way its input and result lie
                    assert name.startswith("depthwise") and complaint(p, expected(p, plain), got) is None, p
    print(done)
    assert all(done.values()), f"an algorithm was never run: {done}"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
