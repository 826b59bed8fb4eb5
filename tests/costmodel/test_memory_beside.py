"""What stands beside states and activations: logits at the loss, stand-ins for gradients, what FSDP holds, graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.work.activations import logits
from costmodel.workload import Workload
from hardware_db import load_cluster

PER_OP: dict[str, Any] = {"recompute": "selective", "recompute_modules": ("layernorm", "activation", "ops")}
FSDP: dict[str, Any] = {"fsdp": True, "zero_stage": 3, "dp": 8}


def run(
    model: str = "llama3-8b",
    stack: str = "nemo-26.06",
    cluster: str = "dgx-b200",
    task: str = "pretrain",
    **knobs: Any,
) -> Prediction:
    plan = Plan(**knobs)
    workload = Workload(4096, plan.dp * plan.micro_batch * max(4, 2 * plan.pp), task)
    return predict(load_model(model), workload, load_cluster(cluster), plan, stack)


def part(prediction: Prediction, name: str) -> float:
    return sum(each.value for each in prediction.memory.parts if each.name.endswith(f"_{name}"))


@pytest.mark.parametrize(
    ("stack", "fused", "tp", "each"),
    [
        ("nemo-26.06", True, 1, 2),  # Transformer Engine's, in place
        ("nemo-25.02", True, 1, 10),  # Megatron-Core's own
        ("nemo-26.06", False, 1, 6),
        ("torchtitan-26.06", True, 1, 4),
        ("torchtitan-26.06", False, 1, 12),
        ("torchtitan-26.06", False, 2, 16),  # loss_parallel
    ],
)
def test_bytes_of_a_logit_at_the_loss(stack, fused, tp, each):
    found = run(stack=stack, tp=tp, sequence_parallel=tp > 1, dp=8, fused_cross_entropy=fused)
    model, dtensor = load_model("llama3-8b"), stack.startswith("torchtitan")
    norm = 2 * 4096 * model.hidden * (1 / tp + (1 if dtensor else 1 / tp))
    assert part(found, "logits") - norm == pytest.approx(each * 4096 * 128256 / tp)


def test_logits_in_fp32_are_not_cast():
    own = {
        "megatron_core": 1,
        "native_loss": 0,
        "loss_native": 0,
        "dtensor": 0,
        "fused_loss": 0,
        "capped_logits": 0,
    }
    sizes = {"b": 1, "s": 4096, "cp": 1, "tp": 1, "V": 128256, "V_multiple": 128}
    narrow, wide = (logits(SimpleNamespace(**own, **sizes, activation_bytes=size)) for size in (2, 4))
    assert (narrow, wide) == (6 * 4096 * 128256, 4 * 4096 * 128256)


def test_logits_and_the_workspace_of_a_layer_are_not_there_at_once():
    """Where the loss is, the larger of both; on stages between, the workspace."""
    found = run(pp=4, dp=2).values
    whole, loss = found["memory_second_workspace"], found["memory_last_logits"]
    assert found["memory_last_workspace"] == pytest.approx(max(whole - loss, 0))
    assert found["memory_last_workspace"] < whole


def test_one_tensor_for_each_shape_of_a_weight_stands_for_its_gradients():
    model = load_model("llama3-8b")
    h, f, narrow = model.hidden, model.ffn_hidden, model.num_kv_heads * model.head_dim
    layer = h * (h + 2 * narrow) + h * h + 3 * h * f
    staged = run(pp=4, dp=2).values
    assert staged["memory_second_stand_ins"] == 2 * layer
    assert staged["memory_last_stand_ins"] == 2 * (layer + 128256 * h)


@pytest.mark.parametrize(
    "without",
    [
        {"gradient_accumulation_fusion": False},
        {"stack": "nemo-25.04"},
        {"stack": "torchtitan-26.06"},
        {"task": "lora"},
    ],
)
def test_none_stands_where_gradients_are_tensors_or_weights_are_frozen(without):
    assert part(run(dp=8, **without), "stand_ins") == 0
    assert part(run(dp=8), "stand_ins") > 0


def test_fsdp_of_fp32_parameters_keeps_nothing_beside_them():
    """torchtitan's shards are what Adam updates: 12 bytes a parameter and 4 of the gradient, over the ranks."""
    found = run(stack="torchtitan-26.06", **FSDP)
    shard = found.values["first_stage_parameters"] / 8
    assert part(found, "weights") == 0
    assert part(found, "optimizer") == pytest.approx(12 * shard)
    assert part(found, "gradients") == pytest.approx(4 * shard)
    assert part(run(**FSDP), "weights") == pytest.approx(2 * shard)


def test_fsdp2_keeps_gradients_in_the_format_of_the_parameters():
    """Reduced in FP32, kept in 16 bits where parameters are (AutoModel)."""
    found = run(stack="automodel-26.04", grad_reduce_in_fp32=True, **FSDP)
    assert part(found, "gradients") == pytest.approx(2 * found.values["first_stage_parameters"] / 8)


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_torchao_keeps_no_quantised_weights(precision):
    sizes: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "dp": 4, "precision": precision}
    found = run(stack="torchtitan-26.06", **sizes)
    assert part(found, "weights") == pytest.approx(2 * found.values["first_stage_parameters"])
    assert part(run(**sizes), "weights") > part(found, "weights")


def test_the_root_unit_of_older_releases_holds_both_tables():
    old, new = (run(stack=f"torchtitan-{release}", **FSDP) for release in ("25.06", "25.08"))
    table = 2 * 128256 * load_model("llama3-8b").hidden
    assert part(old, "gathered") - part(new, "gathered") == pytest.approx(table, rel=1e-4)


def test_parameters_in_8_bits_are_gathered_in_8_bits():
    wide, narrow = (run(precision="fp8-cs", fp8_param_gather=on, **FSDP) for on in (False, True))
    model = load_model("llama3-8b")
    h, kv = model.hidden, model.num_kv_heads * model.head_dim
    linears = h * (2 * h + 2 * kv) + 3 * h * model.ffn_hidden
    saved = part(wide, "gathered") - part(narrow, "gathered")
    # One layer in use and three prefetched, for they have less than 0.5e9 parameters together before.
    assert saved == pytest.approx(4 * linears * (1 - wide.values["bf16_share"]), rel=0.02)


def test_parameters_in_nvfp4_take_the_place_of_16_bit_ones_and_travel_as_half_a_byte():
    """Rows and columns of 4 bits with their scales, 1.125 bytes, which stand beside 2 bytes without."""
    wide, narrow = (run(precision="nvfp4", fp8_param_gather=on, dp=8) for on in (False, True))
    model = load_model("llama3-8b")
    h, kv = model.hidden, model.num_kv_heads * model.head_dim
    linears = model.num_layers * (h * (2 * h + 2 * kv) + 3 * h * model.ffn_hidden)
    assert part(wide, "weights") - part(narrow, "weights") == pytest.approx(2 * linears, rel=1e-9)
    assert (wide.values["gather_bytes"], narrow.values["gather_bytes"]) == (2, 0.5)


def test_per_op_recompute_knows_no_products_of_nvfp4():
    """The layer's input and the attention core's output with its log-sum-exp stay of a layer, nothing else."""
    model = load_model("llama3-8b")
    plan = {"stack": "torchtitan-26.06", "dp": 8, **PER_OP}
    found = run(precision="nvfp4", bf16_end_layers=0, **plan)
    kept = found.values["attention_activation_bytes"] + found.values["mlp_activation_bytes"]
    assert kept == 4096 * (2 * 2 * model.hidden + 4 * model.num_heads)
    products = run(precision="mxfp8", **plan).values
    again = found.values["mlp_recompute"] / found.values["mlp_fc1_forward"]
    assert again > products["mlp_recompute"] / products["mlp_fc1_forward"]


def test_per_op_recompute_keeps_every_other_product_even_if_no_gradient_needs_it():
    """FC2's output, where nothing is compiled."""
    compiled, eager = (
        run(stack="torchtitan-26.06", dp=8, bias_dropout_fusion=fused, **PER_OP).values[
            "mlp_activation_bytes"
        ]
        for fused in (True, False)
    )
    assert eager - compiled == 2 * 4096 * load_model("llama3-8b").hidden


def test_a_whole_step_in_one_graph_hands_nothing_from_graph_to_graph():
    whole = run(dp=8, cuda_graph=True, cuda_graph_scope=("full_iteration",))
    parts = run(dp=8, cuda_graph=True)
    assert part(whole, "graphs") == 0
    assert part(parts, "graphs") > 0


@pytest.mark.parametrize("precision", ["fp8-cs", "mxfp8"])
def test_quantised_copies_that_modules_cache_are_whole_under_megatrons_fsdp(precision):
    """Two copies of 1 byte, each with its scales in MXFP8; one where Blackwell reads a tensor either way."""
    cached, sharded = (
        part(run(precision=precision, fp8_param_gather=kept, **FSDP), "weights") for kept in (False, True)
    )
    found = run(precision=precision, **FSDP).values
    linear = sum(
        found[f"{block}_parameters"] * load_model("llama3-8b").num_layers for block in ("attention", "mlp")
    )
    assert cached - sharded == pytest.approx(found["quantised_copy_bytes"] * linear, rel=0.15)
    own = part(run(stack="torchtitan", precision=precision, **FSDP), "weights")
    assert own < 0.3 * cached


def test_a_context_ring_ends_with_keys_values_and_outputs_of_every_step():
    """Of each of the seven steps beyond a rank's own: 8 keys and values and 32 outputs of 128, in 16 bits."""
    ring = run(cp=8, cp_comm_type="p2p").values
    assert ring["ring_buffers"] == 7 * 2 * (4096 / 8) * (2 * 8 + 32) * 128
    for plan in ({"cp": 8, "cp_comm_type": "a2a"}, {"cp": 8, "cp_comm_type": "all_gather"}, {"cp": 1}):
        assert run(**plan).values["ring_buffers"] == 0
    mixed = run(cp=32, cp_comm_type="a2a+p2p", cp_a2a_size=8).values
    alone = run(cp=32, cp_comm_type="p2p").values
    assert 0 < mixed["ring_buffers"] < alone["ring_buffers"]


def test_modules_that_are_computed_again_are_there_while_they_are_differentiated():
    plain, again = run(tp=4), run(tp=4, recompute="selective", recompute_modules=("mlp",))
    assert plain.values["mlp_recomputed"] == 0
    dropped = plain.values["mlp_activation_bytes"] - again.values["mlp_activation_bytes"]
    assert again.values["mlp_recomputed"] == dropped > 0
    assert run(tp=4, recompute="full").values["mlp_recomputed"] == 0
    beyond = {
        "tp": 4,
        "pp": 2,
        "recompute": "selective",
    }  # the first stage has no logits that it could hide under
    one, none = (run(**beyond, recompute_modules=modules) for modules in (("mlp",), ("core_attn",)))
    larger = one.values["mlp_recomputed"] - none.values["mlp_recomputed"]
    assert part(one, "workspace") - part(none, "workspace") == pytest.approx(larger)
