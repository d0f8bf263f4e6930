"""What the tests of the extend operator share: cases, calls by keyword, harnesses."""

import importlib

from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.extend.cases import ONE_PARTITION, ExtendCase, copy_outputs, make

HALF = Key(64, 3, 16, "float16", "auto", False, False)
FLOAT = HALF._replace(dtype="float32")
FP8 = HALF._replace(kv_cache_dtype="fp8_e4m3")
WINDOW = FLOAT._replace(sliding_window=20)


def call_of(query_lens=(3, 1), contexts=(20, 33), key=HALF, **options):
    """An extend call on the CPU: new tokens of each sequence, and cached tokens before them."""
    seq_lens = tuple(new + cached for new, cached in zip(query_lens, contexts))
    return make(ExtendCase(key, ONE_PARTITION, seq_lens, query_lens=tuple(query_lens), **options))


def extend(package, call, **changes):
    """Run a call through the operator of a package, and return it with its outputs."""
    call = copy_outputs(call)
    arguments = {name: value for name, value in call._asdict().items() if name not in ("tensors", "read_lengths")}
    arguments |= {"num_kv_heads": call.key_cache.shape[1], "block_size": call.key_cache.shape[3]}
    package.paged_attention_extend(**{**arguments, "kv_cache_dtype": "auto", **changes})
    return call


def kernel_of(package, key):
    """The harness of the PyTorch extend kernel of a key."""
    row = next(row for row in package.extender.table.rows if row.key == key)
    return importlib.import_module("pav2gen.runtime.extend.harness").TorchExtend(package, row)
