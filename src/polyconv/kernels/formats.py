"""The two float formats, and coefficients of functions that are approximated on them: numbers that ``mathfn`` reads.

It must not know what is computed with them.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """What the two float formats differ in.

    Parameters
    ----------
    integer : str
        The integer element of the same size.
    fraction : int
        Bits of the fraction.
    bias : int
        The exponent's bias.
    low_bits : int
        Fraction bits that ``_leading`` clears: what is left has an exact square.
    guard : int
        ``_scaled`` goes through a power of two this much too large.
    least : float
        An argument of the exponential whose result is the smallest normal number, or little more.
    floor : float
        Least argument of the exponential: both ``e^floor`` and ``floor e^floor`` round to zero.
    gelu_floor : float
        A distance from 0 at which ``v Phi(-v)`` rounds to zero.
    ln2_high, ln2_low : float
        ln 2 in two parts; the first has so few bits that its product with any ``n`` is exact.
    exponential : tuple of float
        Coefficients of q(r), constant first; see ``mathfn``.
    mills : tuple of two tuples of float
        Coefficients of N and D, constant first; see ``mathfn``.
    ceiling : float
        An argument of the exponential that is beyond the largest number, by little.
    error : tuple of float
        Coefficients of ``error_function``, constant first.
    """

    integer: str
    fraction: int
    bias: int
    low_bits: int
    guard: int
    least: float
    floor: float
    gelu_floor: float
    ln2_high: float
    ln2_low: float
    exponential: tuple[float, ...]
    mills: tuple[tuple[float, ...], tuple[float, ...]]
    ceiling: float
    error: tuple[float, ...]


# fmt: off
FORMATS = {
    "float": Format(
        integer="i32", fraction=23, bias=127, low_bits=12, guard=64, least=-87.3365, floor=-110.0, gelu_floor=15.0,
        ln2_high=0.693359375, ln2_low=-2.1219444005469057e-4,
        exponential=(0.5, 0.1666657342385974, 0.0416665501627203, 0.008363767023287037, 0.001392691805594798),
        mills=(
            (0.0, 0.45543001449624093, 0.29216146208777877, 0.08525347082057083, 0.011281396491340275),
            (1.0, 1.7393890047681404, 1.3047157889896341, 0.5373429954823166, 0.1245231198654512,
             0.014140153813933149),
        ),
        ceiling=89.0,
        error=(1.1283791658483509, -0.37612626666720334, 0.11283594715160218, -0.026854212010626412,
               0.005189087423433974, -0.000801686428716587, 7.875875062685488e-05),
    ),
    "double": Format(
        integer="i64", fraction=52, bias=1023, low_bits=27, guard=512, least=-708.396,
        floor=-760.0, gelu_floor=40.0,
        ln2_high=float.fromhex("0x1.62e42feep-1"), ln2_low=1.9082149292705877e-10,
        exponential=(0.5, 0.16666666666666669, 0.04166666666662068, 0.008333333333329796,
                     0.0013888888918918907, 0.00019841269864364933, 2.4801518672268355e-05,
                     2.7557266442353424e-06, 2.7621324269313687e-07, 2.5101335854788522e-08),
        mills=(
            (0.0, 0.45542957651263494, 0.6321833751893731, 0.4356640685853141, 0.19175515833174667,
             0.05885563263230028, 0.013011525416530662, 0.0020715153136017916, 0.0002298013844300156,
             1.6245679327715792e-05, 5.665351995093276e-07),
            (1.0, 2.485968047703137, 2.8938668281901516, 2.0866986830148804, 1.0382244869071144,
             0.3753711082158605, 0.10099765854733671, 0.020313432924175714, 0.0030100823826679493,
             0.00031535736247122084, 2.125085098159688e-05, 7.100465748343038e-07),
        ),
        ceiling=710.0,
        error=(1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
               0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05,
               1.6461000484121368e-06, -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09,
               5.957176147748911e-11),
    ),
}
# fmt: on
