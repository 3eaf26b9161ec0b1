"""Calls: what arguments mean, errors that name the way out, memory, threads, and docstrings that do what they say."""

from __future__ import annotations

import doctest
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
import pytest
import scipy.ndimage

import polyconv
from polyconv import ndimage
from polyconv.ndimage import applying, running

Array = np.ndarray[Any, Any]
X = np.arange(42, dtype=np.float32).reshape(6, 7)
W = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 10]])
RIGHT = scipy.ndimage.correlate(X, W)


@pytest.mark.parametrize("module", ["borders", "edges", "filters", "smoothing", "windows"])
def test_the_examples_of_docstrings(module: str) -> None:
    found = doctest.testmod(import_module(f"polyconv.ndimage.{module}"))
    assert found.attempted and not found.failed


def test_all_names_are_scipys_and_take_its_arguments() -> None:
    for name in ndimage.__all__:
        ours, theirs = (signature(getattr(m, name)).parameters for m in (ndimage, scipy.ndimage))
        named = [p for p in theirs if p != "kwargs"]  # gaussian_filter's, which stand here by name
        assert list(ours)[: len(named)] == named or set(named) <= set(ours), name
        positional = [p for p in named if theirs[p].kind is theirs[p].POSITIONAL_OR_KEYWORD]
        assert list(ours)[: len(positional)] == positional, name
        assert all(ours[p].default == theirs[p].default for p in named if p != "input"), name


def test_where_results_go() -> None:
    assert ndimage.correlate(X, W).dtype == np.float32
    for output in (np.float64, "float64", np.dtype("f8"), "<f8", ">f8"):
        found = ndimage.correlate(X, W, output)
        assert found.dtype == np.float64 and found.dtype.isnative
        np.testing.assert_array_equal(found, RIGHT)
    big = np.zeros((12, 14), np.float32)
    turned = np.zeros((7, 6), np.float32).T
    swapped, half = np.zeros(X.shape, ">f4"), np.zeros(X.shape, np.float16)
    for out in (np.zeros_like(X), big[::2, ::2], big[5::-1, 6::-1], turned, swapped, half):
        assert ndimage.correlate(X, W, out) is out
        np.testing.assert_allclose(out, RIGHT, rtol=1e-3)
    big[...] = -1
    ndimage.correlate(X, W, big[::2, ::2])
    assert (big[1::2] == -1).all() and (big[:, 1::2] == -1).all()


def test_a_field_that_is_its_own_result() -> None:
    one_each = {"correlate": [W], "correlate1d": [W[0]], "gaussian_filter": [1.0], "sobel": [], "uniform_filter": [3],
                "laplace": [], "gaussian_gradient_magnitude": [1.0]}  # fmt: skip
    for name, arguments in one_each.items():
        call = getattr(ndimage, name)
        right = call(X, *arguments)
        for _ in range(2):  # the second call is known
            own = X.copy()
            assert call(own, *arguments, output=own) is own
            np.testing.assert_array_equal(own, right, err_msg=name)
        line = np.concatenate([X.ravel(), np.zeros(7, np.float32)])
        call(line[:42].reshape(6, 7), *arguments, output=line[7:].reshape(6, 7))  # overlaps in part
        np.testing.assert_array_equal(line[7:].reshape(6, 7), right, err_msg=name)


def test_arrays_of_any_kind() -> None:
    torch = pytest.importorskip("torch")
    right = ndimage.correlate(X, W)
    for x in (X.astype(">f4"), np.asfortranarray(X), torch.from_numpy(X.copy()), memoryview(X)):
        np.testing.assert_array_equal(ndimage.correlate(x, W), right)
    np.testing.assert_array_equal(ndimage.correlate(X.tolist(), W.tolist()), RIGHT)
    odd = np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(X.shape)
    assert odd.ctypes.data % 4
    np.testing.assert_array_equal(ndimage.correlate(odd, W), right)
    still = X.copy()
    still.flags.writeable = False
    np.testing.assert_array_equal(ndimage.correlate(still, W), right)
    out = torch.zeros(6, 7)
    assert ndimage.correlate(X, W, out) is out
    np.testing.assert_array_equal(out.numpy(), right)


def test_fields_without_elements_or_axes() -> None:
    for shape in ((0,), (0, 5), (4, 0, 3)):
        for name, arguments in (("gaussian_filter", [1.0]), ("uniform_filter", [3]), ("laplace", [])):
            assert getattr(ndimage, name)(np.zeros(shape, np.uint8), *arguments).shape == shape
        assert ndimage.correlate(np.zeros(shape), np.ones((3,) * len(shape))).shape == shape
    assert ndimage.correlate(5.0, 2.0) == 10
    assert ndimage.gaussian_filter(5.0, 2.0) == 5
    for name, arguments in (("gaussian_filter", [0]), ("uniform_filter", [1]), ("gaussian_filter", [(0, 0)])):
        found = getattr(ndimage, name)(X, *arguments, output=np.int16)
        np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(ndimage.gaussian_filter(X, 2, axes=()), X)


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ndimage.correlate(X, W[0]), polyconv.ArgumentError, r"weights have shape \(3,\).*axes=\(0, 1\)"),
    (lambda: ndimage.correlate(X, W[:0]), polyconv.ArgumentError, r"weights have shape \(0, 3\).*at least 1"),
    (lambda: ndimage.correlate(X, "abc"), polyconv.DtypeError, "weights have dtype <U3"),
    (lambda: ndimage.correlate1d(X, W), polyconv.ArgumentError, r"weights have shape \(3, 3\).*1 axis"),
    (lambda: ndimage.correlate(X, W, mode="same"), polyconv.ArgumentError, "mode='same'.*reflect, constant"),
    (lambda: ndimage.correlate(X, W, mode=("wrap",) * 3), polyconv.ArgumentError, "mode has 3 entries.*2 axes"),
    (lambda: ndimage.correlate(X, W, origin=2), polyconv.ArgumentError, "origin=2.*-1 to 1"),
    (lambda: ndimage.correlate(X, W, origin=0.5), polyconv.ArgumentError, "origin=0.5 must be a whole number"),
    (lambda: ndimage.correlate(X, W, axes=(0, 2)), polyconv.ArgumentError, "axes.*axis 2.*2 axes, -2 to 1"),
    (lambda: ndimage.correlate(X, W, axes=(0, -2)), polyconv.ArgumentError, "names an axis twice"),
    (lambda: ndimage.correlate(X, W, cval="x"), polyconv.ArgumentError, "cval='x' must be a number"),
    (lambda: ndimage.correlate(X, W, cval=1j), polyconv.ArgumentError, "cval=1j is complex"),
    (lambda: ndimage.correlate(X, W, np.zeros(3)), polyconv.ArgumentError, r"output has shape \(3,\).*\(6, 7\)"),
    (lambda: ndimage.correlate(X, W, "spam"), polyconv.DtypeError, "output='spam' is no dtype"),
    (lambda: ndimage.correlate(X, W, np.complex64), polyconv.DtypeError, "output has dtype complex64.*real"),
    (lambda: ndimage.correlate(X * 1j, W, np.float32), polyconv.DtypeError, "output has dtype float32.*complex"),
    (lambda: ndimage.correlate(X, W, np.zeros((6, 7), "O")), polyconv.DtypeError, "output has dtype object"),
    (lambda: ndimage.correlate(X, W, np.broadcast_to(0.0, X.shape)), polyconv.ArgumentError, "output is read-only"),
    (lambda: ndimage.correlate(X.astype("O"), W), polyconv.DtypeError, "input has dtype object"),
    (lambda: ndimage.correlate(np.ma.masked_array(X), W), polyconv.ArgumentError, "masked array"),
    (lambda: ndimage.correlate(X, W, accuracy="best"), polyconv.ArgumentError, "accuracy='best'.*fast or strict"),
    (lambda: ndimage.correlate(X, W, threads=0), polyconv.ArgumentError, "threads=0.*at least 1"),
    (lambda: ndimage.gaussian_filter(X, -1), polyconv.ArgumentError, "sigma=-1.0 must be positive"),
    (lambda: ndimage.gaussian_filter(X, "a"), polyconv.ArgumentError, "sigma='a' must be a number"),
    (lambda: ndimage.gaussian_filter(X, (1, 2, 3)), polyconv.ArgumentError, "sigma has 3 entries, but 2 axes"),
    (lambda: ndimage.gaussian_filter(X, 1, order=-1), polyconv.ArgumentError, "order=-1 must not be negative"),
    (lambda: ndimage.gaussian_filter(X, 1, radius=-1), polyconv.ArgumentError, "radius=-1 must not be negative"),
    (lambda: ndimage.gaussian_filter(X, 1, truncate=-2), polyconv.ArgumentError, "truncate=-2.0 must not be negative"),
    (lambda: ndimage.gaussian_filter1d(X, 0), polyconv.ArgumentError, "sigma=0.0 must be positive"),
    (lambda: ndimage.uniform_filter(X, 0), polyconv.ArgumentError, "size=0 must be at least 1"),
    (lambda: ndimage.uniform_filter(X, 2.5), polyconv.ArgumentError, "size=2.5 must be a whole number"),
    (lambda: ndimage.uniform_filter(X, 4, origin=2), polyconv.ArgumentError, "origin=2.*-2 to 1"),
    (lambda: ndimage.sobel(X, 2), polyconv.ArgumentError, "axis=2.*2 axes"),
    (lambda: ndimage.sobel(X, 0, axes=1), polyconv.ArgumentError, "axis=0 is none of axes=1"),
    (lambda: ndimage.sobel(3.0), polyconv.ArgumentError, "input has no axes"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_errors_name_the_argument_and_the_way_out(number: int) -> None:
    call, kind, words = WRONG[number]
    with pytest.raises(kind, match=f"(?s){words}"):
        call()


def test_an_error_writes_nothing() -> None:
    out = np.full(X.shape, 7.0, np.float32)
    for wrong in ({"origin": 3}, {"mode": "x"}, {"cval": "x"}, {"accuracy": "x"}, {"threads": -1}):
        with pytest.raises(polyconv.Error):
            ndimage.correlate(X, W, out, **wrong)
    with polyconv.settings(workspace_limit=0), pytest.raises(polyconv.Unsupported, match="raise workspace_limit"):
        ndimage.correlate(np.ones((900, 900)), np.random.default_rng(0).random((300, 301)), np.zeros((900, 900)))
    assert (out == 7).all()


def test_any_number_of_threads_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    for shape, axes in (((300, 400), None), ((40, 50, 60), None), ((70, 300, 3), (0, 1)), ((100_000,), None)):
        x = rng.standard_normal(shape).astype(np.float32)
        rank = len(shape) if axes is None else len(axes)
        for name, arguments in (("correlate", [rng.standard_normal((4,) * rank)]), ("gaussian_filter", [2.0]),
                                ("uniform_filter", [13])):  # fmt: skip
            found = [getattr(ndimage, name)(x, *arguments, axes=axes, threads=n) for n in (1, 2, 7)]
            np.testing.assert_array_equal(found[0], found[1])
            np.testing.assert_array_equal(found[0], found[2])


def test_callers_at_once() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((200, 300)).astype(np.float32)
    weights = [rng.random((5, 5)) for _ in range(4)]
    right = [ndimage.correlate(x, w) for w in weights]
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(30):
            w = (number + turn) % len(weights)
            if not np.array_equal(ndimage.correlate(x, weights[w]), right[w]):
                wrong.append(number)

    callers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_settings_hold_for_calls_that_are_known() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((30, 40)).astype(np.float32), rng.standard_normal((5, 5))
    fast = ndimage.correlate(x, w)
    for _ in range(2):
        with polyconv.settings(accuracy="strict"):
            np.testing.assert_array_equal(ndimage.correlate(x, w), scipy.ndimage.correlate(x, w))
        np.testing.assert_array_equal(ndimage.correlate(x, w), fast)
    w[2, 2] += 1  # other numbers in the same array are other weights
    assert not np.array_equal(ndimage.correlate(x, w), fast)


@pytest.mark.parametrize("limit", [0, 1 << 16, 1 << 20])
def test_a_limited_workspace(limit: int) -> None:
    rng = np.random.default_rng(0)
    for shape, size in (((90, 3000), (9, 9)), ((20, 30, 400), (3, 4, 5)), ((3, 40, 1000), (1, 15, 15))):
        x, w = rng.random(shape), rng.random(size)
        with polyconv.settings(workspace_limit=limit):
            np.testing.assert_array_equal(ndimage.correlate(x, w, accuracy="strict"), scipy.ndimage.correlate(x, w))
    x = rng.random((200, 300))
    with polyconv.settings(workspace_limit=limit):
        np.testing.assert_array_equal(ndimage.gaussian_filter(x, 3), scipy.ndimage.gaussian_filter(x, 3))


def test_nothing_as_large_as_the_picture_is_taken() -> None:
    """Borders are read where they lie: beyond the result a call takes boxes only, whatever the mode."""
    picture = np.random.default_rng(0).integers(0, 255, (3000, 4000), dtype=np.uint8)
    out, w = np.empty_like(picture), np.random.default_rng(1).random((9, 9))
    for mode in ("reflect", "constant", "wrap"):
        ndimage.correlate(picture[:50], w, out[:50], mode)  # compiles
        tracemalloc.start()
        ndimage.correlate(picture, w, out, mode, threads=2)
        ndimage.gaussian_filter(picture, 2.0, output=out, mode=mode, threads=2)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < picture.nbytes / 4


def test_what_is_kept_is_bounded() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((20, 20))
    for _ in range(300):
        ndimage.correlate(x, rng.random((3, 3)))
    assert len(running._kept) <= running._MOST_KEPT
    assert len(applying._known) <= applying._MOST_KEPT
    for _ in range(12):
        ndimage.correlate(x, rng.random((700, 701)))
    assert sum(call.nbytes for call in running._kept.values()) <= running._MOST_BYTES


def test_importing_polyconv_does_not_bring_it() -> None:
    code = "import sys, polyconv; assert 'polyconv.ndimage' not in sys.modules; print(polyconv.ndimage.sobel.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "sobel"
