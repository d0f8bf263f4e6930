"""Plain models of CUDA's builtins, in exact arithmetic where the builtin is exact."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

HALF = (5, 10)
BFLOAT = (8, 7)


def decode(bits: int, exponent_bits: int, fraction_bits: int) -> float:
    """The value of a code: an exact float, inf or nan."""
    sign = -1.0 if bits >> 15 else 1.0
    exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    bias = (1 << exponent_bits - 1) - 1
    if exponent == (1 << exponent_bits) - 1:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - fraction_bits)
    return sign * math.ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits)


def encode(
    value: Fraction | float, exponent_bits: int, fraction_bits: int, mode: str = "nearest", negative_zero: bool = False
) -> int:
    """The code nearest to an exact value (or toward zero, down, up); ties go to the even code."""
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    if isinstance(value, float):
        if math.isnan(value):
            return 0x7FFF
        negative_zero = math.copysign(1, value) < 0
        if math.isinf(value):
            return infinity | (0x8000 if value < 0 else 0)
        value = Fraction(value)
    sign = 0x8000 if value < 0 or (value == 0 and negative_zero) else 0
    size = abs(value)
    smallest = 2 - (1 << exponent_bits - 1)  # the exponent of the smallest normal number
    exponent = smallest
    if size:
        exponent = max(smallest, size.numerator.bit_length() - size.denominator.bit_length() - 1)
        exponent += size >= Fraction(2) ** (exponent + 1)
    scale = Fraction(2) ** (fraction_bits - exponent)
    top, bottom = size.numerator * scale.numerator, size.denominator * scale.denominator
    whole, rest = divmod(top, bottom)
    away = (mode == "up" and not sign) or (mode == "down" and sign != 0)
    if (mode == "nearest" and (2 * rest > bottom or (2 * rest == bottom and whole & 1))) or (rest and away):
        whole += 1
    code = whole + ((exponent - smallest) << fraction_bits)
    if code >= infinity:
        code = infinity if mode == "nearest" or away else infinity - 1
    return sign | code


def encode_all(data: np.ndarray, exponent_bits: int, fraction_bits: int) -> np.ndarray:
    """The codes of float32 values in the four modes, by comparing each with its two neighbours."""
    top = ((1 << exponent_bits) - 1) << fraction_bits
    values = np.array([decode(c, exponent_bits, fraction_bits) for c in range(top)] + [2.0 ** (1 << exponent_bits - 1)])
    x = data.astype(np.float64)
    size, negative = abs(x), np.signbit(x)
    low = np.clip(np.searchsorted(values, size, side="right") - 1, 0, top - 1)
    middle, even = (values[low] + values[low + 1]) / 2, low % 2 == 0
    inexact = size != values[low]
    nearest = low + ((size > middle) | ((size == middle) & ~even))
    finite = np.minimum(low, top - 1)
    modes = [nearest, finite, np.where(negative, low + inexact, finite), np.where(negative, finite, low + inexact)]
    codes = np.stack([np.where(np.isinf(x), top, m) + 0x8000 * negative for m in modes], axis=1)
    codes[np.isnan(x)] = 0x7FFF
    return codes


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def byte_perm(low: int, high: int, selector: int) -> int:
    source = (high << 32 | low).to_bytes(8, "little")
    out = []
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = source[nibble & 7]
        out.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def clz(x: int, bits: int = 32) -> int:
    return bits - x.bit_length()


def ffs(x: int) -> int:
    return (x & -x).bit_length()


def brev(x: int, bits: int = 32) -> int:
    return int(f"{x:0{bits}b}"[::-1], 2)


def integers(a: int, b: int, c: int) -> list[int]:
    """What the kernel `integers` writes for one triple of signed numbers."""
    ua, ub, uc = (x & 0xFFFFFFFF for x in (a, b, c))
    wide = ua << 32 | ub

    def bytes_of(x: int, is_signed: bool) -> list[int]:
        return [signed(x >> 8 * i, 8) if is_signed else x >> 8 * i & 255 for i in range(4)]

    def dot(is_signed: bool) -> int:
        return sum(x * y for x, y in zip(bytes_of(ua, is_signed), bytes_of(ub, is_signed), strict=True))

    values = [
        ua.bit_count(), clz(ua), ffs(ua), brev(ua), byte_perm(ua, ub, uc),
        (ub << 32 | ua) << (uc & 31) >> 32, (ub << 32 | ua) >> (uc & 31),
        signed(ua, 24) * signed(ub, 24), (ua & 0xFFFFFF) * (ub & 0xFFFFFF), a * b >> 32, ua * ub >> 32,
        abs(a - b) + uc, abs(ua - ub) + uc, dot(True) + c, dot(False) + uc,
        min(a, b), max(a, b), min(ua, ub), max(ua, ub), min(ua, ub), max(ua, ub),
        wide.bit_count() | clz(wide, 64) << 8 | ffs(wide) << 16, brev(wide, 64) >> 32,
        (wide * (uc << 32 | ua) >> 64 >> 32) ^ (signed(wide, 64) * c >> 64),
    ]  # fmt: skip
    return [signed(v) for v in values]


def shuffle_source(kind: str, lane: int, operand: int, width: int) -> int:
    """The lane that a shuffle reads."""
    start = lane // width * width
    source = {
        "idx": start + operand % width,
        "up": lane - operand,
        "down": lane + operand,
        "xor": lane ^ operand,
    }[kind]
    if kind == "up" and source < start:
        return lane
    if kind in ("down", "xor") and source >= start + width:
        return lane
    return source
