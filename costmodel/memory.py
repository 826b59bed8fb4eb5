"""Memory of one rank by component, for the first and the last pipeline stage.

The first stage holds most micro-batches in flight, the last one the logits; the worst of both is
compared with the device. Amounts come from `costmodel.work`; here they are multiplied by layers,
copies and micro-batches in flight.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel import schedule
from costmodel.amount import Amount, is_more_than_one, maximum
from costmodel.term import Ledger, Term
from costmodel.work import activations, linear, parameters

STAGES = ("first", "last")


def weight_bytes(x: SimpleNamespace, linear_weights: Amount, all_weights: Amount) -> Amount:
    """Parameters in the model's format plus quantised copies of the linear weights. [byte]

    With fp8_param_gather the copies replace the linear weights' 16-bit originals: nothing is saved where
    row-wise and column-wise copies are 2 bytes together (Hopper, MXFP8). FSDP with ZeRO 3 keeps
    1 / shard of them. Source: S. Rajbhandari et al., SC 2020, arXiv:1910.02054.
    """
    copies = (x.quantised_copy_bytes - x.param_gather * x.weight_bytes) * linear_weights
    whole = x.weight_bytes * all_weights + copies
    return whole * (1 - x.params_sharded + x.params_sharded / x.shard)


def gathered_bytes(x: SimpleNamespace, layer_weights: Amount) -> Amount:
    """FSDP: parameters of two layers gathered (one in use, one prefetched) and gradients of two. [byte]

    Source: PyTorch FSDP2 and Megatron-FSDP prefetch one unit ahead.
    """
    return 2 * layer_weights * (x.params_sharded * x.weight_bytes + x.grads_sharded * x.grad_bytes)


def gradient_bytes(x: SimpleNamespace, all_weights: Amount) -> Amount:
    """Gradient buffer, in the reduction's format; 1 / shard of it from ZeRO 2 on. [byte]"""
    return x.grad_bytes * all_weights * (1 - x.grads_sharded + x.grads_sharded / x.shard)


def optimizer_bytes(x: SimpleNamespace, all_weights: Amount) -> Amount:
    """Master parameters and both Adam moments; 1 / shard of them when sharded. [byte]

    12 bytes a parameter: 4 + 4 + 4, less with the precision-aware optimizer. Source: arXiv:1910.02054,
    sec. 3.1; Megatron-Core dry run, 12 params / DP to the byte.
    """
    return x.state_bytes * all_weights * (1 - x.optimizer_sharded + x.optimizer_sharded / x.shard)


def activation_bytes(x: SimpleNamespace, layers: Amount, in_flight: Amount, per_layer: Amount) -> Amount:
    """Activations of all layers of a stage and all micro-batches in flight. [byte]

    Layers with full recompute keep their input alone.
    """
    kept = x.recompute_layers * activations.layer_input(x) + (1 - x.recompute_layers) * per_layer
    return layers * in_flight * kept


def workspace_bytes(x: SimpleNamespace, per_layer: Amount) -> Amount:
    """The one layer being computed: recomputed activations, or temporaries of the widest linear layer. [byte]

    With recompute (full, or of the MLP or attention) one whole layer's activations exist while it is
    differentiated; without, the gradients of FC1's output and its gathered input.
    """
    widest = linear.tokens(x) * (
        2 * (1 + x.gates) * x.activation_bytes * x.f / x.tp + 2 * x.activation_bytes * x.h
    )
    return x.recompute_layers * per_layer + widest


def graph_bytes(x: SimpleNamespace, held: Amount) -> Amount:
    """Private memory pools of CUDA graphs: buffers they hold fast between replays. [byte]

    A share of activations, logits and workspace. Source: one published pair, 85.89 GiB without and 119.80
    with graphs (Megatron-Bridge, CUDA graph notes); full-iteration graphs can take more.
    """
    return x.graph * x.graph_pool * held


def rank_memory(ledger: Ledger, x: SimpleNamespace) -> dict[str, Term]:
    """Breakdown of the first and the last stage's rank, and the worst of them as entry `peak_memory`."""
    per_layer = ledger.define(
        "layer_activation_bytes", activations.layer_activations(x), "byte", activations.layer_activations
    )
    layer_weights = ledger.define(
        "layer_weights", parameters.layer_parameters(x), "1", parameters.layer_parameters
    )
    linear_weights = ledger.define(
        "layer_linear_weights", linear.linear_weights(x), "1", linear.linear_weights
    )
    one_stage = 1 - is_more_than_one(x.pp)
    embedding, output = parameters.embedding_parameters(x), parameters.output_parameters(x)
    trees: dict[str, Term] = {}
    for stage in STAGES:
        first = stage == "first"
        layers = ledger.define(
            f"{stage}_stage_layers",
            schedule.layers_of_first_stage(x) if first else schedule.layers_of_last_stage(x),
            "1",
            schedule.layers_of_first_stage if first else schedule.layers_of_last_stage,
        )
        vocabulary = embedding + one_stage * output if first else output + one_stage * embedding
        weights = ledger.define(
            f"{stage}_stage_parameters", layers * layer_weights + vocabulary, "1", parameters.layer_parameters
        )
        in_flight = ledger.define(
            f"{stage}_stage_in_flight",
            schedule.in_flight_first_stage(x) if first else schedule.in_flight_last_stage(x),
            "1",
            schedule.in_flight_first_stage if first else schedule.in_flight_last_stage,
        )
        has_loss = one_stage if first else 1
        loss = has_loss * (activations.logits(x) + activations.output_input(x))
        fragmented = activation_bytes(x, layers, in_flight, per_layer) + loss + workspace_bytes(x, per_layer)
        p = f"memory_{stage}"
        trees[f"memory_{stage}"] = ledger.total(
            p,
            f"peak memory, {stage} pipeline stage",
            [
                ledger.term(
                    f"{p}_weights",
                    "weights",
                    weight_bytes(x, layers * linear_weights, weights),
                    "byte",
                    weight_bytes,
                ),
                ledger.term(
                    f"{p}_gathered",
                    "FSDP layers in use",
                    gathered_bytes(x, layer_weights),
                    "byte",
                    gathered_bytes,
                ),
                ledger.term(
                    f"{p}_gradients", "gradients", gradient_bytes(x, weights), "byte", gradient_bytes
                ),
                ledger.term(
                    f"{p}_optimizer", "optimizer state", optimizer_bytes(x, weights), "byte", optimizer_bytes
                ),
                ledger.term(
                    f"{p}_activations",
                    "activations in flight",
                    activation_bytes(x, layers, in_flight, per_layer),
                    "byte",
                    activation_bytes,
                ),
                ledger.term(f"{p}_logits", "logits and loss", loss, "byte", activations.logits),
                ledger.term(
                    f"{p}_workspace",
                    "workspace of one layer",
                    workspace_bytes(x, per_layer),
                    "byte",
                    workspace_bytes,
                ),
                ledger.term(
                    f"{p}_fragmentation",
                    "allocator fragmentation",
                    x.fragmentation * fragmented,
                    "byte",
                    "fragmentation x (activations + logits + workspace)",
                ),
                ledger.term(
                    f"{p}_graphs", "CUDA graph pools", graph_bytes(x, fragmented), "byte", graph_bytes
                ),
                ledger.term(
                    f"{p}_context",
                    "CUDA context, libraries, NCCL buffers",
                    x.context_bytes,
                    "byte",
                    "a constant of the software stack",
                ),
            ],
        )
    import sympy

    worst = maximum(
        sympy.Symbol("memory_first", nonnegative=True), sympy.Symbol("memory_last", nonnegative=True)
    )
    ledger.define(
        "peak_memory",
        worst,
        "byte",
        "the larger of the first and the last stage",
        "peak memory of the worst rank",
    )
    return trees
