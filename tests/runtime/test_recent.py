"""Calls whose weights come again find them prepared: the same bits as a call that prepares them, and no stale ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv import dialects, prepared, recent

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((2, 8, 12, 12)).astype(np.float32)


def weights(seed: int, m: int = 16) -> Array:
    return np.random.default_rng(seed).standard_normal((m, 8, 3, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_met(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("POLYCONV_CHECK", "0")
    monkeypatch.setenv("POLYCONV_KEPT_WEIGHTS", "64MiB")
    recent._met.clear()
    yield
    recent._met.clear()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The problems that programs were made for, in turn."""
    found: list[str] = []
    build = prepared.Layer.program

    def counted(self: Any, form: Any, *more: Any, **named: Any) -> Any:
        found.append(str(form.s.problem))
        return build(self, form, *more, **named)

    monkeypatch.setattr(prepared.Layer, "program", counted)
    return found


def test_the_third_call_finds_what_the_second_prepared(made: list[str]) -> None:
    w = weights(1)
    results = [polyconv.conv(X, w.copy(), pads=1) for _ in range(4)]
    assert len(made) == 2
    for y in results[1:]:
        np.testing.assert_array_equal(y, results[0])


def test_weights_that_change_in_place_are_seen() -> None:
    w = weights(1)
    for step in range(6):
        w[3, 2, 1, 1] += step % 2  # every second call has those of the call before
        np.testing.assert_array_equal(polyconv.conv(X, w), polyconv.Plan.__call__(_plan(), X, w))


def _plan() -> Any:
    return polyconv.plan("conv f32 NCHW n2 c8 i12x12 m16 k3x3", once=True)


@pytest.mark.parametrize("other", [-0.0, np.nan, np.inf])
def test_values_that_compare_equal_or_never_are_told_by_their_bytes(other: float) -> None:
    w = weights(1)
    w[0, 0, 0, 0] = 0.0
    for _ in range(3):
        polyconv.conv(X, w)
    w[0, 0, 0, 0] = other
    for _ in range(3):
        y = polyconv.conv(X, w)
        assert np.isfinite(y[:, 0]).all() == np.isfinite(other)


def test_a_bias_counts_as_weights_do() -> None:
    w = weights(1)
    for b in (np.zeros(16, np.float32), np.ones(16, np.float32)):
        for _ in range(3):
            y = polyconv.conv(X, w, b)
            np.testing.assert_allclose(y, polyconv.Conv(w)(X) + b[0], rtol=1e-4, atol=1e-4)


def test_scales_and_zero_points_count_as_weights_do() -> None:
    x = np.random.default_rng(1).integers(0, 256, (1, 8, 9, 9), np.uint8)
    w = np.random.default_rng(2).integers(-128, 128, (4, 8, 3, 3), np.int8)
    conv = dialects.onnx.QLinearConv(version=10)
    scale, zero = np.float32(0.02), np.uint8(120)
    for sy in (0.5, 0.25, 0.5):
        rest = scale, zero, w, scale, np.int8(0), np.float32(sy), zero
        want = conv.bind(dict(enumerate(rest, 1)))(x)
        for _ in range(3):
            np.testing.assert_array_equal(conv(x, *rest), want)


def test_a_result_in_the_memory_of_the_weights_is_refused_all_the_same() -> None:
    memory = np.zeros(X.size + 16 * 8, np.float32)
    w = memory[: 16 * 8].reshape(16, 8, 1, 1)
    w[...] = weights(1)[:, :, :1, :1]
    x = X[:, :, :4, :4]
    out = memory[64 : 64 + 2 * 16 * 16].reshape(2, 16, 4, 4)
    for _ in range(3):
        with pytest.raises(polyconv.ArgumentError, match="out overlaps w"):
            polyconv.conv(x, w, out=out)
        polyconv.conv(x, w)


def test_settings_are_not_mixed_up() -> None:
    w = weights(1, 64)
    x = np.random.default_rng(3).standard_normal((1, 8, 40, 40)).astype(np.float32)
    for _ in range(3):
        fast, strict = polyconv.conv(x, w, accuracy="fast"), polyconv.conv(x, w, accuracy="strict")
    for y, accuracy in ((fast, "fast"), (strict, "strict")):
        plan = polyconv.plan("conv f32 NCHW n1 c8 i40x40 m64 k3x3", once=True, accuracy=accuracy)
        np.testing.assert_array_equal(y, plan(x, w))


def held() -> int:
    return sum(layer.packed_bytes for layer in recent._met.values() if layer is not None)


def test_layers_are_let_go_before_they_hold_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 5 * weights(1).nbytes
    monkeypatch.setenv("POLYCONV_KEPT_WEIGHTS", str(most))
    for extent in range(4, 12):
        for _ in range(3):
            polyconv.conv(X[..., :extent], weights(1))
            assert held() <= most
    assert held()


@pytest.mark.parametrize("how", ["none", "limited", "checked", "large"])
def test_nothing_is_kept_where_nobody_may(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"workspace_limit": 1 << 30} if how == "limited" else {}
    if how == "none":
        monkeypatch.setenv("POLYCONV_KEPT_WEIGHTS", "0")
    if how == "large":
        monkeypatch.setenv("POLYCONV_KEPT_WEIGHTS", str(weights(1).nbytes))
    with polyconv.settings(check=how == "checked"):
        for _ in range(3):
            polyconv.conv(X, weights(1), **options)
    assert not held()


def test_problems_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_MOST_MET", 3)
    for extent in range(3, 12):
        polyconv.conv(X[..., :extent], weights(1))
    assert len(recent._met) == 3


def test_weights_in_another_order_of_axes_are_found_too(made: list[str]) -> None:
    w = np.ascontiguousarray(weights(1).transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)
    results = [polyconv.conv(X, w) for _ in range(3)]
    assert len(made) == 2
    np.testing.assert_array_equal(results[2], results[0])


def test_threads_that_call_with_weights_of_their_own_get_their_own_results() -> None:
    mine = [weights(seed) for seed in range(4)]
    want = [_plan()(X, w) for w in mine]

    def many(which: int) -> bool:
        return all(np.array_equal(polyconv.conv(X, mine[at]), want[at]) for at in [which] * 5 + [0] * 5)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(many, range(4)))
