"""Loading a network and seeing many image sizes: what may be compiled, and how a process may grow."""

from __future__ import annotations

import os

import pytest

from polyconv.benchmark.load import load_times, network, sizes
from polyconv.problem.problem import Problem

checked = pytest.mark.skipif(bool(os.environ.get("POLYCONV_CHECK")), reason="checked kernels are not kept on disk")


def test_the_network_has_its_53_convolutions() -> None:
    assert (len(network(repeated=False)), len(network(repeated=True))) == (23, 53)
    assert set(network(repeated=False)) == set(network(repeated=True))
    parameters = sum(p.c * p.m * p.k[0] * p.k[1] // p.groups for p in map(Problem.parse, network(repeated=True)))
    assert parameters == 23_454_912


@checked
def test_loading_is_timed_without_and_with_the_object_cache() -> None:
    times = load_times(network(repeated=False)[:3], rounds=1)
    assert times.layers == 3
    assert 0 < times.warm < times.cold < 30
    assert 0 < times.importing < 30


@pytest.mark.parametrize("seed", [1, 2])
def test_many_image_sizes_compile_at_most_three_times_and_leave_memory_alone(seed: int) -> None:
    found = sizes(400, seed=seed)
    assert found.images == 400
    assert 1 <= found.events <= 3
    assert found.grown < 32e6
