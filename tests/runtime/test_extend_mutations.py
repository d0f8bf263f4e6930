"""Faults planted one by one in PyTorch extend kernels and their runtime: the generated tests must catch every one.

Each mutant is a package of its own with one changed file.
"""

import pytest

from .torch_mutants import KERNEL, verdicts
from .torch_mutants import TorchFault as Fault

SPEC = """
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: 6, num_kv_heads: 2, max_seq_len: 4096}}
axes: {{head_size: 64, gqa_ratio: 3, partition_size: 64, kv_cache_dtype: {kv}}}
features: {{alibi: {alibi}, sliding_window: {window}, sinks: {sinks}, modification: {mod}}}
{defined}
operators: [decode, extend]
backends: [torch]
"""
PLAIN = dict(kv="auto", alibi="false", window="null", sinks="false", mod="null", defined="")
#: A score and a mask that differ by the positions of row and key, by head, and by length.
NEAR = """
modifications:
  near:
    score: "s + tilt[h] * tanh(0.05 * (k - q)) + base[kvh] * len"
    mask: "k < 4 or (k - q) % 3 != 1 or h == 2"
    tensors: {tilt: [heads], base: [kv_heads]}
"""
FAMILIES = {
    "dense": PLAIN,
    "windowed": {**PLAIN, "window": "40", "sinks": "true"},
    "stored": {**PLAIN, "kv": "int8"},
    "own": {**PLAIN, "alibi": "true", "mod": "near", "defined": NEAR},
}

ROWS, TILES, STATE = "runtime/extend/rows.py", "runtime/extend/tiles.py", "runtime/attention/state.py"
FAULTS = [
    Fault("causal limit one token late", ROWS, "hidden = self._by_part(positions, tile) > self", "hidden = self._by_part(positions, tile) > 1 + self"),
    Fault("causal limit one token early", ROWS, "hidden = self._by_part(positions, tile) > self", "hidden = self._by_part(positions, tile) + 1 > self"),
    Fault("causal limit of the last row for all", ROWS, "queries=torch.add(offsets, positions).int()", "queries=torch.add(offsets.amax(1, True).expand_as(offsets), positions).int()"),
    Fault("causal limit of the first row for all", ROWS, "queries=torch.add(offsets, positions).int()", "queries=torch.add(offsets * 0, positions).int()"),
    Fault("context counted twice", ROWS, "ends = torch.add(positions, ", "ends = torch.add(positions * 2, "),
    Fault("keys without a mask one too many", TILES, "return max(0, self.position + 1) if", "return max(0, self.position + 2) if"),
    Fault("keys of the last row without a mask", TILES, "return max(0, self.position + 1) if", "return max(0, self.position + self.rows) if"),
    Fault("a query tile of the next sequence", ROWS, "torch.searchsorted(ends, number, right=True)", "torch.searchsorted(ends, number + 1, right=True)"),
    Fault("a query tile of the sequence before", ROWS, "torch.searchsorted(ends, number, right=True)", "torch.searchsorted(ends, number, right=False)"),
    Fault("rows of a tile from the sequence's first", ROWS, "index_select(0, self.sequences).add_(before)", "index_select(0, self.sequences).add_(before * 0)"),
    Fault("position of a later tile forgotten", ROWS, "contexts.add_(before)", "contexts.add_(before * 0)"),
    Fault("position of a later tile forgotten on the host", TILES, "min(step, count - first), position + first)", "min(step, count - first), position)"),
    Fault("ragged last tile as wide as the others", TILES, "min(step, count - first), position", "step, position"),
    Fault("rows of padding written", ROWS, "values = torch.where(some, values, ", "values = torch.where(some | True, values, "),
    Fault("surplus rows written as they are", ROWS, "values = torch.index_select(values, 0, self.places)", "values = values.clone()"),
    Fault("surplus rows are the next sequence's", ROWS, "offsets = torch.minimum(each, self.counts[taken].sub(1).clamp_min_(0).unsqueeze(1))", "offsets = each.expand(self.counts[taken].shape[0], width)"),
    Fault("long sequences not cut to max_query_len", ROWS, "rows = owned.clamp(max=call.max_query_len)", "rows = owned.clone()"),
    Fault("positions depend on max_query_len", ROWS, "torch.sub(self.seq_lens, owned)", "torch.sub(self.seq_lens, rows)"),
    Fault("positions depend on max_query_len on the host", TILES, "start, count, length - rows, width", "start, count, length - count, width"),
    Fault("offsets not clamped", ROWS, "starts = call.query_start_loc.long().clamp_(0, tokens)", "starts = call.query_start_loc.long()"),
    Fault("lengths not clamped", ROWS, "self.seq_lens = call.seq_lens.clamp(0, call.max_seq_len)", "self.seq_lens = call.seq_lens.clamp(0)"),
    Fault("tile too narrow for its rows", TILES, "width = max(tile.rows for tile in tiles)", "width = min(tile.rows for tile in tiles)"),
    Fault("mask of V missing", KERNEL, ".bitwise_and_(", ".bitwise_and("),
    Fault("mask of V one token early", ROWS, "unread = positions >= held.ends", "unread = positions + 1 >= held.ends"),
    Fault("table followed past the end", ROWS, "            pages.masked_fill_(unread[:, ::page], 0)\n", ""),
    Fault("scores not masked", KERNEL, "scores.masked_fill_(part.hidden", "scores.clone().masked_fill_(part.hidden"),
    Fault("state of another query tile", KERNEL, "State(*(tensor[: tile.rows] for tensor in state))", "State(*(tensor[-tile.rows :] for tensor in state))"),
    Fault("maximum of an earlier tile forgotten", STATE, "    torch.maximum(m, state.m, out=m)\n", ""),
    Fault("sums of an earlier tile not rescaled", STATE, "    state.o.mul_(rescale.unsqueeze(-1))\n    torch.add(", "    torch.add("),
    Fault("denominator of an earlier tile not rescaled", STATE, "state.z.mul_(rescale).add_", "state.z.add_"),
    Fault("-inf minus -inf", STATE, "    floor = m.clamp_min(LOWEST)\n    rescale = torch.sub(state.m", "    floor = m + 0\n    rescale = torch.sub(state.m"),
    Fault("partitions overwrite each other", KERNEL, "beta = int(copies < tile.items)", "beta = 0"),
    Fault("partitions of a tile added twice", KERNEL, "beta = int(not copies)", "beta = 1"),
    Fault("rows and heads exchanged", KERNEL, "query.copy_(rows.transpose(1, 2))", "query.copy_(rows.reshape(query.shape))"),
    Fault("stale chunk", KERNEL, "0, blocks, out=pages)\n            ordered", "0, part.pages.view(-1)[: len(blocks)], out=pages)\n            ordered"),
    Fault("a host read", KERNEL, "    groups = groups_of(", "    call.seq_lens.max().item()\n    groups = groups_of("),
    Fault("lengths read although they must not be", ROWS, "if call.read_lengths:", "if True:"),
    Fault("window of the last row for all", ROWS, "by_part <= by_row - self.shape.window", "by_part <= held.ends[: tile.rows].view(-1, 1, 1, 1, 1, 1) - 1 - self.shape.window + 0 * by_row", "windowed"),
    Fault("window of the first row for all", ROWS, "by_part <= by_row - self.shape.window", "by_part < held.starts[: tile.rows].view(-1, 1, 1, 1, 1, 1) + 0 * by_row", "windowed"),
    Fault("window one token too long", ROWS, "by_part <= by_row - self.shape.window", "by_part < by_row - self.shape.window", "windowed"),
    Fault("window starts at the last row's", ROWS, "starts = None if window is None else (positions + (1 - window))", "starts = None if window is None else (positions + (self.counts[taken].unsqueeze(1) - window))", "windowed"),
    Fault("tokens before the window in V", ROWS, ".logical_or_(positions < starts)", "", "windowed"),
    Fault("pages before the window read", ROWS, ".logical_or_(begins <= starts - page)", "", "windowed"),
    Fault("sink added for each tile", STATE, "    state.z.mul_(rescale).add_(weights.sum(-1).sum(1))\n", "    state.z.mul_(rescale).add_(weights.sum(-1).sum(1)).add_(1.0)\n", "windowed"),
    Fault("sink to the base 2", ROWS, "        state.m.div_(LOG2_E)\n", "        pass\n", "windowed"),
    Fault("sink of another head", ROWS, "call.sinks.view(state.m.shape[1], 1, -1)", "call.sinks.flip(0).view(state.m.shape[1], 1, -1)", "windowed"),
    Fault("scores to the base 2", STATE, "scores, alpha=LOG2_E, out=scores", "scores, alpha=1.0, out=scores"),
    Fault("k_scale forgotten", KERNEL, ".mul_(by_head(call.k_scale, 3))", ".mul_(1.0)", "stored"),
    Fault("v_scale of another head", KERNEL, "by_head(call.v_scale, 3)", "by_head(call.v_scale if isinstance(call.v_scale, float) else call.v_scale.flip(0), 3)", "stored"),
    Fault("q of a hook from the last row", KERNEL, "q = part.queries.view(", "q = part.queries.amax(1, True).expand_as(part.queries).view(", "own"),
    Fault("q of a hook one too large", KERNEL, "q = part.queries.view(", "q = (part.queries + 1).view(", "own"),
    Fault("len of a hook up to the row", KERNEL, "length = part.seq_lens.view(-1, 1, 1, 1, 1, 1)", "length = (part.queries + 1).view(-1, 1, 1, scores.shape[3], 1, 1)", "own"),
    Fault("h of a hook from the first KV head", KERNEL, "h = torch.arange(scores.shape[2] * 3,", "h = torch.arange(scores.shape[2] * 3 * 0 + 3,", "own"),
    Fault("mask of a hook forgotten", KERNEL, "    hide(call, part, scores, space)\n", "", "own"),
]  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The verdicts on the healthy package and on each mutant."""
    specs = {name: SPEC.format(name=name, **options) for name, options in FAMILIES.items()}
    return verdicts(tmp_path_factory.mktemp("mutants"), specs, FAULTS, "extend_*.py", "test_*_extend_*.py")


def test_the_healthy_package_passes(found):
    assert found[0].passed, found[0].said


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_caught(found, number):
    verdict = found[1][number]
    assert verdict.failed, f"no generated test notices: {FAULTS[number].name}\n{verdict.said}"


def test_every_family_has_a_fault():
    assert {fault.family for fault in FAULTS} == set(FAMILIES)
