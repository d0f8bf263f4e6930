"""The command line does the same under every locale, whatever letters its files and their names hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, SPEC, snapshot
from tests.locales import LOCALES, variables

#: Runs commands, a JSON list on each line of a file, in one process; prints the exit code of each. Their words become
#: what Python makes of the bytes that a terminal sends.
DRIVER = """
import json, os, sys
from pav2gen.cli import main
for line in open(sys.argv[1], encoding="utf-8"):
    try:
        main([os.fsdecode(word.encode()) for word in json.loads(line)], prog_name="pav2gen")
    except SystemExit as end:
        print("exit", end.code, flush=True)
"""

CONFIG = {
    "model_type": "qwen2",
    "_name_or_path": "通义千问",
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "max_position_embeddings": 32768,
}

#: Commands, and the exit code of each.
COMMANDS: tuple[tuple[list[str], int], ...] = (
    (["build", "规格/small.yaml", "--dry-run"], 0),
    (["build", "规格/small.yaml"], 0),
    (["build", "规格/small.yaml", "--out", "出/kernels"], 0),
    (["check", "规格/small.yaml"], 0),
    (["list", "规格/small.yaml"], 0),
    (["list", "规格/small.yaml", "--json"], 0),
    (["explain", "head_size=256", "--spec", "规格/small.yaml"], 0),
    (["explain", "head_size=80", "--spec", "规格/small.yaml"], 0),
    (["report", "规格/small.yaml", "--out", "报告.html"], 0),
    (["init", "--from", "配置.json", "--out", "规格/model.yaml"], 0),
    (["build", "规格/没有.yaml"], 2),
    (["build", "规格/bad.yaml"], 2),
    (["explain", "头=80", "--spec", "规格/small.yaml"], 2),
    (["remove", "通义"], 2),
    (["remove", "规格/small.yaml", "--out", "出/kernels"], 0),
    (["status", "规格"], 2),
    (["doctor", "树"], 0),
    (["wheel", "--dest", "轮"], 0),
)


@pytest.fixture(scope="module")
def expected() -> dict[str, object]:
    """What the first locale left behind: the others leave the same."""
    return {}


@pytest.mark.parametrize("name", LOCALES)
def test_the_command_line(
    name: str, folder: Path, expected: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    specs = folder / "规格"
    specs.mkdir()
    text = SPEC.format(name="small", head_size=256, partition_size=512, dtype="float16", backends="[torch]")
    (specs / "small.yaml").write_text(text.replace("a small family for tests", "通义千问 naïve"), "utf-8")
    (specs / "bad.yaml").write_text(text + "错误: 1\n", "utf-8")
    (folder / "配置.json").write_text(json.dumps(CONFIG, ensure_ascii=False), "utf-8")
    driver, commands = folder.parent / "driver.py", folder.parent / "commands"
    driver.write_text(DRIVER, "utf-8")
    commands.write_text("".join(json.dumps(words) + "\n" for words, _ in COMMANDS), "utf-8")
    environment = {**os.environ, **variables(name, tmp_path_factory.mktemp("locales")), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, str(driver), str(commands)], env=environment, capture_output=True)
    output, errors = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
    assert "Traceback" not in errors
    codes = [int(line.split()[1]) for line in output.splitlines() if line.startswith("exit ")]
    assert dict(zip(map(" ".join, (words for words, _ in COMMANDS)), codes)) == {
        " ".join(words): code for words, code in COMMANDS
    }
    left = {os.fsencode(path): state for path, state in snapshot(folder).items() if "tmp" not in path}
    assert expected.setdefault("left", left) == left
