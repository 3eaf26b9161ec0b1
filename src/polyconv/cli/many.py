"""A model on many files: read, batched where the model takes batches, run, and written file by file.

What was written stays, whatever happens to a later file.  It must not know how a session computes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.cli import feeds, render
from polyconv.cli.options import usage
from polyconv.cli.saving import Saved, names_of, save
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.models.session import InferenceSession

__all__ = ["RanFile", "run_files"]

_BATCH = 8
"""Files of a batch where the model takes any number."""


@dataclass(frozen=True, slots=True)
class RanFile:
    """A file of each input, its share of the time of its batch, and what came out.

    ``outputs`` has type and shape of every output by name, ``saved`` its files.
    """

    files: tuple[Path, ...]
    milliseconds: float
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    saved: Mapping[str, Saved]


def run_files(model: InferenceSession, files: Mapping[str, Sequence[Path]], words: Sequence[str],
              known: Mapping[str, int], seed: int, *, batch: int | None, folder: Path | None, pictures: bool | None,
              ) -> list[RanFile]:  # fmt: skip
    """Run a model on files, in their order.

    Parameters
    ----------
    files : mapping
        For every input with a pattern its files, equally many.
    words, known, seed
        Of the other inputs, as for ``feeds.feeds``.
    batch : int or None
        Files that run at a time; None takes what the model's first axis says, 8 where it leaves that open.
    folder : Path or None
        Takes a folder of outputs for every file.
    pictures : bool or None
        As for ``saving.save``.

    Raises
    ------
    ArgumentError
        If a file does not fit its input, or an output cannot be told apart by files.
    """
    rows: list[RanFile] = []
    places = list(zip(*files.values(), strict=True))
    folders = names_of(paths[0].stem for paths in places)
    inputs = {i.name: i for i in model.get_inputs()}
    size, is_fixed = _batch_size(inputs, files, batch)
    with render.progress("files") as advance:
        for group in _batches(inputs, files, size):
            joined = _joined(group, size if is_fixed else 0)
            fed = usage(feeds.feeds, model.get_inputs(), words, known, seed, joined)
            start = time.perf_counter()
            try:
                results = model.run(None, {name: feed.array for name, feed in fed.items()})
            except ArgumentError as error:
                raise ArgumentError(f"{', '.join(map(str, places[len(rows)]))}: {error}") from None
            spent = 1e3 * (time.perf_counter() - start) / len(group)
            named = dict(zip((o.name for o in model.get_outputs()), results, strict=True))
            for outputs in _parted(named, [_count(one) for one in group], len(next(iter(joined.values())).array)):
                number = len(rows)
                target = None if folder is None else folder / folders[number]
                saved = {} if target is None else save(target, outputs, pictures=pictures)
                shapes = {name: (str(a.dtype), a.shape) for name, a in outputs.items()}
                rows.append(RanFile(places[number], spent, shapes, saved))
                advance(number + 1, len(places))
    return rows


def _batch_size(inputs: Mapping[str, feeds.Input], files: Mapping[str, Sequence[Path]], batch: int | None
                ) -> tuple[int, bool]:  # fmt: skip
    """How long the first axis of a batch is at most, and whether the model says so."""
    fixed = {extent for name in files if inputs[name].shape and isinstance(extent := inputs[name].shape[0], int)}
    if len(fixed) > 1 or (fixed and batch not in (None, *fixed)):
        shapes = ", ".join(f"{name} {list(inputs[name].shape)}" for name in files)
        raise ArgumentError(f"files cannot be batched for the inputs {shapes}; leave --batch out")
    return next(iter(fixed), batch or _BATCH), bool(fixed)


def _batches(inputs: Mapping[str, feeds.Input], files: Mapping[str, Sequence[Path]], size: int
             ) -> Iterator[list[dict[str, feeds.Feed]]]:  # fmt: skip
    """Neighbouring files of equal shapes, together at most ``size`` along the first axis."""
    group: list[dict[str, feeds.Feed]] = []
    for paths in zip(*files.values(), strict=True):
        one: dict[str, feeds.Feed] = {}
        for name, path in zip(files, paths, strict=True):
            one |= usage(feeds.read, f"{name}={path}", inputs)
        if group and (sum(map(_count, group)) + _count(one) > size or _shapes(one) != _shapes(group[0])):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _count(one: Mapping[str, feeds.Feed]) -> int:
    """Length of the first axis of a file's array."""
    shape = next(iter(one.values())).array.shape
    return shape[0] if shape else 1


def _shapes(one: Mapping[str, feeds.Feed]) -> list[tuple[int, ...]]:
    return [feed.array.shape for feed in one.values()]


def _joined(group: Sequence[Mapping[str, feeds.Feed]], length: int) -> dict[str, feeds.Feed]:
    """The arrays of a batch behind each other, the last one repeated up to ``length``, named after the first file."""
    missing = max(0, length - sum(map(_count, group))) // max(1, _count(group[-1]))
    full = [*group, *[group[-1]] * missing]
    return {
        name: feed if len(full) == 1 else feeds.Feed(np.concatenate([one[name].array for one in full]), feed.source)
        for name, feed in group[0].items()
    }


def _parted(outputs: Mapping[str, NDArray[Any]], counts: Sequence[int], length: int
            ) -> Iterator[dict[str, NDArray[Any]]]:  # fmt: skip
    """Outputs of each file of a batch, whose inputs were so long."""
    if len(counts) == 1 and length == counts[0]:
        yield dict(outputs)
        return
    for name, values in outputs.items():
        if values.shape[:1] != (length,):
            raise ArgumentError(f"output {name} of shape {values.shape} has no axis for a batch of {length}; "
                                "say --batch 1")  # fmt: skip
    for count, end in zip(counts, itertools.accumulate(counts), strict=True):
        yield {name: values[end - count : end] for name, values in outputs.items()}
