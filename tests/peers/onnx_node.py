"""One ONNX node as a model, and what onnxruntime makes of it."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

onnxruntime.set_default_logger_severity(4)


def model(name, opset, inputs, attributes, domain="", outputs=1):
    """One node as a model; inputs are arrays, None where absent."""
    helper = onnx.helper
    known = {f"i{at}": a for at, a in enumerate(inputs) if a is not None}
    types = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in known.items()}
    node = helper.make_node(
        name,
        [f"i{at}" if a is not None else "" for at, a in enumerate(inputs)],
        [f"o{at}" for at in range(outputs)],
        domain=domain,
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, types[n], a.shape) for n, a in known.items()],
        [helper.make_empty_tensor_value_info(f"o{at}") for at in range(outputs)],
    )
    domains = {domain: opset, "": opset if domain == "" else 17}
    imports = [helper.make_opsetid(d, v) for d, v in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), known


def by_onnxruntime(name, opset, inputs, attributes, domain=""):
    """Result of onnxruntime, or its refusal."""
    made, feeds = model(name, opset, inputs, attributes, domain)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            made.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds)[0]
    except Exception as refusal:
        return refusal
