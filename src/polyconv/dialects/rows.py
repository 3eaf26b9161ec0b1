"""The row that says everything particular to one version of an operator, and tables of such rows.

Rows are grouped under names, newest version first; calling one makes an ``Operator``.  This file must
not know the name of any operator, attribute or input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.dialects import inputs as given
from polyconv.dialects.attributes import Attribute, read
from polyconv.dialects.call import Operator
from polyconv.dialects.node import Lowering, Node
from polyconv.errors import ArgumentError, Unsupported, shown

__all__ = ["Factory", "Input", "Row", "factories", "named", "newest"]


@dataclass(frozen=True, slots=True)
class Input:
    """One input of an operator.

    Parameters
    ----------
    name : str
        As in the specification.
    role : str
        Parameter of ``layer.compute`` that it becomes, or ``SIZES``.
    type : str
        Type variable of the row; inputs that share it have one element type.
    optional : bool
        Whether it may be absent.
    """

    name: str
    role: str
    type: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One version of an operator; calling it makes an ``Operator``.

    Parameters
    ----------
    domain, name, version
        What identifies it; version is that of the operator set which introduced it.
    lower : callable
        Turns a Node into a Lowering.
    inputs : tuple of Input
        In the order of the specification.
    attributes : mapping
        Name to Attribute.
    types : mapping
        Type variable to the short names of the types that it allows.
    layout : str
        Axis order of input and result; ``NHWC`` too where the attribute channels_last says so.
    semantics : tuple of str
        Whose definitions can be chosen; the first is the default.
    """

    domain: str
    name: str
    version: int
    lower: Callable[[Node], Lowering] = field(repr=False)
    inputs: tuple[Input, ...] = field(repr=False)
    attributes: Mapping[str, Attribute] = field(repr=False)
    types: Mapping[str, tuple[str, ...]] = field(repr=False)
    layout: str = "NCHW"
    semantics: tuple[str, ...] = ("onnx",)

    def __call__(
        self,
        *,
        semantics: str | None = None,
        accuracy: str | None = None,
        threads: int | None = None,
        workspace_limit: int | None = None,
        **attributes: Any,
    ) -> Operator:
        """Make an operator of this version.

        Parameters
        ----------
        semantics : str, optional
            Whose definition holds where two differ.
        accuracy, threads, workspace_limit
            As for ``polyconv.conv``.
        **attributes
            Spelled as in the specification; None is absent.

        Raises
        ------
        ArgumentError
            If an attribute is unknown or has a value that it cannot have.
        """
        chosen = self.semantics[0] if semantics is None else semantics
        if chosen not in self.semantics:
            raise ArgumentError(
                f"semantics={shown(chosen)} is not known to {self.name}; choose {' or '.join(self.semantics)}"
            )
        options = {"accuracy": accuracy, "threads": threads, "workspace_limit": workspace_limit}
        return Operator(self, read(self.name, self.attributes, attributes), chosen, options)


@dataclass(frozen=True, slots=True)
class Factory:
    """All versions of an operator under its name.

    Parameters
    ----------
    name : str
        As in the specification.
    rows : tuple of Row
        Newest first.
    """

    name: str
    rows: tuple[Row, ...]

    def __call__(self, *, version: int | None = None, domain: str | None = None, **attributes: Any) -> Operator:
        """Make an operator.

        Parameters
        ----------
        version : int, optional
            Version of the operator; None is the newest.
        domain : str, optional
            Of operators that have the same name: the domain of the one that is meant.
        **attributes
            Attributes and options as ``Row.__call__`` takes them.
        """
        of_domain = [row for row in self.rows if domain in (None, row.domain)]
        number = None if version is None else given.whole(version, "version")
        row = next((row for row in of_domain if number in (None, row.version)), None)
        if row is None:
            found = ", ".join(f"{row.version} of {row.domain or 'ai.onnx'}" for row in reversed(self.rows))
            asked = f"version={version}" + f" of domain={shown(domain)}" * (domain is not None)
            raise ArgumentError(
                f"{asked} of {self.name} does not exist; choose one of {found} (lookup() finds "
                f"the one that holds in an operator set)"
            )
        return row(**attributes)


def factories(rows: Iterable[Row]) -> dict[str, Factory]:
    """One factory per name, its versions newest first."""
    names: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: -r.version):
        names.setdefault(row.name, []).append(row)
    return {name: Factory(name, tuple(found)) for name, found in names.items()}


def named(found: Mapping[str, Factory], name: str, module: str) -> Factory:
    """The factory that a module has under a name; for its ``__getattr__``."""
    try:
        return found[name]
    except KeyError:
        raise AttributeError(f"{module} has no operator {name!r}; it has {', '.join(found)}") from None


def newest(dialect: str, versions: Iterable[int], name: str, opset: int) -> int:
    """Largest version not above an operator set's number.

    Raises
    ------
    Unsupported
        If there is none.
    """
    fitting = [v for v in versions if v <= given.whole(opset, "opset")]
    if not fitting:
        raise Unsupported(f"{name} of operator set {opset} is not among the operators of dialects.{dialect}")
    return max(fitting)
