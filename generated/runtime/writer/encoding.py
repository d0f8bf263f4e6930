"""Encodes float32 numbers for a compressed cache, with operations that every version of PyTorch and every GPU has.

The fp8 encodings (OCP E4M3 and E5M2) round to the nearest number of the format, with ties to even. The fp8 encodings
replace a number that is too large by the largest finite number, and keep NaN. The int8 encoding rounds to the nearest
integer, with ties to even, and clamps to -127..127. The int8 encoding stores NaN as 0, because int8 has no NaN. The GPU
needs no fp8 arithmetic: adding a large power of two to a float32, and subtracting it again, rounds away the last bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

#: The largest number that an int8 cache stores. The smallest is -127: -128 is never stored.
INT8_LARGEST = 127

#: The largest finite number of each fp8 format, and its smallest positive number that is not subnormal.
E4M3_LARGEST, E4M3_SMALLEST = 448.0, 2.0**-6
E5M2_LARGEST, E5M2_SMALLEST = 57344.0, 2.0**-14

#: To encode a number in E4M3, it is divided by this number and converted to float16. The exponent bits and the first
#: fraction bits of the float16 are then those of the E4M3 code.
E4M3_DIVISOR = 2.0**8

#: For the bits of a float32 as int32: the mask of the exponent, and the number of fraction bits.
EXPONENT, FRACTION_BITS = 0x7F800000, 23

#: For the bits of a float16 as int16: the mask of the sign, the mask of all other bits, and the bits of E4M3's NaN.
SIGN, MAGNITUDE, E4M3_NAN = -0x8000, 0x7FFF, 0x7F << 7


class Fp8Space(NamedTuple):
    """The buffers for the encoding of fp8 values. Each buffer is a contiguous tensor with the shape of the values.

    powers: float32, for the powers of two that round the values.
    halves: int16, for the bits of the values in float16. spare: int16, for intermediate results.
    """

    powers: torch.Tensor
    halves: torch.Tensor
    spare: torch.Tensor


def encode_int8(values: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor) -> None:
    """Fill ``codes`` (int8) with values / scales, rounded and clamped to -127..127.

    values: float32, overwritten.
    scales: float32, in a shape that broadcasts to ``values``.
    """
    values.div_(scales).nan_to_num_(0.0).clamp_(-INT8_LARGEST, INT8_LARGEST)
    codes.copy_(values.round_())  # ties to even


def encode_e5m2(values: torch.Tensor, scales: torch.Tensor, space: Fp8Space, codes: torch.Tensor) -> None:
    """Fill ``codes`` (uint8) with the E5M2 encoding of values / scales.

    values: float32, contiguous, overwritten.
    scales: float32, in a shape that broadcasts to ``values``.
    space: the buffers that this function overwrites.
    """
    values.div_(scales).clamp_(-E5M2_LARGEST, E5M2_LARGEST)  # NaN stays
    halves = rounded_halves(values, 2, E5M2_SMALLEST, space)
    codes.copy_(halves.bitwise_right_shift_(8))  # E5M2 is the upper half of a float16


def encode_e4m3(values: torch.Tensor, scales: torch.Tensor, space: Fp8Space, codes: torch.Tensor) -> None:
    """Divide ``values`` by the scales of the cache, and fill ``codes`` (uint8) with the E4M3 encoding of the quotients.

    values: float32, contiguous, overwritten.
    scales: the cache's scales times ``E4M3_DIVISOR``, float32, in a shape that broadcasts to ``values``.
    space: the buffers that this function overwrites.
    """
    largest = E4M3_LARGEST / E4M3_DIVISOR
    values.div_(scales).clamp_(-largest, largest)  # NaN stays
    halves = rounded_halves(values, 3, E4M3_SMALLEST / E4M3_DIVISOR, space)
    magnitudes = torch.bitwise_and(halves, MAGNITUDE, out=space.spare)
    magnitudes.clamp_max_(E4M3_NAN).bitwise_right_shift_(7)  # a float16's NaN is larger than E4M3's
    signs = torch.bitwise_and(halves.bitwise_right_shift_(8), 0x80, out=halves)
    codes.copy_(signs.bitwise_or_(magnitudes))


def rounded_halves(values: torch.Tensor, fraction_bits: int, smallest: float, space: Fp8Space) -> torch.Tensor:
    """Round ``values`` (float32) to numbers with ``fraction_bits`` fraction bits, with ties to even.

    Returns ``space.halves``, an int16 tensor with the bits of the rounded numbers as float16. Numbers with magnitudes
    below ``smallest`` are subnormal. The function rounds subnormal numbers as if they had the exponent of ``smallest``.
    """
    space.halves.view(torch.float16).copy_(values)
    signs = torch.bitwise_and(space.halves, SIGN, out=space.spare)
    torch.bitwise_and(values.view(torch.int32), EXPONENT, out=space.powers.view(torch.int32))  # 2**exponent of each
    space.powers.clamp_min_(smallest)
    shift = 1.5 * 2.0 ** (FRACTION_BITS - fraction_bits)  # the sum with shift * power keeps only the bits that stay
    values.add_(space.powers, alpha=shift).sub_(space.powers, alpha=shift)
    space.halves.view(torch.float16).copy_(values)  # exact
    return space.halves.bitwise_or_(signs)  # values that were rounded to 0 lost their sign
