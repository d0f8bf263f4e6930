"""The command line: what each command prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import pav2gen
from pav2gen.cli import main
from pav2gen.errors import UserError
from pav2gen.family.axes import AXES
from tests.conftest import REPOSITORY, snapshot

Write = Callable[..., Path]
Run = Callable[..., Result]
OUT = Path("generated")
COMMANDS = (
    *("build", "remove", "check", "list", "explain", "init", "schema", "doctor"),
    *("compile", "install", "status", "uninstall", "wheel", "bench", "tune", "report"),
)
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "use_sliding_window": True,
    "sliding_window": 4096,
}


@pytest.fixture
def run(folder: Path, templates: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``pav2gen`` with the small templates, in this process."""
    monkeypatch.setattr("pav2gen.render.templates.data_folder", lambda name: templates)
    return lambda *words: CliRunner().invoke(main, [str(word) for word in words], prog_name="pav2gen")


def process(
    *words: object, python: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``pav2gen`` as a user does, in a process of its own, with the real templates."""
    command = [sys.executable, *python, "-m", "pav2gen", *map(str, words)]
    return subprocess.run(command, capture_output=True, env=environ(environment), timeout=60)


def environ(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})}


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_each_command_shows_an_example(self, run: Run, command: str) -> None:
        result = run(command, "--help")
        assert result.exit_code == 0
        example = result.output.partition("Example:\n")[2].partition("\n\n")[0].splitlines()
        assert any(f"{line} ".startswith(f"    pav2gen {command} ") for line in example)
        assert max(map(len, result.output.splitlines())) <= 100

    def test_it_lists_every_command(self, run: Run) -> None:
        assert {*COMMANDS, "simt"} == set(main.commands)
        assert all(f"\n  {command} " in run("--help").output for command in COMMANDS)

    def test_version(self, run: Run) -> None:
        assert run("--version").output == f"pav2gen {pav2gen.__version__}\n"

    @pytest.mark.parametrize("words", [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)])
    def test_it_imports_nothing_heavy(self, words: list[str]) -> None:
        result = process(*words, python=("-X", "importtime"))
        imported = {line.split("|")[-1].strip() for line in result.stderr.decode().splitlines()}
        assert "click" in imported
        assert imported.isdisjoint({"jinja2", "yaml", "torch", "rich", "numpy", "libcst"})

    def test_no_command_needs_torch(self, write_spec: Write) -> None:
        spec = str(write_spec())
        Path("config.json").write_text(json.dumps(CONFIG))
        for words in (
            ["build", spec],
            ["check"],
            ["list"],
            ["explain", "head_size=80"],
            ["init", "--from", "config.json"],
            ["remove", "small"],
        ):
            script = f"import sys; sys.modules['torch'] = None\nfrom pav2gen.cli import main\nmain({words})"
            result = subprocess.run([sys.executable, "-c", script], env=environ(), capture_output=True, text=True)
            assert result.returncode == 0, result.stderr


class TestConveniences:
    def test_the_version_with_what_it_runs_on(self, run: Run) -> None:
        for words in (("--version", "-v"), ("-v", "--version"), ("--version", "--verbose")):
            version, python, platform = run(*words).output.splitlines()
            assert version == f"pav2gen {pav2gen.__version__}"
            assert python == f"Python {'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}" and platform

    @pytest.mark.parametrize(
        ("command", "pairs"),
        [
            ("build", {"-o": "--out", "-f": "--filter", "-n": "--dry-run", "-v": "--verbose", "-q": "--quiet"}),
            ("remove", {"-o": "--out", "-n": "--dry-run", "-v": "--verbose", "-q": "--quiet"}),
            ("check", {"-o": "--out", "-v": "--verbose", "-q": "--quiet"}),
            ("init", {"-o": "--out"}),
            ("list", {"-f": "--filter"}),
            ("schema", {"-o": "--out", "-q": "--quiet"}),
            ("doctor", {"-o": "--out"}),
            ("install", {"-o": "--out", "-n": "--dry-run"}),
            ("status", {"-o": "--out"}),
            ("uninstall", {"-n": "--dry-run"}),
            ("wheel", {"-o": "--out"}),
            ("bench", {"-f": "--filter"}),
            ("tune", {"-f": "--filter"}),
            ("report", {"-f": "--filter", "-o": "--out"}),
        ],
    )
    def test_short_options(self, command: str, pairs: dict[str, str]) -> None:
        options = [option for param in main.commands[command].params for option in [set(param.opts)]]
        for short, long in pairs.items():
            assert {short, long} in options

    def test_verbose_names_each_file_and_quiet_none(self, run: Run, write_spec: Write) -> None:
        spec = write_spec()
        plain = run("build", spec, "-n").output
        built = run("build", spec, "-v").output
        assert len(built.splitlines()) == 15 + 2 and built.splitlines()[:15] == plain.splitlines()[:15]
        assert run("build", spec, "-q").output == "" and run("check", "-q").output == ""
        (OUT / "notes.txt").touch()
        assert (run("check", "-q").exit_code, run("check", "-q").output) == (1, "")
        (OUT / "dispatch.py").write_text("mine", "utf-8")
        refused = run("build", spec, "-q")
        assert refused.exit_code == 2 and refused.output.startswith("error: generated: 1 file edited")
        refused = run("build", spec, "-q", "-n")
        assert refused.exit_code == 2 and refused.output.startswith("error: generated: 1 file edited")
        run("build", spec, "--force")
        assert run("remove", "small", "-q").output == ""

    def test_verbose_names_every_drift(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        for number in range(30):
            (OUT / f"notes{number}.txt").touch()
        assert "and 10 more" in run("check").output
        assert run("check", "-v").output.count("orphan  ") == 30

    def test_explain_without_words_says_what_it_can_explain(self, run: Run, write_spec: Write) -> None:
        write_spec()
        head, *lines = run("explain").output.splitlines()
        assert head.startswith("pav2gen explain AXIS=VALUE...")
        assert [line.split()[0] for line in lines] == ["operator", *AXES]
        assert next(line for line in lines if "partition_size" in line).endswith("The specs have 256, 512.")
        assert all("Can be " in line for line in lines if line.split()[0] in ("head_size", "dtype", "block_size"))

    @pytest.mark.parametrize(
        ("words", "offered"),
        [
            ("pav2gen bu", {"build"}),
            ("pav2gen build --dr", {"--dry-run"}),
            ("pav2gen explain head", {"head_size="}),
            ("pav2gen compile --toolchain ", {"corex", "nvcc", "host"}),
        ],
    )
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_shell_completion(self, folder: Path, words: str, offered: set[str], shell: str) -> None:
        current = words.split(" ")[-1]
        asked = {"COMP_WORDS": words, "COMP_CWORD": current if shell == "fish" else str(len(words.split(" ")) - 1)}
        done = process(environment={"_PAV2GEN_COMPLETE": f"{shell}_complete", **asked})
        text = done.stdout.decode()
        assert all(word in text for word in offered) and b"Traceback" not in done.stderr
        assert b"complete" in process(environment={"_PAV2GEN_COMPLETE": f"{shell}_source"}).stdout

    @pytest.mark.parametrize(("no_color", "escapes"), [("1", False), ("", True)])
    def test_no_color(self, write_spec: Write, no_color: str, escapes: bool) -> None:
        """In a terminal; elsewhere a table never has colours."""
        spec = write_spec()
        leader, follower = os.openpty()
        command = [sys.executable, "-m", "pav2gen", "list", str(spec)]
        environment = environ({"NO_COLOR": no_color, "TERM": "xterm-256color"})
        with subprocess.Popen(command, stdout=follower, env=environment) as running:
            os.close(follower)
            text = b""
            while True:
                try:
                    text += os.read(leader, 1 << 16)
                except OSError:  # the other end was closed
                    break
        os.close(leader)
        assert running.returncode == 0 and b"hd256" in text
        assert (b"\x1b[" in text) == escapes


class TestBuild:
    def test_it_says_what_it_did_and_what_to_do_next(self, run: Run, write_spec: Write) -> None:
        result = run("build", write_spec())
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == (
            "generated: 15 files written, 0 removed, 0 unchanged (small: 2 kernels)\nnext: pytest generated\n"
        )
        assert run("build", "specs/small.yaml").stdout.startswith("generated: 0 files written, 0 removed, 15 unchanged")

    def test_a_dry_run(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        result = run("build", write_spec(partition_size=[512, 1024]), "--dry-run")
        lines = result.stdout.splitlines()
        assert "removed  generated/small/torch_kernels/hd256_g6_b16_f16_p256.py" in lines
        assert "new      generated/small/torch_kernels/hd256_g6_b16_f16_p1024.py" in lines
        assert "changed  generated/dispatch.py" in lines
        assert lines[-1] == "generated: 9 files would be written, 2 would be removed, 6 unchanged (small: 2 kernels)"

    def test_a_dry_run_that_would_be_refused(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        (OUT / "pytest.ini").write_text("mine")
        result = run("build", "specs/small.yaml", "--dry-run")
        assert result.exit_code == 2
        assert "changed  generated/pytest.ini  (not ours: needs --force)" in result.stdout
        assert result.stderr.startswith("error: generated: 1 file edited or added by hand would be lost: pytest.ini;")
        assert run("build", "specs/small.yaml", "--dry-run", "--force").exit_code == 0
        assert (OUT / "pytest.ini").read_text() == "mine"

    def test_filter_out_and_force(self, run: Run, write_spec: Write) -> None:
        spec = write_spec()
        assert run("build", spec, "--filter", "*_p512", "--out", "part").stdout.startswith("part: 13 files written")
        (Path("part") / "dispatch.py").write_text("mine")
        assert run("build", spec, "--filter", "*_p512", "--out", "part").exit_code == 2
        assert run("build", spec, "--filter", "*_p512", "--out", "part", "--force").exit_code == 0

    def test_notes(self, run: Run, write_spec: Write) -> None:
        result = run("build", write_spec("a"), write_spec("b"))
        note = "a serves the keys of 2 kernels of b: if two specs have the same key, the first by name serves it"
        assert f"note: {note}" in result.stdout.splitlines()

    def test_remove(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec("a", head_size=64), write_spec("b", head_size=128))
        assert run("remove", "b", "--dry-run").stdout.count("removed  generated/b/") == 7
        assert run("remove", "b").stdout.startswith("generated: 2 files written, 7 removed, 6 unchanged\n")
        assert run("remove", "b").exit_code == 2


class TestCheck:
    def test_current(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        result = run("check")
        assert (result.exit_code, result.stdout) == (0, "generated: all 15 files are current\n")

    def test_drift_and_the_commands_that_repair_it(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        (OUT / "small" / "README.md").unlink()
        (OUT / "notes.txt").touch()
        result = run("check", "specs/small.yaml")
        assert result.exit_code == 1
        assert result.stdout.splitlines() == [
            "missing     generated/small/README.md",
            "orphan      generated/notes.txt  (no MANIFEST lists it)",
            "to repair it:",
            "  pav2gen build specs/small.yaml",
            "  rm generated/notes.txt",
        ]

    def test_another_package(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec(), "--out", "a b/kernels")
        assert run("check", "--out", "a b/kernels").exit_code == 0
        (Path("a b/kernels") / "dispatch.py").unlink()
        lines = run("check", "--out", "a b/kernels").stdout.splitlines()
        assert "  pav2gen build specs/small.yaml --out 'a b/kernels'" in lines

    def test_a_link_in_a_files_place_is_removed_first(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        (OUT / "dispatch.py").unlink()
        (OUT / "dispatch.py").symlink_to("/etc/hostname")
        lines = run("check").stdout.splitlines()
        assert lines[-3:] == ["to repair it:", "  rm -r generated/dispatch.py", "  pav2gen build specs/small.yaml"]

    def test_hidden_files_are_nobody_s(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        (OUT / ".git").mkdir()
        (OUT / ".git" / "HEAD").write_text("ref: refs/heads/main")
        assert run("check").exit_code == 0
        (OUT / "NOTES.md").write_text("mine")
        assert run("check").exit_code == 1

    def test_many_of_a_kind_are_counted(self, run: Run, write_spec: Write, templates: Path) -> None:
        run("build", write_spec(partition_size=[64, 128, 256, 512, 1024], dtype="[float16, bfloat16, float32]"))
        (templates / "tests" / "test_kernel.py.j2").write_text("{{ header }}\n")
        (templates / "torch" / "kernel.py.j2").write_text("{{ header }}\n")
        lines = run("check").stdout.splitlines()
        assert len(lines) == 20 + 1 + 2
        assert lines[20] == "changed     and 11 more"

    def test_all_specs_of_the_folder_unless_some_are_named(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec("a", head_size=64), write_spec("b", head_size=128))
        Path("specs/b.yaml").unlink()
        assert "orphan      generated/b/  (there is no such spec)" in run("check").stdout.splitlines()
        assert run("check", "specs/a.yaml").exit_code == 0

    def test_no_specs(self, run: Run) -> None:
        result = run("check")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: there are no specs/*.yaml here")


class TestListAndExplain:
    def test_a_row_for_each_variant(self, run: Run, write_spec: Write) -> None:
        head, _, *rows = [line.split() for line in run("list", write_spec()).stdout.splitlines()]
        assert head[:2] == ["spec", "kernel"] and "kv_mib" in head
        assert [row[:2] for row in rows] == [["small", "hd256_g6_b16_f16_p256"], ["small", "hd256_g6_b16_f16_p512"]]
        assert all(len(row) == len(head) for row in rows)

    def test_json(self, run: Run, write_spec: Write) -> None:
        run("build", write_spec())
        listed = json.loads(run("list", "--json").stdout)
        rows = json.loads((OUT / "small" / "MANIFEST.json").read_text())["rows"]
        assert [entry["figures"] for entry in listed] == [row["figures"] for row in rows]
        assert [entry["symbol"] for entry in listed] == [row["symbol"] for row in rows]
        assert listed[0]["head_size"] == 256 and listed[0]["alibi"] is False

    def test_a_filter(self, run: Run, write_spec: Write) -> None:
        write_spec()
        (one,) = json.loads(run("list", "-f", "partition_size=512", "--json").stdout)
        assert one["partition_size"] == 512

    def test_a_filter_on_an_operator(self, run: Run, write_spec: Write) -> None:
        spec = write_spec()
        assert len(json.loads(run("list", "-f", "operator=decode", "--json").stdout)) == 2
        result = run("list", "-f", "operator=extend")
        assert (result.exit_code, result.stderr) == (
            2,
            "error: --filter 'operator=extend' selects nothing; write in a spec: operators: [decode, extend]\n",
        )
        assert "did you mean extend?" in run("list", "-f", "operator=extent").stderr
        with open(spec, "a", encoding="utf-8") as file:
            file.write("operators: [decode, extend]\n")
        (one,) = json.loads(run("list", "-f", "operator=extend", "--json").stdout)
        assert one["operator"] == "extend"

    def test_a_quiet_schema(self, run: Run) -> None:
        assert run("schema", "-q", "-o", "schema.json").output == "" and Path("schema.json").exists()
        result = run("schema", "-q")
        assert (result.exit_code, result.stderr) == (
            2,
            "error: --quiet needs --out: without it, the schema is printed\n",
        )

    def test_figures_are_numbers(self, run: Run, write_spec: Write) -> None:
        spec = write_spec(backends="[torch, cuda]")
        figures = json.loads(run("list", spec, "--json").stdout)[0]["figures"]
        words = {name for name, figure in figures.items() if isinstance(figure, str)}
        assert words == {"heads", "load_bytes", "registers_from"}  # pairs such as 24/4, and a word

    def test_explain(self, run: Run, write_spec: Write) -> None:
        write_spec()
        assert run("explain", "head_size=256").stdout.startswith("head_size=256: 2 kernels serve it\n")
        result = run("explain", "head_size=128", "gqa_ratio=6")
        assert result.exit_code == 0
        assert "head_size: [128, 256]" in result.stdout and "pav2gen build specs/small.yaml" in result.stdout

    def test_explain_of_some_specs(self, run: Run, write_spec: Write) -> None:
        write_spec("a", head_size=64)
        b = write_spec("b", head_size=128)
        assert "2 kernels serve it" in run("explain", "head_size=64").stdout
        assert "no kernel serves it" in run("explain", "head_size=64", "--spec", b).stdout


class TestInit:
    def test_a_spec_that_builds(self, run: Run) -> None:
        Path("config.json").write_text(json.dumps(CONFIG))
        result = run("init", "--from", "config.json", "--out", "specs/mine.yaml")
        assert result.stdout.splitlines()[0].startswith("specs/mine.yaml: written")
        assert "sliding_window: [null, 4096]" in Path("specs/mine.yaml").read_text()
        assert result.stdout.splitlines()[-1] == "next: pav2gen build specs/mine.yaml"
        assert run("build", "specs/mine.yaml").exit_code == 0

    def test_it_says_what_it_assumed_and_left_out(self, run: Run) -> None:
        config = {"model_type": "zork", "num_attention_heads": 8, "head_dim": 128, "attention_chunk_size": 512}
        Path("config.json").write_text(json.dumps(config | {"attn_softcap": 30, "max_position_embeddings": 10**20}))
        lines = run("init", "--from", "config.json", "--out", "specs/zork.yaml").stdout.splitlines()
        notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
        assert [note.split()[0:3] for note in notes] == [["the", "model's", "context"], ["model", "type", "'zork'"]]
        assert "(not attn_softcap)" in notes[1]
        assert any(line.startswith("not covered by any kernel: attention within chunks of 512") for line in lines)
        text = Path("specs/zork.yaml").read_text()
        comments = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
        assert all(f"{note[0].upper()}{note[1:]}." in comments for note in notes)

    def test_a_wrong_type_in_the_config_writes_nothing(self, run: Run) -> None:
        Path("config.json").write_text(json.dumps(CONFIG | {"sliding_window": True}))
        result = run("init", "--from", "config.json", "--out", "specs/mine.yaml")
        wrong = "error: config.json: sliding_window must be a positive whole number, not true\n"
        assert (result.exit_code, result.stderr, Path("specs/mine.yaml").exists()) == (2, wrong, False)

    def test_its_name_is_the_models(self, run: Run) -> None:
        Path("Qwen2.5-7B").mkdir()
        Path("Qwen2.5-7B/config.json").write_text(json.dumps(CONFIG))
        assert run("init", "--from", "Qwen2.5-7B/config.json").exit_code == 0
        (spec,) = Path("specs").iterdir()
        assert f"\nname: {spec.stem}\n" in spec.read_text()

    def test_a_spec_is_not_replaced(self, run: Run, write_spec: Write) -> None:
        Path("config.json").write_text(json.dumps(CONFIG))
        spec = write_spec()
        before = spec.read_text()
        result = run("init", "--from", "config.json", "--out", spec)
        assert (result.exit_code, result.stdout) == (2, "")
        assert (
            result.stderr
            == "error: specs/small.yaml: exists already; name another file with --out, or add --force to replace it\n"
        )
        assert spec.read_text() == before
        assert run("init", "--from", "config.json", "--out", spec, "--force").exit_code == 0
        assert spec.read_text() != before

    @pytest.mark.parametrize("out", ["config.json/x.yaml", "specs"])
    def test_a_place_that_cannot_be_written(self, run: Run, write_spec: Write, out: str) -> None:
        write_spec()
        Path("config.json").write_text(json.dumps(CONFIG))
        result = run("init", "--from", "config.json", "--out", out, "--force")
        assert result.exit_code == 2 and result.stderr.startswith(f"error: {out}: cannot be written (")


class TestMistakes:
    @pytest.mark.parametrize(
        "words",
        [
            ["build", "none.yaml"],
            ["build", "specs"],
            ["build", "specs/small.yaml", "--filter", "zzz", "--out", "part"],
            ["check", "none.yaml"],
            ["list", "none.yaml"],
            ["explain", "head_sise=3"],
            ["explain", "head_size"],
            ["init", "--from", "none.json"],
            ["remove", "none"],
        ],
    )
    def test_one_line_on_stderr_and_exit_code_2(self, run: Run, write_spec: Write, words: list[str]) -> None:
        write_spec()
        before = snapshot(Path())
        result = run(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
        assert snapshot(Path()) == before

    @pytest.mark.parametrize(
        "words, said, command",
        [
            (["build"], "Missing argument 'SPEC...'", "pav2gen build"),
            (["nonsense"], "No such command 'nonsense'", "pav2gen"),
            (["--nonsense"], "No such option '--nonsense'", "pav2gen"),
            (["build", "--nonsense"], "No such option '--nonsense'", "pav2gen build"),
            (["init"], "Missing option '--from'", "pav2gen init"),
            (["build", "x", "--out", ""], "Invalid value for '--out' / '-o': the path is empty", "pav2gen build"),
            (["simt", "nonsense"], "No such command 'nonsense'", "pav2gen simt"),
            (["simt", "run"], "no program is given; name its source: pav2gen simt run scale.cu", "pav2gen simt run"),
            (
                ["bench", "x", "--max-gib", "nan"],
                "Invalid value for '--max-gib': 'nan' is not a number",
                "pav2gen bench",
            ),
        ],
    )
    def test_usage(self, run: Run, words: list[str], said: str, command: str) -> None:
        result = run(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {said}") and result.stderr.count("\n") == 1
        assert result.stderr.endswith(f"; see {command} --help\n")

    def test_no_words_at_all(self, run: Run) -> None:
        result = run()
        assert "Usage: pav2gen" in result.output and "Commands:" in result.output

    def test_a_working_folder_that_is_gone(self, write_spec: Write) -> None:
        spec = write_spec().resolve()
        script = f"mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m pav2gen build {spec}"
        result = subprocess.run(["sh", "-c", script], env=environ(), capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (2, "error: No such file or directory\n")

    def test_a_message_is_one_line(self, run: Run, write_spec: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise UserError("two\nlines", "a\nfile")

        monkeypatch.setattr("pav2gen.commands.build.build", fail)
        assert run("build", write_spec()).stderr == "error: a file: two lines\n"

    def test_ctrl_c(self, run: Run, write_spec: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("pav2gen.commands.build.build", interrupted)
        result = run("build", write_spec())
        assert (result.exit_code, result.stdout, result.stderr.strip()) == (1, "", "Aborted!")


class TestStreams:
    def test_a_reader_that_goes_away(self, write_spec: Write) -> None:
        write_spec(partition_size=[64, 128, 256, 512, 1024], dtype="[float16, bfloat16, float32]")
        for words in (["list"], ["list", "--json"], ["build", "specs/small.yaml", "--dry-run"]):
            command = [sys.executable, "-m", "pav2gen", *words]
            with subprocess.Popen(command, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
                assert running.stdout and running.stderr
                running.stdout.close()
                assert running.stderr.read() == b""

    def test_no_stdout_at_all(self, write_spec: Write) -> None:
        write_spec()
        command = f"{sys.executable} -m pav2gen build specs/small.yaml >&-"
        result = subprocess.run(["sh", "-c", command], env=environ(), capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")

    @pytest.mark.parametrize(
        "environment",
        [
            {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
            {"LC_ALL": "POSIX"},
            {"PYTHONIOENCODING": "ascii"},
            {"PYTHONIOENCODING": "cp1252"},
            {"PYTHONIOENCODING": "utf-16"},
        ],
    )
    def test_any_encoding(self, write_spec: Write, environment: dict[str, str]) -> None:
        spec = write_spec()
        os.makedirs("naïve é\U0001f600")
        odd = spec.rename(Path("naïve é\U0001f600") / "spéc.yaml")
        for words in (["build", odd], ["check", odd], ["list", odd], ["explain", "head_size=80", "--spec", odd]):
            result = process(*words, environment=environment)
            assert (result.returncode, result.stderr) == (0, b""), result.stderr.decode()
        result = process("build", "nön.yaml", environment=environment)
        assert result.returncode == 2 and b"Traceback" not in result.stderr

    def test_a_file_name_that_is_no_text(self, write_spec: Write) -> None:
        odd = os.fsencode(write_spec().parent) + b"/\xff.yaml"
        os.rename("specs/small.yaml", odd)
        result = process("build", os.fsdecode(odd))
        assert result.returncode == 2
        assert (
            b"the name has characters that cannot be printed, but generated files contain it" in result.stderr
            and b"Traceback" not in result.stderr
        )

    def test_no_colour_where_there_is_no_terminal(self, write_spec: Write) -> None:
        write_spec()
        for words in (["--help"], ["build", "specs/small.yaml"], ["list"], ["check"], ["build", "none.yaml"]):
            result = process(*words, environment={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
            assert b"\x1b" not in result.stdout + result.stderr, words

    def test_a_row_is_a_line_where_there_is_no_terminal(self, write_spec: Write) -> None:
        write_spec()
        lines = process("list", environment={"COLUMNS": "40"}).stdout.decode().splitlines()
        assert sum("hd256_g6_b16_f16_p" in line for line in lines) == 2
