"""Frozen dataclasses of the package behave as the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

import polyconv.dataclass as ours

MADE: dict[str, Any] = {}
"""The classes by a name of their own, where pickle finds them."""


def _classes(dataclass: Any, prefix: str) -> Any:
    """Classes of all kinds that the package has."""

    @dataclass(frozen=True, slots=True)
    class Base:
        """With defaults of all kinds."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        d: float = field(default=1.5, compare=False, repr=False)
        e: tuple[int, ...] = field(default=(), kw_only=True)
        f: int = field(default=7, init=False)

    @dataclass(frozen=True, slots=True)
    class Derived(Base):
        """With one more field."""

        g: object = None

    @dataclass(frozen=True, slots=True, eq=False)
    class Itself:
        """Equal to nothing else."""

        a: int = 0

    @dataclass(frozen=True)
    class Checked:
        """Looked at once it is made, with methods of its own."""

        a: int
        b: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("a")

        def __repr__(self) -> str:
            return f"<{self.a}>"

        def __hash__(self) -> int:
            return 5

    @dataclass(frozen=True, slots=True)
    class Own:
        """Equal as it says."""

        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.a % 2 == other.a % 2

    @dataclass(frozen=True, slots=True)
    class Nothing:
        """Without fields."""

    for cls in (Base, Derived, Itself, Checked, Own, Nothing):
        cls.__qualname__, cls.__module__ = cls.__name__, __name__
        MADE[prefix + cls.__name__] = cls
    return Base, Derived, Itself, Checked, Own, Nothing


STANDARD, OURS = _classes(dataclasses.dataclass, "standard "), _classes(ours.dataclass, "ours ")
PAIRS = list(zip(STANDARD, OURS, strict=True))
ARGUMENTS: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (0, (1,), {}), (0, (1, "x", [2], 3.0), {"e": (4,)}), (0, (), {"a": 1, "c": [5]}), (1, (1, "x", [2], 3.0, 6), {}),
    (1, (1,), {"g": "g", "e": (1,)}), (2, (), {}), (2, (3,), {}), (3, (2,), {}), (4, (3,), {}), (5, (), {}),
]  # fmt: skip


@pytest.mark.parametrize(("number", "arguments", "named"), ARGUMENTS)
def test_what_is_made_and_shown(number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    theirs, mine = (cls(*arguments, **named) for cls in PAIRS[number])
    assert repr(theirs).partition(" object at")[0] == repr(mine).partition(" object at")[0]
    assert dataclasses.astuple(theirs) == dataclasses.astuple(mine)
    assert [f.name for f in dataclasses.fields(theirs)] == [f.name for f in dataclasses.fields(mine)]
    assert type(theirs).__match_args__ == type(mine).__match_args__
    assert hasattr(theirs, "__dict__") == hasattr(mine, "__dict__")


@pytest.mark.parametrize("classes", [STANDARD, OURS], ids=["standard", "ours"])
def test_equality_and_hashes(classes: Any) -> None:
    base, derived, itself, checked, own, nothing = classes
    assert base(1) == base(1, d=9.0) != base(2)
    assert base(1) != derived(1)
    assert base(1).__eq__(derived(1)) is NotImplemented
    assert hash(derived(1, c=(), g=2)) == hash(derived(1, c=(), g=2, d=4.0))
    with pytest.raises(TypeError, match="unhashable"):
        hash(base(1))
    assert itself(1) != itself(1)
    assert len({itself(1), itself(1)}) == 2
    assert (hash(checked(1)), checked(1) == checked(1)) == (5, True)
    assert own(1) == own(3) != own(2)
    assert hash(own(1)) != hash(own(3))
    assert nothing() == nothing()
    assert hash(nothing()) == hash(())


@pytest.mark.parametrize("classes", [STANDARD, OURS], ids=["standard", "ours"])
def test_nothing_is_assigned(classes: Any) -> None:
    for made in (classes[0](1), classes[1](1), classes[3](1)):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
            made.a = 2
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
            del made.a
        assert made.a == 1


@pytest.mark.parametrize("classes", [STANDARD, OURS], ids=["standard", "ours"])
def test_wrong_arguments(classes: Any) -> None:
    base, derived, *_ = classes
    for arguments, named in (((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"f": 2}), ((1,), {"z": 2}), ((1, 2), {"b": 2})):
        with pytest.raises(TypeError):
            base(*arguments, **named)
    with pytest.raises(ValueError, match="a"):
        classes[3](-1)
    with pytest.raises(TypeError):
        derived()


@pytest.mark.parametrize("classes", [STANDARD, OURS], ids=["standard", "ours"])
def test_copies_and_what_is_replaced(classes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in classes:
        monkeypatch.setitem(globals(), cls.__name__, cls)
    base, derived, _, checked, _, nothing = classes
    for made in (base(1, "x", [2], 3.0, e=(4,)), derived(1, g=2), checked(3), nothing()):
        for other in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
            assert other == made and type(other) is type(made)
    assert dataclasses.replace(base(1, "x"), a=2) == base(2, "x")
    assert dataclasses.is_dataclass(base)
    assert base(1).c is not base(1).c


def test_others_are_the_standard_librarys() -> None:
    @ours.dataclass
    class Plain:
        """Not frozen."""

        a: int

    made = Plain(1)
    made.a = 2
    assert made == Plain(2)
    assert Plain.__hash__ is None
