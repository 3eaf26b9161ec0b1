"""The transposed grid against both engines, and no explanation that explains nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from polyconv.conformance import grid
from polyconv.conformance.peers import Peer

# OpenVINO compiles a node in 20 ms: here every fifth one; ``polyconv check --conformance`` has all.
COMPARISONS = [
    ("onnxruntime", grid.against_onnxruntime, 1),
    ("openvino", grid.against_importer, 5),
    ("openvino", grid.against_opset, 5),
]


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, Peer]]:
    made = {name: Peer(name) for name in ("onnxruntime", "openvino")}
    yield made
    for peer in made.values():
        peer.close()


@pytest.mark.parametrize(("engine", "compare", "step"), COMPARISONS, ids=lambda v: getattr(v, "__name__", v))
def test_grid(engine: str, compare: grid.Comparison, step: int, peers: dict[str, Peer]) -> None:
    chosen = itertools.islice(grid.cases(), 0, None, step)
    differing = ((case, found) for case in chosen if (found := compare(case, peers[engine])))
    wrong = [f"{case}: {found}" for case, found in differing if found.reason is None]
    assert not wrong, "\n".join(wrong)


def test_the_grid_is_whole() -> None:
    every = list(grid.cases())
    assert len(every) == len({str(case) for case in every})
    assert {case.asked for case in every} == {None, *range(3, 12)}
    assert {case.auto_pad for case in every} == {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"}


def test_every_explanation_is_needed(peers: dict[str, Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row, left out, leaves an unexplained difference: no row hides agreement."""
    compare = {"onnxruntime": COMPARISONS[0], "openvino importer": COMPARISONS[1], "openvino": COMPARISONS[2]}
    rows = grid.EXPLANATIONS
    for row in rows:
        engine, function, _ = compare[row[0]]
        monkeypatch.setattr(grid, "EXPLANATIONS", tuple(other for other in rows if other is not row))
        concerned = (case for case in grid.cases() if row[2](case))
        found = (function(case, peers[engine]) for case in concerned)
        assert any(f is not None and f.reason is None for f in found), row[1]
