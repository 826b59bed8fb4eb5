"""Kernels of a training step on this device: products, attention, element-wise chains, optimizer, dispatch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional

from executor.workers.calibrate_timing import Entry, Meter, Part

# Tokens, outputs and inputs of products: those of models that train on a CPU, and those of layers on a GPU.
CPU_GEMMS = [
    (64, 96, 64),
    (256, 512, 256),
    (1024, 1408, 256),
    (1024, 256, 704),
    (256, 2816, 512),
    (1024, 512, 1408),
    (256, 8192, 256),
    (1024, 4096, 512),
]
GPU_GEMMS = [
    (4096, n, k) for n, k in ((1024, 1024), (4096, 4096), (10240, 8192), (8192, 28672), (57344, 8192))
]
# Sequence length, heads, head dimension; half as many key heads.
CPU_ATTENTIONS = [(64, 4, 32), (128, 8, 32), (256, 8, 32), (512, 8, 32), (512, 4, 64), (1024, 4, 64)]
GPU_ATTENTIONS = [(1024, 32, 128), (4096, 32, 128), (8192, 32, 128), (4096, 32, 64)]
# Elements of streams: inside a cache and beyond any.
CPU_STREAMS, GPU_STREAMS = [2**16, 2**20, 2**24], [2**24, 2**28]
ROWS, HIDDEN, FFN, HEADS, HEAD_DIM = 1024, 256, 704, 12, 32  # tokens and widths of element-wise kernels
GPU_SCALE = 16  # wider on a GPU
PASSES = ("forward", "dgrad", "wgrad")


def parts(cuda: bool) -> list[Part]:
    """Everything measured on one device, with what share of the time it takes."""
    found = [Part("host", "cost of dispatching", 1, host)]
    # Optimizers and loss keep FP32 products out of a GPU's step; a processor's step is made of them.
    for dtype, weight in (("bf16", 2.0),) if cuda else (("fp32", 2.0), ("bf16", 0.4)):
        shapes = GPU_GEMMS if cuda else CPU_GEMMS if dtype == "fp32" else CPU_GEMMS[1::3]
        found += [
            Part(
                "gemm",
                f"products, {dtype} {m} x {n} x {k}",
                weight,
                partial(gemm, dtype=dtype, shape=(m, n, k)),
            )
            for m, n, k in shapes
        ]
        lengths = GPU_ATTENTIONS if cuda else CPU_ATTENTIONS if dtype == "fp32" else CPU_ATTENTIONS[2::2]
        found += [
            Part(
                "attention",
                f"attention, {dtype} length {s}",
                weight,
                partial(attention, dtype=dtype, shape=(s, a, d)),
            )
            for s, a, d in lengths
        ]
    if cuda and hasattr(torch, "_scaled_mm"):
        found += [
            Part("gemm", f"products, fp8 {n} x {k}", 1, partial(gemm_fp8, shape=(m, n, k)))
            for m, n, k in GPU_GEMMS
        ]
    found += [
        Part("stream", f"copies of {size * 4 / 2**20:g} MiB", 1, partial(copies, size=size))
        for size in (GPU_STREAMS if cuda else CPU_STREAMS)
    ]
    found += [
        Part("stream", name, 1, measure)
        for name, measure in (("norms", norms), ("element-wise chains", chains))
    ]
    return [*found, Part("stream", "optimizer", 2, optimizer)]


def torch_type(dtype: str) -> torch.dtype:
    """The torch type of a format's name."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]


def gemm(meter: Meter, seconds: float, dtype: str, shape: tuple[int, int, int]) -> list[Entry]:
    """The three products of a linear layer, in the layouts that autograd gives them."""
    m, n, k = shape
    kind: Any = {"dtype": torch_type(dtype), "device": meter.device}
    # Several weights in turn, so that none stays in the cache between calls; many small calls at a time.
    number = 1 if n * k >= 2**21 or meter.cuda else 4
    weights = [torch.randn(n, k, **kind) for _ in range(number)]
    x, grad = torch.randn(m, k, **kind), torch.randn(m, n, **kind)
    grad[:16, :16].matmul(grad[:16, :16])  # the library is loaded before a first call is timed
    calls: dict[str, Callable[[Any], Any]] = {
        "forward": lambda weight: functional.linear(x, weight),
        "dgrad": lambda weight: grad.matmul(weight),
        "wgrad": lambda weight: grad.t().matmul(x),
    }
    found = []
    for name in PASSES:

        def products(call: Any = calls[name]) -> None:
            for weight in weights:
                call(weight)

        entry = meter.timed(products, seconds / len(PASSES))
        entry |= {"seconds": entry["seconds"] / number, "quick": entry["quick"] / number}
        found.append({"dtype": dtype, "pass": name, "shape": [m, n, k], **entry})
    return found


def gemm_fp8(meter: Meter, seconds: float, shape: tuple[int, int, int]) -> list[Entry]:
    """One product of FP8 operands with scales of one tensor each, as Transformer Engine runs it forward.

    That is with fast accumulation; its gradients' products add up in FP32 as they go, on Hopper. Source: common/recipe
    of 2.17.1, fp8_gemm_fprop. TensorRT-LLM, whose products the kernel tables hold, accumulates fast too (from memory).
    """
    m, n, k = shape
    kind = {"device": meter.device}
    x = torch.randn(m, k, **kind).to(torch.float8_e4m3fn)
    weight = torch.randn(n, k, **kind).to(torch.float8_e4m3fn).t()
    one = torch.ones((), **kind)

    def product() -> torch.Tensor:
        return torch._scaled_mm(
            x, weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return [{"dtype": "fp8", "pass": "forward", "shape": [m, n, k], **meter.timed(product, seconds)}]


def attention(meter: Meter, seconds: float, dtype: str, shape: tuple[int, int, int]) -> list[Entry]:
    """Causal attention in the layout that layers hand over: sequence first, half as many key heads."""
    s, heads, d = shape
    kind: Any = {"dtype": torch_type(dtype), "device": meter.device}
    q = torch.randn(s, 1, heads, d, requires_grad=True, **kind)
    k, v = (torch.randn(s, 1, heads // 2, d, requires_grad=True, **kind) for _ in range(2))
    grad = torch.randn(s, 1, heads * d, **kind)

    def attend() -> torch.Tensor:
        heads_first = (tensor.permute(1, 2, 0, 3) for tensor in (q, k, v))
        out = functional.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
        return out.permute(2, 0, 1, 3).reshape(s, 1, -1)

    def both() -> None:
        attend().backward(grad)

    forward, whole = meter.timed(attend, seconds / 3), meter.timed(both, seconds * 2 / 3)
    return [{"dtype": dtype, "shape": [s, heads, d], "forward": forward, "both": whole}]


def copies(meter: Meter, seconds: float, size: int) -> list[Entry]:
    """A copy of `size` FP32 elements: read and written."""
    source = torch.randn(size, device=meter.device)
    target = torch.empty_like(source)
    return [{"name": "copy", "bytes": 8.0 * size, **meter.timed(lambda: target.copy_(source), seconds)}]


def _widths(meter: Meter) -> tuple[int, int, int, int]:
    """Tokens, hidden and feed-forward width, bytes of an element."""
    return (ROWS * 4, HIDDEN * GPU_SCALE, FFN * GPU_SCALE, 2) if meter.cuda else (ROWS, HIDDEN, FFN, 4)


def norms(meter: Meter, seconds: float) -> list[Entry]:
    """RMSNorm forward, and with its backward pass; bytes as the cost model counts them."""
    rows, hidden, _, width = _widths(meter)
    kind: Any = {"dtype": torch.bfloat16 if meter.cuda else torch.float32, "device": meter.device}
    x = torch.randn(rows, hidden, requires_grad=True, **kind)
    weight, grad = torch.ones(hidden, requires_grad=True, **kind), torch.randn(rows, hidden, **kind)

    def norm() -> torch.Tensor:
        return functional.rms_norm(x, (hidden,), weight, 1e-5)

    size = float(rows * hidden * width)
    return [
        {"name": "norm", "bytes": 2 * size, **meter.timed(norm, seconds / 3)},
        {
            "name": "norm_both",
            "bytes": 5 * size,
            **meter.timed(lambda: norm().backward(grad), seconds * 2 / 3),
        },
    ]


def chains(meter: Meter, seconds: float) -> list[Entry]:
    """SwiGLU, rotary embedding and a residual as Megatron-Core runs them without fused kernels.

    Bytes: what the cost model counts for the fusions off (costmodel.work.elementwise): SwiGLU 5 forward and 7
    backward, rotary 6 each, residual 5 each.
    """
    rows, hidden, ffn, width = _widths(meter)
    kind: Any = {"dtype": torch.bfloat16 if meter.cuda else torch.float32, "device": meter.device}
    x, grad_x = (torch.randn(rows, hidden, **kind) for _ in range(2))
    h = torch.randn(rows, 2 * ffn, requires_grad=True, **kind)
    heads = torch.randn(rows, HEADS, HEAD_DIM, requires_grad=True, **kind)
    angles = torch.randn(rows, 1, HEAD_DIM, **kind)
    cos, sin = angles.cos(), angles.sin()
    grad_h, grad_heads = torch.randn(rows, ffn, **kind), torch.randn_like(heads)

    def chain() -> list[torch.Tensor]:
        first, second = torch.chunk(h, 2, dim=-1)
        low, high = torch.chunk(heads, 2, dim=-1)
        rotated = heads * cos + torch.cat((-high, low), dim=-1) * sin
        return [functional.silu(first) * second, rotated, x + grad_x]

    def both() -> None:
        activated, rotated, _ = chain()
        torch.autograd.backward([activated, rotated], [grad_h, grad_heads])
        # Where branch and residual meet, their gradients are added.
        torch.add(grad_x, grad_x)

    apart, rotary = 5 * rows * hidden, 6 * heads.numel()
    forward, backward = 5 * ffn * rows + rotary + apart, 7 * ffn * rows + rotary + apart
    return [
        {"name": "elementwise", "bytes": float(width * forward), **meter.timed(chain, seconds / 3)},
        {
            "name": "elementwise_both",
            "bytes": float(width * (forward + backward)),
            **meter.timed(both, seconds * 2 / 3),
        },
    ]


def optimizer(meter: Meter, seconds: float) -> list[Entry]:
    """Norm of the gradients and AdamW, over more than a cache holds, in tensors of a layer's sizes."""
    sizes = [2**24] * 4 if meter.cuda else [2**18, 2**19, 2**20, 2**20, 2**21]
    parameters = [torch.nn.Parameter(torch.randn(size, device=meter.device)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.AdamW(parameters, lr=1e-9)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()

    # Reads gradient, parameter and two moments, writes three; its norm reads the gradient again.
    return [{"name": "optimizer", "bytes": 28.0 * sum(sizes), **meter.timed(update, seconds)}]


def host(meter: Meter, seconds: float) -> list[Entry]:
    """A hundred dispatched operations on sixteen numbers: the cost is the dispatch."""
    small = torch.randn(16, device=meter.device)
    meter = Meter(False) if meter.cuda else meter  # of the host, not of the device
    entry = meter.timed(lambda: [small + 1.0 for _ in range(100)], seconds)
    return [{"name": "operation", **entry, "seconds": entry["seconds"] / 100, "quick": entry["quick"] / 100}]
