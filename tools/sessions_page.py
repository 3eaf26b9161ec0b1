"""Writes docs/sessions.md, with what of onnxruntime's interface there is: ``python tools/sessions_page.py``."""

from __future__ import annotations

import textwrap
from pathlib import Path
from string import Template

from polyconv.operators.table import OPERATORS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sessions.md"

MISSING = "--"
"""What begins a row of something that is not there."""

INTERFACE: dict[str, dict[str, str]] = {
    "InferenceSession": {
        "run": "yes; tensors of other libraries, lists and OrtValues are fed too",
        "run_async": "yes, in a thread of its own",
        "run_with_iobinding": "yes",
        "run_with_ort_values": "yes; takes onnxruntime's OrtValues and polyconv's, returns polyconv's",
        "io_binding": "yes",
        "get_inputs": "yes", "get_outputs": "yes", "get_overridable_initializers": "yes", "get_modelmeta": "yes",
        "get_session_options": "yes, as a copy",
        "get_providers": "yes: who runs nodes, PolyconvExecutionProvider first, or CUDAExecutionProvider",
        "get_provider_options": "yes; of options device_id of CUDAExecutionProvider counts",
        "set_providers": "yes; convolutions run on polyconv all the same, on the device that is named first",
        "enable_fallback": "accepted: there is nothing to fall back from",
        "disable_fallback": "accepted: there is nothing to fall back from",
        "end_profiling": "yes: a file for trace viewers, with a record of each run and step",
        "get_profiling_start_time_ns": "yes",
        "create_ortvalue_from_shape_and_type": f"{MISSING} OrtValue.ortvalue_from_shape_and_type makes one",
        "get_input_epdevices": f"{MISSING} all memory is the CPU's",
        "get_input_memory_infos": f"{MISSING} all memory is the CPU's",
        "get_output_memory_infos": f"{MISSING} all memory is the CPU's",
        "get_provider_graph_assignment_info": f"{MISSING} `session.nodes` has a record of each node",
        "get_tuning_results": f"{MISSING} polyconv.wisdom keeps what was measured",
        "set_tuning_results": f"{MISSING} polyconv.wisdom keeps what was measured",
        "release_captured_graph": f"{MISSING} of GPUs",
        "run_with_ortvaluevector": f"{MISSING} run_with_ort_values does it",
        "set_ep_dynamic_options": f"{MISSING} of other devices",
    },
    "SessionOptions": {
        "intra_op_num_threads": "yes: most threads of a node",
        "enable_profiling": "yes", "profile_file_prefix": "yes",
        "add_free_dimension_override_by_name": "yes",
        "add_provider": "yes, as `providers`", "has_providers": "yes",
        "add_session_config_entry": "kept; but for session.disable_cpu_ep_fallback a session warns of no effect",
        "get_session_config_entry": "yes",
        "optimized_model_filepath": "warns: no optimised model is written",
        "graph_optimization_level": "ORT_DISABLE_ALL rewrites only what leaves every bit as it is; others warn",
        "execution_mode": "warns, if it is not the default: nodes run one after another",
        "execution_order": "warns, if it is not the default: nodes run in the order of the file",
        "inter_op_num_threads": "warns, if it is not 0: nodes run one after another",
        "enable_cpu_mem_arena": "accepted: there is none", "enable_mem_pattern": "accepted: there is none",
        "enable_mem_reuse": "accepted: values are dropped when their last reader has run",
        "use_deterministic_compute": "accepted: the same bits in either case",
        "use_per_session_threads": "accepted: sessions share polyconv's threads",
        "log_severity_level": "accepted: the logger is named polyconv", "log_verbosity_level": "accepted",
        "logid": "accepted",
        "add_external_initializers": f"{MISSING}", "add_external_initializers_from_files_in_memory": f"{MISSING}",
        "add_initializer": f"{MISSING} a run may feed an initialiser that is also an input",
        "add_free_dimension_override_by_denotation": f"{MISSING} by name",
        "add_provider_for_devices": f"{MISSING} of other devices",
        "clear_ep_context_data_read_func": f"{MISSING} of other devices",
        "set_ep_context_data_read_func": f"{MISSING} of other devices",
        "register_custom_ops_library": f"{MISSING} operators of one's own are not run",
        "set_load_cancellation_flag": f"{MISSING}",
        "set_provider_selection_policy": f"{MISSING} of other devices",
        "set_provider_selection_policy_delegate": f"{MISSING} of other devices",
    },
    "RunOptions": {
        "terminate": "yes: the run ends before its next step, with an `Error`",
        "only_execute_path_to_fetches": "accepted: nothing else is ever computed",
        "log_severity_level": "accepted", "log_verbosity_level": "accepted", "logid": "accepted",
        "add_run_config_entry": "kept, without effect", "get_run_config_entry": "yes",
        "add_active_adapter": f"{MISSING}",
    },
    "IOBinding": {
        "bind_cpu_input": "yes; looked at when it is bound, read at each run", "bind_ortvalue_input": "yes",
        "bind_input": "yes, on the CPU or a GPU (cuda); the caller vouches for the address",
        "bind_output": "yes, on the CPU or a GPU (cuda); the caller vouches for the address, if there is one",
        "bind_ortvalue_output": "yes; results are copied into it",
        "get_outputs": "yes", "copy_outputs_to_cpu": "yes", "clear_binding_inputs": "yes",
        "clear_binding_outputs": "yes", "synchronize_inputs": "yes, on a GPU",
        "synchronize_outputs": "yes, on a GPU",
        "get_outputs_as_ortvaluevector": f"{MISSING} get_outputs does it",
    },
    "OrtValue": {
        "ortvalue_from_numpy": "yes, on the CPU or a GPU (cuda)", "ortvalue_from_numpy_with_onnx_type": "yes",
        "ortvalue_from_shape_and_type": "yes, on the CPU or a GPU (cuda); zeros", "from_dlpack": "yes",
        "numpy": "yes; bfloat16 too",
        "shape": "yes", "data_type": "yes", "element_type": "yes", "device_name": "yes: cpu or cuda", "data_ptr": "yes",
        "tensor_size_in_bytes": "yes", "has_value": "yes", "is_tensor": "yes", "is_tensor_sequence": "yes",
        "is_sparse_tensor": "yes: never", "update_inplace": "yes; shape and type must be the same",
        "as_sparse_tensor": f"{MISSING} there are no sparse tensors",
        "ort_value_from_sparse_tensor": f"{MISSING} there are no sparse tensors",
    },
    "ModelMetadata": {
        name: "yes"
        for name in ("custom_metadata_map", "description", "domain", "graph_description", "graph_name",
                     "producer_name", "version")
    },
    "NodeArg": {"name": "yes", "shape": "yes", "type": "yes"},
}  # fmt: skip
"""Public names of onnxruntime's classes, and what they are here; a test compares both sides with this table."""

TEXT = Template("""\
# Sessions

<!-- Made by tools/sessions_page.py: edit there. -->

`polyconv.InferenceSession` takes the place of onnxruntime's: a path, the bytes of a file or an `onnx.ModelProto` goes
in, and `run(output_names, feeds)` is the same. Convolutions and the operators that stand round them
[run on polyconv](#operators-on-kernels-of-their-own), other nodes on what is installed; `session.nodes` says which ran
where, and why there. With `providers=["CUDAExecutionProvider"]` all of it runs on an NVIDIA GPU
([docs/gpu.md](gpu.md#model-files)).

```python
import numpy as np
import onnx.helper

import polyconv

node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
weights = onnx.numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")
ends = [onnx.helper.make_tensor_value_info(name, 1, [1, c, "h", "w"]) for name, c in (("x", 3), ("y", 8))]
graph = onnx.helper.make_graph([node], "example", ends[:1], ends[1:], [weights])
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])

options = polyconv.SessionOptions()
options.intra_op_num_threads = 1
session = polyconv.InferenceSession(model, options, providers=["CPUExecutionProvider"])
print(session)

x = np.ones((1, 3, 16, 16), np.float32)
[y] = session.run(["y"], {"x": x})

binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_ortvalue_output("y", polyconv.OrtValue(np.empty_like(y)))
session.run_with_iobinding(binding)
assert (binding.get_outputs()[0].numpy() == y).all()
```

What is asked for and cannot be honoured is named by an `IgnoredWarning`, once for each line of code. A session pickles
and copies as what it was made from: a path, or the file's bytes, which it keeps for that.

onnxruntime's own `SessionOptions`, `RunOptions` and `OrtValue` are taken as well. Of such `SessionOptions` only
attributes can be read: free dimensions, configuration entries and initialisers that were added to them are not seen.

Errors are polyconv's: a missing or unknown name or a wrong shape is an `ArgumentError`, another type a `DtypeError`;
these are also `ValueError` and `TypeError`. Where `providers` is no list of names, onnxruntime prints a line and goes
on; here that is an `ArgumentError`.

## Operators on kernels of their own

These operators of ONNX's main domain run on generated kernels, in f32 and f64; those that compare, quantise or add
elements in integers too, and those that move elements in every type:

$operators

Neighbouring element-wise operators are one pass: each element is read once and written once; a pass from bytes to bytes
looks them up in a table, which it makes itself, so that bits are the same. Reshapes, slices, splits
and expansions are views of their input. `Resize` takes the nearest element, or interpolates linearly or by cubics
along any axes, in all ways to count places that ONNX has; places are computed in float64, as in ONNX's reference,
where other engines round them to 32 bits: a nearest neighbour may differ where a scale has no exact value. What is
rounded once has the same bits as in NumPy; `Exp` and its kin are within 4 units in the last place; sums are in an
order of their own. `LRN` runs here for a `beta` of 0.25, 0.5, 0.75 or 1, on the CPU. A node in another type, or with
parameters that only a run knows, runs on what is installed; `reason` of its record in `session.nodes` says so, and
`polyconv explain MODEL` lists all.

Layers of an OpenVINO IR that mean the same run on the same kernels: element-wise ones, `MaxPool`, `AvgPool`,
reductions, `Softmax`, `Concat`, `Split`, `Transpose`, `Reshape`, `Slice`, `StridedSlice`, `Pad`, `DepthToSpace`,
`SpaceToDepth`, `Interpolate`, `MVN`, `LRN` and others, with weights of 16 bits too. They are put in terms of ONNX
first, so that the rewrites of networks fit both formats. A `MatMul` with constant weights is a convolution of 1x1
windows. A `FakeQuantize` to 256 levels of one range, or of one a channel, whose zero point is a whole number, is
`QuantizeLinear` and `DequantizeLinear`, and so are weights that are made of bytes or rounded to levels: what follows
is that of [any quantised network](explanation/networks.md#quantised-networks). `rewrites="exact"` leaves both to
OpenVINO. Where OpenVINO does otherwise than ONNX, as when the last window of a pool
begins in padding (`rounding_type="ceil"`), the layer stays with OpenVINO, and `reason` says why.

## What of onnxruntime's interface there is

$tables
`polyconv.get_available_providers`, `polyconv.GraphOptimizationLevel` and `polyconv.ExecutionMode` are there too.
""")


def page() -> str:
    """The page's text."""
    tables = []
    for name, rows in INTERFACE.items():
        lines = []
        for member, words in rows.items():
            said = f"no: {words[len(MISSING) :].strip()}".removesuffix(": ") if words.startswith(MISSING) else words
            lines.append(f"| `{member}` | {said} |")
        tables.append(f"### {name}\n\n| name | here |\n|---|---|\n" + "\n".join(lines) + "\n")
    besides = "On a [GPU](gpu.md#model-files) `MatMul` does besides."
    operators = textwrap.fill(", ".join(f"`{name}`" for name in sorted(OPERATORS)) + f". {besides}", 120)
    return TEXT.substitute(tables="\n".join(tables), operators=operators)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
