"""What an expression may say, and the sentence and column for each mistake."""

from __future__ import annotations

import pytest

from pav2gen.family.modifications.cuda_text import cuda_text, literal, uses_floor
from pav2gen.family.modifications.parse import LONGEST, MOST_NODES, ExpressionError, parse_mask, parse_score

TENSORS = {"slope": "heads", "bias": "kv_heads"}
NAMES = {name: name for name in ("s", "q", "k", "h", "kvh", "len", "slope", "bias")}

#: text, column, words of the message; ``>`` before a text says that it is a score.
MISTAKES = [
    ("", 1, "is empty"),
    ("k", 1, "a mask is a condition, and this is an integer"),
    ("> k < 3", 1, "write it as a mask"),
    ("k <", 4, "is not an expression"),
    ("k = 3", 3, "'==' compares"),
    ("k < 3; q", 6, "write one expression"),
    ("k < 4 && q > 3", 7, "write 'and'"),
    ("k < 4 || q != 3", 7, "write 'or'"),
    ("k < 4 or !(q < 3)", 10, "write 'not'"),
    ("k <> 4", 3, "write '!='"),
    ("k === 4", 3, "write '=='"),
    ("k !== 4", 3, "write '!='"),
    ("k => 4", 3, "write '>='"),
    ("k < 4 ? 1 : 0", 7, "write 'a if condition else b'"),
    ("k ^ 2 < 9", 1, "write x * x for a square, or '!=' for an exclusive or"),
    ("float(k) < 3", 1, "an integer beside a number is converted"),
    ("int(k) < 3", 1, "floor() rounds"),
    ("true", 1, "'true' is not part of the language; a condition compares values"),
    ("k < 3 and True", 11, "a condition compares values"),
    ("(k < 3", 1, "was never closed"),
    ("pos < 3", 1, "the name 'pos' is unknown"),
    ("k < lenn", 5, "did you mean len?"),
    ("k < length", 5, "did you mean len?"),
    ("s > 0", 1, "a mask does not see the score"),
    ("> s ** 2", 3, "write x * x"),
    ("k & 1 == 0", 1, "'&' is not part"),
    ("(k < 2) & (q < 3)", 1, "write 'and'"),
    ("~k < 3", 1, "write 'not'"),
    ("+k < 3", 1, "leave it out"),
    ("k is q", 1, "write '=='"),
    ("k in (1, 2)", 6, "a list of values"),
    ("k.real < 3", 1, "attributes"),
    ("k.bit_length() < 3", 1, "attributes"),
    ("'k' < 3", 1, "'k' is not part of the language"),
    ("f'{k}' < 3", 1, "a string"),
    ("k < 3j", 5, "'3j' is not part of the language"),
    ("k < True", 5, "'True' is not part of the language"),
    ("k < None", 5, "'None' is not part of the language"),
    ("(lambda: k)() < 3", 1, "a lambda"),
    ("[k][0] < 3", 1, "only a parameter tensor has an index"),
    ("slope < 3", 1, "slope is a tensor; write slope[h]"),
    ("slope[k] < 3", 1, "its index is h: write slope[h]"),
    ("bias[h] < 3", 1, "bias is [kv_heads]; its index is kvh"),
    ("slopes[h] < 3", 1, "did you mean slope?"),
    ("min < 3", 1, "min is a function; write min(...)"),
    ("min(k) < 3", 1, "min() takes two or more arguments, not 1"),
    ("abs(k, q) < 3", 1, "abs() takes one argument, not 2"),
    ("max(k, key=q) < 3", 1, "by position"),
    ("max(*k) < 3", 1, "by position"),
    ("sin(k) < 3", 1, "the function 'sin' is unknown; did you mean min?"),
    ("k and q", 1, "'and' takes conditions, not an integer"),
    ("k < 3 and q", 1, "compare it"),
    ("not k", 1, "'not' takes a condition, not an integer"),
    ("> 1.0 if k else 0.0", 3, "'if' takes a condition, not an integer"),
    ("> s if k < 3 else q < 3", 3, "the two results of 'if' are a number and a condition"),
    ("> s + (k < 3)", 3, "'+' takes numbers, not a condition"),
    ("(k < 3) == (q < 3)", 1, "combine conditions"),
    ("> -(k < 3)", 3, "'-' takes a number, not a condition"),
    ("> tanh(k < 3)", 3, "tanh() takes numbers, not a condition"),
    ("k // 0 == 1", 1, "the divisor of '//' is 0"),
    ("k % (3 - 3) == 1", 1, "the divisor of '%' is 0"),
    ("> s / 0.0", 3, "the divisor of '/' is 0"),
    ("k % q == 0", 1, "write max(..., 1)"),
    ("k // (q - k) == 0", 1, "the divisor of '//' may be 0"),
    ("> s // 2", 3, "write floor(a / b)"),
    ("> s % 2", 3, "a - floor(a / b) * b"),
    ("k < 2147483648", 5, "'2147483648' does not fit"),
    ("k * k < 3", 1, "may reach 1152921502459363329, beyond 32 bits"),
    ("4 * k < q", 1, "beyond 32 bits"),
    ("k < 1e39", 5, "beyond float32"),
    ("k < 1e999", 5, "beyond float32"),
    ("k < 1e-60", 5, "too small for float32"),
    ("> log(-1.0) + s", 3, "log(-1.0) has no value"),
    ("> exp(1000.0) + s", 3, "exp(1000.0) has no value"),
    ("1 < 2", 1, "this mask is always true"),
    ("k < 3 or 2 > 1", 1, "this mask is always true"),
    ("k < 3  # near", 8, "a comment"),
    ("k < 3\n", 6, "U+000A"),
    ("\uff4b < 3", 1, "U+FF4B"),
    (" k < kk", 6, "the name 'kk' is unknown"),
    ("k < " + "-" * 30 + "q", 28, "nested more than 24 deep"),
    ("k < 1" + " + 1" * MOST_NODES, 1, "are allowed"),
    ("k < " + "1" * LONGEST, 1, f"characters; at most {LONGEST} are allowed"),
]


@pytest.mark.parametrize(("text", "column", "words"), MISTAKES)
def test_mistakes(text, column, words):
    score = text.startswith("> ")
    with pytest.raises(ExpressionError) as error:
        if score:
            parse_score(f"  {text[2:]}", TENSORS)
        else:
            parse_mask(text, TENSORS)
    assert words in error.value.message
    assert error.value.column == column


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("30 * tanh(s / 30)", "30.0f * tanhf(s / 30.0f)"),
        ("s + slope[h] * (k - q)", "s + slope * static_cast<float>(k - q)"),
        ("s if s > 0 else 0.1 * s", "s > 0.0f ? s : 0.1f * s"),
        ("s - (k - 1.0) - -s", "s - (static_cast<float>(k) - 1.0f) - -s"),
        ("-(s + 1)", "-(s + 1.0f)"),
        ("s * (1 if q - k < 4 else -1.5)", "s * (q - k < 4 ? 1.0f : -1.5f)"),
        ("s + max(k, 3) % 5", "s + static_cast<float>(max(k, 3) % 5)"),
        ("s + (k - q) // 5", "s + static_cast<float>(floor_div(k - q, 5))"),
        ("abs(min(s, 2, bias[kvh]))", "fabsf(fminf(fminf(s, 2.0f), bias))"),
        ("s + k / q if q > 0 else s", None),
        ("2 ** 3 * s", None),
    ],
)
def test_scores_in_cuda(text, cuda):
    if cuda is None:
        with pytest.raises(ExpressionError):
            parse_score(text, TENSORS)
    else:
        assert cuda_text(parse_score(text, TENSORS), NAMES) == cuda


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("k < 4 or q - k < 1024", "k < 4 || q - k < 1024"),
        ("k // 8192 == q // 8192", "k / 8192 == q / 8192"),
        ("0 <= q - k < 5 and k % 2 == 1", "0 <= q - k && q - k < 5 && k % 2 == 1"),
        ("k < 1 or (k < 2 and q < 3) or h == 1", "k < 1 || (k < 2 && q < 3) || h == 1"),
        ("not (k < 1 and (q < 3 or h != 1))", "k >= 1 || (q >= 3 && h == 1)"),
        ("(k - q) % -3 == -2", "floor_mod(k - q, -3) == -2"),
        ("k < 5 and (1 < 2)", "k < 5"),
        ("(" * 150 + "k" + ")" * 150 + " < 5", "k < 5"),
        ("q - k < slope[h]", "static_cast<float>(q - k) < slope"),
        ("(h == 0) if k < 3 else (q == 1)", "(k < 3 && h == 0) || (k >= 3 && q == 1)"),
    ],
)
def test_masks_in_cuda(text, cuda):
    tree = parse_mask(text, TENSORS)
    assert cuda_text(tree, NAMES) == cuda
    assert uses_floor(tree) == ("floor_" in cuda)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1f"),
        (30.0, "30.0f"),
        (1e10, "10000000000.0f"),
        (1 / 3, "0.33333334f"),
        (-2.5, "-2.5f"),
        (7, "7"),
        (True, "true"),
    ],
)
def test_literals_are_the_shortest_of_float32(value, text):
    assert literal(value) == text
