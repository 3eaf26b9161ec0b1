"""Normalisations that a file spells by means, roots and quotients: one step, as before operator sets had them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from making import close, info, onnx_model, random, session
from onnx import helper

node = helper.make_node

ROOTS = {
    "Sqrt": [node("Sqrt", ["e"], ["s"]), node("Div", ["d", "s"], ["o"])],
    "Pow": [node("Pow", ["e", "half"], ["s"]), node("Div", ["d", "s"], ["o"])],
    "Reciprocal": [node("Sqrt", ["e"], ["t"]), node("Reciprocal", ["t"], ["s"]), node("Mul", ["d", "s"], ["o"])],
    "one over": [node("Sqrt", ["e"], ["t"]), node("Div", ["one", "t"], ["s"]), node("Mul", ["s", "d"], ["o"])],
    "power below 0": [node("Pow", ["e", "less"], ["s"]), node("Mul", ["d", "s"], ["o"])],
}
SQUARES = {
    "Pow": [node("Pow", ["d", "two"], ["q"])],
    "Mul": [node("Mul", ["d", "d"], ["q"])],
    "twice": [
        node("ReduceMean", ["x", "axes"], ["m'"]), node("Sub", ["x", "m'"], ["d'"]), node("Mul", ["d'", "d'"], ["q"]),
    ],
}  # fmt: skip


def network(shape: tuple[int, ...], axes: tuple[int, ...], square: str = "Pow", root: str = "Sqrt",
            scaled: int | None = None, kind: type = np.float32) -> onnx.ModelProto:  # fmt: skip
    """A normalisation over axes; ``scaled`` is the axis along which scales and shifts follow."""
    nodes = [
        node("ReduceMean", ["x", "axes"], ["m"]), node("Sub", ["x", "m"], ["d"]), *SQUARES[square],
        node("ReduceMean", ["q", "axes"], ["v"]), node("Add", ["v", "epsilon"], ["e"]), *ROOTS[root],
    ]  # fmt: skip
    last, extents = "o", [1] * len(shape)
    if scaled is not None:
        extents[scaled] = shape[scaled]
        nodes += [node("Mul", ["w", "o"], ["p"]), node("Add", ["p", "b"], ["y"])]
        last = "y"
    numbers = {"two": 2.0, "half": 0.5, "less": -0.5, "one": 1.0, "epsilon": 1e-3}
    constants = {
        "axes": np.array(axes, np.int64), "w": random(*extents, seed=2).astype(kind),
        "b": random(*extents, seed=3).astype(kind), **{name: np.array(v, kind) for name, v in numbers.items()},
    }  # fmt: skip
    read = {name for each in nodes for name in each.input}
    type_ = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    return onnx_model(nodes, [info("x", list(shape), type_)], [last], {k: a for k, a in constants.items() if k in read},
                      opset=18)  # fmt: skip


def steps(model: onnx.ModelProto, x: np.ndarray) -> int:
    """How many steps a model has, none of which another engine runs; its results are onnxruntime's."""
    made = close(model, {"x": x})
    ran = [record for record in made.nodes if record.engine != "removed"]
    assert {record.engine for record in ran} == {"polyconv"}
    return len({record.step for record in ran})


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_however_it_is_spelled_it_is_one_step(square: str, root: str) -> None:
    assert steps(network((2, 3, 37), (-1,), square, root, 2), random(2, 3, 37, seed=9) + 3) == 1


AXES = [
    ((-1,), 3), ((1,), 1), ((-2, -1), 1), ((1, 2, 3), 1), ((3, 2, 1), None), ((2, 3), None), ((1,), None),
    ((1, 2), None),
]  # fmt: skip


@pytest.mark.parametrize(("axes", "scaled"), AXES)
def test_axes_say_which_operator_it_is(axes: tuple[int, ...], scaled: int | None) -> None:
    assert steps(network((2, 5, 4, 7), axes, scaled=scaled), random(2, 5, 4, 7, seed=9)) == 1


@pytest.mark.parametrize(("axes", "scaled"), AXES)
def test_numbers_of_64_bits_alike(axes: tuple[int, ...], scaled: int | None) -> None:
    x = random(2, 5, 4, 7, seed=9).astype(np.float64)
    made = session(network(x.shape, axes, scaled=scaled, kind=np.float64))
    assert len({record.step for record in made.nodes}) == 1
    apart = x - x.mean(axes, keepdims=True)
    right = apart / np.sqrt((apart * apart).mean(axes, keepdims=True) + 1e-3)
    extents = [extent if axis == scaled else 1 for axis, extent in enumerate(x.shape)]
    scale, shift = (random(*extents, seed=seed) if scaled is not None else at for seed, at in ((2, 1.0), (3, 0.0)))
    room = 3 * x[0].size * np.finfo(np.float64).eps * (abs(right).max() * np.abs(scale).max() + np.abs(shift).max())
    np.testing.assert_allclose(made.run(None, {"x": x})[0], right * scale + shift, rtol=0, atol=room)


@pytest.mark.parametrize("shape", [(1, 6, 1), (3, 1, 1, 5), (1, 1, 1)])
def test_lines_of_one_element(shape: tuple[int, ...]) -> None:
    for axes in ((1,), (2,), (1, 2)):
        assert steps(network(shape, axes, scaled=1), random(*shape, seed=9)) >= 1


def test_scales_along_another_axis_are_a_step_of_their_own() -> None:
    assert steps(network((2, 5, 4, 7), (1,), scaled=2), random(2, 5, 4, 7, seed=9)) == 2


@pytest.mark.parametrize("what", [
    "mean returned", "centred returned", "root returned", "other axes", "axes apart", "sum of vectors", "turned over",
    "other power", "mean first", "more axes",
])  # fmt: skip
def test_what_is_nearly_a_normalisation_stays(what: str) -> None:
    model = network((2, 5, 4, 5), (2, 3), square="Mul")
    nodes = {each.output[0]: each for each in model.graph.node}
    held = {each.name: each for each in model.graph.initializer}
    changed: dict[str, np.ndarray] = {}
    if what.endswith("returned"):
        name = {"mean": "m", "centred": "d", "root": "s"}[what.split()[0]]
        model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    elif what == "other axes":
        nodes["v"].input[1] = "others"
        changed["others"] = np.array([1, 2, 3])
    elif what == "axes apart":
        changed["axes"] = np.array([1, 3])
    elif what == "sum of vectors":
        changed["epsilon"] = np.linspace(0.1, 0.5, 5, dtype=np.float32).reshape(1, 5, 1, 1)
    elif what == "turned over":
        nodes["o"].input[:] = ["s", "d"]
    elif what == "other power":
        nodes["q"].CopyFrom(node("Pow", ["d", "four"], ["q"]))
        changed["four"] = np.array(4, np.float32)
    elif what == "mean first":
        nodes["d"].input[:] = ["m", "x"]
    else:
        changed["epsilon"] = np.full((1, 1, 1, 1, 1), 0.1, np.float32)
    for name, array in changed.items():
        made = onnx.numpy_helper.from_array(array, name)
        held[name].CopyFrom(made) if name in held else model.graph.initializer.append(made)
    made = close(model, {"x": random(2, 5, 4, 5, seed=9)})
    assert len({record.step for record in made.nodes}) > 1
