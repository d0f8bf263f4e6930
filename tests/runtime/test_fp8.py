"""All 256 codes of both formats, against the formats' definition and against torch's own decoder."""

import math

import pytest
import torch

from pav2gen.runtime.attention.fp8 import fp8_table
from pav2gen.runtime.testing.oracle import fp8_value

TORCH = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


@pytest.mark.parametrize("name", TORCH)
def test_the_table_is_the_definition(name):
    table = fp8_table(name, torch.device("cpu"))
    for code in range(256):
        expected = fp8_value(code, name)
        assert (math.isnan(expected) and math.isnan(table[code])) or float(table[code]) == expected, code
    assert torch.signbit(table[128]) and not torch.signbit(table[0])


@pytest.mark.parametrize("name", TORCH)
def test_the_definition_is_torch_s(name):
    codes = torch.arange(256, dtype=torch.uint8)
    decoded = codes.view(getattr(torch, TORCH[name])).float()
    expected = torch.tensor([fp8_value(code, name) for code in range(256)])
    torch.testing.assert_close(expected, decoded, rtol=0, atol=0, equal_nan=True)


def test_known_codes():
    assert fp8_value(0x7E, "fp8_e4m3") == 448.0
    assert fp8_value(0x01, "fp8_e4m3") == 2.0**-9
    assert fp8_value(0x7B, "fp8_e5m2") == 57344.0
    assert fp8_value(0xFC, "fp8_e5m2") == -math.inf
    assert fp8_value(0xB8, "fp8_e4m3") == -1.0


def test_the_table_is_made_once():
    assert fp8_table("fp8_e4m3", torch.device("cpu")) is fp8_table("fp8_e4m3", torch.device("cpu"))
