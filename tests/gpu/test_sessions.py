"""Sessions on a GPU: networks of all kinds of steps give what the CPU gives, and what cannot run is named.

In ``strict`` arithmetic results lie between the ends that are derived node by node; three passes of tensor cores lose
2^-20 of each product besides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from virtual_gpu import Libcuda, virtual_gpu

import polyconv
from polyconv.conformance.enclosure_rules import enclosed
from polyconv.conformance.graph_fuzz import complaint
from polyconv.errors import ArgumentError, DtypeError, IgnoredWarning, Unsupported
from polyconv.gpu import launches
from polyconv.gpu.arrays import GpuArray, on_stream, to_gpu
from polyconv.gpu.forms import Form, Job, forms
from polyconv.gpu.layer import DeviceLayer

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from making import info, onnx_model, random

node = helper.make_node
CUDA = ["CUDAExecutionProvider"]
MIXED = [*CUDA, "CPUExecutionProvider"]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Libcuda]:
    with virtual_gpu() as lib:
        yield lib


def weights(*shape: int) -> np.ndarray:
    """Values whose sums over a few channels stay near 1."""
    return random(*shape, seed=sum(shape)) * np.float32(0.2)


def residual_network(extents: tuple[Any, ...] = (2, 3, 17, 14)) -> onnx.ModelProto:
    """A ResNet in small: first layer, pool, block with a residual, global mean, product."""
    constants = {
        "w0": weights(8, 3, 3, 3), "b0": weights(8), "w1": weights(8, 8, 3, 3), "w2": weights(8, 8, 3, 3),
        "g": weights(8, 10), "gb": weights(10),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4, strides=[2, 2]), node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        node("Conv", ["p", "w1"], ["c1"], pads=[1] * 4), node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4), node("Add", ["c2", "p"], ["a"]), node("Relu", ["a"], ["r2"]),
        node("GlobalAveragePool", ["r2"], ["q"]), node("Flatten", ["q"], ["f"]), node("Gemm", ["f", "g", "gb"], ["y"]),
    ]  # fmt: skip
    return onnx_model(nodes, [info("x", extents)], ["y"], constants)


X = random(2, 3, 17, 14, seed=1)


def judged(model: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> polyconv.InferenceSession:
    """Hold results of a session on the GPU against the bounds of its nodes; the session."""
    session = polyconv.InferenceSession(model, providers=CUDA, accuracy="strict", **options)
    bounds = enclosed(model, {name: a.numpy() if type(a) is GpuArray else a for name, a in feeds.items()})
    for value, got in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert type(got) is np.ndarray
        assert got.flags.c_contiguous
        assert complaint(bounds[value.name], got) is None
    return session


@pytest.mark.parametrize("extents", [(2, 3, 17, 14), ("n", 3, "h", "w")])
def test_residual_network(extents: tuple[Any, ...], gpu: Libcuda) -> None:
    session = judged(residual_network(extents), {"x": X})
    assert session.get_providers() == CUDA
    assert {step.device for step in session.steps} == {"cuda:0"}
    assert not any(step.copies for step in session.steps)
    assert all(step.seconds is None for step in session.steps)
    assert {record.device for record in session.nodes if record.step is not None} == {"cuda:0"}
    assert session.steps[0].problem == "conv f32 NCHW n2 c3 i17x14 m8 k3x3 s2 p1 b1 act=Relu"
    first = len(gpu.launched)
    session.run(None, {"x": to_gpu(X)})
    assert 0 < len(gpu.launched) - first < first  # weights are packed once


def test_three_passes() -> None:
    """Each of four products adds what it loses, 2^-20 + k eps, of a network whose signs are all positive."""
    model = residual_network()
    exact = polyconv.InferenceSession(_in_f64(model)).run(None, {"x": X.astype(np.float64)})[0]
    most = polyconv.InferenceSession(_in_f64(model, np.abs)).run(None, {"x": np.abs(X).astype(np.float64)})[0]
    got = polyconv.InferenceSession(model, providers=CUDA).run(None, {"x": X})[0]
    assert (np.abs(got - exact) <= 4 * (2.0**-20 + (72 + 16) * 2.0**-23) * most).all()


def _in_f64(model: onnx.ModelProto, change: Callable[[np.ndarray], np.ndarray] = np.positive) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        array = change(onnx.numpy_helper.to_array(tensor).astype(np.float64))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    return made


PARTS: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "squeeze and excite": (
        [
            node("ReduceMean", ["h"], ["m"], axes=[2, 3]), node("Conv", ["m", "w1"], ["e"]),
            node("Sigmoid", ["e"], ["s"]), node("Mul", ["h", "s"], ["y"]),
        ],
        {"w1": weights(8, 8, 1, 1)},
    ),
    "branches": (
        [
            node("Conv", ["h", "w1"], ["a"]), node("AveragePool", ["h"], ["b"], kernel_shape=[3, 3], pads=[1] * 4,
                                                   strides=[1, 1]),
            node("Concat", ["a", "b", "h"], ["y"], axis=1),
        ],
        {"w1": weights(4, 8, 1, 1)},
    ),
    "split and swish": (
        [
            node("Split", ["h"], ["a", "b"], axis=1), node("Sigmoid", ["b"], ["s"]), node("Mul", ["b", "s"], ["m"]),
            node("Sub", ["a", "m"], ["y"]),
        ],
        {},
    ),
    "upsampled": (
        [
            node("Resize", ["h", "", "scales"], ["u"], mode="linear"),
            node("Pad", ["u", "pads"], ["y"], mode="reflect"),
        ],
        {"scales": np.array([1, 1, 2, 2], np.float32), "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1])},
    ),
    "turned and normalised": (
        [
            node("Transpose", ["h"], ["t"], perm=[0, 2, 3, 1]),
            node("LayerNormalization", ["t", "scale", "shift"], ["n"], axis=-1), node("Softmax", ["n"], ["y"], axis=-1),
        ],
        {"scale": weights(8), "shift": weights(8)},
    ),
    "channels of an image": (
        [
            node("InstanceNormalization", ["h", "scale", "shift"], ["n"]), node("HardSwish", ["n"], ["y"]),
        ],
        {"scale": weights(8), "shift": weights(8)},
    ),
    "transposed": ([node("ConvTranspose", ["h", "w1"], ["y"], strides=[2, 2])], {"w1": weights(8, 4, 2, 2)}),
    "pixels of channels": ([node("DepthToSpace", ["h"], ["y"], blocksize=2)], {}),
    "depthwise": (
        [node("Conv", ["h", "w1"], ["d"], group=8, pads=[1] * 4), node("Clip", ["d", "low", "high"], ["y"])],
        {"w1": weights(8, 1, 3, 3), "low": np.float32(0), "high": np.float32(6)},
    ),
    "scaled by channel": (
        [node("PRelu", ["h", "slope"], ["p"]), node("BatchNormalization", ["p", "g", "b", "m", "v"], ["y"])],
        {"slope": weights(8, 1, 1), "g": weights(8), "b": weights(8), "m": weights(8), "v": weights(8) ** 2},
    ),
}  # fmt: skip


def part(name: str) -> onnx.ModelProto:
    """A part behind a first layer."""
    nodes, constants = PARTS[name]
    first = node("Conv", ["x", "w0"], ["h"], pads=[1] * 4)
    return onnx_model([first, *nodes], [info("x", [2, 3, 6, 5])], ["y"], {"w0": weights(8, 3, 3, 3), **constants})


def run_part(name: str) -> polyconv.InferenceSession:
    """Judge a part."""
    return judged(part(name), {"x": random(2, 3, 6, 5, seed=4)})


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_networks(name: str) -> None:
    assert {step.device for step in run_part(name).steps} == {"cuda:0"}


def test_quantised_network_has_the_bits_of_the_cpu() -> None:
    """Integers are exact: scales are powers of two, so that no product is rounded."""
    constants = {
        "sx": np.float32(0.0625), "zx": np.uint8(117), "w": np.arange(-72, 72, dtype=np.int8).reshape(8, 2, 3, 3),
        "sw": np.float32(0.03125), "zw": np.int8(0), "sy": np.float32(0.5), "zy": np.uint8(90),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        node("QLinearConv", ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["c"], pads=[1] * 4),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2]), node("DequantizeLinear", ["p", "sy", "zy"], ["y"]),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("x", [1, 2, 6, 7])], ["y"], constants)
    x = random(1, 2, 6, 7)
    want = polyconv.InferenceSession(model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(polyconv.InferenceSession(model, providers=CUDA).run(None, {"x": x})[0], want)


def test_extents_are_computed_before_anything_is_launched() -> None:
    """``Reshape`` to what ``Shape`` says: numbers stay in the CPU's memory, and nothing is copied back for them."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "first"], ["n"]),
        node("Unsqueeze", ["n", "first_axis"], ["u"]),
        node("Concat", ["u", "rest"], ["to"], axis=0), node("Relu", ["x"], ["r"]), node("Reshape", ["r", "to"], ["y"]),
    ]  # fmt: skip
    constants = {"first": np.array(0), "first_axis": np.array([0]), "rest": np.array([-1])}
    model = onnx_model(nodes, [info("x", ["n", 4, "h"])], ["y"], constants)
    x = random(3, 4, 5)
    session = polyconv.InferenceSession(model, providers=CUDA)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0).reshape(3, -1))
    where = {step.ops: (step.device, step.copies) for step in session.steps}
    assert where["Relu",] == where["Reshape",] == ("cuda:0", False)
    assert where["Shape",] == ("cpu", False)


UNKNOWN = [node("Conv", ["x", "w0"], ["h"], pads=[1] * 4), node("Softsign", ["h"], ["s"], name="soft"),
        node("Relu", ["s"], ["y"])]  # fmt: skip


def unknown_network() -> onnx.ModelProto:
    """A node in the middle that has no kernel on a GPU."""
    return onnx_model(UNKNOWN, [info("x", [1, 3, 6, 5])], ["y"], {"w0": weights(8, 3, 3, 3)})


def test_a_node_without_a_kernel_is_named() -> None:
    said = r"1 node has no kernel on a GPU: Softsign node 'soft' \(Softsign is not computed here\).*'CPUExecutionProv"
    with pytest.raises(Unsupported, match=said):
        polyconv.InferenceSession(unknown_network(), providers=CUDA)
    options = polyconv.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(Unsupported, match="'soft'"):
        polyconv.InferenceSession(unknown_network(), options, providers=MIXED)


def test_a_node_without_a_kernel_runs_on_the_cpu_when_asked() -> None:
    x = random(1, 3, 6, 5)
    session = polyconv.InferenceSession(unknown_network(), providers=MIXED, accuracy="strict")
    got = session.run(None, {"x": x})[0]
    assert complaint(enclosed(unknown_network(), {"x": x})["y"], got) is None
    assert [(step.ops, step.device, step.copies) for step in session.steps] == [
        (("Conv",), "cuda:0", False), (("Softsign",), "cpu", True), (("Relu",), "cuda:0", False),
    ]  # fmt: skip
    assert session.get_providers() == MIXED


def test_no_gpu_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyconv.gpu.driver._loaded", lambda: "the NVIDIA driver finds no GPU")
    polyconv.gpu.device.device.cache_clear()
    with pytest.raises(Unsupported, match="is asked for alone, and the NVIDIA driver finds no GPU; add 'CPUExec"):
        polyconv.InferenceSession(residual_network(), providers=CUDA)
    with pytest.warns(IgnoredWarning, match="no effect: the NVIDIA driver finds no GPU; nodes run on the CPU"):
        session = polyconv.InferenceSession(residual_network(), providers=MIXED)
    assert session.get_providers()[0] == "PolyconvExecutionProvider"
    assert "CUDAExecutionProvider" not in polyconv.get_available_providers()


def test_devices_are_checked() -> None:
    assert "CUDAExecutionProvider" in polyconv.get_available_providers()
    with pytest.raises(ArgumentError, match="device_id='1' of CUDAExecutionProvider is no GPU here; give 0 to 0"):
        polyconv.InferenceSession(residual_network(), providers=[(CUDA[0], {"device_id": 1})])
    with pytest.warns(IgnoredWarning, match="'cudnn_conv_algo_search'"):
        polyconv.InferenceSession(residual_network(), None, CUDA, [{"cudnn_conv_algo_search": "DEFAULT"}])
    first_on_cpu = polyconv.InferenceSession(residual_network(), providers=MIXED[::-1])
    assert first_on_cpu.steps[0].device == "cpu"


def test_a_session_moves_to_the_gpu_and_back() -> None:
    session = polyconv.InferenceSession(residual_network())
    want = session.run(None, {"x": X})[0]
    session.set_providers(CUDA)
    assert session.get_providers() == CUDA
    np.testing.assert_allclose(session.run(None, {"x": X})[0], want, rtol=1e-5, atol=1e-5)
    session.set_providers(["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], want)


def test_arrays_on_the_gpu_are_taken_as_they_lie() -> None:
    session = polyconv.InferenceSession(residual_network(), providers=CUDA, accuracy="strict")
    want = session.run(None, {"x": X})[0]
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 1, -1)), -1, 1)
    assert last.strides != X.strides
    for given in (to_gpu(X), to_gpu(last), to_gpu(X[..., ::-1])):
        got = session.run(None, {"x": given})[0]
        if given.strides[-1] > 0:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    flipped = session.run(None, {"x": np.ascontiguousarray(X[..., ::-1])})[0]
    np.testing.assert_allclose(got, flipped, rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"input 'x' has shape \(2, 3, 17\), the model wants"):
        session.run(None, {"x": to_gpu(X[..., 0].copy())})
    with pytest.raises(DtypeError, match="input 'x' has type float64, the model wants"):
        session.run(None, {"x": to_gpu(X.astype(np.float64))})


def test_results_that_are_views_have_memory_of_their_own() -> None:
    model = onnx_model([node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Reshape", ["x", "to"], ["y"])],
                       [info("x", [4, 6])], ["y", "t"], {"to": np.array([6, 4])})  # fmt: skip
    x = random(4, 6)
    there = to_gpu(x)
    session = polyconv.InferenceSession(model, providers=CUDA)
    y, t = session.run(None, {"x": there})
    np.testing.assert_array_equal(y, x.reshape(6, 4))
    np.testing.assert_array_equal(t, x.T)


def test_what_fails_names_its_node() -> None:
    inputs = [info("x", ["n", 3]), info("z", ["n", "m"])]
    model = onnx_model([node("Add", ["x", "z"], ["y"], name="sum")], inputs, ["y"])
    session = polyconv.InferenceSession(model, providers=CUDA)
    with pytest.raises(ArgumentError, match="Add node 'sum': operands of the shapes"):
        session.run(None, {"x": random(2, 3), "z": random(2, 4)})


def test_profiles_have_times_of_steps(tmp_path: Any) -> None:
    options = polyconv.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = polyconv.InferenceSession(residual_network(), options, providers=CUDA)
    session.run(None, {"x": X})
    assert all(step.seconds is not None for step in session.steps)
    session.end_profiling()


# -- memory that is bound -----------------------------------------------------------------------------


class Foreign:
    """An array of a library on a GPU, as ``__cuda_array_interface__`` shows it."""

    def __init__(self, a: np.ndarray) -> None:
        self.own = to_gpu(a)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.own.__cuda_array_interface__


def test_bound_memory_on_the_gpu() -> None:
    session = polyconv.InferenceSession(residual_network(), providers=CUDA)
    want = session.run(None, {"x": X})[0]
    binding, there = session.io_binding(), to_gpu(X)
    target = GpuArray(want.shape, there.kind)
    binding.bind_input("x", "cuda", 0, np.float32, X.shape, there.address)
    binding.bind_output("y", "cuda", 0, np.float32, want.shape, target.address)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(target.numpy(), want)
    (value,) = binding.get_outputs()
    assert (value.device_name(), value.data_ptr(), value.shape()) == ("cuda", target.address, list(want.shape))
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], want)


def test_results_stay_where_they_are_bound_to_stay() -> None:
    session = polyconv.InferenceSession(residual_network(), providers=CUDA)
    want = session.run(None, {"x": X})[0]
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", polyconv.OrtValue.ortvalue_from_numpy(X, "cuda", 0))
    binding.bind_output("y", "cuda")
    options = polyconv.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    session.run_with_iobinding(binding, options)
    (value,) = binding.get_outputs()
    told = value.__cuda_array_interface__
    assert (value.device_name(), told["shape"], told["data"][0]) == ("cuda", want.shape, value.data_ptr())
    np.testing.assert_array_equal(value.numpy(), want)
    (here,) = session.run_with_ort_values(["y"], {"x": polyconv.OrtValue(Foreign(X).own)})
    assert here.device_name() == "cpu"
    np.testing.assert_array_equal(here.numpy(), want)


def test_memory_of_both_kinds_is_bound_together() -> None:
    session = polyconv.InferenceSession(residual_network(), providers=CUDA)
    want = session.run(None, {"x": X})[0]
    binding, here = session.io_binding(), np.empty_like(want)
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", polyconv.OrtValue(here))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(here, want)
    value = polyconv.OrtValue.ortvalue_from_shape_and_type(list(want.shape), np.float32, "cuda", 0)
    np.testing.assert_array_equal(value.numpy(), 0 * want)
    value.update_inplace(want)
    np.testing.assert_array_equal(np.asarray(value), want)
    binding.bind_ortvalue_output("y", polyconv.OrtValue.ortvalue_from_shape_and_type([2, 9], np.float32, "cuda"))
    with pytest.raises(ArgumentError, match=r"output 'y' has shape \(2, 10\).* to fill has \(2, 9\)"):
        session.run_with_iobinding(binding)


def test_bound_memory_is_checked() -> None:
    on_gpu, on_cpu = (polyconv.InferenceSession(residual_network(), providers=p) for p in (CUDA, None))
    with pytest.raises(ArgumentError, match="no device cuda:1; give a number from 0 to 0"):
        on_gpu.io_binding().bind_input("x", "cuda", 1, np.float32, X.shape, 1)
    with pytest.raises(ArgumentError, match="no device npu:0"):
        on_gpu.io_binding().bind_output("y", "npu")
    binding = on_cpu.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cuda")
    with pytest.raises(ArgumentError, match="bound to CUDA device 0, where the session does not make it"):
        on_cpu.run_with_iobinding(binding)
    with pytest.raises(ArgumentError, match="the input 'x' lies on CUDA device 0, the session computes on the CPU"):
        on_cpu.run(None, {"x": to_gpu(X)})


# -- runs that are alike ------------------------------------------------------------------------------


def test_the_third_of_three_alike_is_one_call(gpu: Libcuda, monkeypatch: pytest.MonkeyPatch) -> None:
    session = polyconv.InferenceSession(residual_network(), providers=CUDA)
    assert session.memory.replay_bytes == 0
    feeds = [X, random(*X.shape, seed=7), X]
    first, second, third = (to_gpu(a) for a in feeds)
    want = [session.run(None, {"x": given})[0] for given in (first, second)]
    assert session.memory.replay_bytes > 0
    calls: list[int] = []
    begin = launches._begin
    monkeypatch.setattr(launches, "_begin", lambda *arguments: calls.append(arguments[3][1]) or begin(*arguments))
    before = len(gpu.launched)
    np.testing.assert_array_equal(session.run(None, {"x": third})[0], want[0])
    assert calls == [len(gpu.launched) - before]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], want[0])
    np.testing.assert_array_equal(session.run(None, {"x": feeds[1]})[0], want[1])


def test_places_between_steps_are_used_again() -> None:
    """A chain of layers needs two places, however long it is."""
    constants = {f"w{i}": weights(8, 8, 1, 1) for i in range(6)}
    nodes = [node("Conv", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}" if i < 5 else "y"]) for i in range(6)]
    session = polyconv.InferenceSession(onnx_model(nodes, [info("x", [1, 8, 9, 7])], ["y"], constants), providers=CUDA)
    x = random(1, 8, 9, 7)
    runs = [session.run(None, {"x": x})[0] for _ in range(3)]
    np.testing.assert_array_equal(runs[2], runs[0])
    one = 8 * 9 * 7 * 4
    assert 0 < session.memory.replay_bytes <= 3 * (one + 64)  # and what the first layer turns channels last


def test_parts_of_networks_are_replayed_with_the_same_bits() -> None:
    for name in PARTS:
        session = run_part(name)
        x = random(2, 3, 6, 5, seed=9)
        there = to_gpu(x)
        want = session.run(None, {"x": there})
        session.run(None, {"x": there})
        assert session.memory.replay_bytes > 0, name
        for got, before in zip(session.run(None, {"x": there}), want, strict=True):
            np.testing.assert_array_equal(got, before)


def test_kernels_that_read_through_tensor_maps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def patch(layer: DeviceLayer, job: Job) -> Form:
        return next(form for form in forms(job) if form.algorithm == "patch")

    monkeypatch.setattr(DeviceLayer, "_chosen", patch)
    constants = {"w0": weights(64, 64, 3, 3), "w1": weights(64, 64, 3, 3)}
    nodes = [node("Conv", ["x", "w0"], ["h"], pads=[1] * 4), node("Conv", ["h", "w1"], ["y"], pads=[1] * 4)]
    model = onnx_model(nodes, [info("x", [1, 64, 8, 8])], ["y"], constants)
    session = polyconv.InferenceSession(model, providers=CUDA)
    last = np.moveaxis(random(1, 8, 8, 64), -1, 1)
    inputs = [to_gpu(last) for _ in range(3)]
    runs = [session.run(None, {"x": given})[0] for given in inputs]
    assert session.memory.replay_bytes > 0
    np.testing.assert_array_equal(runs[2], runs[0])


def test_other_shapes_streams_and_outputs_go_by_steps() -> None:
    session = polyconv.InferenceSession(residual_network(("n", 3, "h", "w")), providers=CUDA)
    other = random(1, 3, 9, 11)
    want = polyconv.InferenceSession(residual_network(("n", 3, "h", "w")), providers=CUDA).run(None, {"x": other})[0]
    for _ in range(3):
        session.run(None, {"x": X})
    np.testing.assert_array_equal(session.run(None, {"x": other})[0], want)
    with on_stream(1 << 20):
        np.testing.assert_array_equal(session.run(None, {"x": other})[0], want)


def test_threads_share_a_session() -> None:
    session = polyconv.InferenceSession(residual_network(), providers=CUDA)
    given = [random(*X.shape, seed=seed) for seed in range(4)]
    want = [session.run(None, {"x": x})[0] for x in given]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: session.run(None, {"x": x})[0], given * 3))
    for at, got in enumerate(found):
        np.testing.assert_array_equal(got, want[at % 4])


# -- floats of 16 bits --------------------------------------------------------------------------------

HALVES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "sum of products": ([node("Mul", ["x", "x"], ["m"]), node("Add", ["m", "c"], ["y"])], {"c": weights(4, 1, 1)}),
    "sigmoid": ([node("Sigmoid", ["x"], ["y"])], {}),
    "clipped": ([node("Clip", ["x", "low", "high"], ["y"])], {"low": np.float32(-0.5), "high": np.float32(1)}),
    "largest": ([node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)], {}),
    "means": ([node("AveragePool", ["x"], ["y"], kernel_shape=[2, 3])], {}),
    "mean": ([node("GlobalAveragePool", ["x"], ["y"])], {}),
    "softmax": ([node("Softmax", ["x"], ["y"], axis=1)], {}),
    "log_softmax": ([node("LogSoftmax", ["x"], ["y"], axis=1)], {}),
    "resized": ([node("Resize", ["x", "", "scales"], ["y"], mode="linear")], {"scales": np.ones(4, np.float32) * 2}),
    "moved": ([node("Transpose", ["x"], ["t"], perm=[0, 2, 1, 3]), node("Concat", ["t", "t"], ["y"], axis=3)], {}),
}  # fmt: skip


def _of(name: str, kind: int) -> onnx.ModelProto:
    nodes, constants = HALVES[name]
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    held = {key: a if key == "scales" else a.astype(np.float16).astype(dtype) for key, a in constants.items()}
    return onnx_model(nodes, [info("x", [2, 4, 7, 6], kind)], ["y"], held)


@pytest.mark.parametrize("name", HALVES)
def test_operators_on_floats_of_16_bits(name: str) -> None:
    """Each node rounds once, by 2^-11 of its result, which is of two summands near 3 at most; sums are of f32."""
    x = random(2, 4, 7, 6, seed=5).astype(np.float16)
    session = polyconv.InferenceSession(_of(name, TensorProto.FLOAT16), providers=CUDA)
    got = session.run(None, {"x": x})[0]
    want = polyconv.InferenceSession(_of(name, TensorProto.DOUBLE)).run(None, {"x": x.astype(np.float64)})[0]
    assert got.dtype == np.float16
    rounded = 2.0**-11 * np.abs(want) + 2.0**-20
    if name == "sum of products":
        rounded += 2.0**-11 * np.abs(x.astype(np.float64)) ** 2 * (1 + 2.0**-11)
    assert (np.abs(got - want) <= rounded).all()


def test_a_network_of_16_bits() -> None:
    """Each of twelve nodes adds 2^-11 of a network whose signs are all positive; sums of products are of f32."""
    model = residual_network()
    halves = onnx.ModelProto()
    halves.CopyFrom(model)
    for tensor in halves.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    halves.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    x = X.astype(np.float16)
    exact = polyconv.InferenceSession(_in_f64(halves)).run(None, {"x": x.astype(np.float64)})[0]
    most = polyconv.InferenceSession(_in_f64(halves, np.abs)).run(None, {"x": np.abs(x).astype(np.float64)})[0]
    session = polyconv.InferenceSession(halves, providers=CUDA)
    got = session.run(None, {"x": x})[0]
    assert {step.device for step in session.steps} == {"cuda:0"}
    assert (np.abs(got - exact) <= 13 * 2.0**-11 * most).all()


@pytest.mark.parametrize("rewrites", ["all", "exact"])
def test_products_of_matrices(rewrites: str) -> None:
    """Small ones too, and where nothing else is rewritten: a GPU has no other kernels for them."""
    constants = {"w": weights(6, 5), "g": weights(5, 4), "b": weights(4)}
    nodes = [
        node("MatMul", ["x", "w"], ["m"]), node("Reshape", ["m", "to"], ["r"]), node("Gemm", ["r", "g", "b"], ["y"]),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("x", [2, 3, 6])], ["y"], {**constants, "to": np.array([6, 5])})
    session = judged(model, {"x": random(2, 3, 6)}, rewrites=rewrites)
    assert {step.device for step in session.steps} == {"cuda:0"}


# -- ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_empty_batches(name: str) -> None:
    nodes, constants = PARTS[name]
    first = node("Conv", ["x", "w0"], ["h"], pads=[1] * 4)
    model = onnx_model([first, *nodes], [info("x", ["n", 3, 6, 5])], ["y"], {"w0": weights(8, 3, 3, 3), **constants})
    here, there = (polyconv.InferenceSession(model, providers=providers) for providers in (None, CUDA))
    x = random(0, 3, 6, 5)
    want = here.run(None, {"x": x})[0]
    for _ in range(3):
        np.testing.assert_array_equal(there.run(None, {"x": x})[0], want, strict=True)


def test_no_memory_left_is_an_error_that_names_the_node() -> None:
    with virtual_gpu(memory=20_000):
        session = polyconv.InferenceSession(residual_network(), providers=CUDA)
        with pytest.raises(polyconv.OutOfMemory, match=r"Conv node .*the GPU has no memory left"):
            session.run(None, {"x": X})
    assert judged(residual_network(), {"x": X}).steps  # and the process goes on
