"""Rewrites CUDA kernel launches `kernel<<<grid, block>>>(arguments)` into calls of the C++ macro `SIMT_LAUNCH`.

The rewriting changes no other text and no line numbers. Launches in headers are rewritten too, after g++ has copied the
headers into the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Comments, strings, characters, and numbers (which may have quotes in them).
_PASSIVE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\b(?:u8|[uUL])?R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\b\d[\w.']*"""
    r"""|'(?:\\.|[^'\\\n])*'""",
    re.DOTALL,
)
# The preprocessor's line where a file begins or continues: # 12 "k.cuh" 1 3
_MARKER = re.compile(r'^# (?P<line>\d+) "(?P<file>(?:\\.|[^"\\])*)"(?P<flags>[ \d]*)$', re.MULTILINE)
_OPEN, _CLOSE = "([{", ")]}"


class RewriteError(Exception):
    """A `<<<` in a source cannot be parsed as a kernel launch. The exception's message gives the file and the line."""


def rewrite_launches(text: str, name: str) -> str:
    """Rewrite the kernel launches in the text of a source file, but not the launches in its headers.

    The result begins with `#line 1 "name"`, so that compiler messages name this file.

    `name`: the path of the source file.

    :raises RewriteError: a `<<<` has no matching `>>>`, or no kernel before the `<<<`
    """
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line 1 "{quoted}"\n{_rewritten(text, name, 1)}'


def rewrite_unfolded(text: str, leave: str) -> str:
    """Rewrite the kernel launches in a source and its headers.

    In a system header, a `<<<` stays unchanged if it cannot be parsed.

    `text`: the source with the text of its headers, as `g++ -E -fdirectives-only` prints it.
    `leave`: the path of a folder whose headers are not rewritten.

    :raises RewriteError: a `<<<` outside system headers cannot be parsed
    """
    return "".join(_unfolded_parts(text, leave))


def _unfolded_parts(text: str, leave: str) -> Iterator[str]:
    marks = [*_MARKER.finditer(text)]
    yield text[: marks[0].start()] if marks else text
    for mark, end in zip(marks, [*(m.start() for m in marks[1:]), len(text)], strict=True):
        yield mark.group()
        part, name = text[mark.end() : end], re.sub(r"\\(.)", r"\1", mark["file"])
        if "<<<" not in part or name.startswith(leave):
            yield part
            continue
        try:
            yield _rewritten(part, name, int(mark["line"]) - 1)
        except RewriteError:
            if "3" not in mark["flags"].split():
                raise
            yield part


def _rewritten(text: str, name: str, first: int) -> str:
    """Rewrite the kernel launches in `text`, which is a part of a source file.

    `name`: the path of the file.
    `first`: the number of the line in the file where `text` begins.
    """
    code = _PASSIVE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)  # comments and strings blanked out
    pieces, done = [], 0
    at = code.find("<<<")
    while at >= 0:
        start = _kernel_start(code, at, done)
        if start is None:
            raise RewriteError(f"{name}:{code.count(chr(10), 0, at) + first}: no kernel before <<<")
        end = _configuration_end(code, at + 3)
        if end is None:
            raise RewriteError(f"{name}:{code.count(chr(10), 0, at) + first}: <<< without >>>")
        kernel, configuration = text[start:at].rstrip(), text[at + 3 : end]
        gap = text[start + len(kernel) : at]
        pieces += [text[done:start], f"SIMT_LAUNCH(({kernel}){gap}, {configuration})"]
        done = end + 3
        at = code.find("<<<", done)
    return "".join(pieces) + text[done:]


def _kernel_start(code: str, at: int, floor: int) -> int | None:
    """Return the position where the kernel expression before a `<<<` begins, or None if no kernel expression precedes
    it.

    A kernel expression has the form `name`, `a::b<c, 4>`, `(expression)` or `table[i]`.

    `code`: a source in which comments and strings are replaced by spaces.
    `at`: the position of the `<<<`.
    `floor`: the smallest position at which the kernel expression may begin.
    """
    i = _skip_back(code, at, floor)
    start = None
    while i > floor:
        last = code[i - 1]
        if last in ">)]":
            i = _skip_back(code, _matching_open(code, i - 1, floor), floor)
            start = i
            if last == ")":
                continue
        word = re.search(r"[A-Za-z_]\w*$", code[floor:i])
        if not word:
            break
        start = i = i - len(word.group())
        before = _skip_back(code, i, floor)
        qualifier = next((q for q in ("::", "->", ".") if code[:before].endswith(q)), None)
        if qualifier is None:
            break
        start = i = before - len(qualifier)
        i = _skip_back(code, i, floor)
    return start


def _skip_back(code: str, i: int, floor: int) -> int:
    while i > floor and code[i - 1].isspace():
        i -= 1
    return i


def _matching_open(code: str, close: int, floor: int) -> int:
    """Return the position of the opening bracket that matches the closing bracket `code[close]`.

    The result is `floor` if no matching bracket is at or after the position `floor`. Two adjacent opening angle
    brackets count as a shift operator, as in `k<1 << 10>`.
    """
    pairs = {">": "<", ")": "(", "]": "["}
    opening, depth = pairs[code[close]], 0
    nested = 0
    for i in range(close, floor - 1, -1):
        c = code[i]
        if opening == "<" and c in ")]}":
            nested += 1
        elif opening == "<" and c in "([{":
            nested -= 1
        elif nested == 0 and c == code[close]:
            depth += 1
        elif nested == 0 and c == opening and "<<" not in (code[i - 1 : i + 1], code[i : i + 2]):
            depth -= 1
            if depth == 0:
                return i
    return floor


def _configuration_end(code: str, i: int) -> int | None:
    depth = 0
    while i < len(code):
        if code[i] in _OPEN:
            depth += 1
        elif code[i] in _CLOSE:
            depth -= 1
        elif depth == 0 and code.startswith(">>>", i):
            return i
        elif code[i] == ";" and depth <= 0:
            return None
        i += 1
    return None
