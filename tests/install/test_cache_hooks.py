"""Who fills the cache: the tree's own writer where it can, the generated one elsewhere, and never the wrong one."""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from .fake_package import Answers

KEY = torch.zeros(3, 4, 256, dtype=torch.float16)
CACHES = {
    "key_cache": torch.zeros(2, 4, 16, 16, 16, dtype=torch.uint8),
    "value_cache": torch.zeros(2, 4, 256, 16, dtype=torch.uint8),
}


def call(kv_cache_dtype: str = "fp8") -> dict[str, Any]:
    slots = torch.tensor([0, 1, 17])
    return {
        "key": KEY, "value": KEY, **CACHES, "slot_mapping": slots, "kv_cache_dtype": kv_cache_dtype, "k_scale": 0.5,
        "v_scale": 0.25,
    }  # fmt: skip


@pytest.fixture
def serve(hooks: ModuleType) -> Any:
    return importlib.import_module("pav2_fake.cache_hooks").serve_write


@pytest.mark.parametrize(
    ("writer", "dtype", "always", "ours"),
    [
        ("plain", "auto", False, False),
        ("plain", "fp8", False, True),
        ("plain", "auto", True, True),
        ("none", "auto", False, True),
        ("none", "fp8_e5m2", False, True),
        ("whole", "auto", True, True),
        ("whole", "fp8", True, True),
        ("whole", "fp8", False, False),
    ],
)
def test_the_writer_that_can_write_it_is_taken(
    serve: Any, answers: Answers, writer: str, dtype: str, always: bool, ours: bool
) -> None:
    given = call(dtype)
    assert serve(writer=writer, always=always, **given) is ours
    assert answers.ran == ([given] if ours else [])


def test_an_int8_cache_is_written_under_the_name_of_fp8(
    serve: Any, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAV2_KV_CACHE_DTYPE", "int8")
    assert serve(writer="whole", always=False, **call()) is True
    (ran,) = answers.ran
    assert ran["kv_cache_dtype"] == "int8"
    assert ran["key_cache"].dtype == ran["value_cache"].dtype == torch.int8
    assert ran["key_cache"].data_ptr() == CACHES["key_cache"].data_ptr()
    assert serve(writer="whole", always=False, **call("auto")) is False


@pytest.mark.parametrize("error", [ValueError, Answers.NoKernelError])
def test_what_the_tree_can_write_is_left_to_it_where_ours_refuses(
    serve: Any, answers: Answers, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    answers.refusal = error("no")
    for _ in range(2):
        assert serve(writer="plain", always=True, **call("auto")) is False
    assert [record.getMessage() for record in caplog.records] == ["pav2: no; vLLM's own writer fills the cache"]
    assert caplog.records[0].levelno == logging.WARNING
    with pytest.raises(error):
        serve(writer="plain", always=True, **call("fp8"))


def test_a_package_without_the_operator_says_so(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["pav2_fake"], "reshape_and_cache")
    with pytest.raises(Answers.NoKernelError, match="no writer of fp8 caches: add cache to the operators"):
        serve(writer="plain", always=False, **call())


def test_disabled_nothing_is_written(serve: Any, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAV2_DISABLE", "1")
    assert serve(writer="none", always=True, **call()) is False
    assert answers.ran == []


def test_a_cache_of_unknown_codes_needs_the_hook(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    check = importlib.import_module("pav2_fake.cache_hooks").check_writer

    def own(key: Any) -> None:
        key.fill_(0)

    def hooked(key: Any) -> None:
        from pav2_fake.cache_hooks import serve_write

        serve_write(key=key)

    for write in (own, hooked):
        monkeypatch.setitem(sys.modules, "vllm._custom_ops", SimpleNamespace(reshape_and_cache=write))
        monkeypatch.delenv("PAV2_KV_CACHE_DTYPE", raising=False)
        check("fp8")
        monkeypatch.setenv("PAV2_KV_CACHE_DTYPE", "int8")
        check("auto")
        if write is own:
            with pytest.raises(ValueError, match="PAV2_KV_CACHE_DTYPE=int8: vLLM's own writer would fill the cache"):
                check("fp8")
        else:
            check("fp8")
