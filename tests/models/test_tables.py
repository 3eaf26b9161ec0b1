"""Passes from bytes to bytes: one table each, with the bits that the pass has when somebody reads what lies between.

Whoever returns the real numbers in between keeps polyconv from making a table; integers must not change by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import BOTH_ENDS, LEVELS
from making import info, onnx_model, session
from onnx import TensorProto, helper
from own_models import at_level

from polyconv.conformance.kernel_texts import TARGETS
from polyconv.kernels.compile import assembly
from polyconv.kernels.language import vector
from polyconv.kernels.lookup import PLACES, arranged, looked_up, way_of
from polyconv.kernels.objects import module_for
from polyconv.kernels.signature import Signature
from polyconv.kernels.values import Buffer
from polyconv.operators.bytewise import look_up
from polyconv.operators.job import Planning
from polyconv.operators.running import Planned
from polyconv.target import Target

node = helper.make_node
KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}
QUANTITIES = {"sx": np.float32(0.04), "sy": np.float32(0.02), "st": np.float32(0.03)}

CHAINS: dict[str, list[onnx.NodeProto]] = {
    "nothing": [],
    "Sigmoid": [node("Sigmoid", ["x"], ["r"])],
    "SiLU, its gate quantised": [
        node("Sigmoid", ["x"], ["g"]), node("QuantizeLinear", ["g", "st", "zx"], ["gq"]),
        node("DequantizeLinear", ["gq", "st", "zx"], ["gx"]), node("Mul", ["x", "gx"], ["r"]),
    ],
    "Gelu, spelled out and each part quantised": [
        node("Div", ["x", "root"], ["a"]), node("QuantizeLinear", ["a", "st", "zx"], ["aq"]),
        node("DequantizeLinear", ["aq", "st", "zx"], ["ax"]), node("Erf", ["ax"], ["b"]),
        node("QuantizeLinear", ["b", "st", "zx"], ["bq"]), node("DequantizeLinear", ["bq", "st", "zx"], ["bx"]),
        node("Add", ["bx", "one"], ["c"]), node("QuantizeLinear", ["c", "st", "zx"], ["cq"]),
        node("DequantizeLinear", ["cq", "st", "zx"], ["cx"]), node("Mul", ["x", "cx"], ["d"]),
        node("QuantizeLinear", ["d", "st", "zx"], ["dq"]), node("DequantizeLinear", ["dq", "st", "zx"], ["dx"]),
        node("Mul", ["dx", "half"], ["r"]),
    ],
    "HardSwish": [node("HardSwish", ["x"], ["r"])],
    "Clip": [node("Clip", ["x", "low", "high"], ["r"])],
}  # fmt: skip
CONSTANTS = {"root": np.float32(2.0**0.5), "one": np.float32(1), "half": np.float32([0.5]), "low": np.float32(-1),
             "high": np.float32(1.5)}  # fmt: skip


def model(chain: list[onnx.NodeProto], kinds: tuple[str, str], shape: tuple[int, ...], *, shown: bool
          ) -> onnx.ModelProto:  # fmt: skip
    """A chain between quantities; if ``shown``, with the real numbers at its end as another result."""
    (x, x_kind), (y, y_kind) = (KINDS[kind] for kind in kinds)
    constants = {**QUANTITIES, **CONSTANTS, "zx": np.array(np.iinfo(x).min + 100, x),
                 "zy": np.array(np.iinfo(y).min + 90, y)}  # fmt: skip
    last = chain[-1].output[0] if chain else "x"
    nodes = [node("DequantizeLinear", ["q", "sx", "zx"], ["x"]), *chain,
             node("QuantizeLinear", [last, "sy", "zy"], ["y"])]  # fmt: skip
    used = {name for each in nodes for name in each.input}
    outputs = [info("y", list(shape), y_kind), *([last] if shown else [])]
    kept = {name: np.asarray(a) for name, a in constants.items() if name in used}
    return onnx_model(nodes, [info("q", list(shape), x_kind)], outputs, kept)


def every(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """All bytes there are, and as many again as fit."""
    return np.resize(np.arange(256, dtype=np.uint8).view(KINDS[kind][0]), shape)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kinds", [("u8", "u8"), ("i8", "i8"), ("u8", "i8")], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_between_bytes_has_its_own_bits(name: str, kinds: tuple[str, str], level: str | None) -> None:
    shape = (2, 3, 7, 19)
    q = every(kinds[0], shape)
    with at_level(level):
        made = session(model(CHAINS[name], kinds, shape, shown=False))
        [found] = made.run(None, {"q": q})
        [expected, _] = session(model(CHAINS[name], kinds, shape, shown=True)).run(None, {"q": q})
    assert len({record.step for record in made.nodes}) == 1
    np.testing.assert_array_equal(found, expected)


def test_what_a_table_holds_is_what_numpy_computes() -> None:
    q = every("u8", (256,))
    [y] = session(model(CHAINS["Clip"], ("u8", "i8"), (256,), shown=False)).run(None, {"q": q})
    x = (q.astype(np.float32) - 100) * QUANTITIES["sx"]
    want = np.clip(np.rint(np.clip(x, -1, np.float32(1.5)) / QUANTITIES["sy"]) + (-128 + 90), -128, 127)
    np.testing.assert_array_equal(y, want.astype(np.int8))


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (31,), (32,), (33,), (3, 1, 1), (2, 5, 1, 70)], ids=str)
def test_arrays_of_any_extents(shape: tuple[int, ...]) -> None:
    q = every("u8", shape)
    [found] = session(model(CHAINS["HardSwish"], ("u8", "u8"), shape, shown=False)).run(None, {"q": q})
    [expected, _] = session(model(CHAINS["HardSwish"], ("u8", "u8"), shape, shown=True)).run(None, {"q": q})
    assert found.shape == shape
    np.testing.assert_array_equal(found, expected)


def test_bytes_read_elsewhere_are_results_too() -> None:
    """The quantised gate is returned, and what it is multiplied with is one table more of the same step."""
    q = every("u8", (4, 70))
    made = model(CHAINS["SiLU, its gate quantised"], ("u8", "u8"), (4, 70), shown=False)
    made.graph.output.append(info("gq", [4, 70], TensorProto.UINT8))
    running = session(made)
    y, gate = running.run(None, {"q": q})
    assert len({record.step for record in running.nodes}) == 1
    [alone] = session(model(CHAINS["SiLU, its gate quantised"], ("u8", "u8"), (4, 70), shown=False)).run(None, {"q": q})
    np.testing.assert_array_equal(y, alone)
    real = 1 / (1 + np.exp(-(q.astype(np.float64) - 100) * float(QUANTITIES["sx"])))
    want = np.clip(real / float(QUANTITIES["st"]) + 100, 0, 255)
    assert (np.abs(gate - want) <= 0.5 + 1e-4).all()


def test_real_numbers_that_others_read_are_made() -> None:
    """A table leaves out what a second reader of the real numbers needs."""
    nodes = [
        node("DequantizeLinear", ["q", "sx", "zx"], ["x"]), node("Sigmoid", ["x"], ["g"]),
        node("QuantizeLinear", ["g", "sy", "zx"], ["y"]), node("Add", ["x", "other"], ["z"]),
    ]  # fmt: skip
    constants = {"sx": QUANTITIES["sx"], "sy": QUANTITIES["sy"], "zx": np.uint8(100)}
    inputs = [info("q", [3, 90], TensorProto.UINT8), info("other", [3, 90])]
    made = session(onnx_model(nodes, inputs, ["y", "z"], {k: np.asarray(v) for k, v in constants.items()}))
    q, other = every("u8", (3, 90)), np.linspace(-1, 1, 270, dtype=np.float32).reshape(3, 90)
    y, z = made.run(None, {"q": q, "other": other})
    x = (q.astype(np.float32) - 100) * QUANTITIES["sx"]
    np.testing.assert_array_equal(z, x + other)
    assert (np.abs(y - (1 / (1 + np.exp(-x.astype(np.float64))) / float(QUANTITIES["sy"]) + 100)) <= 0.5 + 1e-4).all()


SIZES = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 127, 128, 200, 1030)))


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=3), st.data(), st.sampled_from(BOTH_ENDS), st.integers(1, 2))
def test_any_table_of_bytes_that_lie_anyhow(shape: list[int], data: st.DataObject, level: str | None,
                                            threads: int) -> None:  # fmt: skip
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    table = rng.integers(0, 256, PLACES).astype(np.uint8).view(np.int8)
    step = data.draw(st.sampled_from((1, 1, 2, -1)))
    order = data.draw(st.permutations(range(len(shape))))
    stored = [shape[axis] * (abs(step) if at == len(order) - 1 else 1) for at, axis in enumerate(order)]
    whole = rng.integers(0, 256, stored).astype(np.uint8)
    x = whole[..., ::step][..., : shape[order[-1]]].transpose([order.index(axis) for axis in range(len(order))])

    def planner(given: Any, c: Any) -> Any:
        planning = Planning(given, c)
        look_up(planning, 0, planning.result(given[0].shape, np.int8), table)
        return planning.plan()

    with at_level(level):
        [y] = Planned(planner, threads)([x])
    np.testing.assert_array_equal(y, table[x])


class _Some(Signature):
    """Places, a table, and what was found."""

    x: Buffer
    table: Buffer
    y: Buffer


WITHOUT_VBMI = Target("avx512", "x86_64-unknown-linux-gnu", "skylake-avx512", "")


@pytest.mark.parametrize("target", [*TARGETS.values(), WITHOUT_VBMI], ids=lambda t: f"{t.level} {way_of(t)}")
def test_vectors_are_looked_up_by_picks(target: Any) -> None:
    """What cannot run on this machine is compiled at least: LLVM knows the instructions, and uses no others."""
    way, kind = way_of(target), vector("i8", target.vector_bytes)
    k = module_for(target)
    with k.function("some", _Some) as given:
        find = looked_up(k, way, target.vector_bytes, given.table)
        places = kind.scalar if way == "single" else kind
        k.store(find(k.load(places, given.x)), given.y)
    text = assembly(k.text(target.triple), target)
    picks = {"halves": ("vpermi2b", 2), "pieces": ("vpshufb", 16), "single": ("", 0)}[way]
    assert not picks[0] or sum(text.count(name) for name in (picks[0], picks[0].replace("i2", "t2"))) >= picks[1]


def test_differences_of_pieces_give_what_stands_there() -> None:
    """The derivation of ``arranged``, with a pick that has 0 where its place is negative."""
    table = np.random.default_rng(1).integers(0, 256, PLACES).astype(np.uint8)
    pieces, plain = arranged(table, "pieces")[:PLACES].reshape(2, 8, 16), arranged(table, "pieces")[PLACES:]
    np.testing.assert_array_equal(plain, table)
    places = np.arange(PLACES, dtype=np.uint8).view(np.int8).astype(int)
    total = np.zeros(PLACES, np.uint8)
    for half in range(2):
        signed = np.where(places < 0, places + 128, places - 128) if half else places
        for number in range(8):
            here = np.maximum(signed - 16 * number, -128)
            total ^= np.where(here < 0, 0, pieces[half, number][here % 16]).astype(np.uint8)
    np.testing.assert_array_equal(total, table)
