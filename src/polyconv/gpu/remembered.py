"""Wisdom of GPUs: the form that the clock chose for a kind of problem on a kind of device, remembered and found again.

An entry names the arithmetic, which fixes bits and is kept for every batch, and the form, which is taken again for the
batch that was measured.  It must not know how times are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyconv import __version__
from polyconv.dataclass import dataclass
from polyconv.gpu.code import generator
from polyconv.gpu.forms import Form, Job, forms
from polyconv.planning import wisdom
from polyconv.planning.wisdom_file import RIGORS, Entry, Key

__all__ = ["Decision", "key_of", "recalled", "remember"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A form that was measured, here or in an earlier process.

    Parameters
    ----------
    form : Form
    seconds : mapping
        By form, of those that were timed.
    source : str
        ``measured`` or ``wisdom``.
    conditions : str
        Under which it was measured.
    """

    form: Form
    seconds: Mapping[str, float]
    source: str
    conditions: str


def recalled(job: Job, known: wisdom.Known, rigor: str = RIGORS[0]) -> Decision | None:
    """What is known of a job, measured with a rigor at least; None if nothing of it can be used."""
    entry, source = known.get(key_of(job), (None, ""))
    if entry is None or (entry.version, entry.generator) != (__version__, generator()):
        return None
    same = [form for form in forms(job) if form.arithmetic == entry.arithmetic]
    if RIGORS.index(entry.rigor) < RIGORS.index(rigor) or not same:
        return None
    measured = [form for form in same if str(form) == entry.algorithm and entry.batch == job.problem.n]
    form = measured[0] if measured else min(same, key=lambda one: one.seconds)
    return Decision(form, entry.seconds, source, f"with batch {entry.batch}")


def remember(job: Job, form: Form, seconds: Mapping[str, float], rigor: str) -> None:
    """Keep a measured choice for this process; ``wisdom.save`` keeps it for others."""
    problem, name, level, _, accuracy, finite, limit = key_of(job)
    times = {one: float(f"{time:.4g}") for one, time in sorted(seconds.items())}
    wisdom.keep(Entry(
        problem, name, level, accuracy, finite, limit, str(form), form.arithmetic, rigor, job.problem.n or 0, 1, times,
        generator(), __version__,
    ))  # fmt: skip


def key_of(job: Job) -> Key:
    """As ``Entry.key``: weights need not be finite on a GPU, and no profile tells a device more than its name."""
    text = str(replace(job.problem.canonical(), n=None))
    return text, job.device.name, job.device.level, "", job.accuracy, True, job.limit
