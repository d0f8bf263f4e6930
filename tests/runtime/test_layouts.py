"""Layouts that a spec sets (``cuda:``, ``target.load_bytes``): as right, and as free of findings, as those planned."""

import importlib
import itertools

import pytest

from pav2gen.build import Options, build
from pav2gen.cuda_plan import CHOICES, plan_cuda
from pav2gen.errors import UserError
from pav2gen.spec import load as load_spec
from pav2gen.spec import variants

from .conftest import load

SPEC = """
schema: 1
name: {name}
target: {{base: bi-v100, load_bytes: {load_bytes}}}
model: {{num_heads: 6, num_kv_heads: 1, max_seq_len: 4096}}
axes: {{head_size: 128, gqa_ratio: 6, partition_size: 256, block_size: 16}}
backends: [torch, cuda]
cuda: {{threads: {threads}, step: {step}, tokens: {tokens}}}
"""
#: (load_bytes, threads, step, tokens)
LAYOUTS = [(4, 64, 64, 1), (8, 128, 128, 2), (16, 256, 256, 4), (16, 512, 512, 1), (8, 512, 64, 4)]
ALL = list(itertools.product((4, 8, 16), *CHOICES.values()))


def pytest_generate_tests(metafunc):
    if "layout" in metafunc.fixturenames:
        layouts = ALL if metafunc.config.getoption("--full", default=False) else LAYOUTS
        metafunc.parametrize("layout", layouts, ids=lambda layout: "-".join(map(str, layout)))


def write(folder, layout):
    """The spec of a layout, in a file."""
    name = "layout_" + "_".join(map(str, layout))
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, **dict(zip(("load_bytes", "threads", "step", "tokens"), layout))))
    return path


@pytest.fixture
def package(tmp_path, layout):
    """A package of one kernel with the layout."""
    try:
        path = write(tmp_path, layout)
        build([path], Options(tmp_path / "package"))
    except UserError as error:
        pytest.skip(str(error))
    return load(tmp_path / "package", f"pav2_of_{path.stem}")


def test_the_plan_keeps_to_what_is_set(tmp_path):
    for load_bytes, threads, step, tokens in LAYOUTS:
        spec = load_spec(write(tmp_path, (load_bytes, threads, step, tokens)))
        g = plan_cuda(variants(spec)[0], spec.target, spec.cuda).geometry
        assert (g.threads, g.step, 4 * g.key_words) == (threads, min(step, 256), load_bytes)
        assert 4 * g.value_words <= max(load_bytes, 16) and 1 <= g.tokens <= tokens


def test_a_kernel_of_the_layout_is_right(package):
    (row,) = rows = package.operator.table.rows
    harness = importlib.import_module(f"{package.__name__}.runtime.cuda_harness")
    for host in harness.HOSTS:
        fast, checked = harness.CudaKernel(package, row, host, rows), harness.CheckedKernel(package, row, host, rows)
        fast.check(fast.case([0, 1, 17, 255, 531]))
        checked.check(checked.case([17, 275]))
