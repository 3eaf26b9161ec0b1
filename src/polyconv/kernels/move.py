"""Moves between tensors and panels: copy, transpose or gather a block of pixels by channels.

One signature in terms of pixels and channels, whatever lies contiguous on either side; a move into a
panel converts to the accumulator type (and subtracts a zero point), a move out applies the epilogue
and converts to the result type.  It must know nothing of kernels" taps, strides or problems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyconv.dtypes import DTYPES
from polyconv.kernels import mathfn
from polyconv.kernels.convert import LLVM_NAMES, ROUNDED, narrow, rounded_pair, saturate, widen
from polyconv.kernels.epilogue import Epilogue, rescaled, unsigned_activation
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Load, Move, MoveBlock, MoveIn, MoveOut, Store

__all__ = [
    "converted", "ends", "finished", "finished_sums", "load_in", "move", "rounds_pairs", "store_in", "store_out",
]  # fmt: skip


def move(k: Module, name: str, spec: Move, lanes: int, *, f16c: bool) -> None:
    """Add a move to a module.

    Parameters
    ----------
    lanes : int
        Accumulators per vector.
    f16c : bool
        Whether the target converts f16.
    """
    with k.function(name, MoveIn if spec.epilogue is None else MoveOut) as g:
        kind = Type(spec.element, lanes)
        if spec.along == "any":
            spread = Block(k, spec, kind, f16c, g.source_pixel, g.target_pixel)
            single = Block(k, spec, kind.scalar, f16c)
            spread.each(g, ends(spread, g), ends(single, g))
            return
        block = Block(k, spec, kind, f16c)
        if spec.together:
            block.interleaved(g, *ends(block, g))
            return
        if (spec.along[0] == "c") == (spec.along[1] == "c"):
            block.rows(g, *ends(block, g))
        else:
            block.transposed(g, *ends(block, g))


def ends(block: Block, g: MoveBlock) -> tuple[Load, Store]:
    """How the elements of a move are read and written, by these arguments."""
    if isinstance(g, MoveIn):
        return load_in(block, g.zero_point), store_in(block)
    assert isinstance(g, MoveOut)
    return _load_out(block), store_out(
        block, g.bias, g.scale, g.residual, g.residual_pixel, g.residual_channel, g.constants
    )


def load_in(block: Block, zero_point: Value) -> Load:
    def load(place: Buffer, mask: Mask | None) -> Value:
        kind = block.kind.of(LLVM_NAMES[block.spec.source])
        return converted(block, block.read(kind, place, mask, block.source_stride), zero_point)

    return load


def converted(block: Block, value: Value, zero_point: Value) -> Value:
    """A value of the tensor as the panel holds it."""
    k = block.k
    value = widen(k, value, DTYPES[block.spec.source], block.kind.element, f16c=block.f16c)
    if block.kind.is_float or DTYPES[block.spec.source].is_float:  # also bf16 as it is
        return value
    offset = zero_point if block.kind.element == "i64" else k.cast("trunc", zero_point, block.kind.scalar)
    return value - (k.splat(offset, block.kind.lanes) if block.kind.lanes else offset)


def store_in(block: Block) -> Store:
    def store(value: Value, place: Buffer, p: Value, c: Value, mask: Mask | None) -> None:
        block.write(value, place, mask)

    return store


def _load_out(block: Block) -> Load:
    def load(place: Buffer, mask: Mask | None) -> Value:
        return block.read(block.kind, place, mask, block.source_stride)

    return load


def store_out(
    block: Block, bias: Buffer, scale: Buffer, residual: Buffer, rp: Value, rc: Value, constants: Buffer
) -> Store:
    finish = finished(block, bias, scale, residual, rp, rc, constants)

    def store(value: Value, place: Buffer, p: Value, c: Value, mask: Mask | None) -> None:
        block.write(finish(value, p, c, mask), place, mask)

    return store


def finished(
    block: Block, bias: Buffer, scale: Buffer, residual: Buffer, rp: Value, rc: Value, constants: Buffer
) -> Callable[[Value, Value, Value, Mask | None], Value]:
    """What makes a result of a sum, its pixel and its channel: the epilogue and the conversion."""
    spec, k, kind = block.spec, block.k, block.kind
    epilogue, dtype = spec.epilogue, DTYPES[spec.target]
    assert epilogue is not None
    by_channel = spec.along[1] == "c"

    def per_channel(table: Buffer, kind: Type, c: Value, mask: Mask | None) -> Value:
        if kind.lanes and not by_channel:
            if mask is not None:  # a row beyond the block stores nothing, and must not read its channel
                c = k.select(mask.count > 0, c, 0)
            return k.broadcast(kind, table + c * kind.element_bytes)
        place = table + c * kind.element_bytes
        return k.load(kind, place) if mask is None else k.load_first(kind, place, mask)

    def constant(index: int, kind: Type) -> Value:
        value = k.kept(kind.scalar, constants + index * 8)
        return k.splat(value, kind.lanes) if kind.lanes else value

    def finish(value: Value, p: Value, c: Value, mask: Mask | None) -> Value:
        if epilogue.bias:
            value = value + per_channel(bias, kind, c, mask)
        beside = None
        if epilogue.residual:
            where, memory = residual + p * rp + c * rc, kind.of(LLVM_NAMES[dtype.name])
            other = block.read(memory, where, mask, None if block.target_stride is None else rp)
            if epilogue.adds:
                beside = widen(k, other, dtype, "float", f16c=block.f16c)
            else:
                value = value + widen(k, other, dtype, kind.element, f16c=block.f16c)
        if epilogue.rescale:
            factor = per_channel(scale, kind.of("float"), c, mask)
            value = rescaled(k, value, factor, constant, beside, epilogue.adds)
        if epilogue.activation:
            parameters = [constant(i, kind) for i in range(mathfn.PARAMETERS[epilogue.activation])]
            if dtype.name == "u64":  # its sums use all 64 bits: they are not signed numbers
                value = unsigned_activation(k, epilogue.activation, value, parameters)
            else:
                value = mathfn.apply(k, epilogue.activation, value, parameters)
        if epilogue.saturate:
            value = saturate(k, value, dtype)
        return narrow(k, value, dtype, f16c=block.f16c, flushed=epilogue.flushed)

    return finish


def finished_sums(k: Module, target: str, epilogue: Epilogue, sums: list[Value], bias: Buffer, scale: Buffer,
                  residual: Buffer, constants: Buffer, *, apart: bool = False) -> list[Value]:  # fmt: skip
    """Vectors of results of a channel, one of each of its sums or of two; in sums of integers its bias is.

    Two vectors become one of bf16 by one instruction, unless ``apart``; the last of an odd number does with itself.
    """
    kind, nothing = sums[0].type, k.constant(INT, 0)
    pairs = not apart and rounds_pairs(kind, target, epilogue)
    epilogue = epilogue if kind.is_float else replace(epilogue, bias=False)
    block = Block(k, Move(kind.element, "f32" if pairs else target, "pp", epilogue), kind, False)
    finish = finished(block, bias, scale, residual, nothing, nothing, constants)
    found = [finish(total, nothing, nothing, None) for total in sums]
    if not pairs:
        return found
    return [rounded_pair(k, found[at], found[min(at + 1, len(found) - 1)]) for at in range(0, len(found), 2)]


def rounds_pairs(kind: Type, target: str, epilogue: Epilogue) -> bool:
    """Whether two vectors of sums become one of bf16 by one instruction; not where a residual is read beside each."""
    return target == "bf16" and epilogue.flushed and not epilogue.residual and kind == vector("float", ROUNDED)
