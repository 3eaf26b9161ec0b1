"""What a comparison found, as values and as one JSON document, there and back.

The document is written after every layer, so a run that is cut short loses one; every table, comparison and
report is made from it alone.  It must not know how times were taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

from polyconv.benchmark.burn import Peaks
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError

__all__ = ["SCHEMA_VERSION", "Document", "Measure", "Round", "Row", "load", "save"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a layer: every engine was asked once, in random order.

    Parameters
    ----------
    rate : float
        f32 operations a second of one CPU, burning beside the round.
    share : float
        The least that one CPU gets of that while all burn; 1 for one thread.
    disturbance : float
        CPU time of idle engines over the time of the engine that ran, at its worst.
    good : bool
        Whether the round counts.
    """

    rate: float
    share: float
    disturbance: float
    good: bool


@dataclass(frozen=True, slots=True)
class Measure:
    """An engine on a layer.

    Parameters
    ----------
    engine : str
        A key of ``ENGINES``.
    seconds, low, high : float or None
        Median of the rounds' medians and its quartiles; None where nothing was measured.
    rounds : tuple of (float or None)
        Median of each round; None where the engine sat out.
    prepare_seconds, first_seconds : float or None
        Making the problem ready (weights packed, model compiled), and the first call after that.
    plan_seconds, compile_seconds : float or None
        polyconv's parts of these: choosing, and compiling kernels that no cache held.
    error : float or None
        rms error over rms of the outputs.
    counts : bool
        Whether it computes in the problem's own precision and so is a reference.
    why : str
        Why it was not measured or does not count.
    precision, kernel, remark : str
        In the engine's own words.
    """

    engine: str
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: tuple[float | None, ...] = ()
    prepare_seconds: float | None = None
    first_seconds: float | None = None
    plan_seconds: float | None = None
    compile_seconds: float | None = None
    error: float | None = None
    counts: bool = False
    why: str = ""
    precision: str = ""
    kernel: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A layer with all that was measured on it.

    Parameters
    ----------
    problem, set, name, source : str
        As in ``Case``; the problem in the layout it was given in.
    family : str
        A name of ``FAMILIES``.
    flops, bytes : float
        Twice the multiply-adds, padding counted; input, weights and result, each once.
    chain_error : float or None
        Error of a plain f32 sum.
    rounds : tuple of Round
    measures : mapping
        By engine.
    """

    problem: str
    set: str
    name: str
    source: str
    family: str
    flops: float
    bytes: float
    chain_error: float | None
    rounds: tuple[Round, ...]
    measures: Mapping[str, Measure]

    @property
    def label(self) -> str:
        """Set and name, or the problem where it has none."""
        return " ".join(word for word in (self.set, self.name) if word) or self.problem

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same layer in another document."""
        return self.set, self.name, self.problem

    @property
    def is_noisy(self) -> bool:
        """Whether too few rounds were good, so that all were taken."""
        return sum(r.good for r in self.rounds) < min(3, len(self.rounds))


@dataclass(slots=True)
class Document:
    """A run: what was asked for, where, and every layer.

    Parameters
    ----------
    options : dict
        Threads, accuracy, target, layout, seconds, seed.
    machine : dict
        The machine card.
    engines : dict
        By name: what is measured, its version, and why it is missing if it is.
    peaks : Peaks
        Best of the run.
    started : str
        Date and time, ISO 8601.
    """

    options: dict[str, Any]
    machine: dict[str, Any]
    engines: dict[str, dict[str, str]]
    peaks: Peaks
    started: str
    rows: list[Row] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """In JSON's terms."""
        made = asdict(self)
        for row, values in zip(self.rows, made["rows"], strict=True):
            values["measures"] = {name: asdict(measure) for name, measure in row.measures.items()}
        found: dict[str, Any] = _finite({"schema_version": SCHEMA_VERSION, "command": "bench", **made})
        return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def save(document: Mapping[str, Any], path: Path) -> None:
    """Write a document whole or not at all."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.replace(path)


def load(path: Path) -> Document:
    """Read a document.

    Raises
    ------
    ArgumentError
        If the file is no document of this version.
    """
    try:
        content = json.loads(path.read_text())
        if content["schema_version"] != SCHEMA_VERSION or content["command"] != "bench":
            raise ValueError(f"schema_version {content['schema_version']} of {content['command']}")
        return Document(
            options=content["options"], machine=content["machine"], engines=content["engines"],
            peaks=Peaks(**{**content["peaks"], "cpus": tuple(content["peaks"]["cpus"])}), started=content["started"],
            rows=[_row(values) for values in content["rows"]],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"{path} is no document of 'polyconv bench --save', version {SCHEMA_VERSION} ({error}); measure anew"
        ) from None


def _row(values: dict[str, Any]) -> Row:
    rounds = tuple(Round(**r) for r in values["rounds"])
    measures = {name: Measure(**{**m, "rounds": tuple(m["rounds"])}) for name, m in values["measures"].items()}
    known = {f.name: values[f.name] for f in fields(Row)}  # the document also holds what follows from these
    return Row(**{**known, "rounds": rounds, "measures": measures})
