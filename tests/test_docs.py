"""What the docs show is what the repository makes."""

import importlib.util
import re
import shutil
from pathlib import Path

from click.testing import CliRunner

from pav2gen.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_picture_of_the_pipeline_is_current():
    spec = importlib.util.spec_from_file_location("make_pipeline_svg", DOCS / "make_pipeline_svg.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "images" / "pipeline.svg").read_text("utf-8") == module.svg()


def test_the_session_of_the_readme_is_what_the_commands_print(tmp_path, monkeypatch):
    """The lines after each `$ pav2gen ...` of the section "A session", from the committed spec alone in a folder."""
    session = (DOCS.parent / "README.md").read_text("utf-8").partition("## A session")[2].partition("\n## ")[0]
    blocks = re.findall(r"^    \$ pav2gen (.+)\n((?:    (?!\$).*\n)*)", session, re.M)
    assert len(blocks) == 5
    (tmp_path / "specs").mkdir()
    spec = shutil.copy(DOCS.parent / "specs" / "qwen36.yaml", tmp_path / "specs")
    (tmp_path / "typo.yaml").write_text(Path(spec).read_text("utf-8").replace("gqa_ratio:", "gqa_ratoi:"), "utf-8")
    monkeypatch.chdir(tmp_path)
    for command, shown in blocks:
        printed = CliRunner().invoke(main, command.split()).output
        assert printed == re.sub(r"^    ", "", shown, flags=re.M), command


def test_the_commands_find_the_spec_of_the_page_on_modifications(tmp_path, monkeypatch):
    """The spec of the page, at the path that the page names, is one that check, list and explain find by themselves."""
    page = (DOCS / "modifications.md").read_text("utf-8")
    path, text = re.search(r"^Write `(.+)`:\n\n((?:    .*\n)+)", page, re.M).groups()
    monkeypatch.chdir(tmp_path)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(re.sub(r"^    ", "", text, flags=re.M), "utf-8")
    assert f"$ pav2gen build {path}\n" in page
    for command in (f"build {path}", "check", "list", "explain modification=near_and_first"):
        result = CliRunner().invoke(main, command.split())
        assert (result.exit_code, "no kernel serves it" in result.output) == (0, False), result.output
