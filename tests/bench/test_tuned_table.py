"""The tuned table at run time: what was measured on this device, for calls of this size, overrides the cost model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.runtime import op
from pav2gen.runtime.choice.dispatch_row import Row, Tuned
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.choice.miss import NoKernelError
from pav2gen.runtime.choice.select import Table

KEY = Key(256, 6, 16, "float16", "auto", False, False)
CARD = "Iluvatar BI-V100"


def row(partition, spec="a", fixed=0, **options):
    names = {"torch": "m", "cuda": "m.cu", **options}
    return Row(f"{spec}_p{partition}", spec, KEY, partition, names["torch"], names["cuda"], 8192, fixed, 16, 64)


def entry(partition, num_seqs=8, max_seq_len=32768, backend="cuda", device=CARD, kv_heads=4, spec="a"):
    return Tuned(f"{spec}_p{partition}", backend, device, kv_heads, num_seqs, max_seq_len)


ROWS = [row(256), row(512), row(1024)]


def choose(table, num_seqs=8, max_seq_len=32768, backend="cuda", device=CARD, kv_heads=4, **options):
    return table.choose(KEY, backend, num_seqs, max_seq_len, kv_heads, device=device, **options).partition_size


MODEL = choose(Table(ROWS))
OTHER = next(each.partition_size for each in ROWS if each.partition_size != MODEL)
TABLE = Table(ROWS, [entry(OTHER)])


def test_a_measurement_overrides_the_model():
    assert choose(TABLE) == OTHER != MODEL


@given(st.integers(1, 20), st.integers(1, 70_000))
def test_it_stands_for_calls_of_its_size_down_to_half(num_seqs, max_seq_len):
    within = 4 < num_seqs <= 8 and 16384 < max_seq_len <= 32768
    plain = choose(Table(ROWS), num_seqs, max_seq_len)
    assert choose(TABLE, num_seqs, max_seq_len) == (OTHER if within else plain)


@pytest.mark.parametrize("other", [{"backend": "torch"}, {"device": "cpu"}, {"device": ""}, {"kv_heads": 2}])
def test_another_device_backend_or_rank_is_not_served_by_it(other):
    assert choose(TABLE, **other) == choose(Table(ROWS), **other)


def test_a_partition_size_that_is_asked_for_or_fixed_overrides_it():
    assert choose(TABLE, partition_size=MODEL) == MODEL
    fixed = Table([row(p, fixed=MODEL) for p in (256, 512, 1024)], [entry(OTHER)])
    assert choose(fixed) == MODEL


def test_the_measurement_nearest_in_size_decides():
    table = Table(ROWS, [entry(256, 8, 32768), entry(512, 8, 20000), entry(1024, 6, 20000)])
    assert choose(table, 8, 20000) == 512
    assert choose(table, 6, 20000) == 1024
    assert choose(table, 8, 20001) == 256


def test_a_row_of_a_spec_that_does_not_serve_the_key_chooses_nothing():
    rows = [*ROWS, row(OTHER, spec="b")]
    assert choose(Table(rows, [entry(OTHER, spec="b")])) == MODEL


def test_a_row_without_the_backend_is_passed_over():
    rows = [row(p, cuda="" if p == OTHER else "m.cu") for p in (256, 512, 1024)]
    assert choose(Table(rows, [entry(OTHER)])) == choose(Table(rows))
    with pytest.raises(NoKernelError):
        choose(Table(rows, [entry(OTHER)]), partition_size=OTHER)


def test_the_device_is_called_by_its_card_and_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: asked.append(device) or CARD)
    op.device_name.cache_clear()
    try:
        assert [op.device_name(torch.device("cuda", 1)) for _ in range(3)] == [CARD] * 3
        assert asked == [torch.device("cuda", 1)]
    finally:
        op.device_name.cache_clear()
    assert op.device_name(torch.device("cpu")) == "cpu"
