"""Lengths as host values: always those on the CPU, rarely those on a GPU, never those of a call that is captured."""

import gc

import pytest
import torch

from pav2gen.runtime import lengths
from pav2gen.runtime.lengths import host_lengths, is_captured, may_read

GPU = torch.device("cuda", 0)


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is on a GPU and counts how often the host reads it."""

    reads = 0

    @property
    def device(self):
        return GPU

    def tolist(self):
        OnGpu.reads += 1
        return self.as_subclass(torch.Tensor).tolist()


def on_gpu(*values):
    """A tensor that says it is on a GPU."""
    return torch.tensor(values, dtype=torch.int32).as_subclass(OnGpu)


@pytest.fixture(autouse=True)
def nothing_read_yet():
    OnGpu.reads = 0
    lengths._last.clear()


def test_lengths_on_the_cpu_are_always_read(monkeypatch):
    monkeypatch.setenv("PAV2_HOST_LENGTHS", "never")
    assert may_read(torch.device("cpu"), "never")
    assert host_lengths(torch.tensor([3, -1], dtype=torch.int32), False) == (3, -1)


@pytest.mark.parametrize(
    "policy, variable, capturing, expected",
    [
        ("auto", None, False, True),
        ("never", None, False, False),
        ("auto", "never", False, False),
        ("never", "auto", False, True),
        ("auto", "", False, True),
        ("auto", None, True, False),
        ("never", "auto", True, False),
    ],
)
def test_the_policy_of_a_gpu(monkeypatch, policy, variable, capturing, expected):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.delenv("PAV2_HOST_LENGTHS", raising=False)
    if variable is not None:
        monkeypatch.setenv("PAV2_HOST_LENGTHS", variable)
    assert may_read(GPU, policy) is expected
    assert is_captured(GPU) is capturing and not is_captured(torch.device("cpu"))


def test_an_unknown_policy_is_refused(monkeypatch):
    monkeypatch.setenv("PAV2_HOST_LENGTHS", "often")
    with pytest.raises(ValueError, match="PAV2_HOST_LENGTHS is 'often'; it must be auto or never"):
        may_read(GPU, "auto")


def test_all_layers_of_a_step_read_once():
    seq_lens = on_gpu(5, 700, 3)
    assert [host_lengths(seq_lens, True) for _ in range(16)] == [(5, 700, 3)] * 16
    assert OnGpu.reads == 1


def test_a_change_in_place_is_read_again():
    seq_lens = on_gpu(5, 700, 3)
    host_lengths(seq_lens, True)
    seq_lens.add_(1)
    assert host_lengths(seq_lens, True) == (6, 701, 4)
    assert OnGpu.reads == 2


def test_the_next_step_s_tensor_is_read_again():
    assert host_lengths(on_gpu(5, 700, 3), True) == (5, 700, 3)
    assert host_lengths(on_gpu(8), True) == (8,)


def test_a_read_that_saves_nothing_is_not_made():
    assert host_lengths(on_gpu(5, 700, 3), False) is None
    assert OnGpu.reads == 0


def test_a_tensor_without_a_version_counter_is_not_read():
    with torch.inference_mode():
        seq_lens = on_gpu(5)
    assert seq_lens.is_inference() and host_lengths(seq_lens, True) is None
    assert OnGpu.reads == 0


def test_the_cache_keeps_no_tensor_alive():
    seq_lens = on_gpu(5, 700, 3)
    host_lengths(seq_lens, True)
    (reading,) = lengths._last.values()
    del seq_lens
    gc.collect()
    assert reading.tensor() is None
