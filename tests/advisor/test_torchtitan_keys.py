"""Every key of a job file that is read changes what the job means: its model, plan, workload, or what is told of it."""

from __future__ import annotations

import pytest
from torchtitan_jobs import EXPERTS, FLOAT8, SEVENTY, P, case

from advisor.torchtitan.job import FILES, known_keys, tables
from advisor.torchtitan.sizes import SHARD

# Of each key that is read a value that changes what a job means, with what it needs beside it.
PIPES = {f"{P}pipeline_parallel_degree": 2}
SPREAD = EXPERTS | {f"{P}expert_parallel_degree": 4}
CHANGES = {
    "model.name": ({"model.flavor": "8B"}, "qwen3"),
    "model.flavor": ({}, "8B"),
    "model.converters": ({}, ["mx"]),
    "optimizer.name": ({"experimental.custom_import": "mine"}, "Lion"),
    "training.local_batch_size": ({}, 2),
    "training.global_batch_size": ({}, 256),
    "training.seq_len": ({}, 4096),
    "training.enable_cpu_offload": ({}, True),
    "training.mixed_precision_param": ({}, "float32"),
    "training.compile": ({"training.seed": 1}, True),
    "training.debug_moe_force_load_balance": (SPREAD | {"training.seed": 1}, True),
    f"{P}data_parallel_replicate_degree": ({}, 2),
    f"{P}data_parallel_shard_degree": ({}, 8),
    f"{P}fsdp_reshard_after_forward": ({}, "never"),
    f"{P}tensor_parallel_degree": ({}, 2),
    f"{P}disable_loss_parallel": ({f"{P}tensor_parallel_degree": 2}, True),
    f"{P}enable_async_tensor_parallel": ({f"{P}tensor_parallel_degree": 2, "compile.enable": True}, True),
    f"{P}pipeline_parallel_degree": ({}, 2),
    f"{P}pipeline_parallel_split_points": (PIPES, ["layers.30"]),
    f"{P}module_fqns_per_model_part": (PIPES, [["layers.0"], [f"layers.{n}" for n in range(1, 80)]]),
    f"{P}pipeline_parallel_first_stage_less_layers": (PIPES, 2),
    f"{P}pipeline_parallel_last_stage_less_layers": (PIPES, 2),
    f"{P}pipeline_parallel_layers_per_stage": (
        PIPES | {f"{P}pipeline_parallel_schedule": "Interleaved1F1B"},
        14,
    ),
    f"{P}pipeline_parallel_schedule": (PIPES, "Interleaved1F1B"),
    f"{P}pipeline_parallel_microbatch_size": (PIPES, 2),
    f"{P}context_parallel_degree": ({}, 2),
    f"{P}context_parallel_rotate_method": ({f"{P}context_parallel_degree": 2}, "alltoall"),
    f"{P}expert_parallel_degree": (EXPERTS, 2),
    f"{P}expert_tensor_parallel_degree": (SPREAD | {f"{P}tensor_parallel_degree": 2}, 2),
    f"{P}expert_parallel_comm_backend": (SPREAD, "deepep"),
    "activation_checkpoint.mode": ({}, "full"),
    "activation_checkpoint.selective_ac_option": ({}, "4"),
    "activation_checkpoint.early_stop": ({"activation_checkpoint.mode": "full"}, True),
    "compile.enable": ({}, True),
    "compile.components": ({"compile.enable": True}, ["model"]),
    "float8.enable_fsdp_float8_all_gather": ({"model.converters": ["float8"]}, True),
    "float8.recipe_name": ({"model.converters": ["float8"]}, "rowwise"),
    "float8.filter_fqns": ({"model.converters": ["float8"]}, ["output"]),
    "quantize.linear.float8.enable_fsdp_float8_all_gather": (FLOAT8, True),
    "quantize.linear.float8.recipe_name": (FLOAT8, "rowwise"),
    "quantize.linear.float8.filter_fqns": (FLOAT8, ["attention.wk"]),
    "mx.filter_fqns": ({"model.converters": ["mx"]}, ["attention.wk"]),
    "quantize.linear.mx.filter_fqns": ({"model.converters": ["quantize.linear.mx"]}, ["attention.wk"]),
    "debug.moe_force_load_balance": (SPREAD, True),
}


@pytest.mark.parametrize("key", [key for key in tables("roles")["read"] if key in known_keys(FILES)])
def test_every_key_that_is_read_changes_what_a_job_means(key):
    beside, value = CHANGES[key]
    said = {name: each for name, each in (SEVENTY | beside).items() if name != key}
    gpus = {} if key == SHARD else {"gpus": 16}  # of which that takes what is left
    with_it, without = (case(each, stack="torchtitan-25.06", **gpus) for each in (said | {key: value}, said))

    def meant(found):
        return found.model, found.plan, found.workload, found.notes

    assert meant(with_it) != meant(without)
