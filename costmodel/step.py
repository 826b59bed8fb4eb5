"""One training step of a dense decoder as a tree of terms that sum to the step time."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel import schedule
from costmodel.amount import Amount, is_more_than_one, logarithm2, maximum
from costmodel.layer import LayerTimes, layer_times, model_gemm, stream
from costmodel.memory import rank_memory
from costmodel.symbols import symbol_table
from costmodel.term import Ledger, Term
from costmodel.timing import host, kernels, overlap
from costmodel.timing.network import all_gather_time, all_reduce_time, reduce_scatter_time, send_recv_time
from costmodel.work import communication, linear, parameters, vocabulary

# What search needs to rank plans and to see whether they fit.
SEARCH_OUTPUTS = ("step_time", "peak_memory", "model_flops")


def model_flops(x: SimpleNamespace) -> Amount:
    """FLOPs of one step over all GPUs without recompute, causal attention counted by half. [FLOP]

    6 FLOPs a weight and token (2 forward, 4 backward), logits included, and 3 x the attention core
    (backward as twice forward, as published MFU counts it). Independent of the plan but for
    vocabulary padding. Source: arXiv:2104.04473, appendix; causal half as Megatron-Bridge reports.
    """
    weights = x.L * ((x.a + 2 * x.k) * x.d * x.h + x.a * x.d * x.h + (2 + x.gates) * x.h * x.f) + x.V * x.h
    core = 3 * 2 * x.L * x.a * x.d * x.s
    return x.b * x.m * x.dp * x.s * (6 * weights + core)


def vocabulary_times(ledger: Ledger, x: SimpleNamespace) -> tuple[Amount, Amount]:
    """Time of the embedding and of logits with loss, forward and backward, one micro-batch."""
    rows, columns = linear.tokens(x), linear.padded_vocabulary(x) / x.tp
    size = communication.tensor_parallel_bytes(x)
    inside = communication.ranks_in_domain(x, x.tp, 1)
    gemms = (
        model_gemm(x, rows, columns, x.h)
        + model_gemm(x, rows, x.h, columns)
        + model_gemm(x, columns, x.h, rows, accumulate=True)
    )
    logits = ledger.define("logits_gemms", gemms, "s", kernels.gemm_time)
    loss = ledger.define(
        "loss_time",
        stream(x, vocabulary.cross_entropy_bytes(x), x.elementwise_fraction),
        "s",
        vocabulary.cross_entropy_bytes,
    )
    traffic = ledger.define(
        "vocabulary_tp",
        x.sp * (2 * all_gather_time(x, size, x.tp, inside) + 2 * reduce_scatter_time(x, size, x.tp, inside))
        + (1 - x.sp) * 2 * all_reduce_time(x, size, x.tp, inside)
        + 3 * all_reduce_time(x, 4 * rows, x.tp, inside),
        "s",
        "gather and reduce around the vocabulary-parallel layers; three all-reduces of the loss",
    )
    embedding = ledger.define(
        "embedding_time",
        stream(x, vocabulary.embedding_bytes(x), x.elementwise_fraction),
        "s",
        vocabulary.embedding_bytes,
    )
    return embedding, logits + loss + traffic


def stage_times(ledger: Ledger, x: SimpleNamespace, layer: Amount) -> dict[str, Amount]:
    """Time of one micro-batch, forward and backward, on first, middle and last stage; slowest and sum. [s]

    The slowest stage sets the pace of the pipeline: what its embedding or logits add to the layers of a
    middle stage is paid by every micro-batch. Source: D. Narayanan et al., arXiv:2104.04473, sec. 2.2.
    """
    embedding, output = vocabulary_times(ledger, x)
    middle_layers = ledger.define(
        "middle_stage_layers", schedule.layers_of_middle_stage(x), "1", schedule.layers_of_middle_stage
    )
    several = is_more_than_one(x.pp)
    third = is_more_than_one(x.pp) * is_more_than_one(maximum(x.pp - 1, 1))
    first = ledger.define(
        "first_stage_time",
        schedule.layers_of_first_stage(x) * layer + embedding + (1 - several) * output,
        "s",
        schedule.layers_of_first_stage,
    )
    last = ledger.define(
        "last_stage_time",
        schedule.layers_of_last_stage(x) * layer + output + (1 - several) * embedding,
        "s",
        schedule.layers_of_last_stage,
    )
    middle = ledger.define(
        "middle_stage_time", third * middle_layers * layer, "s", schedule.layers_of_middle_stage
    )
    slowest = ledger.define(
        "slowest_stage_time",
        maximum(first, maximum(middle, last)),
        "s",
        "the slowest stage sets the pace of the pipeline",
    )
    every = x.L * layer + embedding + output
    return {
        "layer": layer,
        "slowest": slowest,
        "all": every,
        "embedding": embedding,
        "output": output,
        "middle_layers": middle_layers,
    }


def pipeline_term(ledger: Ledger, x: SimpleNamespace, stages: dict[str, Amount]) -> list[Term]:
    """Bubble and exposed send/recv.

    The bubble is the time in which a stage waits while the pipe fills and drains: the time of the
    other stages for one micro-batch, over vpp. Equal stages give (pp - 1) / (vpp m) of the ideal time.
    """
    bubble = (stages["all"] - stages["slowest"]) / x.vpp * is_more_than_one(x.pp)
    hop = ledger.define(
        "pp_send_recv",
        send_recv_time(x, communication.pipeline_bytes(x), x.pp, communication.pipeline_ranks_in_domain(x)),
        "s",
        send_recv_time,
    )
    hidden = x.overlap_p2p * is_more_than_one(x.vpp)
    sends = 2 * x.m * x.vpp * hop * (1 - hidden) + 2 * (x.pp - 1) * hop
    return [
        ledger.term(
            "pipeline_bubble", "pipeline bubble", maximum(0, bubble), "s", schedule.bubble_over_ideal
        ),
        ledger.term(
            "pipeline_send_recv", "pipeline send/recv, exposed", sends, "s", communication.pipeline_bytes
        ),
    ]


def data_parallel_terms(ledger: Ledger, x: SimpleNamespace, forward: Amount, backward: Amount) -> list[Term]:
    """Exposed data-parallel communication: reduction of gradients, gather of parameters.

    Distributed optimizer: once a step, gradients under the last micro-batch's backward pass and
    parameters under the first forward pass; with pipeline stages the flush and the fill hide the
    same amount. FSDP: parameters are gathered layer by layer for every micro-batch, forward and (when
    parameters are sharded) backward, gradients reduced each backward pass, each under one layer's
    compute. Source: arXiv:1910.02054; Megatron-Core, DistributedOptimizer; Megatron-FSDP.
    """
    weights = ledger.define("dp_parameters", parameters_of_worst_stage(x), "1", parameters_of_worst_stage)
    ranks = communication.data_parallel_ranks(x)
    inside = communication.ranks_in_domain(x, ranks, x.tp)
    reduce_size = communication.gradient_bytes(x, weights)
    gather_size = communication.gather_bytes(x, weights)
    scatter = ledger.define(
        "dp_reduce_scatter", reduce_scatter_time(x, reduce_size, ranks, inside), "s", reduce_scatter_time
    )
    gather = ledger.define(
        "dp_all_gather", all_gather_time(x, gather_size, ranks, inside), "s", all_gather_time
    )
    layers = schedule.layers_of_middle_stage(x)
    first_bucket = 1 / maximum(layers, 1)
    usable_backward = x.overlap_reduce * layers * backward * (1 - first_bucket)
    usable_forward = x.overlap_gather * layers * forward * (1 - first_bucket)
    scatter_exposed = overlap.exposed(scatter, usable_backward) + overlap.contention(
        scatter, usable_backward, x.overlap_slowdown
    )
    gather_exposed = overlap.exposed(gather, usable_forward) + overlap.contention(
        gather, usable_forward, x.overlap_slowdown
    )
    # Without sharding one all-reduce does both; it is a reduce-scatter and a gather of gradients.
    all_reduce = ledger.define(
        "dp_all_reduce", all_reduce_time(x, reduce_size, ranks, inside), "s", all_reduce_time
    )
    plain = overlap.exposed(all_reduce, usable_backward) + overlap.contention(
        all_reduce, usable_backward, x.overlap_slowdown
    )
    shard_inside = communication.ranks_in_domain(x, x.shard, x.tp)
    unit = ledger.define(
        "fsdp_layer_parameters", parameters.layer_parameters(x), "1", parameters.layer_parameters
    )
    unit_gather = ledger.define(
        "fsdp_gather",
        all_gather_time(x, communication.gather_bytes(x, unit), x.shard, shard_inside),
        "s",
        all_gather_time,
    )
    unit_scatter = ledger.define(
        "fsdp_scatter",
        reduce_scatter_time(x, communication.gradient_bytes(x, unit), x.shard, shard_inside),
        "s",
        reduce_scatter_time,
    )
    backward_traffic = x.params_sharded * unit_gather + unit_scatter
    under_forward = x.overlap_gather * forward
    under_backward = x.overlap_reduce * backward
    per_layer = (
        overlap.exposed(unit_gather * x.params_sharded, under_forward)
        + overlap.contention(unit_gather * x.params_sharded, under_forward, x.overlap_slowdown)
        + overlap.exposed(backward_traffic, under_backward)
        + overlap.contention(backward_traffic, under_backward, x.overlap_slowdown)
    )
    # Beyond the sharding group (HSDP) replicas all-reduce their shards of the gradients once a step.
    replicas = ranks / x.shard
    replica_inside = communication.ranks_in_domain(x, replicas, x.tp * x.shard)
    replica = ledger.define(
        "fsdp_replica_reduce",
        all_reduce_time(x, reduce_size / x.shard, replicas, replica_inside),
        "s",
        all_reduce_time,
    )
    edges = (
        unit_gather
        + unit_scatter
        + (1 - x.params_sharded) * gather_exposed
        + overlap.exposed(replica, usable_backward)
    )
    fsdp = x.m * layers * per_layer + edges
    reduce_exposed = x.optimizer_sharded * scatter_exposed + (1 - x.optimizer_sharded) * plain
    return [
        ledger.term(
            "dp_gradients",
            "gradient reduction, exposed",
            (1 - x.fsdp) * reduce_exposed,
            "s",
            data_parallel_terms,
        ),
        ledger.term(
            "dp_gather",
            "parameter gather, exposed",
            (1 - x.fsdp) * x.optimizer_sharded * gather_exposed,
            "s",
            data_parallel_terms,
        ),
        ledger.term(
            "fsdp_exposed", "FSDP gathers and reductions, exposed", x.fsdp * fsdp, "s", data_parallel_terms
        ),
    ]


def parameters_of_worst_stage(x: SimpleNamespace) -> Amount:
    """Parameters of the fullest rank: a middle stage's layers and the larger vocabulary layer. [1]"""
    one_stage = 1 - is_more_than_one(x.pp)
    vocabulary_part = parameters.embedding_parameters(x) + one_stage * parameters.output_parameters(x)
    return schedule.layers_of_first_stage(x) * parameters.layer_parameters(x) + vocabulary_part


def optimizer_time(x: SimpleNamespace, weights: Amount) -> Amount:
    """Adam over one rank's shard: read gradient, master and moments, write back, write the parameter. [s]

    2 state_bytes + grad_bytes + weight_bytes an element, and the gradient once more for its norm and
    once to be zeroed (whole buffer). Source: TE FusedAdam, multi_tensor_adam.cu.
    """
    share = 1 - x.optimizer_sharded + x.optimizer_sharded / x.shard
    shard = (2 * x.state_bytes + 2 * x.grad_bytes + x.weight_bytes) * weights * share
    zeroed = x.grad_bytes * weights * (1 - x.grads_sharded + x.grads_sharded / x.shard)
    return stream(x, shard + zeroed, x.stream_fraction)


def dense_step() -> tuple[Ledger, dict[str, Term]]:
    """Ledger of one step of a dense decoder, with trees `step_time`, `memory_first`, `memory_last`."""
    x = symbol_table()
    ledger = Ledger()
    times = layer_times(ledger, x)
    forward = ledger.define(
        "layer_forward_time", sum(times.forward.values()), "s", "sum over the kinds of work, forward"
    )
    backward = ledger.define(
        "layer_backward_time",
        sum(times.backward.values()) + times.recompute,
        "s",
        "sum over the kinds of work, backward, with recompute",
    )
    gaps = ledger.define(
        "layer_launch_gaps",
        host.launch_gaps(
            times.kernels_forward + times.kernels_backward, x.kernel_launch, x.graph_launch, x.graph
        ),
        "s",
        host.launch_gaps,
    )
    layer = ledger.define(
        "layer_time", forward + backward + gaps, "s", "forward, backward and launch gaps of one layer"
    )
    stages = stage_times(ledger, x, layer)
    trees = compute_trees(ledger, x, times, stages, gaps)
    micro_batch_kernels = stages["middle_layers"] * (times.kernels_forward + times.kernels_backward)
    waiting = host.host_exposed(micro_batch_kernels, x.host_kernel, stages["slowest"], x.graph)
    trees.append(ledger.term("host_bound", "waiting for the host", x.m * waiting, "s", host.host_exposed))
    trees += pipeline_term(ledger, x, stages)
    trees += data_parallel_terms(ledger, x, forward, backward)
    import sympy

    weights = sympy.Symbol("dp_parameters", nonnegative=True)
    trees.append(
        ledger.term("optimizer_step", "optimizer step", optimizer_time(x, weights), "s", optimizer_time)
    )
    trees.append(
        ledger.term(
            "step_fixed",
            "data loading, logging, gradient norm",
            x.step_overhead,
            "s",
            "a constant of the software stack",
        )
    )
    busy = ledger.total("synchronous_time", "step before stragglers", trees)
    slow = (
        x.straggler * logarithm2(communication.world(x)) * sympy.Symbol("synchronous_time", nonnegative=True)
    )
    straggler = ledger.term(
        "straggler_time", "slowest rank and jitter", slow, "s", "straggler x log2(GPUs) x step"
    )
    step = ledger.total("step_time", "step", (*busy.parts, straggler))
    ledger.define("model_flops", model_flops(x), "FLOP", model_flops)
    ledger.define("world", communication.world(x), "1", communication.world)
    memory = rank_memory(ledger, x)
    return ledger, {"step_time": step, **memory}


def compute_trees(
    ledger: Ledger, x: SimpleNamespace, times: LayerTimes, stages: dict[str, Amount], gaps: Amount
) -> list[Term]:
    """Compute of the pace-setting stage over all micro-batches, by kind; parts sum to m x its time."""
    share = x.m * stages["middle_layers"]
    names = {
        "linear": "linear layers",
        "quantise": "quantisation",
        "attention": "attention core",
        "elementwise": "element-wise",
        "tensor_parallel": "tensor-parallel communication, exposed",
        "context_parallel": "context-parallel communication, exposed",
    }
    forward = [
        ledger.term(f"forward_{kind}", names[kind], share * seconds, "s", linear_or(kind))
        for kind, seconds in times.forward.items()
    ]
    names |= {
        "linear_dgrad": "linear layers, data gradient",
        "linear_wgrad": "linear layers, weight gradient",
    }
    backward = [
        ledger.term(f"backward_{kind}", names[kind], share * seconds, "s", linear_or(kind))
        for kind, seconds in times.backward.items()
    ]
    backward.append(
        ledger.term(
            "recompute",
            "recompute",
            share * times.recompute,
            "s",
            "forward work repeated in the backward pass",
        )
    )
    layers_of_pace = stages["middle_layers"] * stages["layer"]
    return [
        ledger.total("forward", "forward pass, layers", forward),
        ledger.total("backward", "backward pass, layers", backward),
        ledger.term("launch_gaps", "gaps between kernels", share * gaps, "s", host.launch_gaps),
        ledger.term(
            "vocabulary",
            "embedding, logits and loss on the slowest stage",
            x.m * (stages["slowest"] - layers_of_pace),
            "s",
            stage_times,
        ),
    ]


def linear_or(kind: str) -> str:
    """Formula that a kind of work comes from."""
    return {
        "linear": "costmodel.timing.kernels.gemm_time",
        "linear_dgrad": "costmodel.timing.kernels.gemm_time",
        "linear_wgrad": "costmodel.timing.kernels.gemm_time",
        "quantise": "costmodel.work.quantisation.quantise_input_elements",
        "attention": "costmodel.timing.kernels.attention_time",
        "elementwise": "costmodel.timing.kernels.stream_time",
        "tensor_parallel": "costmodel.layer.tensor_parallel_times",
        "context_parallel": "costmodel.layer.context_parallel_times",
    }[kind]
