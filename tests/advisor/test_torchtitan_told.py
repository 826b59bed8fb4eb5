"""What of a torchtitan job is not modelled is told where it acts, and nowhere else."""

from __future__ import annotations

import pytest
from torchtitan_jobs import EXPERTS, FLOAT8, SEVENTY, P, case


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"optimizer.early_step_in_backward": True}, "optimizer.early_step_in_backward = true"),
        ({"training.dtype": "bfloat16"}, "training.dtype = 'bfloat16'"),
        ({f"{P}context_parallel_degree": 2}, "context_parallel_rotate_method allgather"),
        ({f"{P}disable_loss_parallel": True, f"{P}tensor_parallel_degree": 2}, "disable_loss_parallel"),
        (
            {f"{P}pipeline_parallel_degree": 2, f"{P}fsdp_reshard_after_forward": "always"},
            "after_forward always",
        ),
        (
            {f"{P}pipeline_parallel_degree": 2, f"{P}pipeline_parallel_schedule": "zbvzerobubble"},
            "zbvzerobubble",
        ),
        ({"activation_checkpoint.mode": "memory_budget"}, "memory_budget; recompute of single ops"),
        ({"activation_checkpoint.mode": "full", "activation_checkpoint.early_stop": True}, "early_stop on"),
        ({"training.enable_cpu_offload": True}, "parameters and gradients"),
        (
            FLOAT8 | {"quantize.linear.float8.filter_fqns": ["output", "attention.wk"]},
            "filter_fqns attention.wk",
        ),
        (FLOAT8 | {"quantize.linear.float8.filter_fqns": []}, "the output layer in 8 bits"),
        (FLOAT8 | {"quantize.linear.float8.recipe_name": "rowwise_with_gw_hp"}, "rowwise_with_gw_hp keeps"),
        (FLOAT8 | {"quantize.linear.float8.emulate": True}, "float8.emulate = true"),
        (FLOAT8 | {f"{P}tensor_parallel_degree": 16}, "activations in FP32"),
        ({"model.converters": ["mine"]}, "model.converters mine"),
        ({"quantize.linear.float8.filter_fqns": ["output"]}, "model.converters does not name it"),
        (FLOAT8 | EXPERTS, "experts in 16 bits"),
        (
            {"optimizer.name": "Lion", "experimental.custom_import": "mine"},
            "optimizer 'Lion' is not modelled",
        ),
        ({f"{P}tensor_parallel_degree": 16}, "FP32 throughout"),
        (
            {"model.name": "qwen3", "model.flavor": "32B", f"{P}pipeline_parallel_degree": 2},
            "no pipeline parallelism",
        ),
        (EXPERTS | {f"{P}context_parallel_degree": 2}, "no context parallelism with its attention"),
    ],
)
def test_what_is_not_modelled_is_told_where_it_acts_and_nowhere_else(said, told):
    plain = {"activation_checkpoint.mode": "selective"}
    assert told in " ".join(case(SEVENTY | said, gpus=16).notes)
    assert told not in " ".join(case(SEVENTY | plain, gpus=16).notes)


@pytest.mark.parametrize(
    "said",
    [
        {"quantize.linear.float8.emulate": False, "quantize.linear.float8.filter_fqns": []},
        {f"{P}disable_loss_parallel": True, f"{P}fsdp_reshard_after_forward": "always"},
        {
            "training.dtype": "float32",
            f"{P}context_parallel_rotate_method": "allgather",
            "validation.enable": False,
        },
        dict.fromkeys(("checkpoint.enable", "metrics.enable_wandb", "profiling.enable_profiling"), True),
    ],
)
def test_what_does_not_act_is_silent(said):
    assert case(SEVENTY | said, gpus=16).notes == case(SEVENTY, gpus=16).notes
