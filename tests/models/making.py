"""Small model files for the tests: ONNX from nodes, OpenVINO IR from the openvino package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, inliner, numpy_helper

from polyconv.conformance.enclosure_rules import enclosed
from polyconv.conformance.graph_fuzz import complaint
from polyconv.models import InferenceSession

FLOAT = TensorProto.FLOAT


def info(name: str, shape: Sequence[Any] | None = None, kind: int = FLOAT) -> ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto | str],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    domains: Mapping[str, int] | None = None,
    ir_version: int = 8,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of some nodes."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        list(inputs),
        [ValueInfoProto(name=o) if isinstance(o, str) else o for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)] + [
        helper.make_opsetid(d, v) for d, v in (domains or {}).items()
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=list(functions))


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Values of about 1."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def onnxruntime_run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime makes of a whole model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(feeds))


def save_ir(model: Any, folder: Any) -> Any:
    """Write an openvino.Model as model.xml and model.bin; the path of the first."""
    import openvino

    path = folder / "model.xml"
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def openvino_run(path: Any, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What OpenVINO makes of a whole IR, in f32."""
    import openvino

    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(path), "CPU", config)
    results = compiled(list(feeds))
    return [np.array(results[port]) for port in compiled.outputs]


def session(model: onnx.ModelProto, **options: object) -> InferenceSession:
    """A session of ours on a model's bytes."""
    return InferenceSession(model.SerializeToString(), **options)


def engines(made: InferenceSession) -> dict[str, str]:
    """Who runs each node, by the node's name."""
    return {record.name: record.engine for record in made.nodes}


def steps(made: InferenceSession) -> list[str]:
    """What each step of a session stands for."""
    found: dict[int, list[str]] = {}
    for record in made.nodes:
        if record.step is not None:
            found.setdefault(record.step, []).append(record.op)
    return ["+".join(names) for _, names in sorted(found.items())]


def close(model: onnx.ModelProto, feeds: dict[str, np.ndarray], **options: object) -> InferenceSession:
    """Hold a model's outputs, and onnxruntime's, against the bounds derived for them; the session that ran it.

    Where a node has a subgraph nothing is derived, and both must be equal.
    """
    made = session(model, **options)
    results = zip(made.get_outputs(), made.run(None, feeds), onnxruntime_run(model, feeds), strict=True)
    if any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute):
        for _, ours, theirs in results:
            np.testing.assert_array_equal(ours, theirs, strict=True)
        return made
    bounds = enclosed(inliner.inline_local_functions(model), feeds)
    for value, ours, theirs in results:
        assert complaint(bounds[value.name], ours) is None
        assert complaint(bounds[value.name], theirs) is None
    return made
