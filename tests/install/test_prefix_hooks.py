"""Several query tokens per sequence: by the extend kernels where they are built, else by the tree, or an error."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from .fake_package import Answers, tensors

OWN = ("works", "hangs", "none")


def call(**more: Any) -> dict[str, Any]:
    given = tensors(**more)
    return {
        **given, "query": torch.ones(5, 24, 256, dtype=torch.float16), "max_query_len": 3,
        "query_start_loc": torch.tensor([0, 3, 5], dtype=torch.int32),
    } | more  # fmt: skip


@pytest.fixture
def serve(hooks: ModuleType) -> Any:
    return importlib.import_module("pav2_fake.prefix_hooks").serve_prefix


@pytest.mark.parametrize("own", OWN)
def test_a_kernel_serves_it(serve: Any, answers: Answers, own: str) -> None:
    answers.supported = True
    given = call()
    out = serve(own=own, k_scale=0.5, v_scale=2.0, **given)
    (ran,) = answers.ran
    assert ran.pop("out") is out
    assert (out.shape, out.dtype) == (given["query"].shape, torch.float16)
    rest = {
        name: ran.pop(name) for name in ("num_kv_heads", "scale", "block_size", "max_seq_len", "k_scale", "v_scale")
    }
    assert rest == {
        "num_kv_heads": 4, "scale": 256**-0.5, "block_size": 16, "max_seq_len": 7 * 16, "k_scale": 0.5, "v_scale": 2.0
    }  # fmt: skip
    assert ran.keys() == given.keys()
    assert all(ran[name] is given[name] for name in given)
    assert answers.asked[-1]["operator"] == "extend"


def test_the_window_is_passed_on_and_asked_for(serve: Any, answers: Answers) -> None:
    answers.supported = True
    for window in (None, 0, -1, 128):
        serve(own="works", sliding_window=window, **call())
    assert [ran.get("sliding_window") for ran in answers.ran] == [None, None, None, 128]
    assert [asked.get("sliding_window") for asked in answers.asked] == [None, 128]


@pytest.mark.parametrize("missing", ["shape", "operator", "layout"])
def test_without_a_kernel_the_trees_own_path_serves_it_once_told(
    serve: Any, answers: Answers, missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers.supported = missing == "layout"
    if missing == "operator":
        monkeypatch.delattr(sys.modules["pav2_fake"], "paged_attention_extend")
    for number in range(3):
        answers.refusal = ValueError(f"of another layout {number}")
        assert serve(own="works", **call()) is None
    (record,) = caplog.records
    assert record.getMessage().endswith("; vLLM's own path serves it")
    assert answers.ran == []


@pytest.mark.parametrize(
    ("own", "why"), [("hangs", "a Triton kernel, which hangs this card"), ("none", "not implemented")]
)
def test_without_a_kernel_a_path_that_does_not_work_is_an_error(
    serve: Any, answers: Answers, own: str, why: str
) -> None:
    with pytest.raises(Answers.NoKernelError) as raised:
        serve(own=own, **call())
    assert "add extend to the operators of the spec" in str(raised.value)
    assert why in str(raised.value)
    answers.supported, answers.refusal = True, ValueError("of another layout, still")
    with pytest.raises(ValueError, match="of another layout, still"):
        serve(own=own, **call(kv_cache_dtype="fp8_e5m2"))


def test_disabled_the_tree_serves_all(serve: Any, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers.supported = True
    monkeypatch.setenv("PAV2_DISABLE", "1")
    assert [serve(own=own, **call()) for own in OWN] == [None] * 3
