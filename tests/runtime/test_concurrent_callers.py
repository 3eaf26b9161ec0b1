"""The same bits whoever computes: any number of threads, callers at once, splits of the batch, workspace limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv.planning import wisdom

Array = np.ndarray[Any, Any]
CALLERS = 8


def _conv(c: int, m: int, k: int, shape: tuple[int, ...], dtype: Any = np.float32, **options: Any) -> tuple[Any, ...]:
    """What makes a layer, and an input: values without a pattern, so that another order of additions shows."""
    rng = np.random.default_rng(5)
    make = options.pop("make", polyconv.Conv)
    groups, rank = options.get("groups", 1), len(shape) - 2
    first, second = (m, c // groups) if make is polyconv.Conv else (c, m // groups)

    def values(shape: tuple[int, ...]) -> Array:
        if np.dtype(dtype).kind in "iu":
            return rng.integers(-90, 90, shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)

    w, b = values((first, second) + (k,) * rank), values((m,))
    return (lambda **more: make(w, b, **options, **more)), values(shape)


LAYERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "dense": lambda: _conv(48, 40, 3, (3, 48, 28, 28), pads=1),
    "dense channels last": lambda: _conv(48, 70, 3, (2, 30, 30, 48), pads=1, layout="NHWC", activation="Tanh"),
    "many channels": lambda: _conv(700, 33, 1, (2, 700, 13, 13)),
    "depthwise": lambda: _conv(48, 48, 5, (2, 48, 40, 40), groups=48, pads=2),
    "grouped, strided": lambda: _conv(48, 24, 3, (2, 48, 41, 41), groups=4, strides=2, layout="NCHW"),
    "half": lambda: _conv(32, 32, 3, (2, 32, 28, 28), np.float16, pads=1),
    "double": lambda: _conv(24, 24, 3, (2, 24, 20, 20), np.float64, pads=1),
    "bytes": lambda: _conv(40, 40, 3, (2, 40, 28, 28), np.int8, pads=1, out_dtype=np.int32),
    "transposed": lambda: _conv(32, 24, 4, (2, 32, 20, 20), strides=2, make=polyconv.ConvTranspose),
    "volume": lambda: _conv(16, 16, 3, (2, 16, 12, 12, 12), pads=1),
}

EACH = pytest.mark.parametrize("name", LAYERS)


def bits(a: Any) -> bytes:
    return np.ascontiguousarray(a).tobytes()


def together(*calls: Callable[[], None]) -> None:
    """Run the calls in threads that start at one moment; an error of any of them is raised."""
    gate, errors = threading.Barrier(len(calls)), []

    def run(call: Callable[[], None]) -> None:
        gate.wait()
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@EACH
def test_any_number_of_threads(name: str) -> None:
    make, x = LAYERS[name]()
    alone = make(threads=1)
    right = bits(alone(x))
    for threads in (2, 3, 5, 64, 256, 300):
        layer = make(threads=threads)
        assert layer.plan(x.shape).threads > 1  # large enough to be shared
        for _ in range(3):
            assert bits(layer(x)) == right, threads


@EACH
def test_any_batch_split(name: str) -> None:
    make, x = LAYERS[name]()
    layer = make(threads=2)
    whole = layer(x)
    for b in range(len(x)):
        assert bits(layer(x[b : b + 1])) == bits(whole[b : b + 1])
    assert bits(layer(np.concatenate([x, x[:1]]))) == bits(np.concatenate([whole, whole[:1]]))


@EACH
def test_equal_arithmetic_means_equal_bits_under_any_workspace_limit(name: str) -> None:
    make, x = LAYERS[name]()
    results: dict[str, set[bytes]] = {}
    sizes: dict[str, set[int]] = {}
    most = make(threads=2).plan(x.shape).workspace_bytes
    below = (most - 1,) if most else ()  # the next smaller block, wherever the price of another algorithm lies
    for limit in (0, 1000, 20_000, 100_000, 400_000, 10_000_000, *below, None):
        layer = make(threads=2, workspace_limit=limit)
        plan = layer.plan(x.shape)
        assert limit is None or plan.workspace_bytes <= limit
        results.setdefault(plan.arithmetic, set()).add(bits(layer(x)))
        sizes.setdefault(plan.arithmetic, set()).add(plan.workspace_bytes)
    assert all(len(found) == 1 for found in results.values())
    if most:  # else the block of no limit fits the smallest one
        assert any(len(found) > 1 for found in sizes.values()), "no limit changed any block"


@EACH
def test_callers_at_once_on_one_layer(name: str) -> None:
    make, x = LAYERS[name]()
    right = bits(make(threads=1)(x))
    layer = make(threads=2)

    def call(own_out: bool) -> None:
        out = np.empty_like(layer(x)) if own_out else None
        for _ in range(10):
            assert bits(layer(x, out=out)) == right
            if out is not None:
                out.fill(0)

    together(*[lambda i=i: call(i % 2 == 0) for i in range(CALLERS)])


def test_callers_at_once_on_several_layers() -> None:
    """Each makes its own layers meanwhile: packing, compiling, starting workers and growing memory race."""
    made = {name: make() for name, make in LAYERS.items()}
    right = {name: bits(make(threads=1)(x)) for name, (make, x) in made.items()}

    def call(number: int) -> None:
        names = list(made)
        for name in names[number:] + names[:number]:
            make, x = made[name]
            layer = make(threads=2 + number % 3)
            for _ in range(4):
                assert bits(layer(x)) == right[name], name

    together(*[lambda i=i: call(i) for i in range(CALLERS)])


def test_callers_of_one_layer_with_inputs_of_their_own() -> None:
    """Extents and strides differ from caller to caller: the layer's tables change under everybody's hands."""
    make, _ = LAYERS["dense"]()
    layer, alone = make(threads=2), make(threads=1)
    rng = np.random.default_rng(9)
    inputs = [rng.standard_normal((1, 48, 9 + i, 17 + i)).astype(np.float32) for i in range(CALLERS)]
    inputs[3] = np.moveaxis(np.ascontiguousarray(np.moveaxis(inputs[3], 1, -1)), -1, 1)
    right = [bits(alone(x)) for x in inputs]

    def call(number: int) -> None:
        for turn in range(30):
            which = (number + turn * (number % 2)) % CALLERS
            assert bits(layer(inputs[which])) == right[which]

    together(*[lambda i=i: call(i) for i in range(CALLERS)])


def test_a_layer_and_its_like() -> None:
    """A second layer of the same weights, one made from strided weights, and the one-shot call with its plan."""
    make, x = LAYERS["dense"]()
    rng = np.random.default_rng(5)
    w, b = rng.standard_normal((40, 48, 3, 3)).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    right = bits(make()(x))
    hwio = np.ascontiguousarray(w.transpose(2, 3, 1, 0))
    assert bits(polyconv.Conv(hwio.transpose(3, 2, 0, 1), b, pads=1)(x)) == right
    problem = polyconv.Problem.parse("conv f32 NCHW n3 c48 i28x28 m40 k3x3 p1x1 b1")
    strict = polyconv.Conv(w, b, pads=1, accuracy="strict")
    if polyconv.plan(problem, accuracy="strict", once=True).arithmetic == strict.plan(x.shape).arithmetic:
        assert bits(polyconv.conv(x, w, b, pads=1, accuracy="strict")) == bits(strict(x))


def test_a_layer_keeps_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured later is for later layers; this one follows when it is asked to decide anew."""
    monkeypatch.setenv("POLYCONV_WISDOM", "off")
    wisdom.forget()
    make, x = LAYERS["half"]()
    layer = make(threads=1)
    y = layer(x)
    assert layer.plan(x.shape).algorithm != "generic"
    situation = layer._layer.situation(layer._layer.problem_for(x.shape))
    wisdom.remember(situation, "generic", {"generic": 1e-6}, "measure")
    later = make(threads=1)
    assert later.plan(x.shape).algorithm == "generic"
    other = later(x)
    assert bits(other) != bits(y)
    # another batch, other strides: a program that this layer has not made before
    assert bits(layer(x[:1])) == bits(y[:1])
    assert bits(layer(np.asfortranarray(x))) == bits(y)
    assert layer.plan(x.shape, rigor="measure").algorithm == "generic"
    for _ in range(2):
        assert bits(layer(x)) == bits(other)
    wisdom.forget()


def test_many_short_shared_jobs() -> None:
    """Jobs that end about when a worker arrives: no item is lost, none is done twice with old words."""
    rng = np.random.default_rng(1)
    layers = []
    for c, size in ((32, 16), (40, 14), (16, 32)):
        w = rng.integers(-3, 4, (c, c, 3, 3)).astype(np.float32)
        x = rng.integers(-3, 4, (1, c, size, size)).astype(np.float32)
        layer, alone = (polyconv.Conv(w, pads=1, threads=threads, accuracy="strict") for threads in (2, 1))
        layers.append((layer, x, bits(alone(x)), np.empty_like(x)))
    assert all(layer.plan(x.shape).threads == 2 for layer, x, _, _ in layers)
    for turn in range(6000):
        layer, x, right, out = layers[turn % 3]
        out.fill(np.nan)
        assert bits(layer(x, out=out)) == right
