"""The transposed-convolution grid: every way to ask for an output extent, put to three engines.

Output extents 3 to 11, four kinds of auto_pad, pads or output_shape or output_padding or nothing,
for several windows and groups; ours must equal theirs unless a named row explains the difference.
It must not know how padding is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.conformance.peers import GuestError, Peer
from polyconv.dataclass import dataclass
from polyconv.dialects import onnx as onnx_dialect
from polyconv.dialects import openvino as openvino_dialect
from polyconv.errors import Error
from polyconv.problem.extents import effective_kernel

__all__ = [
    "EXPLANATIONS",
    "Case",
    "Comparison",
    "Disagreement",
    "against_importer",
    "against_onnxruntime",
    "against_opset",
    "cases",
]

Array = NDArray[Any]

_EXTENT = 3
_OUTPUTS = range(3, 12)
# kernel, stride, dilation, groups: ordinary, even kernel, kernel below the stride, dilated, grouped
_WINDOWS = ((3, 2, 1, 1), (4, 2, 1, 1), (1, 3, 1, 1), (2, 3, 2, 1), (3, 3, 1, 1), (3, 2, 1, 2))
_FORMS: tuple[dict[str, list[int]], ...] = (
    {}, {"pads": [1, 0]}, {"pads": [0, 1]}, {"pads": [1, 1]}, {"output_padding": [1]},
    *({"output_shape": [o]} for o in _OUTPUTS),
    *({"output_shape": [o], "output_padding": [1]} for o in _OUTPUTS),
    *({"output_shape": [o], "pads": [1, 0]} for o in _OUTPUTS),
)  # fmt: skip
_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Case:
    """One node of the grid.

    Parameters
    ----------
    kernel, stride, dilation, groups : int
    auto_pad : str
        As ONNX spells it.
    form : dict
        The further attributes.
    """

    kernel: int
    stride: int
    dilation: int
    groups: int
    auto_pad: str
    form: dict[str, list[int]]

    def __str__(self) -> str:
        asked = " ".join(f"{name}={value}" for name, value in self.form.items())
        return (
            f"k{self.kernel} s{self.stride} d{self.dilation} g{self.groups} {self.auto_pad} {asked}".rstrip()
        )

    @property
    def natural(self) -> int:
        """Output extent before any cropping."""
        extra = self.form.get("output_padding", [0])[0]
        return (_EXTENT - 1) * self.stride + effective_kernel(self.kernel, self.dilation) + extra

    @property
    def asked(self) -> int | None:
        """Output extent asked for, if any."""
        return self.form["output_shape"][0] if "output_shape" in self.form else None

    @property
    def operands(self) -> tuple[Array, Array]:
        """Input and weights: powers, so that every output names the products in it."""
        g = self.groups
        x = np.array([[[1, 10, 100], [2, 20, 200]][:g]], np.float32)
        w = np.arange(1, g * 2 * self.kernel + 1, dtype=np.float32).reshape(g, 2, self.kernel)
        return x, w


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A case that an engine answers differently.

    Parameters
    ----------
    engine, ours, theirs : str
    reason : str or None
        Name of the row of ``EXPLANATIONS`` that concerns the case.
    """

    engine: str
    ours: str
    theirs: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.engine}: ours {self.ours}, theirs {self.theirs}"


Comparison = Callable[[Case, Peer], Disagreement | None]
"""What puts a case to an engine; None when it agrees."""


def cases() -> Iterator[Case]:
    """All nodes of the grid."""
    for window, auto_pad, form in itertools.product(_WINDOWS, _AUTO_PADS, _FORMS):
        yield Case(*window, auto_pad, form)


def _answer(compute: Callable[[], Any]) -> Array | str:
    try:
        result: Array = compute()
    except Error as error:
        return f"{type(error).__name__}: {error}"
    return result


def _ours(case: Case, semantics: str) -> Array | str:
    x, w = case.operands
    form: dict[str, Any] = {**case.form}
    return _answer(
        lambda: onnx_dialect.ConvTranspose(
            version=11, semantics=semantics, auto_pad=case.auto_pad, strides=[case.stride],
            dilations=[case.dilation], group=case.groups, **form,
        )(x, w)
    )  # fmt: skip


def _model(case: Case) -> tuple[bytes, dict[str, Array]]:
    from onnx import TensorProto, helper

    x, w = case.operands
    node = helper.make_node(
        "ConvTranspose", ["X", "W"], ["Y"], auto_pad=case.auto_pad, strides=[case.stride],
        dilations=[case.dilation], group=case.groups, **case.form,
    )  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("X", TensorProto.FLOAT, x.shape),
        helper.make_tensor_value_info("W", TensorProto.FLOAT, w.shape),
    ]
    graph = helper.make_graph(
        [node], "grid", inputs, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    return bytes(model.SerializeToString()), {"X": x, "W": w}


def _theirs(case: Case, peer: Peer) -> Array | str:
    try:
        result: Array = peer.call("run_model", *_model(case))[0]
    except GuestError as error:
        return str(error)
    return result


def _beyond_a_stride(case: Case) -> bool:
    """Asked for more than a forward convolution could come from: floor((o + total - ke) / s) + 1 != n."""
    if case.asked is None:
        return False
    total = max(0, case.natural - case.asked)
    reach = effective_kernel(case.kernel, case.dilation)
    return (case.asked + total - reach) // case.stride + 1 != _EXTENT


def _cropped(case: Case) -> int:
    """How much of the natural extent the one asked for cuts."""
    return 0 if case.asked is None else max(0, case.natural - case.asked)


EXPLANATIONS: tuple[tuple[str, str, Callable[[Case], bool]], ...] = (
    (
        "onnxruntime", "output_shape of a stride or more beyond the products is rejected",
        _beyond_a_stride,
    ),
    (
        "openvino importer", "auto_pad silently wins over pads",
        lambda case: "pads" in case.form and case.auto_pad != "NOTSET",
    ),
    (
        "openvino importer", "SAME_UPPER with output_shape puts the odd element at the begin",
        lambda case: case.auto_pad == "SAME_UPPER" and _cropped(case) % 2 == 1,
    ),
    (
        "openvino importer", "grouped with output_shape drops the begin pad",
        lambda case: case.groups > 1 and _cropped(case) > 0,
    ),
    (
        "openvino", "grouped with an output_shape input ignores pads_begin",
        lambda case: (
            case.groups > 1 and case.auto_pad == "NOTSET" and {"pads", "output_shape"} <= set(case.form)
        ),
    ),
)  # fmt: skip
"""By engine: the deviation's name, and the cases that it concerns."""


def _difference(case: Case, engine: str, ours: Array | str, theirs: Array | str) -> Disagreement | None:
    if isinstance(ours, str) and isinstance(theirs, str):
        return None
    if not isinstance(ours, str) and not isinstance(theirs, str) and np.array_equal(ours, theirs):
        return None
    reasons = (name for e, name, concerns in EXPLANATIONS if e == engine and concerns(case))
    return Disagreement(engine, _shown(ours), _shown(theirs), next(reasons, None))


def _shown(answer: Array | str) -> str:
    return answer[:200] if isinstance(answer, str) else str(answer.tolist())


def against_onnxruntime(case: Case, peer: Peer) -> Disagreement | None:
    """Our main-domain ConvTranspose against ONNX Runtime's."""
    return _difference(case, "onnxruntime", _ours(case, "onnx"), _theirs(case, peer))


def against_importer(case: Case, peer: Peer) -> Disagreement | None:
    """Our main-domain ConvTranspose against OpenVINO's reading of the same model."""
    return _difference(case, "openvino importer", _ours(case, "onnx"), _theirs(case, peer))


def against_opset(case: Case, peer: Peer) -> Disagreement | None:
    """Our ConvolutionBackpropData (grouped: GroupConvolutionBackpropData) against OpenVINO's own."""
    x, w = case.operands
    begin, end = case.form.get("pads", [0, 0])
    attributes: dict[str, Any] = {
        "strides": [case.stride], "pads_begin": [begin], "pads_end": [end], "dilations": [case.dilation],
        "auto_pad": case.auto_pad.lower().replace("notset", "explicit"),
        "output_padding": case.form.get("output_padding", [0]),
    }  # fmt: skip
    shape = case.form.get("output_shape")
    name = "ConvolutionBackpropData" if case.groups == 1 else "GroupConvolutionBackpropData"
    if case.groups > 1:
        w = w.reshape(case.groups, 1, *w.shape[1:])
    more = () if shape is None else (np.array(shape, np.int64),)
    ours = _answer(lambda: getattr(openvino_dialect, name)(**attributes)(x, w, *more))
    try:
        theirs: Array | str = peer.call("run_backprop", x, w, attributes, shape)
    except GuestError as error:
        theirs = str(error)
    return _difference(case, "openvino", ours, theirs)
