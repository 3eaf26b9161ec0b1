"""The models that the onnx package brings for tests: node cases, converted networks, light networks.

Each becomes a model as bytes, inputs, and the outputs that its authors expect.  It must not know
who runs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass

__all__ = ["Case", "converted", "difference", "light", "nodes"]

Array = NDArray[Any]

_NODE_FILES = ("conv", "convtranspose", "convinteger", "qlinearconv", "deformconv", "causal_conv_with_state")
# The versions of each operator that take the types of its node cases; cases state the newest only.
_VERSIONS = {
    "Conv": (1, 11, 22), "ConvTranspose": (1, 11, 22), "ConvInteger": (10,), "QLinearConv": (10,),
    "DeformConv": (19, 22), "CausalConvWithState": (27,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One published model with one set of data.

    Parameters
    ----------
    operator : str
        What it is a case of.
    version : int
        Version of that operator, or of the operator set for whole networks.
    name : str
    model : bytes
        The serialised ONNX model.
    feeds : dict
        Inputs by name.
    outputs : list of array
        As expected by its authors.
    rtol, atol : float
        How close, by their own test runner.
    """

    operator: str
    version: int
    name: str
    model: bytes
    feeds: dict[str, Array]
    outputs: list[Array]
    rtol: float = 1e-3
    atol: float = 1e-7


def nodes() -> Iterator[Case]:
    """The direct convolution cases at every legal version, and the causal ones with their expanded forms."""
    from onnx.backend.test.case import node as cases

    for name in _NODE_FILES:
        importlib.import_module(f"onnx.backend.test.case.node.{name}")
    for case in cases._NodeTestCases:
        operator = case.model.graph.node[0].op_type
        if case.name.startswith("test_causal"):
            operator = "CausalConvWithState"
        if operator not in _VERSIONS:
            continue
        inputs, outputs = case.data_sets[0]
        names = [value.name for value in case.model.graph.input]
        for version in _VERSIONS[operator]:
            model = type(case.model)()
            model.CopyFrom(case.model)
            for imported in model.opset_import:
                if imported.domain in ("", "ai.onnx"):
                    imported.version = version
            feeds = dict(zip(names, inputs, strict=True))
            wanted = [np.asarray(o) for o in outputs]
            content = model.SerializeToString()
            yield Case(operator, version, case.name, content, feeds, wanted, case.rtol, case.atol)


def _data() -> Path:
    import onnx

    return Path(onnx.__file__).parent / "backend" / "test" / "data"


def _tensor(path: Path) -> Array:
    import onnx

    return np.asarray(onnx.numpy_helper.to_array(onnx.load_tensor(path)))


def _free_inputs(model: Any) -> list[Any]:
    initialised = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialised]


def converted() -> Iterator[Case]:
    """The convolution models that PyTorch's converter wrote (28), and the two of its operator tests."""
    import onnx

    folders = [
        *_data().glob("pytorch-converted/test_Conv*"),
        *_data().glob("pytorch-operator/test_operator_conv*"),
    ]
    for folder in sorted(folders):
        model = onnx.load(folder / "model.onnx")
        operator = next(n.op_type for n in model.graph.node if n.op_type.startswith("Conv"))
        for data in sorted(folder.glob("test_data_set_*")):
            inputs = [_tensor(path) for path in sorted(data.glob("input_*.pb"))]
            feeds = {value.name: a for value, a in zip(model.graph.input, inputs, strict=False)}
            wanted = [_tensor(path) for path in sorted(data.glob("output_*.pb"))]
            kind = f"{operator} (converted from PyTorch)"
            yield Case(kind, 1, folder.name, model.SerializeToString(), feeds, wanted)


def light() -> Iterator[Case]:
    """The nine light networks; their input counts from 0 to 1, as in the package's own runner."""
    import onnx

    for path in sorted(_data().glob("light/*.onnx")):
        model = onnx.load(path)
        (image,) = _free_inputs(model)
        shape = tuple(d.dim_value or 1 for d in image.type.tensor_type.shape.dim)
        size = int(np.prod(shape))
        feeds = {image.name: (np.arange(size).reshape(shape) / size).astype(np.float32)}
        outputs = [_tensor(p) for p in sorted(path.parent.glob(f"{path.stem}_output_*.pb"))]
        yield Case(
            "light networks", model.opset_import[0].version, path.stem, path.read_bytes(), feeds, outputs
        )


def difference(case: Case, outputs: list[Any]) -> str | None:
    """What the outputs lack by the package's own criterion; None when nothing."""
    if len(outputs) != len(case.outputs):
        return f"{len(outputs)} outputs, expected {len(case.outputs)}"
    for number, (got, want) in enumerate(zip(outputs, case.outputs, strict=True)):
        got = np.asarray(got)
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"output {number} is {got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
        wide = np.float64 if want.dtype.kind == "f" else want.dtype
        if not np.allclose(
            got.astype(wide), want.astype(wide), rtol=case.rtol, atol=case.atol, equal_nan=True
        ):
            worst = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
            return f"output {number} differs by up to {worst:.3g}"
    return None
