"""Damaged and hostile OpenVINO IR files: a polyconv error that names the culprit, soon, and nothing worse."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from making import random

from polyconv.errors import Error, ModelError, Unsupported
from polyconv.models import InferenceSession

IR = """<?xml version="1.0"?>
<net name="t" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1,3,9" element_type="f32"/>
 <output><port id="0" precision="FP32" names="x"/></output></layer>
<layer id="1" name="w" type="Const" version="opset1">
 <data element_type="f32" shape="4, 3, 3" offset="0" size="144"/>
 <output><port id="0" precision="FP32"/></output></layer>
<layer id="2" name="conv" type="Convolution" version="opset1">
 <data strides="1" dilations="1" pads_begin="1" pads_end="1" auto_pad="explicit"/>
 <input><port id="0" precision="FP32"/><port id="1" precision="FP32"/></input>
 <output><port id="2" precision="FP32"/></output></layer>
<layer id="3" name="bias" type="Const" version="opset1">
 <data element_type="f32" shape="1,4,1" offset="144" size="16"/>
 <output><port id="0" precision="FP32"/></output></layer>
<layer id="4" name="add" type="Add" version="opset1"><data auto_broadcast="numpy"/>
 <input><port id="0"/><port id="1"/></input><output><port id="2"/></output></layer>
<layer id="5" name="relu" type="ReLU" version="opset1">
 <input><port id="0"/></input><output><port id="1"/></output></layer>
<layer id="6" name="out" type="Result" version="opset1"><input><port id="0"/></input></layer>
</layers><edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="4" to-port="0"/>
<edge from-layer="3" from-port="0" to-layer="4" to-port="1"/>
<edge from-layer="4" from-port="2" to-layer="5" to-port="0"/>
<edge from-layer="5" from-port="1" to-layer="6" to-port="0"/>
</edges></net>"""
WEIGHTS = random(4, 3, 3).tobytes() + random(4, seed=1).tobytes()


def run(text: str | bytes, weights: bytes = WEIGHTS) -> list[np.ndarray]:
    data = text.encode() if isinstance(text, str) else text
    session = InferenceSession(data, weights=weights)
    return session.run(None, {value.name: random(1, 3, 9) for value in session.get_inputs()})


def refused(text: str | bytes, words: str, weights: bytes = WEIGHTS, error: type[Error] = ModelError) -> None:
    with pytest.raises(error, match=words) as caught:
        run(text, weights)
    assert len(str(caught.value)) < 3000


def test_the_file_itself_runs() -> None:
    assert run(IR)[0].shape == (1, 4, 9)


@pytest.mark.parametrize("inputs", [0, 1, 2])
@pytest.mark.parametrize("kind", [
    "ShapeOf", "FakeQuantize", "Gather", "MatMul", "Divide", "Reshape", "Convolution", "GroupConvolution", "Convert",
    "Squeeze", "Transpose", "Slice", "MVN", "Interpolate", "Concat", "Softmax", "Clamp", "Nothing",
])  # fmt: skip
def test_layers_with_too_few_inputs(kind: str, inputs: int) -> None:
    """Layers that are put in terms of ONNX, with inputs or attributes that they lack: an error of ours, or a result."""
    text, one = IR.replace('type="ReLU"', f'type="{kind}"'), '<input><port id="0"/></input><output><port id="1"/>'
    if inputs == 0:
        text = text.replace('<edge from-layer="4" from-port="2" to-layer="5" to-port="0"/>', "")
        text = text.replace(one, '<output><port id="1"/>')
    if inputs == 2:
        text = text.replace(one, one.replace("</input>", '<port id="2"/></input>'))
        text = text.replace("</edges>", '<edge from-layer="3" from-port="0" to-layer="5" to-port="2"/></edges>')
    with suppress(Error):
        run(text)


def test_truncated_xml() -> None:
    for length in range(1, len(IR), 23):
        refused(IR[:length], "XML|IR|model")


@pytest.mark.parametrize(
    "doctype",
    [
        "<!DOCTYPE net [" + "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(20)) + "]>",
        '<!DOCTYPE net [<!ENTITY e "' + "x" * 10**6 + '">]>',
        '<!DOCTYPE net [<!ENTITY e SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE net SYSTEM "http://localhost:1/x.dtd">',
    ],
    ids=["laughs", "quadratic", "file", "network"],
)
def test_entities_are_refused(doctype: str) -> None:
    text = IR.replace("<net", f"{doctype}<net").replace('name="t"', 'name="&e;"')
    refused(text, "XML")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("<net ", "<model ", "XML"),
        ('version="11"', 'version="7"', "'7'"),
        ('version="11"', "", "version"),
        ('id="3" name', 'id="1" name', "one id"),
        ('id="3" name', 'id="three" name', "three"),
        ('id="3" name', 'id="-3" name', "-3"),
        ('id="3" name', 'id="' + "3" * 5000 + '" name', "layer"),
        ('type="Add" version="opset1"', 'type="Add"', "add"),
        ('type="Convolution" version="opset1"', 'type="Convolution" version="extension"', "conv"),
        ('type="Convolution"', 'type=""', "layer"),
        ('from-layer="0"', 'from-layer="77"', "edge"),
        ('from-layer="0" from-port="0"', 'from-layer="0" from-port="9"', "edge"),
        ('to-layer="2" to-port="1"', 'to-layer="2" to-port="8"', "edge"),
        ('to-layer="2" to-port="1"', 'to-layer="2" to-port="0"', "conv.*two edges"),
        ('<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>', "", "conv.*no edge"),
        (
            '<edge from-layer="0" from-port="0" to-layer="2"',
            '<edge from-layer="5" from-port="1" to-layer="2"',
            "circle",
        ),
        ('<port id="0" precision="FP32"/><port id="1"', '<port id="1"/><port id="1"', "conv.*one id"),
        ('shape="4, 3, 3"', 'shape="4, 3, x"', "'w'.* x'"),
        ('shape="4, 3, 3"', 'shape="4, 3, -3"', "'w'.*-3"),
        ('shape="4, 3, 3"', 'shape="4, 3, 4"', "'w'.*192.*144"),
        ('shape="4, 3, 3"', 'shape="1000000, 1000000, 1000"', "'w'"),
        ('shape="4, 3, 3"', 'shape="' + "1," * 1_000_000 + '1"', "'w'"),
        ('shape="4, 3, 3"', 'shape="' + "9" * 1_000_000 + '"', "'w'"),
        ('shape="4, 3, 3"', 'shape="36"', "conv"),
        ('offset="0" size="144"', 'offset="17" size="144"', "'w'.*161.*160"),
        ('offset="0" size="144"', 'offset="999999999999999999" size="144"', "'w'"),
        ('offset="0" size="144"', 'offset="-1" size="144"', "'w'.*offset"),
        ('offset="0" size="144"', 'offset="0" size="1e9"', "'w'.*size"),
        ('offset="0" size="144"', 'size="144"', "'w'.*offset"),
        ('element_type="f32" shape="4, 3, 3"', 'element_type="FP32" shape="4, 3, 3"', "'w'.*FP32"),
        ('element_type="f32" shape="4, 3, 3"', 'shape="4, 3, 3"', "'w'"),
        ('element_type="f32" shape="4, 3, 3"', 'element_type="i32" shape="4, 3, 3"', "conv"),
        ('shape="1,3,9"', 'shape="1,3,9x"', "'x'.*9x"),
        ('shape="1,3,9"', 'shape="1,-3,9"', "'x'.*-3"),
        ('shape="1,3,9"', 'shape="1,4,9"', "conv"),
        ('shape="1,3,9"', "", "'x'.*shape"),
        ('strides="1"', 'strides="0"', "conv.*strides"),
        ('strides="1"', 'strides="1,1"', "conv.*strides"),
        ('strides="1"', 'strides="one"', "conv.*one"),
        ('strides="1"', 'strides="' + "1," * 1_000_000 + '1"', "conv.*strides"),
        ('strides="1"', 'strides="' + "9" * 1_000_000 + '"', "conv.*strides"),
        ('pads_begin="1"', 'pads_begin="-1"', "conv.*pads_begin"),
        ('pads_begin="1"', 'pads_begin="99999999999999999"', "conv"),
        ('auto_pad="explicit"', 'auto_pad="notset"', "conv.*notset"),
        ('shape="1,4,1" offset="144"', 'shape="4" offset="144"', "add|cannot"),
        ('type="ReLU"', 'type="Clamp"', "relu.*min"),
        ('<input><port id="0"/></input></layer>\n</layers>', "</layer>\n</layers>", "edge"),
        ("</layers>", "<layer/></layers>", "id"),
    ],
    ids=lambda text: text[:40].replace("\n", " ") if isinstance(text, str) else "",
)
def test_files_that_contradict_themselves(old: str, new: str, words: str) -> None:
    assert old in IR
    refused(IR.replace(old, new), words, error=Error)


@pytest.mark.parametrize("kind", ["u1", "i4", "u4", "nf4", "string"])
def test_types_of_less_than_a_byte_are_refused(kind: str) -> None:
    text = IR.replace('element_type="f32" shape="4, 3, 3"', f'element_type="{kind}" shape="4, 3, 3"')
    refused(text, f"'w'.*'{kind}'", error=Unsupported)


@pytest.mark.parametrize("length", [0, 100, 143, 159])
def test_short_weights(length: int, tmp_path: Path) -> None:
    refused(IR, "'w'|'bias'", weights=WEIGHTS[:length])
    path = tmp_path / "model.xml"
    path.write_text(IR)
    path.with_suffix(".bin").write_bytes(WEIGHTS[:length])
    with pytest.raises(ModelError, match=r"'w'|'bias'"):
        InferenceSession(path)


def test_missing_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    path.write_text(IR)
    with pytest.raises(ModelError, match=r"model\.bin"):
        InferenceSession(path)


def test_state_is_refused() -> None:
    refused(IR.replace('type="ReLU"', 'type="ReadValue"'), "relu", error=Unsupported)


def test_deep_nesting() -> None:
    refused(
        IR.replace("</layers>", "<a>" * 100_000 + "</a>" * 100_000 + "</layers>").replace("net", "nut"), "XML"
    )
    assert run(IR.replace("</layers>", "<a>" * 10_000 + "</a>" * 10_000 + "</layers>"))[0].shape == (1, 4, 9)


def test_a_missing_parser_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "defusedxml", None)
    refused(IR, r"pip install polyconv\[openvino\]", error=Unsupported)


def test_flipped_bits() -> None:
    """One flipped bit of the text: an error of ours, or a run that gives an array."""
    data = IR.encode()
    errors = 0
    for at in np.random.default_rng(2024).integers(0, len(data) * 8, 400):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << (at % 8)
        try:
            results = run(bytes(damaged))
        except Error:
            errors += 1
        else:
            assert all(isinstance(result, np.ndarray) for result in results)
    assert 0 < errors < 400
