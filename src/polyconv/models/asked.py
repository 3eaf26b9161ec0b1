"""What a run is asked for and fed, by the names of a model: inputs, outputs, and what else the file calls them.

It must not know how anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.models.graph import Value
from polyconv.models.limits import shorten

__all__ = ["Names"]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a model.

    Parameters
    ----------
    inputs : mapping
        By name.
    outputs : sequence of str
    defaults : collection of str
        Inputs that may be left out.
    aliases : mapping
        Other names of inputs and outputs.
    """

    inputs: Mapping[str, Value]
    outputs: Sequence[str]
    defaults: Collection[str]
    aliases: Mapping[str, str]

    def wanted(self, output_names: Sequence[str] | None) -> list[str]:
        """Outputs that a run is asked for; None, or none, is all."""
        if output_names is None:  # first: to find that None is no Iterable takes Python 10 ms, once
            return list(self.outputs)
        if isinstance(output_names, str | bytes) or not isinstance(output_names, Iterable):
            raise ArgumentError(
                f"output_names={shorten(output_names)!r} is no list of names; the model's outputs are "
                f"{shorten(list(self.outputs))}"
            )
        return [self.output(name) for name in output_names] or list(self.outputs)

    def output(self, name: str) -> str:
        """The model's own name of an output."""
        found = _known(name, self.outputs, self.aliases)
        if found is None:
            raise ArgumentError(
                f"output_names has {shorten(name)!r}; the model's outputs are {shorten(list(self.outputs))}"
            )
        return found

    def input(self, name: str) -> Value:
        """The input of a name."""
        found = _known(name, self.inputs, self.aliases)
        if found is None:
            known = shorten(list(self.inputs))
            raise ArgumentError(f"input_feed has {shorten(name)!r}; the model's inputs are {known}")
        return self.inputs[found]

    def fed(self, input_feed: Mapping[str, Any], read: Callable[[Value, Any], Any]) -> dict[str, Any]:
        """What a run is fed, each as ``read`` reads it."""
        if type(input_feed) is not dict and not isinstance(input_feed, Mapping):
            raise ArgumentError(
                f"input_feed is of type {type(input_feed).__name__}; give a dict from the model's inputs, "
                f"{shorten(list(self.inputs))}, to arrays"
            )
        feeds: dict[str, Any] = {}
        for given, array in input_feed.items():
            value = self.input(given)
            if value.name in feeds:
                raise ArgumentError(f"input_feed has {shorten(value.name)!r} twice, once as {shorten(given)!r}")
            feeds[value.name] = read(value, array)
        for name in self.inputs:
            if name not in feeds and name not in self.defaults:
                raise ArgumentError(f"input_feed lacks {name!r}; the model's inputs are {shorten(list(self.inputs))}")
        return feeds


def _known(name: Any, known: Container[str], aliases: Mapping[str, str]) -> str | None:
    """The name that a model's values are kept under; None where it has none such."""
    if not isinstance(name, str):
        return None
    found = name if name in known else aliases.get(name, "")
    return found if found in known else None
