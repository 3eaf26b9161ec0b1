"""From sums to results: bias, residual, scale or activation, one conversion, and the store.

The order and the meaning are those of ``problem/oracle.py``.  It must not know how sums were made.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, Dtype
from polyconv.gpu.geometry import Geometry, Quantities
from polyconv.gpu.language import F32, I32, I64, Kernel, Pointer, Type, Value
from polyconv.kernels import mathfn

__all__ = ["ELEMENTS", "Finish", "quantity", "sum_type"]

F64 = Type("double")

ELEMENTS = {
    "f16": Type("half"), "bf16": Type("bfloat"), "f32": F32, "f64": F64, "i8": Type("i8"), "u8": Type("i8"),
    "i16": Type("i16"), "u16": Type("i16"), "i32": I32, "u32": I32, "i64": I64, "u64": I64,
}  # fmt: skip
"""How LLVM names the element types."""


def sum_type(g: Geometry) -> str:
    """Type in which what follows the sum is computed: f32, f64, or i64 where a value's size matters, else i32."""
    y = DTYPES[g.y_type]
    if y.is_float:
        return "f64" if y.name == "f64" else "f32"
    if g.rescales:
        return "i32"
    whole = g.saturate or g.activation is not None or y.bits == 64
    return "i64" if whole else "i32"


def quantity(k: Kernel, q: Quantities, name: str, dtype: Dtype, wide: Type, channel: Value | None = None) -> Value:
    """A zero point or scale in the type of sums, of an output channel where each has its own."""
    how = getattr(q, name)
    if how == "number":
        told = k.numbers[name] if wide.bytes == 8 else k.cast("trunc", k.numbers[name], I32)
        return k.cast("bitcast", told, wide) if wide.is_float else told
    place = Pointer(name, channel * dtype.itemsize) if how == "each" and channel is not None else Pointer(name)
    value = k.load(ELEMENTS[dtype.name], place)
    return value if value.type == wide else k.cast("zext" if dtype.kind == "u" else "sext", value, wide)


@dataclass(frozen=True, slots=True)
class Finish:
    """What turns sums of outputs into results.

    Parameters
    ----------
    k : Kernel
        With arguments ``b`` and ``r`` where the geometry has bias and residual, and ``y``.
    g : Geometry
    """

    k: Kernel
    g: Geometry

    @property
    def y(self) -> Dtype:
        """Type of the result."""
        return DTYPES[self.g.y_type]

    def widened(self, sums: Sequence[Value]) -> list[Value]:
        """Sums in the type in which they go on."""
        wide = ELEMENTS[sum_type(self.g)]
        k = self.k
        if sums[0].type == wide:
            return list(sums)
        if wide.is_float:
            return [k.cast("fpext", one, wide) for one in sums]
        return [k.cast("sext" if wide == I64 else "trunc", one, wide) for one in sums]

    def store(self, sums: Sequence[Value], channel: Value, y_at: Value, r_at: Value | None, *, together: bool) -> None:
        """Store neighbouring output channels of a pixel.

        Parameters
        ----------
        sums : sequence of Value
        channel : Value
            The first, counted over all groups.
        y_at, r_at : Value
            Where its result and residual lie, in bytes.
        together : bool
            Whether results of neighbouring channels lie together and are aligned, so that one store takes them.
        """
        k, g = self.k, self.g
        wide, size = ELEMENTS[sum_type(g)], self.y.itemsize
        values, beside = self.widened(sums), list[Value]()
        if g.bias:
            place = Pointer("b", channel * wide.bytes)
            biases = [k.load(wide, place + i * wide.bytes) for i in range(len(values))]
            values = [v + b for v, b in zip(values, biases, strict=True)]
        if g.residual is not None and r_at is not None:
            step = g.residual.c * size
            beside = [k.load(ELEMENTS[g.y_type], Pointer("r", r_at) + i * step) for i in range(len(values))]
            if not g.quantities.ss:
                values = [v + self._wide(b, wide) for v, b in zip(values, beside, strict=True)]
        if g.rescales:
            results = [self._rescaled(v, channel + i) for i, v in enumerate(values)]
            if g.quantities.ss:
                results = [self._summed(v, b) for v, b in zip(results, beside, strict=True)]
        else:
            results = [self._narrow(self._activated(v)) for v in values]
        place = Pointer("y", y_at)
        if together and len(results) > 1:
            k.store(k.vector(results), place, size * len(results))
            return
        for i, result in enumerate(results):
            k.store(result, place + i * g.y.c * size)

    def _wide(self, value: Value, wide: Type) -> Value:
        if value.type == wide:
            return value
        if wide.is_float:
            return self.k.cast("fpext", value, wide)
        if value.type.element_bytes > wide.element_bytes:
            return self.k.cast("trunc", value, wide)
        return self.k.cast("zext" if self.y.kind == "u" else "sext", value, wide)

    def _rescaled(self, total: Value, channel: Value) -> Value:
        """A sum times ``sx sw / sy`` in f32, rounded to nearest even, then with its zero point saturated."""
        sx, sw, sy = (self._scale(name, channel) for name in ("sx", "sw", "sy"))
        return self._stepped(self.k.cast("sitofp", total, F32) * (sx * sw / sy), "zy")

    def _summed(self, result: Value, beside: Value) -> Value:
        """A scaled result and a residual added as what they stand for, each operation rounded to f32, and scaled."""
        own, other = self._steps(result, "zy") * self._scale("sy"), self._steps(beside, "zr") * self._scale("sr")
        return self._stepped((own + other) / self._scale("ss"), "zs")

    def _scale(self, name: str, channel: Value | None = None) -> Value:
        return quantity(self.k, self.g.quantities, name, DTYPES["f32"], F32, channel)

    def _steps(self, value: Value, zero: str) -> Value:
        """A byte less its zero point, if it has one, as a float."""
        whole = self._wide(value, I32)
        if getattr(self.g.quantities, zero):
            whole = whole - quantity(self.k, self.g.quantities, zero, self.y, I32)
        return self.k.cast("sitofp", whole, F32)

    def _stepped(self, scaled: Value, zero: str) -> Value:
        """Steps of a scale rounded to nearest even, then with their zero point saturated."""
        k, g, y = self.k, self.g, self.y
        wide, most = (I32, 2.0**24) if y.bits < 32 else (I64, 2.0**40)  # what lies beyond is saturated anyway
        scaled = k.select(scaled > -most, scaled, -most)
        scaled = k.select(scaled < most, scaled, most)
        rounded = k.cast("fptosi", k.intrinsic("rint", F32, scaled), wide)
        if getattr(g.quantities, zero):
            rounded = rounded + quantity(k, g.quantities, zero, y, wide)
        low, high = y.limits
        return k.cast("trunc", k.minimum(k.maximum(rounded, low), high), ELEMENTS[y.name])

    def _activated(self, value: Value) -> Value:
        k, given = self.k, self.g.activation
        if given is None:
            return value
        if value.type.is_float:
            return mathfn.apply(k, given.name, value, [k.constant(value.type, v) for v in given.parameters])
        return self._integer_activation(value, given.name, given.parameters)

    def _integer_activation(self, value: Value, name: str, parameters: tuple[float, ...]) -> Value:
        """Relu and Clip of a 64-bit sum, which of an unsigned 64-bit result is unsigned."""
        k = self.k
        is_unsigned = self.y.name == "u64"
        if name == "Relu":
            return value if is_unsigned else k.maximum(value, 0)
        least, most = (0, 2**64 - 1) if is_unsigned else (-(2**63), 2**63 - 1)
        low, high = (int(min(max(v, least), most)) for v in parameters)
        if is_unsigned:
            wrapped = [v - 2**64 if v >= 2**63 else v for v in (low, high)]
            value = k.select(value.below(wrapped[0]), wrapped[0], value)
            return k.select(k.constant(I64, wrapped[1]).below(value), wrapped[1], value)
        return k.minimum(k.maximum(value, low), high)

    def _narrow(self, value: Value) -> Value:
        k, y = self.k, self.y
        element = ELEMENTS[y.name]
        if y.is_float:
            return value if value.type == element else k.cast("fptrunc", value, element)
        if self.g.saturate and y.name != "u64":
            low, high = y.limits
            value = k.minimum(k.maximum(value, low), high)
        return value if value.type == element else k.cast("trunc", value, element)
