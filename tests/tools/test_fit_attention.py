"""Constants of attention kernels: a planted tail of thread blocks is recovered, whatever the rates' scale."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)

import fit_attention  # noqa: E402

from costmodel.timing import kernels  # noqa: E402

HEADS = np.array([8.0, 16.0, 32.0, 64.0, 128.0])


@given(tail=st.floats(0.05, 10), scale=st.floats(0.1, 2))
def test_a_planted_tail_is_recovered(tail, scale):
    waves = kernels.query_waves(fit_attention.TAIL_TOKENS, HEADS, fit_attention.B200_SMS)
    assert fit_attention.fit_tail(HEADS, scale / (1 + tail / waves)) == pytest.approx(tail, rel=0.01)


def test_both_passes_are_read_from_the_printed_row(tmp_path):
    """As the table of quantities prints it: heads in the quantity, forward in the value, backward in the note."""
    table = tmp_path / "quantities.csv"
    table.write_text(
        "id,category,hardware,quantity,x,value,unit,source,evidence_grade,note\n"
        'Q172,attention,B200,"efficiency by heads 8/16/32 (s4096)",,.31/.58/~.73,fraction,x,primary,bwd .8/.8/.8\n'
    )
    found = fit_attention.read_tails(table)
    assert found["fwd"] == pytest.approx(fit_attention.fit_tail(HEADS[:3], np.array([0.31, 0.58, 0.73])))
    assert found["bwd"] == pytest.approx(0, abs=0.01)
