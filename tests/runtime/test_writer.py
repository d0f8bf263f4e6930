"""Cache writers beyond what generated tests say of each: every 16-bit number, refusals, the table, cost in PyTorch."""

import copy
import importlib

import pytest
import torch

from pav2gen.commands.build import BuildOptions, build
from pav2gen.runtime.choice.key import CacheKey
from pav2gen.runtime.testing import oracle, probe
from pav2gen.runtime.writer.calibration import kv_scales
from pav2gen.runtime.writer.cases import WriteCase, make

from .conftest import load, settle

SPEC = """
schema: 1
name: every
target: bi-v100
model: {num_heads: 4, num_kv_heads: 4, max_seq_len: 4096}
axes:
  head_size: 256
  gqa_ratio: 1
  dtype: [float16, bfloat16]
  kv_cache_dtype: [fp8_e4m3, fp8_e5m2, int8]
operators: [decode, cache]
backends: [torch, cuda]
"""
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
FORMATS = ("fp8_e4m3", "fp8_e5m2", "int8")


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """A package with a writer for each pair of a 16-bit dtype and a compressed one."""
    root = tmp_path_factory.mktemp("writers")
    (root / "every.yaml").write_text(SPEC)
    build([root / "every.yaml"], BuildOptions(root / "package"))
    return load(settle(root / "package"), "pav2_of_the_writer_tests")


def harness(every, dtype, kv_cache_dtype, kind, *args):
    """The harness of a writer: ``kind`` is TorchWriter or CudaWriter."""
    rows = [row for row in every.kernels.rows if row.operator == "cache"]
    row = next(row for row in rows if (row.key.dtype, row.key.kv_cache_dtype) == (dtype, kv_cache_dtype))
    module = importlib.import_module(f"{every.__name__}.runtime.writer.harness")
    return getattr(module, kind)(every, row, *args, *([rows] if args else []))


def all_numbers(dtype):
    """Every number of 16 bits: [64 tokens, 4 heads, 256]."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype]).view(64, 4, 256)


def nearest_by_search(values, kv_cache_dtype):
    """The codes of float32 ``values``, by comparing with the values of the codes around; NaN is left to the caller."""
    if kv_cache_dtype == "int8":
        codes = torch.arange(-127, 128)
        table = codes.double()
    else:
        codes = torch.arange(256)
        table = torch.tensor([oracle.fp8_value(int(code), kv_cache_dtype) for code in codes], dtype=torch.float64)
        codes, table = codes[table.isfinite()], table[table.isfinite()]
    table, order = table.sort()
    codes = codes[order]
    values = values.double().clamp(table[0], table[-1])
    above = torch.searchsorted(table, values)  # the first that is not below
    places = (above[:, None] + torch.arange(-2, 3)).clamp_(0, len(table) - 1)  # two on each side: zero has two codes
    near, codes = table[places], codes[places]
    distance = (values[:, None] - near).abs()
    wrong_sign = torch.signbit(values)[:, None] != torch.signbit(near)  # of the two zeros, the one of its sign
    tied = distance == distance.min(1, keepdim=True).values
    two_zeros = kv_cache_dtype != "int8"
    rank = (codes % 2 != 0).double() + 2 * (wrong_sign & (near == 0) & two_zeros).double()
    return codes.gather(1, torch.where(tied, rank, torch.inf).argmin(1, keepdim=True)).squeeze(1)


@pytest.mark.parametrize("kv_cache_dtype", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.0117])
def test_every_number_of_16_bits(every, dtype, kv_cache_dtype, scale):
    numbers = all_numbers(dtype)
    key = CacheKey(256, 16, dtype, kv_cache_dtype)
    write = make(WriteCase(key, range(64), kv_heads=4, scales=(scale, scale)))._replace(key=numbers, value=numbers)
    kernels = [
        harness(every, dtype, kv_cache_dtype, "TorchWriter"),
        harness(every, dtype, kv_cache_dtype, "CudaWriter", "warp64"),
    ]
    divided = (numbers.float() / torch.tensor(scale)).flatten()
    truth = nearest_by_search(divided.nan_to_num(0.0, torch.inf, -torch.inf), kv_cache_dtype)
    for kernel in kernels:
        done = kernel.run(write)
        stored_values = done.value_cache[:4].permute(0, 3, 1, 2).reshape(-1)
        stored_keys = done.key_cache[:4].permute(0, 3, 1, 2, 4).reshape(-1)
        assert torch.equal(stored_keys, stored_values)
        codes = stored_keys.long()
        nan = divided.isnan()
        assert torch.equal(codes[~nan], truth[~nan])
        values = oracle.decode(stored_keys[nan], kv_cache_dtype, 1.0)
        assert (values == 0).all() if kv_cache_dtype == "int8" else values.isnan().all()


def test_the_oracle_s_codes_are_those_of_the_search():
    numbers = torch.randn(20000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 20000)
    for kv_cache_dtype in FORMATS:
        found = oracle.nearest_codes(numbers.double(), kv_cache_dtype).long()
        assert torch.equal(found, nearest_by_search(numbers, kv_cache_dtype))


def arguments(**changes):
    """A good call of ``reshape_and_cache``, with changes."""
    write = make(WriteCase(CacheKey(256, 16, "float16", "fp8_e4m3"), (1, 18, -1), kv_heads=4))
    good = {**write._asdict(), "kv_cache_dtype": "fp8", **changes}
    names = ("key", "value", "key_cache", "value_cache", "slot_mapping", "kv_cache_dtype", "k_scale", "v_scale")
    return [good[name] for name in names]


GOOD = dict(zip(("key", "value", "key_cache", "value_cache", "slot_mapping"), arguments()))
REFUSED = {
    "an unknown cache dtype": ({"kv_cache_dtype": "fp4"}, "is not one of auto, fp8"),
    "a key that is none": ({"key": None}, "key must be a tensor, got None"),
    "slots that are none": ({"slot_mapping": None}, "slot_mapping must be a tensor"),
    "a key in 2 dimensions": ({"key": GOOD["key"].flatten(1)}, "key must be [tokens, kv heads, head size]"),
    "a value of another dtype": ({"value": GOOD["value"].float()}, "value must be like key, float16 [3, 4, 256]"),
    "heads with gaps": ({"key": torch.zeros(3, 4, 512).half()[:, :, :256]}, "must be contiguous in key"),
    "an int8 cache for fp8": ({"key_cache": GOOD["key_cache"].view(torch.int8)}, "key_cache must be uint8"),
    "a cache of other heads": ({"key_cache": GOOD["key_cache"][:, :2]}, "key_cache must be [blocks, 4, 256 / 16"),
    "a value cache of other blocks": ({"value_cache": GOOD["value_cache"][:3]}, "value_cache must be [5, 4, 256, 16]"),
    "a page with gaps": ({"value_cache": torch.zeros(5, 4, 256, 32).byte()[..., :16]}, "page of a head"),
    "slots in a list": ({"slot_mapping": [0, 1, 2]}, "slot_mapping must be a tensor, got list"),
    "a scale of 0": ({"k_scale": 0.0}, "k_scale must be positive and finite in float32, got 0.0"),
    "a scale as a text": ({"v_scale": "1"}, "v_scale must be a number or a float32 tensor, got the str"),
    "slots in 16 bits": ({"slot_mapping": torch.zeros(3).short()}, "must be contiguous int64 or int32 [3]"),
    "fewer slots than tokens": ({"slot_mapping": torch.zeros(2).long()}, "int64 or int32 [3], got int64 [2]"),
    "scales of too many heads": ({"k_scale": torch.ones(5)}, "one float32 element or contiguous float32 [4]"),
    "a scale in half": ({"v_scale": torch.ones(4).half()}, "v_scale must be a float"),
    "a cache elsewhere": ({"key_cache": GOOD["key_cache"].to("meta")}, "on one device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(every, name):
    changes, sentence = REFUSED[name]
    if name == "a cache elsewhere":
        with pytest.raises(ValueError, match=sentence):
            every.reshape_and_cache(*arguments(**changes))
        return
    before = copy.deepcopy(GOOD["value_cache"])
    with pytest.raises(ValueError, match=r"^reshape_and_cache: ") as raised:
        every.reshape_and_cache(*arguments(**changes))
    assert sentence in str(raised.value) and "\n" not in str(raised.value)
    assert torch.equal(before, GOOD["value_cache"])


def test_a_shape_that_no_writer_serves_is_a_miss(every, package):
    call = arguments(kv_cache_dtype="auto")
    call[2] = torch.zeros(5, 4, 32, 16, 8).half()
    call[3] = torch.zeros(5, 4, 256, 16).half()
    with pytest.raises(package.NoKernelError.__mro__[1], match=r"kv_cache_dtype auto \(built: .*fp8_e4m3"):
        every.reshape_and_cache(*call)


def test_an_unknown_backend_is_refused(every):
    with pytest.raises(ValueError, match=r"^reshape_and_cache: backend 'triton' is neither"):
        every.reshape_and_cache(*arguments(), backend="triton")


def test_no_library_no_cuda(every):
    libraries, every.kernels.libraries = every.kernels.libraries, {}
    try:
        with pytest.raises(RuntimeError, match=r'call load\("host"\) first'):
            every.reshape_and_cache(*arguments(), backend="cuda")
    finally:
        every.kernels.libraries = libraries


def test_no_tokens_write_nothing(every):
    call = arguments()
    for i in (0, 1, 4):
        call[i] = call[i][:0]
    before = call[2].clone()
    every.reshape_and_cache(*call)
    assert torch.equal(call[2], before)


def test_the_operator_is_known_to_torch(every):
    write = make(WriteCase(CacheKey(256, 16, "float16", "int8"), (1, 18, -1), kv_heads=4))
    args = (*write[:5], "int8", 1.0, 1.0, None, torch.ones(4), "")
    results = torch.library.opcheck(every.writer.op, args, test_utils=("test_schema", "test_faketensor"))
    assert set(results.values()) == {"SUCCESS"}


def test_supports_asks_for_an_operator(every, package):
    shape = (4, 4, 256, 16, torch.float16)
    assert every.supports(*shape, "int8", operator="cache") and every.supports(*shape, "int8")
    assert every.supports(40, 4, 256, 16, "float16", "fp8", alibi=True, operator="cache")  # nothing to the writer
    assert not every.supports(*shape, "auto", operator="cache") and not every.supports(*shape, operator="prefill")
    assert package.supports(24, 4, 256, 16, torch.float16, "int8", operator="cache")


def test_workspace_and_calls_do_not_grow_with_the_tokens(every):
    kernel = harness(every, "float16", "fp8_e4m3", "TorchWriter")
    long = make(kernel.case(range(8192), blocks=512, kv_heads=4))
    held = probe.peak_bytes(lambda: kernel.module.reshape_and_cache(long))
    assert held <= kernel.module.CPU_BYTES <= 16 << 20
    chunk = kernel.module.CPU_BYTES // (kernel.module.TOKEN_BYTES + 4 * kernel.module.HEAD_BYTES) - 1
    counts = [kernel.count_calls(kernel.case(range(n * chunk), blocks=512, kv_heads=4)) for n in (1, 2, 3)]
    assert counts[2] - counts[1] == counts[1] - counts[0] < 50


def test_what_the_layout_costs_a_token_that_is_written_alone(every):
    """A sector of 32 bytes holds one grain of a key, and a value's elements are 16 slots apart."""
    kernel = harness(every, "float16", "fp8_e4m3", "CheckedWriter", "warp64")
    kernel.run(make(kernel.case([21], kv_heads=4)))
    keys, values = (kernel.report.buffers[name].stores for name in ("key_cache", "value_cache"))
    assert keys.bytes == values.bytes == 4 * 256
    assert (32 * keys.sectors_32 / keys.bytes, 32 * values.sectors_32 / values.bytes) == (2, 16)


def test_scales_of_each_head_map_its_peak_to_the_largest_code():
    key = torch.tensor([[[1.0, -3.0], [0.0, 0.0]], [[2.0, 0.5], [0.0, 0.0]]])
    for kv_cache_dtype, largest in (("int8", 127), ("fp8", 448), ("fp8_e5m2", 57344)):
        k_scale, v_scale = kv_scales(key, key.half() * 2, kv_cache_dtype)
        assert torch.equal(k_scale, torch.tensor([3.0 / largest, 1.0])) and k_scale.dtype == torch.float32
        assert torch.equal(v_scale, torch.tensor([6.0 / largest, 1.0]))


@pytest.mark.parametrize(
    "key, kv_cache_dtype, sentence",
    [
        (torch.ones(2, 1, 4), "auto", "of kv_cache_dtype auto has no scales"),
        (torch.ones(2, 4), "int8", "key must be [tokens, kv heads, head size] of floating-point numbers"),
        (torch.ones(0, 1, 4), "int8", "key must have at least one token, KV head and element, got float32 [0, 1, 4]"),
        ([1], "int8", "key must be a tensor, got a list"),
        (torch.ones(2, 2, 4), "int8", "key has 2 KV heads and value has 1"),
        (torch.tensor([[[float("nan")]]]), "fp8", "key has values that are not finite"),
    ],
)
def test_samples_without_scales_are_refused(key, kv_cache_dtype, sentence):
    with pytest.raises(ValueError, match=r"^kv_scales: ") as raised:
        kv_scales(key, torch.ones(2, 1, 4), kv_cache_dtype)
    assert sentence in str(raised.value)
