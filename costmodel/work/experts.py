"""The mixture-of-experts block on one rank: router, dispatch, grouped GEMMs, combine, shared experts.

With sequence parallelism each rank routes its own part of the tokens. EP and ETP have their own mesh over
the same ranks; a token's copies travel to the ranks of its experts and back.
"""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work.adapters import adapted, kept_input
from costmodel.work.attention import saved_norm
from costmodel.work.block import BlockWork, Stream
from costmodel.work.dispatched import destinations, expert_rows, local_experts, routed_copies
from costmodel.work.elementwise import activation, norm, residual, residual_tokens, split_kernels
from costmodel.work.linear import Linear, same_format, tokens
from costmodel.work.router import (
    apart_kernels,
    choice,
    fuses_permutation,
    maps,
    router_bytes,
    router_stream,
)

# Kernels of router, permutation and dispatch backward over those forward: assumed, as of an attention block or an MLP.
BACKWARD_KERNELS = 1.3

# Bytes of an element of FC2's output that its bias moves, forward and backward, and kernels of each local expert: the
# bias times the rows' probabilities, added to them, rows joined; sums over rows and columns backward, half of it for
# the bias's own gradient. With probabilities in FP32 the sum is in 4 bytes and cast back. Source: Megatron-Core
# 0.16.1, experts.py, _apply_bias.
BIAS_BYTES, BIAS_BYTES_WIDE = (12.0, 16.0), (28.0, 40.0)
BIAS_KERNELS, BIAS_KERNELS_WIDE = (2.0, 4.0), (2.0, 6.0)
# Kernels forward and backward of the clamps in front of an activation function, and of filling up rows and
# probabilities and cutting rows off. Sources: PyTorch, clamp_backward; Megatron-Core 0.16.1, fused_bias_geglu.py and
# experts.py, quantization_padding.
CLAMP_KERNELS, PADDING_KERNELS = (4.0, 9.0), (3.0, 3.0)
# Time of those kernels for an element of a half, forward and backward, over a strided copy of heads: they read or write
# halves of rows, which PyTorch indexes element by element (1.0 to 1.2 for a comparison, a mask, a clamp, a join).
# Source: profile of six layers of gpt-oss on an H100 (2026-11-27, PyTorch 2.11); elsewhere they go by their bytes.
CLAMP_COPIES = (3.4, 6.8)


def shared_gate_flops_forward(x: SimpleNamespace) -> Amount:
    """FLOPs of the scalar gate of the shared experts, 2 T h. [FLOP] Source: Megatron-Core, shared_experts.py."""
    return x.shared_gate * 2 * residual_tokens(x) * x.h


def permute(x: SimpleNamespace) -> Stream:
    """Permutation to the experts' order and back, and the sum over a token's copies.

    All-to-all sorts copies before and after it travels (by rank, then by local expert), which reads and writes each;
    DeepEP once behind it, which reads what came, a token once for each rank, and writes a row for each expert; HybridEP
    inside its kernels. Not fused: index and mask kernels move half as much again.
    Source: Megatron-Core, token_dispatcher.py, moe_utils.permute; Transformer Engine, common/triton/permutation.py.
    """
    own, rows = residual_tokens(x), expert_rows(x)
    before = own + routed_copies(x)
    moved = (1 - x.dispatch_once) * (before + 2 * rows * is_more_than_one(local_experts(x)))
    moved += x.dispatch_once * (own * x.etp * destinations(x, x.ep) + rows)
    once = x.activation_bytes * x.he * moved * (1 - x.dispatch_fused)
    both = 2 * once * (1.5 - 0.5 * fuses_permutation(x))
    return Stream("permute", both, both, "permute")


def joined_gradients(x: SimpleNamespace, features: Collection[str]) -> Stream:
    """Gradients of the block's input, of router, dispatch, shared experts and their gate each, that are added; forward,
    the shared experts' output that is added to the routed. Source: Megatron-Core 0.16.1, moe_layer.py.
    """
    once = 3 * x.activation_bytes * residual_tokens(x) * x.h
    shared = 1 if "shared" in features else 0
    return Stream("joins", shared * once, (1 + shared + x.shared_gate) * once)


def shared_gate_stream(x: SimpleNamespace) -> Stream:
    """The shared experts' output times their gate; backward also the gate's gradient, a product and a sum over columns.

    Source: Megatron-Core 0.16.1, shared_experts.py.
    """
    size = x.shared_gate * x.activation_bytes * residual_tokens(x) * x.h
    return Stream("shared_gate", 2 * size, 6 * size)


def counts_vary(x: SimpleNamespace) -> Amount:
    """1 where the host must learn how many rows came: none is dropped and no graph holds the block. [1]

    With any dispatcher. Source: Megatron-Core 0.16.1, token_dispatcher.py, _maybe_dtoh_and_synchronize; fused_a2a.py,
    HybridEPDispatch.
    """
    return x.ragged * (1 - x.graph_experts)


def rows_are_padded(x: SimpleNamespace) -> Amount:
    """1 where an expert block fills up rows in kernels of their own; HybridEP does it inside its own. [1]"""
    return minimum(x.quantise_kernels, 1) * (1 - x.dispatch_fused) * counts_vary(x)


def padding(x: SimpleNamespace) -> Stream:
    """Rows of each expert filled up for FC1's quantisation and cut off behind FC2: two copies each way.

    Not those of routers that pad their map (moe_router_padding_for_quantization). Source: Megatron-Core 0.16.1,
    experts.py, quantization_padding; token_dispatcher.py, pad_multiple.
    """
    size = 4 * rows_are_padded(x) * x.activation_bytes * expert_rows(x) * x.he
    return Stream("padding", size, size)


def probabilities_are_wide(x: SimpleNamespace) -> Amount:
    """1 where rows come with probabilities in FP32: a router in FP32, or DeepEP and HybridEP, which know no other. [1]

    Source: Megatron-Core 0.16.1, moe_utils.py, type_as; token_dispatcher.py.
    """
    return maximum(x.router_wide, x.dispatch_once)


def expert_bias_stream(x: SimpleNamespace) -> Stream:
    """Bias of FC2, added slice by slice outside the grouped GEMM; FC1's is in its epilogue.

    Newest releases have kernels that add it inside, for shapes that do not change: whole expert blocks in graphs.
    """
    apart = x.biases * (1 - x.expert_bias_fused * x.graph_experts)
    size = apart * expert_rows(x) * x.he
    forward, backward = (size * each for each in by_width(x, BIAS_BYTES, BIAS_BYTES_WIDE))
    return Stream("expert_bias", forward, backward * (1 + x.trained) / 2)


def by_width(
    x: SimpleNamespace, narrow: tuple[float, float], wide: tuple[float, float]
) -> tuple[Amount, Amount]:
    """Forward and backward number with 16-bit probabilities, or with those in FP32."""
    share = probabilities_are_wide(x)
    forward, backward = (low + share * (high - low) for low, high in zip(narrow, wide, strict=True))
    return forward, backward


def fuses_mlp(x: SimpleNamespace) -> Amount:
    """1 where one kernel of all experts is FC1 with gate and activation function, and FC2's data gradient with theirs;
    in MXFP8 it writes the next operand quantised (`fused_casts`). [1]

    Gated experts without biases, and those of squared ReLU (`fuses_squared_relu`). Source: published list of tuning
    knobs, "fused FC1+SwiGLU+quant+FC2 MXFP8", "SwiGLU, no bias"; Transformer Engine's fused grouped MLP on CuTe DSL.
    """
    recipe = x.experts_fused * maximum(x.fused_casts, x.fuses_fp4_experts)
    activations = maximum(x.gates, x.fuses_squared_relu * x.squared_relu)
    return x.expert_mlp_fused * recipe * activations * (1 - x.biases)


def is_clamped(x: SimpleNamespace) -> Amount:
    """1 where a model clamps FC1's output, whose clamped copy stays beside it. [1]"""
    return x.fc1_copies - 1


def clamp(x: SimpleNamespace) -> Stream:
    """Both halves of FC1's output clamped and joined again in front of the activation function, where a model clamps.

    Forward two kernels read and write both halves, and so does the join. Backward the gradients of the halves are
    joined (4 e), one half is compared once and masked (3 e + 2), the other twice (4 e + 6), masks in a byte.
    Sources: Megatron-Core 0.16.1, fused_bias_geglu.py, weighted_bias_quick_geglu_impl; PyTorch, clamp_backward.
    """
    e = x.activation_bytes
    elements = is_clamped(x) * expert_rows(x) * x.fe / x.etp
    busy = (CLAMP_COPIES[0] * elements, CLAMP_COPIES[1] * elements)
    return Stream(
        "clamp",
        8 * e * elements,
        (11 * e + 8) * elements,
        busy=busy,
        cycles=("head_copy_cycles", "head_copy_cycles"),
    )


def saved_expert_input(x: SimpleNamespace) -> Amount:
    """Rows as they came to the experts, kept for FC1's weight gradient or its adapter. [byte]"""
    here = kept_by_experts(x) * (1 - x.offload_expert_fc1)
    return here * kept_input(x, "mlp") * expert_rows(x) * x.he


def kept_by_experts(x: SimpleNamespace) -> Amount:
    """1 where the experts' own tensors stay on the GPU: neither recomputed nor, of fused experts, offloaded. [1]

    Source: Megatron-Core 0.19.2, experts.py, offload_fused_group_mlp.
    """
    return (1 - x.recompute_moe) * (1 - x.offload_fused_group_mlp)


def kept_norm_output(x: SimpleNamespace, *, shared: bool) -> Amount:
    """Bytes of an element of the norm's output: the router's own in 16 bits, with delayed scaling shared experts' in 8.

    With other recipes these quantise it anew (save_original_input). A checkpoint of the block keeps it in 16 bits too.
    Source: Megatron-Core 0.16.1, moe_utils.py, RouterGatingLinearFunction.forward, ctx.save_for_backward; moe_layer.py,
    forward; 0.14 to 0.19.2, shared_experts.py.
    """
    again = (1 - x.recompute_moe) * (1 - x.recompute_shared_experts) * x.quantised_copy
    return x.activation_bytes + (again * (1 - same_format(x)) * x.saved_bytes if shared else 0)


def experts(x: SimpleNamespace, features: Collection[str]) -> BlockWork:
    """Router, experts, shared experts, and projections to and from a latent where the model has one.

    Saved: scores, the dispatched rows, FC1's output and FC2's input of the routed rows, the same of the shared
    experts. Recompute of moe keeps the block's input alone. Source: Megatron-Core, moe_layer.py, experts.py.
    """
    own, received, local = residual_tokens(x), expert_rows(x), local_experts(x)
    width, per_group = x.fe / x.etp, received / local
    kept, apart = 1 - x.recompute_moe, 1 - fuses_mlp(x)
    casts = 1 - fuses_mlp(x) * x.fused_casts
    kernels = x.expert_kernels + apart_kernels(x)
    bias_forward, bias_backward = by_width(x, BIAS_KERNELS, BIAS_KERNELS_WIDE)
    eager = [
        split + x.biases * local * bias + is_clamped(x) * clamps + rows_are_padded(x) * pads
        for split, bias, clamps, pads in zip(
            split_kernels(x, bias=1 - x.grouped),
            (bias_forward, bias_backward * (1 + x.trained) / 2),
            CLAMP_KERNELS,
            PADDING_KERNELS,
            strict=True,
        )
    ]
    experts_own: dict[str, Any] = {"grouped": True, "adapter": "mlp"}
    linears = [
        Linear("router", x.E, x.h, own, "none", quantised=False),
        Linear("fc1", (1 + x.gates) * width, x.he, per_group, "none", local, cast_grad=casts, **experts_own),
        Linear("fc2", x.he, width, per_group, "none", local, cast_input=casts, **experts_own),
    ]
    streams = [
        norm(x),
        residual(x, bias=1 - x.grouped),
        router_stream(x),
        choice(x),
        maps(x, received, local, own * x.etp * destinations(x, x.ep)),
        permute(x),
        padding(x),
        clamp(x),
        activation(x, "activation", apart * received, width),
        expert_bias_stream(x),
        joined_gradients(x, features),
    ]
    normed = kept_norm_output(x, shared="shared" in features)
    saved = saved_norm(x, x.offload_mlp_norm, 0, normed * own * x.h, apart=1) | {
        "router scores": kept * router_bytes(x) * own * x.E,
        "dispatched rows": saved_expert_input(x),
        "expert fc1 output": kept_by_experts(x)
        * (1 + is_clamped(x) * (1 - x.recompute_moe_act))
        * (1 - x.offload_moe_act)
        * (1 + x.gates)
        * x.activation_bytes
        * received
        * width,
        "expert fc2 input": kept_by_experts(x)
        * x.fc2_copies
        * (1 - x.recompute_moe_act)
        * kept_input(x, "mlp")
        * received
        * width,
    }
    messages: Amount = 0
    if "latent" in features:
        linears += [
            Linear("latent_down", x.he, x.h, own, "none"),
            Linear("latent_up", x.h, x.he, own, "none"),
        ]
        saved["latent"] = kept * 2 * x.activation_bytes * own * x.he
    if "shared" in features:
        rows, shared = tokens(x), x.fs / x.tp
        linears += [
            Linear("shared_fc1", (1 + x.gates) * shared, x.h, rows, "column", adapter="mlp"),
            Linear("shared_fc2", x.h, shared, rows, "row", adapter="mlp"),
        ]
        streams += [activation(x, "shared_activation", rows, shared), shared_gate_stream(x)]
        kept_shared = kept * (1 - x.recompute_shared_experts) * rows
        # The norm's output is this rank's tokens: an adapter keeps what it gathers beside it, and so do shared experts
        # that gather it themselves, beside the dispatch.
        itself = maximum(adapted(x, "mlp"), x.shared_overlap)
        joined = x.sp * is_more_than_one(x.tp) * itself * x.activation_bytes * x.h
        inside = shared * ((1 + x.gates) * x.activation_bytes + kept_input(x, "mlp"))
        gated = x.shared_gate * x.activation_bytes * own / rows * x.h  # the output that its gate multiplies
        saved["shared experts"] = kept_shared * (inside + joined + gated)
        kernels += 4
        messages = rows * x.h
    return BlockWork(
        name="experts",
        linears=tuple(linears),
        streams=tuple(streams),
        gathered=x.operand_bytes * messages,
        reduced=x.activation_bytes * messages,
        saved=saved,
        vectors=x.norm_vectors * x.h + x.biases * x.E + x.expert_bias * x.E + x.shared_gate * x.h,
        expert_vectors=x.biases * local * ((1 + x.gates) * width + x.he),
        kernels_forward=kernels + eager[0],
        kernels_backward=BACKWARD_KERNELS * kernels + eager[1],
    )
