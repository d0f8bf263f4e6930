"""Shapes beyond the committed ones: head sizes, groups and pages at their extremes; all of them with ``--full``."""

import importlib

import pytest

from pav2gen.commands.build import BuildOptions, build

from .conftest import load, settle

SPEC = """
schema: 1
name: {name}
target: {target}
model: {{num_heads: {heads}, num_kv_heads: 2, max_seq_len: 4096}}
axes:
  head_size: {sizes}
  gqa_ratio: [{ratio}]
  partition_size: [{partition}]
  block_size: {pages}
  dtype: {dtypes}
  kv_cache_dtype: {kv}
backends: [torch, cuda]
limits: {{max_variants: 400, workspace_mib: 256}}
"""
#: name: (head sizes, query heads for each KV head, partition size, page sizes, dtypes, caches, target)
SHAPES = {
    "smallest": ([32], 1, 64, [8], ["float16"], ["auto"], "bi-v100"),
    "largest_head": ([512], 24, 128, [16], ["float16"], ["auto"], "bi-v100"),
    "largest_group": ([64], 71, 256, [16], ["float16"], ["auto"], "sm_75"),
    "split_group": ([128], 128, 128, [32], ["bfloat16"], ["auto"], "bi-v100"),
    "odd_head": ([40], 5, 128, [8], ["float32"], ["auto"], "mr-v100"),
    "largest_page": ([128], 8, 256, [128], ["float16"], ["fp8_e4m3"], "sm_80"),
    "largest_partition": ([96], 3, 2048, [64], ["float16"], ["auto"], "sm_90"),
}
HEADS = [*range(32, 257, 8), 512]
FULL = {
    **{f"group{n}": ([64, 256], n, 128, [16], ["float16"], ["auto"], "bi-v100") for n in [*range(1, 17), 24, 71]},
    **{f"head{n}": ([n], 6, 128, [16], ["float16"], ["auto"], "bi-v100") for n in HEADS},
    "pages": ([64, 128], 4, 256, [8, 16, 32, 64, 128], ["float16", "float32"], ["auto", "fp8_e5m2"], "sm_70"),
}


def wanted(config):
    """The shapes of this run, by name."""
    return {**SHAPES, **(FULL if config.getoption("--full", default=False) else {})}


def pytest_generate_tests(metafunc):
    if "shape" in metafunc.fixturenames:
        metafunc.parametrize("shape", wanted(metafunc.config))


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    """One package with all shapes, a spec for each."""
    folder = tmp_path_factory.mktemp("shapes")
    specs = []
    for name, (sizes, ratio, partition, pages, dtypes, kv, target) in wanted(request.config).items():
        fields = dict(sizes=sizes, ratio=ratio, partition=partition, pages=pages, dtypes=dtypes, kv=kv, target=target)
        specs.append(folder / f"{name}.yaml")
        specs[-1].write_text(SPEC.format(name=name, heads=2 * ratio, **fields))
    build(specs, BuildOptions(folder / "package"))
    return load(settle(folder / "package"), "pav2_of_the_shapes")


def test_every_backend_is_right(package, shape):
    rows = package.operator.table.rows
    torch_harness = importlib.import_module(f"{package.__name__}.runtime.testing.harness")
    cuda_harness = importlib.import_module(f"{package.__name__}.runtime.testing.cuda_harness")
    for row in (row for row in rows if row.spec == shape):
        page, partition = row.key.block_size, row.partition_size
        kernels = [torch_harness.TorchKernel(package, row)]
        kernels += [cuda_harness.CudaKernel(package, row, machine, rows) for machine in cuda_harness.HOSTS]
        for kernel in kernels:
            kernel.check(kernel.case([0, 1, page + 1, partition - 1, 2 * partition + page + 3]))
        for host in cuda_harness.HOSTS:
            checked = cuda_harness.CheckedKernel(package, row, host, rows)
            checked.check(checked.case([page + 1, partition + page + 3]))
