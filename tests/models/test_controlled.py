"""Branches and loops with convolutions in them, against onnxruntime; numbers are whole, so that sums are exact."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from making import close, engines, info, onnx_model, onnxruntime_run, random, session
from onnx import TensorProto, helper, numpy_helper

from polyconv.errors import ModelError, Unsupported

node = helper.make_node
FLAG = info("flag", [], TensorProto.BOOL)


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    return np.rint(3 * random(*shape, seed=seed))


def graph(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[str],
          constants: dict[str, np.ndarray] | None = None) -> onnx.GraphProto:  # fmt: skip
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    return helper.make_graph(list(nodes), "body", list(inputs), [info(name) for name in outputs], tensors)


def branch(tag: str, seed: int) -> onnx.GraphProto:
    """A convolution with weights of its own and one with the model's, of a value from outside."""
    nodes = [
        node("Conv", ["a", f"own {tag}"], [f"{tag} 1"], f"first {tag}"), node("Relu", [f"{tag} 1"], [f"{tag} 2"]),
        node("Conv", [f"{tag} 2", "w"], [f"{tag} 3"], pads=[1, 1]),
    ]  # fmt: skip
    return graph(nodes, [], [f"{tag} 3"], {f"own {tag}": whole(3, 3, 2 + seed, seed=seed)})


def choice(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("If", ["flag"], ["b"], "choice", then_branch=then, else_branch=otherwise),
        node("Abs", ["b"], ["y"]),
    ]
    return onnx_model(nodes, [info("x", [1, 3, "w"]), FLAG], ["y"], {"w": whole(4, 3, 3)})


@pytest.mark.parametrize("met", [True, False])
def test_a_branch_is_chosen_by_a_run(met: bool) -> None:
    made = close(choice(branch("then", 1), branch("else", 2)), {"x": whole(1, 3, 9), "flag": np.array(met)})
    assert engines(made)["choice"] == "polyconv"


@pytest.mark.parametrize("met", [True, False])
def test_a_condition_that_is_known_needs_one_branch_only(met: bool) -> None:
    model = choice(branch("then", 1), branch("else", 2))
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.array(met), "flag"))
    close(model, {"x": whole(1, 3, 9)})


@pytest.mark.parametrize("flags", [(a, b) for a in (True, False) for b in (True, False)])
def test_branches_in_branches(flags: tuple[bool, bool]) -> None:
    inner = node("If", ["second"], ["o"], "inner", then_branch=branch("t", 1), else_branch=branch("e", 2))
    model = choice(graph([inner], [], ["o"]), branch("else", 3))
    model.graph.input.append(info("second", [], TensorProto.BOOL))
    feeds = {"x": whole(1, 3, 12), "flag": np.array(flags[0]), "second": np.array(flags[1])}
    close(model, feeds)


def test_one_session_runs_both_branches_by_turns() -> None:
    made = session(choice(branch("then", 1), branch("else", 2)))
    x = whole(1, 3, 9)
    first = {met: made.run(None, {"x": x, "flag": np.array(met)})[0] for met in (True, False)}
    assert first[True].shape == (1, 4, 7)
    assert first[False].shape == (1, 4, 6)
    for met in (True, False, True, True, False, False):
        np.testing.assert_array_equal(made.run(None, {"x": x, "flag": np.array(met)})[0], first[met], strict=True)


def loop(trips: bool = True, condition: bool = True) -> onnx.ModelProto:
    """Smooths a signal until its end, or a limit of its largest number, is reached; each turn's mean is kept."""
    turn = graph(
        [
            node("Conv", ["now", "w"], ["next"], "smooth", pads=[1, 1]), node("Abs", ["next"], ["size"]),
            node("ReduceMax", ["size"], ["largest"], keepdims=0), node("Less", ["largest", "limit"], ["goes on"]),
            node("Cast", ["turn"], ["number"], to=TensorProto.FLOAT), node("Add", ["next", "number"], ["after"]),
            node("ReduceMax", ["next"], ["row"], axes=[2], keepdims=0),
        ],
        [info("turn", [], TensorProto.INT64), info("before", [], TensorProto.BOOL), info("now", [1, 2, None])],
        ["goes on", "after", "row"],
    )  # fmt: skip
    turn.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    inputs = ["most" if trips else "", "flag" if condition else "", "x"]
    nodes = [node("Loop", inputs, ["last", "rows"], "loop", body=turn)]
    given = [info("x", [1, 2, "w"]), *([info("most", [], TensorProto.INT64)] if trips else []), *([FLAG] * condition)]
    return onnx_model(nodes, given, ["last", "rows"], {"w": whole(2, 2, 3), "limit": np.float32(1000)})


@pytest.mark.parametrize("most", [0, 1, 2, 50])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_loop_ends_by_its_count_or_its_condition(most: int, goes_on: bool) -> None:
    feeds = {"x": whole(1, 2, 8), "most": np.array(most), "flag": np.array(goes_on)}
    made = session(loop())
    last, rows = made.run(None, feeds)
    if not most or not goes_on:
        np.testing.assert_array_equal(last, feeds["x"])
        assert rows.shape[0] == 0
    else:
        close(loop(), feeds)
    assert engines(made)["loop"] == "polyconv"


def test_a_loop_without_count_or_condition() -> None:
    close(loop(trips=False), {"x": whole(1, 2, 8), "flag": np.array(True)})
    close(loop(condition=False), {"x": whole(1, 2, 8), "most": np.array(3)})


@pytest.mark.parametrize("axes", [{}, {"scan_input_axes": [2], "scan_output_axes": [1]}, {"scan_input_axes": [-1]}])
@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_scan_in_both_directions(axes: dict[str, list[int]], directions: tuple[int, int]) -> None:
    body = graph(
        [node("Add", ["state", "slice"], ["sum"]), node("Conv", ["sum", "w"], ["state out"], "step", pads=[1, 1]),
         node("Neg", ["state out"], ["slice out"])],
        [info("state", [1, 2, 6]), info("slice", [1, 2, 6])], ["state out", "slice out"],
    )  # fmt: skip
    scan = node(
        "Scan", ["s", "x"], ["t", "y"], "scan", body=body, num_scan_inputs=1, scan_input_directions=[directions[0]],
        scan_output_directions=[directions[1]], **axes,
    )  # fmt: skip
    shape = (5, 1, 2, 6) if not axes else (1, 2, 5, 6) if axes["scan_input_axes"] == [2] else (1, 2, 6, 5)
    model = onnx_model([scan], [info("s", [1, 2, 6]), info("x", shape)], ["t", "y"], {"w": np.rint(random(2, 2, 3))})
    close(model, {"s": whole(1, 2, 6), "x": whole(*shape, seed=1)})


def test_what_does_not_fit_is_an_error_with_a_name() -> None:
    x = {"x": whole(1, 3, 9)}
    two = choice(branch("then", 1), branch("else", 2))
    two.graph.input[1].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=r"choice.*condition of 2 elements"):
        session(two).run(None, {**x, "flag": np.array([True, False])})
    more = choice(branch("then", 1), branch("else", 2))
    more.graph.node[1].output.append("c")
    with pytest.raises(ModelError, match=r"choice.*2 outputs"):
        session(more)
    for empty, at in ((choice(branch("then", 1), branch("else", 2)), 0), (loop(), 2)):
        [holder] = [one for one in empty.graph.node if one.op_type in ("If", "Loop")]
        holder.input[at] = ""
        with pytest.raises(ModelError, match=rf"{holder.name}.*leaves out an input"):
            session(empty)
    missing = choice(branch("then", 1), branch("else", 2))
    del missing.graph.node[1].attribute[1]
    with pytest.raises(ModelError, match=r"choice.*no subgraph"):
        session(missing)
    wide = loop()
    wide.graph.node[0].attribute[0].g.input[2].type.tensor_type.shape.dim[2].dim_value = 7
    with pytest.raises(ModelError, match=r"loop.*'now'"):
        session(wide).run(None, {"x": whole(1, 2, 8), "most": np.array(2), "flag": np.array(True)})
    short = loop()
    del short.graph.node[0].attribute[0].g.input[2]
    with pytest.raises(ModelError, match=re.escape("now")):
        session(short)
    scan = node("Scan", ["x"], ["y"], "scan", num_scan_inputs=2,
                body=graph([node("Conv", ["s", "w"], ["o"], "c")], [info("s", [1, 3, 9])], ["o"]))  # fmt: skip
    with pytest.raises(ModelError, match=r"scan.*scans 2"):
        session(onnx_model([scan], [info("x", [4, 1, 3, 9])], ["y"], {"w": whole(4, 3, 3)}))


def test_other_operators_that_hold_convolutions_are_refused() -> None:
    body = graph([node("Conv", ["x", "w"], ["o"], "inner")], [], ["o"])
    model = onnx_model(
        [node("Repeat", ["x"], ["y"], "odd", domain="mine", body=body)], [info("x", [1, 3, 9])], ["y"],
        {"w": whole(4, 3, 3)}, domains={"mine": 1},
    )  # fmt: skip
    with pytest.raises(Unsupported, match=r"odd.*inner.*If, Loop, Scan"):
        session(model)


def by_extents(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    """A branch for signals of nine numbers, and one for all others."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1]), node("Shape", ["a"], ["s"]), node("Gather", ["s", "two"], ["n"]),
        node("Equal", ["n", "nine"], ["is"]),
        node("If", ["is"], ["b"], "choice", then_branch=then, else_branch=otherwise),
        node("Conv", ["b", "v"], ["c"]), node("Abs", ["c"], ["y"]),
    ]  # fmt: skip
    constants = {"w": whole(3, 3, 3), "v": whole(2, 3, 1), "two": np.array(2), "nine": np.array(9)}
    return onnx_model(nodes, [info("x", [1, 3, "t"])], ["y"], constants)


def bodies(*last: onnx.NodeProto) -> onnx.GraphProto:
    """A convolution with the model's weights, and what follows it."""
    return graph([node("Conv", ["a", "w"], ["i"]), *last], [], ["o"])


BRANCHES: dict[str, onnx.GraphProto] = {
    "work": bodies(node("Relu", ["i"], ["o"])),
    "a view": bodies(node("Identity", ["i"], ["o"])),
    "what is outside": graph([node("Identity", ["a"], ["o"])], [], ["o"]),
    "a view with gaps": bodies(node("Slice", ["i", "start", "end", "axis"], ["o"])),
    "a constant": graph([node("Identity", ["held"], ["o"])], [], ["o"], {"held": whole(1, 3, 4)}),
    "another branch": graph(
        [node("Shape", ["x"], ["sx"]), node("Gather", ["sx", "two"], ["nx"]), node("Less", ["nx", "nine"], ["less"]),
         node("If", ["less"], ["o"], "inner", then_branch=graph([node("Neg", ["a"], ["p"])], [], ["p"]),
              else_branch=graph([node("Conv", ["a", "w"], ["q"])], [], ["q"]))],
        [], ["o"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("otherwise", BRANCHES)
@pytest.mark.parametrize("then", BRANCHES)
def test_runs_that_are_alike_have_the_steps_of_a_branch(then: str, otherwise: str) -> None:
    model = by_extents(BRANCHES[then], BRANCHES[otherwise])
    for name, value in (("start", [1]), ("end", [4]), ("axis", [2])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    made = session(model)
    for length, seed in ((9, 0), (9, 1), (9, 2), (7, 0), (12, 1), (7, 2), (7, 3), (9, 3), (12, 4), (12, 5)):
        feeds = {"x": whole(1, 3, length, seed=seed)}
        np.testing.assert_array_equal(made.run(None, feeds)[0], onnxruntime_run(model, feeds)[0], strict=True)
    assert engines(made)["choice"] == "polyconv"


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL])
@pytest.mark.parametrize("shape", [[], [1]])
def test_runs_are_alike_if_the_number_is_equal_that_chooses(kind: int, shape: list[int]) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        node("Cast", ["rate"], ["wide"], to=TensorProto.INT64), node("Equal", ["wide", "one"], ["is"]),
        node("If", ["is"], ["b"], "choice", then_branch=BRANCHES["work"], else_branch=BRANCHES["what is outside"]),
        node("Conv", ["b", "v"], ["y"]),
    ]  # fmt: skip
    first = node("Conv", ["x", "w"], ["a"], pads=[1, 1])
    constants = {"w": whole(3, 3, 3), "v": whole(2, 3, 1), "one": np.array(1)}
    inputs = [info("x", [1, 3, "t"]), info("rate", shape, kind)]
    model = onnx_model([first, *nodes], inputs, ["y", "is"], constants)
    model.graph.output[1].CopyFrom(info("is", None, TensorProto.BOOL))
    made = session(model)
    for seed, rate in enumerate((1, 1, 1, 0, 1, 0, 0, 0, 1, 0)):
        feeds = {"x": whole(1, 3, 9, seed=seed), "rate": np.full(shape, rate, dtype)}
        for ours, theirs in zip(made.run(None, feeds), onnxruntime_run(model, feeds), strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)


def test_a_result_of_a_branch_is_the_callers() -> None:
    model = by_extents(BRANCHES["a view"], BRANCHES["what is outside"])
    model.graph.output.append(info("b"))
    made = session(model)
    for length in (9, 7):
        feeds = {"x": whole(1, 3, length)}
        for _ in range(4):
            results = made.run(None, feeds)
            for ours, theirs in zip(results, onnxruntime_run(model, feeds), strict=True):
                np.testing.assert_array_equal(ours, theirs, strict=True)
            for ours in results:
                ours[:] = np.nan
