"""Calls of generated code: what differs from the declaration of a function is refused before it is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyconv import cache
from polyconv.errors import Error
from polyconv.kernels import objects
from polyconv.kernels.fused import Out
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.signature import Int, Signature
from polyconv.layer import compute
from polyconv.problem.problem import Problem
from polyconv.settings import settings
from polyconv.target import host_target


class Sum(Signature):
    """Numbers to add."""

    numbers: Buffer
    count: Int


class SumTo(Sum):
    """The same, and where the result goes."""

    target: Buffer


def unit(check: bool = False) -> Module:
    return Module(check=check)


def test_arguments_are_those_of_the_declaration() -> None:
    """Inherited ones come first; in check mode a buffer takes two more words."""
    for check, spelled in (
        (False, "(ptr %a0, i64 %a1, ptr %a2)"),
        (True, "(ptr %a0, i64 %e0, i64 %o0, i64 %a1, ptr %a2, i64 %e2, i64 %o2, ptr %cell)"),
    ):
        k = unit(check)
        with k.function("sum", SumTo) as given:
            assert isinstance(given.numbers, Buffer)
            assert given.count.type == INT
            k.store(given.count, given.target)
        assert f"define void @sum{spelled}" in k.text("none")


def test_an_argument_that_is_missing_or_unknown_is_refused() -> None:
    k = unit()
    with k.function("sum", Sum) as given, pytest.raises(TypeError, match="count"):
        Sum(given.numbers)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="size"):
        Sum(given.numbers, 1, size=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", ["buffer for a number", "number for a buffer", "float", "narrow number"])
def test_an_argument_of_another_kind_is_refused(wrong: str) -> None:
    k = unit()
    with k.function("sum", Sum) as given:
        arguments: Any = {
            "buffer for a number": Sum(given.numbers, given.numbers),  # type: ignore[arg-type]
            "number for a buffer": Sum(given.count, given.count),  # type: ignore[arg-type]
            "float": Sum(given.numbers, 1.5),  # type: ignore[arg-type]
            "narrow number": Sum(given.numbers, k.load(vector("i32", 0), given.numbers)),
        }[wrong]
        name = "numbers" if wrong == "number for a buffer" else "count"
        with pytest.raises(TypeError, match=f"argument {name} of Sum"):
            k.call("sum", arguments)


def test_a_call_by_name_has_the_signature_of_the_function() -> None:
    """Also where the function follows after the call."""

    def called_with(arguments: type[Signature]) -> Module:
        k = unit()
        with k.function("first", Sum) as given:
            more = {"target": given.numbers} if arguments is SumTo else {}
            k.call("second", arguments(given.numbers, 1, **more))
        with k.function("second", Sum):
            pass
        return k

    assert "call void @second" in called_with(Sum).text("none")
    with pytest.raises(TypeError, match="second is called with SumTo"):
        called_with(SumTo).text("none")


def test_a_call_of_a_function_that_is_not_there_is_refused() -> None:
    k = unit()
    with k.function("first", Sum) as given:
        k.call("second", given)
    with pytest.raises(TypeError, match="second is called with Sum"):
        k.text("none")


def test_a_function_is_defined_once() -> None:
    k = unit()
    with k.function("sum", Sum):
        pass
    with pytest.raises(ValueError, match="sum is defined twice"), k.function("sum", Sum):
        pass


def test_an_argument_is_declared_as_a_buffer_or_a_number() -> None:
    class Wrong(Signature):
        size: Value

    with pytest.raises(TypeError, match="argument size of Wrong"), unit().function("wrong", Wrong):
        pass


def test_a_kernel_defines_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_loaded", {})
    monkeypatch.setattr(cache, "_folder", [None])  # an object that an earlier run kept would not be built again

    def build(k: Module) -> None:
        with k.function("sum", SumTo):
            pass

    with pytest.raises(TypeError, match="is to define"):
        objects.kernel("test sum", {"sum": Sum}, build, host_target())
    found = objects.kernel("test sum", {"sum": SumTo}, build, host_target())
    assert found["sum"].signature is SumTo


@pytest.mark.parametrize(("algorithm", "line"), [
    ("in_place", "conv f32 NHWC n1 c64 i9x8 m64 k3x3 p1 g8"),
    ("in_planes", "conv f32 NCHW n1 c64 i9x20 m64 k3x3 p1 g4"),
])  # fmt: skip
def test_an_access_that_check_mode_catches_writes_nothing_of_the_callers(
    algorithm: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver once gave a tile one argument more than it takes: its site went to the caller's input."""
    if algorithm == "in_planes" and not host_target().has_masks:
        pytest.skip("in_planes needs loads and stores with masks")
    right = Out.store

    def too_far(self: Out, sums: Any, vectors: int, y: Buffer, *rest: Any) -> Any:
        return right(self, sums, vectors, y + (1 << 20), *rest)

    monkeypatch.setattr(objects, "_loaded", {})
    monkeypatch.setattr(Out, "store", too_far)
    p = Problem.parse(line)
    x, w = (np.ones([int(e or 0) for e in shape], np.float32) for shape in (p.x_shape, p.w_shape))
    with settings(check=True), pytest.raises(Error, match="reached beyond its buffers or tables"):
        compute(p, x, w, algorithm=algorithm)
    assert (x == 1).all()
    assert (w == 1).all()
