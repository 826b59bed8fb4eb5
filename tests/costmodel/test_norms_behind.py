"""Gemma 2 and 3: fused norms behind attention and MLP, scores that a tanh bounds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from family_cases import H100, unjudged

from costmodel.layer import block_work
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.work.attention import unfused_score_bytes_backward, unfused_score_bytes_forward
from costmodel.workload import Workload

TOKENS = 4096
COMPOSED, FLEX = "nemo-26.06", "nemo-26.08"
GEMMA2, GEMMA3 = load_model("gemma2-9b"), load_model("gemma3-4b")


def predicted(model, stack=COMPOSED, seq_len=TOKENS):
    return unjudged(model, Workload(seq_len, 64), H100, Plan(dp=64), stack=stack)


def work(found, block):
    return block_work(SimpleNamespace(**found.values), block, found.features)


@pytest.mark.parametrize("model", [GEMMA2, GEMMA3], ids=lambda model: model.name)
@pytest.mark.parametrize("block", ["attention", "mlp"])
def test_a_norm_behind_a_block_reads_and_writes_its_output_and_keeps_it(model, block):
    hidden = TOKENS * model.hidden
    found, bare = (predicted(each, FLEX) for each in (model, replace(model, norms=None)))
    there, without = (work(each, block) for each in (found, bare))
    norms = [next(each for each in one.streams if each.name == "norm") for one in (there, without)]
    assert norms[0].forward - norms[1].forward == 2 * 2 * hidden
    assert norms[0].backward - norms[1].backward == 1.5 * 2 * 2 * hidden
    assert there.saved["norm input"] - without.saved["norm input"] == 2 * hidden
    assert there.kernels_forward - without.kernels_forward == 1
    assert there.vectors - without.vectors == model.hidden
    assert found.step_time_s > bare.step_time_s


def test_bounded_scores_are_whole_matrices_until_flexattention_takes_them():
    """12 bytes a score forward and 14 backward bound them: tests/costmodel/test_written_norms.py counts both."""
    scores = GEMMA2.num_heads * TOKENS**2
    found, free = predicted(GEMMA2), predicted(replace(GEMMA2, score_cap=None))
    assert work(found, "attention").saved["attention scores"] == (2 + 2) * scores
    assert work(free, "attention").saved["attention scores"] == 0
    x = SimpleNamespace(**found.values)
    assert unfused_score_bytes_forward(x) == (4 + 12) * scores
    assert unfused_score_bytes_backward(x) == (6 + 14) * scores
    by_flex = predicted(GEMMA2, FLEX)
    assert work(by_flex, "attention").saved["attention scores"] == 0
    assert by_flex.allocated_bytes < found.allocated_bytes
    assert free.step_time_s < by_flex.step_time_s < found.step_time_s
