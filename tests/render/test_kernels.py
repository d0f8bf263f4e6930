"""FileSet, templates, headers: from a spec to texts in memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.errors import UserError
from pav2gen.files import checked_path, is_leftover
from pav2gen.reading.selection import load
from pav2gen.render import templates as template
from pav2gen.render.fileset import FileSet
from pav2gen.render.package import render_package
from pav2gen.render.templates import Templates
from tests.conftest import TEMPLATES


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class TestFileSet:
    def test_iterates_in_sorted_order(self) -> None:
        files = FileSet()
        for path in ("b/c.py", "a.py", "b.py", "b/a.py"):
            files.add(path, path)
        assert list(files) == ["a.py", "b.py", "b/a.py", "b/c.py"]
        assert [content for _, content in files.items()] == [b"a.py", b"b.py", b"b/a.py", b"b/c.py"]

    @pytest.mark.parametrize("content", ["same", "other"])
    def test_refuses_two_texts_for_one_path(self, content: str) -> None:
        files = FileSet()
        files.add("a.py", "same")
        with pytest.raises(ValueError, match=r"two texts for one path: a\.py"):
            files.add("a.py", content)
        with pytest.raises(ValueError, match="two texts"):
            files.update({"a.py": b""})

    @pytest.mark.parametrize(
        "path", ["", "/etc/passwd", "..", "../a", "a/../b", "a/..", ".", "./a", "a//b", "a/", "a\\b", "a\0b"]
    )
    def test_refuses_paths_that_lead_out(self, path: str) -> None:
        with pytest.raises(ValueError, match="relative path"):
            FileSet().add(path, "")

    @given(st.text("ab./\\", max_size=8))
    def test_a_checked_path_stays_below_its_folder(self, path: str) -> None:
        root = Path("/a/package")
        try:
            checked_path(path)
        except ValueError:
            return
        resolved = Path(f"{root}/{path}").resolve()
        assert root in resolved.parents
        assert resolved.relative_to(root).as_posix() == path

    def test_text_is_utf8_with_newlines_as_given(self) -> None:
        files = FileSet()
        files.add("a", "é\n")
        assert files["a"] == b"\xc3\xa9\n"
        assert files.digest("a") == hashlib.sha256(b"\xc3\xa9\n").hexdigest()


class TestTemplates:
    def test_an_unknown_name_is_an_error_with_its_line(self, templates: Path) -> None:
        (templates / "torch" / "kernel.py.j2").write_text("{{ header }}\n\n{{ v.head_sise }}\n")
        with pytest.raises(UserError, match="head_sise") as caught:
            Templates(templates).render("torch/kernel.py.j2", header="", v=object())
        assert caught.value.where == "templates/torch/kernel.py.j2:3"

    def test_a_mistake_in_an_included_template_is_named_where_it_is(self, templates: Path) -> None:
        (templates / "torch" / "part.j2").write_text("\n{{ nothing }}")
        (templates / "torch" / "kernel.py.j2").write_text('{% include "torch/part.j2" %}')
        with pytest.raises(UserError, match="'nothing' is undefined") as caught:
            Templates(templates).render("torch/kernel.py.j2")
        assert caught.value.where == "templates/torch/part.j2:2"

    def test_a_syntax_error_has_its_line(self, templates: Path) -> None:
        (templates / "torch" / "kernel.py.j2").write_text("\n{% if %}\n")
        with pytest.raises(UserError) as caught:
            Templates(templates).render("torch/kernel.py.j2")
        assert caught.value.where == "templates/torch/kernel.py.j2:2"

    def test_a_missing_template_is_named(self, templates: Path) -> None:
        with pytest.raises(UserError, match=r"templates/torch/none\.j2: there is no such template"):
            Templates(templates).render("torch/none.j2")

    def test_whitespace_of_blocks_goes_and_the_last_newline_stays(self, templates: Path) -> None:
        (templates / "a.j2").write_text("{% if true %}\n  x\n  {% endif %}\n")
        (templates / "b.j2").write_text("x\n")
        assert Templates(templates).render("a.j2") == "  x\n"
        assert Templates(templates).render("b.j2") == "x\n"

    def test_nothing_is_escaped(self, templates: Path) -> None:
        (templates / "a.html.j2").write_text("{{ x }}")
        assert Templates(templates).render("a.html.j2", x="a < b") == "a < b"

    def test_each_template_is_read_and_compiled_once(self, templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[Path] = []
        original = Path.read_bytes

        def read(path: Path) -> bytes:
            opened.append(path)
            return original(path)

        monkeypatch.setattr(Path, "read_bytes", read)
        used = Templates(templates)
        for _ in range(3):
            used.render("torch/kernel.py.j2", header="", v={"slug": "", "partition_size": 0})
            used.sha256("torch/kernel.py.j2")
        assert opened == [templates / "torch" / "kernel.py.j2"]

    def test_the_record_has_what_a_template_includes(self, templates: Path) -> None:
        (templates / "torch" / "inner.j2").write_text("inner")
        (templates / "torch" / "outer.j2").write_text('{% include "torch/inner.j2" %}')
        (templates / "torch" / "kernel.py.j2").write_text('{% import "torch/outer.j2" as outer %}')
        used = Templates(templates)
        for _ in range(2):
            used.render("torch/kernel.py.j2")
        used.render("package/gitignore.j2", header="")
        names = ["torch/inner.j2", "torch/kernel.py.j2", "torch/outer.j2"]
        assert used.record("torch/kernel.py.j2") == {f"templates/{name}": sha256(templates / name) for name in names}

    def test_the_wheels_folder_comes_before_the_checkouts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "top" / "pav2gen"
        package.mkdir(parents=True)
        monkeypatch.setattr(template, "PACKAGE", package)
        with pytest.raises(UserError, match="no folder 'templates'"):
            template.data_folder("templates")
        (tmp_path / "top" / "templates").mkdir()
        assert template.data_folder("templates") == tmp_path / "top" / "templates"
        (package / "templates").mkdir()
        assert template.data_folder("templates") == package / "templates"


class TestHeaders:
    def test_a_kernels_header_says_all_that_it_came_from(
        self, templates: Path, write_spec: Callable[..., Path]
    ) -> None:
        path = write_spec(partition_size=512)
        files = render_package(load([path]), [], Templates(templates)).files["small"]
        kernel = templates / "torch" / "kernel.py.j2"
        assert files["small/torch_kernels/hd256_g6_b16_f16_p512.py"].decode().splitlines()[:7] == [
            "# Generated by pav2gen 0.1.0. Do not edit: change the spec, and build again.",
            "# command: pav2gen build specs/small.yaml",
            f"# spec: specs/small.yaml sha256:{sha256(path)}",
            f"# template: templates/torch/kernel.py.j2 sha256:{sha256(kernel)}",
            "# key: head_size=256 gqa_ratio=6 block_size=16 dtype=float16 kv_cache_dtype=auto",
            "#      alibi=false blocksparse=false softcap=null sliding_window=null sinks=false",
            "#      modification=null partition_size=512",
        ]

    def test_every_rendered_file_has_a_header_in_its_language(
        self, templates: Path, write_spec: Callable[..., Path]
    ) -> None:
        package = render_package(load([write_spec(backends="[torch, cuda]")]), [], Templates(templates))
        texts = {path: content.decode() for files in package.files.values() for path, content in files.items()}
        begins = {".py": "# Gen", ".cu": "// Gen", ".md": "<!-- Gen", ".ini": "# Gen", ".gitignore": "# Gen"}
        rendered = [path for path in texts if "MANIFEST" not in path and not path.startswith("runtime/")]
        assert len(rendered) == 5 + 2 + 3 * 2
        for path in rendered:
            kind = next(suffix for suffix in begins if path.endswith(suffix))
            assert texts[path].startswith(begins[kind]), path

    def test_the_table_names_the_specs_that_it_is_made_from(
        self, templates: Path, write_spec: Callable[..., Path]
    ) -> None:
        a, b = write_spec("a", head_size=64), write_spec("b", head_size=128)
        table = render_package(load([b, a]), [], Templates(templates)).files[""]["dispatch.py"].decode().splitlines()
        assert table[2:4] == [f"# spec: specs/a.yaml sha256:{sha256(a)}", f"# spec: specs/b.yaml sha256:{sha256(b)}"]

    def test_headers_fit_120_columns_at_the_longest_key(self, templates: Path, write_spec: Callable[..., Path]) -> None:
        spec = write_spec(head_size="[512]", partition_size=2048, dtype="bfloat16", backends="[torch, cuda]")
        text = spec.read_text().replace("gqa_ratio: 6", "gqa_ratio: 128\n  block_size: 128\n  kv_cache_dtype: fp8_e4m3")
        text = text.replace("num_heads: 24, num_kv_heads: 4", "num_heads: 512, num_kv_heads: 4")
        spec.write_text(text + "limits: {workspace_mib: 256}\n")
        for files in render_package(load([spec]), [], Templates(templates)).files.values():
            for path, content in files.items():
                if path.endswith((".py", ".cu")):
                    assert max(map(len, content.decode().splitlines())) <= 120, path


class TestFiles:
    def test_one_file_for_each_kernel_and_backend(self, templates: Path, write_spec: Callable[..., Path]) -> None:
        files = render_package(load([write_spec(backends="[cuda, torch]")]), [], Templates(templates)).files
        assert list(files["small"]) == [
            "small/MANIFEST.json",
            "small/README.md",
            "small/cuda_kernels/hd256_g6_b16_f16_p256.cu",
            "small/cuda_kernels/hd256_g6_b16_f16_p512.cu",
            "small/tests/conftest.py",
            "small/tests/test_small_hd256_g6_b16_f16_p256.py",
            "small/tests/test_small_hd256_g6_b16_f16_p512.py",
            "small/torch_kernels/hd256_g6_b16_f16_p256.py",
            "small/torch_kernels/hd256_g6_b16_f16_p512.py",
        ]
        assert list(files[""]) == [
            ".gitignore",
            "MANIFEST.json",
            "__init__.py",
            "dispatch.py",
            "pytest.ini",
            "runtime/__init__.py",
            "runtime/simt/warp.h",
            "tests/conftest.py",
        ]

    def test_the_runtime_is_copied_as_it_is_without_leftovers(
        self, templates: Path, write_spec: Callable[..., Path], runtime: Path
    ) -> None:
        (runtime / "__pycache__").mkdir()
        (runtime / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"")
        (runtime / "simt" / "host.so").write_bytes(b"")
        (runtime / "simt" / "raw.h").write_bytes(b"\r\n\xff\0")
        files = render_package(load([write_spec()]), [], Templates(templates)).files[""]
        assert [path for path in files if path.startswith("runtime/")] == [
            "runtime/__init__.py",
            "runtime/simt/raw.h",
            "runtime/simt/warp.h",
        ]
        assert files["runtime/simt/raw.h"] == b"\r\n\xff\0"

    @pytest.mark.parametrize(
        ("path", "leftover"),
        [
            ("a/__pycache__/b.pyc", True),
            (".pytest_cache/v", True),
            ("a.so", True),
            ("a/cache/b.py", False),
            ("x.o.py", False),
        ],
    )
    def test_leftovers(self, path: str, leftover: bool) -> None:
        assert is_leftover(path) is leftover

    def test_every_template_is_used_by_these_tests(self, templates: Path, write_spec: Callable[..., Path]) -> None:
        used = Templates(templates)
        render_package(load([write_spec(backends="[torch, cuda]")]), [], used)
        assert used.record(*TEMPLATES).keys() == {f"templates/{name}" for name in TEMPLATES}


@pytest.mark.parametrize("backends, fixtures", [("[torch]", {"kernel"}), ("[cuda]", {"cuda", "long_cuda", "checked"})])
def test_tests_are_rendered_for_the_backends_of_the_spec(
    write_spec: Callable[..., Path], backends: str, fixtures: set[str]
) -> None:
    files = render_package(load([write_spec(backends=backends)]), [], Templates()).files["small"]
    tests = [content.decode() for path, content in files.items() if "/tests/test_" in path]
    used = {name for text in tests for name in re.findall(r"^def test_\w+\((\w+)", text, re.MULTILINE)}
    assert tests and used == fixtures
