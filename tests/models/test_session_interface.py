"""onnxruntime's interface of a session: the same calls give the same answers, and the page says what there is."""

from __future__ import annotations

import copy
import json
import pickle
import runpy
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from making import info, onnx_model, random, save_ir
from onnx import helper

import polyconv
from polyconv import ArgumentError, DtypeError, IgnoredWarning, InferenceSession, OrtValue, RunOptions, SessionOptions
from polyconv.models.graph import ModelMetadata, Value
from polyconv.models.io_binding import IOBinding

ROOT = Path(__file__).resolve().parents[2]
PAGE = runpy.run_path(str(ROOT / "tools" / "sessions_page.py"))


def model() -> onnx.ModelProto:
    """Two outputs, an open height, a node that is no convolution, and all the metadata there is."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
        helper.make_node("Atan", ["c"], ["z"], name="tangent"),
    ]
    ends = [info("y", ["n", 2, "h", 8]), info("z", ["n", 2, "h", 8])]
    made = onnx_model(nodes, [info("x", ["n", 3, "h", 8])], ends, {"w": 0.1 * random(2, 3, 3, 3)})
    made.producer_name, made.doc_string, made.domain, made.model_version = "who", "what", "where", 7
    made.graph.doc_string = "graph"
    made.metadata_props.add(key="key", value="value")
    return made


MODEL = model()
BYTES = MODEL.SerializeToString()
X = random(1, 3, 4, 8, seed=1)


def both(options: Any = None, **keywords: Any) -> tuple[InferenceSession, onnxruntime.InferenceSession]:
    theirs = onnxruntime.InferenceSession(BYTES, providers=["CPUExecutionProvider"])
    return InferenceSession(BYTES, options, **keywords), theirs


def assert_close(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# The page


OURS = {
    "InferenceSession": InferenceSession, "SessionOptions": SessionOptions, "RunOptions": RunOptions,
    "IOBinding": IOBinding, "OrtValue": OrtValue, "ModelMetadata": ModelMetadata, "NodeArg": Value,
}  # fmt: skip


def test_the_page_is_the_tables() -> None:
    assert (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8") == PAGE["page"](), "run tools/sessions_page.py"
    assert set(PAGE["INTERFACE"]) == set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_the_table_has_all_of_onnxruntimes_names_and_says_which_are_ours(name: str) -> None:
    rows: dict[str, str] = PAGE["INTERFACE"][name]
    theirs = {member for member in dir(getattr(onnxruntime, name)) if not member.startswith("_")}
    assert theirs <= set(rows), f"this onnxruntime has names that the table lacks: {theirs - set(rows)}"
    made = OURS[name]() if name in ("SessionOptions", "RunOptions", "ModelMetadata") else OURS[name]
    for member, words in rows.items():
        assert hasattr(made, member) != words.startswith(PAGE["MISSING"]), member


def test_defaults_of_options_are_onnxruntimes() -> None:
    for ours, theirs in ((SessionOptions(), onnxruntime.SessionOptions()), (RunOptions(), onnxruntime.RunOptions())):
        names = {n for n in dir(theirs) if n[0] != "_" and not callable(getattr(theirs, n))} - {"profile_file_prefix"}
        for name in names:
            assert int(getattr(ours, name) or 0) == int(getattr(theirs, name) or 0), name
    for kind in ("GraphOptimizationLevel", "ExecutionMode"):
        theirs_by_name = {key: int(value) for key, value in getattr(onnxruntime, kind).__members__.items()}
        assert {row.name: int(row) for row in getattr(polyconv, kind)} == theirs_by_name


# What a session says of its model


def test_metadata() -> None:
    for made in (MODEL, onnx_model([helper.make_node("Relu", ["x"], ["y"])], [info("x", [1])], [info("y", [1])])):
        data = made.SerializeToString()
        ours, theirs = InferenceSession(data).get_modelmeta(), onnxruntime.InferenceSession(data).get_modelmeta()
        for name in PAGE["INTERFACE"]["ModelMetadata"]:
            assert getattr(ours, name) == getattr(theirs, name), name


def test_metadata_of_an_ir(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    ops = openvino.opset13
    x = ops.parameter([1, 3, 8, 8], np.float32, name="x")
    path = save_ir(openvino.Model([ops.relu(x)], [x], "named"), tmp_path)
    assert InferenceSession(path).get_modelmeta().graph_name == "named"


def test_a_model_in_any_form(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(BYTES)
    right = InferenceSession(BYTES).run(None, {"x": X})
    for form in (path, str(path), BYTES, bytearray(BYTES), memoryview(BYTES), MODEL):
        for a, b in zip(InferenceSession(form).run(None, {"x": X}), right, strict=True):
            np.testing.assert_array_equal(a, b)
    assert MODEL.SerializeToString() == BYTES  # it is left as it was
    for wrong in (3, None, [BYTES], onnxruntime.SessionOptions()):
        with pytest.raises(ArgumentError, match=r"path_or_bytes is of type .*give a path"):
            InferenceSession(wrong)


def test_text_of_a_session(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(BYTES)
    text = repr(InferenceSession(path))
    assert str(path) in text
    assert "x['n', 3, 'h', 8] -> y['n', 2, 'h', 8], z['n', 2, 'h', 8]" in text
    assert "polyconv" in text
    assert "onnxruntime" in text
    assert f"{len(BYTES)} bytes" in repr(InferenceSession(BYTES))


def test_sessions_travel_by_path_or_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(BYTES)
    monkeypatch.chdir(tmp_path)
    options = SessionOptions()
    options.intra_op_num_threads = 1
    by_path = InferenceSession("model.onnx", options, ["CPUExecutionProvider"], accuracy="strict")
    by_bytes = InferenceSession(BYTES, options, accuracy="strict")
    monkeypatch.chdir("/")
    right = by_bytes.run(None, {"x": X})
    assert len(pickle.dumps(by_path)) < len(BYTES) + 2000
    for session in (by_path, by_bytes):
        for other in (pickle.loads(pickle.dumps(session)), copy.deepcopy(session)):
            for a, b in zip(other.run(None, {"x": X}), right, strict=True):
                np.testing.assert_array_equal(a, b)
            assert other.get_session_options() == session.get_session_options()
            assert other.providers == session.providers


# Running


FEEDS: dict[str, Callable[[], Any]] = {
    "array": lambda: X,
    "list": lambda: X.tolist(),
    "whole numbers": lambda: np.ones((1, 3, 4, 8), int).tolist(),
    "strides": lambda: np.asfortranarray(X),
}


@pytest.mark.parametrize("case", FEEDS)
def test_feeds_of_any_kind(case: str) -> None:
    ours, theirs = both()
    assert_close(ours.run(None, {"x": FEEDS[case]()}), theirs.run(None, {"x": FEEDS[case]()}))


def test_values_and_tensors_are_fed_too() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = both()
    right = theirs.run(None, {"x": X})
    for value in (OrtValue(X), onnxruntime.OrtValue.ortvalue_from_numpy(X), torch.from_numpy(X)):
        assert_close(ours.run(None, {"x": value}), right)
    with pytest.raises(ArgumentError, match=r"x\.detach\(\)"):
        ours.run(None, {"x": torch.from_numpy(X).requires_grad_()})


NAMES: dict[str, Any] = {"none": None, "an empty list": [], "a tuple": ("z",), "twice": ["y", "y"], "order": ["z", "y"]}


@pytest.mark.parametrize("case", NAMES)
def test_names_of_outputs(case: str) -> None:
    ours, theirs = both()
    assert_close(ours.run(NAMES[case], {"x": X}), theirs.run(NAMES[case], {"x": X}))


WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a name that is no list": (lambda s: s.run("y", {"x": X}), ArgumentError, "no list of names"),
    "an unknown output": (lambda s: s.run(["q"], {"x": X}), ArgumentError, "'q'"),
    "an unknown input": (lambda s: s.run(None, {"x": X, "q": X}), ArgumentError, "'q'"),
    "a missing input": (lambda s: s.run(None, {}), ArgumentError, "lacks 'x'"),
    "another type": (lambda s: s.run(None, {"x": X.astype(np.float64)}), DtypeError, "float64"),
    "another rank": (lambda s: s.run(None, {"x": X[0]}), ArgumentError, r"\(3, 4, 8\)"),
    "another extent": (lambda s: s.run(None, {"x": X[:, :2]}), ArgumentError, r"\(1, 2, 4, 8\)"),
    "asynchronous, a missing input": (lambda s: s.run_async(None, {}, print, None), ArgumentError, "lacks 'x'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_both_refuse(case: str) -> None:
    call, error, words = WRONG[case]
    ours, theirs = both()
    with pytest.raises(error, match=words):
        call(ours)
    with pytest.raises(Exception):  # noqa: B017 - it has many
        call(theirs)


def test_values_in_values_out() -> None:
    ours, theirs = both()
    for names in (None, ["z"]):
        made = ours.run_with_ort_values(names, {"x": OrtValue(X)})
        right = theirs.run_with_ort_values(names, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(X)})
        assert_close([v.numpy() for v in made], [v.numpy() for v in right])
        for a, b in zip(made, right, strict=True):
            for ask in ("shape", "data_type", "element_type", "device_name", "tensor_size_in_bytes", "has_value",
                        "is_tensor", "is_sparse_tensor", "is_tensor_sequence"):  # fmt: skip
                assert getattr(a, ask)() == getattr(b, ask)(), ask
    assert_close([v.numpy() for v in ours.run_with_ort_values(None, {"x": right[0]} | {"x": OrtValue(X)})],
                 theirs.run(None, {"x": X}))  # fmt: skip


def answered(session: Any, names: Any, feeds: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What the callback of an asynchronous run is called with."""
    done, got = threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        got.append((results, data, error))
        done.set()

    assert session.run_async(names, feeds, callback, "mine") is None
    assert done.wait(60)
    return got[0]  # type: ignore[no-any-return]


def test_asynchronous_runs() -> None:
    ours, theirs = both()
    a, b = (answered(session, ["y"], {"x": X}) for session in (ours, theirs))
    assert a[1:] == b[1:] == ("mine", "")
    assert_close(a[0], b[0])


def test_asynchronous_runs_that_fail() -> None:
    """In both, what goes wrong while it runs reaches the callback, with no results."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "a"], ["y"])]
    made = onnx_model(nodes, [info("x", [1, 1, None]), info("a", [None])], [info("y")], {"w": random(1, 1, 2)})
    feeds = {"x": random(1, 1, 8), "a": random(3)}  # 7 and 3 do not broadcast
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = made.SerializeToString()
    for session in (InferenceSession(data), onnxruntime.InferenceSession(data, options)):
        results, whose, error = answered(session, None, feeds)
        assert (list(results), whose) == ([], "mine")
        assert "Add" in error


def test_a_run_is_ended_from_outside() -> None:
    ours, theirs = both()
    of_theirs = onnxruntime.RunOptions
    for session, options in ((ours, RunOptions()), (ours, of_theirs()), (theirs, of_theirs())):
        session.run(None, {"x": X}, options)
        options.terminate = True
        with pytest.raises(Exception, match=r"asked to end|terminate") as caught:
            session.run(None, {"x": X}, options)
        assert isinstance(caught.value, polyconv.Error) == (session is ours)


# Bindings


def test_bound_inputs_and_outputs() -> None:
    results = []
    for session in both():
        x = X.copy()
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("z")
        binding.bind_output("y")
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        first = binding.copy_outputs_to_cpu()
        x *= 2  # bound memory is read again
        session.run_with_iobinding(binding)
        results.append([*first, *(value.numpy() for value in binding.get_outputs())])
        assert [value.shape() for value in binding.get_outputs()] == [[1, 2, 4, 8]] * 2
        binding.clear_binding_outputs()
        with pytest.raises((ArgumentError, RuntimeError), match="output"):
            session.run_with_iobinding(binding)
    assert_close(*results)


def test_outputs_fill_the_memory_they_are_bound_to() -> None:
    filled = []
    for session, values in zip(both(), (OrtValue, onnxruntime.OrtValue), strict=True):
        memory, plain = np.zeros((1, 2, 4, 8), np.float32), np.zeros((1, 2, 4, 8), np.float32)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", values.ortvalue_from_numpy(X))
        binding.bind_ortvalue_output("y", values.ortvalue_from_numpy(memory))
        binding.bind_output("z", "cpu", 0, np.float32, plain.shape, plain.ctypes.data)
        session.run_with_iobinding(binding)
        filled += [[memory, plain]]
        assert binding.get_outputs()[0].data_ptr() == memory.ctypes.data
    assert_close(*filled)
    assert filled[0][0].any()


def test_an_input_at_an_address() -> None:
    results = []
    for session in both():
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        results.append(binding.copy_outputs_to_cpu())
    assert_close(*results)


def test_values_of_onnxruntime_can_be_bound() -> None:
    ours, theirs = both()
    memory = np.zeros((1, 2, 4, 8), np.float32)
    binding = ours.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(memory))
    ours.run_with_iobinding(binding)
    assert_close([memory], theirs.run(["y"], {"x": X}))


BINDINGS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "unknown input": (lambda b: b.bind_cpu_input("q", X), "'q'.*inputs are"),
    "unknown output": (lambda b: b.bind_output("q"), "'q'.*outputs are"),
    "another type": (lambda b: b.bind_cpu_input("x", X.astype(np.float64)), "float64"),
    "another device": (lambda b: b.bind_input("x", "cuda", 0, np.float32, X.shape, 1), "no device cuda:0"),
    "output on another device": (lambda b: b.bind_output("y", "cuda"), "no device cuda:0"),
    "address without a shape": (lambda b: b.bind_output("y", buffer_ptr=1), "needs element_type and shape"),
    "no address": (lambda b: b.bind_input("x", "cpu", 0, np.float32, X.shape, 0), "buffer_ptr=0"),
    "a negative shape": (lambda b: b.bind_input("x", "cpu", 0, np.float32, [-1], 1), r"shape=\[-1\]"),
    "packed elements": (lambda b: b.bind_output("y", "cpu", 0, 22, [8], X.ctypes.data), "element_type=22"),
    "strings": (lambda b: b.bind_output("y", "cpu", 0, np.object_, [8], X.ctypes.data), "element_type"),
}


@pytest.mark.parametrize("case", BINDINGS)
def test_what_cannot_be_bound(case: str) -> None:
    call, words = BINDINGS[case]
    with pytest.raises((ArgumentError, DtypeError), match=words):
        call(InferenceSession(BYTES).io_binding())


def test_memory_that_does_not_fit_stays_as_it_is() -> None:
    session = InferenceSession(BYTES)
    good = np.zeros((1, 2, 4, 8), np.float32)
    read_only = np.zeros((1, 2, 4, 8), np.float32)
    read_only.flags.writeable = False
    wrong = (np.zeros((1, 2, 5, 8), np.float32), np.zeros((1, 2, 4, 8), np.float64), read_only)
    for memory, words in zip(wrong, (r"\(1, 2, 5, 8\)", "float64", "read-only"), strict=True):
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_ortvalue_output("y", OrtValue(good))
        binding.bind_ortvalue_output("z", OrtValue(memory))
        with pytest.raises(ArgumentError, match=words):
            session.run_with_iobinding(binding)
        assert not good.any()


def test_a_binding_is_of_one_session() -> None:
    for session, other in zip(both(), both(), strict=True):
        with pytest.raises(ValueError, match="session"):
            session.run_with_iobinding(other.io_binding())


# Values


def test_values_are_onnxruntimes_in_all_but_name() -> None:
    for kind in (OrtValue, onnxruntime.OrtValue):
        source = X.copy()
        value = kind.ortvalue_from_numpy(source)
        assert value.data_ptr() == source.ctypes.data
        value.update_inplace(np.zeros_like(X))
        assert not source.any()
        assert kind.ortvalue_from_numpy(X[:, :, ::2]).numpy().shape == (1, 3, 2, 8)
        made = kind.ortvalue_from_shape_and_type([2, 3], np.int64)
        assert (made.shape(), made.data_type(), made.element_type()) == ([2, 3], "tensor(int64)", 7)
        assert kind.ortvalue_from_shape_and_type([2, 3], 16).data_type() == "tensor(bfloat16)"
        cast = kind.ortvalue_from_numpy_with_onnx_type(np.zeros((2, 3), np.uint16), 16)
        assert cast.data_type() == "tensor(bfloat16)"
        assert kind.from_dlpack(X).numpy().shape == X.shape
        assert np.from_dlpack(kind.ortvalue_from_numpy(X)).shape == X.shape
        assert np.asarray(kind.ortvalue_from_numpy(X)).dtype == np.float32
        assert np.array(kind.ortvalue_from_numpy(X), dtype=np.float64).dtype == np.float64
        with pytest.raises((ArgumentError, RuntimeError)):
            value.update_inplace(np.zeros(3, np.float32))
        with pytest.raises((ArgumentError, RuntimeError)):
            kind.ortvalue_from_numpy(X, "cuda", 0)
    assert OrtValue.ortvalue_from_shape_and_type([2], 16).numpy().dtype == ml_dtypes.bfloat16
    assert repr(OrtValue(X)) == "OrtValue(tensor(float), [1, 3, 4, 8])"
    with pytest.raises(ArgumentError, match="elements of 4 bytes"):
        OrtValue.ortvalue_from_numpy_with_onnx_type(X, 16)
    with pytest.raises(ArgumentError, match="element_type='what'"):
        OrtValue.ortvalue_from_shape_and_type([2], "what")


def test_a_sequence_is_a_value_too() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("SplitToSequence", ["c"], ["s"], axis=1),
    ]
    output = helper.make_tensor_sequence_value_info("s", 1, None)
    made = onnx_model(nodes, [info("x", [1, 1, 4])], [output], {"w": random(3, 1, 2)}).SerializeToString()
    theirs = onnxruntime.InferenceSession(made), onnxruntime.OrtValue
    for session, kind in ((InferenceSession(made), OrtValue), theirs):
        [value] = session.run_with_ort_values(None, {"x": kind.ortvalue_from_numpy(random(1, 1, 4))})
        assert (value.is_tensor_sequence(), value.is_tensor(), value.data_type()) == (True, False, "seq(tensor(float))")
        with pytest.raises((ArgumentError, RuntimeError, ValueError)):
            value.numpy()


# Options and providers


def test_free_dimensions() -> None:
    options, other = SessionOptions(), onnxruntime.SessionOptions()
    for each in (options, other):
        each.add_free_dimension_override_by_name("h", 4)
        each.add_free_dimension_override_by_name("nowhere", 4)
    ours, theirs = InferenceSession(BYTES, options), onnxruntime.InferenceSession(BYTES, other)
    for a, b in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(v.name, v.shape) for v in a] == [(v.name, v.shape) for v in b]
    for session in (ours, theirs):
        session.run(None, {"x": X})
        with pytest.raises(Exception, match="5"):
            session.run(None, {"x": random(1, 3, 5, 8)})
    with pytest.raises(ArgumentError, match="'h' is overridden by -1"):
        options.add_free_dimension_override_by_name("h", -1)


def test_options_are_kept_as_they_were() -> None:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession(BYTES, options)
    options.intra_op_num_threads = 2
    assert session.get_session_options().intra_op_num_threads == 1
    theirs = onnxruntime.SessionOptions()
    theirs.intra_op_num_threads = 3
    assert InferenceSession(BYTES, theirs).get_session_options().intra_op_num_threads == 3
    with pytest.raises(AttributeError):
        options.no_such_option = 1  # type: ignore[attr-defined]
    options.add_session_config_entry("a.b", "1")
    assert options.get_session_config_entry("a.b") == "1"
    with pytest.raises(ArgumentError, match=r"no entry 'c'; it has a\.b"):
        options.get_session_config_entry("c")
    with pytest.raises(ArgumentError, match="sess_options is of type int"):
        InferenceSession(BYTES, 3)
    options.execution_mode = "fast"
    with pytest.raises(ArgumentError, match="execution_mode='fast' is none of ORT_SEQUENTIAL, ORT_PARALLEL"):
        InferenceSession(BYTES, options)


def _with(**values: Any) -> SessionOptions:
    options = SessionOptions()
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _with_theirs(**values: Any) -> Any:
    options = onnxruntime.SessionOptions()
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _with_entry() -> SessionOptions:
    options = SessionOptions()
    options.add_session_config_entry("session.some_key", "1")
    return options


LEVEL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
IGNORED: dict[str, tuple[dict[str, Any], str]] = {
    "optimised model": (
        {"sess_options": _with(optimized_model_filepath="/tmp/x")},
        "optimized_model_filepath='/tmp/x'.*no optimised model",
    ),
    "level": ({"sess_options": _with(graph_optimization_level=LEVEL)}, "graph_optimization_level=ORT_ENABLE_BASIC"),
    "level of theirs": (
        {"sess_options": _with_theirs(graph_optimization_level=LEVEL)},
        "graph_optimization_level=ORT_ENABLE_BASIC",
    ),
    "parallel": ({"sess_options": _with(execution_mode=polyconv.ExecutionMode.ORT_PARALLEL)}, "execution_mode"),
    "threads between nodes": ({"sess_options": _with(inter_op_num_threads=2)}, "inter_op_num_threads=2"),
    "entry": ({"sess_options": _with_entry()}, "session.some_key"),
    "provider": ({"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}, "'CUDAExecutionProvider'"),
    "provider with options": ({"providers": [("TensorrtExecutionProvider", {"a": 1})]}, "'TensorrtExecutionProvider'"),
    "twice": ({"providers": ["CPUExecutionProvider", "CPUExecutionProvider"]}, "named twice"),
}


@pytest.mark.parametrize("case", IGNORED)
def test_what_has_no_effect_is_named_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyconv.gpu.driver._loaded", lambda: "no GPU takes part in this test")
    keywords, words = IGNORED[case]
    with pytest.warns(IgnoredWarning, match=words) as caught:
        session = InferenceSession(BYTES, **keywords)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.run(None, {"x": X})
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("default")
        for _ in range(3):
            InferenceSession(BYTES, **keywords)
    assert len(again) == 1


def test_what_is_honoured_or_needs_nothing_is_not_named() -> None:
    options = _with(
        intra_op_num_threads=1, enable_mem_pattern=False, enable_cpu_mem_arena=False, log_severity_level=3,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = InferenceSession(BYTES, options, ["CPUExecutionProvider"], [{"a": 1}])
        InferenceSession(BYTES, onnxruntime.SessionOptions(), polyconv.get_available_providers())
    assert session.get_provider_options() == {"PolyconvExecutionProvider": {}, "CPUExecutionProvider": {"a": "1"}}
    assert session.get_providers() == list(session.get_provider_options())
    assert polyconv.get_available_providers()[:2] == ["PolyconvExecutionProvider", "CPUExecutionProvider"]
    session.disable_fallback()
    session.enable_fallback()
    with pytest.warns(IgnoredWarning, match="'TensorrtExecutionProvider'"):
        session.set_providers(["TensorrtExecutionProvider"])
    assert session.providers == ["TensorrtExecutionProvider"]


@pytest.mark.parametrize(
    ("providers", "options", "words"),
    [
        ("CPUExecutionProvider", None, "must be a list"),
        ([3], None, "3"),
        ([("CPUExecutionProvider",)], None, "pairs"),
        (["CPUExecutionProvider"], [{}, {}], "a dict for each"),
        (["CPUExecutionProvider"], [3], "3"),
        ([("CPUExecutionProvider", {})], [{}], "must be names"),
    ],
)
def test_providers_are_checked(providers: Any, options: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        InferenceSession(BYTES, None, providers, options)


# Profiling


def test_profiles_are_events_as_onnxruntime_writes_them(tmp_path: Path) -> None:
    files = []
    theirs = onnxruntime.InferenceSession, onnxruntime.SessionOptions()
    for kind, options in ((InferenceSession, SessionOptions()), theirs):
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / kind.__module__)
        session = kind(BYTES, options)
        assert session.get_profiling_start_time_ns() > 0
        for _ in range(2):
            session.run(None, {"x": X})
        files.append(session.end_profiling())
        assert session.end_profiling() == ""
    ours, *others = (json.loads(Path(file).read_text()) for file in files)
    keys = {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}
    for events in (ours, *others):
        assert all(set(event) == keys and event["ph"] == "X" for event in events)
        assert sum(event["name"] == "model_run" for event in events) == 2
        ops = "+".join(event["args"]["op_name"] for event in events if event["cat"] == "Node")
        assert {"Conv", "Atan"} <= set(ops.split("+"))
    runs = [event for event in ours if event["name"] == "model_run"]
    assert runs[0]["ts"] + runs[0]["dur"] <= runs[1]["ts"] + 1
    [conv, _] = [event for event in ours if event["args"].get("op_name") == "Conv"]
    assert conv["args"]["provider"] == "polyconv"
    assert conv["args"]["problem"].replace("NHWC", "NCHW").startswith("conv f32 NCHW n1 c3 i4x8 m2 k3x3 p1")
    assert both()[0].end_profiling() == both()[1].end_profiling() == ""
    assert both()[0].get_profiling_start_time_ns() == 0


def test_two_profiles_of_one_second_are_two_files(tmp_path: Path) -> None:
    options = _with(enable_profiling=True, profile_file_prefix=str(tmp_path / "trace"))
    names = {InferenceSession(BYTES, options).end_profiling() for _ in range(3)}
    assert len(names) == 3
    assert all(Path(name).exists() for name in names)
