"""Blocks of Gemma 2 to 4: norms behind them and of values, fused or written out as operations; heads that are repeated.

Bytes and kernels are counted as PyTorch 2.13 issues the operations of Megatron-Bridge 0.6.2, gemma/modeling_gemma4.py,
in training, on 16-bit elements. Where weights are frozen their gradients fall away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, minimum
from costmodel.work.adapters import joined_norm
from costmodel.work.block import BlockWork, Stream
from costmodel.work.elementwise import norm, residual_tokens
from costmodel.work.linear import kv_heads_per_rank, same_format, tokens


@dataclass(frozen=True)
class Written:
    """Of one element that a norm reads: bytes moved forward and backward, bytes kept; kernels forward and backward.

    weight: bytes moved backward for a vector's gradient, and bytes kept for it.
    """

    moved: tuple[float, float]
    kernels: tuple[float, float]
    kept: float
    weight: tuple[float, float] = (0.0, 0.0)


# _gemma4_rms_norm: two casts to FP32 (6 each), square (8), mean (4), scale (8), weight (8), cast back (6). Backward:
# casts (6, and 6 twice behind), weight (8, its gradient 12 and a sum of 4), scale (8, and 16 of its factor), mean (4),
# square (28), a sum of two gradients (6). Kept: both casts and what the weight multiplies.
WEIGHTED = Written((46.0, 104.0), (10.0, 18.0), 12.0, (16.0, 4.0))
# Gemma4TopKRouter.gating: the same without weight, times a vector (4) and a constant (4).
ROUTER = Written((46.0, 96.0), (10.0, 18.0), 10.0, (8.0, 2.0))
# Norm of values, one cast, without weight: by a power in Gemma4DenseSelfAttention, by a quotient in
# Gemma4SelfAttention.
BY_POWER = Written((32.0, 80.0), (7.0, 13.0), 4.0)
BY_QUOTIENT = Written((32.0, 104.0), (7.0, 15.0), 4.0)
# Norms of queries and of keys.
HEAD_NORMS = 2
# Norms of a sparse layer that stand inside the experts' block, behind experts and behind shared experts, and are
# computed again with it. Source: Gemma4MoELayer.postprocess.
INSIDE = 2
# Kernels that repeat keys and values, or sum their gradients.
REPEATS = 2
# Bytes of an element of a layer's output that a constant multiplies, each pass.
SCALED = 4.0


def moved(x: SimpleNamespace, one: Written, elements: Amount) -> tuple[Amount, Amount]:
    """Bytes of a norm of so many elements, forward and backward. [byte]"""
    return one.moved[0] * elements, (one.moved[1] - (1 - x.trained) * one.weight[0]) * elements


def kept(x: SimpleNamespace, one: Written, elements: Amount) -> Amount:
    """Bytes that it keeps for the backward pass. [byte]"""
    return (one.kept - (1 - x.trained) * one.weight[1]) * elements


def with_norms(x: SimpleNamespace, work: BlockWork) -> BlockWork:
    """A block of attention, an MLP or experts with the norms that a model has beside the one in front."""
    if work.name == "experts":
        return _experts(x, work)
    return _mlp(x, work) if work.name == "mlp" else _attention(x, work)


def own_vectors(x: SimpleNamespace, block: str) -> dict[str, Amount]:
    """Vectors of these norms, by name: elements on this rank, which holds them whole; none of other models. [1]"""
    if block in ("mlp", "experts"):
        found = {"norms_beside": (_beside_the_front(x.written_mlp) + x.fused_behind_mlp) * x.h}
    else:
        found = {"norms_beside": (_beside_the_front(x.written_attention) + x.fused_behind) * x.h}
    if block == "experts":
        found |= {"router_scale": x.router_norm * x.h, "expert_scale": x.router_norm * x.E}
    return found


def _beside_the_front(written: Amount) -> Amount:
    """Written norms of the hidden state without the one in front of the block, which every model has. [1]"""
    return written - minimum(written, 1)


def _written(sizes: tuple[Amount, Amount], name: str = "written_norms") -> Stream:
    return Stream(name, *sizes, "contiguous")


def _replaced(work: BlockWork, *streams: Stream) -> tuple[Stream, ...]:
    """The block's streams with these in place of those of the same name, or behind them."""
    new = {one.name: one for one in streams}
    return tuple(new.pop(one.name, one) for one in work.streams) + tuple(new.values())


def _attention(x: SimpleNamespace, work: BlockWork) -> BlockWork:
    rows, hidden = tokens(x), residual_tokens(x) * x.h
    front = minimum(x.written_attention, 1)
    heads = rows * (x.a + x.k) * x.d / x.tp
    values = x.value_norm * rows * kv_heads_per_rank(x) * x.d_v
    here = x.written_attention * hidden + x.written_heads * heads
    weighted, by_power, by_quotient = (
        moved(x, WEIGHTED, here),
        moved(x, BY_POWER, x.written_heads * values),
        moved(x, BY_QUOTIENT, (1 - x.written_heads) * values),
    )
    both = tuple(sum(each) for each in zip(weighted, by_power, by_quotient, strict=True))
    fused = (x.fused_behind - front) * hidden + (1 - x.written_heads) * x.qk_norms * heads
    saved = dict(work.saved)
    saved["norm input"] = (1 - front) * saved["norm input"] + x.fused_behind * x.activation_bytes * hidden
    # Written norms of heads leave nothing that needs the QKV output itself.
    turned = rows * (x.a * x.d / x.tp + kv_heads_per_rank(x) * (x.d + x.d_v))
    plain = (1 - x.offload_core_attn) * x.activation_bytes
    saved["queries, keys, values"] = (1 - x.written_heads) * (
        saved["queries, keys, values"] + plain * values
    ) + x.written_heads * plain * turned
    saved["written norms"] = kept(x, WEIGHTED, here) + kept(x, BY_POWER, values)
    saved["repeated heads"] = (1 - x.recompute_attention) * repeated_heads(x)
    number = x.written_attention + HEAD_NORMS * x.written_heads
    kernels = [
        number * one
        + x.value_norm * (quotient + x.written_heads * (power - quotient))
        + x.fused_behind
        - front
        + REPEATS * repeats(x)
        for one, power, quotient in zip(WEIGHTED.kernels, BY_POWER.kernels, BY_QUOTIENT.kernels, strict=True)
    ]
    return replace(
        work,
        streams=_replaced(
            work,
            norm(x, fused, joined_norm(x, "qkv")),
            _written((both[0], both[1])),
            # One copy is written, its gradients are read; heads as they were are read, or written.
            Stream("repeats", *(2 * ((1 + x.k / x.a) * repeated_heads(x),))),
        ),
        saved=saved,
        vectors=work.vectors + sum(own_vectors(x, work.name).values()),
        kernels_forward=work.kernels_forward + kernels[0],
        kernels_backward=work.kernels_backward + kernels[1],
    )


def repeated_heads(x: SimpleNamespace) -> Amount:
    """Keys and values that attention without a fused kernel copies for every query head. [byte]

    Source: Transformer Engine 2.17.1, backends.py, UnfusedDotProductAttention; Megatron-Core 0.19.2,
    dot_product_attention.py, repeat_interleave.
    """
    return repeats(x) * x.activation_bytes * tokens(x) * x.a * (x.d + x.d_v) / x.tp


def repeats(x: SimpleNamespace) -> Amount:
    """1 where it does, as query heads share keys and values. [1]"""
    return x.unfused * is_more_than_one(x.a / x.k)


def _layer_scale(x: SimpleNamespace) -> Stream:
    size = SCALED * x.layer_scale * residual_tokens(x) * x.h
    return Stream("layer_scale", size, size, "contiguous")


def _kept_behind(x: SimpleNamespace) -> Amount:
    """What fused norms behind an MLP or experts read. [byte]"""
    return x.fused_behind_mlp * x.activation_bytes * residual_tokens(x) * x.h


def _mlp(x: SimpleNamespace, work: BlockWork) -> BlockWork:
    hidden, front = residual_tokens(x) * x.h, minimum(x.written_mlp, 1)
    kernels = x.fused_behind_mlp - front + x.layer_scale
    saved = dict(work.saved)
    saved["norm input"] = (1 - front) * saved["norm input"] + _kept_behind(x)
    saved["written norms"] = kept(x, WEIGHTED, x.written_mlp * hidden)
    return replace(
        work,
        streams=_replaced(
            work,
            norm(x, (x.fused_behind_mlp - front) * hidden, joined_norm(x, "mlp")),
            _written(moved(x, WEIGHTED, x.written_mlp * hidden)),
            _layer_scale(x),
        ),
        saved=saved,
        vectors=work.vectors + sum(own_vectors(x, "mlp").values()),
        kernels_forward=work.kernels_forward + x.written_mlp * WEIGHTED.kernels[0] + kernels,
        kernels_backward=work.kernels_backward + x.written_mlp * WEIGHTED.kernels[1] + kernels,
    )


def _experts(x: SimpleNamespace, work: BlockWork) -> BlockWork:
    """Experts, shared experts and router each read a norm of their own of the residual stream.

    What stands inside the experts' block is computed again with it; its checkpoint keeps the three inputs.
    """
    hidden, front = residual_tokens(x) * x.h, minimum(x.written_mlp, 1)
    inner = minimum(INSIDE, x.written_mlp)
    outer = (x.written_mlp - inner) * hidden
    inside = [
        moved(x, WEIGHTED, inner * hidden),
        moved(x, ROUTER, x.router_norm * hidden),
    ]
    saved = dict(work.saved)
    saved["norm input"] = (1 - front) * saved["norm input"] + _kept_behind(x)
    saved["written norms"] = kept(x, WEIGHTED, outer) + (1 - x.recompute_moe) * (
        kept(x, WEIGHTED, inner * hidden) + kept(x, ROUTER, x.router_norm * hidden)
    )
    apart = (1 - x.recompute_moe) * (1 - x.recompute_shared_experts) * same_format(x) + 2 * x.recompute_moe
    saved["inputs apart"] = front * apart * x.activation_bytes * hidden
    kernels = [
        x.written_mlp * one + x.router_norm * router + x.layer_scale + x.fused_behind_mlp - front
        for one, router in zip(WEIGHTED.kernels, ROUTER.kernels, strict=True)
    ]
    return replace(
        work,
        streams=_replaced(
            work,
            norm(x, (x.fused_behind_mlp - front) * hidden),
            _written(moved(x, WEIGHTED, outer)),
            _written((inside[0][0] + inside[1][0], inside[0][1] + inside[1][1]), "branch_norms"),
            _layer_scale(x),
        ),
        saved=saved,
        vectors=work.vectors + sum(own_vectors(x, "experts").values()),
        kernels_forward=work.kernels_forward + kernels[0],
        kernels_backward=work.kernels_backward + kernels[1],
    )
