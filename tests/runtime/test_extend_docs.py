"""The code of docs/extend.md runs as it is written, against the committed package."""

import re
from pathlib import Path

import torch

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "extend.md").read_text("utf-8")


def test_the_examples_run(package):
    torch.manual_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    assert len(blocks) == 2
    names = {"pav2": package}
    for block in blocks:
        exec(compile(block, "docs/extend.md", "exec"), names)
    assert names["verified"].shape == (4, 24, 256) and names["verified"].isfinite().all()
    assert names["whole"].abs().max() > 0.1
