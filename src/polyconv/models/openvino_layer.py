"""A layer of an IR as translations see it, and StridedSlice, whose masks say more than ONNX's Slice.

Turns the text of attributes and constant inputs into numbers.  It must not know which layers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import ModelError
from polyconv.models.graph import Array, Node
from polyconv.models.limits import shorten
from polyconv.models.native import Lookup

__all__ = ["AUTO_PADS", "NOT_CONSTANT", "Layer", "strided"]

NOT_CONSTANT = "a parameter comes with the run"
"""Why a layer stays what it was."""
AUTO_PADS = {
    "explicit": "NOTSET", "notset": "NOTSET", "valid": "VALID", "same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER",
}  # fmt: skip
"""Words for padding, and those that ONNX has for them."""
_END = 1 << 62
"""Beyond every extent."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, what is known of its inputs, and how its attributes are read."""

    node: Node
    known: Lookup
    constants: Mapping[str, Array]

    def text(self, key: str, default: str = "") -> str:
        """An attribute in lower case, as words of an IR have no case."""
        return str(self.node.origin.data.get(key, default)).strip().lower()

    def flag(self, key: str, *, default: bool) -> bool:
        """An attribute that is true or false."""
        return self.text(key, str(default)) in ("true", "1")

    def numbers(self, key: str, default: str = "") -> list[int]:
        """An attribute that is a list of integers."""
        text = self.text(key, default)
        return [int(self._number(part, key, int)) for part in text.split(",")] if text else []

    def real(self, key: str, default: float | None = None) -> float:
        """An attribute that is a number."""
        text = self.text(key, "" if default is None else str(default))
        return float(self._number(text, key, float))

    def _number(self, text: str, key: str, kind: Callable[[str], Any]) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ModelError(f"{self.node.label} has {key}={shorten(text)!r}, which is no number") from None

    def constant(self, at: int) -> Array | None:
        """The value of an input that is the same in every run."""
        return self.constants.get(self.node.inputs[at]) if at < len(self.node.inputs) else None

    def list(self, at: int) -> list[Any] | None:
        """The same, as a list."""
        given = self.constant(at)
        return None if given is None else given.reshape(-1).tolist()

    @property
    def dims(self) -> tuple[Any, ...] | None:
        """Extents of the first input; None for an unknown rank."""
        return self.known(self.node.inputs[0]).dims

    def onnx(self, op: str, inputs: Sequence[int | None] = (0,), version: int = 13, **attributes: Any) -> Node:
        """A node of ONNX with some of the layer's inputs."""
        given = self.node.inputs
        if missing := [at for at in inputs if at is not None and at >= len(given)]:
            raise ModelError(f"{self.node.label} has {len(given)} inputs; it lacks that at position {missing[0]}")
        names = tuple("" if at is None else given[at] for at in inputs)
        return Node(self.node.name, op, "", version, names, self.node.outputs, attributes, stands_for=(self.node,))


def strided(layer: Layer) -> Node | str:
    """StridedSlice: a one in a mask leaves a begin or end out, adds an axis, takes one out, or skips what is left."""
    begin, end = layer.list(1), layer.list(2)
    steps = layer.list(3) if len(layer.node.inputs) > 3 else [1] * len(begin or ())
    if begin is None or end is None or steps is None:
        return NOT_CONSTANT
    count = len(begin)
    no_begin, no_end, added, gone, rest = (
        [*layer.numbers(f"{mask}_mask"), *[0] * count][:count]
        for mask in ("begin", "end", "new_axis", "shrink_axis", "ellipsis")
    )
    if not len(begin) == len(end) == len(steps):
        return "its begins, ends and steps are not as many"
    if sum(rest) > 1 or (any(rest) and layer.dims is None) or any(map(min, gone, map(max, no_begin, added, rest))):
        return "its masks do not say which axes they are of"
    left = len(layer.dims or ()) - sum(not (a or r) for a, r in zip(added, rest, strict=True))
    cuts, taken, new, axis, place = list[tuple[int, int, int, int]](), list[int](), list[int](), 0, 0
    for at in range(count):
        if rest[at]:
            axis, place = axis + left, place + left
            continue
        if added[at]:
            new.append(place)
        elif gone[at]:
            taken.append(axis)
            cuts.append((axis, begin[at], begin[at] + 1 or _END, 1))
        else:
            ends = (0, _END) if steps[at] > 0 else (_END, -_END)
            cuts.append((axis, ends[0] if no_begin[at] else begin[at], ends[1] if no_end[at] else end[at], steps[at]))
        axis, place = axis + (not added[at]), place + (not gone[at])
    axes, starts, stops, paces = (list(each) for each in zip(*cuts, strict=True)) if cuts else ([], [], [], [])
    return layer.onnx("Slice", version=9, axes=axes, starts=starts, ends=stops, steps=paces, taken=taken, new=new)
