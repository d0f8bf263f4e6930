"""Mutants of files that pav2gen reads: a value, a key or some bytes are not as they were written."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

#: What a value may turn into: other types, extremes, and texts that mean something to Python, HTML or a shell.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1 << 31, 10**30, 0.5, 1e-300, 1e300, "", "0", [], {}, [None], {"": 0}, [[]],
    "a" * 5000, "x\nimport os\n#", "\"\"\"\n1/0\n\"\"\"", "../../etc/passwd", "/etc/passwd", "\x00", "\u2028", "\ud800",
    "-->", "<meta http-equiv=refresh content=0>", "{{ 1/0 }}", "%s%n", "$(id)", "nan", "é",
)  # fmt: skip

#: Whole files that are not what they should be.
FILES: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"null", b"0", b'""', b"\xff\xfe", b"\x00", b"[" * 100_000, b'{"a":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000, b"9" * 5000, b'{"schema": NaN}', b'{"schema": 1e999}', b"\xef\xbb\xbf{}",
)  # fmt: skip


def json_mutants(document: Any, count: int, seed: int = 0) -> Iterator[bytes]:
    """``FILES``, then mutants of ``document``: most have one value changed, some a few, some other bytes."""
    yield from FILES
    chance = random.Random(seed)
    for _ in range(count - len(FILES)):
        mutant = copy.deepcopy(document)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            mutant = _mutated(mutant, chance)
        data = json.dumps(mutant, indent=1).encode()
        yield byte_mutant(data, chance) if chance.random() < 0.2 else data


def text_mutants(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """``FILES``, then mutants of a text: lines swapped, doubled or dropped, words replaced, bytes changed."""
    yield from FILES
    chance = random.Random(seed)
    for _ in range(count - len(FILES)):
        lines = data.decode().splitlines(keepends=True)
        number = chance.randrange(len(lines))
        match chance.randrange(6):
            case 0:
                del lines[number]
            case 1:
                lines.insert(chance.randrange(len(lines)), lines[number])
            case 2:
                words = lines[number].split(" ")
                words[chance.randrange(len(words))] = _word(chance)
                lines[number] = " ".join(words)
            case 3:
                lines[number] = "  " * chance.randrange(12) + lines[number].lstrip()
            case _:
                yield byte_mutant(data, chance)
                continue
        yield "".join(lines).encode("utf-8", "surrogatepass")


def byte_mutant(data: bytes, chance: random.Random) -> bytes:
    """``data`` with some bytes changed, dropped, put in, or cut off at the end."""
    mutant = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        place = chance.randrange(len(mutant)) if mutant else 0
        match chance.randrange(4):
            case 0:
                mutant[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del mutant[place : place + chance.choice((1, 4, 100))]
            case 2:
                mutant[place:place] = chance.choice((b"\n", b'"', b"{", b"[", b",", b"-", b"9" * 30, b": "))
            case _:
                del mutant[place:]
    return bytes(mutant)


def _word(chance: random.Random) -> str:
    value = chance.choice(VALUES)
    return value if isinstance(value, str) else json.dumps(value)


def _mutated(document: Any, chance: random.Random) -> Any:
    """``document`` with one value replaced, or one key or item dropped, renamed or doubled."""
    nodes = list(_nodes(document))
    if not nodes:
        return chance.choice(VALUES)
    parent, key = chance.choice(nodes)
    match chance.randrange(6):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[str(chance.choice(VALUES))] = parent.pop(key)
        case 1 | 2 if isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        case 2:
            parent[str(chance.choice(VALUES))] = copy.deepcopy(parent[key])
        case _:
            parent[key] = copy.deepcopy(chance.choice(VALUES))
    return document


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place below ``value``, as its parent and its key."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _nodes(value[key])
