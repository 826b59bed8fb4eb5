"""Work of recurrent mixers against a count of their products, pair by pair."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from costmodel.work.mixers import MAMBA_CHUNK, mamba_scan_flops_forward


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
