"""Arguments of early Megatron-LM, read by their names of today."""

from __future__ import annotations

import pytest

from executor.export.megatron_lm_read import reading

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 4096 --global-batch-size 64 --bf16 "
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "--checkpoint-activations",
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        ),
        (
            "--checkpoint-activations --checkpoint-num-layers 2",
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        ),
        (
            "--activations-checkpoint-method block --activations-checkpoint-num-layers 4",
            "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
        ),
        ("--fp8-hybrid", "--fp8-format hybrid --fp8-recipe delayed"),
    ],
)
def test_arguments_of_early_megatron_lm_mean_what_they_did(old, new):
    """Full recompute by its old name was no recompute, without a word: 37.8 s for 51.3 s of 175B on 512 A100."""
    then, now = (reading(LLAMA + each) for each in (old, new))
    assert then.knobs == now.knobs != reading(LLAMA).knobs
    assert any("newer Megatron-LM does not take it" in line for line in then.otherwise)
    assert not then.unread
    assert not any("does not take it" in line for line in now.otherwise)


def test_no_unknown_flag_hides_behind_the_beginning_of_a_known_one():
    for flag in ("--checkpoint-activation-foo", "--checkpoint-num-layers 2"):
        assert reading(LLAMA + flag).unread == (flag,)
