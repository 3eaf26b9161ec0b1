"""Zero points and scales of the integer operators, as numbers or as what a call brings.  It must not know shapes."""

from __future__ import annotations

from collections.abc import Mapping

from polyconv.dataclass import dataclass

__all__ = ["QUANTITIES", "Quantisation"]

QUANTITIES: Mapping[str, str | None] = {
    "zx": "x", "zw": "w", "zy": "y", "sx": None, "sw": None, "sy": None, "zr": "y", "sr": None, "zs": "y", "ss": None,
}  # fmt: skip
"""Name of each to the operand whose type it has; None for a scale, which is of f32."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Zero points and scales of the integer operators.

    Each is a number, ``"t"`` (one value given at run time), ``"c"`` (one per output channel given
    at run time) or None (absent: 0 for zero points, no requantisation for scales).
    ``y = saturate(round_half_even(acc * (sx * sw / sy)) + zy)`` with
    ``acc = conv(x - zx, w - zw) + bias``, when scales are present; else ``y = acc``.

    With ``sr`` and ``ss`` the residual r has a scale of its own, and so has the sum:
    ``saturate(round_half_even(((y - zy) * sy + (r - zr) * sr) / ss) + zs)``, each operation rounded to f32, is the
    result in place of y.
    """

    zx: float | str | None = None
    zw: float | str | None = None
    zy: float | str | None = None
    sx: float | str | None = None
    sw: float | str | None = None
    sy: float | str | None = None
    zr: float | str | None = None
    sr: float | str | None = None
    zs: float | str | None = None
    ss: float | str | None = None

    @property
    def rescales(self) -> bool:
        """Whether the accumulator is scaled to the result."""
        return self.sx is not None

    @property
    def adds(self) -> bool:
        """Whether the scaled result and a residual are added as what they stand for."""
        return self.ss is not None
