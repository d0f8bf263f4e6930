"""`<<<…>>>` becomes C++, on the same lines; everything else stays."""

from __future__ import annotations

import pytest

from pav2gen.runtime.simt.assemble import with_gaps
from pav2gen.runtime.simt.rewrite import RewriteError, rewrite_launches


def body(text: str) -> str:
    head, rest = rewrite_launches(text, "a.cu").split("\n", 1)
    assert head == '#line 1 "a.cu"'
    return rest


@pytest.mark.parametrize(
    "source, expected",
    [
        ("k<<<1, 2>>>(a);", "SIMT_LAUNCH((k), 1, 2)(a);"),
        ("  k <<< g, b, 0, s >>> (a, b);", "  SIMT_LAUNCH((k) ,  g, b, 0, s ) (a, b);"),
        ("k<float, 4><<<g, b>>>(a);", "SIMT_LAUNCH((k<float, 4>), g, b)(a);"),
        ("ns::k<T><<<g, b>>>();", "SIMT_LAUNCH((ns::k<T>), g, b)();"),
        ("::ns::k<T<U<int>>><<<g, b>>>();", "SIMT_LAUNCH((::ns::k<T<U<int>>>), g, b)();"),
        ("k<(N > 2), f(a<b)><<<g, b>>>();", "SIMT_LAUNCH((k<(N > 2), f(a<b)>), g, b)();"),
        ("(pick(i))<<<g, b>>>();", "SIMT_LAUNCH(((pick(i))), g, b)();"),
        ("table[i + 1]<<<g, b>>>();", "SIMT_LAUNCH((table[i + 1]), g, b)();"),
        ("self.k<<<g, b>>>();", "SIMT_LAUNCH((self.k), g, b)();"),
        ("if (x) k<<<dim3(n >> 3, 2), (a >> b)>>>(p);", "if (x) SIMT_LAUNCH((k), dim3(n >> 3, 2), (a >> b))(p);"),
        ("return k<<<1, 2>>>(a), l<<<3, 4>>>(b);", "return SIMT_LAUNCH((k), 1, 2)(a), SIMT_LAUNCH((l), 3, 4)(b);"),
        ("{k<<<1, 2>>>(a);}", "{SIMT_LAUNCH((k), 1, 2)(a);}"),
    ],
)
def test_launches(source, expected):
    assert body(source) == expected


def test_lines_are_kept_and_comments_and_strings_are_left_alone():
    source = """// k<<<1, 2>>>(a)
const char* s = "k<<<1>>>";  /* x<<<2>>>
*/ k /* why */ <<<
    dim3(1,
         2), // the grid >>>
    64>>>(a,
  b);
"""
    result = body(source)
    assert result.count("\n") == source.count("\n")
    assert result.split("\n")[0] == "// k<<<1, 2>>>(a)" and '"k<<<1>>>"' in result
    assert result.count("SIMT_LAUNCH") == 1 and result.split("\n")[6] == "  b);"


@pytest.mark.parametrize("source, line", [("\n\nk<<<1, 2;\n", 3), ("\n= <<<1>>>(a)", 2)])
def test_what_cannot_be_understood_names_its_line(source, line):
    with pytest.raises(RewriteError, match=rf"^a\.cu:{line}: "):
        rewrite_launches(source, "a.cu")


def test_gaps_are_put_after_shared_arrays_only():
    lines = ['\t.section\t.tbss.a,"awT",@nobits\n', "a:\n", "\t.zero\t64\n", "\t.bss\n", "b:\n", "\t.zero\t8\n",
             "\t.text\n", "f:\n", "\tret\n"]  # fmt: skip
    assert list(with_gaps(lines)) == [*lines[:3], "\t.zero\t256\n", *lines[3:]]
