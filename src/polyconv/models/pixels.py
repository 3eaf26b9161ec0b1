"""Values that a step only puts side by side in each pixel: with channels last they are written there at once.

Turns the steps of a run into steps that write and read between the channels of others, and says in which value's
memory each lies.  The one idea: such a value has the strides of the whole, so whoever makes or reads it has another
plan, with the same results.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from polyconv.errors import Error
from polyconv.models.joining import Within, left_of
from polyconv.models.told import Told
from polyconv.operators.job import Plan
from polyconv.operators.lying import Lies, channels_last, is_channels_last, lies_like, like

__all__ = ["joined_in_pixels"]


def joined_in_pixels(told: Sequence[Told], known: Mapping[str, Lies], sources: Collection[str], moving: Collection[str]
                     ) -> tuple[list[Told], Within]:  # fmt: skip
    """Steps that copy no more than what cannot lie between channels of others, and where values lie.

    Parameters
    ----------
    told : sequence of Told
        All steps of a run, in order.
    known : mapping
        How all values lie.
    sources : collection of str
        Values that lie in memory of the run, and those that show them.
    moving : collection of str
        Values whose memory comes with each run.
    """
    lies = dict(known)
    joins = [at for at, step in enumerate(told) if step.plan and step.plan.joins and step.plan.joins.in_pixels]
    if not joins:
        return list(told), Within()
    within, left = _placed(told, joins, lies, sources, moving)
    roots = {within.place(whole)[0] for at in left for whole in told[at].writes}
    inner = {name for name in within.begins if within.place(name)[0] in roots}
    own = {name for step in told if step.plan is not None for name in step.writes} & inner
    for name in inner:
        lies[name] = _between(lies[name], lies[within.place(name)[0]])
    found = list[Told]()
    for at, step in enumerate(told):
        if at in left or not inner.isdisjoint((*step.reads, *step.writes)):
            again = _planned(step, lies, left.get(at))
            if again is None:  # all or nothing: others rely on where this one reads and writes
                return list(told), Within()
            step = again
        found.append(step)
    return found, Within({name: within.begins[name] for name in own})


def _placed(told: Sequence[Told], joins: Sequence[int], lies: Mapping[str, Lies], sources: Collection[str],
            moving: Collection[str]) -> tuple[Within, dict[int, list[int]]]:  # fmt: skip
    """Which values lie within which others, and at which byte of a pixel; of joins the parts that are left to copy."""
    within, left = Within(), dict[int, list[int]]()
    widths = {name: lie.shape[1] * lie.dtype.itemsize for name, lie in lies.items() if _is_dense(lie)}
    fixed = set(moving)
    for at, step in enumerate(told):
        for name, source, begin in step.looks:
            if _is_slice(lies[name], lies.get(source), begin):
                within.begins[name] = source, begin
            else:
                fixed.update((name, source))
        if step.plan is None:
            fixed.update(() if step.looks else (*step.reads, *step.writes))
            continue
        fixed.update(n for n in step.writes if not step.segment.gaps or n not in widths or n not in sources)
        if step.plan.joins is not None and at not in joins:  # which has its parts without gaps
            fixed.update(step.reads)
    fixed |= {within.place(name)[0] for name in fixed}
    for at in joins:
        (whole,), parts = told[at].writes, told[at].plan.joins  # type: ignore[union-attr]  # those that are joined
        assert parts is not None
        if whole not in widths or whole not in sources:
            continue
        others = fixed | {name for name, lie in lies.items() if lie.shape[2:] != lies[whole].shape[2:]}
        names = [(told[at].reads[n], begin) for n, begin in zip(parts.inputs, parts.begins, strict=True)]
        some = left_of(names, whole, widths, others, within)
        if len(some) < len(names):
            left[at] = some
    return within, left


def _is_dense(lie: Lies) -> bool:
    """Whether an array has channels last and no gaps."""
    return is_channels_last(lie) and lies_like(lie, channels_last(lie.shape, lie.dtype))


def _is_slice(lie: Lies, source: Lies | None, begin: int) -> bool:
    """Whether a view shows some neighbouring channels of all pixels of an array with channels last."""
    if source is None or lie.strides != source.strides or len(lie.shape) < 3 or begin < 0:
        return False
    same = (lie.shape[0], *lie.shape[2:]) == (source.shape[0], *source.shape[2:])
    inside = begin + lie.shape[1] * lie.strides[1] <= source.shape[1] * source.strides[1]
    return same and inside and is_channels_last(source)


def _between(lie: Lies, whole: Lies) -> Lies:
    """How an array lies between the channels of a whole."""
    size = lie.dtype.itemsize + sum((e - 1) * s for e, s in zip(lie.shape, whole.strides, strict=True))
    return replace(lie, strides=whole.strides, offset=0, size=size)


def _planned(step: Told, lies: Mapping[str, Lies], left: Sequence[int] | None) -> Told | None:
    """A step whose values lie so, of a join with the parts that are left to copy; None if it has no such plan."""
    made = tuple(lies[name] for name in step.writes)
    if step.plan is None:
        return replace(step, made=made)
    is_own = made == step.made and not step.segment.gaps  # who leaves no gaps is not asked where results go
    plan: Plan | None = None
    with suppress(Error):
        plan = step.segment.plan([like(lies[name]) for name in step.reads], () if is_own else made)
    if plan is None or plan.results != made:
        return None
    if left is not None and plan.joins is not None:
        plan = replace(plan, jobs=plan.joins.copies(left) if left else ())
    return replace(step, plan=plan, made=made)
