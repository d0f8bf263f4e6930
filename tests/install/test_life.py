"""A whole life of a compressed cache through vLLM 0.6.3's own files: allocate, write, decode, copy and swap blocks.

The kernels are those of one spec with the shape of qwen36; ``life_driver`` runs the trees in one process.
"""

from __future__ import annotations

import ast
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

from pav2gen.install.apply import InstallOptions, install
from pav2gen.install.package_contents import Choice
from pav2gen.install.tree.trees import PAV2
from pav2gen.install.wheel import build_wheel

from . import forms
from .conftest import make_package
from .vllm_files import cached

Result = dict[str, Any]

SPEC = """\
schema: 1
name: life
target: bi-v100
model: {num_heads: 24, num_kv_heads: 4, max_seq_len: 65536}
axes: {head_size: 256, gqa_ratio: 6, partition_size: 256, kv_cache_dtype: [auto, fp8_e4m3, fp8_e5m2, int8]}
operators: [decode, extend, cache]
backends: [torch]
"""
#: The same shape with a window, or a softcap.
FEATURES = (
    SPEC.replace("life", "features")
    .replace("[auto, fp8_e4m3, fp8_e5m2, int8]", "auto")
    .replace("operators", "features: {softcap: [null, 50.0], sliding_window: [null, 32]}\noperators")
)
PLUGIN = {"PAV2_PLUGIN": "1"}
INT8 = {"PAV2_KV_CACHE_DTYPE": "int8"}
AUTO = {"kv_cache_dtype": "auto", "stored": "auto"}
FP8 = {"kv_cache_dtype": "fp8", "stored": "fp8_e4m3", "scales": [0.01, 0.02]}
CODES = {"kv_cache_dtype": "fp8", "stored": "int8", "scales": [0.03, 0.035]}

SCALE_OF_KEYS = "        v_scale=k_scale,\n    ):\n        return\n    slot"
#: Faults in what an install puts into a tree: the life that sees each, the file, a text, and the text instead.
FAULTS = (
    ("e4m3", "_custom_ops.py", "        v_scale=v_scale,\n    ):\n        return\n    slot", SCALE_OF_KEYS),
    ("e4m3", f"{PAV2}/cache_hooks.py", 'writer == "plain" and named == "auto"', 'writer == "plain"'),
    ("int8", f"{PAV2}/serving.py", 'choice("PAV2_KV_CACHE_DTYPE", STORED) if', '"" if'),
    ("int8", f"{PAV2}/hooks.py", '        "kv_cache_dtype": stored_dtype(named),\n', ""),
    ("prefix e4m3", f"{PAV2}/prefix_hooks.py", "        **call,\n", '        **{**call, "k_scale": 1.0},\n'),
    ("prefix int8", f"{PAV2}/prefix_hooks.py", "stored(value_cache, kv_cache_dtype)", "value_cache"),
    ("prefix int8", f"{PAV2}/prefix_hooks.py", "stored_dtype(kv_cache_dtype)", "kv_cache_dtype"),
    ("prefix window", f"{PAV2}/prefix_hooks.py", "**features.arguments(),", ""),
    ("prefix", "attention/ops/paged_attn.py", "seq_lens=seq_lens_tensor", "seq_lens=context_lens"),
    ("softcap", f"{PAV2}/softcap_hooks.py", "slots[tokens] // page", "slots[tokens] // page + 1"),
    ("softcap", f"{PAV2}/softcap_hooks.py", "prompt_through_cache(impl, ", "own("),
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """What came of each life."""
    folder = tmp_path_factory.mktemp("life")
    package = make_package(folder, SPEC)
    (folder / "small").mkdir()
    decodes = make_package(folder / "small", SPEC.replace("operators: [decode, extend, cache]\n", ""))
    jobs: dict[str, Result] = {}

    def add(
        name: str, form: Callable[[Path], object] | None, job: Result, patch: bool = True, generated: Path = package,
        writer: str = "auto",
    ) -> None:  # fmt: skip
        tree = folder / name
        shutil.copytree(cached("0.6.3.post1") / "vllm", tree / "vllm")
        if form:
            form(tree / "vllm")
        if patch:
            install(tree, InstallOptions(generated, Choice(), writer=writer, python=""))
        jobs[name] = {"tree": str(tree), "scales": [1.0, 1.0], **job}

    site = folder / "site"
    wheel = build_wheel(folder, Choice(), package)
    zipfile.ZipFile(folder / wheel.name).extractall(site)
    plugin = {"plugin": str(site)}
    bi = forms.make_bi
    add("auto", bi, AUTO)
    add("e4m3", bi, FP8)
    add("e5m2", bi, {**FP8, "kv_cache_dtype": "fp8_e5m2", "stored": "fp8_e5m2"})
    add("int8", bi, {**CODES, "env": INT8})
    add("e4m3 plugin", bi, {**FP8, **plugin, "env": PLUGIN}, patch=False)
    add("int8 plugin", bi, {**CODES, **plugin, "env": {**PLUGIN, **INT8}}, patch=False)
    add("without a writer", bi, FP8, generated=decodes)
    add("fresh", None, AUTO)
    add("fresh int8", None, {**CODES, "env": INT8})
    add("fresh int8 always", None, {**CODES, "env": INT8}, writer="always")
    add("fresh auto always", None, AUTO, writer="always")
    (folder / "features").mkdir()
    features = make_package(folder / "features", FEATURES)
    feature_wheel = build_wheel(folder / "features", Choice(), features)
    zipfile.ZipFile(folder / "features" / feature_wheel.name).extractall(folder / "features/site")
    feature_plugin = {"plugin": str(folder / "features/site"), "env": PLUGIN}
    (folder / "decodes").mkdir()
    without_extend = make_package(folder / "decodes", FEATURES.replace("decode, extend, cache", "decode"))
    softcap, context = {**AUTO, "softcap": 50.0, "steps": 2}, {"context": True, "steps": 2}
    add("window", bi, {**AUTO, "window": 32}, generated=features)
    add("window of another size", bi, {**AUTO, "window": 31}, generated=features)
    add("window plugin", bi, {**AUTO, "window": 32, **feature_plugin}, patch=False)
    add("softcap", bi, {**softcap, "context": True}, generated=features)
    add("softcap plugin", bi, {**softcap, **feature_plugin}, patch=False)
    add("softcap chunked", bi, {**softcap, "chunked": True}, generated=features)
    add("softcap and window", bi, {**softcap, "window": 32}, generated=features)
    add("softcap without extend", bi, softcap, generated=without_extend)
    add("softcap not built", bi, {**softcap, "softcap": 30.0}, generated=features)
    add("softcap off", bi, {**softcap, "env": {"PAV2_DISABLE": "1"}}, generated=features)
    add("prefix", bi, {**AUTO, **context})
    add("prefix e4m3", bi, {**FP8, **context})
    add("prefix int8", bi, {**CODES, **context, "env": INT8})
    add("prefix plugin", bi, {**AUTO, **context, **plugin, "env": PLUGIN}, patch=False)
    add("prefix fresh", None, {**AUTO, **context})
    add("prefix window", bi, {**AUTO, "window": 32, **context}, generated=features)
    add("chunked", bi, {**AUTO, "chunked": True})
    add("chunked int8", bi, {**CODES, "chunked": True, "env": INT8})
    add("chunked window", bi, {**AUTO, "window": 32, "chunked": True}, generated=features)
    add("chunked plugin", bi, {**AUTO, "chunked": True, **plugin, "env": PLUGIN}, patch=False)
    add("prefix without extend", bi, {**AUTO, **context}, generated=decodes)
    add("not a dtype", bi, {**FP8, "env": {"PAV2_KV_CACHE_DTYPE": "int4"}})
    for number, (name, path, old, new) in enumerate(FAULTS):
        shutil.copytree(folder / name, folder / f"fault {number}")
        fault = folder / f"fault {number}/vllm" / path
        assert old in fault.read_text()
        fault.write_text(fault.read_text().replace(old, new))
        jobs[f"fault {number}"] = {**jobs[name], "steps": 2, "tree": str(folder / f"fault {number}")}
    file = folder / "jobs.json"
    file.write_text(json.dumps([*jobs.values()]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [os.environ.get("DECODE_PYTHON", sys.executable), Path(__file__).with_name("life_driver.py"), file]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(jobs, json.loads(done.stdout.splitlines()[-1])))


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "int8", "e4m3 plugin", "int8 plugin", "fresh int8 always"])
def test_a_compressed_cache_lives(name: str, ran: dict[str, Result]) -> None:
    """vLLM's names for it are those of fp8, its own kernels are never called, and every byte is as it should be."""
    found = ran[name]
    assert "error" not in found, found
    assert found["called"] == []
    assert found["wrong_codes"] == 0
    assert found["worst"] <= 1.0
    assert found["dtype"] == "torch.uint8"
    assert found["bytes_per_block"] == 2 * 2 * 16 * 4 * 256  # half of float16's


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_a_planted_fault_is_seen(fault: int, ran: dict[str, Result]) -> None:
    found = ran[f"fault {fault}"]
    assert "error" in found or found["called"] or found["wrong_codes"] or found["worst"] > 1.0


@pytest.mark.parametrize("name", ["auto", "fresh", "fresh auto always"])
def test_an_uncompressed_cache_lives_as_before(name: str, ran: dict[str, Result]) -> None:
    found = ran[name]
    assert "error" not in found, found
    assert found["called"] == ["v1"]  # 73 tokens
    assert found["wrong_codes"] == 0
    assert found["worst"] <= 1.0


@pytest.mark.parametrize("name", ["window", "window plugin", "softcap", "softcap plugin"])
def test_a_feature_of_a_layer_is_computed_in_every_decode_and_prompt(name: str, ran: dict[str, Result]) -> None:
    """vLLM's own kernels would leave it out, so they are never called."""
    found = ran[name]
    assert "error" not in found, found
    assert found["called"] == []
    assert found["wrong_codes"] == 0
    assert found["worst"] <= 1.0


def test_a_window_without_a_kernel_stays_on_vllms_own_path(ran: dict[str, Result]) -> None:
    """vLLM 0.6.3 cuts the block tables to the window, which this driver does not: V1 attends to all tokens."""
    found = ran["window of another size"]
    assert found["called"] == ["v1"]
    assert found["worst"] > 1.0
    assert any("sliding_window 31" in line for line in found["log"])


def test_a_softcap_that_cannot_be_served_is_refused_when_the_layer_is_made(ran: dict[str, Result]) -> None:
    refused = "ValueError: XFormers does not support attention logits soft capping."
    assert ran["softcap without extend"]["error"] == ran["softcap off"]["error"] == refused
    assert any("prompts need extend kernels" in line for line in ran["softcap without extend"]["log"])
    said = ran["softcap and window"]["error"]
    assert said.endswith("with a sliding window vLLM does not write all tokens of a prompt into the cache")
    said = ran["softcap not built"]["error"]
    assert said.startswith("ValueError: vLLM's XFormersImpl has no softcap, and the kernels cannot serve it: no kernel")


@pytest.mark.parametrize(
    "name", ["prefix", "prefix e4m3", "prefix int8", "prefix plugin", "prefix fresh", "prefix window"]
)
def test_new_tokens_after_cached_ones_and_drafts_are_served(name: str, ran: dict[str, Result]) -> None:
    """Prefills with a cached prefix; then drafts are verified, some rejected, and overwritten in the cache."""
    found = ran[name]
    assert "error" not in found, found
    assert found["wrong_codes"] == 0
    assert found["worst"] <= 1.0


@pytest.mark.parametrize("name", ["chunked", "chunked int8", "chunked window", "chunked plugin", "softcap chunked"])
def test_a_chunked_prefill_is_served(name: str, ran: dict[str, Result]) -> None:
    """Three pieces, one of which leaves a sequence out, equal the whole prompts; then a batch that also decodes."""
    found = ran[name]
    assert "error" not in found, found
    assert found["wrong_codes"] == 0
    assert found["worst"] <= 1.0
    assert found["apart"] <= 1e-4  # a few elements of float16 are rounded the other way


def test_a_triton_kernel_that_hangs_the_card_is_not_called(ran: dict[str, Result]) -> None:
    said = ran["prefix without extend"]["error"]
    assert said.startswith("NoKernelError: ")
    assert "add extend to the operators of the spec" in said
    assert said.endswith("vLLM's own path is a Triton kernel, which hangs this card; PAV2_DISABLE=1 runs it anyway")


def test_a_package_without_a_writer_says_what_to_build(ran: dict[str, Result]) -> None:
    said = "NoKernelError: no cache kernel for head_size=256 block_size=16 dtype=float16 kv_cache_dtype=fp8_e4m3: "
    assert ran["without a writer"]["error"].startswith(said)
    assert "add cache to its operators" in ran["without a writer"]["error"]
    assert any("nothing else can fill the fp8 cache" in line for line in ran["without a writer"]["log"])


def test_int8_needs_a_writer_that_knows_it(ran: dict[str, Result]) -> None:
    assert ran["fresh int8"]["error"] == (
        "ValueError: PAV2_KV_CACHE_DTYPE=int8: vLLM's own writer would fill the cache with fp8; install the kernels "
        "with --writer always, or set PAV2_WRITER=always for the plugin"
    )
    assert "PAV2_KV_CACHE_DTYPE is 'int4'; it must be fp8_e4m3, fp8_e5m2 or int8" in ran["not a dtype"]["error"]


def test_the_names_that_vllm_takes_for_a_cache_are_those_of_fp8() -> None:
    """So int8 needs PAV2_KV_CACHE_DTYPE: neither the command line nor the cache's allocation knows the name."""
    tree = ast.parse((cached("0.6.3.post1") / "vllm/engine/arg_utils.py").read_text())
    (choices,) = [
        ast.literal_eval(keyword.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and call.args and ast.unparse(call.args[0]) == "'--kv-cache-dtype'"
        for keyword in call.keywords
        if keyword.arg == "choices"
    ]
    assert choices == ["auto", "fp8", "fp8_e5m2", "fp8_e4m3"]
