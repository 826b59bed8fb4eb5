"""What latent attention and routers move, keep and repeat, in a recipe's format and in the model's own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.work.mla import head_copies
from costmodel.workload import Workload

GB200 = hardware_db.load_cluster("gb200-nvl72")
DEEPSEEK = load_model("deepseek-v3")
BLOCKS = ("mla", "experts")
TOKENS = 4096


def deepseek(**knobs: Any) -> Prediction:
    plan = Plan(**{"dp": 64, "ep": 64, "precision": "mxfp8", "moe_dispatcher": "hybridep"} | knobs)
    return predict(DEEPSEEK, Workload(TOKENS, 64), GB200, plan)


@pytest.mark.parametrize(("split", "elements"), [(0, 576), (1, 960)])
def test_heads_are_put_together_as_the_kernels_move_them(split, elements):
    """DeepSeek-V3's heads: 128 + 64 for queries and keys, 128 for values."""
    x = SimpleNamespace(d_nope=128, d_rope=64, d_v=128, rope_split=split)
    assert head_copies(x) == elements


@pytest.mark.parametrize(
    ("precision", "latents", "router"), [("mxfp8", 2 * 1.03125, 2), ("fp8-delayed", 2, 2 + 1), ("bf16", 2, 2)]
)
def test_every_reader_of_a_norms_output_keeps_its_own_format(precision, latents, router):
    """What recompute of norms frees: two projections' copies, and the router's 16 bits.

    Shared experts keep a copy with delayed scaling alone: Megatron-Core 0.14 to 0.19.2, shared_experts.py. In BF16 all
    of them keep one tensor.
    """
    plain, again = (
        deepseek(
            recompute="selective" if names else "none", recompute_modules=names, precision=precision
        ).values
        for names in ((), ("layernorm",))
    )
    freed = {
        block: plain[f"{block}_activation_bytes"] - again[f"{block}_activation_bytes"] for block in BLOCKS
    }
    elements = TOKENS * DEEPSEEK.hidden
    assert freed == pytest.approx({"mla": latents * elements, "experts": router * elements})


def test_recompute_of_up_projections_rotates_again():
    plain, again = (
        deepseek(recompute="selective" if names else "none", recompute_modules=names, precision="bf16").values
        for names in ((), ("mla_up_proj",))
    )
    repeated = again["mla_recompute"] - plain["mla_recompute"]
    parts = ("q_up_forward", "kv_up_forward", "heads_forward", "rotary_forward")
    assert repeated == pytest.approx(sum(again[f"mla_{part}"] for part in parts))


def test_recompute_of_experts_leaves_norm_and_residual_out():
    found = deepseek(recompute="selective", recompute_modules=("moe",), precision="bf16").values
    outside = found["experts_norm_forward"] + found["experts_residual_forward"]
    inside = found["experts_forward"] - outside
    exchanged = found["dispatch_combine"] + found["expert_wait"]
    assert found["experts_recompute"] == pytest.approx(inside)
    assert found["experts_backward_time"] >= inside + exchanged


@pytest.mark.parametrize(
    ("knob", "before", "since"),
    [
        ("moe_router_fusion", ("nemo-25.07", "mcore-25.04"), ("nemo-25.09", "mcore-25.11")),
        ("moe_permute_fusion", ("nemo-24.12", "mcore-24.07"), ("nemo-25.02", "mcore-25.04")),
    ],
)
def test_fusions_of_experts_begin_with_their_release(knob, before, since):
    """Megatron-Core has the router's from 0.14 and the permutation's from 0.11; a plan cannot have them earlier."""
    workload, plan = Workload(TOKENS, 64), Plan(dp=64, ep=8)
    cluster = hardware_db.load_cluster("dgx-h100")

    def gain(stack: str) -> float:
        apart, fused = (
            predict(DEEPSEEK, workload, cluster, replace(plan, **{knob: on}), stack).values[
                "experts_kernels_forward"
            ]
            for on in (False, True)
        )
        return apart - fused

    assert [gain(stack) for stack in before] == [0, 0]
    assert all(gain(stack) > 0 for stack in since)
