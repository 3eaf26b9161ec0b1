"""What a layer keeps from call to call: the programs used last, a bounded number of them, and its choices for life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fresh import run

import polyconv
from polyconv import prepared, wisdom
from polyconv.planning.planner import choose

Array = np.ndarray[Any, Any]
OTHERS = 3 * prepared._MOST_CALLS


def image(width: int, dtype: Any = np.float32) -> Array:
    return np.ones((1, 3, 5, width), dtype)


@pytest.fixture
def layer() -> polyconv.Conv:
    with polyconv.settings(check=False):
        return polyconv.Conv(np.ones((4, 3, 3, 3), np.float32))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often a program was made for an input of some width."""
    count: Counter[int] = Counter()
    build = prepared.Layer.program

    def counted(self: Any, form: Any, *more: Any, **named: Any) -> Any:
        count[form.s.problem.i[-1]] += 1
        return build(self, form, *more, **named)

    monkeypatch.setattr(prepared.Layer, "program", counted)
    return count


@pytest.fixture
def ignorant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that knows no wisdom, then and now."""
    monkeypatch.setenv("POLYCONV_WISDOM", str(tmp_path / "user.json"))
    wisdom.forget()
    yield
    wisdom.forget()


def test_extents_used_all_the_time_stay_while_others_come_and_go(layer: polyconv.Conv, made: Counter[int]) -> None:
    hot = image(40)
    for other in range(OTHERS):
        layer(hot)
        layer(image(41 + other))
    assert made[40] == 1
    assert len(made) == OTHERS + 1


def test_calls_of_the_native_entry_count_as_uses(layer: polyconv.Conv, made: Counter[int]) -> None:
    """Byte-swapped inputs run in Python and leave the native entry of the hot extents in place all the while."""
    hot = image(40)
    layer(hot)
    for other in range(OTHERS):
        layer(hot)
        layer(image(41 + other, ">f4"))
    with polyconv.settings(rigor="estimate"):
        layer(hot)  # in another context: the layer looks for it among the calls that it keeps
    assert made[40] == 1


def test_the_least_recently_used_goes(layer: polyconv.Conv, made: Counter[int]) -> None:
    first, second = image(40), image(41)
    layer(first), layer(second), layer(first)
    for other in range(prepared._MOST_CALLS - 1):
        layer(image(42 + other))
    layer(first), layer(second)
    assert made[40] == 1
    assert made[41] == 2


def learn(layer: polyconv.Conv, shape: tuple[int, ...]) -> str:
    """Have wisdom say something that the estimate does not; what it says."""
    s = layer._layer.situation(layer._layer.problem_for(shape).fused())
    choice = choose(s)
    name = next(name for name in choice.costs if name != choice.algorithm)
    wisdom.remember(s, name, {name: 1e-6}, "measure")
    return name


@pytest.mark.usefixtures("ignorant")
def test_a_choice_outlives_any_number_of_other_extents(layer: polyconv.Conv) -> None:
    shape = image(40).shape
    before = layer.plan(shape).algorithm
    name = learn(layer, shape)
    assert name != before
    for other in range(OTHERS):
        layer.plan(image(41 + other).shape)
    assert layer.plan(shape).algorithm == before
    wisdom.forget()
    assert layer.plan(shape).algorithm == before


@pytest.mark.usefixtures("ignorant")
def test_a_choice_by_wisdom_outlives_that_wisdom(layer: polyconv.Conv) -> None:
    shape = image(40).shape
    name = learn(layer, shape)
    assert layer.plan(shape).algorithm == name
    wisdom.forget()
    for other in range(OTHERS):
        layer.plan(image(41 + other).shape)
    assert layer.plan(shape).algorithm == name
    assert layer.plan(shape, rigor="estimate").algorithm != name  # asked to decide anew
    assert layer.plan(shape).algorithm != name


@pytest.mark.usefixtures("ignorant")
def test_choices_by_arithmetic_or_wisdom_take_no_memory(layer: polyconv.Conv) -> None:
    """They follow from the wisdom of one moment, so they can be found again; only measured ones are kept."""
    learn(layer, image(40).shape)
    for other in range(OTHERS):
        layer.plan(image(40 + other).shape)
        layer.plan(image(40 + other).shape, rigor="estimate")
    assert not layer._layer._choices
    layer.plan(image(40 + OTHERS).shape, rigor="measure")
    assert len(layer._layer._choices) == 1


@pytest.mark.usefixtures("ignorant")
def test_a_measured_choice_is_kept_whatever_wisdom_says_later() -> None:
    layer = polyconv.Conv(np.ones((4, 3, 3, 3), np.float32), rigor="measure")
    shape = image(40).shape
    before = layer.plan(shape)
    assert before.source == "measured"
    s = layer._layer.situation(layer._layer.problem_for(shape).fused())
    other = next(name for name in choose(s).costs if name != before.algorithm)
    wisdom.remember(s, other, {other: 1e-9}, "patient")
    assert layer.plan(shape).algorithm == before.algorithm
    wisdom.forget()
    assert layer.plan(shape).algorithm == before.algorithm


def test_a_plan_refuses_a_rigor_that_does_not_exist(layer: polyconv.Conv) -> None:
    with pytest.raises(polyconv.ArgumentError, match=r"rigor='hard'.*estimate, measure or patient"):
        layer.plan((1, 3, 5, 40), rigor="hard")


def test_a_finaliser_may_call_a_layer_while_another_looks_into_its_tables() -> None:
    """Memory is taken there, so garbage may be collected there, and what runs then is anybody's code."""
    code = """
        import gc
        from polyconv.weights import Weights
        other, small, formed = layer(), image(size=20), Weights.packed_bytes.fget

        class Caller:
            def __init__(self):
                self.me = self  # only the collector finds it

            def __del__(self):
                print("called", other(small).shape)

        def collecting(self):
            if self is not other._layer.weights:
                Caller()
                gc.collect()
            return formed(self)

        Weights.packed_bytes = property(collecting)
        one = layer()
        one(small)
        print(one(image()).shape)
    """
    assert run(code).split("\n") == ["called (1, 32, 20, 20)", "(1, 32, 56, 56)", ""]


def test_a_finaliser_may_call_a_layer_while_workers_start() -> None:
    code = """
        import gc
        large, Thread = image(size=112), threading.Thread
        other = layer(threads=5)

        class Caller:
            def __init__(self):
                self.me = self

            def __del__(self):
                print("called", other(large).shape)

        class Collecting(Thread):
            def __init__(self, *arguments, **keywords):
                Caller()
                gc.collect()
                super().__init__(*arguments, **keywords)

        threading.Thread = Collecting
        print(layer()(image()).shape)
        numbers = [t.name for t in threading.enumerate() if t.name.startswith("polyconv")]
        assert len(set(numbers)) == len(numbers)
    """
    run("layer()(image()), layer(threads=5)(image(size=112))")  # kernels that are compiled later start threads, too
    assert run(code).split("\n") == ["called (1, 32, 112, 112)", "(1, 32, 56, 56)", ""]
