"""The parameter tensors of a modification: their order, and a message for each mistake."""

import pytest
import torch

from pav2gen.runtime.choice.dispatch_row import Modification, Row
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.choice.miss import NoKernelError
from pav2gen.runtime.choice.select import Table
from pav2gen.runtime.operators.modification_tensors import ordered_tensors

BIASED = Modification("s + bias[h] * slope[kvh]", "", (("bias", "heads"), ("slope", "kv_heads")))
KEY = Key(128, 4, 16, "float16", "auto", False, False)
TABLE = Table(
    [
        Row("a", "mine", KEY._replace(modification="biased"), 256, "m", "", 0, 0, 16, 64, BIASED),
        Row("b", "mine", KEY, 256, "m", "", 0, 0, 16, 64),
    ]
)
BIAS, SLOPE = torch.ones(8), torch.zeros(2)


def test_the_order_is_that_of_the_definition():
    assert ordered_tensors(TABLE, "biased", {"slope": SLOPE, "bias": BIAS}) == (BIAS, SLOPE)
    assert ordered_tensors(TABLE, None, None) == ordered_tensors(TABLE, None, {}) == ()


@pytest.mark.parametrize(
    "modification, given, said",
    [
        ("biased", {"bais": BIAS, "slope": SLOPE}, "modification biased has no tensor bais; did you mean bias?"),
        ("biased", {"bias": BIAS, "slope": SLOPE, "x": BIAS}, "biased has no tensor x; it has bias, slope"),
        ("biased", {"bias": BIAS}, "the modification biased needs slope among modification_tensors"),
        ("biased", None, "the modification biased needs bias, slope among modification_tensors"),
        ("biased", {"bias": BIAS, "slope": [1.0]}, "modification_tensors['slope'] must be a tensor, got list"),
        ("biased", [BIAS, SLOPE], "modification_tensors must be a mapping of names to tensors, got list"),
        (None, {"bias": BIAS}, "a call without a modification has no tensor bias"),
    ],
)
def test_a_mistake_is_one_sentence(modification, given, said):
    with pytest.raises(ValueError, match=r"^paged_attention_v2: ") as raised:
        ordered_tensors(TABLE, modification, given)
    assert str(raised.value).endswith(said)


def test_tensors_for_a_modification_that_is_not_built():
    with pytest.raises(NoKernelError, match=r"no kernel has the modification 'baised'; built: biased$"):
        ordered_tensors(TABLE, "baised", {"bias": BIAS})
    assert ordered_tensors(TABLE, "baised", None) == (), "the table then says which spec to change"
