"""What zero points of inputs need beside a matrix product of bytes as they lie: their share of each sum, and padding.

With zx and zw the zero points of inputs and weights, over the products of an output

    sum (x - zx) (w - zw)  =  sum x w  -  zw sum x  -  zx sum (w - zw).

The last term is the same for all pixels of a channel if padding holds zx: ``Compensation`` adds it to the bias, once a
layer, and ``Padding`` makes the bytes that kernels read where padding is.  ``zw sum x`` is the kernel's (``units``).
"""

from __future__ import annotations

from typing import ClassVar

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.geometry import Quantities
from polyconv.gpu.kernels.finish import ELEMENTS, quantity
from polyconv.gpu.language import I64, Kernel, Pointer, Value

__all__ = ["Compensation", "Padding"]


@dataclass(frozen=True, slots=True)
class Compensation:
    """A kernel that makes ``bias - zx sum (w - zw)`` of every output channel; a block sums the weights of one.

    Parameters
    ----------
    channels : int
        Outputs of all groups.
    terms, products : int
        Weights of a channel as they lie, zeros behind its input channels among them, and those that count.
    x_type, w_type, sum_type : str
        Names of ``DTYPES``; the last is that of the bias.
    bias : bool
        Whether there is one.
    quantities : Quantities
        How zx comes, and zw if weights have one.
    """

    channels: int
    terms: int
    products: int
    x_type: str
    w_type: str
    sum_type: str
    bias: bool
    quantities: Quantities
    threads: ClassVar[int] = 128
    cluster: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """All that shapes the code."""
        q = self.quantities
        points = f"zx {q.zx}" + f" zw {q.zw}" * bool(q.zw) + " bias" * self.bias
        return f"compensation {self.x_type} {self.w_type} in {self.sum_type}, {points}"

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return self.channels, 1, 1

    @property
    def bytes(self) -> int:
        """Of the result."""
        return self.channels * DTYPES[self.sum_type].itemsize

    @property
    def shared(self) -> int:
        """Bytes of shared memory: a sum of each thread."""
        return self.threads * DTYPES[self.sum_type].itemsize

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return "w", *(("b",) * self.bias), *self.quantities.named("one", "each"), "target"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        told = dict.fromkeys(self.quantities.named("number"), 0)
        return {"terms": self.terms, "products": self.products, **told}

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("compensation", self.arguments, self.threads, numbers=tuple(self.numbers), shared=self.shared)
        of_w, wide, channel = DTYPES[self.w_type], ELEMENTS[self.sum_type], k.block[0]
        own, first = k.variable(0, wide), k.cast("zext", channel, I64) * k.numbers["terms"]
        with k.loop(k.thread, k.cast("trunc", k.numbers["terms"], k.thread.type), self.threads) as at:
            w = k.load(ELEMENTS[of_w.name], Pointer("w", first + k.cast("zext", at, I64)))
            own.set(own.get() + k.cast("zext" if of_w.kind == "u" else "sext", w, wide))
        k.store_shared(k.base + k.thread * wide.bytes, [own.get()])
        k.barrier()
        with k.when(k.thread.equals(0)):
            total = k.variable(0, wide)
            with k.loop(0, self.threads) as i:
                total.set(total.get() + k.load_shared(k.base + i * wide.bytes, 0, 1, wide)[0])
            self._store(k, total.get(), channel)
        return k

    def _store(self, k: Kernel, total: Value, channel: Value) -> None:
        q, wide = self.quantities, ELEMENTS[self.sum_type]
        if q.zw:
            products = k.numbers["products"] if wide == I64 else k.cast("trunc", k.numbers["products"], wide)
            total = total - products * quantity(k, q, "zw", DTYPES[self.w_type], wide, channel)
        result = 0 - total * quantity(k, q, "zx", DTYPES[self.x_type], wide)
        if self.bias:
            result = result + k.load(wide, Pointer("b", channel * wide.bytes))
        k.store(result, Pointer("target", channel * wide.bytes))


@dataclass(frozen=True, slots=True)
class Padding:
    """A kernel that makes a pixel of padding: the zero point for every input channel of a group, then zeros.

    Parameters
    ----------
    c, padded : int
        Channels of a group, and with the zeros that follow them.
    x_type : str
    quantities : Quantities
        How zx comes.
    """

    c: int
    padded: int
    x_type: str
    quantities: Quantities
    threads: ClassVar[int] = 128
    shared: ClassVar[int] = 0
    cluster: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"padding {self.x_type}, zx {self.quantities.zx}"

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.padded // self.threads), 1, 1

    @property
    def bytes(self) -> int:
        """Of the result."""
        return self.padded

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return *self.quantities.named("one", "each"), "target"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        return {"c": self.c, "padded": self.padded, **dict.fromkeys(self.quantities.named("number"), 0)}

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("padding", self.arguments, self.threads, numbers=tuple(self.numbers))
        at, of_x = k.block[0] * self.threads + k.thread, DTYPES[self.x_type]
        c, padded = (k.cast("trunc", k.numbers[name], at.type) for name in ("c", "padded"))
        with k.when(at < padded):
            zero = quantity(k, self.quantities, "zx", of_x, at.type)
            k.store(k.cast("trunc", k.select(at < c, zero, 0), ELEMENTS[of_x.name]), Pointer("target", at))
        return k
