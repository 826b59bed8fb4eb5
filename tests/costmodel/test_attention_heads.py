"""Attention kernels take the time that cuDNN's were measured to: heads of MLA, of 64 and 256, sliding windows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import hardware_db
from costmodel.binding import bind
from costmodel.model_registry import load_model
from costmodel.timing import kernels
from costmodel.work.mla import core_backward_factor
from costmodel.workload import Workload

BLACKWELL_SMS = 148


def core_ms(cluster, model, name, flops, keys, width, heads, seq, window=False):
    """Time of one kernel by the constants of a cluster, outside any step. [ms]

    flops: of the forward pass [FLOP]; keys: that a query meets, mean; heads: of queries, of all sequences [1].
    """
    bound = bind(load_model(model), Workload(seq, 8), hardware_db.load_cluster(cluster), "bf16")
    value = {
        short: bound[f"attention_{name}_{short}"].value
        for short in ("fraction", "half", "half_window", "half_dim", "wide", "tail")
    }
    seconds = kernels.attention_time(
        flops,
        2 * keys,
        width,
        peak=bound["gpu_peak"].value,
        fraction=value["fraction"],
        half_seq=value["half_window" if window else "half"],
        half_dim=value["half_dim"],
        wide=value["wide"],
        launch=0.0,
        waves=kernels.query_waves(seq, heads, BLACKWELL_SMS),
        tail=value["tail"],
    )
    return 1e3 * seconds


@pytest.mark.parametrize(
    ("cluster", "name", "seq", "measured"),
    [
        # cudnn-frontend's table, dsv3: two sequences, 128 heads of 192 for queries and 128 for values. [ms]
        ("gb200-nvl72", "forward", 8192, 3.47),
        ("gb200-nvl72", "backward", 8192, 11.984),
        ("gb300-nvl72", "forward", 8192, 3.013),
        ("gb300-nvl72", "backward", 8192, 11.074),
    ],
)
def test_latent_attention_takes_its_own_kernels_time(cluster, name, seq, measured):
    flops = 4 * 2 * seq * (seq / 2) * 128 * 160
    if name == "backward":
        flops *= core_backward_factor(SimpleNamespace(d_nope=128, d_rope=64, d_v=128))
    found = core_ms(cluster, "deepseek-v3", name, flops, seq / 2, 160, 2 * 128, seq)
    assert found == pytest.approx(measured, rel=0.08)


def test_five_products_of_like_heads_are_two_and_a_half_times_the_forward_pass():
    assert core_backward_factor(SimpleNamespace(d_nope=96, d_rope=32, d_v=128)) == 2.5


@pytest.mark.parametrize(
    ("width", "heads", "name", "measured"),
    [
        # FlashAttention-3's figures, cuDNN on H100: 16,384 tokens in all, hidden size 2,048. [TFLOP/s]
        (256, 8, "forward", {2048: 450, 4096: 483, 8192: 497}),
        (64, 32, "forward", {4096: 0.725 * 591, 8192: 0.725 * 644}),
    ],
)
def test_heads_narrower_and_wider_than_128_run_slower(width, heads, name, measured):
    for seq, rate in measured.items():
        flops = 4 * 16384 * (seq / 2) * heads * width
        found = core_ms("dgx-h100", "llama3-8b", name, flops, seq / 2, width, heads * 16384 // seq, seq)
        assert flops / found / 1e9 == pytest.approx(rate, rel=0.12)


@pytest.mark.parametrize(("name", "measured"), [("forward", 0.202), ("backward", 0.442)])
def test_a_window_of_128_tokens_costs_several_times_its_keys(name, measured):
    """cudnn-frontend's table, gpt_oss on GB300: two sequences of 4,096 tokens, 128 heads of 64. [ms]"""
    keys = 128 - 128**2 / (2 * 4096)
    flops = 4 * 2 * 4096 * keys * 128 * 64 * (2.5 if name == "backward" else 1)
    found = core_ms("gb300-nvl72", "gpt-oss-120b", name, flops, keys, 64, 2 * 128, 4096, window=True)
    assert found == pytest.approx(measured, rel=0.05)
