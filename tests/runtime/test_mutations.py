"""Faults planted one by one in rendered kernels and their runtime: the generated tests must catch every one.

Each mutant is a package of its own with one changed file.
"""

from pathlib import Path

import pytest

from .torch_mutants import KERNEL, verdicts
from .torch_mutants import TorchFault as Fault

SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: 6, num_kv_heads: 2, max_seq_len: 4096}}
axes: {{head_size: 64, gqa_ratio: 3, partition_size: 64, kv_cache_dtype: {kv}}}
features:
  {{alibi: {alibi}, blocksparse: {sparse}, softcap: {cap}, sliding_window: {window}, sinks: {sinks}, modification: {mod}}}
{defined}
"""
PLAIN = dict(kv="auto", alibi="false", sparse="false", cap="null", window="null", sinks="false", mod="null", defined="")
#: A score and a mask that differ by position, query head and KV head.
NEAR = """
modifications:
  near:
    score: "s + tilt[h] * tanh(0.05 * (k - q)) + base[kvh]"
    mask: "k < 4 or (k - q) % 3 != 1 or h == 2"
    tensors: {tilt: [heads], base: [kv_heads]}
"""
FAMILIES = {
    "dense": PLAIN,
    "biased": {**PLAIN, "alibi": "true"},
    "stored8": {**PLAIN, "kv": "fp8_e4m3"},
    "sparse": {**PLAIN, "sparse": "true"},
    "windowed": {**PLAIN, "window": "40"},
    "sunk": {**PLAIN, "sinks": "true"},
    "capped": {**PLAIN, "cap": "5.0", "alibi": "true"},
    "own": {**PLAIN, "cap": "5.0", "mod": "near", "defined": NEAR},
}


CALL, STATE, ROWS = "runtime/call.py", "runtime/attention/state.py", "runtime/attention/rows.py"
SCRATCH = "runtime/attention/scratch.py"
TILING, LENGTHS, OP = "runtime/attention/tiling.py", "runtime/lengths.py", "runtime/op.py"

WINDOW = "runtime/attention/window.py"
SOFTCAP = "    # softcap\n    scores.div_(5.0)\n    scores.tanh_()\n    scores.mul_(5.0)\n"
BIAS = "    # ALiBi\n    t0 = torch.sub(k, q)\n    t1 = t0.float()\n    scores.addcmul_(slopes, t1)\n"

FAULTS = [
    Fault("partials and output not divided by z", ROWS, "torch.div(values, divisor.unsqueeze(-1), out=", "torch.mul(values, 1.0, out="),
    Fault("output divided by z twice", STATE, "taken, state.o, z.clamp_min", "taken, state.o / z.unsqueeze(-1), z.clamp_min"),
    Fault("ordered output not divided by z", ROWS, "rows, torch.div(values, divisor.unsqueeze(-1))", "rows, values"),
    Fault("ordered sequences written as they come", ROWS, "target.index_copy_(0, self._index[rows], ", "target[rows].copy_("),
    Fault("ordered lengths as they come", ROWS, "self._seq_lens, self._index = torch.sort(", "_, self._index = torch.sort("),
    Fault("shortest sequence first", ROWS, "descending=True", "descending=False"),
    Fault("merge of fewer rows into the wrong ones", STATE, "slice(0, b.m.shape[0])", "slice(a.m.shape[0] - b.m.shape[0], None)"),
    Fault("maximum of a merge forgotten", STATE, "    first.m.copy_(m)\n", ""),
    Fault("first part left in the workspace", STATE, "b.o.clone()", "b.o"),
    Fault("first sums left in the scratch", STATE, "b.z.clone()", "b.z"),
    Fault("a page too few", TILING, "last = min(self.whole, self.extents[first] - (stop - 1) * self.whole)", "last = max(1, min(self.whole, self.extents[first] - (stop - 1) * self.whole) - 1)"),
    Fault("ends of sequences not masked", TILING, "(not self.known or past > 0)", "(not self.known or past >= self.page)"),
    Fault("unread lengths taken for known ones", TILING, "(not self.known or past > 0)", "(past > 0)"),
    Fault("scratch of shorter sequences left", KERNEL, "tiling.covered * 64 < call.max_seq_len", "False"),
    Fault("mask one token late", CALL, "torch.ge(places, ", "torch.gt(places, "),
    Fault("mask one token early", CALL, "torch.ge(places, ", "torch.ge(places + 1, "),
    Fault("wrong page", CALL, "return Segment(taken, ", "table = table.roll(1, 1)\n    return Segment(taken, "),
    Fault("table followed past the end", CALL, "table = table.masked_fill(hidden[:, ::page], 0)", "table = table.clone(memory_format=torch.contiguous_format)"),
    Fault("lengths not clamped", ROWS, "self._seq_lens.clamp(0, self._longest)", "self._seq_lens.clone()"),
    Fault("scale forgotten", KERNEL, ".mul_(call.scale)", ".mul_(1.0)"),
    Fault("scale of a single item forgotten", KERNEL, "alpha=scale", "alpha=1.0"),
    Fault("wrong head of the group", KERNEL, ".copy_(query.unsqueeze(1))", ".copy_(query.flip(1).unsqueeze(1))"),
    Fault("stride of the query ignored", KERNEL, "rows.take(call.query, ", "rows.take(call.query.as_strided(call.query.shape, (call.query[0].numel(), 64, 1)), "),
    Fault("tail of the scores not masked", KERNEL, "scores.masked_fill_(part.hidden", "scores.clone().masked_fill_(part.hidden"),
    Fault("tail of the values not masked", KERNEL, ".bitwise_and_(", ".bitwise_and("),
    Fault("tail of a single sequence's scores not masked", KERNEL, "-tile.tail :].fill_(", "-tile.tail :].clone().fill_("),
    Fault("tail of a single sequence's values not masked", SCRATCH, "    if partial:\n", "    if False:\n"),
    Fault("pages past a single sequence's end not masked", SCRATCH, "    if blank:\n", "    if False:\n"),
    Fault("tail of another chunk", TILING, "(*repeat(0, _ceil(self.items, self.chunk) - 1), self.tail)", "(self.tail, *repeat(0, _ceil(self.items, self.chunk) - 1))"),
    Fault("tail of a single sequence one token late", TILING, "tail=past if", "tail=max(0, past - 1) if"),
    Fault("-inf minus -inf in a partition", STATE, "shift.clamp_max_(-LOWEST)", "shift.clamp_max_(float('inf'))"),
    Fault("a base of e that is not e", STATE, "scores, alpha=LOG2_E", "scores, alpha=1.44"),
    Fault("-inf minus -inf in the reduction", STATE, "top.clamp_min(LOWEST)", "top.clamp_min(-float('inf'))"),
    Fault("-inf minus -inf in a merge", STATE, "floor = m.clamp_min(LOWEST)", "floor = m.clamp_min(-float('inf'))"),
    Fault("merged sums not rescaled", STATE, "first.z.mul_(wa)", "first.z.mul_(1.0)"),
    Fault("merged outputs not rescaled", STATE, "first.o.mul_(wa.unsqueeze(-1))", "first.o.mul_(1.0)"),
    Fault("reduction forgets the weights", STATE, "o.mul_(weights.unsqueeze(-1))", "o.mul_(1.0)"),
    Fault("zeros forgotten where nothing is attended", STATE, "z.clamp_min(SMALLEST)", "z"),
    Fault("zeros forgotten in a single partition", KERNEL, "z.clamp_min(SMALLEST)", "z"),
    Fault("output of a single partition not divided by z", KERNEL, "views.outputs.div_(z.unsqueeze(-1))", "views.outputs.mul_(1.0)"),
    Fault("normalized output divided by z again", KERNEL, "if not whole:", "if lone:"),
    Fault("largest weight taken for z", STATE, ".reciprocal_()", ""),
    Fault("sums of normalized weights lost", KERNEL, "views.normalized, totals)", "views.normalized, None)"),
    Fault("lse of a single partition without the maximum", SCRATCH, "torch.log(z).add_(m)", "torch.log(z)"),
    Fault("tmp_out of a single partition left", SCRATCH, "part.tile.parts.start).copy_(own)", "part.tile.parts.start).clone().copy_(own)"),
    Fault("pages summed that are one", KERNEL, "shares=(free if pages > 1 else given)", "shares=free"),
    Fault("stale chunk", KERNEL, "0, blocks, out=keys.pages)", "0, part.pages.view(-1)[: len(blocks)], out=keys.pages)"),
    Fault("weights in the order of heads", KERNEL, ".copy_(views.by_page)", ".copy_(views.by_page.flip(1))"),
    Fault("a host read", KERNEL, "rows = Rows(", "call.seq_lens.max().item()\n    rows = Rows("),
    Fault("a call more than planned", KERNEL, "m = torch.amax(views.by_row, ", "m = torch.amax(views.by_row.clone(), "),
    Fault("a copy of all keys more than planned", KERNEL, "torch.bmm(group, keys.columns, ", "torch.bmm(group, keys.columns.clone(), "),
    Fault("scratch without room written", OP, "check.usable_scratch(call.scratch, partitions)", "call.scratch"),
    Fault("scratch beyond the partitions left", OP, "    clear_scratch(call.scratch, partitions)\n", ""),
    Fault("sums beyond the partitions not cleared", CALL, "scratch.exp_sums[:, :, start:].zero_()", "pass"),
    Fault("max_logits lost", SCRATCH, "return max_logits, exp_sums", "return max_logits.clone(), exp_sums"),
    Fault("exp_sums lost", SCRATCH, "return max_logits, exp_sums", "return max_logits, exp_sums.clone()"),
    Fault("max_logits of ordered sequences lost", SCRATCH, "rows.put(max_logits, part.rows, m.transpose(1, 2))", "pass"),
    Fault("lengths read although they must not be", LENGTHS, "if call.read_lengths:", "if True:"),
    Fault("slopes on the absolute position", KERNEL, "torch.sub(k, q)", "torch.sub(q, k)", "biased"),
    Fault("slopes one token off", KERNEL, "q = length - 1", "q = length - 0", "biased"),
    Fault("slopes of another head", KERNEL, "call.alibi_slopes.view(", "call.alibi_slopes.flip(0).view(", "biased"),
    Fault("k_scale forgotten", KERNEL, ".mul_(by_head(call.k_scale, 2))", ".mul_(1.0)", "stored8"),
    Fault("v_scale forgotten", KERNEL, ".mul_(by_head(call.v_scale, 1))", ".mul_(1.0)", "stored8"),
    Fault("scale of the neighbouring head", KERNEL, "by_head(call.v_scale, 1)", "by_head(call.v_scale.flip(0) if hasattr(call.v_scale, 'flip') else call.v_scale, 1)", "stored8"),
    Fault("scales swapped", KERNEL, "by_head(call.k_scale, 2)", "by_head(call.v_scale, 2)", "stored8"),
    Fault("the other fp8 format", KERNEL, 'fp8_table("fp8_e4m3"', 'fp8_table("fp8_e5m2"', "stored8"),
    Fault("subnormal codes flushed", "runtime/attention/fp8.py", "magnitude = (codes & 0x7F) << 7", "magnitude = ((codes & 0x7F) * ((codes & 0x78) > 0)) << 7", "stored8"),
    Fault("lse in base 2", STATE, "torch.log(z)", "torch.log2(z)"),
    Fault("lse without the maximum", STATE, "torch.log(z).add_(base)", "torch.log(z)"),
    Fault("lse of another order of sequences", STATE, "rows.put(call.lse, taken,", "call.lse[taken].copy_("),
    Fault("window one token too long", WINDOW, "(seq_lens - window)", "(seq_lens - window - 1)", "windowed"),
    Fault("window one token too short", WINDOW, "(seq_lens - window)", "(seq_lens - window + 1)", "windowed"),
    Fault("window not masked", WINDOW, ".logical_or_(positions < rows.starts[taken])", "", "windowed"),
    Fault("first partition one late", WINDOW, ".clamp_max_(latest)", ".add_(1).clamp_max_(latest)", "windowed"),
    Fault("first page one late", WINDOW, "begins <= rows.starts[taken] - page", "begins <= rows.starts[taken]", "windowed"),
    Fault("pages before the window followed", WINDOW, ".logical_or_(begins <= rows.starts[taken] - page)", "", "windowed"),
    Fault("a partition of the window too few", TILING, "_ceil(window - 1, partition) + 1", "_ceil(window - 1, partition)", "windowed"),
    Fault("scratch at the window's own partitions", WINDOW, "torch.add(rows.firsts[part.rows], parts)", "torch.add(rows.firsts[part.rows] * 0, parts)", "windowed"),
    Fault("scratch before the window left", KERNEL, "clear_scratch(call.scratch, 0)", "pass", "windowed"),
    Fault("sinks dropped", STATE, "z.add_(torch.sub(sinks, base).exp_())", "pass", "sunk"),
    Fault("sinks added twice", STATE, "torch.sub(sinks, base).exp_()", "torch.sub(sinks, base).exp_().mul_(2)", "sunk"),
    Fault("sinks scaled", STATE, "with_sink(state, call.sinks,", "with_sink(state, call.sinks * call.scale,", "sunk"),
    Fault("sinks of other heads", STATE, "with_sink(state, call.sinks,", "with_sink(state, call.sinks.flip(0),", "sunk"),
    Fault("a sink above all scores", STATE, "torch.maximum(state.m, sinks)", "state.m - 200", "sunk"),
    Fault("sinks in every partition's scratch", KERNEL, "-1, out=totals)", "-1, out=totals).add_((call.sinks - m).exp())", "sunk"),
    Fault("softcap dropped", KERNEL, "scores.tanh_()", "scores.mul_(1.0)", "capped"),
    Fault("softcap not scaled back", KERNEL, "scores.mul_(5.0)", "scores.mul_(1.0)", "capped"),
    Fault("softcap of another size", KERNEL, "scores.div_(5.0)", "scores.div_(5.5)", "capped"),
    Fault("softcap after the bias", KERNEL, SOFTCAP + BIAS, BIAS + SOFTCAP, "capped"),
    Fault("remainder by C's rule", KERNEL, "t1.remainder_(3)", "t1.fmod_(3)", "own"),
    Fault("modification of the score dropped", KERNEL, "scores.addcmul_(tilt_, t1)", "scores.addcmul_(tilt_, t1, value=0)", "own"),
    Fault("tensor of the query heads by KV head", KERNEL, "call.tensors[0].view(1, 1, -1, 3, 1)", "call.tensors[0].view(1, 1, 3, -1, 1).transpose(2, 3)", "own"),
    Fault("tensor of the KV heads in another order", KERNEL, "call.tensors[1].view(", "call.tensors[1].flip(0).view(", "own"),
    Fault("mask forgotten", KERNEL, "scores.masked_fill_(t4", "scores.clone().masked_fill_(t4", "own"),
    Fault("mask by the position within a tile", KERNEL, "k = part.positions.view(", "k = (part.positions - part.positions[0, 0]).view(", "own"),
    Fault("mask before the score", KERNEL, "    modify(call, part, views.scores, space)\n    hide(call, part, views.scores, space)\n", "    hide(call, part, views.scores, space)\n    modify(call, part, views.scores, space)\n", "own"),
    Fault("one local block too few", "runtime/attention/sparse.py", "distant = block <= ", "distant = block <= 1 + ", "sparse"),
    Fault("strides start a block early", "runtime/attention/sparse.py", ".mul_(step).add_(1)", ".mul_(step).add_(0)", "sparse"),
    Fault("rank ignored", "runtime/attention/sparse.py", "+ rank * heads", "+ 0 * heads", "sparse"),
    Fault("negative step taken for a positive one", "runtime/attention/sparse.py", "if step >= 0:", "if step or not step:", "sparse"),
]  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The verdicts on the healthy package and on each mutant."""
    specs = {name: SPEC.format(name=name, **options) for name, options in FAMILIES.items()}
    return verdicts(tmp_path_factory.mktemp("mutants"), specs, FAULTS)


def test_the_healthy_package_passes(found):
    assert found[0].passed, found[0].said


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_caught(found, number):
    verdict = found[1][number]
    assert verdict.failed, f"no generated test notices: {FAULTS[number].name}\n{verdict.said}"


def test_the_families_cover_every_template_branch():
    assert {fault.family for fault in FAULTS} == set(FAMILIES)
    assert Path(__file__).name == "test_mutations.py"
