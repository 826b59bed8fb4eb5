"""Fused kernels that a model lacks cost what it runs instead, whatever the plan asks for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from family_cases import unjudged

import hardware_db
from costmodel.binding import fuses_activation as fuses_on
from costmodel.fusions import activation_has_kernel
from costmodel.layer import block_work
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_args import fuses_activation

H100 = hardware_db.resolve("h100", None)[0]
GPT_OSS = load_model("gpt-oss-20b")
# Quick GELU in experts alone, in a shared expert, in a dense layer.
SHARED = replace(GPT_OSS, moe=replace(GPT_OSS.moe, shared_expert_ffn=2880))
DENSE_FIRST = replace(GPT_OSS, moe=replace(GPT_OSS.moe, dense_first_layers=1))


@pytest.mark.parametrize(
    ("model", "has"),
    [
        (GPT_OSS, True),
        (SHARED, False),
        (DENSE_FIRST, False),
        (replace(GPT_OSS, family="", moe=None), False),
        (load_model("minimax-m3"), False),
        (load_model("llama3-8b"), True),
        (load_model("deepseek-v3"), True),
        (load_model("nemotron4-15b"), False),
    ],
)
def test_quick_gelu_has_a_kernel_in_experts_alone(model, has):
    assert activation_has_kernel(model) == has
    assert fuses_activation(Plan(), model) == has


@pytest.mark.parametrize("model", [GPT_OSS, SHARED, DENSE_FIRST], ids=["experts", "shared", "dense"])
def test_asking_for_a_kernel_that_is_none_gains_nothing(model):
    fused, apart = (
        unjudged(model, Workload(4096, 64), H100, Plan(dp=8, ep=8, bias_activation_fusion=asked)).step_time_s
        for asked in (True, False)
    )
    assert (fused < apart) == activation_has_kernel(model)
    assert fused <= apart


@pytest.mark.parametrize(
    ("stack", "has"), [("nemo-25.02", True), ("nemo-25.04", False), ("nemo-26.06", False)]
)
def test_gelu_of_experts_was_fused_until_kernels_took_the_routers_probabilities(stack, has):
    grok = load_model("grok1-314b")
    assert fuses_on(grok, H100, stack) == has
    fused, apart = (
        unjudged(
            grok, Workload(4096, 64), H100, Plan(dp=8, ep=8, bias_activation_fusion=asked), stack=stack
        ).step_time_s
        for asked in (True, False)
    )
    assert (fused < apart) == has
    assert fuses_on(load_model("llama3-8b"), H100, stack)


def test_a_gate_that_nothing_fuses_keeps_what_pytorch_keeps_of_its_product():
    """Megatron-Core's MLP: act(gate) * (other + glu_linear_offset); FC2's input is the product."""
    torch = pytest.importorskip("torch")
    rows, width = 32, 64
    both = torch.randn(rows, 2 * width, dtype=torch.bfloat16, requires_grad=True) * 1.0
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        gate, other = torch.chunk(both, 2, dim=-1)
        torch.nn.functional.silu(gate) * (other + 0.0)
    model, load = load_model("llama3-8b"), Workload(4096, 64)
    fused, apart = (
        unjudged(model, load, H100, Plan(dp=8, bias_activation_fusion=asked)) for asked in (True, False)
    )
    saved = [
        block_work(SimpleNamespace(**each.values), "mlp", each.features).saved for each in (fused, apart)
    ]
    beside = sum(kept.values()) - both.untyped_storage().nbytes()
    assert saved[0]["activation output"] == 0
    assert saved[1]["activation output"] == beside / (rows * width) * 4096 * model.ffn_hidden
    assert saved[0]["fc1 output"] == saved[1]["fc1 output"]
