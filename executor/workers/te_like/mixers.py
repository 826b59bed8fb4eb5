"""Kernels of recurrent mixers: mamba_ssm, causal_conv1d, flash-linear-attention, and the few uses of einops.

FLOPs of the scans are those of the chunked algorithms, with each kernel's own chunk; backward 2.5 times as many.
Sources: mamba_ssm, ssd_combined.py and layernorm_gated.py; flash-linear-attention, gated_delta_rule/chunk.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from executor.workers.count import LEDGER

BACKWARD = 2.5
DELTA_CHUNK = 64


class MambaScan(torch.autograd.Function):
    """Convolution, scan and gate in one function: keeps the projected input and the output before the gate."""

    @staticmethod
    def forward(ctx: Any, zxbcdt: torch.Tensor, flops: float, inner: int, *vectors: torch.Tensor) -> Any:
        LEDGER.kernel(7)
        LEDGER.flop("scan", flops)
        ctx.flops = flops
        out = zxbcdt.new_empty((*zxbcdt.shape[:-1], inner))
        ctx.save_for_backward(zxbcdt, torch.empty_like(out), *vectors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel(14)
        LEDGER.flop("scan", BACKWARD * ctx.flops)
        zxbcdt, _, *vectors = ctx.saved_tensors
        return torch.empty_like(zxbcdt), None, None, *(torch.empty_like(vector) for vector in vectors)


def mamba_scan(
    zxbcdt: Any,
    weight: Any,
    bias: Any,
    dt_bias: Any,
    a: Any,
    D: Any = None,
    chunk_size: int = 256,
    headdim: int | None = None,
    ngroups: int = 1,
    **_: Any,
) -> Any:
    """mamba_split_conv1d_scan_combined."""
    heads = a.shape[0]
    head_dim = headdim or D.shape[-1]
    inner = heads * head_dim
    state = (weight.shape[0] - inner) // (2 * ngroups)
    tokens = zxbcdt.shape[0] * zxbcdt.shape[1]
    inside = chunk_size / 2 * (ngroups * state + inner)
    flops = 2 * tokens * (inside + 2 * inner * state)
    return MambaScan.apply(zxbcdt, flops, inner, weight, bias, dt_bias, a, D)


class GatedNormFunction(torch.autograd.Function):
    """RMSNorm in groups; keeps its input and a statistic a group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
        LEDGER.kernel()
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], groups), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight), None


class GatedNorm(torch.nn.Module):
    """mamba_ssm.ops.triton.layernorm_gated.RMSNorm."""

    def __init__(self, hidden_size: int, group_size: int | None = None, dtype: Any = None, **_: Any) -> None:
        super().__init__()
        self.groups = hidden_size // (group_size or hidden_size)
        self.weight = Parameter(torch.empty(hidden_size, dtype=dtype))

    def forward(self, x: torch.Tensor) -> Any:
        """Normalised by group."""
        return GatedNormFunction.apply(x, self.weight, self.groups)


class Convolution(torch.autograd.Function):
    """Causal convolution with its activation: keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        LEDGER.kernel()
        ctx.save_for_backward(x, weight)
        ctx.with_bias = bias is not None
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        x, weight = ctx.saved_tensors
        bias = weight.new_empty(weight.shape[0]) if ctx.with_bias else None
        return torch.empty_like(x), torch.empty_like(weight), bias


def causal_conv1d(x: Any, weight: Any, bias: Any = None, **_: Any) -> Any:
    """causal_conv1d_fn."""
    return Convolution.apply(x, weight, bias)


def strided_conv1d(x: Any, weight: Any, bias: Any = None, **_: Any) -> Any:
    """fla.modules.convolution.causal_conv1d, which Megatron-Core calls from 0.18 on: tokens as they lie."""
    return Convolution.apply(x, weight, bias), None


class L2Norm(torch.autograd.Function):
    """Keeps its output and a statistic a row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        LEDGER.kernel()
        out = torch.empty_like(x)
        ctx.save_for_backward(out, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        return torch.empty_like(grad)


class DeltaRule(torch.autograd.Function):
    """The gated delta rule in chunks: keeps q, k, v, the summed gate, beta, and a chunk-wide matrix a head."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
        LEDGER.kernel(6)
        b, s, heads, dk = k.shape
        dv = v.shape[-1]
        inside = DELTA_CHUNK * (2 * dk + 1.5 * dv)
        ctx.flops = 2 * b * s * heads * (inside + 3 * dk * dv)
        LEDGER.flop("scan", ctx.flops)
        inverse = k.new_empty((b, s, heads, DELTA_CHUNK))
        ctx.save_for_backward(q, k, v, torch.empty_like(g), beta, inverse)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel(12)
        LEDGER.flop("scan", BACKWARD * ctx.flops)
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:5])


def delta_rule(q: Any, k: Any, v: Any, g: Any = None, beta: Any = None, **_: Any) -> Any:
    """chunk_gated_delta_rule."""
    return DeltaRule.apply(q, k, v, g, beta), None


class Gate(torch.autograd.Function):
    """A tensor times a function of its gate, compiled into one kernel: keeps both as they came."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        LEDGER.kernel()
        # Fails as the compiled function does in 0.16.1 where ranks share a key-value head.
        gate.reshape(x.shape)
        ctx.save_for_backward(x, gate)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        x, gate = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(gate)


def apply_output_gate(_: Any, x: torch.Tensor, gate: torch.Tensor) -> Any:
    """Attention._apply_output_gate of Megatron-Core, which it compiles (jit_fuser)."""
    return Gate.apply(x, gate)


def quick_gelu(gate: torch.Tensor) -> Any:
    """quick_gelu of Megatron-Core, fused_bias_geglu.py, which it compiles: a tensor times a sigmoid of itself."""
    return Gate.apply(gate, gate)


def apply_gated_norm(layer: Any, x: torch.Tensor, gate: torch.Tensor) -> Any:
    """GatedDeltaNet._apply_gated_norm of Megatron-Core: Transformer Engine's norm runs outside what is compiled."""
    return Gate.apply(layer.out_norm(x.reshape(-1, x.shape[-1])), gate.reshape(-1, gate.shape[-1]))


class Decay(torch.autograd.Function):
    """Decay and step sizes of the gated delta rule, compiled into one kernel: keeps what came in."""

    @staticmethod
    def forward(ctx: Any, a_log: Any, dt_bias: Any, alpha: torch.Tensor, beta: torch.Tensor) -> Any:
        LEDGER.kernel()
        ctx.save_for_backward(a_log, dt_bias, alpha, beta)
        return torch.empty_like(alpha, dtype=torch.float32), torch.empty_like(beta)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        LEDGER.kernel()
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


def compute_g_and_beta(_: Any, *tensors: torch.Tensor) -> Any:
    """GatedDeltaNet._compute_g_and_beta of Megatron-Core, which it compiles from 0.18 on."""
    return Decay.apply(*tensors)


def rearrange(x: Any, pattern: str, **sizes: int) -> Any:
    """The patterns of einops that Megatron-Core's Mamba mixer and its groups of groups use."""
    if pattern == "(l s u) -> (l u) s":
        each, size = sizes["u"], sizes["s"]
        return x.reshape(-1, size, each).swapaxes(1, 2).reshape(-1, size)
    if pattern in ("l b d -> b l d", "b l d -> l b d"):
        return x.transpose(0, 1)
    if pattern == "d 1 w -> d w":
        return x.squeeze(1)
    if pattern == "(h p) -> h p":
        return x.view(-1, sizes["p"])
    raise NotImplementedError(f"einops pattern {pattern!r}")


def repeat(x: torch.Tensor, pattern: str, g: int = 1, n: int = 1, r: int = 1) -> torch.Tensor:
    """The pattern of einops that Megatron-Core's context-parallel Mamba uses: groups repeated for the ranks."""
    if pattern != "l b (g n) -> l b (g r n)":
        raise NotImplementedError(f"einops pattern {pattern!r}")
    groups = x.unflatten(-1, (g, n)).repeat_interleave(r, dim=2)
    return groups.flatten(2)


PROVIDED: dict[str, dict[str, Any]] = {
    "mamba_ssm.ops.triton.ssd_combined": {"mamba_split_conv1d_scan_combined": mamba_scan},
    "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GatedNorm},
    "causal_conv1d": {"causal_conv1d_fn": causal_conv1d},
    "fla.modules.convolution": {"causal_conv1d": strided_conv1d},
    "fla.modules.l2norm": {"l2norm": lambda x: L2Norm.apply(x)},
    "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": delta_rule},
}
