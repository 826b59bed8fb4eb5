"""The stages of a pipeline: their time for one micro-batch, the bubble, the messages between them, what two share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace

from costmodel import schedule
from costmodel.agreements import loss_check_time
from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.data_parallel import RING_SMS
from costmodel.symbols import in_stage, symbol
from costmodel.term import Ledger, Term
from costmodel.timing.network import all_gather_time, all_reduce_time, send_recv_time
from costmodel.vocabulary import deferred_time, vocabulary_times
from costmodel.work import communication
from costmodel.work.linear import padded_vocabulary

# SMs that NCCL takes for a message over the network: two channels a network card.
# Source: NCCL, src/graph/paths.cc, ncclTopoGetNchannels (from memory).
MESSAGE_SMS = 2


def stage_times(
    ledger: Ledger, x: SimpleNamespace, totals: Mapping[str, Mapping[str, Amount]], features: Collection[str]
) -> dict[str, Amount]:
    """Time of one micro-batch, forward and backward: the pace-setting stage, the slower of it and the fullest, the
    slowest of all, all together, and an MTP head's projection. [s]

    The slowest stage sets the pace of the pipeline: what its embedding or logits add to the layers of the stage with
    most work, or slower layers than that has, is paid by every micro-batch.
    Source: D. Narayanan et al., arXiv:2104.04473, sec. 2.2.
    """
    embedding, output, projection = vocabulary_times(ledger, x, features)
    embedding, output = embedding + x.pass_host / 2, output + x.pass_host / 2
    output += ledger.define("loss_check", loss_check_time(x), "s", loss_check_time)
    several = is_more_than_one(x.pp)
    head: Amount = 0
    if "mtp" in features:
        source = "an MTP head's embedding and projection, less the recompute that its layer is spared"
        head = ledger.define("mtp_head_time", projection - spared_by_heads(x, totals), "s", source)

    def layers(stage: str) -> Amount:
        blocks = sum(in_stage(x, name, stage) * parts["whole"] for name, parts in totals.items())
        return blocks + (in_stage(x, "mtp", stage) * head if "mtp" in features else 0)

    source = "blocks of the stage x their time, its MTP heads, and its embedding or logits"
    first = ledger.define(
        "first_stage_time", layers("first") + embedding + (1 - several) * output, "s", source
    )
    last = ledger.define("last_stage_time", layers("last") + output + (1 - several) * embedding, "s", source)
    pace = ledger.define("pace_stage_time", layers("pace"), "s", source)
    inner = pace
    if unlike_layers(totals):
        fullest = ledger.define("fullest_stage_time", layers("fullest"), "s", source)
        inner = maximum(pace, fullest)
    slowest = ledger.define(
        "slowest_stage_time",
        maximum(first, maximum(inner, last)),
        "s",
        "the slowest stage sets the pace of the pipeline",
    )
    every = sum(getattr(x, f"{name}_total") * parts["whole"] for name, parts in totals.items())
    every += x.mtp_heads * head if "mtp" in features else 0
    return {
        "pace": pace,
        "inner": inner,
        "slowest": slowest,
        "all": every + embedding + output,
        "projection": projection,
    }


def unlike_layers(blocks: Collection[str]) -> bool:
    """Whether a model has layers of several kinds, so that of stages with as much work one may take longer.

    Layers of experts take longer than dense ones. Of hybrids neither FLOPs nor parameters say which stage is slowest:
    the formulas may miss it by 3 %, which the replayed schedule corrects.
    """
    return len(blocks) > 2


def spared_by_heads(x: SimpleNamespace, totals: Mapping[str, Mapping[str, Amount]]) -> Amount:
    """What full recompute of the blocks of one MTP head's layer would take. [s]

    Megatron-Core skips MTP heads with `--recompute-method block`, which is what plans are exported as.
    Source: Megatron-Core 0.16.1, multi_token_prediction.py, _checkpointed_forward.
    """
    whole_layers = minimum(1, x.recompute_layers * maximum(x.layers_pace, 1))
    return whole_layers * sum(getattr(x, f"{name}_mtp") * parts["again"] for name, parts in totals.items())


def with_encoder(
    ledger: Ledger, x: SimpleNamespace, stages: Mapping[str, Amount], encoder: Amount
) -> dict[str, Amount]:
    """Stages with an encoder: in the decoder's first stage, or in stages of its own before it. [s]"""
    slowest = ledger.define(
        "slowest_with_encoder",
        maximum(
            stages["slowest"] * x.enc_own + (1 - x.enc_own) * (symbol("first_stage_time") + encoder),
            maximum(stages["slowest"], x.enc_own * encoder / x.enc_pp),
        ),
        "s",
        with_encoder,
    )
    return dict(stages) | {"slowest": slowest, "all": stages["all"] + encoder}


def pipeline_terms(ledger: Ledger, x: SimpleNamespace, stages: Mapping[str, Amount]) -> list[Term]:
    """Bubble and exposed send/recv.

    The bubble is the time in which a stage waits while the pipe fills and drains: the time of the
    other stages for one micro-batch, over vpp, for each flush. Equal stages give flushes (pp - 1) / (vpp m) of the
    ideal time.
    Overlapped messages take SMs from the compute beside them: inside NVLink as many as a collective, over the network
    few. Fill and flush show theirs. Each pass of a (virtual) stage begins with requests to its neighbours and with
    kernels that wait for what came.
    """
    several = minimum(is_more_than_one(x.pp) + x.enc_own, 1)
    bubble = x.flushes * (stages["all"] - stages["slowest"]) / x.vpp * several
    # A message has two ends, however many stages there are.
    ends = minimum(x.pp, 2)
    beside = communication.pipeline_ranks_in_domain(x)
    sent = send_recv_time(x, communication.pipeline_bytes(x), ends, beside)
    inside = communication.ranks_in_domain(x, x.tp, 1)
    joined = all_gather_time(x, communication.pipeline_gather_bytes(x), x.tp, inside)
    scattered = x.scatter_gather * (1 - x.sp) * is_more_than_one(x.pp)
    hop = ledger.define("pp_send_recv", sent + scattered * joined, "s", send_recv_time)
    hidden = hidden_messages(x)
    leaves = ends - beside
    slowdown = x.overlap_slowdown * (1 - leaves + leaves * MESSAGE_SMS / RING_SMS)
    each = (1 - hidden) + hidden * slowdown
    sends = 2 * x.m * x.vpp * hop * each + 2 * x.flushes * (x.pp - 1) * hop
    starts = 2 * several * (x.m * x.vpp + x.flushes * (x.pp - 1)) * x.pass_start
    return [
        ledger.term(
            "pipeline_bubble", "pipeline bubble", maximum(0, bubble), "s", schedule.bubble_over_ideal
        ),
        ledger.term(
            "pipeline_send_recv", "pipeline send/recv, exposed", sends, "s", communication.pipeline_bytes
        ),
        ledger.term("pipeline_starts", "beginning the passes of stages", starts, "s", pipeline_terms),
    ]


def hidden_messages(x: SimpleNamespace) -> Amount:
    """1 where a stage computes on while its messages travel: interleaved, unless the software waits for them. [1]"""
    return x.overlap_p2p * is_more_than_one(x.vpp) * (1 - x.blocking_sends)


def deferred_term(
    ledger: Ledger, x: SimpleNamespace, backward_share: Amount, features: Collection[str]
) -> Term:
    """Deferred weight gradients of the output layer, beyond the flush: the bubble's part of backward passes. [s]"""
    flush = symbol("pipeline_bubble") * backward_share
    return ledger.term(
        "deferred_wgrad",
        "deferred weight gradients of the output layer, beyond the flush",
        deferred_time(x, flush, features),
        "s",
        deferred_time,
    )


def shared_embedding_term(ledger: Ledger, x: SimpleNamespace) -> Term:
    """The gradient of the embedding, once a step, where the last stage holds it too. [s]"""
    return ledger.term(
        "shared_embedding",
        "gradient of the embedding that two stages hold",
        shared_embedding_time(x),
        "s",
        shared_embedding_time,
    )


def shared_embedding_time(x: SimpleNamespace) -> Amount:
    """All-reduce of the word embedding's gradient between the first and the last stage. [s]

    Both hold the embedding when it is tied to the output layer or feeds MTP heads. Each of their ranks sums its part
    over tp with its one counterpart, over its own network card once the plan is larger than a domain; nothing
    hides it: the data-parallel reduction is over, the norm of the gradients waits. Source: Megatron-Core 0.16.1,
    finalize_model_grads.py, _allreduce_word_embedding_grads.
    """
    twice = minimum(x.tied + x.mtp_total, 1) * is_more_than_one(x.pp)
    size = communication.gradient_bytes(x, x.trained * padded_vocabulary(x) * x.h / x.tp)
    leaves = 2 - communication.pipeline_ranks_in_domain(x)
    return twice * ((1 - leaves) * all_reduce_time(x, size, 2, 2) + leaves * all_reduce_time(x, size, 2, 1))
