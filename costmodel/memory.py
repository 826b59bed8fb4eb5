"""Memory of one rank by component, for the first, the second and the last pipeline stage.

The first stage holds most micro-batches in flight, the last one the logits; the second may be the worst
where the first has lighter layers (dense layers before experts). The worst of them is compared with the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace

from costmodel import schedule
from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.encoder import encoder_bytes
from costmodel.layer import BlockTimes, graphed
from costmodel.term import Ledger, Term
from costmodel.work import activations, linear, parameters

STAGES = ("first", "second", "last")
Blocks = Mapping[str, BlockTimes]
# Layers whose activations an offloaded stage keeps on the device: in use and on the way.
OFFLOAD_BUFFERS = 2
# NVLink SHARP keeps multicast buffers for each communicator. Source: NeMo performance guide, NCCL_NVLS_ENABLE.
NVLS_BYTES = 0.75 * 2**30


def count(x: SimpleNamespace, block: str, stage: str) -> Amount:
    """Blocks of a kind on a stage. [1]"""
    return getattr(x, f"{block}_{stage}")


def parameters_of(
    x: SimpleNamespace, blocks: Blocks, stage: str, *, vocabulary: bool = False, experts: bool = False
) -> Amount:
    """Parameters of a stage on one rank: its experts, or the rest, with embedding or output layer. [1]"""
    if experts:
        return sum(
            count(x, name, stage) * parameters.expert_parameters(times.work)
            for name, times in blocks.items()
            if name == "experts"
        )
    total = sum(
        count(x, name, stage) * parameters.block_parameters(times.work) for name, times in blocks.items()
    )
    if not vocabulary:
        return total
    one_stage = 1 - is_more_than_one(x.pp)
    embedding, output = parameters.embedding_parameters(x), parameters.output_parameters(x)
    heads = x.mtp_heads * parameters.mtp_parameters(x)
    if stage == "first":
        return total + embedding + one_stage * (output + heads)
    return total + output + heads + one_stage * embedding


def adapters_of(x: SimpleNamespace, blocks: Blocks, stage: str) -> Amount:
    """Parameters of a stage's adapters on one rank. [1]"""
    return sum(
        count(x, name, stage) * parameters.adapter_parameters(x, times.work) for name, times in blocks.items()
    )


def linear_weights_of(x: SimpleNamespace, blocks: Blocks, stage: str, grouped: bool) -> Amount:
    """Weights of a stage's quantised linear layers on one rank. [1]"""
    return sum(count(x, name, stage) * times.work.weights(grouped) for name, times in blocks.items())


def weight_bytes(x: SimpleNamespace, linear_weights: Amount, all_weights: Amount, shard: Amount) -> Amount:
    """Parameters in the model's format plus quantised copies of the linear weights. [byte]

    With fp8_param_gather the copies replace the linear weights' 16-bit originals: nothing is saved where
    row-wise and column-wise copies are 2 bytes together (Hopper, MXFP8), and MXFP8 gathers in 16 bits into a
    buffer of its own unless it reuses the gradients'. FSDP with ZeRO 3 keeps 1 / shard of them.
    Sources: S. Rajbhandari et al., SC 2020, arXiv:1910.02054; Megatron-Core, reuse_grad_buf_for_mxfp8_param_ag.
    """
    quantised = (1 - x.bf16_share) * linear_weights
    copies = (x.quantised_copy_bytes - x.param_gather * x.weight_bytes + x.gather_copy_bytes) * quantised
    whole = x.weight_bytes * all_weights + copies
    return whole * (1 - x.params_sharded + x.params_sharded / shard)


def gathered_bytes(x: SimpleNamespace, layer_weights: Amount) -> Amount:
    """FSDP: parameters of two layers gathered (one in use, one prefetched) and gradients of two. [byte]

    Source: PyTorch FSDP2 and Megatron-FSDP prefetch one unit ahead.
    """
    return 2 * layer_weights * (x.params_sharded * x.weight_bytes + x.grads_sharded * x.grad_bytes)


def gradient_bytes(x: SimpleNamespace, trained: Amount, shard: Amount) -> Amount:
    """Gradient buffer, in the reduction's format; 1 / shard of it from ZeRO 2 on. [byte]"""
    return x.grad_bytes * trained * (1 - x.grads_sharded + x.grads_sharded / shard)


def optimizer_bytes(x: SimpleNamespace, trained: Amount, shard: Amount) -> Amount:
    """Master parameters and both Adam moments; 1 / shard of them when sharded, less what the host keeps. [byte]

    12 bytes a parameter: 4 + 4 + 4, less with the precision-aware optimizer, without which the master parameters
    of an offloaded optimizer stay on the device too. Source: arXiv:1910.02054, sec. 3.1; Megatron-Core dry run,
    12 params / DP to the byte; cpu_offloading, 15.3 GB of 1.91e9 parameters a rank published.
    """
    on_device = x.state_bytes - x.optimizer_offload * x.host_state_bytes
    return on_device * trained * (1 - x.optimizer_sharded + x.optimizer_sharded / shard)


def activation_bytes(x: SimpleNamespace, kept: Amount, layers: Amount, in_flight: Amount) -> Amount:
    """Activations of all layers of a stage and all micro-batches in flight. [byte]

    kept: of the stage's blocks for one micro-batch. Layers with full recompute keep their input alone; what
    waits in host memory leaves two layers' buffers behind.
    """
    inputs = x.recompute_layers * layers * activations.layer_input(x)
    stage = inputs + (1 - x.recompute_layers) * kept
    buffers = minimum(OFFLOAD_BUFFERS / maximum(layers, 1), x.offload_share) * stage
    return in_flight * (1 - x.offload_share) * stage + buffers


def workspace_bytes(x: SimpleNamespace, per_layer: Amount, widest: Amount) -> Amount:
    """The one layer being computed: recomputed activations, or temporaries of the widest linear layer. [byte]

    With recompute (full, or of the MLP or attention) one whole layer's activations exist while it is
    differentiated; without, the gradients of FC1's output and its gathered input.
    """
    rows = linear.tokens(x) * 2 * x.activation_bytes * x.h
    return x.recompute_layers * per_layer + widest + rows


def widest_gradient(x: SimpleNamespace, blocks: Blocks) -> Amount:
    """Gradient of the widest FC1 output or mixer input, twice. [byte]"""
    widths = [
        2 * x.activation_bytes * layer.groups * layer.rows * layer.columns
        for name, times in blocks.items()
        for layer in times.work.linears
        if layer.name in ("fc1", "in_proj") or (len(blocks) == 1 and layer.name == "qkv")
    ]
    return maximum(*widths) if len(widths) > 1 else widths[0]


def graph_bytes(x: SimpleNamespace, pooled: Amount) -> Amount:
    """Private memory pools of CUDA graphs: buffers they hold fast between replays. [byte]

    A share of what the captured blocks save, and of logits and workspace in proportion to them. Source: one
    published pair, 85.89 GiB without and 119.80 with graphs (Megatron-Bridge, CUDA graph notes); full-iteration
    graphs can take more.
    """
    return x.graph * x.graph_pool * pooled


def in_graph_pool(x: SimpleNamespace, block: str) -> Amount:
    """Share of a block's saved activations that CUDA graphs hold: a captured router keeps almost none. [1]"""
    return x.graph_experts if block == "experts" else graphed(x, block)


def fragmentation_bytes(x: SimpleNamespace, held: Amount) -> Amount:
    """What the allocator loses. [byte]

    Without expandable segments 15 % more, with stream records 5 % more. Source: Megatron-Bridge, memory tuning
    notes (a run of 58.8 GiB allocated fails on 80 GB without expandable segments).
    """
    return held * (x.fragmentation + 0.15 * (1 - x.segments) + 0.05 * x.stream_records)


def rank_memory(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Blocks,
    features: Collection[str],
    encoder: dict[str, BlockTimes],
) -> dict[str, Term]:
    """Breakdown of the first, second and last stage's rank, and the worst of them as entry `peak_memory`."""
    for name, times in blocks.items():
        ledger.define(
            f"{name}_activation_bytes", times.work.saved_bytes(), "byte", f"costmodel.work, block {name}"
        )
        ledger.define(
            f"{name}_parameters", parameters.block_parameters(times.work), "1", parameters.block_parameters
        )
    widest = ledger.define("widest_gradient", widest_gradient(x, blocks), "byte", widest_gradient)
    trees = {
        f"memory_{stage}": _stage_memory(ledger, x, blocks, features, stage, index, widest, encoder)
        for index, stage in enumerate(STAGES)
    }
    import sympy

    symbols = [sympy.Symbol(name, nonnegative=True) for name in trees]
    ledger.define(
        "peak_memory",
        maximum(symbols[0], maximum(symbols[1] * is_more_than_one(x.pp), symbols[2])),
        "byte",
        "the largest of the first, the second and the last stage",
        "peak memory of the worst rank",
    )
    return trees


def _stage_memory(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Blocks,
    features: Collection[str],
    stage: str,
    index: int,
    widest: Amount,
    encoder: dict[str, BlockTimes],
) -> Term:
    import sympy

    edge = stage != "second"
    one_stage = 1 - is_more_than_one(x.pp)
    layers = getattr(x, f"layers_{'pace' if stage == 'second' else stage}")
    dense = ledger.define(
        f"{stage}_stage_parameters",
        parameters_of(x, blocks, stage, vocabulary=edge),
        "1",
        parameters_of,
    )
    experts: Amount = 0
    if "experts" in blocks:
        experts = ledger.define(
            f"{stage}_stage_expert_parameters",
            parameters_of(x, blocks, stage, experts=True),
            "1",
            parameters_of,
        )
    adapters = adapters_of(x, blocks, stage) if "lora" in features else 0
    where = x.pp - 1 if stage == "last" else index
    flying = ledger.define(f"{stage}_stage_in_flight", schedule.in_flight(x, where), "1", schedule.in_flight)
    kept = ledger.define(
        f"{stage}_stage_kept",
        sum(
            count(x, name, stage) * sympy.Symbol(f"{name}_activation_bytes", nonnegative=True)
            for name in blocks
        ),
        "byte",
        "activations of the stage's blocks for one micro-batch",
    )
    per_layer = kept / maximum(layers, 1)
    has_loss = {"first": one_stage, "second": 0, "last": 1}[stage]
    heads = 1 + x.mtp_heads if "mtp" in features else 1
    loss = has_loss * heads * (activations.logits(x) + activations.output_input(x))
    active = activation_bytes(x, kept, layers, flying)
    workspace = workspace_bytes(x, per_layer, widest)
    held = active + loss + workspace
    blocks_here = sum(count(x, name, stage) for name in blocks)
    captured = sum(count(x, name, stage) * in_graph_pool(x, name) for name in blocks) / maximum(
        blocks_here, 1
    )
    captured_kept = sum(
        count(x, name, stage)
        * in_graph_pool(x, name)
        * sympy.Symbol(f"{name}_activation_bytes", nonnegative=True)
        for name in blocks
    )
    pooled = activation_bytes(x, captured_kept, captured * layers, flying) + captured * (loss + workspace)
    owned = ((dense, x.shard, False), (experts, x.expert_shard, True))

    def over_owners(function: Callable[..., Amount]) -> Amount:
        return sum(
            function(x, x.trained * amount + (0 if grouped else adapters), shard)
            for amount, shard, grouped in owned
        )

    weights = sum(
        weight_bytes(
            x,
            linear_weights_of(x, blocks, stage, grouped),
            amount + (0 if grouped else adapters),
            shard,
        )
        for amount, shard, grouped in owned
    )
    p = f"memory_{stage}"
    unit = _layer_weights(x, blocks, layers, stage)
    parts: list[tuple[str, str, Amount, Callable[..., Amount] | str]] = [
        ("weights", "weights", weights, weight_bytes),
        ("gathered", "FSDP layers in use", gathered_bytes(x, unit), gathered_bytes),
        ("gradients", "gradients", over_owners(gradient_bytes), gradient_bytes),
        ("optimizer", "optimizer state", over_owners(optimizer_bytes), optimizer_bytes),
        ("activations", "activations in flight", active, activation_bytes),
        ("logits", "logits and loss", loss, activations.logits),
        ("workspace", "workspace of one layer", workspace, workspace_bytes),
        ("fragmentation", "allocator fragmentation", fragmentation_bytes(x, held), fragmentation_bytes),
        ("graphs", "CUDA graph pools", graph_bytes(x, pooled), graph_bytes),
        (
            "context",
            "CUDA context, libraries, NCCL buffers",
            x.context_bytes + NVLS_BYTES * x.nvls,
            "a constant of the software stack; NVLink SHARP takes buffers of its own",
        ),
    ]
    if encoder and stage == "first":
        # On GPUs of its own the encoder needs less than the first stage does, which stands for it.
        own = (1 - x.enc_own) * encoder_bytes(x, encoder, flying)
        parts.append(("encoder", "encoder in the first stage", own, encoder_bytes))
    return ledger.total(
        p,
        f"peak memory, {stage} pipeline stage",
        [ledger.term(f"{p}_{name}", title, expr, "byte", formula) for name, title, expr, formula in parts],
    )


def _layer_weights(x: SimpleNamespace, blocks: Blocks, layers: Amount, stage: str) -> Amount:
    """Parameters of a mean layer of a stage. [1]"""
    whole = parameters_of(x, blocks, stage) + parameters_of(x, blocks, stage, experts=True)
    return whole / maximum(layers, 1)
