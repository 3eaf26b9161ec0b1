"""The three layers that OpenVINO's Convolution-1 page prints, completed to real IR files.

A page shows one ``<layer>`` with its ports; here it gets a Parameter, constant filters in a .bin, a
Result and edges.  It must not know who reads the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.problem.problem import Problem

__all__ = ["LAYERS", "LayerIR", "written"]


@dataclass(frozen=True, slots=True)
class LayerIR:
    """One printed layer.

    Parameters
    ----------
    name : str
    data, filters, output : tuple of int
        The dims of its ports, as printed.
    attributes : str
        Its ``<data>`` attributes, as printed.
    problem : str
        The same layer as a problem.
    """

    name: str
    data: tuple[int, ...]
    filters: tuple[int, ...]
    output: tuple[int, ...]
    attributes: str
    problem: str

    @property
    def parsed(self) -> Problem:
        """Its problem."""
        return Problem.parse(self.problem)


LAYERS: tuple[LayerIR, ...] = (
    LayerIR(
        "1-D", (1, 5, 128), (16, 5, 4), (1, 16, 63),
        'dilations="1" pads_begin="0" pads_end="0" strides="2" auto_pad="valid"',
        "conv f32 NCHW n1 c5 i128 m16 k4 s2",
    ),
    LayerIR(
        "2-D", (1, 3, 224, 224), (64, 3, 5, 5), (1, 64, 224, 224),
        'dilations="1,1" pads_begin="2,2" pads_end="2,2" strides="1,1" auto_pad="explicit"',
        "conv f32 NCHW n1 c3 i224x224 m64 k5x5 p2",
    ),
    LayerIR(
        "3-D", (1, 7, 320, 320, 320), (32, 7, 3, 3, 3), (1, 32, 106, 106, 106),
        'dilations="2,2,2" pads_begin="0,0,0" pads_end="0,0,0" strides="3,3,3" auto_pad="explicit"',
        "conv f32 NCHW n1 c7 i320x320x320 m32 k3x3x3 s3 d2",
    ),
)  # fmt: skip
"""As printed; the third reads 0.9 GB."""


def _port(number: int, shape: tuple[int, ...]) -> str:
    dims = "".join(f"<dim>{extent}</dim>" for extent in shape)
    return f'<port id="{number}" precision="FP32">{dims}</port>'


def written(layer: LayerIR, filters: NDArray[np.float32], folder: Path) -> Path:
    """Write a layer's .xml and .bin into a folder; the .xml's path is returned."""
    data, weights, output = (_port(n, s) for n, s in ((0, layer.data), (1, layer.filters), (2, layer.output)))
    listed = [",".join(map(str, shape)) for shape in (layer.data, layer.filters)]
    text = f"""<?xml version="1.0"?>
<net name="convolution" version="11">
  <layers>
    <layer id="0" name="data" type="Parameter" version="opset1">
      <data shape="{listed[0]}" element_type="f32"/><output>{data}</output>
    </layer>
    <layer id="1" name="filters" type="Const" version="opset1">
      <data element_type="f32" shape="{listed[1]}" offset="0" size="{filters.nbytes}"/>
      <output>{_port(0, layer.filters)}</output>
    </layer>
    <layer id="2" name="convolution" type="Convolution" version="opset1">
      <data {layer.attributes}/><input>{data}{weights}</input><output>{output}</output>
    </layer>
    <layer id="3" name="result" type="Result" version="opset1"><input>{_port(0, layer.output)}</input></layer>
  </layers>
  <edges>
    <edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
    <edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
    <edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>
  </edges>
</net>
"""
    path = folder / f"{layer.name}.xml"
    path.write_text(text)
    path.with_suffix(".bin").write_bytes(np.ascontiguousarray(filters).tobytes())
    return path
