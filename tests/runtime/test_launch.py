"""What a CUDA call costs on the host: checks and arguments once for each layout, a workspace for each stream."""

import threading

import pytest
import torch

from pav2gen.runtime import launch
from pav2gen.runtime.check import check as check_call
from pav2gen.runtime.check import layout_of
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.op import Operator
from pav2gen.runtime.operators.loaded import Kernels
from pav2gen.runtime.testing.cases import Case, copy_outputs, make

KEY = Key(64, 7, 16, "float16", "auto", False, False)
CPU = torch.device("cpu")


def call_of(seed=0, **options):
    return make(Case(KEY, 256, (33, 300), seed=seed, **options))


@pytest.fixture
def checked(monkeypatch):
    """An operator without kernels, and the list of calls that it checks in full."""
    calls = []

    def record(call, kv_cache_dtype):
        calls.append(call)
        return check_call(call, kv_cache_dtype)

    monkeypatch.setattr("pav2gen.runtime.check.check", record)
    return Operator(Kernels("test_launch", [])), calls


def test_a_layout_is_checked_once(checked):
    operator, calls = checked
    first, second = operator.check(call_of(), "auto"), operator.check(call_of(seed=1), "auto")
    assert first[0] == KEY._replace(dtype="float16")
    assert first == second and len(calls) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda call: call._replace(block_tables=call.block_tables.long()),
        lambda call: call._replace(seq_lens=call.seq_lens[:1]),
        lambda call: call._replace(query=call.query.float()),
        lambda call: call._replace(out=call.out.transpose(0, 1).contiguous().transpose(0, 1)),
        lambda call: call._replace(max_seq_len=-1),
        lambda call: call._replace(softcap=-1.0),
        lambda call: call._replace(key_cache=None),
        lambda call: call._replace(sinks=torch.zeros(3)),
        lambda call: call._replace(scratch=call.scratch._replace(exp_sums=call.scratch.exp_sums.double())),
        lambda call: call._replace(key_cache=misaligned(call.key_cache)),
        lambda call: call._replace(alibi_slopes=torch.zeros(14, device="meta")),
    ],
)
def test_another_layout_is_checked_again(checked, change):
    operator, _ = checked
    operator.check(call_of(), "auto")
    with pytest.raises(ValueError, match="paged_attention_v2: "):
        operator.check(change(call_of()), "auto")


def misaligned(cache):
    """A copy of a cache, with the same strides, that starts at an odd element."""
    memory = torch.empty(cache.numel() + 8, dtype=cache.dtype)
    return memory[1 : 1 + cache.numel()].view(cache.shape).copy_(cache)


def test_the_layout_tells_shapes_and_not_addresses():
    call = call_of()
    assert layout_of(call, "auto") == layout_of(copy_outputs(call), "auto") == layout_of(call_of(seed=2), "auto")
    assert layout_of(call, "auto") != layout_of(call, "fp8")
    assert layout_of(call, "auto") != layout_of(call_of(query_gap=8), "auto")
    assert layout_of(call, "auto") != layout_of(call_of(block_gap=1), "auto")


def fields(args):
    found = {name: getattr(args, name) for name, _ in launch.Args._fields_}
    return {name: list(value) if name == "tensors" else value for name, value in found.items()}


def arguments(call, layout):
    args = launch.shape_arguments(call, layout)
    launch.set_addresses(args, call, 2, torch.empty(2 * 14 * 2 * 66))
    found = fields(args)
    return {name: value for name, value in found.items() if not name.startswith("partial_")}


def test_arguments_of_a_known_layout_are_those_made_anew():
    layout, other = object(), call_of(seed=3)
    arguments(call_of(), layout)
    assert arguments(other, layout) == arguments(other, None)
    assert arguments(other, layout)["query"] == other.query.data_ptr()


def test_a_scratch_without_room_does_not_hide_the_strides_of_one_with_room():
    layout, call = object(), call_of()
    without = arguments(call._replace(scratch=None), layout)
    assert without["exp_sums"] is None
    assert arguments(call, layout) == arguments(call, None)
    assert arguments(call, layout)["sums_seq_stride"] == call.scratch.exp_sums.stride(0) != 0


@pytest.fixture
def capturing(monkeypatch):
    """A switch: whether torch says that the current stream is captured."""
    switch = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: switch[0])
    return switch


@pytest.mark.usefixtures("capturing")
def test_a_workspace_is_reused_and_grows():
    first = launch.workspace(100, CPU, 7)
    assert launch.workspace(50, CPU, 7) is first
    larger = launch.workspace(1000, CPU, 7)
    assert larger.shape[0] == 1000 and launch.workspace(100, CPU, 7) is larger


@pytest.mark.usefixtures("capturing")
def test_streams_and_threads_have_workspaces_of_their_own():
    found = [launch.workspace(100, CPU, 8), launch.workspace(100, CPU, 9)]
    thread = threading.Thread(target=lambda: found.append(launch.workspace(100, CPU, 8)))
    thread.start()
    thread.join()
    assert len({tensor.data_ptr() for tensor in found}) == 3


def test_a_captured_graph_keeps_a_workspace_of_its_own(capturing):
    held = launch.workspace(100, CPU, 10)
    capturing[0] = True
    captured = [launch.workspace(100, CPU, 10) for _ in range(2)]
    assert len({tensor.data_ptr() for tensor in (held, *captured)}) == 3
