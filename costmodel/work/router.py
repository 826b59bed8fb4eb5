"""The router of an expert block on one rank: scores, the choice of experts, auxiliary loss, maps of the permutation."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one
from costmodel.work.block import Stream
from costmodel.work.elementwise import residual_tokens

# Numbers of 4 bytes for each token and expert that the router reads and writes in a pass, not fused and fused: assumed.
ROUTER_PASSES, FUSED_ROUTER_PASSES = 12, 6
# Kernels that router and permutation take more when they are not fused. Source: Megatron-Core, moe_utils.py
# and router.py (top-k, scatter, softmax or sigmoid, auxiliary loss; masked select and index).
ROUTER_SPLIT_KERNELS, PERMUTE_SPLIT_KERNELS = 12.0, 10.0
# Bytes of an element of the router's input that its backward pass in FP32 moves beyond products in 16 bits: the input
# cast (2 + 4) and read again in 4 bytes for 2, its gradient written in 4 bytes for 2 and cast back (4 + 2).
# Source: Megatron-Core 0.16.1, moe_utils.py, RouterGatingLinearFunction.
ROUTER_CAST_BYTES = 16

# Bytes kept for each token and expert beside scores: the map of the chosen and two rows of the permutation's map.
# Source: Transformer Engine 2.8, permutation.py; dry run.
MAP_BYTES = 9

# Symbol of the GPUs where such kernels were timed.
TIMED = "timed_cycles"

# Cycles are of one multiprocessor of an H100 at 1,830 MHz, its boost clock on file. Those that Transformer Engine's
# fused kernel spends on a token, on each expert that it picks for it, and on each candidate of a pick, again for each.
# Source: measured on an H100 (2026-11-27, Transformer Engine 2.12): 19 to 475 us for 4,096 tokens, from 2 of 8 to 22 of
# 512 experts, met within 16 %, most within 8 (docs/fit-history.md).
TOKEN_CYCLES, PICK_CYCLES, CANDIDATE_CYCLES = 440.0, 310.0, 1.45
# Cycles for each token and expert of PyTorch's kernels for the same choice. Source: the same H100, PyTorch 2.11: 162 us
# for 16,384 tokens and 128 experts, 221 us for 4,096 and 512.
PLAIN_CYCLES = 19.0
# Cycles for each token and expert of the maps from which rows are permuted, and for each row, and each row and chunk,
# of those by which chunks are sorted. Source: the same H100, Transformer Engine 2.12, permutation.py: 43 to 172 us for
# 0.5 to 2.1 million pairs of token and expert; 0.6 ns a row of 16 chunks, 1.2 to 1.7 ns of 128 and 256.
MAP_CYCLES, SORT_ROW_CYCLES, SORT_CHUNK_CYCLES = 20.0, 120.0, 1.1


def number_bytes(x: SimpleNamespace) -> Amount:
    """Bytes of one probability: FP32 where the router works in it. [byte]"""
    return x.activation_bytes + x.router_wide * (4 - x.activation_bytes)


def router_bytes(x: SimpleNamespace) -> Amount:
    """Bytes kept for each token and expert: scores, probabilities, the auxiliary loss's scores, maps. [byte]

    Source: Transformer Engine 2.8, router.py; dry run.
    """
    return 3 * number_bytes(x) + MAP_BYTES


def held_bytes(x: SimpleNamespace) -> Amount:
    """Of them, those that the dispatcher's module holds too: probabilities and maps. [byte]"""
    return number_bytes(x) + MAP_BYTES


def fuses_router(x: SimpleNamespace) -> Amount:
    """1 where the router's scores, choice and losses are fused kernels, which the stack may not have. [1]"""
    return x.router_fused * (1 - x.plain_routers)


def fuses_permutation(x: SimpleNamespace) -> Amount:
    """1 where the permutation to the experts' order is one kernel, which the stack may not have. [1]"""
    return x.permute_fused * (1 - x.plain_permutations)


def apart_kernels(x: SimpleNamespace) -> Amount:
    """Kernels' worth of router and permutation beyond fused ones: operations in a row, each at a loop's launch. [1]

    Megatron-LM's optimisation history of DeepSeek-V3 on GB200, where the host set the pace: the router's fusion took
    0.6 ms off a layer and micro-batch, forward and backward, a quarter of what as many kernels of modules would.
    """
    router = ROUTER_SPLIT_KERNELS * (1 - fuses_router(x))
    permutation = PERMUTE_SPLIT_KERNELS * (1 - fuses_permutation(x)) * (1 - x.dispatch_fused)
    return x.loop_launch * (router + permutation)


def router_stream(x: SimpleNamespace) -> Stream:
    """Scores, probabilities and auxiliary loss over T x E numbers of 4 bytes; casts of a router in FP32."""
    size = 4 * residual_tokens(x) * x.E
    passes = ROUTER_PASSES - (ROUTER_PASSES - FUSED_ROUTER_PASSES) * fuses_router(x)
    casts = x.router_wide * ROUTER_CAST_BYTES * residual_tokens(x) * x.h
    return Stream("routing", passes * size, passes * size + casts)


def choice_cycles(x: SimpleNamespace) -> Amount:
    """Cycles of one multiprocessor in which a token's experts are chosen, and chosen again for the auxiliary loss. [1]

    Fused, every pick looks at all candidates: topk of E experts; before them, where the router picks groups, the best
    topk / router_picks of each group's experts, and router_picks of the groups. The auxiliary loss knows no groups.
    Source: Transformer Engine 2.12, fused_moe_router (a warp a token); see `PICK_CYCLES`.
    """
    grouped = is_more_than_one(x.router_groups)
    inside = x.router_groups * x.topk / x.router_picks
    groups = inside * (PICK_CYCLES + CANDIDATE_CYCLES * x.E / x.router_groups)
    groups += x.router_picks * (PICK_CYCLES + CANDIDATE_CYCLES * x.router_groups)
    plain = TOKEN_CYCLES + x.topk * (PICK_CYCLES + CANDIDATE_CYCLES * x.E)
    fused = (1 + x.router_aux) * plain + grouped * groups
    apart = (1 + x.router_aux + grouped) * PLAIN_CYCLES * x.E
    return residual_tokens(x) * (fuses_router(x) * fused + (1 - fuses_router(x)) * apart)


def choice(x: SimpleNamespace) -> Stream:
    """The choice of experts, which takes cycles of multiprocessors rather than bytes; not done again backward."""
    return Stream("choice", 0, 0, busy=(choice_cycles(x), 0), cycles=(TIMED, ""))


def maps(x: SimpleNamespace, rows: Amount, local: Amount, copies: Amount) -> Stream:
    """Maps of the fused permutation, made forward: from tokens and experts to rows, and from chunk to chunk of rows.

    rows, local: of this rank's experts, and how many these are. copies: tokens that come here, counted once a rank.
    All-to-all maps its own tokens to all experts and sorts the rows of every rank and expert twice; DeepEP maps what
    came to the local experts; HybridEP has it in its kernels. Source: Megatron-Core 0.16.1, token_dispatcher.py.
    """
    own = MAP_CYCLES * residual_tokens(x) * x.E
    sorts = is_more_than_one(local) * 2 * rows * (SORT_ROW_CYCLES + SORT_CHUNK_CYCLES * x.E * x.etp)
    came = MAP_CYCLES * copies * local
    busy = (1 - x.dispatch_once) * (own + sorts) + x.dispatch_once * came
    return Stream(
        "maps", 0, 0, busy=(fuses_permutation(x) * (1 - x.dispatch_fused) * busy, 0), cycles=(TIMED, "")
    )
