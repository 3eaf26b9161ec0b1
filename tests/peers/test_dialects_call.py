"""What all operators have in common: inputs, outputs, binding, errors before anything is written."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import polyconv
from polyconv import dialects
from polyconv.dialects import bound as bound_to
from polyconv.errors import ArgumentError, DtypeError

onnx, ort, openvino = dialects.onnx, dialects.ort, dialects.openvino


@pytest.fixture(autouse=True)
def whole_numbers_stay_whole():
    """Transforms, which round, are not admitted: the algorithms of any two calls agree exactly."""
    with polyconv.settings(accuracy="strict"):
        yield


def whole(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-4, 4, shape, endpoint=True).astype(dtype)


X, W, B = whole(2, 4, 6, 5), whole(6, 4, 3, 3, seed=1), whole(6, seed=2)
SCALES = [np.float32(v) for v in (0.5, 0.25, 2.0)]
QUANTISED = [
    np.abs(X).astype(np.uint8), SCALES[0], np.uint8(1), W.astype(np.int8), SCALES[1], np.int8(0), SCALES[2],
    np.uint8(3), B.astype(np.int32),
]  # fmt: skip


def test_absent_inputs_in_the_middle_and_at_the_end():
    z = whole(2, 6, 4, 3, seed=3)
    fused = ort.FusedConv()
    np.testing.assert_array_equal(fused(X, W, None, z), fused(X, W) + z)
    np.testing.assert_array_equal(fused(X, W, None, None), fused(X, W))


def test_out_is_what_is_returned():
    expected = onnx.Conv()(X, W, B)
    out = np.zeros((2, 6, 4, 3), np.float32)
    assert onnx.Conv()(X, W, B, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_byte_swapped_inputs():
    swapped = X.astype(X.dtype.newbyteorder(">"))
    np.testing.assert_array_equal(onnx.Conv()(swapped, W), onnx.Conv()(X, W))


def test_masked_arrays_are_refused():
    with pytest.raises(ArgumentError, match=r"X is a masked array.*filled"):
        onnx.Conv()(np.ma.masked_array(X), W)


def test_types_are_checked_by_name():
    with pytest.raises(DtypeError, match=r"W has dtype f64, X has f32.*astype"):
        onnx.Conv()(X, W.astype(np.float64))
    with pytest.raises(DtypeError, match=r"X has dtype bool"):
        onnx.Conv()(X.astype(bool), W)


def test_inputs_are_counted():
    with pytest.raises(ArgumentError, match=r"lacks its input W at position 1"):
        onnx.Conv()(X)
    with pytest.raises(ArgumentError, match=r"5 inputs.*at most 3"):
        onnx.Conv()(X, W, B, B, B)


@pytest.mark.parametrize("given", [5, [W], "W", W], ids=lambda given: type(given).__name__)
def test_what_is_no_mapping_and_no_list_is_refused_by_name(given):
    operator, shapes = onnx.Conv(), ((1, 4, 6, 5), (6, 4, 3, 3))
    with pytest.raises(ArgumentError, match=r"constants is of type .*; give a dict"):
        operator.bind(given)
    with pytest.raises(ArgumentError, match=r"values is of type .*; give a dict"):
        operator.infer(*shapes, values=given)
    with pytest.raises(ArgumentError, match=r"dtypes is of type .*; give a list"):
        operator.infer(*shapes, dtypes=5)


@pytest.mark.parametrize("constants", [{}, {1: W}, {1: W, 2: B}, {2: B}, {0: X, 1: W}])
def test_bind_is_the_same_operator(constants):
    bound = onnx.Conv(auto_pad="SAME_UPPER", strides=[2, 2]).bind(constants)
    for x in (X,) if 0 in constants else (X, whole(1, 4, 9, 9), whole(3, 4, 1, 2), X):
        given = [None if at in constants else a for at, a in enumerate((x, W, B))]
        expected = onnx.Conv(auto_pad="SAME_UPPER", strides=[2, 2])(x, W, B)
        np.testing.assert_array_equal(bound(*given), expected)


def test_bind_leaves_out_trailing_constants():
    bound = onnx.Conv().bind({1: W, 2: B})
    np.testing.assert_array_equal(bound(X), onnx.Conv()(X, W, B))


def test_bind_packs_once_whatever_the_extents():
    bound = onnx.Conv().bind({1: W})
    for extent in (5, 6, 7):
        bound(whole(1, 4, extent, extent))
    assert len(bound._layers) == 1
    bound(X, None, B)  # a bias that is not constant comes with every call
    assert len(bound._layers) == 1


def test_bind_remembers_the_shapes_that_were_used_last(monkeypatch):
    lowered = Counter()
    lower = bound_to.lower

    def counted(operator, values):
        lowered[values["x"].shape[-1]] += 1
        return lower(operator, values)

    monkeypatch.setattr(bound_to, "lower", counted)
    monkeypatch.setattr(bound_to, "_MOST_REMEMBERED", 8)
    bound = onnx.Conv().bind({1: whole(6, 4, 1, 1)})
    bound(whole(1, 4, 1, 1))
    layer = lowered.copy()
    for extent in range(2, 30):
        bound(whole(1, 4, 1, 1))
        bound(whole(1, 4, 1, extent))
    assert lowered[1] == layer[1]
    assert len(bound._lowered) == 8


def test_bind_optional_inputs_may_come_and_go():
    bound = ort.FusedConv(activation="Relu").bind({1: W, 2: B})
    z = whole(2, 6, 4, 3, seed=3)
    for _ in range(2):
        np.testing.assert_array_equal(bound(X), ort.FusedConv(activation="Relu")(X, W, B))
        np.testing.assert_array_equal(bound(X, None, None, z), ort.FusedConv(activation="Relu")(X, W, B, z))


def test_bind_channels_last():
    bound = ort.Conv(pads=[1, 1, 1, 1]).bind({1: W})
    for x in (whole(2, 6, 5, 4), whole(1, 4, 4, 4)):
        np.testing.assert_array_equal(bound(x), ort.Conv(pads=[1, 1, 1, 1])(x, W))


@pytest.mark.parametrize("constants", [(3,), (1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_bind_quantised(constants):
    bound = onnx.QLinearConv().bind({at: QUANTISED[at] for at in constants})
    given = [None if at in constants else a for at, a in enumerate(QUANTISED)]
    if 8 not in constants:
        given[8] = QUANTISED[8]
    np.testing.assert_array_equal(bound(*given), onnx.QLinearConv()(*QUANTISED))


def test_bind_openvino_groups_and_sizes():
    data, filters = whole(1, 4, 5), whole(2, 2, 3, 3)
    operator = openvino.GroupConvolutionBackpropData(strides=[2])
    for size in (9, 12, 9):
        sizes = np.array([size], np.int32)
        expected = operator(data, filters, sizes)
        assert expected.shape == (1, 6, size)
        np.testing.assert_array_equal(operator.bind({1: filters, 2: sizes})(data), expected)
        np.testing.assert_array_equal(operator.bind({1: filters})(data, None, sizes), expected)


def test_bind_deformable():
    w, offset = whole(6, 4, 3, 3), np.random.default_rng(5).uniform(-2, 2, (2, 18, 4, 3)).astype(np.float32)
    bound = onnx.DeformConv().bind({1: w})
    np.testing.assert_array_equal(bound(X, None, offset), onnx.DeformConv()(X, w, offset))
    bound = openvino.DeformableConvolution().bind({2: w})
    np.testing.assert_array_equal(bound(X, offset), openvino.DeformableConvolution()(X, offset, w))


def test_bind_causal_returns_both_outputs():
    x, w, past = whole(2, 3, 5), whole(3, 1, 4), whole(2, 3, 3, seed=4)
    operator = onnx.CausalConvWithState(activation="silu")
    for given in ((x, None), (x, None, None, past)):
        y, state = operator.bind({1: w})(*given)
        expected = operator(given[0], w, *given[2:])
        np.testing.assert_array_equal(y, expected[0])
        np.testing.assert_array_equal(state, expected[1])


def test_causal_state_continues_a_sequence():
    x, w = whole(2, 3, 9), whole(3, 1, 4)
    operator = onnx.CausalConvWithState()
    all_at_once, last = operator(x, w)
    state, parts = None, []
    for start, stop in ((0, 2), (2, 3), (3, 9)):
        part, state = operator(x[:, :, start:stop], w, None, state)
        parts.append(part)
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), all_at_once)
    np.testing.assert_array_equal(state, last)


def test_bind_errors():
    with pytest.raises(ArgumentError, match=r"position 3.*inputs 0 to 2"):
        onnx.Conv().bind({3: W})
    with pytest.raises(ArgumentError, match=r"W at position 1 is bound to a constant: give None"):
        onnx.Conv().bind({1: W})(X, W)
    bound = onnx.Conv().bind({1: W})
    with pytest.raises(ArgumentError, match=r"X of shape \(2, 3, 6, 5\) has 3 input channels"):
        bound(X[:, :3])
    with pytest.raises(DtypeError, match=r"W has dtype f32, X has f64"):
        bound(X.astype(np.float64))


def test_zero_sizes():
    assert onnx.Conv()(X[:0], W).shape == (0, 6, 4, 3)
    assert onnx.Conv()(X[:, :, :2], W).shape == (2, 6, 0, 3)
    np.testing.assert_array_equal(
        onnx.Conv()(X[:, :0], W[:, :0], B), np.broadcast_to(B[:, None, None], (2, 6, 4, 3))
    )
    np.testing.assert_array_equal(
        onnx.ConvTranspose()(X[:, :, :0, :0], whole(4, 6, 3, 3)), np.zeros((2, 6, 2, 2))
    )
