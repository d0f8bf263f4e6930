"""`<<<…>>>` becomes C++, on the same lines; everything else stays."""

from __future__ import annotations

import pytest

from pav2gen.runtime.simt.assemble import with_gaps
from pav2gen.runtime.simt.rewrite import RewriteError, rewrite_launches, rewrite_unfolded


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
        ("k<160 << 10><<<g, b>>>();", "SIMT_LAUNCH((k<160 << 10>), g, b)();"),
        ("k<T<U>, (1 << N)><<<g, b>>>();", "SIMT_LAUNCH((k<T<U>, (1 << N)>), g, b)();"),
        ("k<1'000><<<1'0, 'a'>>>(1'0);", "SIMT_LAUNCH((k<1'000>), 1'0, 'a')(1'0);"),
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


def test_a_raw_string_is_left_alone():
    source = 'f(R"x(k<<<1, 2>>>(a) " )" )x"); k<<<1, 2>>>(a);'
    assert body(source) == source.replace("; k<<<1, 2>>>", "; SIMT_LAUNCH((k), 1, 2)")


UNFOLDED = """# 1 "a.cu"
# 1 "/usr/include/c++/12/ostream" 1 3
x <<< 3;
void g() { s<<<7, 8>>>(); }
# 1 "/usr/include/own.cuh" 1 3
void h() { k<<<7, 8>>>(); }
# 1 "/simt/launch.h" 1
// <<<
# 7 "inc/k \\"q\\".cuh" 1
#define RUN(K) K<<<1, 2>>>()
void f() { k<<<3, 4>>>(); }
# 2 "a.cu" 2
  k<<<5, 6>>>();
"""


def test_launches_after_the_includes_are_rewritten_wherever_they_stand():
    """A folder given as one of the system's (by CPLUS_INCLUDE_PATH, by -isystem) may hold the program's own headers."""
    result = rewrite_unfolded(UNFOLDED, "/simt/")
    expected = UNFOLDED
    expected = expected.replace("h() { k<<<7, 8>>>", "h() { SIMT_LAUNCH((k), 7, 8)")
    for numbers in ("1, 2", "3, 4", "5, 6"):
        name = "K" if numbers == "1, 2" else "k"
        expected = expected.replace(f"{name}<<<{numbers}>>>", f"SIMT_LAUNCH(({name}), {numbers})")
    assert result == expected and result.count("<<<") == 3
    with pytest.raises(RewriteError, match=r'^inc/k "q"\.cuh:8: <<< without >>>'):
        rewrite_unfolded(UNFOLDED.replace("3, 4>>>", "3, 4"), "/simt/")


@pytest.mark.parametrize("source, line", [("\n\nk<<<1, 2;\n", 3), ("\n= <<<1>>>(a)", 2)])
def test_what_cannot_be_understood_names_its_line(source, line):
    with pytest.raises(RewriteError, match=rf"^a\.cu:{line}: "):
        rewrite_launches(source, "a.cu")


def test_gaps_are_put_after_shared_arrays_only():
    lines = ['\t.section\t.tbss.a,"awT",@nobits\n', "a:\n", "\t.zero\t64\n", "\t.bss\n", "b:\n", "\t.zero\t8\n",
             "\t.text\n", "f:\n", "\tret\n"]  # fmt: skip
    assert list(with_gaps(lines)) == [*lines[:3], "\t.zero\t256\n", *lines[3:]]
