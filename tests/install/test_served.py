"""The sentences on what an install serves."""

from __future__ import annotations

import pytest

from pav2gen.install.editing.patch import Fork
from pav2gen.install.served import served


def sentences(writer: str, prefix: str, refuses: bool, wanted: str = "auto", **operators: int) -> list[str]:
    fork = Fork("float", "plain", False, writer, prefix, refuses)
    return [sentence.partition(": ")[2] for sentence in served(fork, operators, wanted)]


@pytest.mark.parametrize(
    ("writer", "wanted", "kernels", "sentence"),
    [
        ("whole", "auto", 3, "the tree's own writer"),
        ("", "always", 3, "the tree's own writer"),
        ("whole", "always", 3, "the generated writer (3 kernels)"),
        ("plain", "auto", 3, "compressed caches by the generated writer (3 kernels), others by the tree's own"),
        ("plain", "always", 3, "the generated writer (3 kernels)"),
        (
            "plain",
            "auto",
            0,
            "auto caches by the tree's own writer; no cache kernels are installed: add cache to the spec's operators",
        ),
    ],
)
def test_who_fills_the_cache(writer: str, wanted: str, kernels: int, sentence: str) -> None:
    assert sentences(writer, "works", False, wanted, decode=1, cache=kernels)[0] == sentence


@pytest.mark.parametrize(
    ("prefix", "kernels", "sentence"),
    [
        ("works", 0, "the tree's own path"),
        ("", 2, "the tree's own path"),
        ("works", 2, "the extend kernels (2), else the tree's own path"),
        ("hangs", 2, "the extend kernels (2); the tree's own path is not taken: its Triton kernel hangs this card"),
        ("none", 0, "no extend kernels are installed; the tree's own path is not taken: it is a stub"),
    ],
)
def test_who_serves_cached_prefixes(prefix: str, kernels: int, sentence: str) -> None:
    assert sentences("plain", prefix, False, decode=1, extend=kernels)[1] == sentence


def test_what_becomes_of_a_softcap() -> None:
    assert len(sentences("plain", "works", False)) == 2
    assert sentences("plain", "works", True)[2] == "refused when the model loads; no extend kernels are installed"
    assert sentences("plain", "works", True, extend=1)[2].startswith("kernels with this softcap serve decodes")
