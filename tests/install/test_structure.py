"""What is found in a tree, by structure and name: the forms that forks have, and sentences for what is not known."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from pav2gen.install.payload.structure import Decode, Unfit, find_decode, find_layers, find_v2, v1_works
from pav2gen.install.payload.syntax import only_raises

V2 = (
    "def paged_attention_v2(out, exp_sum, max_logits, tmp_out, query, key_cache, value_cache, num_kv_heads, scale,"
    " block_tables, seq_lens, block_size, max_seq_len, alibi_slopes, kv_cache_dtype, k_scale{annotation}, v_scale,"
    " tp_rank=0, blocksparse_local_blocks=0, blocksparse_vert_stride=0, blocksparse_block_size=64,"
    " blocksparse_head_sliding_step=0{more}):\n    {body}\n"
)
DECODE = """
class PagedAttention:
    @staticmethod
    def forward_decode(query, key_cache, value_cache, block_tables, seq_lens, {length}, kv_cache_dtype, num_kv_heads,
                       scale, alibi_slopes, k_scale, v_scale{more}):
{body}
"""
CHOICE = """
use_v1 = {length} <= 8192
if use_v1:
    ops.paged_attention_v1(out, query, kv_cache_dtype, blocksparse_vert_stride)
else:
    ops.paged_attention_v2(out, query)
"""


def v2(body: str = "raise NotImplementedError()", more: str = "", annotation: str = "") -> str:
    return V2.format(body=body, more=more, annotation=annotation)


def decode(body: str, length: str = "max_seq_len", more: str = ", blocksparse_vert_stride=0") -> Decode:
    text = DECODE.format(length=length, more=more, body=indent(dedent(body), " " * 8))
    (found,) = find_decode(ast.parse(text)).choices
    return found


@pytest.mark.parametrize(
    "body",
    [
        "raise NotImplementedError()",
        "raise NotImplementedError",
        "raise NotImplementedError('Do not use this in our implement')",
        '"""Not here."""\n    raise NotImplementedError()',
        "logger.warning('no')\n    raise RuntimeError('no')",
        "pass",
        "...",
        '"""Only this."""',
        "return",
        "return None",
        "assert False, 'no'",
    ],
)
def test_a_stub_is_known_by_what_it_cannot_do(body: str) -> None:
    (found,) = find_v2(ast.parse(v2(body)))
    assert not found.works


@pytest.mark.parametrize(
    "body",
    [
        "torch.ops._C.paged_attention_v2(out)",
        "return ixf_F.v2(out)",
        "if cond:\n        return run(out)\n    raise NotImplementedError()",
        "try:\n        run(out)\n    except Exception:\n        raise",
        "return run(out)\n    raise NotImplementedError()",
        "assert True",
    ],
)
def test_a_body_that_can_do_something_works(body: str) -> None:
    (found,) = find_v2(ast.parse(v2(body)))
    assert found.works


@pytest.mark.parametrize(
    "text",
    [
        "@hint_on_error\n{}",
        "try:\n    import x\nexcept ImportError:\n    {}",
        "if TYPE_CHECKING:\n    pass\nelse:\n    {}",
        "class Other:\n    @staticmethod\n    def paged_attention_v2(a): pass\n\n{}",
        "def helper():\n    def paged_attention_v2(a): pass\n\n{}",
    ],
)
def test_the_operator_is_found_wherever_a_module_defines_it_and_nowhere_else(text: str) -> None:
    lines = v2().splitlines()
    indented = "\n".join([lines[0], *(("    " if "    {}" in text else "") + line for line in lines[1:])])
    (found,) = find_v2(ast.parse(text.format(indented)))
    assert found.arguments["exp_sums"] == "exp_sum"


def test_parameters_are_told_apart_by_name() -> None:
    text = v2().replace("seq_lens", "context_lens").replace("max_seq_len", "max_context_len")
    text = text.replace("num_kv_heads", "head_mapping").replace("(out,", "(output,").replace("tmp_out", "tmp_output")
    (found,) = find_v2(ast.parse(text))
    named = {ours: theirs for ours, theirs in found.arguments.items() if ours != theirs}
    assert named == {
        "out": "output",
        "exp_sums": "exp_sum",
        "tmp_out": "tmp_output",
        "num_kv_heads": "head_mapping",
        "seq_lens": "context_lens",
        "max_seq_len": "max_context_len",
    }


@pytest.mark.parametrize(
    ("text", "scales"),
    [
        (v2(), "float"),
        (v2(annotation=": float"), "float"),
        (v2(annotation=": torch.Tensor"), "tensor"),
        (v2(annotation=": 'Optional[Tensor]'"), "tensor"),
        (v2().replace("k_scale, v_scale", "kv_scale"), "one"),
    ],
)
def test_the_family_is_what_it_takes_for_a_scale(text: str, scales: str) -> None:
    (found,) = find_v2(ast.parse(text))
    assert found.scales == scales
    assert (found.arguments["k_scale"] == found.arguments["v_scale"] == "kv_scale") == (scales == "one")


def test_further_parameters_are_known_with_their_defaults() -> None:
    (found,) = find_v2(ast.parse(v2(more=", k_zero=0.0, *, out_scales=None")))
    assert found.extras == {"k_zero": "0.0", "out_scales": "None"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "defines no function paged_attention_v2; vLLM 0.4.3 to 0.11 have one"),
        ("class A:\n    def paged_attention_v2(self): pass", "defines no function paged_attention_v2"),
        (v2(more=", *args"), "line 1: paged_attention_v2 has parameters that are not vLLM's: * or **"),
        (v2(more=", **kwargs"), "parameters that are not vLLM's: * or **"),
        (v2(more=", *, stream"), "parameters that are not vLLM's: stream"),
        (v2().replace("block_tables", "tables"), "paged_attention_v2 has no parameter block_tables"),
        (v2().replace("seq_lens", "lens"), "paged_attention_v2 has no parameter seq_lens or context_lens"),
        (
            v2().replace("k_scale, v_scale", "kv_scale").split(", tp_rank")[0] + "): pass",
            "is from vLLM before 0.4.3, with another fp8 format",
        ),
    ],
)
def test_what_is_not_known_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(Unfit) as refusal:
        find_v2(ast.parse(text))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "assignment",
    [
        "use_v1 = (max_seq_len <= 8192 and x)",
        "use_v1 = max_seq_len <= 8192\nuse_v1 = True",
        "use_v1 = True",
        "use_v1: bool = True",
        "use_v1 = False\nuse_v1 |= True",
        "use_v1 = True if x else False",
        "if x:\n    use_v1 = True\nelse:\n    use_v1 = False",
        "# use_v1 = True\nprint('use_v1 = True')\nuse_v1 = False",
    ],
)
def test_the_choice_is_found_however_use_v1_is_set(assignment: str) -> None:
    found = decode(CHOICE.format(length="max_seq_len").replace("use_v1 = max_seq_len <= 8192", assignment))
    assert ast.unparse(found.choice.test) == "use_v1"
    assert found.first is found.choice


@pytest.mark.parametrize("test", ["True", "use_v1 and True", "(use_v1 := True)", "max_seq_len <= 8192"])
def test_the_choice_is_found_whatever_it_tests(test: str) -> None:
    found = decode(CHOICE.format(length="max_seq_len").replace("if use_v1:", f"if {test}:"))
    assert ast.unparse(found.choice.test) == ast.unparse(ast.parse(test, mode="eval").body)


def test_the_choice_in_an_elif_starts_with_its_if() -> None:
    found = decode(
        """
        if use_custom:
            ops.paged_attention_rocm(query)
        elif use_v1:
            ops.paged_attention_v1(query, kv_cache_dtype, blocksparse_vert_stride)
        else:
            ops.paged_attention_v2(query)
        """
    )
    assert (ast.unparse(found.first.test), ast.unparse(found.choice.test)) == ("use_custom", "use_v1")


def test_the_choice_behind_another_is_found_in_its_block() -> None:
    found = decode(
        """
        with torch.no_grad():
            if use_custom:
                ops.paged_attention_rocm(query)
            else:
                if use_v1:
                    ops.paged_attention_v1(query)
                else:
                    if other:
                        ops.paged_attention_rocm(query)
                    else:
                        ops.paged_attention_v2(query)
        """
    )
    assert ast.unparse(found.first.test) == ast.unparse(found.choice.test) == "use_v1"


@pytest.mark.parametrize(
    ("passed", "plain"),
    [
        ("out, query, kv_cache_dtype, k, blocksparse_vert_stride", False),
        ("out, kv_dtype=kv_cache_dtype, stride=blocksparse_vert_stride", False),
        ("out, query, alibi_slopes", True),
        ("out, query, kv_cache_dtype", True),
    ],
)
def test_what_v1_would_drop_is_known(passed: str, plain: bool) -> None:
    body = CHOICE.format(length="max_seq_len")
    assert decode(body.replace("out, query, kv_cache_dtype, blocksparse_vert_stride", passed)).plain is plain


def test_a_tree_without_blocksparse_has_nothing_of_it_to_drop() -> None:
    found = decode(CHOICE.format(length="max_seq_len"), more="")
    assert not found.plain
    assert "blocksparse_vert_stride" not in found.arguments


def test_the_old_name_of_the_length_is_known() -> None:
    found = decode(CHOICE.format(length="max_context_len"), length="max_context_len")
    assert found.arguments["max_seq_len"] == "max_context_len"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return query", "line 4: forward_decode has no if statement with paged_attention_v1 in the body and"),
        ("ops.paged_attention_v1(query)", "has no if statement"),
        (CHOICE.format(length="max_seq_len") * 2, "forward_decode has 2 if statements with"),
        (
            "if use_v1:\n    ops.paged_attention_v1(query)\nelse:\n    raise NotImplementedError()",
            "has no if statement",
        ),
        ("if use_v1:\n    ops.paged_attention_v1(query)", "has no if statement"),
        (
            "if use_v2:\n    ops.paged_attention_v2(query)\nelse:\n    ops.paged_attention_v1(query)",
            "has no if statement",
        ),
    ],
)
def test_a_decode_without_the_choice_is_refused(body: str, sentence: str) -> None:
    with pytest.raises(Unfit) as refusal:
        decode(body)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("text", ["x = 1", "class PagedAttention:\n    pass", "def forward_decode(): pass"])
def test_a_vllm_without_the_decode_is_refused(text: str) -> None:
    with pytest.raises(Unfit, match=r"has no PagedAttention.forward_decode; vLLM 0.4.3 to 0.11 have one"):
        find_decode(ast.parse(text))


def test_v1_is_a_stub_only_where_all_its_definitions_are() -> None:
    stub, works = "def paged_attention_v1(x): raise X\n", "def paged_attention_v1(x): run(x)\n"
    assert not v1_works(ast.parse(stub))
    assert v1_works(ast.parse(works))
    assert v1_works(ast.parse("from other import paged_attention_v1"))
    assert v1_works(ast.parse(f"if rocm:\n    {works}else:\n    {stub}"))


def test_a_layer_is_found_if_it_is_made_as_vllms() -> None:
    text = (
        "class Attention:\n    def __init__(self, num_heads, head_size, num_kv_heads, alibi_slopes, cache_config{}):\n"
    )
    made = text + "        self.impl = 1\n"
    assert len(find_layers(ast.parse(made.format("")))) == 1
    (layer,) = find_layers(ast.parse(made.format(", blocksparse_params=None")))
    assert "blocksparse_params" in layer.arguments
    assert find_layers(ast.parse(made.format("").replace("num_kv_heads", "kv"))) == []
    assert find_layers(ast.parse(text.format("") + "        pass\n")) == []
    assert find_layers(ast.parse("class Other: pass")) == []
    assert len(find_layers(ast.parse(made.format("") * 2))) == 2


def test_a_stub_is_a_matter_of_the_body_alone() -> None:
    (function,) = ast.parse("def f(a=run()):\n    raise X\n").body
    assert isinstance(function, ast.FunctionDef)
    assert only_raises(function)


CLASS = DECODE.format(length="max_seq_len", more="", body=indent(CHOICE.format(length="max_seq_len"), " " * 8))
STUB = "class PagedAttention:\n    @staticmethod\n    def forward_decode(query):\n        raise NotImplementedError\n"


def twice(text: str) -> str:
    """The class with its method defined twice."""
    head, method = text.split("    @staticmethod\n")
    return f"{head}    @staticmethod\n{method}    @staticmethod\n{method}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"if x:\n{indent(CLASS, '    ')}\nelse:\n{indent(CLASS, '    ')}", 2),
        (f"try:\n{indent(STUB, '    ')}\nexcept ImportError:\n{indent(CLASS, '    ')}", 1),
        (twice(CLASS), 2),
        (CLASS + CLASS.replace("PagedAttention", "Faster(PagedAttention)"), 2),
        (CLASS + CLASS.replace("PagedAttention", "A(PagedAttention)") + CLASS.replace("PagedAttention", "B(A)"), 3),
        (CLASS + CLASS.replace("PagedAttention", "Unrelated"), 1),
        (CLASS + "class Quiet(PagedAttention):\n    x = 1\n", 1),
        (CLASS + "PagedAttention.forward_decode = staticmethod(log(PagedAttention.forward_decode))\n", 1),
    ],
)
def test_every_definition_that_can_be_the_live_one_is_found(text: str, count: int) -> None:
    found = find_decode(ast.parse(text))
    assert len(found.choices) == count
    assert found.foreign == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            f"if x:\n{indent(CLASS, '    ')}\nelse:\n{indent(CLASS.replace('if use_v1:', 'while use_v1:'), '    ')}",
            "forward_decode has no if statement",
        ),
        (STUB, "line 3: forward_decode only raises"),
        (
            CLASS + "PagedAttention.forward_decode = staticmethod(other)\n",
            "PagedAttention.forward_decode is also bound",
        ),
        (CLASS + "setattr(PagedAttention, 'forward_decode', other)\n", "PagedAttention.forward_decode is also bound"),
        (CLASS + "from fast import PagedAttention\n", "PagedAttention.forward_decode is also bound"),
        (CLASS + "if rocm:\n    PagedAttention = Faster\n", "PagedAttention.forward_decode is also bound"),
        (CLASS + "    forward_decode = staticmethod(other)\n", "PagedAttention.forward_decode is also bound"),
        (
            CLASS + CLASS.replace("PagedAttention", "F(PagedAttention)").replace("if use_v1:", "while use_v1:"),
            "forward_decode has no if statement",
        ),
    ],
)
def test_a_decode_that_could_escape_the_call_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(Unfit) as refusal:
        find_decode(ast.parse(text))
    assert sentence in str(refusal.value)


def test_a_subclass_that_decodes_in_its_own_way_is_named() -> None:
    own = "class {}(PagedAttention):\n    @staticmethod\n    def forward_decode(query):\n        return {}(query)\n"
    text = CLASS + own.format("Own", "vendor.decode") + own.format("Same", "PagedAttention.forward_decode")
    found = find_decode(ast.parse(text))
    assert [method.owner.name for method in found.foreign] == ["Own"]
    assert len(found.choices) == 1


@pytest.mark.parametrize(
    "statement",
    ["paged_attention_v2 = vendor.v2", "from vendor import paged_attention_v2", "if x:\n    paged_attention_v2 = None"],
)
def test_an_operator_that_is_bound_to_something_else_as_well_is_refused(statement: str) -> None:
    with pytest.raises(Unfit, match="paged_attention_v2 is also bound here"):
        find_v2(ast.parse(f"{v2()}{statement}\n"))
    assert find_v2(ast.parse(f"{v2()}paged_attention_v2 = wrapped(paged_attention_v2)\n"))


CUSTOM = """
use_v1 = max_seq_len <= 8192
if use_v1:
    ops.paged_attention_v1(out, query, kv_cache_dtype, blocksparse_vert_stride)
{orelse}
"""


@pytest.mark.parametrize(
    ("orelse", "tests"),
    [
        ("else:\n    ops.paged_attention_v2(out)", []),
        (
            "else:\n    if use_custom:\n        custom(out)\n    else:\n        ops.paged_attention_v2(out)",
            ["use_custom"],
        ),
        ("elif use_custom:\n    custom(out)\nelse:\n    ops.paged_attention_v2(out)", ["use_custom"]),
        ("else:\n    if not fits:\n        raise X('no')\n    else:\n        ops.paged_attention_v2(out)", []),
        ("else:\n    if aligned:\n        ops.paged_attention_v2(out)\n    else:\n        own(out)", ["aligned"]),
    ],
)
def test_a_kernel_of_the_trees_own_in_the_branch_of_v2_is_known(orelse: str, tests: list[str]) -> None:
    found = decode(CUSTOM.format(orelse=orelse))
    assert [ast.unparse(detour.test) for detour in found.detours] == tests
    assert found.others == ()


def test_a_kernel_of_the_trees_own_before_the_choice_is_known() -> None:
    found = decode(f"if use_custom:\n    custom(out)\nelse:{indent(CHOICE.format(length='max_seq_len'), '    ')}")
    assert [ast.unparse(other.test) for other in found.others] == ["use_custom"]
    assert found.detours == ()
