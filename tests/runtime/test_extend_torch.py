"""What a PyTorch extend kernel may cost: workspace, calls, host reads. The workspace is small, so calls fill it."""

import importlib
import shutil

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.family.spec import points
from pav2gen.plan import kernel as plan
from pav2gen.reading import spec_file
from pav2gen.runtime.extend import tiles

from .conftest import load

MIB = 1 << 20
SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: 12, num_kv_heads: 2, max_seq_len: 131072}}
axes: {{head_size: 128, gqa_ratio: 6, partition_size: 512, kv_cache_dtype: {kv}}}
features: {features}
modifications: {{own: {{score: "s + (k - q) / len", mask: "(q - k) % 5 != 1"}}}}
operators: [extend]
backends: [torch]
limits: {{workspace_mib: 8}}
"""
KERNELS = {
    "plain": {"kv": "auto", "features": "{modification: [null, own]}"},
    "every": {"kv": "fp8_e4m3", "features": "{alibi: true, sliding_window: 300, sinks: true, modification: own}"},
}

#: Query tokens and contexts: a chunk of a prompt, drafts, a mixed batch, many decodes.
BATCHES = {
    "chunk": ([70], [900]),
    "drafts": ([4] * 8, [700] * 8),
    "mixed": ([1] * 8 + [70], [50] * 8 + [300]),
    "decodes": ([1] * 70, [100] * 70),
}


class Costed:
    """A kernel with its plan, and the probe of its package, which knows the memory that the package keeps."""

    def __init__(self, package, point, held):
        row = next(row for row in package.kernels.rows if row.symbol == point.symbol)
        self.harness = importlib.import_module(f"{package.__name__}.runtime.extend.harness").TorchExtend(package, row)
        self.cases = importlib.import_module(f"{package.__name__}.runtime.extend.cases")
        self.rows = importlib.import_module(f"{package.__name__}.runtime.extend.rows")
        self.tiles = importlib.import_module(f"{package.__name__}.runtime.extend.tiles")
        self.probe = importlib.import_module(f"{package.__name__}.runtime.testing.probe")
        self.module, self.plan = self.harness.module, held.torch

    def call(self, new, old, known=True, **options):
        case = self.harness.case(new, old, kv_heads=2, shared_blocks=64, **options)
        return self.cases.make(case)._replace(lse=None, read_lengths=known)

    def peak(self, call):
        return self.probe.peak_bytes(lambda: self.module.paged_attention_extend(call))

    def counts(self, call):
        self.module.paged_attention_extend(call)
        return self.probe.count_calls(lambda: self.module.paged_attention_extend(call))

    def groups(self, call):
        return self.rows.groups_of(call, self.module.CPU, self.plan.shape(2))


@pytest.fixture(scope="module", params=["plain", "every"])
def kernel(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("costs")
    (root / "costs.yaml").write_text(SPEC.format(name=request.param, **KERNELS[request.param]))
    build([root / "costs.yaml"], BuildOptions(root / "package"))
    spec = spec_file.load(root / "costs.yaml")
    (point, *_) = points(spec)
    yield Costed(load(root / "package", f"pav2_of_the_cost_tests_{request.param}"), point, plan.kernel(point, spec).p)
    shutil.rmtree(root)


@pytest.mark.parametrize(
    "batch, known", [("chunk", True), ("drafts", True), ("mixed", True), ("decodes", True), ("decodes", False)]
)
def test_workspace(kernel, batch, known):
    budget = kernel.module.CPU
    peak = kernel.peak(kernel.call(*BATCHES[batch], known))
    assert peak <= budget.chunk + budget.segment + MIB // 8


@pytest.mark.parametrize("known", [True, False])
def test_workspace_with_the_share_of_a_gpu(kernel, monkeypatch, known):
    monkeypatch.setattr(kernel.module, "CPU", kernel.module.GPU)
    assert kernel.peak(kernel.call(*BATCHES["drafts"], known)) <= 8 * MIB


@pytest.mark.parametrize(
    "batch, known", [("chunk", True), ("drafts", True), ("mixed", True), ("decodes", True), ("drafts", False)]
)
def test_calls_are_as_planned_and_read_nothing(kernel, batch, known):
    call = kernel.call(*BATCHES[batch], known)
    counts = kernel.counts(call)
    assert sum(counts.values()) == kernel.plan.calls_of(kernel.groups(call), 2)
    assert not any(counts[name] for name in kernel.probe.HOST_READS)


@pytest.mark.parametrize("new", [[3], [3, 3]], ids=["one query tile", "two"])
@pytest.mark.parametrize("grains", [1, 1 << 40], ids=["V by item", "V by chunk"])
@pytest.mark.parametrize("items", [1, 2])
def test_chunks_of_a_tile_of_several_partitions(kernel, monkeypatch, new, grains, items):
    # 5 partitions are chunks of 2, 2 and 1; the chunks of one query tile share its query and its sums
    for module in (kernel.tiles, tiles):
        monkeypatch.setattr(module, "GRAINS_OF_A_THREAD", grains)
    budget = kernel.module.CPU
    monkeypatch.setattr(kernel.module, "CPU", budget._replace(chunk=items * 2 * 32 * budget.chunk_page))
    old = [5 * 512 - 20] * len(new)
    (group,) = kernel.groups(kernel.call(new, old))
    if kernel.plan.variant.sliding_window is None:
        assert [(tile.rows, tile.num_parts, tile.chunk) for tile in group.tiling.tiles()] == [(len(new), 5, items)]
    kernel.harness.check(kernel.harness.case(new, old, kv_heads=2))
    call = kernel.call(new, old)
    assert sum(kernel.counts(call).values()) == kernel.plan.calls_of(kernel.groups(call), 2)


def test_calls_do_not_depend_on_lengths_that_the_host_does_not_read(kernel):
    batches = [([3, 3], [900, 900]), ([1, 5], [1, 5]), ([6, 0], [0, 897])]
    calls = [kernel.call(*batch, known=False, max_seq_len=903, max_query_len=6) for batch in batches]
    planned = kernel.plan.calls(2, 6, 6, 903, 2)
    assert [sum(kernel.counts(call).values()) for call in calls] == [planned] * 3


def test_a_short_call_is_few_calls(kernel):
    most = {"plain": 60, "every": 105}[kernel.plan.variant.spec]
    assert sum(kernel.counts(kernel.call([2], [20])).values()) <= most


def test_the_smallest_workspace_holds_one_query_token(kernel):
    smallest = type(kernel.plan)(kernel.plan.variant, kernel.plan.smallest_workspace(2))
    for budget in (smallest.cpu, smallest.gpu):
        assert budget.chunk + budget.segment <= smallest.workspace_bytes
