"""What a row states in `other_flags` is read: into columns that it leaves empty, and as knobs that no column holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from somebodys_row import case, refused, said

from advisor.measurements.other_flags import COLUMNS, ELSEWHERE, HERE
from costmodel.knobs import KNOBS

MIXTURE = {"model": "qwen3-30b-a3b", "pp": "1", "tp": "1", "ep": "8", "vp": "1", "container": "Megatron-LM"}
LONG = {"cp": "4", "seq_len": "32768", "pp": "1", "vp": ""}


@pytest.mark.parametrize(
    ("flags", "knobs", "columns"),
    [
        ({"optimizer_cpu_offload": True}, {"optimizer_offload": 100}, {}),
        (
            {
                "optimizer_cpu_offload": True,
                "optimizer_offload_fraction": 0.5,
                "overlap_cpu_optimizer_d2h_h2d": True,
            },
            {"optimizer_offload": 50, "overlap_optimizer_offload": True},
            {},
        ),
        ({"optimizer_cpu_offload": False, "optimizer_offload_fraction": 0.5}, {"optimizer_offload": 0}, {}),
        ({"attention_backend": "unfused"}, {"attention_backend": "unfused"}, {}),
        ({"attention_backend": "AttnBackend.local"}, {"attention_backend": "unfused"}, {}),
        (
            {"attention_backend": "auto"},
            {"attention_backend": "unfused"},
            {"date": "2021-06", "container": ""},
        ),
        (
            {"attention_backend": "flash"},
            {"attention_backend": "fused"},
            {"date": "2021-06", "container": "Megatron-LM", "model": "gpt3-175b", "vp": "1", "tp": "8"},
        ),
        ({"use_distributed_optimizer": False}, {"zero_stage": 0}, {}),
        ({}, {"zero_stage": 0}, {"optimizer": "adam (not sharded)"}),
        ({"use_distributed_optimizer": False}, {"zero_stage": 3}, {"fsdp": "1", "pp": "1", "vp": ""}),
        (
            {
                "first_last_layers_bf16": True,
                "num_layers_at_start_in_bf16": 2,
                "num_layers_at_end_in_bf16": 4,
            },
            {"bf16_end_layers": 3},
            {"precision": "fp8-cs"},
        ),
        ({"first_last_layers_bf16": True}, {"bf16_end_layers": 1}, {"precision": "fp8-cs"}),
        ({"num_layers_at_start_in_bf16": 2}, {"bf16_end_layers": 0}, {"precision": "fp8-cs"}),
        ({"overlap_p2p_comm": False}, {"overlap_p2p": False}, {}),
        ({"cross_entropy_fusion": False}, {"fused_cross_entropy": False}, {}),
        ({"cross_entropy_loss_fusion": False}, {"fused_cross_entropy": False}, {}),
        ({"microbatch_group_size_per_vp_stage": 8}, {"vpp_group_size": 8}, {}),
        ({"hidden_dropout": 0.1}, {"dropout": True}, {}),
        (
            {"hidden_dropout": 0.0, "attention_dropout": 0.0},
            {"dropout": False},
            {"model": "gpt3-175b", "vp": "1"},
        ),
        ({"bias_activation_fusion": False}, {"bias_activation_fusion": False}, {}),
        ({"moe_expert_capacity_factor": 1.5}, {"moe_capacity_factor": 1.5}, MIXTURE),
        (
            {"moe_expert_capacity_factor": 1.5, "moe_pad_expert_input_to_capacity": False},
            {"moe_pad_expert_input_to_capacity": False},
            MIXTURE,
        ),
        (
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
            {"moe_dispatcher": "hybridep"},
            MIXTURE,
        ),
        ({"moe_enable_deepep": True}, {"moe_dispatcher": "deepep"}, MIXTURE),
        ({"cp_comm_type": ["a2a"]}, {"cp_comm_type": "a2a"}, LONG),
        ({"cp_comm_type": "allgather"}, {"cp_comm_type": "all_gather"}, LONG),
        (
            {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]},
            {"cp_comm_type": "a2a+p2p", "cp_a2a_size": 2},
            LONG,
        ),
        ({"tensor_model_parallel_size": 8}, {"tp": 8}, {"tp": ""}),
        ({"tensor_model_parallel_size": 8}, {"tp": 4}, {}),  # a column comes first
        ({"recompute_granularity": "full", "recompute_num_layers": 1}, {"recompute_num_layers": 5}, {}),
        ({"recompute_granularity": None, "sequence_parallel": False}, {"sequence_parallel": False}, {}),
        ({"recompute_granularity": None, "recompute_modules": ["mlp"]}, {"recompute": "none"}, {}),
        ({"recompute_modules": ["mlp"]}, {"recompute": "selective", "recompute_modules": ("mlp",)}, {}),
        ({"cpu_offloading": False, "cpu_offloading_num_layers": 4}, {"offload_layers": 0}, {}),
        ({"cpu_offloading": True, "cpu_offloading_num_layers": 4}, {"offload_layers": 4}, {}),
        (
            {"fine_grained_activation_offloading": False, "offload_modules": ["moe_act"]},
            {"offload_modules": ()},
            {},
        ),
        ({"offload_modules": ["core_attn"]}, {"offload_modules": ("core_attn",)}, {}),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, {"cuda_graph": True}, {}),
        ({"cuda_graph_impl": "none", "cuda_graph_scope": "full"}, {"cuda_graph": False}, {}),
    ],
)
def test_what_is_stated_is_read(flags, knobs, columns):
    found = case(**columns, other_flags=json.dumps(flags))
    assert {name: getattr(found.plan, name) for name in knobs} == knobs
    assert not said(found, "not read")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"attention_backend": "xformers"}, "attention_backend"),
        ({"microbatch_group_size_per_vp_stage": 10**9}, "vpp_group_size"),
        ({"moe_deepep_num_sms": 20}, "moe_deepep_num_sms"),
        ({"vboost": True}, "vboost"),
    ],
)
def test_what_cannot_be_read_is_named(flags, named):
    found = case(other_flags=json.dumps(flags))
    assert said(found, f"of its other flags not read: {named}")
    assert found.plan == case().plan


@pytest.mark.parametrize("value", [None, [], {}, "x", float("nan"), float("inf"), [1], {"a": 1}])
@pytest.mark.parametrize("field", HERE)
def test_values_of_no_sense_cost_no_row(field, value):
    more: dict[str, Any] = {"optimizer_cpu_offload": True, "first_last_layers_bf16": True}
    case(other_flags=json.dumps(more | {field: value}), precision="fp8-cs", **LONG)


def test_flags_that_are_no_object_are_told_once():
    assert refused(other_flags="[1]").startswith("other_flags '[1]' is no JSON object")


def test_fields_are_of_the_catalogue():
    known = {
        part.strip().rpartition(".")[2] for knob in KNOBS.values() for part in (knob.mcore or "").split(",")
    }
    ours = {"micro_batch_size", "fp8_param", "cross_entropy_fusion", "moe_expert_capacity_factor"}
    assert {*COLUMNS, *HERE, *ELSEWHERE} - known - ours == set()
