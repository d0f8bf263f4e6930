"""A stand-in for a generated package, which the hooks are loaded into: it answers as it is told."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pav2gen.install.package_contents import PAYLOAD

ROOT = Path(__file__).parents[2]


class Answers:
    """A package of kernels: what it supports, what it prefers, and what was asked of it.

    Its operators note what they are called with; with a ``refusal`` they raise that.
    """

    class NoKernelError(LookupError):
        """No kernel."""

    def __init__(self) -> None:
        self.supported = self.preferred = False
        self.kernels = SimpleNamespace(rows=[SimpleNamespace(operator="extend")])
        self.asked: list[dict[str, Any]] = []
        self.ran: list[dict[str, Any]] = []
        self.refusal: Exception | None = None

    def supports(self, **shape: Any) -> bool:
        self.asked.append(shape)
        return self.supported

    def prefer_v2(self, max_seq_len: int, num_seqs: int, **shape: Any) -> bool:
        return self.preferred

    def check_model(self, **shape: Any) -> None:
        self.asked.append(shape)
        if not self.supported:
            raise self.NoKernelError("no kernel for that")

    def paged_attention_v2(self, **call: Any) -> None:
        if self.refusal:
            raise self.refusal
        self.ran.append(call)

    reshape_and_cache = paged_attention_extend = paged_attention_v2


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def hooks(answers: Answers) -> Iterator[ModuleType]:
    package = ModuleType("pav2_fake")
    package.__path__ = [str(ROOT / "pav2gen"), str(PAYLOAD)]  # the runtime is the real one
    for name in dir(answers):
        if not name.startswith("_"):
            setattr(package, name, getattr(answers, name))
    sys.modules["pav2_fake"] = package
    yield importlib.import_module("pav2_fake.hooks")
    for name in [name for name in sys.modules if name.split(".")[0] == "pav2_fake"]:
        del sys.modules[name]


def tensors(**more: Any) -> dict[str, Any]:
    """The tensors of a decode of 2 sequences, 24 heads, 4 KV heads and head size 256, as the kernels take them."""
    return {
        "query": torch.empty(2, 24, 256, dtype=torch.float16),
        "key_cache": torch.empty(3, 4, 32, 16, 8, dtype=torch.float16),
        "value_cache": torch.empty(3, 4, 256, 16, dtype=torch.float16),
        "block_tables": torch.zeros(2, 7, dtype=torch.int32),
        "seq_lens": torch.ones(2, dtype=torch.int32),
        "kv_cache_dtype": "auto",
        "alibi_slopes": None,
        **more,
    }
