"""One decoder layer on one rank and one micro-batch: forward and backward time, part by part.

Every function writes its quantities into the ledger and returns the symbols of what it wrote, so
that `costmodel.step` can multiply them by layers and micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.term import Ledger
from costmodel.timing import kernels, overlap
from costmodel.timing.network import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
    send_recv_time,
)
from costmodel.work import attention, communication, elementwise, linear, quantisation


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one layer and micro-batch, by kind and pass, as symbols of the ledger.

    forward, backward and recompute map a kind ("linear", "attention", ...) to seconds.
    """

    forward: dict[str, Amount]
    backward: dict[str, Amount]
    recompute: Amount
    kernels_forward: Amount
    kernels_backward: Amount


def linear_gemm(
    x: SimpleNamespace, rows: Amount, columns: Amount, inner: Amount, accumulate: bool = False
) -> Amount:
    """Seconds of one GEMM of a linear layer in the recipe's format; see `costmodel.timing.kernels`. [s]

    accumulate: a weight gradient adds to an FP32 (or 16-bit) buffer, read and written.
    """
    return kernels.gemm_time(
        rows,
        columns,
        inner,
        peak=x.linear_peak,
        fraction=x.linear_fraction * x.linear_scale * x.library_scale,
        num_sms=x.gpu_sms,
        wave_weight=x.linear_wave,
        launch=x.linear_launch,
        **gemm_memory(x, rows, columns, inner, x.operand_bytes, accumulate),
    )


def model_gemm(
    x: SimpleNamespace, rows: Amount, columns: Amount, inner: Amount, accumulate: bool = False
) -> Amount:
    """Seconds of one GEMM in the model's own 16-bit (or 32-bit) format: logits. [s]"""
    return kernels.gemm_time(
        rows,
        columns,
        inner,
        peak=x.gpu_peak,
        fraction=model_gemm_fraction(x),
        num_sms=x.gpu_sms,
        wave_weight=x.gemm_wave,
        launch=x.gemm_launch,
        **gemm_memory(x, rows, columns, inner, x.activation_bytes, accumulate),
    )


def model_gemm_fraction(x: SimpleNamespace) -> Amount:
    """Fraction of the 16-bit (or 32-bit) peak that large GEMMs reach inside a step. [1]"""
    return x.gemm_fraction * x.gemm_scale * x.library_scale


def gemm_memory(
    x: SimpleNamespace, rows: Amount, columns: Amount, inner: Amount, operand_bytes: Amount, accumulate: bool
) -> dict[str, Amount]:
    """Bytes that a GEMM moves [byte] and the bandwidth a memory-bound one reaches [byte/s]."""
    output = 2 * x.grad_bytes if accumulate else x.activation_bytes
    return {
        "num_bytes": linear.gemm_bytes(rows, columns, inner, operand_bytes, output),
        "bandwidth": x.hbm_bandwidth * x.gemm_bandwidth_fraction,
    }


def stream(x: SimpleNamespace, num_bytes: Amount, fraction: Amount) -> Amount:
    """Seconds of memory-bound kernels that move `num_bytes`. [s]"""
    return kernels.stream_time(
        num_bytes, bandwidth=x.hbm_bandwidth * x.elementwise_scale * x.kernel_fusion, fraction=fraction
    )


def linear_times(ledger: Ledger, x: SimpleNamespace) -> dict[str, dict[str, Amount]]:
    """Forward, data-gradient and weight-gradient time of each linear layer, and its quantisation."""
    rows = ledger.define("tokens", linear.tokens(x), "1", linear.tokens)
    times: dict[str, dict[str, Amount]] = {}
    for layer in linear.linears(x):
        columns = ledger.define(f"{layer.name}_columns", layer.columns, "1", linear.linears)
        inner = ledger.define(f"{layer.name}_inner", layer.inner, "1", linear.linears)
        quantise_weight = x.quantise_weight_bytes * columns * inner / x.m
        quantise_forward = (
            x.quantise_input_bytes * quantisation.quantise_input_elements(x, layer) + quantise_weight
        )
        quantise_backward = x.quantise_grad_bytes * quantisation.quantise_grad_elements(x, layer)
        formulas: dict[str, tuple[Amount, Callable[..., Amount]]] = {
            "forward": (linear_gemm(x, rows, columns, inner), kernels.gemm_time),
            "dgrad": (linear_gemm(x, rows, inner, columns), kernels.gemm_time),
            "wgrad": (linear_gemm(x, columns, inner, rows, accumulate=True), kernels.gemm_time),
            "quantise_forward": (
                stream(x, quantise_forward, x.elementwise_fraction),
                quantisation.quantise_input_elements,
            ),
            "quantise_backward": (
                stream(x, quantise_backward, x.elementwise_fraction),
                quantisation.quantise_grad_elements,
            ),
        }
        times[layer.name] = {
            kind: ledger.define(f"{layer.name}_{kind}", expr, "s", formula)
            for kind, (expr, formula) in formulas.items()
        }
    return times


def attention_times(ledger: Ledger, x: SimpleNamespace) -> dict[str, Amount]:
    """Forward and backward time of the attention core, fused or not."""
    flops = ledger.define(
        "attention_flops", attention.attention_flops_forward(x), "FLOP", attention.attention_flops_forward
    )
    # A ring step sees s / cp queries at a time; an all-to-all group sees the whole sequence.
    ring = ledger.define(
        "cp_ring",
        x.cp / x.cp_a2a_size * (1 - x.cp_all_gather) + x.cp_all_gather,
        "1",
        communication.context_parallel_ring_bytes,
    )
    chunk = x.s / ring
    fused_forward = kernels.attention_time(
        flops,
        chunk,
        x.d,
        peak=x.gpu_peak,
        fraction=x.attention_forward_fraction * x.attention_scale,
        half_seq=x.attention_forward_half,
        half_dim=x.attention_half_dim,
        launch=x.attention_launch * ring,
    )
    fused_backward = kernels.attention_time(
        2.5 * flops,
        chunk,
        x.d,
        peak=x.gpu_peak,
        fraction=x.attention_backward_fraction * x.attention_scale,
        half_seq=x.attention_backward_half,
        half_dim=x.attention_half_dim,
        launch=x.attention_launch * ring,
    )
    square = attention.unfused_attention_flops(x) / (
        x.gpu_peak * model_gemm_fraction(x) * x.unfused_gemm_fraction
    )
    unfused_forward = square + stream(x, attention.unfused_score_bytes_forward(x), x.elementwise_fraction)
    unfused_backward = 2 * square + stream(
        x, attention.unfused_score_bytes_backward(x), x.elementwise_fraction
    )
    return {
        "forward": ledger.define(
            "attention_forward",
            (1 - x.unfused) * fused_forward + x.unfused * unfused_forward,
            "s",
            kernels.attention_time,
        ),
        "backward": ledger.define(
            "attention_backward",
            (1 - x.unfused) * fused_backward + x.unfused * unfused_backward,
            "s",
            kernels.attention_time,
        ),
    }


def elementwise_times(ledger: Ledger, x: SimpleNamespace) -> dict[str, Amount]:
    """Norms, rotary embedding, activation function and residuals, forward and backward."""
    parts = {
        "norm_forward": (elementwise.norm_bytes_forward, x.norm_fraction),
        "norm_backward": (elementwise.norm_bytes_backward, x.norm_backward_fraction),
        "activation_forward": (elementwise.activation_bytes_forward, x.elementwise_fraction),
        "activation_backward": (elementwise.activation_bytes_backward, x.elementwise_fraction),
        "residual_forward": (elementwise.residual_bytes_forward, x.elementwise_fraction),
        "residual_backward": (elementwise.residual_bytes_backward, x.elementwise_fraction),
        "rotary": (elementwise.rotary_bytes, x.elementwise_fraction),
    }
    return {
        name: ledger.define(f"{name}_time", stream(x, count(x), fraction), "s", count)
        for name, (count, fraction) in parts.items()
    }


def tensor_parallel_times(
    ledger: Ledger, x: SimpleNamespace, times: dict[str, dict[str, Amount]]
) -> dict[str, Amount]:
    """Exposed tensor-parallel communication of one layer, forward and backward.

    Forward: each block gathers its input and reduces its output. Backward: the row-parallel layers
    gather the output gradient (exposed), the column-parallel layers gather their input again under
    the data gradient and reduce-scatter the input gradient under the weight gradient, always in
    Megatron-Core (CUDA_DEVICE_MAX_CONNECTIONS=1). With tp_overlap every collective is pipelined with
    its GEMM in tp chunks. Without sequence parallelism both become one all-reduce a block.
    Source: arXiv:2205.05198, sec. 4.2; Megatron-Core, LinearWithGradAccumulationAndAsyncCommunication.
    """
    size = ledger.define(
        "tp_message", communication.tensor_parallel_bytes(x), "byte", communication.tensor_parallel_bytes
    )
    inside = communication.ranks_in_domain(x, x.tp, 1)
    gathered = ledger.define(
        "tp_gather_message",
        communication.tensor_parallel_gather_bytes(x),
        "byte",
        communication.tensor_parallel_gather_bytes,
    )
    gather = ledger.define("tp_all_gather", all_gather_time(x, gathered, x.tp, inside), "s", all_gather_time)
    scatter = ledger.define(
        "tp_reduce_scatter", reduce_scatter_time(x, size, x.tp, inside), "s", reduce_scatter_time
    )
    reduce = ledger.define("tp_all_reduce", all_reduce_time(x, size, x.tp, inside), "s", all_reduce_time)
    chunks = 1 + x.tp_overlap * (x.tp - 1)
    with_sp_forward: Amount = 0
    with_sp_backward: Amount = 0
    without_forward: Amount = 0
    without_backward: Amount = 0
    for column, row in (("qkv", "proj"), ("fc1", "fc2")):
        with_sp_forward += overlap.pipelined_exposed(gather, times[column]["forward"], chunks)
        with_sp_forward += overlap.pipelined_exposed(scatter, times[row]["forward"], chunks)
        with_sp_backward += overlap.pipelined_exposed(gather, times[row]["dgrad"], chunks)
        with_sp_backward += overlap.exposed(gather, times[column]["dgrad"])
        with_sp_backward += overlap.exposed(scatter, times[column]["wgrad"])
        with_sp_backward += overlap.contention(gather, times[column]["dgrad"], x.overlap_slowdown)
        with_sp_backward += overlap.contention(scatter, times[column]["wgrad"], x.overlap_slowdown)
        without_forward += reduce
        without_backward += overlap.exposed(reduce, times[column]["wgrad"])
    return {
        "forward": ledger.define(
            "tp_exposed_forward",
            x.sp * with_sp_forward + (1 - x.sp) * without_forward,
            "s",
            overlap.pipelined_exposed,
        ),
        "backward": ledger.define(
            "tp_exposed_backward",
            x.sp * with_sp_backward + (1 - x.sp) * without_backward,
            "s",
            overlap.exposed,
        ),
    }


def context_parallel_times(ledger: Ledger, x: SimpleNamespace, core: dict[str, Amount]) -> dict[str, Amount]:
    """Exposed context-parallel communication of one layer, for the four communication types.

    Ring (p2p): cp - 1 steps, each under the attention of one chunk. all_gather: exposed, gradients
    reduce-scattered. a2a: two exposed exchanges each way. a2a+p2p: all-to-all inside groups of
    cp_a2a_size, a ring between them. Source: Transformer Engine, context_parallel.py.
    """
    ring_size = communication.context_parallel_ring_bytes(x)
    inside = communication.ranks_in_domain(x, x.cp, x.tp)
    ring = x.cp / x.cp_a2a_size
    hop = ledger.define(
        "cp_ring_step",
        send_recv_time(x, ring_size, ring, communication.ranks_in_domain(x, ring, x.tp * x.cp_a2a_size)),
        "s",
        send_recv_time,
    )
    back_hop = ledger.define(
        "cp_ring_step_backward",
        send_recv_time(x, 2 * ring_size, ring, communication.ranks_in_domain(x, ring, x.tp * x.cp_a2a_size)),
        "s",
        send_recv_time,
    )
    gather_size = communication.context_parallel_gather_bytes(x)
    gather = ledger.define("cp_gather", all_gather_time(x, gather_size, x.cp, inside), "s", all_gather_time)
    scatter = ledger.define(
        "cp_scatter", reduce_scatter_time(x, gather_size, x.cp, inside), "s", reduce_scatter_time
    )
    exchange = ledger.define(
        "cp_exchange",
        all_to_all_time(
            x,
            communication.context_parallel_a2a_bytes(x),
            x.cp_a2a_size,
            communication.ranks_in_domain(x, x.cp_a2a_size, x.tp),
        ),
        "s",
        all_to_all_time,
    )
    rings = (1 - x.cp_all_gather) * (ring - 1)
    return {
        "forward": ledger.define(
            "cp_exposed_forward",
            rings * overlap.exposed(hop, core["forward"] / ring) + x.cp_all_gather * gather + exchange,
            "s",
            overlap.exposed,
        ),
        "backward": ledger.define(
            "cp_exposed_backward",
            rings * overlap.exposed(back_hop, core["backward"] / ring)
            + x.cp_all_gather * (gather + scatter)
            + exchange,
            "s",
            overlap.exposed,
        ),
    }


def layer_times(ledger: Ledger, x: SimpleNamespace) -> LayerTimes:
    """All of one dense decoder layer on one rank and one micro-batch."""
    gemms = linear_times(ledger, x)
    core = attention_times(ledger, x)
    small = elementwise_times(ledger, x)
    tensor = tensor_parallel_times(ledger, x, gemms)
    context = context_parallel_times(ledger, x, core)
    forward = {
        "linear": sum(times["forward"] for times in gemms.values()),
        "quantise": sum(times["quantise_forward"] for times in gemms.values()),
        "attention": core["forward"],
        "elementwise": small["norm_forward"]
        + small["activation_forward"]
        + small["residual_forward"]
        + small["rotary"],
        "tensor_parallel": tensor["forward"],
        "context_parallel": context["forward"],
    }
    backward = {
        "linear_dgrad": sum(times["dgrad"] for times in gemms.values()),
        "linear_wgrad": sum(times["wgrad"] for times in gemms.values()),
        "quantise": sum(times["quantise_backward"] for times in gemms.values()),
        "attention": core["backward"],
        "elementwise": small["norm_backward"]
        + small["activation_backward"]
        + small["residual_backward"]
        + small["rotary"],
        "tensor_parallel": tensor["backward"],
        "context_parallel": context["backward"],
    }
    everything = ledger.define(
        "layer_forward", sum(forward.values()), "s", "sum over the kinds of work, forward"
    )
    mlp = (
        gemms["fc1"]["forward"]
        + gemms["fc2"]["forward"]
        + gemms["fc1"]["quantise_forward"]
        + gemms["fc2"]["quantise_forward"]
        + small["activation_forward"]
        + tensor["forward"] / 2
    )
    again = x.recompute_layers * everything + (1 - x.recompute_layers) * (
        x.recompute_attention * core["forward"]
        + x.recompute_mlp * mlp
        + x.recompute_norm * small["norm_forward"]
        + x.recompute_activation * (1 - x.recompute_mlp) * small["activation_forward"]
    )
    recompute = ledger.define(
        "layer_recompute", again, "s", "forward work repeated in the backward pass, by recompute setting"
    )
    per_linear = 4 * x.quantise_kernels
    kernels_forward = ledger.define(
        "layer_kernels_forward",
        elementwise.FORWARD_KERNELS_PER_LAYER + per_linear + 4 * is_more_than_one(x.tp) + 3 * x.unfused,
        "1",
        "fused kernels, quantisation, collectives of one layer",
    )
    kernels_backward = ledger.define(
        "layer_kernels_backward",
        elementwise.BACKWARD_KERNELS_PER_LAYER
        + per_linear
        + 6 * is_more_than_one(x.tp)
        + 4 * x.unfused
        + x.recompute_layers * kernels_forward,
        "1",
        "fused kernels, quantisation, collectives of one layer",
    )
    return LayerTimes(forward, backward, recompute, kernels_forward, kernels_backward)
