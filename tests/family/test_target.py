"""Every figure of a card has its source or is marked unknown, and a spec may override it within bounds."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pav2gen.errors import UserError
from pav2gen.family.target import FIGURES, TARGETS, Target, find

WORDS = {"name", "about", "sources"}
PROFILES = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@PROFILES
def test_a_source_beside_each_figure(target: Target) -> None:
    figures = {field.name: getattr(target, field.name) for field in dataclasses.fields(target)}
    assert set(target.sources) == set(figures) - WORDS
    for name, source in target.sources.items():
        assert len(source) > 10, name
        assert (figures[name] is None) == source.startswith("unknown: "), name


@PROFILES
def test_known_figures_are_what_an_override_may_be(target: Target) -> None:
    for name, figure in FIGURES.items():
        value = getattr(target, name)
        assert value is None or figure.admits(value), name


@PROFILES
def test_figures_fit_each_other(target: Target) -> None:
    assert target.max_threads_per_block % target.warp_size == 0
    assert target.shared_memory_bytes == 48 * 1024
    assert (target.bandwidth_gbps or 0) <= (target.peak_bandwidth_gbps or 0)
    assert target.warp_size == (32 if target.arch.startswith("sm_") else 64)


def test_the_first_card() -> None:
    card = find("bi-v100")
    assert next(iter(TARGETS)) == "bi-v100"
    assert (card.arch, card.warp_size, card.multiprocessors, card.max_threads_per_block) == ("ivcore10", 64, 16, 4096)
    assert (card.bandwidth_gbps, card.peak_bandwidth_gbps, card.launch_us) == (584.2, 1228.8, 6.2)
    assert card.registers_per_thread is card.threads_per_multiprocessor is None


@pytest.mark.parametrize(
    ("name", "multiprocessors", "threads", "bandwidth"),
    [("sm_70", 80, 2048, 900), ("sm_75", 40, 1024, 320), ("sm_80", 108, 2048, 2039), ("sm_90", 132, 2048, 3350)],
)
def test_the_cards_of_nvidia(name: str, multiprocessors: int, threads: int, bandwidth: float) -> None:
    card = find(name)
    assert (card.multiprocessors, card.threads_per_multiprocessor, card.bandwidth_gbps) == (
        multiprocessors,
        threads,
        bandwidth,
    )
    assert (card.arch, card.max_threads_per_block, card.registers_per_thread) == (name, 1024, 255)


@pytest.mark.parametrize(("name", "near"), [("bi-v1000", "bi-v100"), ("BI-V100", "bi-v100"), ("sm_8O", "sm_80")])
def test_an_unknown_card_has_a_neighbour(name: str, near: str) -> None:
    with pytest.raises(UserError, match=rf"^unknown target '{name}'; did you mean {near}\?$"):
        find(name)


def test_a_card_that_resembles_none() -> None:
    with pytest.raises(UserError, match="write bi-v100, mr-v100, sm_70, sm_75, sm_80 or sm_90"):
        find("tpu")


def test_overrides_say_so_and_leave_the_profile() -> None:
    card = find("bi-v100").with_overrides({"multiprocessors": 32, "launch_us": 5})
    assert (card.multiprocessors, card.launch_us) == (32, 5)
    assert card.sources["multiprocessors"] == card.sources["launch_us"] == "set by the spec"
    assert card.sources["warp_size"] == find("bi-v100").sources["warp_size"]
    assert find("bi-v100").multiprocessors == 16
    assert find("bi-v100").with_overrides({}) == find("bi-v100")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("warp_size", 48, "warp_size must be 32 or 64, not '48'"),
        ("warp_size", 64.0, "warp_size must be 32 or 64, not '64.0'"),
        ("load_bytes", True, "load_bytes must be 4, 8 or 16, not 'True'"),
        ("multiprocessors", 0, "multiprocessors must be a whole number from 1 to 1024, not '0'"),
        ("multiprocessors", True, "multiprocessors must be a whole number from 1 to 1024, not 'True'"),
        (
            "shared_memory_bytes",
            262145,
            "shared_memory_bytes must be a whole number from 16384 to 262144, not '262145'",
        ),
        ("bandwidth_gbps", "fast", "bandwidth_gbps must be a number from 1 to 100000, not 'fast'"),
        ("bandwidth_gbps", math.nan, "bandwidth_gbps must be a number from 1 to 100000, not 'nan'"),
        ("launch_us", None, "launch_us must be a number from 0.1 to 10000, not 'None'"),
        ("warps", 64, "a target has no figure 'warps'; did you mean warp_size?"),
        ("name", "other", "a target has no figure 'name'; write warp_size, multiprocessors"),
    ],
)
def test_an_override_of_a_wrong_type_or_range(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as raised:
        find("bi-v100").with_overrides({name: value})
    assert str(raised.value).startswith(message)


def test_every_figure_can_be_overridden() -> None:
    numbers = {field.name for field in dataclasses.fields(Target)} - WORDS - {"arch"}
    assert set(FIGURES) == numbers
