"""Makes a photograph and a bank of image filters, as an ONNX model and as the same OpenVINO IR.

``python examples/make_filter_bank.py FOLDER`` writes photo.png (Eileen Collins, NASA, public domain,
as shipped with scikit-image), filter_bank.onnx, and filter_bank.xml with filter_bank.bin.  The photograph has a margin
of its own reflection, so that the zeros with which convolutions pad stay outside of it.  The bank is one list of
layers, written in each format; the ONNX model takes images of any size:

    smooth    Gaussian blur, 5x5 on every colour                           depthwise
    boxed     box blur, 9x9 on every colour                                depthwise
    sharp     the photograph plus twice its difference to the blur         depthwise + sum, clipped
    half      Gaussian blur, every second pixel                            depthwise, stride 2
    quarter   the same again
    zoomed    quarter, brought back to the size of half by linear steps    depthwise transposed, stride 2
    grey      brightness                                                   1x1
    sobel     |horizontal| + |vertical| gradient                           3x3, then 1x1
    scharr    the same by Scharr's weights                                 3x3, then 1x1
    laplace   second derivative of the blurred brightness                  3x3 after 5x5
    coarse    second derivative over 17 pixels                             3x3, dilation 8
    gabor     stripes of 8 pixels in 8 directions, every second pixel      15x15, stride 2
    strokes   the strongest of them together                               1x1

Gradients are signed and a ReLU keeps one sign, so their absolute value is the sum of two ReLUs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

MARGIN = 16
"""Pixels of reflection around the photograph: more than any filter reaches beyond it, and a multiple of all strides."""


@dataclass(frozen=True)
class Layer:
    """y = activation(convolution(x, weights) + bias + plus)."""

    y: str
    x: str
    weights: Floats  # OIHW; transposed: IOHW
    stride: int = 1
    pads: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    bias: float | None = None
    plus: str | None = None
    activation: str | None = None  # "Relu" or "Clip" (to 0..1)

    @property
    def channels(self) -> int:
        """Channels of the result."""
        return int(self.groups * self.weights.shape[1] if self.transposed else self.weights.shape[0])


# ------------------------------------------------------------------------------------- the filters


def gaussian(taps: int, sigma: float) -> Floats:
    """Two-dimensional bell of sum 1."""
    line = np.exp(-0.5 * ((np.arange(taps) - (taps - 1) / 2) / sigma) ** 2)
    plane = np.outer(line, line)
    return (plane / plane.sum()).astype(np.float32)


def gradient(smoothing: tuple[int, int, int]) -> Floats:
    """+-d/dx and +-d/dy as [4, 1, 3, 3]: (1 2 1) smoothing is Sobel's, (3 10 3) Scharr's."""
    across = np.outer(smoothing, (-1, 0, 1)) / (2 * sum(smoothing))
    return np.stack([across, -across, across.T, -across.T])[:, None].astype(np.float32)


def gabor(taps: int, directions: int, wavelength: float, sigma: float) -> Floats:
    """Cosine waves under a bell, [directions, 1, taps, taps], without response to flat areas."""
    v, u = np.mgrid[:taps, :taps] - (taps - 1) / 2
    bell = np.exp(-(u**2 + v**2) / (2 * sigma**2))
    bank = []
    for angle in np.arange(directions) * math.pi / directions:
        wave = np.cos(2 * math.pi / wavelength * (u * math.cos(angle) + v * math.sin(angle)))
        stripes = bell * wave
        stripes -= bell * (stripes.sum() / bell.sum())
        bank.append(stripes / np.abs(stripes).sum() * 4)
    return np.stack(bank)[:, None].astype(np.float32)


def per_colour(plane: Floats) -> Floats:
    """The same filter for red, green and blue: [3, 1, h, w]."""
    return np.stack([plane[None]] * 3)


def total(channels: int, scale: float) -> Floats:
    """1x1 weights that add all channels up."""
    return np.full((1, channels, 1, 1), scale, np.float32)


def the_bank() -> list[Layer]:
    """The layers, in the order of their computation."""
    blur, box = gaussian(5, 1.1), np.full((9, 9), 1 / 81, np.float32)
    centre = np.zeros((5, 5), np.float32)
    centre[2, 2] = 1
    edges = 2 * (centre - blur)
    tent = np.outer([0.25, 0.75, 0.75, 0.25], [0.25, 0.75, 0.75, 0.25]).astype(np.float32)
    luma = np.array([0.299, 0.587, 0.114], np.float32).reshape(1, 3, 1, 1)
    laplace = np.array([[[[1, 4, 1], [4, -20, 4], [1, 4, 1]]]], np.float32) / 6
    return [
        Layer("smooth", "image", per_colour(blur), pads=2, groups=3),
        Layer("boxed", "image", per_colour(box), pads=4, groups=3),
        Layer("sharp", "image", per_colour(edges), pads=2, groups=3, plus="image", activation="Clip"),
        Layer("half", "image", per_colour(blur), stride=2, pads=2, groups=3),
        Layer("quarter", "half", per_colour(blur), stride=2, pads=2, groups=3),
        Layer("zoomed", "quarter", per_colour(tent), stride=2, pads=1, groups=3, transposed=True),
        Layer("grey", "image", luma),
        Layer("soft", "grey", blur[None, None], pads=2),
        Layer("sobel4", "grey", gradient((1, 2, 1)), pads=1, activation="Relu"),
        Layer("sobel", "sobel4", total(4, 2.0), activation="Clip"),
        Layer("scharr4", "grey", gradient((3, 10, 3)), pads=1, activation="Relu"),
        Layer("scharr", "scharr4", total(4, 2.0), activation="Clip"),
        Layer("laplace", "soft", 3 * laplace, pads=1, bias=0.5, activation="Clip"),
        Layer("coarse", "soft", laplace / 4, pads=8, dilation=8, bias=0.5, activation="Clip"),
        Layer("gabor", "soft", gabor(15, 8, 8.0, 3.5), stride=2, pads=7, activation="Relu"),
        Layer("strokes", "gabor", total(8, 1.0), bias=-0.1, activation="Clip"),
    ]


INNER = ("grey", "soft", "sobel4", "scharr4")
"""Layers that are no outputs of the model."""

Step = tuple[str, list[str], dict[str, Any]]
"""An operator of a format: its name, what it takes beside the result before it, its attributes."""


def chain(y: str, steps: list[Step]) -> Iterator[tuple[str, list[str], str, dict[str, Any]]]:
    """Operator, inputs, result and attributes of each step; the last result is ``y``."""
    before: list[str] = []
    for number, (kind, others, attributes) in enumerate(steps, start=1):
        result = y if number == len(steps) else f"{y}.{number}"
        yield kind, before + others, result, attributes
        before = [result]


# ------------------------------------------------------------------------------------- ONNX


def write_onnx(path: Path, layers: list[Layer]) -> None:
    """Write the bank as an ONNX model, opset 22, of any height and width."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, results = [], []
    constants = {"zero": np.zeros((), np.float32), "one": np.ones((), np.float32)}
    for layer in layers:
        constants[f"{layer.y}.weights"] = layer.weights
        inputs = [layer.x, f"{layer.y}.weights"]
        if layer.bias is not None:
            constants[f"{layer.y}.bias"] = np.full(layer.channels, layer.bias, np.float32)
            inputs.append(f"{layer.y}.bias")
        attributes = {
            "group": layer.groups,
            "strides": [layer.stride] * 2,
            "pads": [layer.pads] * 4,
            "dilations": [layer.dilation] * 2,
        }
        steps: list[Step] = [("ConvTranspose" if layer.transposed else "Conv", inputs, attributes)]
        if layer.plus:
            steps.append(("Add", [layer.plus], {}))
        if layer.activation:
            steps.append((layer.activation, ["zero", "one"] if layer.activation == "Clip" else [], {}))
        for kind, taken, result, given in chain(layer.y, steps):
            nodes.append(helper.make_node(kind, taken, [result], f"{layer.y}/{kind}", **given))
        if layer.y not in INNER:
            shape = [1, layer.channels, None, None]
            results.append(helper.make_tensor_value_info(layer.y, TensorProto.FLOAT, shape))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, "height", "width"])
    tensors = [numpy_helper.from_array(values, name) for name, values in constants.items()]
    graph = helper.make_graph(nodes, "filter_bank", [image], results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


# ------------------------------------------------------------------------------------- OpenVINO IR


ACTIVATIONS: dict[str, Step] = {"Relu": ("ReLU", [], {}), "Clip": ("Clamp", [], {"min": 0, "max": 1})}


class Net:
    """An IR under construction: layers and edges in XML, constants in one block of bytes."""

    def __init__(self, name: str) -> None:
        self.root = ElementTree.Element("net", name=name, version="11")
        self.layers = ElementTree.SubElement(self.root, "layers")
        self.edges = ElementTree.SubElement(self.root, "edges")
        self.blob = bytearray()
        self.made: dict[str, tuple[str, str]] = {}  # tensor -> (layer, port) that makes it

    def add(self, kind: str, name: str, inputs: Sequence[str] = (), **data: object) -> None:
        """Add a layer whose one output is the tensor ``name``."""
        number = str(len(self.layers))
        said = {"id": number, "name": name, "type": kind, "version": "opset1"}
        layer = ElementTree.SubElement(self.layers, "layer", said)
        if data:
            ElementTree.SubElement(layer, "data", {key: self._spell(value) for key, value in data.items()})
        if inputs:
            ports = ElementTree.SubElement(layer, "input")
            for port, tensor in enumerate(inputs):
                ElementTree.SubElement(ports, "port", id=str(port), precision="FP32")
                source, out = self.made[tensor]
                edge = {"from-layer": source, "from-port": out, "to-layer": number, "to-port": str(port)}
                ElementTree.SubElement(self.edges, "edge", edge)
        if kind != "Result":
            port_id = str(len(inputs))
            ports = ElementTree.SubElement(layer, "output")
            ElementTree.SubElement(ports, "port", id=port_id, precision="FP32", names=name)
            self.made[name] = number, port_id

    def constant(self, name: str, values: Floats) -> None:
        """Add a constant; its bytes go to the end of the block."""
        offset, raw = len(self.blob), values.astype("<f4").tobytes()
        self.blob += raw
        shape = ", ".join(map(str, values.shape))
        self.add("Const", name, element_type="f32", shape=shape, offset=offset, size=len(raw))

    @staticmethod
    def _spell(value: object) -> str:
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def write_openvino(path: Path, layers: list[Layer], height: int, width: int) -> None:
    """Write the bank as an OpenVINO IR, version 11, for images of one size; the .bin lies beside it."""
    net = Net("filter_bank")
    net.add("Parameter", "image", element_type="f32", shape=f"1,3,{height},{width}")
    for layer in layers:
        weights, groups = layer.weights, layer.groups
        if groups > 1:  # OpenVINO: the groups are an axis of the weights
            weights = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
        net.constant(f"{layer.y}.weights", weights)
        kind = "ConvolutionBackpropData" if layer.transposed else "Convolution"
        attributes = {
            "strides": [layer.stride] * 2,
            "dilations": [layer.dilation] * 2,
            "pads_begin": [layer.pads] * 2,
            "pads_end": [layer.pads] * 2,
            "auto_pad": "explicit",
        }
        steps: list[Step] = [
            (f"Group{kind}" if groups > 1 else kind, [layer.x, f"{layer.y}.weights"], attributes)
        ]
        if layer.bias is not None:
            net.constant(f"{layer.y}.bias", np.full((1, layer.channels, 1, 1), layer.bias, np.float32))
            steps.append(("Add", [f"{layer.y}.bias"], {"auto_broadcast": "numpy"}))
        if layer.plus:
            steps.append(("Add", [layer.plus], {"auto_broadcast": "numpy"}))
        if layer.activation:
            steps.append(ACTIVATIONS[layer.activation])
        for kind, taken, result, given in chain(layer.y, steps):
            net.add(kind, result, taken, **given)
    for layer in layers:
        if layer.y not in INNER:
            net.add("Result", f"{layer.y}/result", [layer.y])
    path.with_suffix(".bin").write_bytes(net.blob)
    ElementTree.indent(net.root)
    ElementTree.ElementTree(net.root).write(path, encoding="utf-8", xml_declaration=True)


def reflected(photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture [h, w, colours] with a margin of its own reflection."""
    return np.pad(photo, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), mode="symmetric")


def main() -> None:
    """Write photo.png and the bank in both formats."""
    parser = argparse.ArgumentParser(description="Write a photograph and a bank of filters as two models.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder

    from PIL import Image
    from skimage import data

    folder.mkdir(parents=True, exist_ok=True)
    photo = reflected(data.astronaut())
    Image.fromarray(photo).save(folder / "photo.png")
    write_onnx(folder / "filter_bank.onnx", the_bank())
    write_openvino(folder / "filter_bank.xml", the_bank(), *photo.shape[:2])


if __name__ == "__main__":
    main()
