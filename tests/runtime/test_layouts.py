"""Layouts that a spec sets (``cuda:``, ``target.load_bytes``): as right, and as free of findings, as those planned."""

import importlib
import itertools

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.errors import UserError
from pav2gen.plan.cuda_plan import CHOICES, plan_cuda
from pav2gen.reading.selection import load as select
from pav2gen.reading.spec_file import load as load_spec
from pav2gen.reading.spec_file import variants

from .conftest import load, settle

SPEC = """
schema: 1
name: {name}
target: {{base: bi-v100, load_bytes: {load_bytes}}}
model: {{num_heads: 6, num_kv_heads: 1, max_seq_len: 4096}}
axes: {{head_size: 128, gqa_ratio: 6, partition_size: 256, dtype: {dtype}, kv_cache_dtype: {kv_cache_dtype}}}
backends: [torch, cuda]
cuda: {{threads: {threads}, step: {step}, tokens: {tokens}}}
"""
#: (load_bytes, threads, step, tokens)
LAYOUTS = [(4, 64, 64, 1), (8, 128, 128, 2), (16, 256, 256, 4), (16, 512, 512, 1), (8, 512, 64, 4)]
ALL = list(itertools.product((4, 8, 16), *CHOICES.values()))
#: A layout each, in turn: a table has one kernel for a key.
DTYPES = list(itertools.product(("float16", "bfloat16", "float32"), ("auto", "fp8_e4m3", "fp8_e5m2")))


def wanted(config):
    """The layouts of this run."""
    return ALL if config.getoption("--full", default=False) else LAYOUTS


def pytest_generate_tests(metafunc):
    if "layout" in metafunc.fixturenames:
        metafunc.parametrize("layout", wanted(metafunc.config), ids=lambda layout: "-".join(map(str, layout)))


def write(folder, layout, dtype="float16", cache="auto"):
    """The spec of a layout, in a file."""
    name = "layout_" + "_".join(map(str, layout))
    path = folder / f"{name}.yaml"
    fields = dict(zip(("load_bytes", "threads", "step", "tokens"), layout))
    path.write_text(SPEC.format(name=name, dtype=dtype, kv_cache_dtype=cache, **fields))
    return path


@pytest.fixture(scope="module")
def packages(request, tmp_path_factory):
    """Packages with all layouts that a rule does not stand against, as many to a package as there are dtypes."""
    folder, found = tmp_path_factory.mktemp("layouts"), {}
    layouts = wanted(request.config)
    for number, some in enumerate(layouts[i : i + len(DTYPES)] for i in range(0, len(layouts), len(DTYPES))):
        paths = {layout: write(folder, layout, *each) for layout, each in zip(some, DTYPES)}
        allowed = {layout: path for layout, path in paths.items() if not refusal(path)}
        build(list(allowed.values()), BuildOptions(folder / f"package{number}"))
        package = load(settle(folder / f"package{number}"), f"pav2_of_layouts{number}")
        found.update({layout: (package, path.stem) for layout, path in allowed.items()})
    return found


def refusal(path):
    """Why the layout of the spec is refused, or nothing."""
    try:
        select([path])
    except UserError as error:
        return str(error)
    return ""


def test_the_plan_keeps_to_what_is_set(tmp_path):
    for load_bytes, threads, step, tokens in LAYOUTS:
        spec = load_spec(write(tmp_path, (load_bytes, threads, step, tokens)))
        g = plan_cuda(variants(spec)[0], spec.target, spec.cuda).geometry
        assert (g.threads, g.step, 4 * g.key_words) == (threads, min(step, 256), load_bytes)
        assert 4 * g.value_words <= max(load_bytes, 16) and 1 <= g.runs <= tokens


def test_a_kernel_of_the_layout_is_right(packages, layout):
    if layout not in packages:
        pytest.skip("a rule stands against it")
    package, spec = packages[layout]
    rows = package.operator.table.rows
    (row,) = (row for row in rows if row.spec == spec)
    harness = importlib.import_module(f"{package.__name__}.runtime.testing.cuda_harness")
    for host in harness.HOSTS:
        fast, checked = harness.CudaKernel(package, row, host, rows), harness.CheckedKernel(package, row, host, rows)
        fast.check(fast.case([0, 1, 17, 255, 531]))
        checked.check(checked.case([17, 275]))
