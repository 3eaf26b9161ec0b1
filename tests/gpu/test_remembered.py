"""Wisdom of GPUs: what the clock chose is found again by later layers and processes, on a device of that name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from on_virtual_gpu import seeded
from virtual_gpu import Libcuda, virtual_gpu

import polyconv
from polyconv import wisdom
from polyconv.gpu import layer as layer_file
from polyconv.gpu.arrays import to_gpu
from polyconv.gpu.device import device
from polyconv.gpu.forms import Form, Job
from polyconv.gpu.layer import DeviceLayer
from polyconv.gpu.plan import choose, job_of
from polyconv.gpu.remembered import recalled
from polyconv.planning import wisdom as process_wide
from polyconv.problem.problem import Problem

LINE = "conv f32 NHWC n1 c20 i7x5 m24 k3x3 p1"
RNG = seeded(LINE)
W = RNG.standard_normal((24, 20, 3, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Libcuda]:
    """A GPU on which another form than the predicted one is the fastest."""
    monkeypatch.setattr(process_wide, "_known", {})
    monkeypatch.setattr(layer_file.DeviceLayer, "_time", _time)
    _timed.clear()
    with virtual_gpu() as found:
        yield found


_timed: list[str] = []


def _time(self: DeviceLayer, job: Job, form: Form) -> float:
    """Slowest first: what is predicted slowest of the forms that are timed takes the least time."""
    _timed.append(str(form))
    return 1e-3 / len(_timed)


def _layer(rigor: str | None = None, accuracy: str | None = None) -> polyconv.Conv:
    return polyconv.Conv(to_gpu(W), pads=1, layout="NHWC", rigor=rigor, accuracy=accuracy)


SHAPE = 1, 7, 5, 20


def test_later_layers_find_what_was_measured() -> None:
    measured = _layer("measure").plan(SHAPE)
    assert (measured.source, len(_timed)) == ("measured", 6)
    assert measured.candidates[0].algorithm != _timed[-1], "another one was predicted fastest"
    assert f"kernel: {_timed[-1]}" in measured.notes
    for layer in (_layer("measure"), _layer()):
        again = layer.plan(SHAPE)
        assert (again.source, again.notes, again.arithmetic) == ("measured", measured.notes, measured.arithmetic)
    assert len(_timed) == 6, "nothing was timed anew"
    (entry,) = wisdom.entries()
    assert (entry.cpu, entry.target, entry.algorithm) == (device().name, device().level, _timed[-1])
    assert set(entry.seconds) == set(_timed)


def test_more_rigor_times_more_forms_once() -> None:
    layer = _layer()
    layer.plan(SHAPE, rigor="measure")
    layer.plan(SHAPE, rigor="patient")
    few, more = _timed[:6], _timed[6:]
    assert set(few) < set(more)
    layer.plan(SHAPE, rigor="measure")
    assert len(_timed) == len(few) + len(more)
    assert wisdom.entries()[0].rigor == "patient"


def test_other_batches_keep_the_bits() -> None:
    """The arithmetic is that of the batch that was measured, whatever the batch."""
    layer = _layer("measure")
    one = layer.plan(SHAPE)
    three = layer.plan((3, *SHAPE[1:]))
    assert three.arithmetic == one.arithmetic
    assert len(_timed) == 6
    x = RNG.standard_normal((3, *SHAPE[1:])).astype(np.float32)
    whole, last = layer(to_gpu(x)).numpy(), layer(to_gpu(x[2:])).numpy()
    np.testing.assert_array_equal(whole[2:], last)


def test_a_layer_heeds_what_was_known_when_it_first_asked() -> None:
    before = _layer()
    plan = before.plan(SHAPE)
    assert plan.source == "estimate"
    _layer("measure").plan(SHAPE)
    assert before.plan(SHAPE).arithmetic == plan.arithmetic
    assert before.plan(SHAPE).source == "estimate"


def test_a_call_without_a_layer_is_predicted() -> None:
    """As on the CPU: times are those of calls that find their weights packed."""
    _layer("measure").plan(SHAPE)
    x = RNG.standard_normal(SHAPE).astype(np.float32)
    got = polyconv.conv(to_gpu(x), to_gpu(W), pads=1, layout="NHWC").numpy()
    predicted = DeviceLayer(lambda n, i: Problem.parse(LINE), to_gpu(W), layout="NHWC", form=lambda job: choose(job))
    np.testing.assert_array_equal(got, predicted(to_gpu(x)).numpy())


def test_through_a_file(tmp_path: Path) -> None:
    _layer("measure", accuracy="tf32").plan(SHAPE)
    entries = wisdom.entries()
    wisdom.export(tmp_path / "gpu.json")
    wisdom.forget()
    assert _layer(accuracy="tf32").plan(SHAPE).source == "estimate"
    assert wisdom.import_(tmp_path / "gpu.json") == entries
    plan = _layer(accuracy="tf32").plan(SHAPE)
    assert (plan.source, plan.algorithm) == ("wisdom", entries[0].algorithm.split()[0])
    assert _layer().plan(SHAPE).source == "estimate", "another accuracy"


def test_what_cannot_be_used_is_not() -> None:
    _layer("measure").plan(SHAPE)
    known = process_wide.known()
    (key, (entry, source)), job = next(iter(known.items())), job_of(Problem.parse(LINE), device())
    assert recalled(job, known) is not None
    for changed in (
        replace(entry, version="0"), replace(entry, generator="other kernels"), replace(entry, arithmetic="by hand"),
    ):  # fmt: skip
        assert recalled(job, {key: (changed, source)}) is None
    odd = replace(entry, algorithm="no such form")  # the arithmetic stands: a form of it is predicted
    found = recalled(job, {key: (odd, source)})
    assert found is not None
    assert found.form.arithmetic == entry.arithmetic
    with virtual_gpu("A100"):
        assert _layer().plan(SHAPE).source == "estimate", "another device"


def test_it_is_no_wisdom_of_the_cpu() -> None:
    _layer("measure").plan(SHAPE)
    (entry,) = wisdom.entries()
    assert process_wide.outdated(entry) == f"measured on a GPU, {device().name}"
    assert polyconv.Conv(W, pads=1, layout="NHWC").plan(SHAPE).source == "estimate"
