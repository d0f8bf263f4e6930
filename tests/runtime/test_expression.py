"""PyTorch, CUDA and the oracle agree on random expressions, within the error that float32 makes of each."""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
from pathlib import Path

import pytest
import torch

from pav2gen.family.modifications.cuda_text import cuda_text
from pav2gen.family.modifications.parse import ExpressionError, parse_mask, parse_score
from pav2gen.family.modifications.torch_text import TorchText, hidden_text, score_text
from pav2gen.family.modifications.tree import Expression
from pav2gen.runtime import simt
from pav2gen.runtime.attention.workspace import Buffer
from pav2gen.runtime.testing import expression, probe

from .expressions import TENSORS, Undecided, Writer, bounded, holds

CUDA_HEADERS = Path(__file__).parents[2] / "pav2gen/runtime/cuda"
ROWS, PARTS, KV_HEADS, GROUP, TOKENS = 5, 2, 2, 3, 2
SHAPE = (ROWS, PARTS, KV_HEADS, GROUP, TOKENS)
TREES = 2000
NAMES = {"s": "scores", "q": "q", "k": "k", "len": "length", "h": "h", "kvh": "kvh", "slope": "slope", "bias": "bias"}
CUDA_NAMES = {
    **{name: name for name in ("s", "q", "k", "h", "kvh")},
    "len": "length",
    "slope": "slope[h]",
    "bias": "bias[kvh]",
}


@functools.cache
def points() -> dict[str, torch.Tensor]:
    """Scores of 1, 30 and 1e4, positions from 0 to 2^30; each name in the shape that a kernel gives it."""
    generator = torch.Generator().manual_seed(1)
    length = torch.tensor([1, 7, 300, 100_000, 1 << 30], dtype=torch.int32).view(-1, 1, 1, 1, 1)
    share = torch.rand(ROWS, PARTS, 1, 1, TOKENS, generator=generator, dtype=torch.float64)
    sizes = torch.tensor([1.0, 30.0, 1e4, 0.01]).view(1, PARTS, 1, 1, TOKENS)
    return {
        "scores": torch.randn(SHAPE, generator=generator) * sizes,
        "q": length - 1,
        "k": (share * (length - 1)).floor().int(),
        "length": length,
        "h": torch.arange(KV_HEADS * GROUP, dtype=torch.int32).view(1, 1, KV_HEADS, GROUP, 1),
        "kvh": torch.arange(KV_HEADS, dtype=torch.int32).view(1, 1, KV_HEADS, 1, 1),
        "slope": torch.randn(KV_HEADS * GROUP, generator=generator).view(1, 1, KV_HEADS, GROUP, 1),
        "bias": torch.randn(KV_HEADS, generator=generator).view(1, 1, KV_HEADS, 1, 1),
    }


@functools.cache
def elements() -> list[dict[str, object]]:
    """The names of each element of the scores, as the oracle takes them."""
    at = points()
    flat = {name: at[text].expand(SHAPE).flatten().tolist() for name, text in NAMES.items() if name not in TENSORS}
    tensors = {name: at[name].flatten().tolist() for name in TENSORS}
    return [{**{name: flat[name][i] for name in flat}, **tensors} for i in range(at["scores"].numel())]


@functools.cache
def trees() -> list[tuple[str, Expression, bool]]:
    """(text, tree, whether it is a score) of random expressions that the parser takes."""
    source, found = random.Random(12), []
    while len(found) < TREES:
        scores = len(found) % 3 != 0
        writer, depth = Writer(source, scores), source.randrange(1, 6)
        text = writer.number(depth) if scores else writer.condition(depth)
        try:
            found.append((text, (parse_score if scores else parse_mask)(text, TENSORS), scores))
        except ExpressionError:
            continue
    return found


@functools.cache
def expected(index: int) -> list[tuple[float, float] | None]:
    """The oracle's value of each element and the error allowed; None where float32 may decide otherwise."""
    text, tree, scores = trees()[index]
    evaluate, result = expression.evaluator(text), []
    for names in elements():
        try:
            error = bounded(tree, names).error if scores else 0.0 * holds(tree, names)
        except Undecided:
            result.append(None)
            continue
        result.append((float(evaluate(names)), error))
    return result


def run_torch(tree: Expression, scores: bool) -> tuple[torch.Tensor, TorchText, int]:
    """The value that PyTorch's statements give, the translation, and the ATen calls that were made."""
    translate = score_text if scores else hidden_text
    written = translate(tree, NAMES, {**TENSORS, "k": "k by row"}, "slots[{}]")
    at = {
        **points(),
        "torch": torch,
        "slots": [Buffer(torch.empty(4 * points()["scores"].numel(), dtype=torch.uint8)) for _ in range(written.slots)],
    }
    at["scores"] = at["scores"].clone()
    calls = probe.count_calls(lambda: exec("\n".join(written.lines), at))
    value = at["scores"] if scores else ~eval(written.result, at).expand(SHAPE)
    return value, written, sum(calls.values())


def disagreements(got: list[float], index: int) -> list[str]:
    text, _, _ = trees()[index]
    pairs = zip(got, expected(index), strict=True)
    return [
        f"{text} at {i}: {a}, not {e[0]} +- {e[1]}" for i, (a, e) in enumerate(pairs) if e and not abs(a - e[0]) <= e[1]
    ]


def test_most_elements_are_decided():
    decided = [sum(e is not None for e in expected(i)) for i in range(0, TREES, 10)]
    total = len(elements())
    assert sum(decided) > 0.6 * total * len(decided)


def test_pytorch_agrees_with_the_oracle_and_makes_the_calls_that_are_counted():
    wrong, miscounted = [], []
    for index, (text, tree, scores) in enumerate(trees()):
        value, written, calls = run_torch(tree, scores)
        wrong += disagreements(value.double().flatten().tolist(), index)
        if calls != written.calls:
            miscounted.append((text, calls, written))
    assert not wrong, wrong[:5]
    assert not miscounted, miscounted[:3]


def source(batch: range) -> str:
    """A kernel that evaluates each tree of a batch at each element."""
    pointers = "const float* slope, const float* bias"
    call = f"int tree, float* out, const float* s, const int* at, {pointers}, int n"
    parameters = f"float s, int q, int k, int h, int kvh, int length, {pointers}"
    functions = "".join(
        f"__device__ float f{i}({parameters}) {{ return {cuda_text(trees()[i][1], CUDA_NAMES)}; }}\n" for i in batch
    )
    cases = "".join(f"case {i}: *out = f{i}(s, q, k, h, kvh, length, slope, bias); break;\n" for i in batch)
    return f"""#include <cuda_runtime.h>
#include <math.h>
#include "pav2_integer.cuh"
using namespace pav2;
{functions}
__global__ void kernel({call}) {{
    const int i = threadIdx.x;
    if (i >= n) return;
    out += i, at += i * 5;
    const float value = s[i];
    {{
        const float s = value;
        const int q = at[0], k = at[1], h = at[2], kvh = at[3], length = at[4];
        switch (tree) {{
            {cases}
        }}
    }}
}}
extern "C" __attribute__((visibility("default"))) int evaluate({call}) {{
    void* parameters[] = {{&tree, &out, &s, &at, &slope, &bias, &n}};
    return cudaLaunchKernel(kernel, dim3(1), dim3(128), parameters, 0, 0);
}}
"""


@pytest.mark.parametrize("batch", [range(start, start + 500) for start in range(0, TREES, 500)])
def test_cuda_agrees_with_the_oracle(batch, tmp_path):
    file = tmp_path / "trees.cu"
    file.write_text(source(batch))
    evaluate = simt.build([str(file)], warp_size=32, include=[str(CUDA_HEADERS)]).fn("evaluate")
    at = points()
    n = at["scores"].numel()
    places = torch.stack(
        [at[name].expand(SHAPE).flatten() for name in ("q", "k", "h", "kvh", "length")], 1
    ).contiguous()
    out = torch.zeros(n)
    wrong = []
    for index in batch:
        pointers = [
            ctypes.c_void_p(tensor.data_ptr()) for tensor in (out, at["scores"], places, at["slope"], at["bias"])
        ]
        assert evaluate(index, *pointers, n) == 0
        wrong += disagreements(out.double().tolist(), index)
    assert not wrong, wrong[:5]


def test_slots_are_used_again():
    chain = "s + " + " + ".join(f"tanh(s * {i}.0 + 1.0 * h * k)" for i in range(1, 6))
    assert score_text(parse_score(chain), NAMES, {}, "slots[{}]").slots <= 3


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("30 * tanh(s / 30)", ["scores.div_(30.0)", "scores.tanh_()", "scores.mul_(30.0)"]),
        ("s + slope[h] * (k - q)", ["t0 = torch.sub(k, q)", "t1 = t0.float()", "scores.addcmul_(slope, t1)"]),
        ("s - 0.5 * k", ["t0 = k.float()", "scores.add_(t0, alpha=-0.5)"]),
    ],
)
def test_scores_are_changed_in_place(text, lines):
    assert list(score_text(parse_score(text, TENSORS), NAMES, TENSORS, "slots[{}]").lines) == lines


def test_integers_follow_python_on_both_sides_of_zero():
    for a, b in itertools.product((-7, -6, -1, 0, 1, 6, 7), (-3, -1, 1, 3)):
        for op in ("//", "%"):
            text = f"1.0 * ((k - q) {op} {b})"
            value = expression.evaluator(text)({"k": max(a, 0), "q": max(-a, 0)})
            assert value == (a // b if op == "//" else a % b)
