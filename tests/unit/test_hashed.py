"""Hashes that are found once: equal things are found for each other, also those that another process has hashed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from polyconv.problem.problem import Problem

TEXT = "conv f32 NCHW n1 c16 i12x12 m32 k3x3 p1"
SOURCE = Path(__file__).parents[2] / "src"


def test_equal_problems_are_found_for_each_other() -> None:
    one, other = Problem.parse(TEXT), Problem.parse(TEXT)
    table = {one: "found"}
    assert table[other] == "found"
    assert hash(one) == hash(one) == hash(other)
    assert table.get(replace(one, n=2)) is None
    assert table[replace(replace(one, n=2), n=1)] == "found"


def test_a_problem_that_another_process_has_hashed_is_found() -> None:
    """Hashes of strings differ from process to process."""
    code = f"""
import pickle, sys
from polyconv.problem.problem import Problem
problem = Problem.parse({TEXT!r})
hash(problem)
sys.stdout.buffer.write(pickle.dumps(problem))
"""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        assert {Problem.parse(TEXT): "found"}[pickle.loads(done.stdout)] == "found"
