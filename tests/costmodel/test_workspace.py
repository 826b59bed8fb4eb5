"""What a rank holds for a moment: of the layer being computed, of the embedding's gradient, of heads' losses."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster

TOKENS, HIDDEN, FFN = 4096, 4096, 14336
# Of the 8B model: gated, no ties, 32 heads and 8 pairs of keys and values of 128.
APART = {"gradient_accumulation_fusion": False}


def values(model: str = "llama3-8b", stack: str = "nemo-26.06", **knobs: Any) -> dict[str, float]:
    plan = Plan(**{"fused_cross_entropy": False, **knobs})
    workload = Workload(TOKENS, plan.dp * plan.micro_batch * max(4, 2 * plan.pp))
    found = predict(load_model(model), workload, load_cluster("dgx-b200"), plan, stack, judged=False)
    return dict(found.values)


def test_an_mlp_is_fullest_at_its_activation_function():
    """The gradient of FC1's output, whose other half takes FC2's input's place, beside the gradient that came in."""
    found = values()
    assert found["mlp_workspace"] == 2 * TOKENS * (HIDDEN + 2 * FFN)
    split = values(tp=8, sequence_parallel=True)
    # With little of FC1 on a rank it is the gathered input of FC1 and its gradient, less FC2's input.
    assert split["mlp_workspace"] == 2 * TOKENS * (HIDDEN / 8 + 2 * HIDDEN - FFN / 8)


def test_weight_gradients_that_no_product_adds_stand_as_a_whole():
    """FC1's beside its input's gradient, without FC2's input."""
    found = values(cp=8, **APART)
    assert found["mlp_workspace"] == 2 * TOKENS / 8 * (HIDDEN + HIDDEN - FFN) + 2 * 2 * FFN * HIDDEN
    # Those of all experts of a rank at once, and none under FSDP, which has its own.
    wide, plain = (values("qwen3-30b-a3b", ep=4, dp=4, cp=8, **knobs) for knobs in (APART, {}))
    more = wide["experts_workspace"] - plain["experts_workspace"]
    model = load_model("qwen3-30b-a3b")
    assert model.moe is not None
    whole = 2 * 32 * 2 * model.moe.expert_ffn * model.hidden
    assert 0 < more < whole
    sharded = {"fsdp": True, "zero_stage": 3, "dp": 8}
    assert values(**sharded, **APART)["mlp_workspace"] == values(**sharded)["mlp_workspace"]


def test_full_recompute_has_one_layer_and_its_output():
    found = values(pp=2, recompute="full")
    layer = found["attention_activation_bytes"] + found["mlp_activation_bytes"]
    assert found["widest_layer"] == layer
    assert found["layer_workspace"] == layer + 2 * TOKENS * HIDDEN + found["mlp_workspace"]


def test_a_hybrid_has_blocks_one_by_one():
    found = values("nemotronh-8b")
    kept = [found[f"{name}_activation_bytes"] for name in ("attention", "mlp", "mamba")]
    assert found["widest_layer"] == max(kept)


def test_a_tied_table_has_two_gradients_and_their_sum():
    """On one stage, with full recompute, which leaves little that could be freed by then."""
    model = load_model("qwen2.5-0.5b")
    table = 2 * model.vocab * model.hidden
    tied, untied = (values(name, dp=8, recompute="full") for name in ("qwen2.5-0.5b", "llama3-8b"))
    incoming = 2 * TOKENS * model.hidden
    freed = model.num_layers * incoming
    beyond = 2 * table + incoming - freed
    logits = tied["memory_first_logits"]
    assert tied["memory_first_workspace"] == pytest.approx(max(beyond - logits, 0), rel=1e-3)
    # Gradients of the output layer's own wait for the embedding's, and are added to in place: two tables as well.
    apart = values("qwen2.5-0.5b", dp=8, recompute="full", **APART)
    loss = apart["memory_first_logits"]
    assert apart["memory_first_workspace"] == pytest.approx(max(beyond - loss, 0), rel=1e-3)
    # Nothing ties these: one gradient, which lies under the logits.
    assert untied["memory_first_workspace"] == 0


def test_losses_of_mtp_heads_leave_their_softmax_and_until_0_16_their_logits():
    sizes = {"ep": 8, "dp": 8}
    old, new = (values("deepseek-v3", stack, **sizes) for stack in ("mcore-26.01", "nemo-26.08"))
    model = load_model("deepseek-v3")
    padded = -(-model.vocab // 128) * 128
    assert old["memory_first_logits"] - new["memory_first_logits"] == 2 * TOKENS * padded
    fused, apart = (
        values("deepseek-v3", "nemo-26.08", **sizes, fused_cross_entropy=on) for on in (True, False)
    )
    # 6 and 4 bytes a logit against 2 and 2: a fused loss has its gradient alone.
    assert apart["memory_first_logits"] - fused["memory_first_logits"] == (10 - 4) * TOKENS * padded


def test_gradients_that_ranks_share_are_copied_flat():
    """Of latents' down-projections and routers, when activations are gone; not without sequence parallelism."""
    sizes: dict[str, Any] = {
        "tp": 8,
        "cp": 8,
        "ep": 64,
        "dp": 64,
        "cp_comm_type": "all_gather",
        "recompute": "full",
    }
    split, whole = (values("deepseek-v2", **sizes, sequence_parallel=on) for on in (True, False))
    model = load_model("deepseek-v2")
    assert model.mla is not None
    assert model.moe is not None
    mla = model.hidden * (model.mla.q_lora_rank + model.mla.kv_lora_rank + model.mla.qk_pos_emb_head_dim)
    one = mla + model.hidden * (2 + model.moe.num_experts)  # two norms and a router
    held = sum(split[f"memory_first_{name}"] for name in ("activations", "logits", "workspace"))
    wanted = 4 * (model.num_layers * one - model.hidden * model.moe.num_experts) - held
    assert split["memory_first_flat_gradients"] == pytest.approx(wanted, rel=1e-3)
    assert whole["memory_first_flat_gradients"] == 0


def test_dropout_keeps_a_mask_of_the_embedding():
    """A byte an element of each micro-batch in flight, on the first stage alone."""
    masked, plain = (values(pp=2, recompute="full", dropout=on) for on in (True, False))
    more = [
        masked[f"memory_{stage}_activations"] - plain[f"memory_{stage}_activations"]
        for stage in ("first", "last")
    ]
    assert more == [2 * TOKENS * HIDDEN, 0]


@pytest.mark.parametrize(
    ("stack", "fused", "each"), [("torchtitan-24.12", False, 2), ("torchtitan-24.12", True, 0)]
)
def test_a_loss_that_nothing_compiles_leaves_the_place_of_its_logits_reserved(stack, fused, each):
    """Freed before the backward pass, whose FP32 tensors do not fit there; see published runs of torchtitan 24.12."""
    found = values(stack=stack, fused_cross_entropy=fused, dp=8)
    held = sum(found[f"memory_first_{name}"] for name in ("activations", "logits", "workspace"))
    lost = found["fragmentation"] * (1 - 0.5 * found["segments"]) + 0.15 * (1 - found["segments"])
    place = found["memory_first_fragmentation"] - lost * held
    vocab = load_model("llama3-8b").vocab
    assert place == pytest.approx(each * TOKENS * vocab, rel=1e-6, abs=1.0)
    assert values(fused_cross_entropy=fused)["memory_first_fragmentation"] < 2 * TOKENS * vocab


def test_rows_times_probabilities_are_differentiated_in_fp32_where_nothing_fuses_them():
    """Twelve bytes an element of FC2's input against four of a gated function that is fused."""
    model = load_model("qwen3-30b-a3b")
    assert model.moe is not None
    rows = TOKENS * model.moe.topk
    sizes: dict[str, Any] = {"ep": 8, "dp": 8, "pp": 2, "moe_dispatcher": "deepep"}
    fused, apart = (
        values(model.name, **sizes, bias_activation_fusion=on)["experts_workspace"] for on in (True, False)
    )
    incoming = 2 * TOKENS * model.hidden
    assert apart == incoming + 12 * rows * model.moe.expert_ffn > fused


def test_pytorchs_pipelines_have_buffers_for_every_micro_batch_of_a_step():
    """One for each input and gradient that comes in, and outputs that go out until their backward pass."""
    sizes: dict[str, Any] = {"pp": 4, "recompute": "full"}
    few, many = (
        predict(
            load_model("llama3-8b"),
            Workload(TOKENS, number),
            load_cluster("dgx-b200"),
            Plan(**sizes),
            "torchtitan",
            judged=False,
        ).values
        for number in (8, 16)
    )
    state = 2 * TOKENS * HIDDEN
    more = [
        many[f"memory_{stage}_activations"] - few[f"memory_{stage}_activations"]
        for stage in ("first", "second", "last")
    ]
    assert more == [8 * state, 16 * state, 8 * state]
    # Megatron-Core receives into a new tensor and frees what it has sent.
    own = [
        predict(
            load_model("llama3-8b"),
            Workload(TOKENS, number),
            load_cluster("dgx-b200"),
            Plan(**sizes),
            "nemo",
            judged=False,
        ).values["memory_first_activations"]
        for number in (8, 16)
    ]
    assert own[0] == own[1]
