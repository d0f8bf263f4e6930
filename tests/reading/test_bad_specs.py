"""Every mistake in a spec is answered in one line that names file and line, at once, and by a UserError alone."""

from __future__ import annotations

import errno
import os
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pav2gen.errors import UserError
from pav2gen.reading import yaml_file as source
from pav2gen.reading.spec_file import load, parse

GOOD = """\
schema: 1
name: llama3_8b
about: Llama-3.1-8B
target: bi-v100
model:
  num_heads: 32
  num_kv_heads: 8
  max_seq_len: 131072
  tensor_parallel: [1, 2]
axes:
  head_size: [128]
  gqa_ratio: [4]
  partition_size:
    - 256
    - 512
  block_size: [16, 32]
  dtype: [float16, bfloat16]
  kv_cache_dtype: [auto]
features: {alibi: false, blocksparse: false}
exclude:
  - when: {block_size: 32, dtype: bfloat16}
    because: nobody asked for it
backends: [torch]
dispatch: {min_seq_len: 8192, partition: auto}
limits: {max_variants: 256, workspace_mib: 64}
"""

SECONDS = 0.5


class Bad(NamedTuple):
    """A spec with one mistake: the text, the line that must be named, and a part of the sentence."""

    data: bytes
    line: int | str
    fragment: str


def bad(old: str, new: str, line: int, fragment: str) -> Bad:
    """The good spec with ``old`` replaced."""
    assert GOOD.count(old) == 1, old
    return Bad(GOOD.replace(old, new).encode(), line, fragment)


def modified(fields: str, fragment: str, at: str = "") -> Bad:
    """The good spec with a modification on line 20; ``at`` is where the column points, if one is named."""
    line = f"modifications: {{near: {{{fields}}}}}"
    spec = GOOD.replace("blocksparse: false}", f"modification: near}}\n{line}")
    return Bad(spec.encode(), f"20:{line.index(at) + 1}" if at else 20, fragment)


def text(data: str | bytes, line: int, fragment: str) -> Bad:
    """A spec from nothing."""
    return Bad(data if isinstance(data, bytes) else data.encode(), line, fragment)


def alias_bomb() -> str:
    """Nine lists, each of nine times the one before."""
    first = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    return first + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


CASES = {
    # Keys.
    "unknown key": bad("backends:", "backend:", 23, "unknown key 'backend' in the spec; did you mean backends?"),
    "unknown axis": bad("  head_size:", "  heads_size:", 11, "'heads_size' in axes; did you mean head_size?"),
    "unknown feature": bad("{alibi:", "{aliby:", 19, "did you mean alibi?"),
    "unknown model key": bad("  num_kv_heads:", "  kv: 1\n  num_kv_heads:", 7, "unknown key 'kv' in model"),
    "unknown axis of an exclusion": bad("{block_size: 32,", "{page: 32,", 21, "unknown key 'page' in exclude.when"),
    "unknown figure of a layout": bad("backends:", "cuda: {thread: 64}\nbackends:", 23, "did you mean threads?"),
    "unknown limit": bad("max_variants:", "max_variant:", 25, "did you mean max_variants?"),
    "missing name": bad("name: llama3_8b\n", "", 1, "the spec lacks the key 'name'"),
    "missing schema": bad("schema: 1\n", "", 1, "the spec lacks the key 'schema'"),
    "missing axis": bad("  gqa_ratio: [4]\n", "", 10, "axes lacks the key 'gqa_ratio'"),
    "missing length": bad("  max_seq_len: 131072\n", "", 5, "model lacks the key 'max_seq_len'"),
    "missing reason": bad("    because: nobody asked for it\n", "", 21, "exclude lacks the key 'because'"),
    "duplicate key": bad("backends:", "name: other\nbackends:", 23, "the key 'name' comes twice, first on line 2"),
    "duplicate axis": bad("  dtype:", "  block_size: [8]\n  dtype:", 17, "'block_size' comes twice, first on line 16"),
    "duplicate key in a flow": bad("{block_size: 32, dtype", "{dtype: float16, dtype", 21, "first on line 21"),
    "key that is a list": bad("backends:", "? [a]\n: b\nbackends:", 23, "a key must be a word"),
    "long key": bad("backends:", f"{'k' * 65}: 1\nbackends:", 23, "at most 64 characters"),
    # Types.
    "text for a number": bad("heads: 32", "heads: many", 6, "model.num_heads must be a whole number, not 'many'"),
    "quoted number": bad("num_heads: 32", "num_heads: '32'", 6, "not a text in quotes, '32'"),
    "float for a number": bad("num_heads: 32", "num_heads: 32.0", 6, "whole number, not '32.0' (a float)"),
    "boolean for a number": bad("[16, 32]", "[true]", 16, "must be a whole number, not 'true' (a boolean)"),
    "list for a number": bad("num_heads: 32", "num_heads: [32]", 6, "whole number, not a list"),
    "mapping for a number": bad("num_heads: 32", "num_heads: {a: 1}", 6, "whole number, not a mapping"),
    "nothing for a number": bad("num_heads: 32", "num_heads:", 6, "whole number, not nothing"),
    "nested list": bad("[16, 32]", "[[16]]", 16, "whole number, not a list"),
    "number for a boolean": bad("alibi: false", "alibi: 0", 19, "features.alibi must be true or false, not '0'"),
    "number for a text": bad("about: Llama-3.1-8B", "about: 3.1", 3, "a text, and YAML reads '3.1' as a float; put it"),
    "date for a text": bad("about: Llama-3.1-8B", "about: 2024-01-01", 3, "YAML reads '2024-01-01' as a date; put"),
    "nothing for a text": bad("about: Llama-3.1-8B", "about:", 3, "about must be a text, not nothing"),
    "list for a mapping": bad("{alibi: false, blocksparse: false}", "[alibi]", 19, "features must be a mapping"),
    "text for the spec": text("llama3_8b\n", 1, "the spec must be a mapping of keys to values, not 'llama3_8b'"),
    "list for the spec": text("- schema: 1\n", 1, "the spec must be a mapping of keys to values, not a list"),
    "mapping for exclusions": bad("  - when: {b", "    when: {b", 20, "exclude must be a value or a list"),
    # Traps of YAML 1.1.
    "yes": bad("alibi: false", "alibi: yes", 19, "not 'yes', which YAML 1.1 reads as true: write true"),
    "off": bad("alibi: false", "alibi: off", 19, "not 'off', which YAML 1.1 reads as false: write false"),
    "True": bad("alibi: false", "alibi: True", 19, "not 'True', which YAML 1.1 reads as true: write true"),
    "name that is no": bad("name: llama3_8b", "name: no", 2, "name must be a text, and YAML reads 'no' as a boolean"),
    "octal": bad("[16, 32]", "[020]", 16, "not '020', which YAML 1.1 reads as 16: write plain decimal digits"),
    "leading zero": bad("[16, 32]", "[08]", 16, "not '08': write it without the leading zero"),
    "hexadecimal": bad("[16, 32]", "[0x10]", 16, "which YAML reads as 16"),
    "sexagesimal": bad("[16, 32]", "[1:30]", 16, "not '1:30', which YAML 1.1 reads in base 60"),
    "underscores": bad("131072", "131_072", 8, "which YAML 1.1 reads as 131072"),
    "exponent": bad("131072", "1e5", 8, "whole number, not '1e5'"),
    "infinity": bad("131072", ".inf", 8, "not '.inf' (a float)"),
    "huge number": bad("131072", "9" * 5000, 8, "which is too large"),
    "merge key": bad("backends:", "<<: {about: x}\nbackends:", 23, "merge keys (<<) are not supported"),
    # Values.
    "another schema": bad("schema: 1", "schema: 2\nnew_key: 3", 1, "schema 2 is not known"),
    "empty axis": bad("[16, 32]", "[]", 16, "axes.block_size is empty"),
    "null axis": bad("[16, 32]", "null", 16, "axes.block_size is empty"),
    "value twice": bad("    - 512", "    - 512\n    - 256", 16, "axes.partition_size has 256 twice"),
    "value twice by an alias": bad("[auto]", "[fp8, fp8_e4m3]", 18, "axes.kv_cache_dtype has fp8_e4m3 twice"),
    "unknown target": bad("bi-v100", "bi-v10", 4, "unknown target 'bi-v10'; did you mean bi-v100?"),
    "unknown figure": bad("bi-v100", "{base: bi-v100, warps: 64}", 4, "'warps' in target; did you mean warp_size?"),
    "figure out of range": bad("bi-v100", "\n  base: bi-v100\n  warp_size: 48", 6, "must be 32 or 64, not '48'"),
    "figure of a wrong type": bad("bi-v100", "{base: bi-v100, load_bytes: wide}", 4, "bytes must be a whole number"),
    "target without base": bad("bi-v100", "{warp_size: 64}", 4, "target lacks the key 'base'"),
    "unknown backend": bad("[torch]", "[triton]", 23, "backends cannot be 'triton'; write torch or cuda"),
    "unknown dtype": bad("[float16, bfloat16]", "[float16, bf16]", 17, "cannot be 'bf16'; did you mean bfloat16?"),
    "unknown cache dtype": bad("[auto]", "[fp8_e4m]", 18, "did you mean fp8_e4m3?"),
    "negative number": bad("num_heads: 32", "num_heads: -32", 6, "model.num_heads must be from 1 to 4096, not -32"),
    "no heads": bad("num_heads: 32", "num_heads: 0", 6, "must be from 1 to 4096, not 0"),
    "length over int32": bad("131072", "2147483648", 8, "must be from 1 to 2147483647"),
    "unknown policy": bad("partition: auto", "host_lengths: nevr", 24, "cannot be 'nevr'; did you mean never?"),
    "unknown partition": bad("partition: auto", "partition: aut", 24, "cannot be 'aut'; did you mean auto?"),
    # Names and texts.
    "name of a folder above": bad("llama3_8b", "../llama3", 2, "must be lower-case words, digits and single '_'"),
    "number as a name": bad("llama3_8b", "7", 2, "name '7' must be lower-case words, digits and single '_', and start"),
    "number in quotes as a name": bad("llama3_8b", '"7"', 2, "and start with a letter, such as llama3_8b"),
    "date as a name": bad("llama3_8b", "2024-01-01", 2, "name '2024-01-01' must be lower-case words"),
    "absolute name": bad("llama3_8b", "/tmp/x", 2, "must be lower-case words"),
    "name with an extension": bad("llama3_8b", "llama3.py", 2, "must be lower-case words"),
    "upper-case name": bad("llama3_8b", "Llama", 2, "must be lower-case words"),
    "name of a C++ implementation": bad("llama3_8b", "a__b", 2, "must be lower-case words, digits and single '_'"),
    "non-ASCII name": bad("llama3_8b", "llamé", 2, "must be lower-case words"),
    "long name": bad("llama3_8b", "a" * 33, 2, "has 33 characters; at most 32 are allowed"),
    "reserved name": bad("llama3_8b", "runtime", 2, "is reserved; add a word to it, such as runtime_model"),
    "keyword": bad("llama3_8b", "class", 2, "'class' is reserved"),
    "device": bad("llama3_8b", "com1", 2, "'com1' is reserved"),
    "escape in a text": bad("Llama-3.1-8B", '"a\\nb"', 3, "one line of printable text"),
    "end of a comment": bad("Llama-3.1-8B", "a */ b", 3, "goes into comments of the generated files"),
    "end of a docstring": bad("Llama-3.1-8B", "'a \"\"\" b'", 3, "goes into comments of the generated files"),
    "long text": bad("Llama-3.1-8B", "a" * 201, 3, "has 201 characters; at most 200 are allowed"),
    "blank text": bad("nobody asked for it", "'  '", 22, "exclude.because must be one line of printable text"),
    # Exclusions.
    "excluded value that is not there": bad(
        "{block_size: 32,", "{block_size: 64,", 21, "[16, 32] does not contain '64'"
    ),
    "exclusion of nothing": bad(
        "    because: nobody asked for it\n",
        "    because: nobody asked for it\n  - when: {dtype: [bfloat16], block_size: 32}\n    because: again\n",
        23,
        "the exclusions above already cover all that this one excludes",
    ),
    "exclusion of everything": bad("{block_size: 32, dtype: bfloat16}", "{gqa_ratio: 4}", 21, "removes the last"),
    "exclusion without an axis": bad("{block_size: 32, dtype: bfloat16}", "{}", 21, "exclude.when is empty"),
    # Products.
    "product over the limit": bad("max_variants: 256", "max_variants: 7", 10, "8 variants (2 block_size x 2 dtype"),
    "enormous limit": bad("max_variants: 256", "max_variants: 1000000", 25, "must be from 1 to 65536"),
    # Structure.
    "alias": bad("[16, 32]", "*sizes", 16, "aliases ('*sizes') are not supported"),
    "anchor": bad("[16, 32]", "&sizes [16]", 16, "anchors ('&sizes') are not supported"),
    "tag": bad("[16, 32]", "!!python/object:os.system x", 16, "tags ('tag:yaml.org,2002:python/object:os"),
    "long anchor": bad("[16, 32]", f"&{'a' * 9999} [16]", 16, "anchors ("),
    "long tag handle": bad("[16, 32]", f"!{'a' * 9999}!b [16]", 16, "not YAML: "),
    "alias bomb": text(alias_bomb(), 1, "anchors ('&a0') are not supported"),
    "second document": text(GOOD + "---\n" + GOOD, 26, "a second document begins"),
    "deep list": bad("[16, 32]", "[" * 500 + "]" * 500, 16, "nested more than 8 deep"),
    "deep mapping": bad("[16, 32]", "{a: " * 20 + "1" + "}" * 20, 16, "nested more than 8 deep"),
    "unclosed list": bad("[16, 32]", "[16, 32", 17, "not YAML: "),
    "unclosed quote": bad("Llama-3.1-8B", "'Llama", 25, "not YAML: found unexpected end of stream"),
    "colon in a text": bad("Llama-3.1-8B", "Llama: the model", 3, "put a text with ': ' in quotes"),
    "indentation": bad("  num_kv_heads: 8", "   num_kv_heads: 8", 7, "not YAML: "),
    "odd character": bad("Llama-3.1-8B", "@Llama", 3, "not YAML: "),
    "empty": text("", 1, "is empty"),
    "comments only": text("# a spec\n\n", 1, "is empty"),
    "empty document": text("---\n", 1, "is empty"),
    # Bytes.
    "not UTF-8": text(GOOD.encode().replace(b"nobody", b"nobod\xff"), 22, "byte 0xff is not UTF-8"),
    "UTF-16": text(GOOD.encode("utf-16"), 1, "is not UTF-8"),
    "byte-order mark": text(b"\xef\xbb\xbf" + GOOD.encode(), 1, "starts with a byte-order mark"),
    "tab": bad("  gqa_ratio", "\tgqa_ratio", 12, "contains a tab; indent with spaces"),
    "control character": bad("nobody", "no\x07body", 22, "contains the character U+0007"),
    "zero byte": bad("nobody", "no\0body", 22, "contains the character U+0000"),
    "no-break space": bad("about: ", "about:\xa0", 3, "contains the character U+00A0"),
    "text that runs backwards": bad("nobody", "\u202enobody", 22, "contains the character U+202E"),
    "line separator": bad("nobody", "no\u2028body", 22, "contains the character U+2028"),
    "lone carriage return": bad("nobody", "no\rbody", 22, "contains the character U+000D"),
    # Rules.
    "head size": bad("[128]", "[128, 100]", 11, "cannot be 100: it must be a multiple of 8 from 32 to 256, or 512"),
    "head size in a block": bad("[128]", "\n    - 128\n    - 264", 13, "(rule head-size)"),
    "ratio": bad("gqa_ratio: [4]", "gqa_ratio: [4, 129]", 12, "(rule gqa-ratio)"),
    "partition size": bad("    - 512", "    - 500", 15, "the nearest is 512 (rule partition-size)"),
    "block size": bad("[16, 32]", "[16, 24]", 16, "(rule block-size)"),
    "partition of half a block": text(
        GOOD.replace("    - 512", "    - 64").replace("[16, 32]", "[16, 32, 128]"),
        15,
        "or exclude: - {when: {partition_size: 64, block_size: 128}, because: ...} (rule whole-blocks)",
    ),
    "half a group": text(
        GOOD.replace("[128]", "[128, 72]").replace("[auto]", "[auto, fp8]"),
        11,
        "or exclude: - {when: {head_size: 72, kv_cache_dtype: fp8_e4m3}, because: ...} (rule whole-groups)",
    ),
    "a softcap with an exponent": bad(
        "alibi: false,", "softcap: 1e2,", 19, "must be a number, not '1e2', which YAML 1.1 reads as a text: write 100"
    ),
    "a softcap with a signed exponent": bad(
        "alibi: false,", "softcap: 1.5e+1,", 19, "must be a number, not '1.5e+1': write 15"
    ),
    "a softcap without end": bad("alibi: false,", "softcap: .inf,", 19, "must be a finite number, not '.inf'"),
    "a softcap that is no number": bad("alibi: false,", "softcap: .NaN,", 19, "must be a finite number, not '.NaN'"),
    "a softcap in words": bad("alibi: false,", "softcap: wide,", 19, "softcap must be a number, not 'wide'"),
    "a length with an exponent": bad(
        "131072", "1e5", 8, "must be a whole number, not '1e5', which YAML 1.1 reads as a text: write 100000"
    ),
    "a fraction as a length": bad("131072", "1.5", 8, "must be a whole number, not '1.5' (a float)"),
    "a huge exponent": bad("131072", "1e999999999", 8, "must be a whole number, not '1e999999999'"),
    "a softcap of nothing": bad("alibi: false,", "softcap: 0.0,", 19, "from 0.001 to 1000000, or null"),
    "a window of nothing": bad("alibi: false,", "sliding_window: 0,", 19, "the current one included, or null"),
    "a modification that is nowhere": bad(
        "alibi: false,", "modification: near,", 19, "is not defined under modifications"
    ),
    "a mistake in a mask": modified('mask: "q - k < lenn"', "modifications.near.mask: the name 'lenn'", at="lenn"),
    "a mistake in a plain mask": modified("mask: q - k", "a mask is a condition, and this is an integer", at="q - k"),
    "a mistake behind an escape": modified('mask: "q \\x2d kk"', "'kk' is unknown; did you mean k? (at column 5"),
    "a modification of nothing": modified("tensors: {b: [heads]}", "has neither score nor mask"),
    "a tensor of no axis": modified("mask: q < 1, tensors: {b: [tokens]}", "[heads] or [kv_heads]"),
    "an axis of a tensor in quotes": modified(
        "mask: q < 1, tensors: {b: \"[heads]\"}", "is a text in quotes; write the list without quotes: [heads]"
    ),
    "a tensor without a use": modified("mask: q < 1, tensors: {b: [heads]}", "b is in neither score nor mask"),
    "a tensor called s": modified("mask: q < 1, tensors: {s: [heads]}", "has a meaning in expressions"),
    "a modification that is not built": bad(
        "alibi: false, blocksparse: false}",
        "alibi: false}\nmodifications: {near: {mask: q < 1}}",
        20,
        "no kernel has the modification near",
    ),
    "heads without a ratio": bad("num_kv_heads: 8", "num_kv_heads: 5", 6, "32 is not a multiple of num_kv_heads 5"),
    "ranks that split no heads": bad(
        "[1, 2]", "[1, 3]", 9, "over 3 ranks; they can be split over 1, 2, 4, 8, 16 or 32"
    ),
    "ranks that are not served": bad("[1, 2]", "[1, 16]", 9, "no variant serves; write gqa_ratio: [2, 4]"),
    "fixed partition": bad("partition: auto", "partition: 1024", 24, "write auto, 256 or 512 (rule fixed-"),
    "workspace": bad("workspace_mib: 64", "workspace_mib: 1", 25, "(rule workspace-holds-a-partition)"),
}  # fmt: skip


@pytest.fixture(params=["libyaml", "pure Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers of PyYAML: the lines that are named must not depend on which is installed."""
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("PyYAML without libyaml")
    monkeypatch.setattr(source, "_Parser", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)


def test_the_good_spec_loads(parser: None) -> None:
    parse(GOOD.encode(), "good.yaml")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_line_that_names_the_place(case: Bad, parser: None, folder: Path) -> None:
    (folder / "bad.yaml").write_bytes(case.data)
    start = time.perf_counter()
    with pytest.raises(UserError) as raised:
        load("bad.yaml")
    assert time.perf_counter() - start < SECONDS
    message = str(raised.value)
    assert raised.value.where == f"bad.yaml:{case.line}", message
    assert case.fragment in message
    assert message.isprintable() and len(message) < 400


def test_an_enormous_product_costs_nothing(parser: None) -> None:
    axes = {
        "head_size": list(range(32, 257, 8)),
        "gqa_ratio": list(range(1, 129)),
        "block_size": [8, 16, 32, 64, 128],
        "partition_size": [64, 128, 256, 512, 1024, 2048],
    }
    begin, end = GOOD.index("  head_size"), GOOD.index("  kv_cache_dtype")
    text = GOOD[:begin] + "".join(f"  {axis}: {values}\n" for axis, values in axes.items()) + GOOD[end:]
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(UserError, match=r"bad.yaml:10: the axes make 111360 variants .*29 head_size x 128 gqa_ratio"):
        parse(text.replace("max_variants: 256", "max_variants: 65536").encode(), "bad.yaml")
    assert time.perf_counter() - start < SECONDS
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_file_that_is_not_there(folder: Path) -> None:
    (folder / "qwen36.yaml").write_text(GOOD)
    (folder / "qwen36.txt").write_text(GOOD)
    with pytest.raises(UserError, match=r"^qwen3.yaml: there is no such file; did you mean qwen36.yaml\?$"):
        load("qwen3.yaml")
    with pytest.raises(UserError, match=r"^phi.yaml: there is no such file$"):
        load("phi.yaml")
    with pytest.raises(UserError, match=r"^missing/spec.yaml: there is no such file$"):
        load("missing/spec.yaml")


def test_things_that_are_no_files(folder: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder; name a file$"):
        load(folder)
    os.mkfifo("pipe.yaml")
    with pytest.raises(UserError, match=r"^pipe.yaml: is not a regular file; name a file$"):
        load("pipe.yaml")
    with pytest.raises(UserError, match=r"^/dev/zero: is not a regular file"):
        load("/dev/zero")


def test_a_file_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "secret.yaml").write_text(GOOD)

    def refuse(*args: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserError, match=r"^secret.yaml: cannot be read: Permission denied; check the path"):
        load("secret.yaml")


@pytest.mark.parametrize(
    "path", ["a\0b.yaml", f"{'a' * 5000}.yaml", "spec.yaml/x"], ids=["zero", "long", "below a file"]
)
def test_paths_that_no_file_can_have(path: str, folder: Path) -> None:
    (folder / "spec.yaml").write_text(GOOD)
    with pytest.raises(UserError, match=r"cannot be read: ") as raised:
        load(path)
    assert str(raised.value).isprintable()


def test_a_file_that_is_too_large(folder: Path) -> None:
    (folder / "large.yaml").write_text(GOOD + "#" * source.MAX_BYTES)
    with pytest.raises(UserError, match=r"^large.yaml: is larger than 64 KiB"):
        load("large.yaml")


def test_a_path_that_does_not_print(folder: Path) -> None:
    (folder / "a\nb.yaml").write_text("schema: 2\n")
    with pytest.raises(UserError, match=r"^'a\\nb.yaml':1: schema 2 is not known"):
        load("a\nb.yaml")


WORDS = """
    ~ null true yes 0 -1 010 1:2 1.5 .nan [] {} [ ] { } : , - ? & * ! | > ' " # % @ ` << --- ... &a *a !!int auto fp8
    float16 512 when because head_size dtype features alibi \\x
"""
ODD = ["\n", " ", "\n  ", ": ", "- ", "\t", "\r", "\x85", "\ufeff", "\ud7ff", "\0"]
PIECES = st.sampled_from(WORDS.split()) | st.sampled_from(ODD) | st.text(max_size=4)
PLACES = st.integers(0, len(GOOD))


@given(st.lists(st.tuples(PLACES, st.integers(0, 12), PIECES), min_size=1, max_size=4))
@settings(max_examples=400)
def test_a_mutated_spec_loads_or_is_answered_in_one_line(edits: list[tuple[int, int, str]]) -> None:
    data = GOOD
    for place, length, piece in edits:
        data = data[:place] + piece + data[place + length :]
    _loads_or_is_answered(data.encode("utf-8", errors="surrogatepass"))


@given(st.lists(st.integers(0, GOOD.count("\n") - 1), min_size=1, max_size=40))
@settings(max_examples=200)
def test_shuffled_lines_load_or_are_answered_in_one_line(order: list[int]) -> None:
    lines = GOOD.splitlines(keepends=True)
    _loads_or_is_answered("".join(lines[index] for index in order).encode())


@given(st.binary(max_size=64))
@settings(max_examples=200)
def test_any_bytes_are_answered_in_one_line(data: bytes) -> None:
    _loads_or_is_answered(data)


def _loads_or_is_answered(data: bytes) -> None:
    """Nothing but a Spec or a UserError with a place comes back."""
    try:
        parse(data, "bad.yaml")
    except UserError as error:
        line = int(error.where.removeprefix("bad.yaml:"))
        assert 1 <= line <= data.count(b"\n") + 1
        assert str(error).isprintable() and len(str(error)) < 500
