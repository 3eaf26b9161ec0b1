"""Calls captured into CUDA graphs: what a warm call asks of the driver, and that replays compute what calls compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from on_virtual_gpu import seeded
from test_sessions import CUDA, X, info, node, onnx_model, part, random, residual_network
from virtual_gpu import Libcuda, virtual_gpu

import polyconv
from polyconv.errors import ArgumentError, Error
from polyconv.gpu.arrays import GpuArray, on_stream, to_gpu
from polyconv.gpu.driver import driver

STREAM = 1 << 20
RNG = seeded("graphs")


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Libcuda]:
    with virtual_gpu() as found:
        yield found


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


LAYERS = [(4, 6, 1, "NCHW"), (8, 8, 1, "NHWC"), (20, 24, 1, "NCHW"), (32, 64, 1, "NHWC"), (8, 8, 8, "NCHW")]
"""Channels, groups and layouts: few channels, none moved, planes that are turned, patches, depthwise."""


@pytest.mark.parametrize(("c", "m", "groups", "layout"), LAYERS)
def test_a_warm_call_only_launches(c: int, m: int, groups: int, layout: str, gpu: Libcuda) -> None:
    """All launches are on the stream that is current; nothing is taken, given back, copied or waited for."""
    layer = polyconv.Conv(to_gpu(drawn(m, c // groups, 3, 3)), pads=1, groups=groups, layout=layout)
    shape, wide = ((1, c, 8, 9), (1, m, 8, 9)) if layout == "NCHW" else ((1, 8, 9, c), (1, 8, 9, m))
    x, out = to_gpu(drawn(*shape)), to_gpu(np.zeros(wide, np.float32))
    with on_stream(STREAM):
        layer(x, out=out)
        want = out.numpy()
        gpu.called.clear()
        gpu.streams.clear()
        layer(x, out=out)
        assert set(gpu.called) <= {"cuStreamIsCapturing"}  # which only asks
        assert set(gpu.streams) == {STREAM}
        with gpu.capture(STREAM) as graph:
            layer(x, out=out)
        assert len(graph) == len(gpu.streams) // 2
    again = drawn(*shape)
    driver().upload(x.address, again.tobytes())
    driver().upload(out.address, bytes(want.nbytes))
    gpu.replay(graph)
    found = out.numpy()
    assert not np.array_equal(found, want)
    np.testing.assert_array_equal(found, layer(to_gpu(again)).numpy())


def test_graphs_have_memory_of_their_own(gpu: Libcuda) -> None:
    """A copy of the input that a graph makes lies where no later call of the layer writes."""
    layer = polyconv.Conv(to_gpu(drawn(24, 20, 3, 3)), pads=1)
    inputs = [to_gpu(drawn(1, 20, 6, 5)) for _ in range(3)]
    results = [GpuArray((1, 24, 6, 5), inputs[0].kind) for _ in inputs]
    graphs = []
    with on_stream(STREAM):
        layer(inputs[0], out=results[0])
        want = results[0].numpy()
        for x, y in zip(inputs[:2], results, strict=False):  # the second has no warm memory left
            with gpu.capture(STREAM) as graph:
                layer(x, out=y)
            graphs.append(graph)
        layer(inputs[2], out=results[2])
    turned, ordinary = graphs[0]
    gpu.replay([turned])
    layer(inputs[2], out=results[2])
    gpu.replay(graphs[1])
    gpu.replay([ordinary])
    np.testing.assert_array_equal(results[0].numpy(), want)


def test_what_cannot_be_captured_says_what_to_do(gpu: Libcuda) -> None:
    """A first call, which makes code and packs weights; and a result that polyconv's own memory would be taken for."""
    x = to_gpu(drawn(1, 8, 6, 5))
    layer = polyconv.Conv(to_gpu(drawn(8, 8, 3, 3)), pads=1)
    out = GpuArray((1, 8, 6, 5), x.kind)
    told = pytest.raises(Error, match="make the same call once before the capture")
    with on_stream(STREAM), gpu.capture(STREAM), told:
        layer(x, out=out)
    with on_stream(STREAM):
        layer(x, out=out)
        with gpu.capture(STREAM), pytest.raises(Error, match="with memory for its results"):
            layer(x)
        with gpu.capture(STREAM), pytest.raises(Error, match="copying from the CPU's memory"):
            driver().upload(x.address, bytes(4), STREAM)
    np.testing.assert_array_equal(layer(x).numpy(), out.numpy())


# -- sessions -----------------------------------------------------------------------------------------

ASKS = {"cuStreamIsCapturing", "cuCtxSetCurrent"}
"""What changes nothing on the GPU."""


def bound(session: polyconv.InferenceSession, x: GpuArray, y: GpuArray) -> polyconv.IOBinding:
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, x.dtype, x.shape, x.address)
    binding.bind_output("y", "cuda", 0, y.dtype, y.shape, y.address)
    return binding


@pytest.mark.parametrize("name", ["", "squeeze and excite", "branches", "turned and normalised", "transposed"])
def test_results_are_written_into_bound_memory(name: str, gpu: Libcuda) -> None:
    """From the third of three runs on there are launches only, whatever kernel a network ends in."""
    model, x = (part(name), random(2, 3, 6, 5, seed=4)) if name else (residual_network(), X)
    session = polyconv.InferenceSession(model, providers=CUDA)
    want = session.run(None, {"x": x})[0]
    there, target = to_gpu(x), to_gpu(np.zeros_like(want))
    binding, options = bound(session, there, target), polyconv.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for _ in range(2):
        session.run_with_iobinding(binding, options)
    driver().upload(target.address, bytes(want.nbytes))
    gpu.called.clear()
    session.run_with_iobinding(binding, options)
    assert set(gpu.called) <= ASKS
    np.testing.assert_array_equal(target.numpy(), want)
    assert binding.get_outputs()[0].data_ptr() == target.address


def test_bound_memory_of_input_and_output_may_be_the_same() -> None:
    """A result is not written over what is still read."""
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), node("Add", ["x", "t"], ["y"])]
    session = polyconv.InferenceSession(onnx_model(nodes, [info("x", [1, 2, 5, 5])], ["y"], {}), providers=CUDA)
    x = random(1, 2, 5, 5)
    there = to_gpu(x)
    binding = bound(session, there, there)
    for _ in range(4):
        x = x + x.swapaxes(2, 3)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(there.numpy(), x)


def test_memory_that_is_not_aligned_or_does_not_fit() -> None:
    session = polyconv.InferenceSession(part("branches"), providers=CUDA)
    x = random(2, 3, 6, 5, seed=4)
    want, there = session.run(None, {"x": x})[0], to_gpu(x)
    whole = to_gpu(np.zeros(want.size + 1, np.float32))
    for _ in range(3):
        target = GpuArray(want.shape, whole.kind, memory=whole.memory, offset=4)
        session.run_with_iobinding(bound(session, there, target))
        np.testing.assert_array_equal(target.numpy(), want)
    small = GpuArray((2, 16, 6, 4), whole.kind, memory=whole.memory)
    for _ in range(3):
        with pytest.raises(ArgumentError, match=r"the memory it is to fill has \(2, 16, 6, 4\)"):
            session.run_with_iobinding(bound(session, there, small))


def test_a_captured_run(gpu: Libcuda) -> None:
    session = polyconv.InferenceSession(residual_network(), providers=CUDA)
    other = random(*X.shape, seed=8)
    want, of_other = (session.run(None, {"x": x})[0] for x in (X, other))
    there, target = to_gpu(X), to_gpu(np.zeros_like(want))
    binding = bound(session, there, target)
    with on_stream(STREAM), gpu.capture(STREAM), pytest.raises(Error, match="run the session twice"):
        session.run_with_iobinding(binding)
    for _ in range(2):
        session.run_with_iobinding(binding)
    with on_stream(STREAM), gpu.capture(STREAM) as graph:
        session.run_with_iobinding(binding)
    half = len(graph) // 2
    driver().upload(there.address, other.tobytes())
    gpu.replay(graph[:half])
    for _ in range(3):  # runs meanwhile have other memory between their steps
        np.testing.assert_array_equal(session.run(None, {"x": to_gpu(X)})[0], want)
    gpu.replay(graph[half:])
    np.testing.assert_array_equal(target.numpy(), of_other)
