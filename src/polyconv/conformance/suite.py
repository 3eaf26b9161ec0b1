"""The conformance suite: every published case of every operator in, one row per operator and version out.

A case is a name and a complaint or None; rows only count them.  It must not know how any case is
computed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyconv import dialects
from polyconv.conformance import grid, published
from polyconv.conformance.examples import EXAMPLES, Example
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.layers_ir import LAYERS, LayerIR, written
from polyconv.conformance.operands import Operands
from polyconv.conformance.peers import available, opened
from polyconv.conformance.volume import measured
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.models.session import InferenceSession

__all__ = ["MEMORY_LIMIT", "SECTIONS", "Outcome", "Row", "run"]

MEMORY_LIMIT = 64 << 20
"""Bytes that the 3-D layer may take beyond input, output and the process without them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: what it is a case of, its name, what is wrong or None, and how another engine deviates."""

    operator: str
    version: int
    name: str
    complaint: str | None
    deviation: str | None = None


@dataclass(slots=True)
class Row:
    """All cases of one operator and version.

    Parameters
    ----------
    operator : str
    version : int
    passed : int
    failures : list of (str, str)
        Name and complaint of each failed case.
    deviations : dict
        Passed cases in which another engine deviates, by the deviation's name.
    """

    operator: str
    version: int
    passed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    deviations: dict[str, int] = field(default_factory=dict)

    @property
    def run(self) -> int:
        """Cases run."""
        return self.passed + len(self.failures)

    @property
    def failed(self) -> int:
        """Cases failed."""
        return len(self.failures)


def _guarded(check: Callable[[], str | None]) -> str | None:
    """A check's complaint; an exception is one too."""
    try:
        return check()
    except Exception as error:
        return _raised(error)


def _raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {error}"


def _example(dialect: str, name: str, version: int, example: Example) -> str | None:
    operator = getattr(getattr(dialects, dialect), name)(version=version, **example.attributes)
    x, want = example.x, example.y
    if dialect == "ort":
        x, want = np.moveaxis(x, 1, -1), np.moveaxis(want, 1, -1)
    got = operator(x, example.w)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"result is {got.dtype} {got.shape}, the page has {want.dtype} {want.shape}"
    return None if np.array_equal(got, want) else "values differ from the page's"


def _examples() -> Iterator[Outcome]:
    for example in EXAMPLES:
        for dialect, name, versions in example.pages:
            for version in versions:
                check = partial(_example, dialect, name, version, example)
                yield Outcome(f"{dialect} {name}", version, f"page: {example.name}", _guarded(check))


def _session_case(case: published.Case) -> str | None:
    return published.difference(case, InferenceSession(case.model).run(None, case.feeds))


def _published(cases: Callable[[], Iterable[published.Case]]) -> Iterator[Outcome]:
    for case in cases():
        operator = f"onnx {case.operator}"
        yield Outcome(operator, case.version, case.name, _guarded(partial(_session_case, case)))


def _small_layer(layer: LayerIR) -> str | None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in (layer.data, layer.filters))
    with tempfile.TemporaryDirectory() as folder:
        session = InferenceSession(str(written(layer, w, Path(folder))))
        got = session.run(None, {session.get_inputs()[0].name: x})[0]
    if got.shape != layer.output:
        return f"result has shape {got.shape}, the page {layer.output}"
    return complaint(layer.parsed, expected(layer.parsed, Operands(x, w)), got)


def _large_layer(layer: LayerIR) -> str | None:
    found = measured(layer)
    if found.shape != layer.output or found.wrong:
        return f"shape {found.shape} (page: {layer.output}), {found.wrong} sampled outputs outside the bound"
    if found.extra_bytes > MEMORY_LIMIT:
        return f"took {found.extra_bytes >> 20} MiB beyond input and output; {MEMORY_LIMIT >> 20} are allowed"
    return None


def _layers() -> Iterator[Outcome]:
    for layer in LAYERS:
        check = _large_layer if layer.name == "3-D" else _small_layer
        yield Outcome("openvino Convolution", 1, f"page: {layer.name}", _guarded(partial(check, layer)))


def _grid() -> Iterator[Outcome]:
    engines: dict[str, tuple[tuple[str, grid.Comparison], ...]] = {
        "onnxruntime": (("onnx ConvTranspose", grid.against_onnxruntime),),
        "openvino": (
            ("onnx ConvTranspose", grid.against_importer),
            ("openvino ConvolutionBackpropData", grid.against_opset),
        ),
    }
    with opened([engine for engine in engines if engine in available()]) as peers:
        for engine, peer in peers.items():
            for (operator, compare), case in (
                (row, case) for row in engines[engine] for case in grid.cases()
            ):
                yield _compared(operator, f"grid, {engine}: {case}", partial(compare, case, peer))


def _compared(operator: str, name: str, compare: Callable[[], grid.Disagreement | None]) -> Outcome:
    """The outcome of a case put to an engine; one with a known reason passes and names it."""
    version = 11 if operator.startswith("onnx") else 1
    try:
        found = compare()
    except Exception as error:
        return Outcome(operator, version, name, _raised(error))
    if found is None:
        return Outcome(operator, version, name, None)
    if found.reason is None:
        return Outcome(operator, version, name, str(found))
    return Outcome(operator, version, name, None, f"{found.engine}: {found.reason}")


SECTIONS: dict[str, Callable[[], Iterator[Outcome]]] = {
    "examples": _examples,
    "layers": _layers,
    "nodes": partial(_published, published.nodes),
    "converted": partial(_published, published.converted),
    "light": partial(_published, published.light),
    "grid": _grid,
}
"""The parts of the suite, in the order in which they run."""


def run(
    progress: Callable[[Outcome], Any] | None = None, *, sections: Iterable[str] | None = None
) -> list[Row]:
    """Run the suite.

    Parameters
    ----------
    progress : callable, optional
        Called with every outcome.
    sections : iterable of str, optional
        Names of ``SECTIONS``; all when left out.

    Returns
    -------
    list of Row
        Sorted by operator and version.
    """
    chosen = tuple(SECTIONS) if sections is None else tuple(sections)
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        raise ArgumentError(f"sections={unknown} are not known; choose from {list(SECTIONS)}")
    rows: dict[tuple[str, int], Row] = {}
    for outcome in (outcome for name in chosen for outcome in SECTIONS[name]()):
        row = rows.setdefault((outcome.operator, outcome.version), Row(outcome.operator, outcome.version))
        if outcome.complaint is None:
            row.passed += 1
            if outcome.deviation is not None:
                row.deviations[outcome.deviation] = row.deviations.get(outcome.deviation, 0) + 1
        else:
            row.failures.append((outcome.name, outcome.complaint))
        if progress is not None:
            progress(outcome)
    return [rows[key] for key in sorted(rows)]
