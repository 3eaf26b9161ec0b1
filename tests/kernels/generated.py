"""Every kernel that a broad corpus of problems asks for, as the function that writes its text.

Programs are built as for a call, for any target, but nothing is compiled or linked: the object cache is
replaced by a list.  Run as a program it prints a digest of all texts of a target.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from polyconv.algorithms import packing
from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance import corpus
from polyconv.conformance.operands import operands
from polyconv.kernels import objects
from polyconv.kernels.language import Module
from polyconv.operands import strides
from polyconv.prepared import Layer
from polyconv.problem.problem import Problem
from polyconv.target import Target

Build = Callable[[Module], None]

PROBLEMS = 250


@contextmanager
def _listed(found: dict[str, Build]) -> Any:
    def listed(level: str, build: Build, target: Target, check: bool) -> bytes:
        found[level] = build
        return b""

    with (
        mock.patch.object(objects, "_object", listed),
        mock.patch.object(objects, "_loaded", {}),
        mock.patch.object(packing, "run_steps"),
        mock.patch.object(objects, "link", lambda obj, functions, symbols=None: dict.fromkeys(functions, 8)),
    ):
        yield


def _programs(p: Problem, index: int, target: Target) -> None:
    """Build the program of a problem with every algorithm that takes it."""
    p = replace(p, op="conv") if p.op == "causal_conv" else p
    made = operands(p, np.random.default_rng(index), kind="nonfinite" if index % 10 == 0 else "normal")
    layer = Layer(lambda n, i: p, made.w, made.bias, layout=p.layout, quantities=made.quantities)
    y = np.empty([int(e or 0) for e in p.y_shape], p.y_dtype.numpy)
    lying = strides(made.x, p), strides(y, p), None if made.residual is None else strides(made.residual, p)
    situation = replace(layer.situation(p), target=target, threads=2)
    for name, row in ALGORITHMS.items():
        if y.size and row.refusal(situation) is None:
            layer._program(situation, name, lying, made.offset, made.mask)


@cache
def kernels(target: Target) -> dict[str, Build]:
    """The kernels of a target by name, each once."""
    found: dict[str, Build] = {}
    with _listed(found):
        for index, p in enumerate(corpus.problems(11, PROBLEMS, budget=20_000)):
            _programs(p, index, target)
    return found


def text(build: Build, target: Target) -> str:
    """The LLVM text of a kernel."""
    k = Module(fma=target.has_fma, wide=8 * target.vector_bytes)
    build(k)
    return k.text(target.triple)


def digest(target: Target) -> str:
    """Fingerprint of all texts."""
    total = hashlib.sha256()
    for name, build in sorted(kernels(target).items()):
        total.update(f"{name}\n{text(build, target)}\n".encode())
    return total.hexdigest()


if __name__ == "__main__":
    from elf import TARGETS

    print(digest(TARGETS[sys.argv[1]]))
