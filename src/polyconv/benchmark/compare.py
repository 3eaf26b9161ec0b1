"""Two documents to what became faster or slower between them.

A change counts when the ranges between the quartiles do not meet and the medians differ by more than is
allowed.  It must not decide what a change is worth.
"""

from __future__ import annotations

from polyconv.benchmark.engines import OURS
from polyconv.benchmark.record import Document
from polyconv.dataclass import dataclass

__all__ = ["Change", "changes", "differences"]


@dataclass(frozen=True, slots=True)
class Change:
    """polyconv on one layer, before and now.

    Parameters
    ----------
    label, engine : str
    before, now : float
        Seconds.
    ratio : float
        ``now / before``: above 1, slower.
    verdict : str
        ``slower``, ``faster`` or ``same``.
    """

    label: str
    engine: str
    before: float
    now: float
    ratio: float
    verdict: str


def changes(now: Document, before: Document, percent: float) -> list[Change]:
    """All layers that both documents hold, the most slowed down first.

    Parameters
    ----------
    percent : float
        By how much medians may differ and still be the same.
    """
    earlier = {row.key: row for row in before.rows}
    found = []
    for row in now.rows:
        for engine in OURS.values():
            new = row.measures.get(engine)
            old = earlier[row.key].measures.get(engine) if row.key in earlier else None
            if new is None or old is None or new.seconds is None or old.seconds is None:
                continue
            ratio = new.seconds / old.seconds
            apart = max(new.low or 0.0, old.low or 0.0) > min(new.high or 0.0, old.high or 0.0)
            limit = 1.0 + percent / 100.0
            verdict = "same"
            if apart and not 1.0 / limit <= ratio <= limit:
                verdict = "slower" if ratio > 1.0 else "faster"
            found.append(Change(row.label, engine, old.seconds, new.seconds, ratio, verdict))
    return sorted(found, key=lambda change: -change.ratio)


def differences(now: Document, before: Document) -> list[str]:
    """In words, where two documents are not of the same kind of run on the same machine."""
    rows = [(name, before.options.get(name), now.options.get(name)) for name in ("threads", "accuracy", "target")]
    cpu = "cpu", before.machine.get("cpu"), now.machine.get("cpu")
    return [f"{name}: {old} before, {new} now" for name, old, new in [*rows, cpu] if old != new]
