"""The memory of calls: kept by a thread, never shared by two calls, of use in every mode of torch."""

import threading

import pytest
import torch

from pav2gen.runtime.attention import workspace as memory
from pav2gen.runtime.attention.workspace import LEAST_BYTES, carve, total, workspace

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept():
    memory.forget()


def address(held):
    return held.space(lambda all: all, {"all": 8}).view(torch.uint8, 8).data_ptr()


def lease(num_bytes=1 << 21):
    with workspace(num_bytes, CPU) as held:
        return held


def test_a_thread_keeps_its_memory():
    first = lease()
    assert lease() is first and lease(1 << 20) is first
    assert lease((1 << 21) + 1) is not first


def test_a_short_call_has_room_to_grow():
    assert lease(100).num_bytes == LEAST_BYTES


def test_a_call_inside_a_call_has_memory_of_its_own():
    with workspace(1 << 20, CPU) as outer, workspace(1 << 20, CPU) as inner:
        assert address(outer) != address(inner)


def test_memory_of_a_call_that_failed_is_freed():
    with pytest.raises(KeyError), workspace(1 << 20, CPU):
        raise KeyError
    assert memory._kept.workspace is None


def test_threads_share_no_memory():
    barrier, found = threading.Barrier(8), []

    def run():
        for _ in range(20):
            with workspace(1 << 20, CPU) as held:
                barrier.wait()
                found.append(address(held))
                barrier.wait()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for start in range(0, len(found), 8):
        assert len(set(found[start : start + 8])) == 8


@pytest.mark.parametrize("first, second", [(True, False), (False, True)])
def test_memory_serves_in_inference_mode_and_outside(first, second):
    for mode in (first, second):
        with torch.inference_mode(mode), workspace(1 << 20, CPU) as held:
            buffer = held.space(lambda all: all, {"all": 64}).view(torch.float32, 16)
            assert float(buffer.fill_(2.0).mul_(3.0).sum()) == 96.0


def test_views_made_in_inference_mode_are_no_inference_tensors():
    def halves(space, count):
        return (space.view(torch.float32, count).view(torch.float16),)

    with torch.inference_mode():
        buffer = lease().space(lambda all: all, {"all": 64})
        assert not buffer.view(torch.float32, 2).is_inference()
        assert not buffer.once(halves, buffer, 4)[0].is_inference()


def test_buffers_do_not_overlap():
    sizes = {"a": 300, "b": 1, "c": 256}
    assert total(sizes) == 512 + 256 + 256
    block = torch.zeros(total(sizes), dtype=torch.uint8)
    for number, (name, buffer) in enumerate(carve(block, sizes).items(), 1):
        buffer.view(torch.uint8, sizes[name]).fill_(number)
    assert [int((block == number).sum()) for number in (1, 2, 3)] == [300, 1, 256]


def test_each_shape_has_its_views():
    with workspace(1 << 20, CPU) as held:
        one, two, again = (held.space(dict, {"all": size}) for size in (64, 128, 64))
        assert one is again and one is not two


def test_views_are_made_once_for_each_maker_and_size():
    buffer = carve(torch.empty(1024, dtype=torch.uint8), {"all": 1024})["all"]

    def floats(space, count):
        return (space.view(torch.float32, count),)

    def halves(space, count):
        return (space.view(torch.float16, count),)

    found = buffer.once(floats, buffer, 8)
    assert buffer.once(floats, buffer, 8) is found
    assert [buffer.once(make, buffer, n)[0].shape[0] for make in (floats, halves) for n in (8, 4)] == [8, 4, 8, 4]
    assert buffer.once(halves, buffer, 8)[0].dtype == torch.float16
