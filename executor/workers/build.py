"""Model chunks, optimizer and products' names of one rank, built from Megatron-Core's own specifications."""

from __future__ import annotations

import re
from typing import Any

import torch

from executor.workers.config import DTYPES, make

# The cost model's names of products (costmodel/work) by where Megatron-Core has the layer.
PRODUCTS = {
    "self_attention.linear_qkv": "qkv",
    "self_attention.linear_proj": "proj",
    "self_attention.linear_q_proj": "q_up",
    "self_attention.linear_q_down_proj": "q_down",
    "self_attention.linear_q_up_proj": "q_up",
    "self_attention.linear_kv_down_proj": "kv_down",
    "self_attention.linear_kv_up_proj": "kv_up",
    "self_attention.in_proj": "in_proj",
    "self_attention.out_proj": "out_proj",
    "mixer.in_proj": "in_proj",
    "mixer.out_proj": "out_proj",
    "mlp.linear_fc1": "fc1",
    "mlp.linear_fc2": "fc2",
    "experts.linear_fc1": "experts_fc1",
    "experts.linear_fc2": "experts_fc2",
    "shared_experts.linear_fc1": "shared_fc1",
    "shared_experts.linear_fc2": "shared_fc2",
    "mlp.fc1_latent_proj": "latent_down",
    "mlp.fc2_latent_proj": "latent_up",
    "eh_proj": "mtp_proj",
}


def name_products(chunk: torch.nn.Module) -> None:
    """Tell each linear layer which product of the cost model it is."""
    for path, module in chunk.named_modules():
        path = re.sub(r"local_experts\.\d+\.", "", path)
        for place, product in PRODUCTS.items():
            if path == place or path.endswith("." + place):
                module.product = product  # type: ignore[assignment]


def chunk_of(config: Any, job: dict[str, Any], stage: int | None) -> Any:
    """One model chunk of this pipeline rank; `stage` is its virtual stage, None without interleaving."""
    from megatron.core import parallel_state

    first = parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage)
    arguments = dict(job["megatron"]["arguments"], pre_process=first, post_process=last, parallel_output=True)
    if job["megatron"]["model_class"] == "MambaModel":
        from megatron.core.models.mamba import MambaModel
        from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec

        if "hybrid_layer_pattern" in arguments:
            arguments["vp_stage"] = stage
        return MambaModel(config=config, mamba_stack_spec=mamba_stack_spec, **arguments)
    from megatron.core.models.gpt import GPTModel

    spec, heads = gpt_specs(config, stage)
    return GPTModel(
        config=config, transformer_layer_spec=spec, mtp_block_spec=heads, vp_stage=stage, **arguments
    )


def gpt_specs(config: Any, stage: int | None) -> tuple[Any, Any]:
    """Megatron-Core's specifications of this stage's layers and of its multi-token prediction heads."""
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
    from megatron.core.models.gpt import gpt_layer_specs as specs

    if config.experimental_attention_variant:
        block = variants.get_transformer_block_with_experimental_attention_variant_spec(
            config, vp_stage=stage
        )
    else:
        block = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=stage)
    if not config.mtp_num_layers:
        return block, None
    # A stage may have heads and no layers; heads are made like the model's last layer.
    whole = block
    if not block.layer_specs:
        whole = specs.get_gpt_decoder_layer_specs(config, use_transformer_engine=True)[-1]
    return block, specs.get_gpt_mtp_block_spec(config, whole, use_transformer_engine=True, vp_stage=stage)


def to_dtype(chunk: torch.nn.Module, dtype: torch.dtype) -> None:
    """What Megatron-LM's Float16Module does: every floating parameter in the model's type."""
    for module in chunk.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point() and parameter.dtype != dtype:
                replaced = torch.nn.Parameter(parameter.detach().to(dtype))
                replaced.__dict__.update(parameter.__dict__)
                module._parameters[name] = replaced


def build(job: dict[str, Any], notes: list[str]) -> tuple[list[Any], Any]:
    """Model chunks wrapped for data parallelism, and the optimizer (None when the job wants none)."""
    from megatron.core import parallel_state, transformer
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from executor.workers.fake_world import during

    megatron, vpp = job["megatron"], job["plan"]["vpp"]
    config = make(getattr(transformer, megatron["config_class"]), megatron["config"], notes)
    ddp = make(DistributedDataParallelConfig, megatron["ddp"], notes)
    chunks = []
    for stage in range(vpp) if vpp > 1 else [None]:
        if stage is not None:
            parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
        chunk = chunk_of(config, job, stage)
        to_dtype(chunk, DTYPES[megatron["config"]["params_dtype"]])
        name_products(chunk)
        # The last chunks' buckets are not overlapped in an interleaved schedule, as Megatron-LM has it.
        chunks.append(
            DistributedDataParallel(config, ddp, chunk, disable_bucketing=stage is not None and stage > 0)
        )
    several = len(chunks) > 1
    config.finalize_model_grads_func = during("gradients", finalize_model_grads)
    if ddp.overlap_grad_reduce:
        config.no_sync_func = [each.no_sync for each in chunks] if several else chunks[0].no_sync
        if getattr(ddp, "align_grad_reduce", True) and several:
            config.grad_sync_func = [each.start_grad_sync for each in chunks]
    optimizer = None
    if job["with_optimizer"]:
        settings = make(OptimizerConfig, dict(megatron["optimizer"], lr=1e-4), notes)
        optimizer = get_megatron_optimizer(settings, chunks, use_gloo_process_groups=False)
        config.grad_scale_func = optimizer.scale_loss
    return chunks, optimizer
