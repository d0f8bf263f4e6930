"""What a patched vLLM calls, with a package that answers as it is told."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pav2gen.install.package_contents import PAYLOAD

from .fake_package import Answers, tensors


def choose(
    hooks: ModuleType, use_v1: bool, v1: str = "whole", length: int = 100, v2: str = "stub", **more: Any
) -> bool:
    return bool(hooks.choose_v1(use_v1, v1=v1, v2=v2, max_seq_len=length, **tensors(**more)))


@pytest.mark.parametrize("v1", ["whole", "plain", "none"])
@pytest.mark.parametrize("use_v1", [True, False])
def test_v2_is_taken_where_it_is_preferred(hooks: ModuleType, answers: Answers, use_v1: bool, v1: str) -> None:
    answers.supported = answers.preferred = True
    assert choose(hooks, use_v1, v1) is False


@pytest.mark.parametrize(
    ("use_v1", "length", "chosen"), [(True, 100, True), (True, 9000, True), (False, 8192, True), (False, 8193, False)]
)
@pytest.mark.parametrize("v1", ["whole", "plain"])
def test_v1_stays_where_it_is_not(
    hooks: ModuleType, answers: Answers, v1: str, use_v1: bool, length: int, chosen: bool
) -> None:
    answers.supported = True
    assert choose(hooks, use_v1, v1, length) is chosen


@pytest.mark.parametrize("use_v1", [True, False])
def test_vllms_own_choice_stands_for_what_no_kernel_serves(
    hooks: ModuleType, use_v1: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose(hooks, use_v1) is choose(hooks, use_v1, length=9000) is use_v1
    assert [record.getMessage() for record in caplog.records] == [
        "pav2: no kernel for that; vLLM itself chooses between V1 and V2"
    ]
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].name == "vllm.pav2"


@pytest.mark.parametrize("use_v1", [True, False])
def test_a_v2_of_the_trees_own_stays_its_choice_up_to_the_threshold(
    hooks: ModuleType, answers: Answers, use_v1: bool
) -> None:
    answers.supported = True
    assert choose(hooks, use_v1, v2="works") is use_v1
    answers.preferred = True
    assert choose(hooks, use_v1, v2="works") is False


#: Tensors of the right sizes that the kernels cannot take as they lie in memory.
LAYOUTS = {
    "wide tables": {"block_tables": torch.zeros(2, 7, dtype=torch.int64)},
    "wide lengths": {"seq_lens": torch.ones(2, dtype=torch.int64)},
    "other grouping": {"key_cache": torch.empty(3, 4, 64, 16, 4, dtype=torch.float16)},
    "other dtype": {"key_cache": torch.empty(3, 4, 32, 16, 8), "value_cache": torch.empty(3, 4, 256, 16)},
    "rows apart": {"block_tables": torch.zeros(7, 2, dtype=torch.int32).t()},
    "pages apart": {"value_cache": torch.empty(3, 4, 16, 256, dtype=torch.float16).transpose(2, 3)},
    "heads apart": {"query": torch.empty(24, 2, 256, dtype=torch.float16).transpose(0, 1)},
    "slopes": {"alibi_slopes": torch.ones(24, dtype=torch.float16)},
    "4 dimensions": {"key_cache": torch.empty(3, 16, 4, 256, dtype=torch.float16)},
}


@pytest.mark.parametrize("use_v1", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_that_no_kernel_takes_leaves_the_choice_to_vllm(
    hooks: ModuleType, answers: Answers, layout: str, use_v1: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answers.supported = answers.preferred = layout != "4 dimensions"
    for length in (9000, 9001, 9002):
        assert choose(hooks, use_v1, length=length, **LAYOUTS[layout]) is use_v1
    (record,) = caplog.records
    assert record.getMessage().startswith("pav2: ")
    assert record.getMessage().endswith("; vLLM itself chooses between V1 and V2")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_v1_that_would_ignore_the_cache_dtype_is_not_chosen_for_its_layout(
    hooks: ModuleType, answers: Answers, layout: str
) -> None:
    """V2 then says what is wrong; V1 would compute something else."""
    answers.supported = answers.preferred = layout != "4 dimensions"
    assert choose(hooks, True, "plain", **{**LAYOUTS[layout], "kv_cache_dtype": "fp8"}) is False


@pytest.mark.parametrize("supported", [True, False])
def test_a_stub_is_never_chosen(hooks: ModuleType, answers: Answers, supported: bool) -> None:
    answers.supported = supported
    assert choose(hooks, True, "none") is False


@pytest.mark.parametrize("asked", [{"kv_cache_dtype": "fp8"}, {"blocksparse_vert_stride": 8}])
def test_a_v1_that_would_drop_what_is_asked_is_not_chosen(hooks: ModuleType, asked: dict[str, Any]) -> None:
    assert choose(hooks, True, "plain", **asked) is False
    assert choose(hooks, True, "whole", **asked) is True
    assert choose(hooks, True, "plain", blocksparse_vert_stride=1) is True
    assert choose(hooks, True, "plain", blocksparse_vert_stride=None) is True


def test_disabled_nothing_is_asked(hooks: ModuleType, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers.supported = answers.preferred = True
    monkeypatch.setenv("PAV2_DISABLE", "1")
    assert choose(hooks, True, "none") is True
    assert choose(hooks, False) is False
    assert hooks.serve_v2(fallback=False, query=None) is False
    hooks.check_layer(None, num_heads=1, num_kv_heads=1, head_size=1, alibi_slopes=None, cache_config=None)
    assert answers.asked == answers.ran == []


def call(**more: Any) -> dict[str, Any]:
    return {**tensors(kv_cache_dtype="fp8", alibi_slopes=torch.ones(24)), "scale": 1.0, "max_seq_len": 9000, **more}


def test_a_call_is_served_where_a_kernel_serves_its_shape(hooks: ModuleType, answers: Answers) -> None:
    answers.supported = answers.preferred = True
    given = call(blocksparse_vert_stride=2)
    assert hooks.serve_v2(fallback=True, **given) is True
    assert answers.ran == [given]
    assert answers.asked == [
        {
            "num_heads": 24,
            "num_kv_heads": 4,
            "head_size": 256,
            "block_size": 16,
            "dtype": torch.float16,
            "kv_cache_dtype": "fp8",
            "alibi": True,
            "blocksparse": True,
        }
    ]


def test_a_call_is_left_to_vllm_where_none_does(
    hooks: ModuleType, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert hooks.serve_v2(fallback=True, **call()) is False
    assert answers.ran == []
    assert [record.getMessage() for record in caplog.records] == ["pav2: no kernel for that; vLLM's own V2 serves it"]


def test_a_short_call_is_left_to_a_v2_of_the_trees_own(
    hooks: ModuleType, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    answers.supported = True
    assert hooks.serve_v2(fallback=True, **call()) is False
    assert answers.ran == []
    assert hooks.serve_v2(fallback=False, **call()) is True
    assert caplog.records == []


@pytest.mark.parametrize("error", [ValueError, Answers.NoKernelError])
def test_a_call_that_the_operator_refuses_is_left_to_vllm(
    hooks: ModuleType, answers: Answers, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    answers.supported = answers.preferred = True
    for number in range(3):
        answers.refusal = error(f"the block table is of another kind ({number})")
        assert hooks.serve_v2(fallback=True, **call()) is False
        with pytest.raises(error):
            hooks.serve_v2(fallback=False, **call())
    assert [record.getMessage() for record in caplog.records] == [
        "pav2: the block table is of another kind (0); vLLM's own V2 serves it"
    ]


def test_without_a_fallback_the_operator_answers(hooks: ModuleType, answers: Answers) -> None:
    assert hooks.serve_v2(fallback=False, **call()) is True
    assert len(answers.ran) == 1
    assert answers.asked == []


class Impl:
    """A backend, of this module: whether it decodes by PagedAttention is seen by the module's names."""


def check(hooks: ModuleType, **more: Any) -> None:
    given = {
        "num_heads": 24, "num_kv_heads": 4, "head_size": 256, "alibi_slopes": None,
        "cache_config": SimpleNamespace(block_size=32, cache_dtype="fp8"), **more,
    }  # fmt: skip
    hooks.check_layer(Impl(), **given)


def test_a_layer_without_a_kernel_is_told_once(
    hooks: ModuleType, answers: Answers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PagedAttention", object, raising=False)
    for _ in range(16):
        check(hooks, blocksparse_params={"vert_stride": 8})
    assert [record.getMessage() for record in caplog.records] == [
        "pav2: no kernel for that; decodes of these layers stay on vLLM's own path"
    ]
    assert [asked.pop("operator", "decode") for asked in answers.asked] == ["decode", "extend"]
    assert answers.asked[0] == {
        "num_heads": 24, "num_kv_heads": 4, "head_size": 256, "block_size": 32, "dtype": torch.float32,
        "kv_cache_dtype": "fp8", "alibi": False, "blocksparse": True, "tp_size": 1,
    }  # fmt: skip


def test_a_layer_with_a_kernel_is_told_once_too(
    hooks: ModuleType, answers: Answers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PagedAttention", object, raising=False)
    caplog.set_level(logging.INFO)
    answers.supported = True
    for _ in range(16):
        check(hooks, num_kv_heads=None, cache_config=None, alibi_slopes=[0.5])
    assert [record.getMessage() for record in caplog.records] == [
        "pav2: generated kernels serve num_heads=24 num_kv_heads=24 head_size=256 block_size=16 dtype=torch.float32 "
        "kv_cache_dtype=auto alibi=True blocksparse=False",
    ]


def test_a_library_that_was_installed_is_taken(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PagedAttention", object, raising=False)
    monkeypatch.setattr(sys.modules["pav2_fake.serving"], "__file__", str(tmp_path / "serving.py"))
    monkeypatch.setenv("PAV2_LIBRARY", "")
    monkeypatch.delenv("PAV2_LIBRARY")
    check(hooks)
    assert "PAV2_LIBRARY" not in os.environ
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "prebuilt/libpav2.so").touch()
    check(hooks, head_size=128)
    assert os.environ["PAV2_LIBRARY"] == str(tmp_path / "prebuilt/libpav2.so")
    monkeypatch.setenv("PAV2_LIBRARY", "mine")
    check(hooks, head_size=64)
    assert os.environ["PAV2_LIBRARY"] == "mine"


def test_a_backend_that_decodes_otherwise_is_not_looked_at(hooks: ModuleType, answers: Answers) -> None:
    check(hooks)
    assert answers.asked == []


def test_the_payload_is_what_travels() -> None:
    modules = {"hooks.py", "cache_hooks.py", "prefix_hooks.py", "softcap_hooks.py", "layer_features.py", "serving.py"}
    modules |= {"structure.py", "cache_structure.py", "softcap_structure.py", "syntax.py"}
    modules |= {"plugin.py", "entry_point.py"}
    assert {file.name for file in PAYLOAD.glob("*.py*")} == {"__init__.pyi", *modules}
    assert "pav2gen." not in Path(PAYLOAD, "hooks.py").read_text()
