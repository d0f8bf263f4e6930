"""Whether a backend of a tree decodes by ``PagedAttention.forward_decode``."""

from __future__ import annotations

from pathlib import Path

import pytest

from pav2gen.install.tree.decode_callers import calls_forward_decode
from pav2gen.install.tree.trees import VllmTree

CALL = "out = PagedAttention.forward_decode(query)\n"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("attention/backends/xformers.py", CALL, True),
        ("attention/backends/mla/deep.py", "paged_attn.forward_decode(query)", True),
        ("v1/attention/backends/new.py", CALL, True),
        ("attention/backends/hpu_attn.py", "out = HPUPagedAttention.forward_decode(query)\n", False),
        ("attention/backends/mla.py", "self._forward_decode(query)", False),
        ("attention/ops/other_paged_attn.py", CALL, True),  # without any backend: an excerpt, of which nothing is known
    ],
)
def test_a_call_is_looked_for_where_backends_are(tmp_path: Path, file: str, text: str, expected: bool) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert calls_forward_decode(VllmTree(tmp_path, "tree")) is expected
