"""Linear layers and norms as Transformer Engine keeps them, and products that add into a gradient buffer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Parameter

from executor.workers.count import LEDGER


def product_name(module: torch.nn.Module, default: str) -> str:
    """The cost model's name of a layer's product; `executor.workers.dryrun` sets it from the layer's place."""
    return str(getattr(module, "product", "") or default)


_DUMMIES: dict[tuple[tuple[int, ...], torch.dtype], torch.Tensor] = {}


def dummy_wgrad(shape: Any, dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """One shared tensor a shape, returned where the real gradient went into a buffer."""
    key = (tuple(shape), dtype)
    if key not in _DUMMIES:
        _DUMMIES[key] = torch.empty(key[0], dtype=dtype)
    return _DUMMIES[key].detach()


def accumulate_wgrad(x: torch.Tensor, grad: torch.Tensor, out: torch.Tensor) -> None:
    """out += grad^T x in one kernel: 2 M N K FLOPs."""
    LEDGER.kernel()
    rows = math.prod(x.shape[:-1])
    LEDGER.flop(LEDGER.product or "other", 2 * rows * x.shape[-1] * grad.shape[-1])


def general_gemm(
    a: torch.Tensor, b: torch.Tensor, layout: str = "TN", out_dtype: Any = None, **_: Any
) -> list[torch.Tensor]:
    """cuBLAS's column-major product: TN is b a^T, NN b a, NT b^T a; the output in out_dtype."""
    LEDGER.kernel()
    m, k = (b.shape[0], b.shape[1]) if layout != "NT" else (b.shape[1], b.shape[0])
    n = a.shape[0] if layout == "TN" else a.shape[1]
    LEDGER.flop(LEDGER.product or "other", 2 * m * n * k)
    return [b.new_empty((m, n), dtype=out_dtype or b.dtype)]


def gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    """All-gather along the first dimension."""
    whole = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole


def scatter(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Reduce-scatter along the first dimension."""
    part = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    dist.reduce_scatter_tensor(part, x.contiguous(), group=group)
    return part


class NormFunction(torch.autograd.Function):
    """RMSNorm or LayerNorm: keeps its input and a statistic a row (two for LayerNorm), in FP32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        LEDGER.kernel()
        statistics = [x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(1 + (bias is not None))]
        ctx.save_for_backward(x, weight, *statistics)
        ctx.with_bias = bias is not None
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        x, weight = ctx.saved_tensors[:2]
        bias = torch.empty_like(weight) if ctx.with_bias else None
        return torch.empty_like(x), torch.empty_like(weight), bias


class _Norm(torch.nn.Module):
    with_bias = False

    def __init__(
        self, normalized_shape: Any = None, *, sequence_parallel: bool, params_dtype: Any, **kwargs: Any
    ) -> None:
        super().__init__()
        shape = kwargs.get("hidden_size", normalized_shape)  # its name until Megatron-Core 0.16
        self.weight = Parameter(torch.empty(shape, dtype=params_dtype))
        self.bias = Parameter(torch.empty(shape, dtype=params_dtype)) if self.with_bias else None
        for parameter in self.parameters():
            parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised over the last dimension."""
        result: torch.Tensor = NormFunction.apply(x, self.weight, self.bias)
        return result


class RMSNorm(_Norm):
    """te.pytorch.RMSNorm."""


class LayerNorm(_Norm):
    """te.pytorch.LayerNorm."""

    with_bias = True


class LinearFunction(torch.autograd.Function):
    """x W^T with the messages of tensor parallelism.

    A column-parallel layer with sequence parallelism gathers its input, forgets it, and gathers it again for the
    weight gradient; without, it sums the input's gradient over the ranks. A row-parallel layer scatters or sums
    its output, and gathers the gradient of it.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, layer: Any) -> torch.Tensor:
        group = layer.tp_group if layer.tp_size > 1 else None
        spread = group is not None and layer.sequence_parallel
        whole = gather(x, group) if spread and layer.parallel_mode == "column" else x
        with LEDGER.of(product_name(layer, "other")):
            out = torch.mm(whole.reshape(-1, whole.shape[-1]), weight.t())
        out = out.view(*whole.shape[:-1], weight.shape[0])
        if group is not None and layer.parallel_mode == "row":
            if spread:
                out = scatter(out, group)
            else:
                dist.all_reduce(out, group=group)
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.spread, ctx.group, ctx.with_bias = layer, spread, group, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        layer, group = ctx.layer, ctx.group
        column = layer.parallel_mode == "column"
        if ctx.spread and layer.parallel_mode == "row":
            grad = gather(grad, group)
        rows = grad.reshape(-1, grad.shape[-1])
        with LEDGER.of(product_name(layer, "other")):
            dx = None
            if ctx.needs_input_grad[0]:
                dx = torch.mm(rows, weight).view(*grad.shape[:-1], weight.shape[1])
                if group is not None and column:
                    if ctx.spread:
                        dx = scatter(dx, group)
                    else:
                        dist.all_reduce(dx, group=group)
            whole = gather(x, group) if ctx.spread and column else x
            dw = weight_gradient(layer, weight, whole.reshape(-1, whole.shape[-1]), rows)
        db = grad.new_empty(weight.shape[0]) if ctx.with_bias else None
        return dx, dw, db, None


def weight_gradient(layer: Any, weight: Any, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a weight, added to its buffer where the layer says so."""
    if not weight.requires_grad:
        return None
    if not layer.fuse_wgrad_accumulation:
        return torch.mm(grad.t(), x)
    accumulate_wgrad(x, grad, weight.main_grad)
    if hasattr(weight, "grad_added_to_main_grad"):
        weight.grad_added_to_main_grad = True
        return dummy_wgrad(weight.shape, weight.dtype)
    return None


class Linear(torch.nn.Module):
    """te.pytorch.Linear."""

    # Megatron-Core asks some layers to keep their input as it came; without FP8 they always do.
    save_original_input = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        bias: bool = True,
        return_bias: bool = False,
        parallel_mode: str | None = None,
        params_dtype: Any = None,
        delay_wgrad_compute: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size, self.parallel_mode = tp_group, tp_size, parallel_mode
        self.sequence_parallel = sequence_parallel and parallel_mode is not None
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias, self.return_bias = bias, return_bias
        self.out_features = out_features // (tp_size if parallel_mode == "column" else 1)
        self.in_features = in_features // (tp_size if parallel_mode == "row" else 1)
        self.weight = Parameter(torch.empty(self.out_features, self.in_features, dtype=params_dtype))
        self.bias = Parameter(torch.empty(self.out_features, dtype=params_dtype)) if bias else None
        if parallel_mode is not None:
            self._mark(self.weight, 0 if parallel_mode == "column" else 1)
            if self.bias is not None and parallel_mode == "column":
                self._mark(self.bias, 0)
            elif self.bias is not None:
                self.bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    @staticmethod
    def _mark(parameter: Any, axis: int) -> None:
        parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, axis, 1

    def forward(self, x: torch.Tensor, **_: Any) -> Any:
        """The product, and the bias beside it when the caller adds it."""
        added = None if self.return_bias else self.bias
        out = LinearFunction.apply(x, self.weight, added, self)
        return (out, self.bias) if self.return_bias else out

    def backward_dw(self) -> None:
        """Weight gradients are computed at once here, whether or not they may wait."""


class LayerNormLinear(Linear):
    """te.pytorch.LayerNormLinear: a norm in front of a column-parallel layer, whose parameters come first.

    Megatron-Core lays buffers out in the order of parameters. Source: Transformer Engine 2.16.1 and 2.20.2,
    module/layernorm_linear.py.
    """

    def __init__(
        self, in_features: int, out_features: int, *, normalization: str = "LayerNorm", **kwargs: Any
    ) -> None:
        super().__init__(in_features, out_features, **kwargs)
        dtype = kwargs.get("params_dtype")
        self.layer_norm_weight = Parameter(torch.empty(in_features, dtype=dtype))
        self.layer_norm_bias = None
        if normalization == "LayerNorm":
            self.layer_norm_bias = Parameter(torch.empty(in_features, dtype=dtype))
        for parameter in (self.layer_norm_weight, self.layer_norm_bias):
            if parameter is not None:
                parameter.sequence_parallel = kwargs.get("sequence_parallel", False)  # type: ignore[attr-defined]
        for name in ("weight", "bias"):  # behind the norm's
            if name in self._parameters:
                self.register_parameter(name, self._parameters.pop(name))

    def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
        """The product of the normalised input."""
        return super().forward(NormFunction.apply(x, self.layer_norm_weight, self.layer_norm_bias), **kwargs)
