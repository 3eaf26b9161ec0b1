"""The native entry of a layer: it takes exactly the arrays it was made for, and leaves all others alone."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fresh import run

import polyconv

Array = np.ndarray[Any, Any]
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, *(f"{k}{b}" for k in "iu" for b in (1, 2, 4, 8))]


def whole(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Small whole numbers, none negative: exact in every type and every order of additions."""
    return (np.arange(np.prod(shape)) % 3).reshape(shape).astype(dtype)


def made(shape: tuple[int, ...] = (1, 4, 9, 11), dtype: Any = np.float32, **options: Any) -> tuple[Any, Array, Array]:
    """A layer that has been called once with x (never in check mode, which has no native entry), x, and the result.

    Its whole numbers stay whole by any algorithm: transforms, which round, are not admitted.
    """
    channels = shape[-1] if options.get("layout") == "NHWC" else shape[1]
    with polyconv.settings(check=False):
        w = whole((5, channels) + (3,) * (len(shape) - 2), dtype)
        layer = polyconv.Conv(w, pads=1, accuracy="strict", overflow="wrap", **options)
    x = whole(shape, dtype)
    return layer, x, layer(x)


def entry_of(layer: Any) -> Any:
    return layer._layer._last[0].entry


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_plain_arrays_of_every_type(dtype: Any) -> None:
    layer, x, y = made(dtype=dtype)
    out = np.zeros_like(y)
    assert entry_of(layer)(x, out, None) is out
    assert out.tobytes() == y.tobytes()
    assert y.any()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("spatial", [(9,), (5, 6), (3, 4, 5), (2, 3, 4, 3)], ids=len)
def test_every_rank(spatial: tuple[int, ...], layout: str) -> None:
    layer, x, y = made((2, *spatial, 4) if layout == "NHWC" else (2, 4, *spatial), layout=layout)
    out = np.zeros_like(y)
    assert entry_of(layer)(x, out, None) is out
    assert (out == y).all()


def test_the_stride_of_a_single_element_does_not_matter() -> None:
    """NumPy lets it be anything, and gives buffers of contiguous arrays another one."""
    x = np.moveaxis(whole((1, 1, 9, 11)), 1, -1)
    assert x.strides[-1] != x.itemsize
    with polyconv.settings(check=False):
        layer = polyconv.Conv(whole((5, 1, 3, 3)), pads=1, layout="NHWC")
    y = layer(x)
    for same in (x, x.copy(), np.broadcast_to(x, x.shape)):
        out = np.zeros_like(y)
        assert entry_of(layer)(same, out, None) is out
        assert (out == y).all()


def test_bound_to_strided_memory() -> None:
    """The entry is made for the strides of the last call, negative ones too, on both sides."""
    layer, x, y = made()
    holder, result = np.zeros((1, 4, 18, 11), np.float32), np.zeros((11, 9, 5, 1), np.float32)
    view, out = holder[:, :, ::-2, ::-1], result.T
    view[...] = x
    layer(view, out=out)
    entry = entry_of(layer)
    out[...] = 0
    assert entry(view, out, None) is out
    assert (out == y).all()
    assert entry(x, out, None) is None


class Special(np.ndarray[Any, Any]):
    """An array that is no plain one."""


def _subclass(a: Array) -> Array:
    return a.view(Special)


def _read_only(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


STRANGE_X: dict[str, Callable[[Array], Any]] = {
    "int32": lambda x: x.view(np.int32),
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "a subclass": _subclass,
    "strided": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "transposed": lambda x: np.asfortranarray(x),
    "reversed": lambda x: x[..., ::-1].copy()[..., ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "a larger batch": lambda x: np.concatenate([x, x]),
    "shorter": lambda x: x[..., :-1].copy(),
    "of fewer axes": lambda x: x[0],
    "of more axes": lambda x: x[None],
    "empty": lambda x: x[:0],
    "a list": lambda x: x.tolist(),
    "a scalar": lambda x: 3.0,
    "nothing": lambda x: None,
    "text": lambda x: "x",
    "bytes": lambda x: x.tobytes(),
    "a view of bytes": lambda x: memoryview(x),
    "the type itself": lambda x: np.ndarray,
}


@pytest.mark.parametrize("kind", STRANGE_X)
def test_other_inputs_are_refused_and_nothing_is_written(kind: str) -> None:
    layer, x, y = made()
    entry, strange, out = entry_of(layer), STRANGE_X[kind](x), np.full_like(y, 7)
    held = [out, layer] if kind in ("nothing", "the type itself") else [out, layer, strange]
    counts = [sys.getrefcount(thing) for thing in held]
    assert entry(strange, out, None) is None
    assert (out == 7).all()
    assert [sys.getrefcount(thing) for thing in held] == counts


RIGHT_ANYWAY = ("byte-swapped", "a subclass", "strided", "transposed", "reversed", "broadcast", "a larger batch",
                "shorter", "empty", "a list", "a view of bytes")  # fmt: skip


@pytest.mark.parametrize("kind", STRANGE_X)
def test_other_inputs_go_the_other_way(kind: str) -> None:
    """Through Python a layer takes what a plain copy of it means, or says what is wrong."""
    layer, x, _ = made()
    strange = STRANGE_X[kind](x)
    if kind not in RIGHT_ANYWAY:
        with pytest.raises(polyconv.Error, match="x"):
            layer(strange)
        return
    plain = np.array(np.asarray(strange), dtype=np.float32, order="C", copy=True, subok=False)
    right = polyconv.conv(plain, layer._layer.weights.w, pads=1, accuracy="strict")
    for _ in range(2):
        y = layer(strange)
        assert type(y) is np.ndarray
        assert y.flags.c_contiguous
        np.testing.assert_array_equal(y, right)


def test_a_refused_call_does_not_spoil_the_next() -> None:
    layer, x, y = made()
    for strange in (STRANGE_X[kind](x) for kind in RIGHT_ANYWAY):
        layer(strange)
        assert (layer(x) == y).all()
        assert (layer(x) == y).all()


STRANGE_OUT: dict[str, Callable[[Array, Array], Any]] = {
    "read-only": lambda x, y: _read_only(y),
    "of another type": lambda x, y: np.zeros_like(y, np.int32),
    "wider": lambda x, y: np.zeros_like(y, np.float64),
    "byte-swapped": lambda x, y: y.astype(y.dtype.newbyteorder()),
    "of another shape": lambda x, y: np.zeros((*y.shape[:-1], y.shape[-1] + 1), y.dtype),
    "overlapping itself": lambda x, y: np.lib.stride_tricks.as_strided(y, y.shape, (4, 4, 4, 4)),
    "a list": lambda x, y: y.tolist(),
    "bytes": lambda x, y: bytearray(y.nbytes),
}


@pytest.mark.parametrize("kind", STRANGE_OUT)
def test_wrong_results_are_refused_both_ways(kind: str) -> None:
    layer, x, y = made()
    out = STRANGE_OUT[kind](x, y)
    before = copy.deepcopy(out)
    assert entry_of(layer)(x, out, None) is None
    with pytest.raises(polyconv.Error, match="out"):
        layer(x, out=out)
    assert np.array_equal(np.asarray(out), np.asarray(before))


@pytest.mark.parametrize("shift", [0, 4, 100, 1580])
def test_results_in_the_memory_of_the_input_are_refused(shift: int) -> None:
    """Wherever they begin to overlap; side by side they are fine."""
    layer, x, y = made((1, 5, 9, 11))
    memory = np.zeros(4 * x.nbytes, np.uint8)
    own = memory[: x.nbytes].view(np.float32).reshape(x.shape)
    own[...] = x
    out = memory[shift : shift + y.nbytes].view(np.float32).reshape(y.shape)
    assert entry_of(layer)(own, out, None) is None
    with pytest.raises(polyconv.ArgumentError, match="out overlaps x"):
        layer(own, out=out)
    assert (own == x).all()
    beside = memory[x.nbytes : x.nbytes + y.nbytes].view(np.float32).reshape(y.shape)
    assert entry_of(layer)(own, beside, None) is beside
    assert (beside == y).all()


def test_residual() -> None:
    layer, x, y = made()
    residual, out = whole(y.shape), np.zeros_like(y)
    entry = entry_of(layer)
    assert entry(x, out, residual) is None  # made without
    total = layer(x, residual=residual, out=out)
    np.testing.assert_array_equal(total, y + residual)
    entry = entry_of(layer)
    out[...] = 0
    assert entry(x, out, None) is None  # made with
    assert entry(x, out, residual.astype(np.float64)) is None
    assert entry(x, out, residual[..., ::-1]) is None
    assert entry(x, residual, residual) is None  # the same memory takes the other way
    assert (out == 0).all()
    assert entry(x, out, residual) is out
    np.testing.assert_array_equal(out, y + residual)
    for times in (1, 2):  # y += conv(x)
        assert layer(x, residual=out, out=out) is out
        np.testing.assert_array_equal(out, (1 + times) * y + residual)
    with pytest.raises(polyconv.ArgumentError, match="out overlaps residual"):
        layer(x, residual=out, out=out[..., ::-1])
    np.testing.assert_array_equal(layer(x), y)


def test_a_wrong_number_of_arguments() -> None:
    layer, x, y = made()
    entry = entry_of(layer)
    for arguments in ((), (x,), (x, y), (x, y, None, None)):
        assert entry(*arguments) is None
    with pytest.raises(TypeError):
        entry(x, y, residual=None)


def test_dtypes_that_only_equal() -> None:
    """Another object for the same type, as after pickling or with metadata: the result is right all the same."""
    layer, x, y = made()
    marked = x.astype(np.dtype(np.float32, metadata={"unit": "m"}))
    for other in (marked, pickle.loads(pickle.dumps(x)), np.frombuffer(x.tobytes(), "=f4").reshape(x.shape)):
        np.testing.assert_array_equal(layer(other), y)
        np.testing.assert_array_equal(layer(x), y)


def test_no_reference_is_kept() -> None:
    layer, x, y = made()
    out, residual, strange = np.zeros_like(y), whole(y.shape), x.astype(np.float64)
    entry = entry_of(layer)
    objects = [x, out, residual, strange, layer, entry, entry.__self__, x.dtype, None, np.ndarray]
    gc.collect()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(1000):
        layer(x, out=out)
        layer(x)
        entry(strange, out, None)
        entry(x, strange, None)
        entry(x, out, residual)
        entry(x, x, None)
    gc.collect()
    after = [sys.getrefcount(o) for o in objects]
    # None and the type are held by the interpreter, too: their counts may drift by a few
    assert all(abs(a - b) < 50 for a, b in zip(before, after, strict=True))
    assert after[:8] == before[:8]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_calls_and_layers_leave_no_memory_behind() -> None:
    found = json.loads(
        run("""
import gc, json
one, x, w = layer(c=4, m=4), image(c=4, size=6), np.ones((4, 4, 3, 3), np.float32)
out, wrong = one(x), x.astype(np.float64)

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

def calls(count):
    for _ in range(count):
        one(x, out=out)
        one(x)
        one._layer._last[0].entry(wrong, out, None)

def layers(count):
    for _ in range(count):
        polyconv.Conv(w)(x)

grown = []
for body, first, then in ((calls, 1000, 100_000), (layers, 200, 1000)):
    body(first)
    before = resident()
    body(then)
    grown.append(resident() - before)
print(json.dumps(grown))
""")
    )
    assert max(found) < 1 << 20, found


# Memory of every kind, through one layer


IN: dict[str, Callable[[Array], Array]] = {
    "plain": lambda a: a.copy(),
    "read-only": _read_only,
    "every other": lambda a: np.repeat(np.repeat(a, 2, axis=3), 3, axis=1)[:, ::3, :, ::2],
    "reversed": lambda a: a[:, ::-1, ::-1, ::-1].copy()[:, ::-1, ::-1, ::-1],
    "channels last": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "a part": lambda a: np.pad(a, [(1, 1), (1, 2), (1, 0), (3, 5)])[1:-1, 1:-2, 1:, 3:-5],
}
OUT: dict[str, Callable[[Array], Array]] = {
    "plain": np.zeros_like,
    "every other": lambda a: np.zeros((a.shape[0], 3 * a.shape[1], *a.shape[2:]), a.dtype)[:, ::3],
    "reversed": lambda a: np.zeros_like(a)[::-1, ::-1, ::-1, ::-1],
    "channels last": lambda a: np.moveaxis(np.zeros((a.shape[0], *a.shape[2:], a.shape[1]), a.dtype), -1, 1),
    "unaligned": lambda a: np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "a part": lambda a: np.zeros([e + 3 for e in a.shape], a.dtype)[1:-2, 2:-1, 1:-2, 2:-1],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("groups", [1, 6])
def test_memory_of_every_kind(groups: int, dtype: Any) -> None:
    w, x = whole((12, 6 // groups, 3, 3), dtype), whole((2, 6, 10, 19), dtype)
    layer = polyconv.Conv(w, groups=groups, pads=1, strides=(1, 2), overflow="wrap")
    right = layer(x)
    for kind, other in itertools.product(IN, OUT):
        given, out = IN[kind](x), OUT[other](right)
        memory = out if out.base is None else out.base
        for _ in range(2):
            memory[...] = 77
            assert layer(given, out=out) is out
            np.testing.assert_array_equal(out, right, err_msg=f"{kind}, {other}")
            out[...] = np.full(out.nbytes, 77, np.uint8).view(dtype).reshape(out.shape) if memory.dtype != dtype else 77
            assert (memory == 77).all(), f"wrote beside {other}"


def test_zero_strides() -> None:
    """One pixel, one row, one channel for all: nothing of the image exists but that."""
    rng = np.random.default_rng(8)
    layer = polyconv.Conv(rng.integers(-3, 4, (7, 5, 3, 3)).astype(np.float32), pads=1)
    source = rng.integers(-3, 4, (2, 5, 9, 17)).astype(np.float32)
    for part in (source[:, :, :1, :1], source[:, :, :, :1], source[:, :, :1], source[:, :1], source[:1, :1, :1, :1]):
        view = np.broadcast_to(part, source.shape)
        for _ in range(2):
            np.testing.assert_array_equal(layer(view), layer(view.copy()))
