"""Bytes in flight by hand, and a plan that takes what keeps the memory busy."""

import dataclasses

import pytest

from pav2gen.family.target import find
from pav2gen.plan.cuda_geometry import Geometry
from pav2gen.plan.cuda_plan import layouts, plan_cuda
from pav2gen.plan.occupancy import bytes_needed, estimated_registers, occupancy
from pav2gen.reading import spec_file

QWEN = spec_file.load("specs/qwen36.yaml")
VARIANT = next(v for v in spec_file.variants(QWEN) if v.slug == "hd256_g6_b16_f16_p512")
CARD = find("bi-v100")
#: 4 runs of 8 bytes are 32 bytes of K of a thread; 256 rows of 4 lanes over 128 threads are 8 rows of 8 bytes of V.
GEOMETRY = Geometry(threads=128, heads=6, step=512, runs=4, key_words=2, value_words=2, row_lanes=4)


def test_bytes_in_flight():
    found = occupancy(VARIANT, GEOMETRY, 18_592, CARD)
    assert (found.blocks, found.limited_by) == (2, "shared memory")  # 48 KiB
    assert (found.key_bytes, found.value_bytes) == (2 * 128 * 32, 2 * 128 * 64)
    assert found.needed == bytes_needed(CARD) == round(584.2 / 16 * 600)
    assert found.bytes_in_flight == 8192 and found.share == pytest.approx(8192 / 21_908, rel=1e-3)


@pytest.mark.parametrize(
    ("figures", "blocks", "limited_by"),
    [
        ({"shared_memory_per_multiprocessor": 128 << 10}, 3, "registers"),  # 64 K over 128 threads of 144
        ({"shared_memory_per_multiprocessor": 128 << 10, "registers_per_multiprocessor": 128 << 10}, 7, "registers"),
        ({"shared_memory_per_multiprocessor": 128 << 10, "threads_per_multiprocessor": 256}, 2, "threads"),
    ],
)
def test_what_limits_the_resident_blocks(figures, blocks, limited_by):
    found = occupancy(VARIANT, GEOMETRY, 18_592, CARD.with_overrides(figures))
    assert estimated_registers(VARIANT, GEOMETRY) == 144  # 56, 48 accumulators, and 40 that overlap
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


def test_registers_as_a_compiler_reports_them_replace_the_estimate():
    assert occupancy(VARIANT, GEOMETRY, 1024, CARD, registers=64).blocks == (64 << 10) // (64 * 128)


def test_a_target_without_bandwidth_needs_no_bytes():
    found = occupancy(VARIANT, GEOMETRY, 18_592, find("mr-v100"))
    assert found.needed is None and found.share is None and found.bytes_in_flight == 8192


def test_the_plan_keeps_more_in_flight_than_the_fewest_threads_would():
    planned = plan_cuda(VARIANT, CARD, {})
    few = plan_cuda(VARIANT, CARD, {"threads": 128, "step": 512})
    assert planned.occupancy.bytes_in_flight >= 1.5 * few.occupancy.bytes_in_flight
    assert planned.figures()["kib_in_flight"] == round(planned.occupancy.bytes_in_flight / 1024, 1)


def test_where_enough_is_in_flight_the_longest_step_and_the_fewest_threads_stand():
    card = dataclasses.replace(CARD, latency_ns=10.0)
    g = plan_cuda(VARIANT, card, {}).geometry
    assert (g.threads, g.step) == (128, 512)


def test_loads_are_no_wider_than_the_target_s_where_such_a_layout_fits():
    for spec in (
        spec_file.load(path) for path in ("specs/qwen36.yaml", "specs/qwen3_235b.yaml", "specs/llama3_8b.yaml")
    ):
        for v in spec_file.variants(spec):
            g = plan_cuda(v, spec.target, {}).geometry
            assert 4 * g.key_words <= spec.target.load_bytes and 4 * g.value_words <= spec.target.load_bytes


def test_layouts_are_distinct_and_the_first_is_the_plan():
    found = layouts(VARIANT, CARD, 6, {})
    assert found[0] == plan_cuda(VARIANT, CARD, {})
    assert len({p.geometry for p in found}) == len(found) > 5
