"""What the docs show is what the repository makes."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_picture_of_the_pipeline_is_current():
    spec = importlib.util.spec_from_file_location("make_pipeline_svg", DOCS / "make_pipeline_svg.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "images" / "pipeline.svg").read_text("utf-8") == module.svg()
