"""Initial weights are those of the model, also where the optimizer's master weights are made from another copy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
parallel_state = pytest.importorskip("megatron.core.parallel_state")

from executor.workers.weights import initialise  # noqa: E402


@pytest.fixture
def config(monkeypatch):
    """Of a model on one rank."""
    alone = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    for name in ("tensor_model", "expert_tensor"):
        monkeypatch.setattr(parallel_state, f"get_{name}_parallel_group", lambda: alone)
    monkeypatch.setattr(parallel_state, "get_expert_model_parallel_rank", lambda: 0)
    return SimpleNamespace(
        num_moe_experts=None,
        expert_model_parallel_size=1,
        init_method_std=0.02,
        num_layers=2,
        gated_linear_unit=False,
    )


def chunk() -> torch.nn.Module:
    """One matrix, as a model holds it."""
    made = torch.nn.Module()
    made.linear_qkv = torch.nn.Linear(8, 8, bias=False)
    made.share_embeddings_and_output_weights = False
    return made


def test_what_an_fp8_weight_was_made_from_is_the_models_too(config):
    """Transformer Engine keeps it with the weight, and Megatron-Core's optimizer starts its master weights there."""
    plain, quantised = chunk(), chunk()
    quantised.linear_qkv.weight._high_precision_init_val = torch.zeros(8, 8, dtype=torch.bfloat16)
    for each in (plain, quantised):
        initialise(each, config)
    drawn = plain.linear_qkv.weight.detach()
    assert drawn.std() == pytest.approx(0.02, rel=0.3)
    assert torch.equal(quantised.linear_qkv.weight.detach(), drawn)
    assert torch.equal(quantised.linear_qkv.weight._high_precision_init_val, drawn.bfloat16())
