"""A call is served only by a kernel that has exactly its features: every other one is a miss, and never a silent drop.

Every combination of features is asked of tables with and without each. Nothing is calculated: a recorder stands for the
kernels, so that a call that a wrong kernel would take is seen.
"""

import importlib
import itertools

import pytest
import torch

from .conftest import GENERATED, load

#: A feature by its axis: the value of a key that has it.
WITH = {
    "alibi": True,
    "blocksparse": True,
    "softcap": 30.0,
    "sliding_window": 24,
    "sinks": True,
    "modification": "tilt",
}
#: The values of two features that differ from those above, and are features too.
OTHER = {"softcap": 50.0, "sliding_window": 23, "modification": "lean"}
WITHOUT = {
    "alibi": False,
    "blocksparse": False,
    "softcap": None,
    "sliding_window": None,
    "sinks": False,
    "modification": None,
}
COMBINATIONS = [
    frozenset(chosen) for count in range(len(WITH) + 1) for chosen in itertools.combinations(sorted(WITH), count)
]
CACHES = ("auto", "fp8_e4m3", "int8")
HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 32, 8
MODEL = (HEADS, KV_HEADS, SIZE, PAGE, "float16")


def name(features):
    return "-".join(sorted(features)) or "plain"


every_combination = pytest.mark.parametrize("features", COMBINATIONS, ids=map(name, COMBINATIONS))


class Dispatch:
    """A package of its own, its table replaced by rows for some keys. ``launched``: (row, call) of every launch."""

    def __init__(self):
        self.package = load(GENERATED, "pav2_of_the_dispatch_tests")
        self.operator = self.package.operator
        self.select, self.rows, self.keys = map(self.module, ("select", "dispatch_row", "key"))
        self.launched = []
        self.loads = 0
        self.operator.kernel = self.kernel

    def module(self, of):
        return importlib.import_module(f"{self.package.__name__}.runtime.choice.{of}")

    def kernel(self, row, backend, on_gpu, layout=None):
        return lambda call: self.launched.append((row, call))

    def load(self):
        self.loads += 1

    def key(self, features, kv_cache_dtype="auto", **changes):
        """The key of a combination of features."""
        values = {axis: WITH[axis] if axis in features else WITHOUT[axis] for axis in WITH}
        return self.keys.Key(SIZE, HEADS // KV_HEADS, PAGE, "float16", kv_cache_dtype, **{**values, **changes})

    def build(self, *keys):
        """Give the package a table with a kernel for each of ``keys``, and return the answers for models."""
        self.launched.clear()
        tilt = self.rows.Modification("s + slope[h]", "", (("slope", "heads"),))
        self.operator.table = self.select.Table(
            self.rows.Row(
                f"k{number}", "a", key, 64, "a.torch_kernels.k", "", 1000, 0, 16, 64, tilt if key.modification else None
            )
            for number, key in enumerate(keys)
        )
        return self.module("models").Models({"decode": self.operator.table}, self.load)

    def call(self, key):
        """Call the package's operator with exactly what a key asks for; returns the row that served it."""
        self.launched.clear()
        seqs, x = 2, 8 if key.kv_cache_dtype == "auto" else 16
        stored = {"auto": torch.float16, "int8": torch.int8}.get(key.kv_cache_dtype, torch.uint8)
        query = torch.zeros(seqs, HEADS, SIZE, dtype=torch.float16)
        scratch = [torch.zeros(seqs, HEADS, 1), torch.zeros(seqs, HEADS, 1), torch.zeros(seqs, HEADS, 1, SIZE).half()]
        caches = [
            torch.zeros(8, KV_HEADS, SIZE // x, PAGE, x, dtype=stored),
            torch.zeros(8, KV_HEADS, SIZE, PAGE, dtype=stored),
        ]
        self.package.paged_attention_v2(
            *(query.clone(), *scratch, query, *caches, KV_HEADS, 0.1),
            *(torch.zeros(seqs, 4, dtype=torch.int32), torch.tensor([5, 30], dtype=torch.int32), PAGE, 30),
            *(torch.ones(HEADS) if key.alibi else None, key.kv_cache_dtype, 1.0, 1.0),
            *((0, 2, 4, 2 * PAGE, 0) if key.blocksparse else ()),
            softcap=key.softcap,
            sliding_window=key.sliding_window,
            sinks=torch.ones(HEADS) if key.sinks else None,
            modification=key.modification,
            modification_tensors={"slope": torch.ones(HEADS)} if key.modification in served(self) else None,
        )
        ((row, call),) = self.launched
        return row, call


def served(dispatch):
    """The modifications that the table of a package knows."""
    return dispatch.operator.table.modifications


def asked(key):
    """What ``supports``, ``check_model`` and ``prefer_v2`` take for a key, beside the heads: by keyword."""
    return {"kv_cache_dtype": key.kv_cache_dtype, **{axis: getattr(key, axis) for axis in WITH}}


@pytest.fixture(scope="module")
def dispatch():
    return Dispatch()


@every_combination
@pytest.mark.parametrize("cache", CACHES)
def test_the_key_of_a_call_has_exactly_its_features(dispatch, features, cache):
    key = dispatch.key(features, cache)
    dispatch.build(key)
    row, call = dispatch.call(key)
    assert row.key == key
    assert call.softcap == key.softcap and call.sliding_window == key.sliding_window
    assert call.modification == key.modification and len(call.tensors) == ("modification" in features)
    given = call.alibi_slopes is not None, call.sinks is not None, call.sparse is not None
    assert given == (key.alibi, key.sinks, key.blocksparse)


@every_combination
def test_a_kernel_serves_calls_with_its_own_features_only(dispatch, features):
    own = dispatch.key(features)
    models = dispatch.build(own)
    for others in COMBINATIONS:
        key = dispatch.key(others)
        assert models.supports(*MODEL, **asked(key)) == (key == own)
        assert models.prefer_v2(5000, 1, *MODEL, **asked(key)) == (key == own)
        if key == own:
            assert dispatch.call(key)[0].key == own
            continue
        with pytest.raises(dispatch.package.NoKernelError) as raised:
            dispatch.call(key)
        assert not dispatch.launched
        differ = [axis for axis in WITH if getattr(key, axis) != getattr(own, axis)]
        assert all(axis in str(raised.value).split("Nearest")[0].split("differs in")[1] for axis in differ)


@every_combination
def test_a_table_with_all_other_combinations_does_not_serve_the_one_left_out(dispatch, features):
    models = dispatch.build(*(dispatch.key(others) for others in COMBINATIONS if others != features))
    key, loads = dispatch.key(features), dispatch.loads
    assert not models.supports(*MODEL, **asked(key)) and not models.prefer_v2(5000, 1, *MODEL, **asked(key))
    with pytest.raises(dispatch.package.NoKernelError):
        models.check_model(*MODEL, **asked(key))
    assert dispatch.loads == loads, "kernels are compiled for a model that is not served"
    with pytest.raises(dispatch.package.NoKernelError):
        dispatch.call(key)
    assert not dispatch.launched


@every_combination
def test_a_table_with_all_combinations_serves_each_by_its_own_kernel(dispatch, features):
    models = dispatch.build(*map(dispatch.key, COMBINATIONS))
    key, loads = dispatch.key(features), dispatch.loads
    assert dispatch.call(key)[0].key == key
    assert models.supports(*MODEL, **asked(key))
    models.check_model(*MODEL, **asked(key))
    assert dispatch.loads == loads + 1


@pytest.mark.parametrize("axis", WITH)
@pytest.mark.parametrize("table_has_it", [False, True])
def test_a_table_with_or_without_one_feature(dispatch, axis, table_has_it):
    models = dispatch.build(*(dispatch.key(c) for c in COMBINATIONS if (axis in c) == table_has_it))
    for features in COMBINATIONS:
        key = dispatch.key(features)
        assert models.supports(*MODEL, **asked(key)) == ((axis in features) == table_has_it)


@every_combination
def test_other_values_of_a_feature_are_a_miss_too(dispatch, features):
    models = dispatch.build(dispatch.key(features))
    for axis in features & OTHER.keys():
        key = dispatch.key(features, **{axis: OTHER[axis]})
        assert not models.supports(*MODEL, **asked(key))
        with pytest.raises(dispatch.package.NoKernelError):
            dispatch.call(key)


@every_combination
def test_a_short_call_prefers_v2_where_v1_would_drop_a_feature(dispatch, features):
    for cache in CACHES:
        key = dispatch.key(features, cache)
        models = dispatch.build(key)
        dropped = bool(features - {"alibi"}) or cache != "auto"  # V1 of the fork knows ALiBi
        assert models.prefer_v2(10, 1, *MODEL, **asked(key)) == dropped
        assert models.prefer_v2(1001, 1, *MODEL, **asked(key))


def test_defaults_mean_without(dispatch):
    models = dispatch.build(dispatch.key(()))
    assert models.supports(*MODEL) and models.prefer_v2(5000, 1, *MODEL)
    models.check_model(*MODEL)
    for features in COMBINATIONS[1:]:
        models = dispatch.build(dispatch.key(features))
        assert not models.supports(*MODEL) and not models.prefer_v2(5000, 1, *MODEL)
        with pytest.raises(dispatch.package.NoKernelError):
            models.check_model(*MODEL)


def test_a_layout_seen_before_does_not_hide_a_feature(dispatch):
    """The checks remember layouts; one that differs in a feature alone is another one."""
    dispatch.build(*map(dispatch.key, COMBINATIONS))
    for features in (*COMBINATIONS, *reversed(COMBINATIONS)):
        assert dispatch.call(dispatch.key(features))[0].key == dispatch.key(features)
