"""The structure of the generator: imports point one way, packages say what they hold, rooms stay small."""

import ast
from pathlib import Path

import pytest

import pav2gen

ROOT = Path(pav2gen.__file__).resolve().parent

#: A module may import what stands on an earlier line, and modules of its own package.
LAYERS = (
    {"errors", "__init__"},
    {"files", "wording", "console", "runtime"},
    {"json_data"},
    {"family"},
    {"plan"},
    {"reading"},
    {"render"},
    {"output"},
    {"install", "bench"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}

#: The most modules in one folder, ``__init__`` aside.
MOST_MODULES = {"plan": 14}


def modules() -> dict[str, Path]:
    """Dotted name below pav2gen -> file, of everything that is not carried along as data."""
    files = [path for path in ROOT.rglob("*.py") if "payload" not in path.parts]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def imported(name: str, path: Path) -> set[str]:
    """The modules below pav2gen that a module imports, at its top or inside a function, as dotted names."""
    found = set()
    package = name.split(".")[:-1]
    tree = ast.parse(path.read_text("utf-8"))
    types = {id(node) for guard in ast.walk(tree) if is_type_checking(guard) for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in types:
            continue  # an import for types alone does not happen at run time
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "pav2gen"}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["pav2gen", *package][: len(package) + 2 - node.level]
                base = ".".join([*above, base] if base else above)
            if base.split(".")[0] == "pav2gen":
                found |= {f"{base}.{alias.name}" for alias in node.names}
    return {target.removeprefix("pav2gen").lstrip(".") for target in found}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def known(target: str, names: set[str]) -> str:
    """The module that ``target`` names: itself, its package, or the module that defines it."""
    for candidate in (target, f"{target}.__init__", target.rpartition(".")[0], f"{target.rpartition('.')[0]}.__init__"):
        if candidate.lstrip(".") in names:
            return candidate.lstrip(".")
    return "__init__"


def graph() -> dict[str, set[str]]:
    files = modules()
    return {name: {known(target, set(files)) for target in imported(name, path)} for name, path in files.items()}


def test_every_room_is_in_the_plan():
    assert {name.split(".")[0] for name in modules()} == set(LEVELS)


def test_no_import_points_upward():
    upward = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if name.split(".")[0] != target.split(".")[0] and LEVELS[target.split(".")[0]] >= LEVELS[name.split(".")[0]]
    ]
    assert upward == []


def test_no_cycle():
    edges = {name: targets - {name} for name, targets in graph().items()}
    while free := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for name in free:
            del edges[name]
    assert edges == {}


@pytest.mark.parametrize("folder", sorted({path.parent for path in ROOT.rglob("*.py")} - {ROOT}))
def test_a_package_says_what_it_holds(folder):
    init = folder / "__init__.py"
    if init.exists() and "payload" not in init.parts:
        assert ast.get_docstring(ast.parse(init.read_text("utf-8"))), f"{init} has no docstring"
    count = len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
    assert count <= MOST_MODULES.get(folder.name, 13)


def test_the_generator_imports_no_torch():
    sets = {name: imported_roots(path) for name, path in modules().items()}
    layers = {
        "family",
        "plan",
        "reading",
        "render",
        "output",
        "commands",
        "cli",
        "files",
        "json_data",
        "wording",
        "errors",
    }
    assert [name for name, roots in sets.items() if "torch" in roots and name.split(".")[0] in layers] == []


def imported_roots(path: Path) -> set[str]:
    """The top-level packages that a module imports."""
    roots = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            roots.add((node.module or "").split(".")[0])
    return roots
