"""Reads a spec from a YAML file, and checks that the spec satisfies all rules.

Each error message gives ``file:line`` and says what would work.
"""

from __future__ import annotations

import hashlib
import keyword
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pav2gen.family.axes import AXES, AXES_SECTION, FEATURES_SECTION
from pav2gen.family.modifications.tree import MOST_HEADS
from pav2gen.family.spec import LARGEST_INT32, Dispatch, Exclusion, Limits, Model, RankShape, Spec, variants
from pav2gen.family.target import FIGURES, Target, find
from pav2gen.family.variant import OPERATORS
from pav2gen.plan.cuda_plan import CHOICES
from pav2gen.reading import rules
from pav2gen.reading.axis_value import reader_of
from pav2gen.reading.modification_section import read_modifications
from pav2gen.reading.yaml_file import parse_yaml, read_file
from pav2gen.reading.yaml_node import Node
from pav2gen.runtime.choice.dispatch_row import HOST_LENGTHS
from pav2gen.runtime.choice.key import NAME_FORM
from pav2gen.wording import one_of, quoted, spelled

__all__ = ["Dispatch", "Exclusion", "Limits", "Model", "RankShape", "Spec", "load", "parse", "variants"]

SCHEMA = 1


def _keys_of(section: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the axes in a section of a spec file, as two tuples.

    The first tuple has the axes that a spec file must give. The second tuple has the axes with a default.
    """
    axes = [axis for axis in AXES.values() if axis.section == section]
    required = tuple(axis.name for axis in axes if axis.default is None)
    return required, tuple(axis.name for axis in axes if axis.default is not None)


#: Section of a spec file -> its keys, in two tuples: required keys and optional keys. "" is the whole file.
KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (
        ("schema", "name", "target", "model", "axes"),
        ("about", "features", "modifications", "exclude", "operators", "backends", "cuda", "dispatch", "limits"),
    ),
    "model": (("num_heads", "num_kv_heads", "max_seq_len"), ("tensor_parallel",)),
    AXES_SECTION: _keys_of(AXES_SECTION),
    FEATURES_SECTION: _keys_of(FEATURES_SECTION),
    "cuda": ((), tuple(CHOICES)),
    "dispatch": ((), ("min_seq_len", "partition", "host_lengths")),
    "limits": ((), ("max_variants", "workspace_mib")),
}

#: Dotted path of each optional key -> its default. ``about`` is not in this table: its default is the spec's name.
DEFAULTS: Mapping[str, object] = {
    "model.tensor_parallel": (1,),
    **{axis.path: axis.default for axis in AXES.values() if axis.default is not None},
    "modifications": {},
    "exclude": (),
    "operators": ("decode",),
    "backends": ("torch",),
    "dispatch.min_seq_len": 8192,  # up to here vLLM may choose V1
    "dispatch.partition": None,  # auto: chosen for each call
    "dispatch.host_lengths": "auto",  # read at most once per decode step, where that saves work
    "limits.max_variants": 256,
    "limits.workspace_mib": 64,
}

BACKENDS = ("torch", "cuda")

MOST_RANKS = 1024
MOST_VARIANTS = 1 << 16
MOST_WORKSPACE_MIB = 1 << 16
LONGEST_NAME = 32  # keeps every file name and symbol within family.variant.LONGEST_SYMBOL
LONGEST_TEXT = 200

_NOT_IN_COMMENTS = ('"', "\\", "/*", "*/")
_DEVICES = ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)))
#: Names that a spec must not have: those of the generated package's own modules, and device names of Windows.
RESERVED_NAMES = frozenset(
    (
        *("runtime", "dispatch", "test", "tests", "conftest", "generated", "pav2gen", *_DEVICES),
        # an installation puts these beside the specs
        *("hooks", "cache_hooks", "prefix_hooks", "softcap_hooks", "layer_features", "serving", "prebuilt"),
        *("plugin", "structure", "cache_structure", "softcap_structure", "syntax"),
    )
)


def load(path: str | os.PathLike[str]) -> Spec:
    """Read the spec in the file at ``path``.

    Raises UserError if the file is not a spec file or the spec breaks a rule. The error message gives ``file:line`` and
    says what would work.
    """
    return parse(read_file(path), os.fspath(path))


def parse(data: bytes, file: str) -> Spec:
    """Parse ``data``, the bytes of a spec file.

    file: the path of the spec file, for error messages.

    Raises UserError if ``data`` is not a spec file or the spec breaks a rule.
    """
    root = parse_yaml(data, file)
    _check_schema(root)  # first, because the other keys depend on the version
    spec = _spec(_Fields(root), os.path.basename(file), hashlib.sha256(data).hexdigest())
    rules.check(spec)
    return spec


class _Fields:
    """Reads the values of a spec file by dotted path, such as ``limits.max_variants``.

    A default replaces a value that the spec file leaves out.
    """

    def __init__(self, root: Node) -> None:
        self.nodes: dict[str, Node] = {"": root}
        for section, (required, optional) in KEYS.items():
            if section in self.nodes:
                children = self.nodes[section].fields(required, optional).values()
                self.nodes.update((child.name, child) for child in children)

    def one(self, path: str, read: Callable[[Node], Any]) -> Any:
        """Return the value at the dotted path ``path``, or the default if the spec file does not have the value.

        read: the function that converts the YAML node of the value.
        """
        return read(self.nodes[path]) if path in self.nodes else DEFAULTS[path]

    def many(self, path: str, read: Callable[[Node], Any], nullable: bool = False) -> Any:
        """Return the values at the dotted path ``path`` as a tuple, or the default if the spec file does not have the
        values.

        read: the function that converts the YAML node of each value.
        nullable: whether null is allowed in place of a list; null counts as a list of one null.

        Raises UserError for a repeated value.
        """
        return _distinct(self.nodes[path], read, nullable) if path in self.nodes else DEFAULTS[path]


def _places(node: Node, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the ``file:line`` of ``node`` and of every value inside ``node``.

    path: the dotted path of ``node``.
    """
    yield path, node.where
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _places(child, f"{path}.{key}".lstrip("."))
    if isinstance(node.value, tuple):
        for index, item in enumerate(node.value):
            yield from _places(item, f"{path}[{index}]")


def _distinct(node: Node, read: Callable[[Node], Any], nullable: bool = False) -> tuple[Any, ...]:
    """Return the items of the list ``node``, each converted by the function ``read``.

    nullable: whether ``node`` may be null, which counts as a list of one null.

    Raises UserError for a repeated item.
    """
    values: dict[Any, None] = {}
    for item in (node,) if nullable and node.is_null() else node.items():
        value = read(item)
        if value in values:
            raise item.fail(f"{node.title} has {spelled(value)} twice; keep one")
        values[value] = None
    return tuple(values)


def _check_schema(root: Node) -> None:
    """Raise UserError if the value of ``schema`` in the spec file is not ``SCHEMA``, the version that this package
    reads.
    """
    if isinstance(root.value, dict) and "schema" in root.value:
        schema = root.value["schema"]
        if schema.integer() != SCHEMA:
            raise schema.fail(f"schema {schema.value} is not known; this version reads schema: {SCHEMA}")


def _spec(fields: _Fields, file_name: str, sha256: str) -> Spec:
    """Make the ``Spec`` from ``fields``, without checking the rules.

    sha256: the SHA-256 of the spec file.
    """
    name = fields.one("name", _name)
    return Spec(
        name=name,
        about=fields.one("about", _comment) if "about" in fields.nodes else name,
        target=fields.one("target", _target),
        model=_model(fields),
        axes={axis.name: fields.many(axis.path, reader_of(axis), axis.nullable) for axis in AXES.values()},
        exclude=fields.one("exclude", _exclusions),
        operators=fields.many("operators", lambda node: node.choice(tuple(OPERATORS))),
        backends=fields.many("backends", lambda node: node.choice(BACKENDS)),
        dispatch=Dispatch(
            min_seq_len=fields.one("dispatch.min_seq_len", lambda node: node.integer(0, LARGEST_INT32)),
            partition=fields.one("dispatch.partition", _partition),
            host_lengths=fields.one("dispatch.host_lengths", lambda node: node.choice(HOST_LENGTHS)),
        ),
        limits=Limits(
            max_variants=fields.one("limits.max_variants", lambda node: node.integer(1, MOST_VARIANTS)),
            workspace_mib=fields.one("limits.workspace_mib", lambda node: node.integer(1, MOST_WORKSPACE_MIB)),
        ),
        file_name=file_name,
        sha256=sha256,
        cuda={name: fields.nodes[f"cuda.{name}"].integer() for name in CHOICES if f"cuda.{name}" in fields.nodes},
        modifications=fields.one("modifications", read_modifications),
        places=dict(_places(fields.nodes[""])),
    )


def _model(fields: _Fields) -> Model:
    """Read the section ``model`` of a spec file."""
    return Model(
        num_heads=fields.one("model.num_heads", lambda node: node.integer(1, MOST_HEADS)),
        num_kv_heads=fields.one("model.num_kv_heads", lambda node: node.integer(1, MOST_HEADS)),
        max_seq_len=fields.one("model.max_seq_len", lambda node: node.integer(1, LARGEST_INT32)),
        tensor_parallel=fields.many("model.tensor_parallel", lambda node: node.integer(1, MOST_RANKS)),
    )


def _name(node: Node) -> str:
    """Read the name of the spec.

    Raises UserError if the name is reserved or cannot be the name of a Python package.
    """
    written = node.value.strip() if isinstance(node.value, str) else ""
    if written and not NAME_FORM.fullmatch(written):  # first, because quotes would not help a number or a date
        rule = "must be lower-case words, digits and single '_', and start with a letter, such as llama3_8b"
        raise node.fail(f"name {quoted(written)} {rule}")
    name = node.text()
    if len(name) > LONGEST_NAME:
        raise node.fail(f"name {quoted(name)} has {len(name)} characters; at most {LONGEST_NAME} are allowed")
    if name in RESERVED_NAMES or keyword.iskeyword(name):
        raise node.fail(f"name {quoted(name)} is reserved; add a word to it, such as {name}_model")
    return name


def _comment(node: Node) -> str:
    """Read a text that is copied into comments of generated files, such as the value of ``about``.

    Raises UserError if the text is too long, or has characters that are not allowed in these comments.
    """
    text = node.text()
    if len(text) > LONGEST_TEXT:
        raise node.fail(f"{node.title} has {len(text)} characters; at most {LONGEST_TEXT} are allowed")
    if any(odd in text for odd in _NOT_IN_COMMENTS):
        raise node.fail(f"{node.title} goes into comments of the generated files: leave out {one_of(_NOT_IN_COMMENTS)}")
    return text


def _target(node: Node) -> Target:
    """Read the key ``target`` of a spec file.

    The value of ``target`` is the name of a GPU, or a mapping that changes hardware figures of a ``base`` GPU.
    """
    figures = node.fields(("base",), tuple(FIGURES)) if isinstance(node.value, dict) else {"base": node}
    base = figures.pop("base")
    with base.placed():
        target = find(base.text())
    for name, figure in figures.items():
        value = figure.integer() if FIGURES[name].whole else figure.number()
        with figure.placed():
            target = target.with_overrides({name: value})
    return target


def _partition(node: Node) -> int | None:
    """Read ``dispatch.partition``, the partition size for all calls, in tokens. The result is None for ``auto``."""
    if node.yaml_type == "str":
        node.choice(("auto",))
        return None
    return node.integer()


def _exclusions(node: Node) -> tuple[Exclusion, ...]:
    """Read the key ``exclude`` of a spec file, which is a list of exclusions that may be empty."""
    return () if node.value == () else tuple(map(_exclusion, node.items()))


def _exclusion(node: Node) -> Exclusion:
    """Read one entry of ``exclude`` in a spec file: the axis values of kernels that are not built, and the reason."""
    fields = node.fields(("when", "because"))
    given = fields["when"].fields((), tuple(AXES))
    when = {name: _distinct(values, reader_of(AXES[name]), AXES[name].nullable) for name, values in given.items()}
    if not when:
        raise fields["when"].fail("exclude.when is empty and would exclude everything; name axes and values")
    return Exclusion(when, _comment(fields["because"]), node.line)
