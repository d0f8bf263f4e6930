"""``pav2gen doctor``: all found, all absent, all broken; the screen, and the command that it ends with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pav2gen.cli import main
from pav2gen.commands import doctor, machine_probes
from pav2gen.commands.build import BuildOptions, build
from pav2gen.commands.doctor import DoctorOptions, Finding, examine, shapes, target_of
from pav2gen.commands.machine_probes import DRIVER, PYTHON, TORCH, NoAnswer, ask
from tests.conftest import REPOSITORY, SPEC

BI_V100 = {
    "name": "Iluvatar BI-V100", "warp_size": 64, "multiprocessors": 16, "max_threads_per_block": 4096,
    "shared_memory_bytes": 49152, "major": 7, "minor": 0,
}  # fmt: skip
T4 = {"name": "Tesla T4", "warp_size": 32, "multiprocessors": 40, "major": 7, "minor": 5, "shared_memory_bytes": 49152}

ANSWERS = {
    PYTHON: {"version": "3.10.12", "executable": "/usr/bin/python3", "platform": "Linux", "vllm": "", "torch": ""},
    TORCH: {"version": "2.1.0", "cuda": "10.2", "available": True, "devices": ["Iluvatar BI-V100"]},
    DRIVER: {"library": "libcuda.so.1", "version": 10020, "cards": [BI_V100]},
}


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes probes answer: those of ``ANSWERS``, or what is given for one of them (an exception: it is raised)."""

    def set_answers(changed: dict[str, object] | None = None) -> None:
        answers: dict[str, object] = {**ANSWERS, **(changed or {})}

        def reply(python: str, probe: str) -> object:
            if isinstance(answers[probe], Exception):
                raise answers[probe]  # type: ignore[misc]
            return answers[probe]

        monkeypatch.setattr(doctor, "ask", reply)

    set_answers()
    return set_answers


def found(**options: object) -> dict[str, Finding]:
    """The findings by name."""
    return {finding.name: finding for finding in examine(DoctorOptions(**options)).findings}  # type: ignore[arg-type]


def test_a_machine_with_nothing(folder: Path, answer: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    answer(dict.fromkeys(ANSWERS, NoAnswer("no such thing")))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("COREX_HOME", "/nonexistent")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    diagnosis = examine(DoctorOptions())
    assert [finding.name for finding in diagnosis.findings if finding.found] == ["pav2gen"]
    assert diagnosis.next == "pav2gen init --from config.json"
    assert all(line.isprintable() and len(line) < 200 for line in diagnosis.lines())
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 0 and done.output.splitlines() == list(diagnosis.lines())


def test_the_screen_of_a_container(folder: Path, answer: Callable[..., None], write_spec: Callable[..., Path]) -> None:
    build([write_spec()], BuildOptions())
    screen = {line.split()[0]: line for line in examine(DoctorOptions()).lines() if line[0] != " "}
    assert screen["torch"].split(maxsplit=1)[1] == "2.1.0, built for CUDA 10.2; sees 1 device"
    assert screen["card"].split(maxsplit=1)[1] == "Iluvatar BI-V100; driver for CUDA 10.2"
    assert screen["package"].split(maxsplit=1)[1] == "generated: 2 kernels of 1 specs"
    assert screen["vLLM"].endswith("name a tree: pav2gen doctor TREE")
    assert screen["next"].split(maxsplit=1)[1] == "pytest generated  (no vLLM tree to install into)"
    assert found()["package"].more == ("small: head_size 256, gqa_ratio 6, block_size 16, dtype float16",)


def test_a_package_names_operators_beyond_decode(folder: Path) -> None:
    text = SPEC.format(name="small", head_size=256, partition_size=512, dtype="float16", backends="[torch]")
    Path("small.yaml").write_text(text + "operators: [decode, cache]\n")
    build([Path("small.yaml")], BuildOptions())
    (line,) = found()["package"].more
    assert line == "small: operators [decode, cache], head_size 256, gqa_ratio 6, block_size 16, dtype float16"


def test_a_card_is_compared_with_its_target(answer: Callable[..., None]) -> None:
    assert found()["card"].more == (
        "target bi-v100: multiprocessors 16, warp_size 64, max_threads_per_block 4096, shared_memory_bytes 49152",
    )
    answer({DRIVER: {"version": 12040, "cards": [{**T4, "multiprocessors": 20}, T4]}})
    card = found()["card"]
    assert card.text == "Tesla T4, and 1 more; driver for CUDA 12.4"
    assert card.more[0].startswith(
        "target sm_75: multiprocessors 20 (the target says 40), warp_size 32, max_threads_per"
    )
    answer({DRIVER: {"version": 12040, "cards": [{"name": "Novel", "warp_size": 16}]}})
    assert (
        found()["card"].more[0].startswith("no target for it: in the spec, take the nearest of bi-v100, mr-v100, sm_70")
    )


@pytest.mark.parametrize(
    ("card", "name"),
    [
        (BI_V100, "bi-v100"),
        ({**BI_V100, "name": "Iluvatar MR-V100"}, "mr-v100"),
        ({**BI_V100, "name": "Iluvatar BI V100"}, "bi-v100"),
        ({**BI_V100, "name": "Iluvatar BI-V150"}, None),
        (T4, "sm_75"),
        ({"major": 9, "minor": 0, "warp_size": 32}, "sm_90"),
        ({"major": 12, "minor": 0, "warp_size": 32}, None),
        ({}, None),
    ],
)
def test_the_target_of_a_card(card: dict[str, object], name: str | None) -> None:
    target = target_of(card)
    assert (target.name if target else None) == name


class TestNext:
    def test_build(self, answer: Callable[..., None], write_spec: Callable[..., Path]) -> None:
        write_spec()
        assert examine(DoctorOptions()).next == "pav2gen build specs/small.yaml"
        assert examine(DoctorOptions(generated=Path("out"))).next == "pav2gen build specs/small.yaml --out out"

    def test_check(self, answer: Callable[..., None], write_spec: Callable[..., Path]) -> None:
        build([write_spec()], BuildOptions())
        Path("generated/.pav2gen-build.json").write_text("{}", "utf-8")
        assert examine(DoctorOptions()).next == "pav2gen check"
        assert not found()["package"].found

    def test_a_tree_that_is_none(self, answer: Callable[..., None], write_spec: Callable[..., Path]) -> None:
        build([write_spec()], BuildOptions())
        Path("tree").mkdir()
        assert found(tree=Path("tree"))["vLLM"].text.startswith("tree: is not a vLLM tree")

    def test_a_broken_manifest(self, answer: Callable[..., None], write_spec: Callable[..., Path]) -> None:
        build([write_spec()], BuildOptions())
        Path("generated/small/MANIFEST.json").write_text("[" * 100_000, "utf-8")
        assert not found()["package"].found


def test_json(folder: Path, answer: Callable[..., None]) -> None:
    done = CliRunner().invoke(main, ["doctor", "--json"])
    document = json.loads(done.output)
    assert done.exit_code == 0 and document["schema"] == 1
    assert list(document["findings"]) == [
        "pav2gen",
        "Python",
        "torch",
        "card",
        "CoreX",
        "nvcc",
        "g++",
        "package",
        "vLLM",
    ]
    assert document["findings"]["card"]["figures"]["cards"] == [BI_V100]
    assert document["next"] == "pav2gen init --from config.json"


class TestProbes:
    """Each in a real process: what crashes there does not crash here."""

    @pytest.mark.parametrize(
        ("probe", "said"),
        [
            ("import sys; sys.exit(3)", "exit code 3"),
            ("raise ImportError('libtorch.so: cannot open')", "ImportError: libtorch.so: cannot open"),
            ("import os; os.abort()", "killed by signal 6"),
            ("print('hello')", "an answer that is not JSON"),
            ("print('[' * 100000)", "an answer that is not JSON"),
            ("print('[1]')", "an answer that is not an object"),
            ("pass", "an answer that is not JSON"),
        ],
    )
    def test_a_probe_that_fails(self, probe: str, said: str) -> None:
        with pytest.raises(NoAnswer, match=said):
            ask(sys.executable, probe)

    def test_a_probe_that_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine_probes, "SECONDS", 0.2)
        with pytest.raises(NoAnswer, match=r"no answer within 0\.2 s"):
            ask(sys.executable, "import time; time.sleep(60)")

    def test_a_python_that_is_none(self) -> None:
        with pytest.raises(NoAnswer, match="/nonexistent cannot be run"):
            ask("/nonexistent", PYTHON)

    def test_the_answer_is_the_last_line(self) -> None:
        assert ask(sys.executable, "print('a warning'); print('{\"a\": 1}')") == {"a": 1}

    def test_this_python(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm/__init__.py").write_text("raise RuntimeError('imported')", "utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        answer = ask(sys.executable, PYTHON)
        assert answer["version"] == ".".join(map(str, sys.version_info[:3]))
        assert answer["vllm"] == str(tmp_path / "vllm")

    def test_the_driver_of_this_machine(self) -> None:
        """Without a driver it says so; with one, each card has the figures that are compared."""
        try:
            answer = ask(sys.executable, DRIVER)
        except NoAnswer as reason:
            assert str(reason)
            return
        assert all(set(doctor.COMPARED) <= set(card) for card in answer["cards"])


def test_doctor_imports_no_torch_and_writes_nothing(folder: Path) -> None:
    code = (
        "import sys; from pav2gen.cli import main\n"
        "main(['doctor'], standalone_mode=False); print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert list(folder.iterdir()) == []


#: A driver with two cards, the attributes of which are ten times their numbers.
FAKE_DRIVER = """
#include <cstdio>
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) { *v = 10020; return 0; }
int cuDeviceGetCount(int* n) { *n = 2; return 0; }
int cuDeviceGet(int* d, int i) { *d = i; return 0; }
int cuDeviceGetName(char* name, int size, int d) { std::snprintf(name, size, "Card %d", d); return 0; }
int cuDeviceGetAttribute(int* v, int a, int d) { *v = 10 * a; return a == 37 ? 1 : 0; }
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_what_a_driver_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver.cpp").write_text(FAKE_DRIVER, "utf-8")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.cpp")], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    answer = ask(sys.executable, DRIVER)
    assert answer["version"] == 10020 and [card["name"] for card in answer["cards"]] == ["Card 0", "Card 1"]
    figures = {"max_threads_per_block": 10, "shared_memory_bytes": 80, "warp_size": 100, "multiprocessors": 160}
    assert figures.items() <= answer["cards"][1].items() and "memory_bits" not in answer["cards"][1]


def test_what_keys_have_in_common() -> None:
    keys = [{"head_size": 64, "gqa_ratio": 1, "alibi": False}, {"head_size": 64, "gqa_ratio": 2, "alibi": True}]
    assert shapes(keys) == "head_size 64, gqa_ratio [1, 2], alibi [false, true]"
