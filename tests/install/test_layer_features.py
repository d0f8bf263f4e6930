"""What a layer asks for beside the arguments of vLLM's operators reaches the kernels, and is never left out."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from .fake_package import Answers, tensors

SINKS = torch.ones(24)


class Impl:
    """A backend of this module, which decodes by PagedAttention: see the fixture."""

    def __init__(self, **fields: Any) -> None:
        self.scale = 256**-0.5
        vars(self).update(fields)

    def forward(self, work: Any) -> Any:
        return work()


@pytest.fixture
def make(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a layer's backend, as ``Attention.__init__`` leaves it."""
    monkeypatch.setattr(sys.modules[__name__], "PagedAttention", object, raising=False)

    def make(window: Any = None, layer_window: int | None = None, softcap: float | None = None, **fields: Any) -> Impl:
        impl = Impl(**fields)
        hooks.check_layer(
            impl, num_heads=24, num_kv_heads=4, head_size=256, alibi_slopes=None, logits_soft_cap=softcap,
            per_layer_sliding_window=layer_window,
            cache_config=SimpleNamespace(block_size=16, cache_dtype="auto", sliding_window=window),
        )  # fmt: skip
        return impl

    return make


@pytest.mark.parametrize(
    ("asked", "key", "given"),
    [
        ({}, {}, {}),
        ({"window": 4096}, {"sliding_window": 4096}, {"sliding_window": 4096}),
        ({"window": 4096, "layer_window": 128}, {"sliding_window": 128}, {"sliding_window": 128}),
        ({"softcap": 50.0}, {"softcap": 50.0}, {"softcap": 50.0}),
        ({"softcap": 0.0, "window": 0}, {}, {}),
        ({"sinks": SINKS}, {"sinks": True}, {"sinks": SINKS}),
        (
            {"softcap": 30.0, "window": 8},
            {"softcap": 30.0, "sliding_window": 8},
            {"softcap": 30.0, "sliding_window": 8},
        ),
    ],
)
def test_a_decode_of_the_layer_has_its_features(
    hooks: ModuleType, answers: Answers, make: Any, asked: dict[str, Any], key: dict[str, Any], given: dict[str, Any]
) -> None:
    answers.supported = answers.preferred = True
    impl = make(**asked)
    loaded = answers.asked[0]
    call = {**tensors(), "scale": 1.0, "max_seq_len": 9000}
    assert impl.forward(lambda: hooks.serve_v2(fallback=True, **call)) is True
    names = ("softcap", "sliding_window", "sinks")
    assert {name: loaded[name] for name in names if name in loaded} == key
    assert {name: answers.asked[-1][name] for name in names if name in answers.asked[-1]} == key
    assert {name: answers.ran[0][name] for name in names if name in answers.ran[0]} == given
    hooks.serve_v2(fallback=True, **call)  # outside of the layer
    assert not {*names} & answers.ran[1].keys()


def test_features_end_with_the_layers_forward_also_by_an_error(hooks: ModuleType, make: Any) -> None:
    active = importlib.import_module("pav2_fake.layer_features").active
    one, other = make(window=8), make(softcap=2.0)

    def nested() -> list[Any]:
        inner = other.forward(active)
        return [inner, active()]

    inner, outer = one.forward(nested)
    assert (inner.softcap, inner.sliding_window) == (2.0, None)
    assert (outer.softcap, outer.sliding_window) == (None, 8)
    with pytest.raises(ZeroDivisionError):
        one.forward(lambda: 1 // 0)
    assert active() == importlib.import_module("pav2_fake.layer_features").NONE


def test_a_layer_without_features_is_left_as_it_is(make: Any) -> None:
    assert "forward" not in vars(make())
    assert "forward" in vars(make(window=8))
    assert "forward" in vars(make(scale=144**-0.5))


def test_a_prefix_has_the_features_and_the_scale_of_its_layer(hooks: ModuleType, answers: Answers, make: Any) -> None:
    answers.supported = True
    serve = importlib.import_module("pav2_fake.prefix_hooks").serve_prefix
    impl = make(softcap=50.0, window=64, scale=144**-0.5)
    starts = torch.tensor([0, 1, 2], dtype=torch.int32)
    impl.forward(lambda: serve(own="works", max_query_len=1, query_start_loc=starts, **tensors()))
    (ran,) = answers.ran
    assert (ran["softcap"], ran["sliding_window"], ran["scale"]) == (50.0, 64, 144**-0.5)


def test_a_feature_without_a_kernel_is_a_miss(
    hooks: ModuleType, answers: Answers, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    impl = make(window=4096)
    call = {**tensors(), "scale": 1.0, "max_seq_len": 9000}
    assert impl.forward(lambda: hooks.serve_v2(fallback=True, **call)) is False
    assert answers.ran == []
    assert "stay on vLLM's own path" in caplog.records[0].getMessage()


def test_a_window_that_is_not_a_number_has_no_kernel(answers: Answers, make: Any) -> None:
    make(window=[4096, None])
    assert answers.asked[0]["sliding_window"] == "[4096, None]"


@pytest.mark.parametrize("v2", ["works", "stub"])
@pytest.mark.parametrize("supported", [True, False])
def test_what_vllm_would_leave_out_is_never_left_to_it(
    hooks: ModuleType, answers: Answers, v2: str, supported: bool
) -> None:
    features = importlib.import_module("pav2_fake.layer_features")
    impl = Impl()
    features.wrap_forward(impl, features.Features(softcap=50.0, required=True))
    answers.supported = answers.preferred = supported
    given = {**tensors(), "max_seq_len": 100}
    assert impl.forward(lambda: hooks.choose_v1(True, v1="whole", v2=v2, **given)) is False
    answers.refusal = None if supported else Answers.NoKernelError("none")
    call = lambda: hooks.serve_v2(fallback=v2 == "works", scale=1.0, **given)  # noqa: E731
    if supported:
        assert impl.forward(call) is True
    else:
        with pytest.raises(Answers.NoKernelError):
            impl.forward(call)
