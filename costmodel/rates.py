"""Seconds of amounts at the rates of a step: GEMMs in the recipe's or the model's format, streams."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.timing import kernels
from costmodel.work import linear
from costmodel.work.linear import Linear

# Share by which clock boost raises matrix rates and lowers memory bandwidth. Source: NeMo performance guide,
# vboost; NVIDIA System Management Interface, boost slider.
VBOOST_CORES, VBOOST_MEMORY = 0.03, 0.02

# GEMMs of a grouped GEMM that run side by side and share waves. Source: Transformer Engine, cublaslt_gemm.cu,
# multi_stream_cublas_gemm: one GEMM a group, over four streams.
GEMM_STREAMS = 4


def boosted(x: SimpleNamespace) -> Amount:
    """1 where clocks are boosted: asked for, on a GPU with a boost slider. [1]"""
    return x.vboost * x.boost_slider


def linear_gemm(x: SimpleNamespace, layer: Linear, kind: str, mixed: bool = False) -> Amount:
    """Seconds of the GEMM of one pass ("forward", "dgrad", "wgrad") of a linear layer. [s]

    A linear layer with M tokens, K inputs and N outputs is one GEMM (M, N, K) forward, one (M, K, N) for the
    data gradient and one (N, K, M) for the weight gradient, which adds to the gradient buffer. mixed: some
    layers of the model stay in 16 bits (bf16_share).
    """
    rows = padded_rows(x, layer) if layer.grouped else layer.rows
    shapes = {
        "forward": (rows, layer.columns, layer.inner),
        "dgrad": (rows, layer.inner, layer.columns),
        "wgrad": (layer.columns, layer.inner, rows),
    }
    accumulate = kind == "wgrad"
    if not layer.quantised:
        return model_gemm(x, *shapes[kind], accumulate=accumulate)
    uneven = x.ragged if layer.grouped and not accumulate else 0
    time = _recipe_gemm(x, layer, *shapes[kind], accumulate, uneven)
    if not mixed:
        return time
    plain = model_gemm(x, *shapes[kind], accumulate=accumulate, groups=layer.groups, uneven=uneven)
    return (1 - x.bf16_share) * time + x.bf16_share * plain


def padded_rows(x: SimpleNamespace, layer: Linear) -> Amount:
    """Rows of one group, whole tiles: an expert's last tile is computed whole. [1]

    Without dropped tokens experts have as many as their router gives each, about the mean: half a tile more on average.
    """
    return kernels.whole(layer.rows / kernels.TILE_ROWS, x.ragged) * kernels.TILE_ROWS


def _recipe_gemm(
    x: SimpleNamespace,
    layer: Linear,
    rows: Amount,
    columns: Amount,
    inner: Amount,
    accumulate: bool,
    uneven: Amount,
) -> Amount:
    fraction = (
        x.linear_fraction
        * x.linear_scale
        * x.library_scale
        * x.release_scale
        * (1 + VBOOST_CORES * boosted(x))
    )
    if accumulate and not layer.grouped:
        fraction = fraction * x.wgrad_scale
    launch, together = x.linear_launch, 1
    if layer.grouped:
        # A few streams work on the groups side by side, or one after the other. Groups of one size, a single expert
        # or experts filled to their capacity, are as fast as plain GEMMs.
        unlike = x.ragged * is_more_than_one(layer.groups)
        fraction = fraction * (1 + unlike * (x.grouped_scale - 1))
        together = x.grouped * minimum(layer.groups, GEMM_STREAMS) + (1 - x.grouped)
        launch = x.linear_launch * layer.groups / together
    repeats = layer.groups / together
    added = layer.groups * accumulation_time(x, rows, columns) if accumulate else 0
    return (
        launch
        + added
        + repeats
        * kernels.gemm_time(
            rows,
            columns,
            inner,
            peak=x.linear_peak,
            fraction=fraction,
            num_sms=x.gpu_sms,
            wave_weight=x.linear_wave,
            fill=x.linear_fill,
            launch=0,
            groups=together,
            uneven=uneven,
            **gemm_memory(x, rows, columns, inner, x.operand_bytes, together),
        )
    )


def model_gemm(
    x: SimpleNamespace,
    rows: Amount,
    columns: Amount,
    inner: Amount,
    accumulate: bool = False,
    groups: Amount = 1,
    uneven: Amount = 0,
) -> Amount:
    """Seconds of one GEMM in the model's own 16-bit (or 32-bit) format: logits, router, adapters. [s]"""
    added = groups * accumulation_time(x, rows, columns) if accumulate else 0
    return added + kernels.gemm_time(
        rows,
        columns,
        inner,
        peak=x.gpu_peak,
        fraction=model_gemm_fraction(x) * (x.wgrad_scale if accumulate else 1),
        num_sms=x.gpu_sms,
        wave_weight=x.gemm_wave,
        fill=x.gemm_fill,
        launch=x.gemm_launch,
        groups=groups,
        uneven=uneven,
        **gemm_memory(x, rows, columns, inner, x.activation_bytes, groups),
    )


def model_gemm_fraction(x: SimpleNamespace) -> Amount:
    """Fraction of the 16-bit (or 32-bit) peak that large GEMMs reach inside a step. [1]"""
    return (
        x.gemm_fraction * x.gemm_scale * x.library_scale * x.release_scale * (1 + VBOOST_CORES * boosted(x))
    )


def gemm_memory(
    x: SimpleNamespace,
    rows: Amount,
    columns: Amount,
    inner: Amount,
    operand_bytes: Amount,
    groups: Amount = 1,
) -> dict[str, Amount]:
    """Bytes that a GEMM moves [byte] and the bandwidth a memory-bound one reaches [byte/s]."""
    return {
        "num_bytes": groups * linear.gemm_bytes(rows, columns, inner, operand_bytes, x.activation_bytes),
        "bandwidth": gemm_bandwidth(x),
    }


def gemm_bandwidth(x: SimpleNamespace) -> Amount:
    """Bandwidth that a memory-bound GEMM reaches. [byte/s]"""
    return x.hbm_bandwidth * x.gemm_bandwidth_fraction * (1 - VBOOST_MEMORY * boosted(x))


def accumulation_time(x: SimpleNamespace, rows: Amount, columns: Amount) -> Amount:
    """Seconds in which a weight gradient is added to its buffer and no tile is computed. [s]

    Kernel tables are of products that write a 16-bit result. Read, added and written once a tile is done, the buffer's
    elements move 2 grad_bytes instead. Without fusion a kernel of its own adds. Sources: Megatron-Core,
    gradient_accumulation_fusion; errors of runs left out (docs/fit-history.md, where cuBLAS 13.1 alone on an H200 was
    quicker).
    """
    return accumulated_bytes(x, rows, columns) / gemm_bandwidth(x)


def accumulated_bytes(x: SimpleNamespace, rows: Amount, columns: Amount) -> Amount:
    """What a weight gradient moves beyond a 16-bit result: read and written in the gradient buffer. [byte]

    Under Megatron's FSDP written alone, into the buffer that is reduced for each micro-batch (overwrite_main_grad);
    PyTorch's adds nothing, copies of what it keeps apart: see `costmodel.fully_sharded.flat_copies`.
    Source: Megatron-Core 0.16.1, megatron_fsdp.py, _init_fsdp_param_and_grad_buffer.
    """
    summed = 2 * x.grad_bytes - x.activation_bytes
    written = (1 - torch_gradients(x)) * (x.grad_bytes - x.activation_bytes)
    return (1 - x.accumulate_split) * ((1 - x.fsdp) * summed + x.fsdp * written) * rows * columns


def added_apart(x: SimpleNamespace, weights: Amount) -> Amount:
    """Seconds in which kernels of their own add gradients of so many weights to their buffer: no product does. [s]

    Under Megatron's FSDP they are copied into one (_grad_acc of megatron_fsdp.py).
    """
    moved = (2 - x.fsdp) * x.grad_bytes + x.weight_bytes
    return stream(x, apart_gradients(x) * moved * weights, x.elementwise_fraction)


def apart_gradients(x: SimpleNamespace) -> Amount:
    """1 where a kernel of its own adds the gradient of a weight to the buffer: no product does, nor autograd. [1]

    Source: Megatron-Core 0.16.1, distributed_data_parallel.py, _make_backward_post_hook (param.main_grad.add_).
    """
    return x.accumulate_split * (1 - torch_gradients(x))


def torch_gradients(x: SimpleNamespace) -> Amount:
    """1 where weight gradients are autograd's own tensors: under PyTorch's FSDP. [1]"""
    return x.fsdp * maximum(x.fsdp1, x.fsdp2, x.fsdp_copies)


def stream(x: SimpleNamespace, num_bytes: Amount, fraction: Amount) -> Amount:
    """Seconds of memory-bound kernels that move `num_bytes`: activations, residuals, copies, losses. [s]"""
    return _stream(x, num_bytes, fraction, x.elementwise_scale)


def tuned_stream(x: SimpleNamespace, num_bytes: Amount, fraction: Amount) -> Amount:
    """Seconds of kernels written by hand for their bytes: norms, casts, passes over parameters and their states. [s]

    One constant for every GPU: fitted apart, each of the three kinds came out alike on every generation that has it
    (docs/fit-history.md).
    """
    return _stream(x, num_bytes, fraction, x.tuned_stream_scale)


def _stream(x: SimpleNamespace, num_bytes: Amount, fraction: Amount, scale: Amount) -> Amount:
    kernels_rate = scale * x.release_scale
    bandwidth = x.hbm_bandwidth * kernels_rate * (1 - VBOOST_MEMORY * boosted(x))
    return kernels.stream_time(num_bytes, bandwidth=bandwidth, fraction=fraction)


def outlasted(x: SimpleNamespace, seconds: Amount, cycles: Amount) -> Amount:
    """Seconds of kernels whose bytes take `seconds`, or whose `cycles` of one SM take longer on all of them. [s]"""
    if isinstance(cycles, int) and not cycles:
        return seconds
    boost = 1 + VBOOST_CORES * boosted(x)
    return maximum(seconds, cycles / (x.sm_cycles * boost * x.release_scale))


def half_length(x: SimpleNamespace, name: str) -> Amount:
    """`half_seq` of a mean attention block: of windows and of whole sequences. [1]

    It stands for keys that a query costs beside those it meets, and such keys add up over blocks.
    """
    whole, window = getattr(x, f"attention_{name}_half"), getattr(x, f"attention_{name}_half_window")
    return (1 - x.window_share) * whole + x.window_share * window
