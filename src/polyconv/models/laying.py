"""Where the values of runs that are alike lie, by what their steps told.

A run of Python steps tells what each step does natively for arrays that lie so.  From that it follows which values
have a place in the memory of a run, in which a place is free again after its last reader, and which come anew with each
run.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyconv.models.graph import Array
from polyconv.models.images import by_images
from polyconv.models.joining import joined
from polyconv.models.laid import Laid
from polyconv.models.lanes import only_native
from polyconv.models.pixels import joined_in_pixels
from polyconv.models.places import places
from polyconv.models.told import Told, direct, name_between, packed_results, settled, without_counting
from polyconv.operators.lying import Lies, lies

__all__ = ["laid_out"]


def laid_out(told: Sequence[Told], results: Sequence[str], steady: Mapping[str, Array], feeds: Mapping[str, Lies],
             switches: Mapping[str, Array]) -> Laid:  # fmt: skip
    """Lay out runs.

    Parameters
    ----------
    told : sequence of Told
        Every step of a run, in order.
    results : sequence of str
        What a run returns.
    steady : mapping
        Values that are the same in every run.
    feeds : mapping
        How those lay that come with each.
    switches : mapping
        Those of them by which branches are chosen, and what they were.
    """
    told, counted, gone = without_counting(told, {**steady, **switches})
    held: dict[str, Any] = {**steady, **counted}
    lie_of = {**feeds, **{name: lies(a) for name, a in held.items()}}
    told, shown = direct(settled(told, held, lie_of), results)
    threads = max((job.threads for step in told if step.plan for job in step.plan.jobs), default=1)
    told = packed_results(told, results, threads)
    _say_how(told, lie_of)
    told, wholes = by_images(told, results, lie_of, threads)
    _say_how(told, lie_of)
    moving, sources = _settled(told, feeds, results)
    told = only_native(told, moving)
    told, between = joined_in_pixels(told, lie_of, sources, moving)
    sizes = {name: lie.size for name, lie in lie_of.items()}
    told, within = joined(told, sizes, sources, moving, wholes, between)
    sources = {name: within.place(source)[0] for name, source in sources.items()}
    inside = {n: place for n in within.begins if (place := within.place(n))[0] in moving}
    fixed = {name: size for name, size in _fixed(told, moving).items() if name not in within.begins}
    begins, size = places(told, sources, fixed, results)
    for name in within.begins.keys() - inside.keys():
        whole, offset = within.place(name)
        begins[name] = begins[whole] + offset
    numbers = {name: array.item() for name, array in switches.items()}
    return Laid(told, tuple(results), dict(feeds), numbers, lie_of, held, moving, inside, begins, size,
                (*gone, *shown), threads)  # fmt: skip


def _say_how(told: Sequence[Told], lie_of: dict[str, Lies]) -> None:
    """Say how the results of steps lie."""
    for step in told:
        lie_of.update(zip(step.writes, step.made, strict=True))


def _settled(told: Sequence[Told], feeds: Mapping[str, Lies], results: Sequence[str]
             ) -> tuple[frozenset[str], dict[str, str]]:  # fmt: skip
    """Which values move; of the others, in whose memory each lies."""
    moving, sources = set(feeds), dict[str, str]()
    for step in told:
        stays = moving.isdisjoint(step.reads)
        if step.plan is not None:
            moving.update(set(results).intersection(step.writes))
            sources.update((name, name) for name in step.writes if name not in results)
        elif step.looks and stays:
            sources.update((name, sources.get(source, source)) for name, source, _ in step.looks)
        else:
            moving.update(step.writes)
    return frozenset(moving), sources


def _fixed(told: Sequence[Told], moving: frozenset[str]) -> dict[str, int]:
    """Bytes of the values, and of what lies between jobs of a step, that have a place in the memory."""
    found = {
        name: lie.size
        for step in told if step.plan is not None
        for name, lie in zip(step.writes, step.plan.results, strict=False) if name not in moving
    }  # fmt: skip
    for step in told:
        for number, lie in enumerate(step.plan.between if step.plan is not None else ()):
            found[name_between(step, number)] = lie.size
    return found
