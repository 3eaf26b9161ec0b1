"""Attention as one step: two products with a softmax between them, whatever the order of axes, scale and addend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from levels import LEVELS
from making import close, info, onnx_model, onnxruntime_run, random, session
from onnx import helper
from own_models import at_level
from test_products_in_order import ADDENDS, HEADS, attention, network, work

node = helper.make_node


def right(q: Any, k: Any, v: Any, scale: float = 1.0, added: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Results of stacks of matrices in f64, and bounds of what f32 may be off by.

    A sum of d products is off by d eps of the sum of their sizes, which the exponential turns into a relative error.
    """
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    sums = scale * (q @ k) + added
    powers = np.exp(sums - sums.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    eps = np.finfo(np.float32).eps
    off = (q.shape[-1] + 4) * eps * (abs(scale) * (np.abs(q) @ np.abs(k)) + np.abs(added)) + 4 * eps * np.abs(sums)
    worst = off.max(-1, keepdims=True) * 2 + (k.shape[-1] + 8) * eps
    return weights @ v, 2 * worst * (weights @ np.abs(v)) + np.finfo(np.float32).tiny


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", ["", "left", "right", "both", "sums", "divided"])
def test_it_is_one_step(scale: str, dtype: Any) -> None:
    made = close(*attention(scale=scale, dtype=dtype))
    assert len(work(made)) == 1


@pytest.mark.parametrize("added", ADDENDS)
@pytest.mark.parametrize("scale", ["", "sums"])
def test_what_is_added_is_part_of_it(added: str, scale: str) -> None:
    assert len(work(close(*attention(added=added, scale=scale)))) == 1


def plain(shapes: tuple[Any, Any, Any], *, scale: float | None = None, added: Any = None) -> tuple[Any, dict[str, Any]]:
    q, k, v = (random(*shape, seed=seed) for seed, shape in enumerate(shapes))
    nodes, sums, constants = [node("MatMul", ["q", "k"], ["s"])], "s", {}
    if scale is not None:
        nodes.append(node("Mul", [sums, "scale"], ["t"]))
        sums, constants["scale"] = "t", np.float32(scale)
    if added is not None:
        nodes.append(node("Add", ["c", sums], ["u"]))
        sums, constants["c"] = "u", added
    nodes += [node("Softmax", [sums], ["p"], axis=-1), node("MatMul", ["p", "v"], ["y"])]
    return network(nodes, {"q": q, "k": k, "v": v}, **constants), {"q": q, "k": k, "v": v}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 48, 49, 127, 129, 300])
def test_keys_around_vectors_and_parts(keys: int, level: str) -> None:
    model, feeds = plain(((2, 11, 5), (2, 5, keys), (2, keys, 19)), scale=0.7, added=random(11, keys, seed=9))
    with at_level(level):
        found = session(model).run(None, feeds)[0]
    y, bound = right(*feeds.values(), np.float32(0.7), random(11, keys, seed=9))
    assert (np.abs(found - y) <= bound).all()


@pytest.mark.parametrize("rows", [1, 8, 9, 10, 36, 37, 100])
@pytest.mark.parametrize("columns", [1, 16, 33])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_around_tiles(rows: int, columns: int, threads: int) -> None:
    model, feeds = plain(((3, rows, 8), (3, 8, 50), (3, 50, columns)))
    found = session(model, threads=threads).run(None, feeds)[0]
    y, bound = right(*feeds.values())
    assert (np.abs(found - y) <= bound).all()


def test_threads_change_no_bit() -> None:
    model, feeds = plain(((1, 4, 197, 64), (1, 4, 64, 197), (1, 4, 197, 64)), scale=0.125)
    one, two = (session(model, threads=threads).run(None, feeds)[0] for threads in (1, 2))
    assert (one == two).all()


@pytest.mark.parametrize("shapes", [
    ((2, 3, 4, 5), (1, 1, 5, 6), (3, 6, 7)), ((4, 5), (2, 1, 5, 6), (1, 3, 6, 7)), ((2, 1, 4, 5), (3, 5, 6), (6, 7)),
    ((2, 2, 2, 3, 4, 5), (1, 2, 1, 3, 5, 6), (2, 1, 2, 1, 6, 7)),
])  # fmt: skip
def test_stacks_are_repeated(shapes: Any) -> None:
    model, feeds = plain(shapes)
    made = close(model, feeds)
    assert len(work(made)) == 1


def test_an_addend_whose_columns_lie_apart() -> None:
    """A Transpose that nobody copies, and a Slice of every second column."""
    shapes = ((2, 6, 4), (2, 4, 6), (2, 6, 3))
    for nodes, c in (([node("Transpose", ["c"], ["added"], perm=[1, 0])], random(6, 6, seed=5)),
                     ([node("Slice", ["c", "zero", "many", "one", "two"], ["added"])], random(6, 12, seed=5))):
        feeds = dict(zip("qkv", (random(*shape, seed=at) for at, shape in enumerate(shapes)), strict=True)) | {"c": c}
        numbers = {"zero": np.array([0]), "many": np.array([99]), "one": np.array([1]), "two": np.array([2])}
        read = {name for each in nodes for name in each.input}
        model = network([
            *nodes, node("MatMul", ["q", "k"], ["s"]), node("Add", ["s", "added"], ["t"]),
            node("Softmax", ["t"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["y"]),
        ], feeds, **{name: array for name, array in numbers.items() if name in read})  # fmt: skip
        close(model, feeds)


def test_masks_leave_keys_out() -> None:
    """What is masked has no part in the result, not even infinite values; rows of nothing are no numbers, as there."""
    mask = np.where(np.arange(7) < np.arange(6)[:, None], 0, -np.inf).astype(np.float32)
    model, feeds = plain(((1, 6, 4), (1, 4, 7), (1, 7, 5)), added=mask)
    made = session(model)
    found, theirs = made.run(None, feeds)[0], onnxruntime_run(model, feeds)[0]
    assert len(work(made)) == 1
    np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-6)
    assert np.isnan(found[0, 0]).all()
    assert np.isfinite(found[0, 1:]).all()


GUARD = [node("IsNaN", ["p"], ["none"]), node("Where", ["none", "zero", "p"], ["g"])]
"""Weights that are no numbers count as 0, as PyTorch exports masked attention."""


def _guarded(keys: int, hostile: Any = (), **constants: Any) -> tuple[Any, dict[str, Any]]:
    """Attention with a guard, of which a mask leaves the first of six rows nothing."""
    mask = np.where(np.arange(keys) < np.arange(6)[:, None] * keys // 5, 0, -np.inf).astype(np.float32)
    feeds = {"q": random(2, 6, 4), "k": random(2, 4, keys, seed=1), "v": random(2, keys, 19, seed=2)}
    for name, value in hostile:
        feeds[name][0, 2, 3] = value
    nodes = [node("MatMul", ["q", "k"], ["s"]), node("Add", ["s", "mask"], ["t"]),
             node("Softmax", ["t"], ["p"], axis=-1), *GUARD, node("MatMul", ["g", "v"], ["y"])]  # fmt: skip
    return network(nodes, feeds, mask=mask, **({"zero": np.float32(0)} | constants)), feeds


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("keys", [5, 16, 17, 130])
def test_rows_of_nothing_count_as_zero(keys: int, level: str) -> None:
    model, feeds = _guarded(keys)
    with at_level(level):
        made = session(model)
        found = made.run(None, feeds)[0]
    assert work(made) == ["MatMul+Add+Softmax+IsNaN+Where+MatMul"]
    np.testing.assert_allclose(found, onnxruntime_run(model, feeds)[0], rtol=1e-5, atol=1e-6)
    assert (found[:, 0] == 0).all()
    assert (found[:, 1:] != 0).any(-1).all()


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_guarded_rows_with_hostile_values(name: str, value: float) -> None:
    model, feeds = _guarded(20, [(name, value)])
    found, theirs = session(model).run(None, feeds)[0], onnxruntime_run(model, feeds)[0]
    finite = np.isfinite(theirs)
    assert (np.isfinite(found) == finite).all()
    np.testing.assert_allclose(found[finite], theirs[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zero", [np.float32(1), np.zeros((6, 20), np.float32)], ids=["one", "many"])
def test_other_numbers_than_zero_are_no_guard(zero: Any) -> None:
    model, feeds = _guarded(20, zero=zero)
    made = session(model)
    assert len(work(made)) > 1
    np.testing.assert_allclose(made.run(None, feeds)[0], onnxruntime_run(model, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_hostile_values(name: str, value: float) -> None:
    model, feeds = plain(((1, 6, 4), (1, 4, 20), (1, 20, 5)))
    feeds[name] = feeds[name].copy()
    feeds[name][0, 2, 3] = value
    found, theirs = session(model).run(None, feeds)[0], onnxruntime_run(model, feeds)[0]
    finite = np.isfinite(theirs)
    assert (np.isfinite(found) == finite).all()
    np.testing.assert_allclose(found[finite], theirs[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", [
    ((2, 0, 4), (2, 4, 5), (2, 5, 3)), ((0, 2, 4), (0, 4, 5), (0, 5, 3)), ((2, 3, 4), (2, 4, 5), (2, 5, 0)),
])  # fmt: skip
def test_extents_of_nothing(shapes: Any) -> None:
    model, feeds = plain(shapes)
    (n, rows, _), _, (_, _, columns) = shapes
    assert session(model).run(None, feeds)[0].shape == (n, rows, columns)


def test_no_terms_and_no_keys() -> None:
    model, feeds = plain(((2, 3, 0), (2, 0, 5), (2, 5, 3)))
    np.testing.assert_allclose(session(model).run(None, feeds)[0], feeds["v"].mean(1, keepdims=True).repeat(3, 1), 1e-6)
    model, feeds = plain(((2, 3, 4), (2, 4, 0), (2, 0, 5)))
    assert (session(model).run(None, feeds)[0] == 0).all()


KEPT = {
    "over another axis": [node("Softmax", ["s"], ["p"], axis=1)],
    "read twice": [node("Softmax", ["s"], ["p"], axis=-1), node("Relu", ["p"], ["z"])],
    "something between": [node("Softmax", ["s"], ["t"], axis=-1), node("Relu", ["t"], ["p"])],
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay_apart(name: str) -> None:
    feeds = {"q": random(2, 6, 4), "k": random(2, 4, 5, seed=1), "v": random(2, 5, 3, seed=2)}
    nodes = [node("MatMul", ["q", "k"], ["s"]), *KEPT[name], node("MatMul", ["p", "v"], ["y"])]
    results = ("y", "z") if name == "read twice" else ("y",)
    assert len(work(close(network(nodes, feeds, results), feeds))) > 2


def test_sums_that_are_returned_stay() -> None:
    model, feeds = attention()
    model.graph.output.append(info("sums", None))
    made = close(model, feeds)
    assert len(work(made)) == 3


def test_weights_that_come_first_are_no_attention() -> None:
    """``v p`` sums over rows of the softmax, not over its columns."""
    feeds = {"q": random(2, 5, 4), "k": random(2, 4, 5, seed=1), "v": random(2, 3, 5, seed=2)}
    nodes = [node("MatMul", ["q", "k"], ["s"]), node("Softmax", ["s"], ["p"], axis=-1),
             node("MatMul", ["v", "p"], ["y"])]  # fmt: skip
    assert len(work(close(network(nodes, feeds), feeds))) == 3


def test_only_by_leave() -> None:
    """Results are divided where weights would be: other bits, which ``rewrites="exact"`` does not allow."""
    model, feeds = attention()
    assert len(work(session(model, rewrites="exact"))) == 3
    y, bound = right(*(feeds[n].transpose(perm) for n, perm in zip("qkv", (HEADS, [0, 2, 3, 1], HEADS), strict=True)))
    for rewrites in ("exact", "all"):
        found = session(model, rewrites=rewrites).run(None, feeds)[0]
        assert (np.abs(found.transpose(HEADS) - y) <= bound).all()


def test_open_extents() -> None:
    nodes = [node("Transpose", ["q"], ["qh"], perm=HEADS), node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
             node("Transpose", ["v"], ["vh"], perm=HEADS), node("MatMul", ["qh", "kt"], ["s"]),
             node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "vh"], ["o"]),
             node("Transpose", ["o"], ["y"], perm=HEADS)]  # fmt: skip
    given = [info("q", ["n", "t", 3, 8]), info("k", ["n", "s", 3, 8]), info("v", ["n", "s", 3, 8])]
    made = session(onnx_model(nodes, given, [info("y", None)]))
    for n, t, s in ((1, 4, 5), (2, 7, 3), (1, 4, 5)):
        q, k, v = random(n, t, 3, 8), random(n, s, 3, 8, seed=1), random(n, s, 3, 8, seed=2)
        y, bound = right(*(a.transpose(p) for a, p in ((q, HEADS), (k, [0, 2, 3, 1]), (v, HEADS))))
        assert (np.abs(made.run(None, {"q": q, "k": k, "v": v})[0].transpose(HEADS) - y) <= bound).all()
    assert len(work(made)) == 1


def test_wrong_extents_are_named() -> None:
    given = [info("q", ["n", "t", 8]), info("k", ["n", 8, "s"]), info("v", ["n", "m", 8])]
    nodes = [node("MatMul", ["q", "k"], ["a"]), node("Softmax", ["a"], ["p"], axis=-1),
             node("MatMul", ["p", "v"], ["y"], "last")]  # fmt: skip
    made = session(onnx_model(nodes, given, [info("y", None)]))
    with pytest.raises(Exception, match=r"\(1, 4, 8\).*\(1, 8, 5\).*\(1, 6, 8\)"):
        made.run(None, {"q": random(1, 4, 8), "k": random(1, 8, 5), "v": random(1, 6, 8)})
