"""The code of two pages of docs/ runs as it is written, against the committed package."""

import re
import sys
from pathlib import Path

import pytest
import torch

from .conftest import GENERATED

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def names(package, monkeypatch):
    """The names that the code defines. `import generated` gives the committed package."""
    assert package.__file__ == str(GENERATED / "__init__.py")
    monkeypatch.setitem(sys.modules, "generated", package)
    torch.manual_seed(0)
    return {}


def run(page, names):
    """Run the code of a page. Returns the number of its blocks."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.M | re.S)
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return len(blocks)


def test_the_examples_of_extend_run(names):
    assert run("extend.md", names) == 2
    assert names["verified"].shape == (4, 24, 256) and names["verified"].isfinite().all()
    assert names["whole"].abs().max() > 0.1


def test_the_example_of_a_compressed_cache_gives_the_attention(names):
    """The result is the attention over the keys and values before they were compressed, up to int8's error."""
    assert run("compressed_caches.md", names) == 1
    query, keys, values = (names[name].double() for name in ("query", "keys", "values"))
    scores = torch.einsum("hgd,khd->hgk", query.view(4, 6, 256), keys) / 16
    truth = torch.einsum("hgk,khd->hgd", scores.softmax(-1), values).flatten(0, 1)
    assert (names["out"][0].double() - truth).norm() < 0.03 * truth.norm()
