"""Zero points and scales of the integer operators, as numbers or as what a call brings.  It must not know shapes."""

from __future__ import annotations

from polyconv.dataclass import dataclass

__all__ = ["Quantisation"]


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Zero points and scales of the integer operators.

    Each is a number, ``"t"`` (one value given at run time), ``"c"`` (one per output channel given
    at run time) or None (absent: 0 for zero points, no requantisation for scales).
    ``y = saturate(round_half_even(acc * (sx * sw / sy)) + zy)`` with
    ``acc = conv(x - zx, w - zw) + bias``, when scales are present; else ``y = acc``.
    """

    zx: float | str | None = None
    zw: float | str | None = None
    zy: float | str | None = None
    sx: float | str | None = None
    sw: float | str | None = None
    sy: float | str | None = None

    @property
    def rescales(self) -> bool:
        """Whether the accumulator is scaled to the result."""
        return self.sx is not None
