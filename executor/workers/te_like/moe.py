"""Experts' linear layers, permutation and router as Transformer Engine's fused kernels run them.

Source: Transformer Engine 2.8, module/grouped_linear.py, permutation.py with triton/permutation.py, router.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from executor.workers.count import LEDGER
from executor.workers.te_like.linear import product_name, weight_gradient


class GroupedFunction(torch.autograd.Function):
    """One product an expert over its slice of the rows; keeps the rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Any, *weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *weights[: layer.num_gemms])
        ctx.layer, ctx.num_biases = layer, len(weights) - layer.num_gemms
        LEDGER.kernel(layer.num_gemms)
        columns, inner = weights[0].shape
        LEDGER.flop(product_name(layer, "experts"), 2 * x.shape[0] * columns * inner)
        return x.new_empty((x.shape[0], columns))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, *weights = ctx.saved_tensors
        layer = ctx.layer
        columns, inner = weights[0].shape
        name = product_name(layer, "experts")
        dx = None
        if ctx.needs_input_grad[0]:
            LEDGER.kernel(layer.num_gemms)
            LEDGER.flop(name, 2 * grad.shape[0] * columns * inner)
            dx = grad.new_empty(x.shape)
        share = x.shape[0] // layer.num_gemms
        rest = x.shape[0] - share * (layer.num_gemms - 1)
        with LEDGER.of(name):
            # Balanced routing: as many rows an expert, what does not divide on the last.
            rows = [share] * (layer.num_gemms - 1) + [rest]
            dw = [
                weight_gradient(layer, weight, x[:number], grad[:number])
                for number, weight in zip(rows, weights, strict=True)
            ]
        db = [grad.new_empty(columns) for _ in range(ctx.num_biases)]
        return dx, None, *dw, *db


class GroupedLinear(torch.nn.Module):
    """te.pytorch.GroupedLinear; the caller adds biases where return_bias asks for it."""

    save_original_input = False

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        fuse_wgrad_accumulation: bool = False,
        tp_size: int = 1,
        bias: bool = True,
        return_bias: bool = False,
        parallel_mode: str | None = None,
        params_dtype: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        columns = out_features // (tp_size if parallel_mode == "column" else 1)
        inner = in_features // (tp_size if parallel_mode == "row" else 1)
        for index in range(num_gemms):
            setattr(self, f"weight{index}", Parameter(torch.empty(columns, inner, dtype=params_dtype)))
        for index in range(num_gemms if bias else 0):
            setattr(self, f"bias{index}", Parameter(torch.empty(columns, dtype=params_dtype)))

    def forward(self, x: torch.Tensor, m_splits: Any, **_: Any) -> Any:
        """The products, and the biases beside them when the caller adds them."""
        weights = [getattr(self, f"weight{index}") for index in range(self.num_gemms)]
        biases = [getattr(self, f"bias{index}") for index in range(self.num_gemms if self.use_bias else 0)]
        added = [] if self.return_bias else biases
        out = GroupedFunction.apply(x, self, *weights, *added)
        return (out, biases) if self.return_bias else out

    def backward_dw(self) -> None:
        """Weight gradients are computed at once here, whether or not they may wait."""


class Permute(torch.autograd.Function):
    """Copies of tokens in the order of their experts; keeps a map of 2 E + 1 numbers of 4 bytes a token."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probs: Any, routing_map: torch.Tensor, rows: int) -> Any:
        LEDGER.kernel(3)
        tokens, experts = routing_map.shape
        row_map = x.new_empty((tokens, 2 * experts + 1), dtype=torch.int32)
        ctx.save_for_backward(row_map)
        ctx.shapes = (x.shape, None if probs is None else probs.shape)
        ctx.mark_non_differentiable(row_map)
        chosen = x.new_empty(0) if probs is None else probs.new_empty(rows)
        return x.new_empty((rows, x.shape[1])), chosen, row_map

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, grad_probs: torch.Tensor, _: Any) -> Any:
        LEDGER.kernel()
        _row_map = ctx.saved_tensors
        x, probs = ctx.shapes
        dx = grad.new_empty(x)
        return dx, None if probs is None else grad_probs.new_empty(probs), None, None


def permute(tokens: Any, routing_map: Any, num_out_tokens: Any = None, **_: Any) -> Any:
    """moe_permute."""
    rows = LEDGER.rows or int(num_out_tokens)
    out, _probs, row_map = Permute.apply(tokens, None, routing_map, rows)
    return out, row_map


def permute_with_probs(
    tokens: Any, probs: Any, routing_map: Any, num_out_tokens: Any = None, **_: Any
) -> Any:
    """moe_permute_with_probs."""
    return Permute.apply(tokens, probs, routing_map, int(num_out_tokens))


class Unpermute(torch.autograd.Function):
    """The sum of each token's copies, in the tokens' order; keeps the map of the permutation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, row_map: torch.Tensor, shape: Any) -> torch.Tensor:
        LEDGER.kernel()
        ctx.save_for_backward(row_map)
        ctx.shape = x.shape
        return x.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        _row_map = ctx.saved_tensors
        return grad.new_empty(ctx.shape), None, None


def unpermute(
    tokens: Any, row_map: Any, merging_probs: Any = None, restore_shape: Any = None, **_: Any
) -> Any:
    """moe_unpermute; probabilities went into the experts' activation function."""
    return Unpermute.apply(tokens, row_map, restore_shape)


class Sort(torch.autograd.Function):
    """Chunks of rows in another order; keeps a map of 4 bytes a row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probs: Any) -> Any:
        LEDGER.kernel(2)
        ctx.save_for_backward(x.new_empty(x.shape[0], dtype=torch.int32))
        ctx.with_probs = probs is not None
        return torch.empty_like(x), x.new_empty(0) if probs is None else torch.empty_like(probs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, grad_probs: torch.Tensor) -> Any:
        LEDGER.kernel()
        return torch.empty_like(grad), torch.empty_like(grad_probs) if ctx.with_probs else None


def sort_chunks(x: Any, _sizes: Any, _order: Any) -> Any:
    """moe_sort_chunks_by_index."""
    return Sort.apply(x, None)[0]


def sort_chunks_with_probs(x: Any, probs: Any, _sizes: Any, _order: Any) -> Any:
    """moe_sort_chunks_by_index_with_probs."""
    return Sort.apply(x, probs)


class TopkScores(torch.autograd.Function):
    """Probabilities and the map of chosen experts; keeps the map and the scores."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> Any:
        LEDGER.kernel()
        chosen = torch.empty_like(logits, dtype=torch.bool)
        ctx.save_for_backward(chosen, torch.empty_like(logits))
        ctx.mark_non_differentiable(chosen)
        return torch.empty_like(logits), chosen

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        LEDGER.kernel()
        return torch.empty_like(grad)


def topk_scores(logits: Any, *_: Any, **__: Any) -> Any:
    """fused_topk_with_score_function."""
    return TopkScores.apply(logits)


class AuxScores(torch.autograd.Function):
    """Scores of all experts for the auxiliary loss; keeps them."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> Any:
        LEDGER.kernel()
        ctx.save_for_backward(torch.empty_like(logits))
        chosen = torch.empty_like(logits, dtype=torch.bool)
        ctx.mark_non_differentiable(chosen)
        return chosen, torch.empty_like(logits)

    @staticmethod
    def backward(ctx: Any, _: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        return torch.empty_like(grad)


def aux_scores(logits: Any, *_: Any, **__: Any) -> Any:
    """fused_compute_score_for_moe_aux_loss."""
    return AuxScores.apply(logits)


class AuxLoss(torch.autograd.Function):
    """The auxiliary loss, one number; keeps the experts' counts."""

    @staticmethod
    def forward(ctx: Any, probs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        LEDGER.kernel()
        ctx.save_for_backward(counts)
        ctx.shape = probs.shape
        return probs.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        LEDGER.kernel()
        return grad.new_empty(ctx.shape), None


def aux_loss(probs: Any, tokens_per_expert: Any, *_: Any, **__: Any) -> Any:
    """fused_moe_aux_loss."""
    return AuxLoss.apply(probs, tokens_per_expert)
