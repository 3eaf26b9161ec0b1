"""Sums of products over letters (Einsum) as products of matrices, against NumPy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random, steps
from onnx import TensorProto, helper

from polyconv.models.session import InferenceSession

EXTENTS = dict(zip("abcdefgh", (2, 3, 5, 4, 7, 6, 9, 8), strict=True))
KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


def _operands(equation: str, dtype: Any = np.float32) -> list[np.ndarray]:
    terms = equation.partition("->")[0].split(",")
    return [random(*(EXTENTS[letter] for letter in t), seed=at).astype(dtype) for at, t in enumerate(terms)]


def _model(equation: str, operands: list[np.ndarray], constant: tuple[int, ...] = (), opset: int = 17
           ) -> onnx.ModelProto:  # fmt: skip
    """A sum with a pass before and after it, so that there is something else to run."""
    names = [f"x{at}" for at in range(len(operands))]
    kind = KINDS[operands[0].dtype]
    read = [name if at in constant else f"r{at}" for at, name in enumerate(names)]
    nodes = [helper.make_node("Relu", [name], [r]) for name, r in zip(names, read, strict=True) if name != r]
    nodes += [helper.make_node("Einsum", read, ["s"], "sum", equation=equation), helper.make_node("Tanh", ["s"], ["y"])]
    given = [info(name, a.shape, kind) for at, (name, a) in enumerate(zip(names, operands, strict=True))
             if at not in constant]  # fmt: skip
    held = {names[at]: operands[at] for at in constant}
    return onnx_model(nodes, given, [info("y", None, kind)], held, opset=opset)


def _close(equation: str, operands: list[np.ndarray], constant: tuple[int, ...] = (), **options: Any) -> Any:
    """A session whose result is right in two runs, the second a replay."""
    made = InferenceSession(_model(equation, operands, constant, **options))
    feeds = {f"x{at}": a for at, a in enumerate(operands) if at not in constant}
    values = [a if at in constant else np.maximum(a, 0) for at, a in enumerate(operands)]
    sums = np.einsum(equation, *(a.astype(np.float64) for a in values))
    whole = np.einsum(equation, *(np.abs(a).astype(np.float64) for a in values))
    read, arrow, kept = equation.partition("->")
    kept = kept if arrow else "".join(letter for letter in read if read.count(letter) == 1)
    terms = math.prod(EXTENTS[letter] for letter in {*read} - {*kept, ","})
    bound = (terms + 8) * np.finfo(operands[0].dtype).eps * (whole + 1)  # Tanh has a slope of at most 1
    for _ in range(3):
        (y,) = made.run(None, feeds)
        assert y.shape == sums.shape
        assert (np.abs(y - np.tanh(sums)) <= bound).all()
    return made


COMPUTED = {
    "a matrix": "ab,bc->ac",
    "without an arrow": "ab,bc",
    "attention's keys": "abcd,abed->abce",
    "attention's values": "abce,abed->abcd",
    "heads behind tokens": "acbd,aebd->abce",
    "rows of an image": "abcd,bed->abce",
    "columns of an image": "abcd,ced->abce",
    "Keras's keys": "aecd,abcd->acbe",
    "Keras's values": "acbe,aecd->abcd",
    "columns first": "ab,bc->ca",
    "a letter of both at the end": "ab,bcd->acd",
    "both at the end": "cab,cdb->adc",
    "no rows": "ab,abc->ac",
    "no rows, both at the end": "ba,bca->cb",
    "a vector": "a,ab->b",
    "a vector behind": "ab,b->a",
    "many letters of rows": "abcd,de->abce",
    "many letters of columns": "ab,bcde->acde",
    "many of both": "abc,cde->adbe",
}


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("name", COMPUTED)
def test_two_computed_operands(name: str, opset: int) -> None:
    equation = COMPUTED[name]
    made = _close(equation, _operands(equation), opset=opset)
    assert {n.engine for n in made.nodes if n.op == "Einsum"} == {"polyconv"}


WEIGHTED = {
    "a matrix": "abc,cd->abd",
    "turned": "abc,dc->abd",
    "columns first": "abc,cd->adb",
    "heads of columns": "abc,cde->abde",
    "heads before tokens": "abc,cde->adbe",
    "heads summed": "abde,dec->abc",
    "heads before tokens summed": "adbe,dec->abc",
    "a plain matrix": "ab,bc->ac",
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", WEIGHTED)
def test_constant_weights(name: str, first: bool, dtype: Any) -> None:
    equation = WEIGHTED[name]
    if first:
        read, _, result = equation.partition("->")
        equation = f"{','.join(read.split(',')[::-1])}->{result}"
    made = _close(equation, _operands(equation, dtype), (0 if first else 1,))
    assert {n.engine for n in made.nodes if n.op == "Einsum"} == {"polyconv"}


def test_random_equations() -> None:
    """Each is right, whoever runs it; what two operands name in common and one of them alone is drawn."""
    drawn, here = np.random.default_rng(7), 0
    for _ in range(150):
        letters = list(drawn.permutation(list("abcdef"))[: drawn.integers(2, 7)])
        owners = drawn.integers(0, 4, len(letters))  # left, right, both, summed
        left = [n for n, o in zip(letters, owners, strict=True) if o != 1]
        right = [n for n, o in zip(letters, owners, strict=True) if o != 0]
        result = [n for n, o in zip(letters, owners, strict=True) if o != 3]
        if not left or not right:
            continue
        left, right, result = ("".join(drawn.permutation(each)) if each else "" for each in (left, right, result))
        constant = [(), (0,), (1,)][drawn.integers(3)]
        made = _close(f"{left},{right}->{result}", _operands(f"{left},{right}"), constant)
        here += {n.engine for n in made.nodes if n.op == "Einsum"} == {"polyconv"}
    assert here > 70


def test_attention_by_letters_is_one_step() -> None:
    q, k, v = (random(2, 6, 3, 8, seed=seed) for seed in range(3))
    nodes = [
        helper.make_node("Einsum", ["q", "k"], ["sums"], equation="bqhd,bkhd->bhqk"),
        helper.make_node("Mul", ["sums", "s"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("Einsum", ["p", "v"], ["y"], equation="bhqk,bkhd->bqhd"),
    ]
    feeds = {"q": q, "k": k, "v": v}
    model = onnx_model(nodes, [info(n, a.shape) for n, a in feeds.items()], [info("y")], {"s": np.float32(0.3)})
    made = InferenceSession(model)
    sums = np.einsum("bqhd,bkhd->bhqk", q.astype(float), k) * 0.3
    weights = np.exp(sums - sums.max(-1, keepdims=True))
    want = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    for _ in range(3):
        np.testing.assert_allclose(made.run(None, feeds)[0], want, rtol=1e-5, atol=1e-5)
    assert steps(made) == ["Einsum+Mul+Softmax+Einsum"]


@pytest.mark.parametrize(
    ("shapes", "equation"),
    [(((2, 1), (3, 4)), "ab,bc->ac"), (((2, 3, 3), (3, 4)), "abb,bc->ac"), (((2, 3), (3, 4)), "...b,bc->...c")],
    ids=str,
)
def test_what_is_no_such_product_is_left_alone(shapes: Any, equation: str) -> None:
    """An extent of 1 that is repeated, a diagonal, an ellipsis: others run it, or refuse it."""
    operands = [random(*shape, seed=at) for at, shape in enumerate(shapes)]
    made = InferenceSession(_model(equation, operands))
    assert {n.engine for n in made.nodes if n.op == "Einsum"} == {"onnxruntime"}
