"""What a model is fed: files where they are given, seeded random numbers where not.

``name=file`` words and ``name=value`` dimensions become one array per input of a session.  It must
not know how a session computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from polyconv.cli import images
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.names import nearest
from polyconv.runtime.memory import allocating, sized

__all__ = ["SUFFIXES", "Feed", "Input", "dims", "feeds", "many", "read"]

SUFFIXES = (".npy", ".npz", *images.SUFFIXES)
"""Of files with arrays and pictures."""


class Input(Protocol):
    """An input of a session, described as onnxruntime does."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Its extents: numbers, names, or None where unknown."""

    @property
    def type(self) -> str:
        """Its element type, as ``tensor(float)``."""


@dataclass(frozen=True, slots=True)
class Feed:
    """An array for an input, and where it came from."""

    array: NDArray[Any]
    source: str


_MOST_ELEMENTS = 1 << 59

_DTYPES: dict[str, np.dtype[Any]] = {
    f"tensor({name})": np.dtype(dtype)
    for name, dtype in {
        "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32, "double": np.float64,
        "bool": np.bool_,
        **{f"{u}int{bits}": f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
    }.items()
}  # fmt: skip


def dims(words: Sequence[str]) -> dict[str, int]:
    """Read ``--dim name=value`` words.

    Raises
    ------
    ArgumentError
        Naming the word that is not understood.
    """
    found: dict[str, int] = {}
    for word in words:
        name, equals, value = word.rpartition("=")
        if not equals or not name or not value.isascii() or not value.isdigit():
            raise ArgumentError(f"--dim {word!r} is not name=value with a whole number, as in height=224")
        if found.setdefault(name, int(value)) != int(value):
            raise ArgumentError(f"--dim {name}={found[name]} and --dim {word} disagree; give one of them")
    return found


def feeds(
    inputs: Sequence[Input], files: Sequence[str], known: Mapping[str, int], seed: int,
    read_before: Mapping[str, Feed] | None = None,
) -> dict[str, Feed]:  # fmt: skip
    """Make one array per input.

    Parameters
    ----------
    inputs : sequence of Input
        The session's.
    files : sequence of str
        ``name=file`` words, or one bare file where the model has one input.  An .npz file without a
        name feeds the inputs it has arrays for.
    known : mapping
        Values of named dimensions; an axis without a name is spelled ``input.axis``.
    seed : int
        Of the random numbers for inputs without a file: floats in 0..1, integers in 0..127.
    read_before : mapping, optional
        Inputs that have their array already.

    Raises
    ------
    ArgumentError
        If a name, a file or a dimension does not fit the model's inputs.
    """
    named = {i.name: i for i in inputs}
    _check_names(inputs, known)
    found = dict(read_before or {})
    for word in files:
        found |= read(word, named)
    sizes = dict(known)
    for name, feed in found.items():
        for axis, size in enumerate(feed.array.shape[: len(named[name].shape)]):
            spelled = _dimension(named[name], axis)
            if spelled is not None and sizes.setdefault(spelled, size) != size and spelled in known:
                raise ArgumentError(
                    f"--dim {spelled}={known[spelled]}, but {feed.source} has shape {feed.array.shape} for input "
                    f"{name} {list(named[name].shape)}; leave out one of them"
                )
    rng = np.random.default_rng(seed)
    return {
        i.name: found.get(i.name) or Feed(_random(rng, i, sizes), f"random, seed {seed}") for i in inputs
    }


def _check_names(inputs: Sequence[Input], known: Mapping[str, int]) -> None:
    """Refuse dimensions that no input has: a typing error would plan other sizes than were meant."""
    there = list(dict.fromkeys(d for i in inputs for axis in range(len(i.shape)) if (d := _dimension(i, axis))))
    for name, size in known.items():
        if name in there:
            continue
        shapes = ", ".join(f"{i.name} {list(i.shape)}" for i in inputs)
        if not there:
            raise ArgumentError(f"--dim {name}={size}: all sizes of this model are fixed, its inputs are {shapes}")
        near = nearest(name, there)
        meant = f"did you mean {near}={size}?" if near else f"there are {', '.join(there)}"
        raise ArgumentError(f"--dim {name}={size}: no input has a dimension {name!r} ({shapes}); {meant}")


def _dimension(wanted: Input, axis: int) -> str | None:
    """How an open dimension is spelled: by its name, or as ``input.axis``; None for a fixed one."""
    extent = wanted.shape[axis]
    return None if isinstance(extent, int) else extent or f"{wanted.name}.{axis}"


def many(inputs: Sequence[Input], files: Sequence[str]) -> tuple[dict[str, list[Path]], list[str]]:
    """Files of every input that was given a pattern, such as ``image=photos/*.jpg``, and the words without one.

    Raises
    ------
    ArgumentError
        If a pattern finds nothing, its input is unknown, or patterns find different numbers of files.
    """
    named = {i.name: i for i in inputs}
    found: dict[str, list[Path]] = {}
    rest = []
    for word in files:
        _, text = _split(word)
        if not has_magic(text) or Path(text).is_file():
            rest.append(word)
            continue
        there = sorted(glob(text, recursive=True))  # noqa: PTH207 - as a shell has it: absolute, or with ..
        paths = [path for path in map(Path, there) if path.is_file()]
        if not paths:
            raise ArgumentError(f"--input {word!r}: no file is called so")
        found[_input_name(word, named)] = paths
    if len({len(paths) for paths in found.values()}) > 1:
        counts = ", ".join(f"{len(paths)} for {name}" for name, paths in found.items())
        raise ArgumentError(f"--input found {counts}: patterns of several inputs must find equally many files")
    return found, rest


def read(word: str, inputs: Mapping[str, Input]) -> dict[str, Feed]:
    """The arrays that a ``name=file`` word gives to inputs."""
    name, text = _split(word)
    path, said = Path(text), f"--input {word!r}"
    if not path.is_file():
        raise ArgumentError(f"{said}: there is no file {text!r}; give name=file.npy, .npz, .png or .jpg")
    if name or path.suffix != ".npz":
        name = _input_name(word, inputs)
    if path.suffix.lower() in images.SUFFIXES:
        wanted = inputs[name]
        return {name: Feed(images.read(path, wanted.shape, _dtype(wanted), name), str(path))}
    if path.suffix not in (".npy", ".npz"):
        raise ArgumentError(f"{said}: {path.suffix or 'no suffix'} is not .npy, .npz, .png or .jpg")
    try:
        content = np.load(path, allow_pickle=False)
        if path.suffix == ".npy":
            return {name: Feed(content, str(path))}
        with content:
            return _from_archive(content, name, path, inputs)
    except (ValueError, EOFError) as error:
        raise ArgumentError(f"{said}: {path} cannot be read as {path.suffix}: {error}") from None


def _split(word: str) -> tuple[str, str]:
    """Name and file of a ``name=file`` word; no name where there is none."""
    name, equals, text = word.partition("=")
    return (name, text) if equals else ("", word)


def _input_name(word: str, inputs: Mapping[str, Input]) -> str:
    """The input that a ``name=file`` word means: the one it names, else the only one."""
    name, text = _split(word)
    if not name and len(inputs) != 1:
        raise ArgumentError(f"--input {word!r} names no input; say which with name={text}: {_names(inputs)}")
    if name and name not in inputs:
        raise ArgumentError(f"--input {word!r}: the model has no input {name!r}; its inputs are {_names(inputs)}")
    return name or next(iter(inputs))


def _from_archive(content: Any, name: str, path: Path, inputs: Mapping[str, Input]) -> dict[str, Feed]:
    wanted = [name] if name else [i for i in inputs if i in content.files]
    if name and name not in content.files and len(content.files) == 1:
        return {name: Feed(content[content.files[0]], str(path))}
    if not wanted or any(w not in content.files for w in wanted):
        raise ArgumentError(
            f"{path} holds the arrays {', '.join(content.files)}, the model's inputs are {_names(inputs)}; "
            f"name the arrays as the inputs"
        )
    return {w: Feed(content[w], f"{path}[{w}]") for w in wanted}


def _names(inputs: Mapping[str, Input]) -> str:
    return ", ".join(f"{i.name} {i.type} {list(i.shape)}" for i in inputs.values())


def _dtype(wanted: Input) -> np.dtype[Any]:
    if wanted.type not in _DTYPES:
        raise ArgumentError(f"input {wanted.name} has type {wanted.type}; feed it by a file")
    return _DTYPES[wanted.type]


def _random(rng: np.random.Generator, wanted: Input, sizes: Mapping[str, int]) -> NDArray[Any]:
    shape = tuple(_extent(wanted, axis, sizes) for axis in range(len(wanted.shape)))
    dtype = _dtype(wanted)
    if math.prod(shape) >= _MOST_ELEMENTS:
        raise ArgumentError(f"input {wanted.name} of shape {shape} is beyond 64-bit addresses; give smaller --dim")
    with allocating(sized(f"input {wanted.name}", shape, dtype), "give smaller --dim, or a file"):
        if dtype.kind in "iub":
            return rng.integers(0, 2 if dtype.kind == "b" else 128, shape).astype(dtype)
        return rng.random(shape, np.float32).astype(dtype)


def _extent(wanted: Input, axis: int, sizes: Mapping[str, int]) -> int:
    extent, spelled = wanted.shape[axis], _dimension(wanted, axis)
    if isinstance(extent, int):
        return extent
    if spelled is not None and spelled in sizes:
        return sizes[spelled]
    if axis == 0:  # one element of a batch of unknown size
        return 1
    raise ArgumentError(
        f"input {wanted.name} has shape {list(wanted.shape)}, of which {spelled} is unknown; give "
        f"--dim {spelled}=NUMBER or a file with --input {wanted.name}=FILE"
    )
