"""Work of recurrent mixers against a count of their products, pair by pair."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from costmodel.amounts import amount_inputs
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.stack import load_stack
from costmodel.work.block import BlockWork
from costmodel.work.mixers import MAMBA_CHUNK, delta, mamba_scan_flops_forward
from costmodel.workload import Workload


@pytest.mark.parametrize(("heads", "width", "state", "groups"), [(128, 64, 128, 8), (16, 80, 256, 1)])
@pytest.mark.parametrize("tp", [1, 4])
def test_mamba_scan_is_its_products_counted_one_by_one(heads, width, state, groups, tp):
    """Masked pairs of a chunk, C B^T for each group and times x for each head; a head's state is written and read.

    The formula takes half a chunk for the pairs, the diagonal makes it (chunk + 1) / 2: below 1 / chunk of the whole.
    """
    x = SimpleNamespace(
        b=2,
        s=4 * MAMBA_CHUNK,
        cp=1,
        tp=tp,
        mamba_heads=heads,
        mamba_dim=width,
        mamba_state=state,
        mamba_groups=groups,
    )
    own_heads, own_groups = heads // tp, max(groups // tp, 1)
    counted = 0
    for _ in range(x.b * x.s // MAMBA_CHUNK):
        for row in range(MAMBA_CHUNK):
            pairs = row + 1
            counted += 2 * pairs * state * own_groups  # C B^T
            counted += 2 * pairs * width * own_heads  # times x
            counted += 2 * 2 * width * state * own_heads  # into the state, and out of it
    found = mamba_scan_flops_forward(x)
    assert counted * (1 - 1 / MAMBA_CHUNK) < found < counted


def delta_work(**changes: float) -> BlockWork:
    """One gated delta net of a rank, and the inputs that it came from."""
    model = load_model("qwen3-next-80b-a3b")
    x, _ = amount_inputs(Plan(), Workload(2048, 4), model)
    return delta(SimpleNamespace(**vars(x) | changes))


def test_a_convolution_that_takes_strides_saves_a_copy_and_keeps_the_projection_whole():
    """Queries, keys (2,048 each) and values (4,096) are convolved; a gate and two numbers a head are projected too."""
    copied, strided = delta_work(), delta_work(strided_delta=1)
    tokens, bytes_each = 2048, 2
    moved = [next(each for each in one.streams if each.name == "copies") for one in (copied, strided)]
    assert moved[0].forward - moved[1].forward == 2 * bytes_each * tokens * 8192
    assert moved[0].backward - moved[1].backward == 2 * bytes_each * tokens * 8192
    assert copied.saved["convolution input"] == bytes_each * tokens * 8192
    assert strided.saved["convolution input"] == bytes_each * tokens * (8192 + 4096 + 2 * 32)


def test_queries_and_keys_are_repeated_where_value_heads_share_them():
    """Qwen3.5 0.8B has 16 value heads for 16 of keys, 128 wide: no copies (gated_delta_net.py, repeat_interleave)."""
    model = load_model("qwen3.5-0.8b")
    x, _ = amount_inputs(Plan(), Workload(2048, 4), model)
    shared = delta(SimpleNamespace(**vars(x) | {"delta_key_heads": x.delta_key_heads / 2}))
    repeated, whole = (
        one.saved["queries, keys, values"] - one.saved["convolution input"] for one in (shared, delta(x))
    )
    assert whole == 0
    assert repeated == 2 * 2 * 2048 * 16 * 128


@pytest.mark.parametrize(
    ("stack", "has"), [("26.04", 0), ("26.06", 1), ("mcore-26.03", 0), ("torchtitan", 0)]
)
def test_which_releases_convolve_strides(stack, has):
    assert load_stack(stack).strided_delta == bool(has)
