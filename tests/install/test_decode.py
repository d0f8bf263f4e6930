"""After an install vLLM's own ``PagedAttention.forward_decode`` decodes right, by the kernel that was promised.

The shapes are those of qwen36: 24 heads, 4 KV heads, head size 256, block size 16, float16; the kernels are those of
specs/qwen36.yaml; the measure is that of the operator, against float64. All jobs run in one process, for its imports
take longer than most of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.install.apply import InstallOptions, install
from pav2gen.install.package_contents import Choice
from pav2gen.install.payload.structure import DECODE, OPS
from pav2gen.install.wheel import build_wheel

from . import forms
from .conftest import ROOT
from .vllm_files import cached

Job = dict[str, Any]
Case = dict[str, Any]

SHAPE = {"heads": 24, "kv": 4, "head_size": 256}
UNKNOWN = {"heads": 32, "kv": 4, "head_size": 256}  # a ratio that qwen36 lacks
DISABLED = {"PAV2_DISABLE": "1"}
PLUGIN = {"PAV2_PLUGIN": "1"}
FAMILIES = {"0.4.3": False, "0.5.5": False, "0.7.3": True, "0.9.2": True, "0.11.2": True}  # whether scales are tensors

#: Faults in the calls that an install puts into a tree, or in what they call: the file, a text, and the text instead.
#: "stub": in a tree whose V2 is a stub; "fresh": in vLLM's own.
FAULTS = (
    (
        "stub",
        "hooks.py",
        "prefer_v2(max_seq_len, query.shape[0], **shape)\n    reason",
        "supports(**shape)\n    reason",
    ),
    ("stub", "hooks.py", "preferred = prefer_v2(max_seq_len, query", "preferred = not prefer_v2(max_seq_len, query"),
    ("stub", "hooks.py", 'return use_v1 or (v2 == "stub" and max_seq_len <= V1_LIMIT)', "return use_v1"),
    ("stub", "hooks.py", "    if disabled():\n        return use_v1\n", ""),
    ("stub", "hooks.py", "    if disabled():\n        return False\n", ""),
    ("stub", "hooks.py", "        paged_attention_v2(**given)\n        return True", "        return True"),
    ("stub", "hooks.py", "given)\n        return True", "given)\n        return False"),
    ("stub", "serving.py", '"num_kv_heads": key_cache.shape[1]', '"num_kv_heads": query.shape[1]'),
    ("stub", OPS, "        seq_lens=seq_lens,", "        seq_lens=seq_lens // 2,"),
    ("stub", OPS, "        value_cache=value_cache,", "        value_cache=value_cache + 1,"),
    ("stub", DECODE, "        use_v1 = choose_v1(", "        use_v2 = choose_v1("),
    ("fresh", "hooks.py", 'return use_v1 or (v2 == "stub" and', "return use_v1 or ("),
    ("fresh", "hooks.py", "    if not reason and not prefer_v2(", "    if reason and not prefer_v2("),
    (
        "fresh",
        "hooks.py",
        "            paged_attention_v2(**given)\n            return True",
        "            return True",
    ),
    ("wide", "hooks.py", "if not reason and preferred:", "if False:"),
)
#: What decodes without a fault: 300, 1000 and 8193 tokens, and 1000 and 9000 tokens under PAV2_DISABLE=1.
UNHARMED = {
    "stub": ["v1", "v1", "ours", "NotImplementedError", "NotImplementedError"],
    "fresh": ["v1", "v2", "ours", "v2", "v2"],
    "wide": ["v1", "v1", "v1", "v1", "v1"],  # block tables of int64, which V1 of the BI-V100 form takes
}


def cases(*lengths: int, **more: Any) -> list[Case]:
    return [{**SHAPE, **more, "lens": [length]} for length in lengths]


class Jobs:
    """Makes trees, and collects what is to be run in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, Job] = {}
        self.package = folder / "generated"
        build([ROOT / "specs/qwen36.yaml"], BuildOptions(self.package))

    def add(
        self, name: str, runs: list[Case], change: Callable[[Path], object] | None = None, version: str = "0.6.3.post1",
        patch: bool = True, **job: Any,
    ) -> None:  # fmt: skip
        """Run ``runs`` in a tree of ``version`` that ``change`` was applied to, patched unless told otherwise."""
        choice = {key: job.pop(key) for key in ("min_seq_len",) if key in job}
        tree = self.folder / name
        shutil.copytree(cached(version) / "vllm", tree / "vllm")
        if change:
            change(tree / "vllm")
        if patch:
            install(tree, InstallOptions(self.package, Choice(**choice), python=""))
        self.jobs[name] = {"tree": str(tree), "cases": runs, **job}

    def plugin(self) -> str:
        """A folder that the wheel was unpacked to, as pip does."""
        site = self.folder / "site"
        wheel = build_wheel(self.folder, Choice(), self.package)
        zipfile.ZipFile(self.folder / wheel.name).extractall(site)
        return str(site)

    def run(self) -> dict[str, list[Case]]:
        """What came of each case of each job."""
        file = self.folder / "jobs.json"
        file.write_text(json.dumps([*self.jobs.values()]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        driver = Path(__file__).with_name("decode_driver.py")
        python = os.environ.get("DECODE_PYTHON", sys.executable)  # of another torch
        done = subprocess.run([python, driver, file], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return dict(zip(self.jobs, json.loads(done.stdout.splitlines()[-1])))


def v1_stub(vllm: Path) -> None:
    forms.make_bi(vllm)
    forms.replace(vllm / OPS, r"(?P<h>^def paged_attention_v1\(.*?^\):\n).*?(?=^\S)", rf"\g<h>{forms.STUB}" + "\n\n")


def elif_form(vllm: Path) -> None:
    chain = "        if num_seqs == 3:\n            output.fill_(7)\n        elif use_v1:"
    forms.replace(vllm / DECODE, r"^        if use_v1:$", chain)


def extra_parameter(vllm: Path) -> None:
    """A fork's further parameter, which its call gives a value that no kernel of ours knows."""
    last = r"(?P<h>^def paged_attention_v2\(.*?head_sliding_step: int = 0,\n)"
    forms.replace(vllm / OPS, last, r"\g<h>    k_zero: float = 0.0,\n")
    forms.replace(
        vllm / DECODE,
        r"(?P<h>paged_attention_v2\(.*?head_sliding_step,\n)",
        r"\g<h>                float(num_seqs - 1),\n",
    )


def custom_form(vllm: Path) -> None:
    """A fork whose own kernel stands in V2's branch, for an even number of sequences."""
    call = "            if num_seqs % 2 == 0:\n                output.fill_(7)\n            else:\n"
    text = (vllm / DECODE).read_text()
    start = text.index("            assert _PARTITION_SIZE % block_size == 0")
    end = text.index("        return output\n", start)
    branch = "".join(f"    {line}" if line.strip() else line for line in text[start:end].splitlines(keepends=True))
    (vllm / DECODE).write_text(text[:start] + call + branch + text[end:])


def two_classes(vllm: Path) -> None:
    """A fork with one PagedAttention for each platform, of which the second is the live one."""
    text = (vllm / DECODE).read_text()
    start = text.index("class PagedAttention:")
    body = "".join(f"    {line}" if line.strip() else line for line in text[start:].splitlines(keepends=True))
    (vllm / DECODE).write_text(f"{text[:start]}if not HAS_TRITON and False:\n{body}\nelse:\n{body}")


def subclass_form(vllm: Path) -> None:
    """A fork whose backends use a subclass with a forward_decode of its own, under the name of the base class."""
    text = (vllm / DECODE).read_text()
    start, end = (
        text.index("    @staticmethod\n    def forward_decode("),
        text.index("    @staticmethod\n    def forward_prefix("),
    )
    derived = f"\n\nclass Faster(PagedAttention):\n\n{text[start:end]}"
    (vllm / DECODE).write_text(text + derived)


def plant(vllm: Path, path: str, old: str, new: str) -> None:
    """A fault in a patched tree."""
    file = vllm / (path if path in (OPS, DECODE) else f"attention/ops/pav2/{path}")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Case]]:
    jobs = Jobs(tmp_path_factory.mktemp("decode"))
    bi = forms.make_bi
    around = cases(1, 513, 1000, 8192, 8193)
    unknown = [{**UNKNOWN, "lens": [length]} for length in (300, 1000, 9000, 300)]
    off = cases(300, 1000, 9000, env=DISABLED)
    jobs.add("fresh", cases(300, 9000, 40000))
    jobs.add("fork", cases(300, 9000, 40000, head_mapping=True), bi)
    jobs.add("fresh around", around)
    jobs.add("fork around", around, bi)
    jobs.add("fork above 512", [*cases(512, 513), {**SHAPE, "lens": [20, 600, 77]}], bi, min_seq_len=512)
    jobs.add("fresh above 10000", cases(1000, 9000), min_seq_len=10000)
    jobs.add("fork above 10000", cases(1000, 9000), bi, min_seq_len=10000)
    jobs.add("untouched off", off, patch=False)
    jobs.add("fresh off", off)
    jobs.add("fork off", off, bi)
    jobs.add("fresh unknown", unknown)
    jobs.add("fork unknown", unknown, bi)
    jobs.add("stubs", [*cases(1, 300, 9000), unknown[0], *cases(300, env=DISABLED)], v1_stub)
    jobs.add("fork fp8", [{**shape, "lens": [300], "kv_cache_dtype": "fp8"} for shape in (SHAPE, UNKNOWN)], bi)
    jobs.add("elif", cases(300, 9000), elif_form)
    jobs.add("extra", [*cases(9000), {**SHAPE, "lens": [9000, 9000]}], extra_parameter)
    for version, tensors in FAMILIES.items():
        jobs.add(version, cases(300, 1000, 8192, 9000, tensor_scales=tensors), version=version)
    site, mixed = jobs.plugin(), [*cases(300, 1000, 8192, 9000), unknown[2], *cases(9000, env=DISABLED)]
    jobs.add("fresh plugin", mixed, patch=False, plugin=site, env=PLUGIN)
    jobs.add("fork plugin", mixed, bi, patch=False, plugin=site, env=PLUGIN)
    jobs.add("stubs plugin", cases(300), v1_stub, patch=False, plugin=site, env=PLUGIN)
    jobs.add("elif plugin", cases(300, 9000), elif_form, patch=False, plugin=site, env=PLUGIN)
    jobs.add(
        "extra plugin",
        [*cases(9000), {**SHAPE, "lens": [9000, 9000]}],
        extra_parameter,
        patch=False,
        plugin=site,
        env=PLUGIN,
    )
    pairs = [{**SHAPE, "lens": [length, length]} for length in (1000, 9000)]
    jobs.add("custom", [*cases(300), *pairs, *cases(1000, 9000)], custom_form)
    for name, form in (("two classes", two_classes), ("subclass", subclass_form)):
        live = {"owner": "Faster"} if name == "subclass" else {}
        jobs.add(name, cases(300, 9000, **live), form)
        jobs.add(f"{name} plugin", cases(300, 9000, **live), form, patch=False, plugin=site, env=PLUGIN)
    wide = cases(300, 8192, 9000, 9000, int64=True)
    jobs.add("wide", wide)
    jobs.add("wide plugin", wide, patch=False, plugin=site, env=PLUGIN)
    jobs.add("plugin not asked for", mixed, patch=False, plugin=site, env={"PAV2_PLUGIN": "0"})
    jobs.add("plugin in a patched tree", cases(300, 9000), plugin=site, env=PLUGIN)
    forms_of = {"stub": forms.make_v2_stub, "fresh": None, "wide": forms.make_bi}
    for name, form in forms_of.items():
        wide = {"int64": True, "head_mapping": True} if name == "wide" else {}
        plain = [*cases(300, 1000, 8193, **wide), *cases(1000, 9000, env=DISABLED, **wide)]
        jobs.add(f"unharmed {name}", plain, form)
        for number, fault in enumerate(FAULTS):
            if fault[0] == name:
                jobs.add(f"fault {number}", plain, form)
                plant(Path(jobs.jobs[f"fault {number}"]["tree"], "vllm"), *fault[1:])
    return jobs.run()


@pytest.fixture
def kernels(ran: dict[str, list[Case]]) -> Callable[[str], list[str]]:
    """The kernels that ran in a job, which must all have been right, or the errors that came of it."""

    def kernels(name: str) -> list[str]:
        for case in ran[name]:
            assert case.get("excess", 0.0) <= 1.0, case
        return [case["kernel"] for case in ran[name]]

    return kernels


Kernels = Callable[[str], list[str]]


@pytest.mark.parametrize("form", ["fresh", "fork"])
def test_300_9000_and_40000_tokens(form: str, kernels: Kernels) -> None:
    assert kernels(form) == ["v1", "ours", "ours"]


def test_up_to_the_threshold_the_trees_own_kernels_decode(kernels: Kernels) -> None:
    """Above 512 tokens vLLM's own rule sends small batches to V2; with our kernels behind it that was the trap."""
    assert kernels("fork around") == ["v1", "v1", "v1", "v1", "ours"]
    assert kernels("fresh around") == ["v1", "v2", "v2", "v2", "ours"]


def test_a_kernel_of_the_forks_own_in_the_branch_of_v2_stays(ran: dict[str, list[Case]]) -> None:
    """It decodes an even number of sequences, at any length that the fork sends to V2; all that it writes is 7."""
    found = ran["custom"]
    assert [case["kernel"] for case in found] == ["v1", "ours", "ours", "v2", "ours"]
    assert [case["excess"] > 1.0 for case in found] == [False, True, True, False, False]


@pytest.mark.parametrize("form", ["two classes", "two classes plugin", "subclass", "subclass plugin"])
def test_the_definition_that_is_live_is_the_one_that_is_hooked(form: str, kernels: Kernels) -> None:
    assert kernels(form) == ["v1", "ours"]


@pytest.mark.parametrize("form", ["wide", "wide plugin"])
def test_tensors_that_the_kernels_do_not_take_leave_the_fork_alone(
    form: str, ran: dict[str, list[Case]], kernels: Kernels
) -> None:
    assert kernels(form) == ["v1", "v2", "v2", "v2"]
    choice, operator = [line for case in ran[form] for line in case["log"] if "applied" not in line]
    assert "block_tables must be int32" in choice
    assert choice.endswith("; vLLM itself chooses between V1 and V2")
    assert operator.endswith("; vLLM's own V2 serves it")


def test_the_threshold_of_an_install(kernels: Kernels) -> None:
    assert kernels("fork above 512") == ["v1", "ours", "ours"]


def test_a_threshold_beyond_the_reach_of_v1_keeps_vllms_own_rule(kernels: Kernels) -> None:
    """Above 8192 tokens vLLM's rule leaves V1, the fork's does not."""
    assert kernels("fresh above 10000") == ["v2", "v2"]
    assert kernels("fork above 10000") == ["v1", "v1"]


def test_pav2_disable_gives_the_old_path_back(ran: dict[str, list[Case]], kernels: Kernels) -> None:
    assert kernels("untouched off") == kernels("fresh off") == ["v1", "v2", "v2"]
    assert kernels("fork off") == ["v1", "v1", "v1"]
    assert not [line for name in ("fresh off", "fork off") for case in ran[name] for line in case["log"]]


def test_a_shape_without_a_kernel_keeps_vllms_own_path_and_is_told_once(
    ran: dict[str, list[Case]], kernels: Kernels
) -> None:
    assert kernels("fresh unknown") == ["v1", "v2", "v2", "v1"]
    assert kernels("fork unknown") == ["v1", "v1", "v1", "v1"]
    (told,) = [line for case in ran["fork unknown"] for line in case["log"]]
    assert told.startswith("pav2: no kernel for head_size=256 gqa_ratio=8 block_size=16 dtype=float16")
    assert told.endswith("; vLLM itself chooses between V1 and V2")
    choice, operator = [line for case in ran["fresh unknown"] for line in case["log"]]
    assert choice == told
    assert operator.endswith("; vLLM's own V2 serves it")


def test_where_v1_is_a_stub_v2_serves_all_it_can_and_says_what_it_cannot(kernels: Kernels) -> None:
    *served, unknown, disabled = kernels("stubs")
    assert served == ["ours"] * 3
    assert unknown.startswith("NoKernelError: no kernel for head_size=256 gqa_ratio=8")
    assert disabled == "NotImplementedError: "


def test_what_v1_would_drop_goes_to_v2_or_is_refused(kernels: Kernels) -> None:
    """The V1 of the BI-V100 fork takes no kv_cache_dtype: it would read an fp8 cache as if it were float16."""
    served, unknown = kernels("fork fp8")
    assert served == "ours"
    assert unknown.startswith("NoKernelError: no kernel for head_size=256 gqa_ratio=8")


@pytest.mark.parametrize("version", FAMILIES)
def test_each_family_decodes_by_the_kernel_that_was_promised(version: str, kernels: Kernels) -> None:
    assert kernels(version) == ["v1", "v2", "v2", "ours"]


def test_a_choice_in_an_elif_is_made_before_its_if(kernels: Kernels) -> None:
    assert kernels("elif") == kernels("elif plugin") == ["v1", "ours"]


def test_a_parameter_that_no_kernel_knows_keeps_vllms_own_path(kernels: Kernels) -> None:
    assert kernels("extra") == kernels("extra plugin") == ["ours", "v2"]


def test_the_plugin_makes_the_same_choice(kernels: Kernels) -> None:
    assert kernels("fresh plugin") == ["v1", "v2", "v2", "ours", "v2", "v2"]
    assert kernels("fork plugin") == ["v1", "v1", "v1", "ours", "v1", "v1"]
    assert kernels("stubs plugin") == ["ours"]


def test_the_plugin_does_nothing_unless_it_is_asked(kernels: Kernels) -> None:
    assert kernels("plugin not asked for") == ["v1", "v2", "v2", "v2", "v2", "v2"]


def test_the_plugin_leaves_a_patched_tree_alone(kernels: Kernels) -> None:
    assert kernels("plugin in a patched tree") == ["v1", "ours"]


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_a_planted_fault_is_seen(fault: int, ran: dict[str, list[Case]]) -> None:
    found = ran[f"fault {fault}"]
    right = all(case.get("excess", 0.0) <= 1.0 for case in found)
    assert not right or names(found) != UNHARMED[FAULTS[fault][0]]


def names(found: list[Case]) -> list[str]:
    """The kernels that ran, or the types of the errors."""
    return [case["kernel"].partition(":")[0] for case in found]


@pytest.mark.parametrize("form", UNHARMED)
def test_without_a_fault_each_decode_takes_its_kernel(form: str, ran: dict[str, list[Case]], kernels: Kernels) -> None:
    assert kernels(f"unharmed {form}")
    assert names(ran[f"unharmed {form}"]) == UNHARMED[form]
