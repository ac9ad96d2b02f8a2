"""Floats as Ruby prints them: by `Float#to_s`, as its json gem did before 2.12, and by the gem itself since then.

ruby_float   Float#to_s: the shortest digits that read back as the same float; an exponent below 1e-4 and from 1e15 on
json_float   json since 2.12 (fpconv, Grisu2): an exponent below 1e-9 and from 1e15 on, no `.0` before it; the shortest
             digits, except for one float in a thousand, which has one digit more, or another last digit
FORMS        both, by the version in the setting `ruby_json`

A number with at most three decimals and fifteen digits has the same digits in both forms: Grisu2's error, 1/1000 of the
distance to the next float, is less than the distance of such a number from the middle between two floats (1/250 of it).

Source: numeric.c (flo_to_s), and ext/json/vendor/fpconv.c of json 2.16; 11 547 floats of both in tests/golden.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

__all__ = ["FORMS", "FloatForm", "json_float", "ruby_float"]

HIDDEN_BIT = 1 << 52  # of a float's fraction
EXPONENT_BIAS = 1_075  # so that a float is its fraction times a power of two
FIRST_POWER, POWER_STEP = -348, 8  # of the powers of ten in Grisu2's table
LOWEST_EXPONENT, HIGHEST_EXPONENT = -60, -32  # of a product with one of them
LOG10_OF_2 = 0.30102999566398114


@dataclass(frozen=True, slots=True)
class FloatForm:
    """A form of floats.

    may_differ: finds a number in an array or object that msgspec may print differently.  It may also match text in a
    string, which only costs time.  Every payload is searched, so few bytes can start a match, and it never backtracks.
    """

    write: Callable[[float], str]
    may_differ: re.Pattern[bytes]


def ruby_float(number: float) -> str:
    """Return a finite float as Ruby's Float#to_s prints it (flo_to_s in numeric.c: 17 digits fixed, else exponent)."""
    mantissa, _, exponent = f"{Decimal(repr(number)):e}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    digits = mantissa.lstrip("-").replace(".", "").rstrip("0") or "0"
    point = int(exponent) + 1  # digits before the decimal point
    if number == 0:
        return f"{sign}0.0"
    if 0 < point < len(digits):
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if len(digits) <= point <= 15:
        return f"{sign}{digits.ljust(point, '0')}.0"
    if -4 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    return f"{sign}{digits[0]}.{digits[1:] or '0'}e{'-' if power < 0 else '+'}{abs(power):02d}"


def json_float(number: float) -> str:
    """Return a finite float as Ruby's json prints it since 2.12."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", number))
    sign = "-" if bits >> 63 else ""
    if number == 0:
        return f"{sign}0.0"
    digits, power = _grisu2(bits)
    count, exponent = len(digits), abs(power + len(digits) - 1)
    if power >= 0 and exponent < 15:
        return f"{sign}{digits}{'0' * power}.0"
    if power < 0 and (power > -7 or exponent < 10):
        point = count + power
        return f"{sign}{digits[:point]}.{digits[point:]}" if point > 0 else f"{sign}0.{'0' * -point}{digits}"
    point_and_rest = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{point_and_rest}e{'-' if power + count < 1 else '+'}{exponent}"


@cache
def _power_of_ten(index: int) -> tuple[int, int]:
    """Return a power of ten as 64 rounded bits, and the power of two to multiply them by."""
    power = FIRST_POWER + POWER_STEP * index
    top, bottom = (10**power, 1) if power >= 0 else (1, 10**-power)
    shift = top.bit_length() - bottom.bit_length() - 64
    while True:
        up, down = (top << max(0, -shift)), (bottom << max(0, shift))
        fraction = (2 * up + down) // (2 * down)
        if fraction.bit_length() <= 64:
            return fraction, shift
        shift += 1


def _scaled(exponent: int) -> tuple[int, int, int]:
    """Return the power of ten that brings a 64-bit number of this exponent into Grisu2's range.

    Returns its 64 bits, their exponent, and the power.
    """
    index = int((int(-(exponent + 87) * LOG10_OF_2) - FIRST_POWER) / POWER_STEP)
    while True:
        fraction, own = _power_of_ten(index)
        if exponent + own + 64 < LOWEST_EXPONENT:
            index += 1
        elif exponent + own + 64 > HIGHEST_EXPONENT:
            index -= 1
        else:
            return fraction, own, FIRST_POWER + POWER_STEP * index


def _product(one: int, other: int) -> int:
    return (one * other + (1 << 63)) >> 64


def _grisu2(bits: int) -> tuple[str, int]:
    """Return the digits of a float that is not 0, and the power of ten to multiply them by."""
    fraction, exponent = bits & (HIDDEN_BIT - 1), (bits >> 52) & 0x7FF
    fraction, exponent = (
        (fraction + HIDDEN_BIT, exponent - EXPONENT_BIAS) if exponent else (fraction, 1 - EXPONENT_BIAS)
    )
    # The midpoints to the neighbours; the lower one is nearer when the exponent changes.
    upper, upper_exponent = 2 * fraction + 1, exponent - 1
    room = 64 - upper.bit_length()
    upper, upper_exponent = upper << room, upper_exponent - room
    nearer = 2 if fraction == HIDDEN_BIT else 1
    lower = ((fraction << nearer) - 1) << (exponent - nearer - upper_exponent)
    power_fraction, power_exponent, power = _scaled(upper_exponent)
    middle = _product(fraction << (64 - fraction.bit_length()), power_fraction)
    upper, lower = _product(upper, power_fraction) - 1, _product(lower, power_fraction) + 1
    return _digits(middle, upper, lower, -(upper_exponent + power_exponent + 64), -power)


def _digits(middle: int, upper: int, lower: int, shift: int, power: int) -> tuple[str, int]:
    """Return the fewest digits of `upper` that lie above `lower`, moved towards `middle`, and their power of ten.

    shift: bits after the point.
    """
    to_middle, delta, one = upper - middle, upper - lower, 1 << shift
    whole, rest = upper >> shift, upper & (one - 1)
    digits = ""
    for left in range(9, -1, -1):
        unit = 10**left
        digit, whole = divmod(whole, unit)
        if digit or digits:
            digits += str(digit)
        remainder = (whole << shift) + rest
        if remainder <= delta:
            return _rounded(digits, delta, remainder, unit << shift, to_middle), power + left
    left = 0
    while True:
        rest, delta, to_middle, left = rest * 10, delta * 10, to_middle * 10, left - 1
        digit, rest = rest >> shift, rest & (one - 1)
        if digit or digits:
            digits += str(digit)
        if rest < delta:
            return _rounded(digits, delta, rest, one, to_middle), power + left


def _rounded(digits: str, delta: int, remainder: int, unit: int, to_middle: int) -> str:
    """Return the digits, with the last one lowered while that brings them nearer to the float."""
    last = int(digits[-1])
    while (
        remainder < to_middle
        and delta - remainder >= unit
        and (remainder + unit < to_middle or to_middle - remainder > remainder + unit - to_middle)
    ):
        last -= 1
        remainder += unit
    return digits[:-1] + str(last)


FORMS = {
    "2.6": FloatForm(ruby_float, re.compile(rb"[:,\[]-?(?:0\.0000|[0-9]{16,}+\.|[0-9]++(?:\.[0-9]++)?+e)")),
    "2.12": FloatForm(json_float, re.compile(rb"[:,\[]-?(?:[0-9]{13,}+\.|[0-9]++(?:\.[0-9]{4}|(?:\.[0-9]++)?+e))")),
}
