"""What a rank holds of parameters, gradients and optimizer states, whole, sharded or gathered for a time."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, ceiling, is_more_than_one, maximum, minimum
from costmodel.work import parameters

# Parameters of the least unit that Megatron's FSDP communicates at a time. [1]
MEGATRON_UNIT = 1e9


def weight_bytes(x: SimpleNamespace, linear_weights: Amount, all_weights: Amount, shard: Amount) -> Amount:
    """Parameters in the model's format plus quantised copies of the linear weights. [byte]

    With fp8_param_gather the copies replace the linear weights' 16-bit originals: nothing is saved where
    row-wise and column-wise copies are 2 bytes together (Hopper, MXFP8); in NVFP4 they are 1.125. MXFP8 gathers in
    16 bits into a buffer of its own unless it reuses the gradients'. FSDP with ZeRO 3 keeps 1 / shard of them; where
    its shards are the FP32 parameters that the optimizer updates, nothing beside those: each gather casts anew.
    Sources: S. Rajbhandari et al., SC 2020, arXiv:1910.02054; Megatron-Core, reuse_grad_buf_for_mxfp8_param_ag;
    PyTorch 2.13, _fully_shard/_fsdp_param.py, all_gather_inputs.
    """
    quantised = (1 - x.bf16_share) * linear_weights
    replaced = keeps_quantised(x) * x.weight_bytes
    copies = (x.quantised_copy_bytes - replaced + x.gather_copy_bytes) * quantised
    kept = 1 - x.params_sharded + x.params_sharded * (1 - cast_shards(x)) / shard
    # Transformer Engine caches its quantised copies in the modules, whole: they are no buffer of FSDP.
    cached = x.megatron_core * (1 - keeps_quantised(x)) * (1 - x.cast_anew)
    return x.weight_bytes * all_weights * kept + copies * (kept + cached * (1 - kept))


def keeps_quantised(x: SimpleNamespace) -> Amount:
    """1 where quantised copies of linear weights stand in place of the weights. [1]"""
    return x.param_gather * minimum(1, x.quantised_copy_bytes)


def cast_shards(x: SimpleNamespace) -> Amount:
    """1 where FSDP's shards are FP32 parameters, cast to the model's own format of 16 bits by each gather. [1]"""
    return x.master_shards * x.params_sharded * minimum(1, maximum(0, 4 - x.weight_bytes))


def gathered_bytes(
    x: SimpleNamespace,
    layer: tuple[Amount, Amount],
    stage_weights: Amount,
    loss: Amount,
    workspace: Amount = 0,
    freed: Amount = 0,
) -> Amount:
    """FSDP: what is whole for a time. [byte]

    layer: weights of one, and those of its linear layers [1]. Parameters of the layers in use and prefetched (in 8 bits
    where they are kept so) and the output layer's, with the embedding's where they are one unit; the gradients of one
    layer as they come, in the parameters' format, and of those before as they are reduced, in theirs, which with a
    layer's workspace take the place of the logits. Gradients queue while layers behind them free their activations
    (`freed`, of one layer). PyTorch's FSDP2 keeps the whole stage beside pipeline stages:
    gathering it anew for each micro-batch is what frameworks avoid, and its gradients add up whole until the last one;
    Megatron's gathers and reduces in every pass.
    Source: PyTorch FSDP2, fully_shard (prefetch of one unit, reshard_after_forward; the root's unit stays whole);
    torchtitan, reshard_after_forward_policy "default" with pipeline parallelism; Megatron-Core 0.16.1, megatron_fsdp,
    param_and_grad_buffer.py (buffers of 8-bit parameters in uint8) and megatron_fsdp.py, _post_forward.
    """
    weights, linear_weights = layer
    once = x.params_sharded * x.weight_bytes
    lighter = keeps_quantised(x) * (x.weight_bytes - x.quantised_copy_bytes) * (1 - x.bf16_share)
    used, reduced = units_in_use(x, weights, stage_weights)
    queue = (reduced - 1) * maximum(weights * x.grad_bytes - freed, 0)
    gradients = x.grads_sharded * (weights * (x.weight_bytes + x.grad_bytes) + queue)
    beside = maximum(workspace + gradients - loss, 0) - maximum(workspace - loss, 0)
    whole = once * (used * weights + whole_tables(x)) - used * x.params_sharded * lighter * linear_weights
    stage = stage_weights * (once + x.grads_sharded * x.grad_bytes)
    return whole + beside + x.fsdp2 * is_more_than_one(x.pp) * (stage - whole - beside)


def units_in_use(x: SimpleNamespace, weights: Amount, stage_weights: Amount) -> tuple[Amount, Amount]:
    """Layers whose parameters FSDP has whole at a time, and layers whose gradients it is reducing. [1]

    weights: parameters of one layer, stage_weights: of the stage [1]. One in use and one prefetched, and one reduced.
    Megatron's prefetches at least half a unit of two layers or 1e9 parameters, whichever is more, and lets reductions
    queue until they are more than that unit; with registered buffers it has two of each. Source: Megatron-Core 0.16.1
    to 0.19.2, megatron_fsdp.py, suggested_communication_unit_size; param_and_grad_buffer.py,
    wait_for_previous_grad_reduce, prefetch of all_gather_params, fsdp_double_buffer.
    """
    unit = maximum(MEGATRON_UNIT, 2 * weights)
    held = stage_weights / maximum(weights, 1)
    prefetched = minimum(held, 1 + ceiling(unit / 2 / maximum(weights, 1)))
    queued = minimum(held, ceiling((unit + 1) / maximum(weights, 1)))  # the last one goes over the unit
    own = x.megatron_core * (1 - x.user_buffers)
    return 2 + own * (prefetched - 2), 1 + own * (queued - 1) + x.megatron_core * x.user_buffers


def whole_tables(x: SimpleNamespace) -> Amount:
    """Elements of vocabulary tables that FSDP has whole through a step: the embedding's, or both. [1]

    Both where they are the root's unit, and in Megatron's FSDP, whose units are layers: nothing releases the rest
    before the next step. Source: Megatron-Core 0.16.1, megatron_fsdp.py, release_module_parameters (fsdp_unit_id).
    """
    both = maximum(x.root_unit, x.megatron_core)
    return parameters.embedding_parameters(x) + both * parameters.output_parameters(x)


def gradient_bytes(x: SimpleNamespace, trained: Amount, shard: Amount) -> Amount:
    """Gradient buffer, in the reduction's format; 1 / shard of it from ZeRO 2 on. [byte]

    FSDP 2 keeps its shard in the parameters' format, FP32 where they are, whatever the reduction's. Source: PyTorch
    2.13, _fully_shard/_fsdp_collectives.py, foreach_reduce, orig_dtype.
    """
    own = x.weight_bytes + cast_shards(x) * (4 - x.weight_bytes)
    kept = x.grad_bytes + x.fsdp2 * x.params_sharded * (own - x.grad_bytes)
    return kept * trained * (1 - x.grads_sharded + x.grads_sharded / shard)


def optimizer_bytes(x: SimpleNamespace, trained: Amount, shard: Amount) -> Amount:
    """Master parameters and both Adam moments; 1 / shard of them when sharded, less what the host keeps. [byte]

    12 bytes a parameter: 4 + 4 + 4, less with the precision-aware optimizer, without which the master parameters
    of an offloaded optimizer stay on the device too. Source: arXiv:1910.02054, sec. 3.1; Megatron-Core dry run,
    12 params / DP to the byte; cpu_offloading, 15.3 GB of 1.91e9 parameters a rank published.
    """
    on_device = x.state_bytes - x.optimizer_offload * x.host_state_bytes
    return on_device * trained * (1 - x.optimizer_sharded + x.optimizer_sharded / shard)
