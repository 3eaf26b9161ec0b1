"""What planning costs is measured for every kind of layer in both layouts; how long it takes is not judged here."""

from __future__ import annotations

import math

from polyconv.benchmark.planning import KINDS, planning_times


def test_planning_is_timed_for_every_kind_of_layer() -> None:
    told: list[object] = []
    rows = planning_times(sizes=3, rounds=1, progress=told.append)
    assert [(row.kind, row.layout) for row in rows] == [(kind, layout) for kind in KINDS for layout in ("NCHW", "NHWC")]
    assert told == rows
    for row in rows:
        assert row.sizes == 3
        assert row.first > 0 and row.program > 0
        assert math.isfinite(row.size) and row.size <= row.size_p99
