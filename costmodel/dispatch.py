"""Dispatch and combine of experts as exposed time, alone and under another micro-batch's compute."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.exposed import Times
from costmodel.rates import stream
from costmodel.term import Ledger
from costmodel.timing import overlap
from costmodel.timing.network import all_gather_time, all_to_all_time, dispatch_time, reduce_scatter_time
from costmodel.work import communication, dispatched
from costmodel.work.elementwise import residual_tokens
from costmodel.work.experts import counts_vary
from costmodel.work.messages import COUNT_BYTES
from costmodel.work.router import number_bytes


def dispatch_times(ledger: Ledger, x: SimpleNamespace) -> Amount:
    """Time of dispatch and combine of one expert block in one pass, before any overlap. [s]

    Combine sends back what dispatch sent. With etp the tokens are gathered over the expert's ranks and their
    results reduce-scattered. Backward does the same the other way. Source: Megatron-Core, token_dispatcher.py.
    """
    inside = communication.ranks_in_domain(x, x.ep, x.etp, x.ep_straddle)
    etp_inside = communication.ranks_in_domain(x, x.etp, 1)
    near = ledger.define(
        "dispatch_bytes_inside",
        x.capacity * dispatched.dispatch_bytes_inside(x, inside),
        "byte",
        dispatched.dispatch_bytes_inside,
    )
    far = ledger.define(
        "dispatch_bytes_outside",
        x.capacity * dispatched.dispatch_bytes_outside(x, inside),
        "byte",
        dispatched.dispatch_bytes_outside,
    )
    rows = x.capacity * dispatched.dispatch_row_bytes(x, inside)
    travel = ledger.define(
        "dispatch_time", dispatch_time(x, near + rows, far, x.ep, inside), "s", dispatch_time
    )
    told = ledger.define(
        "dispatch_numbers", dispatched_numbers(x, inside, etp_inside), "s", dispatched_numbers
    )
    gathers = gathered_rows(x, dispatched.expert_rows(x) * x.he, x.etp, etp_inside)
    return ledger.define(
        "dispatch_combine",
        2 * travel + told + gathers,
        "s",
        "dispatch and combine, and the gather and reduction over etp",
    )


def gathered_rows(x: SimpleNamespace, elements: Amount, ranks: Amount, inside: Amount) -> Amount:
    """Rows gathered over ranks and their results reduce-scattered, mean of both passes. [s]

    elements: of what is gathered, of all ranks [1]. Results are reduced, and their gradients gathered, in the format of
    probabilities, cast before and back behind. Source: Megatron-Core 0.12 to 0.19.2, token_dispatcher.py,
    hidden_states.to(self.probs.dtype) of combine_preprocess, and token_combine of the all-gather dispatcher.
    """
    sizes = (x.activation_bytes * elements, result_bytes(x) * elements)
    moved = sum(all_gather_time(x, size, ranks, inside) for size in sizes)
    moved += sum(reduce_scatter_time(x, size, ranks, inside) for size in sizes)
    return moved / 2 + is_more_than_one(ranks) * casts_of_results(x, elements, ranks)


def casts_of_results(x: SimpleNamespace, elements: Amount, ranks: Amount) -> Amount:
    """Casts around a reduction of results in the format of probabilities, in one pass. [s]"""
    both = x.activation_bytes + result_bytes(x)
    return x.results_wide * stream(x, both * (elements + elements / ranks), x.elementwise_fraction)


def result_bytes(x: SimpleNamespace) -> Amount:
    """Bytes of an element of results that are reduced: the probabilities' format, where a router states it. [byte]"""
    return x.activation_bytes + x.results_wide * (4 - x.activation_bytes)


def dispatched_numbers(x: SimpleNamespace, inside: Amount, etp_inside: Amount) -> Amount:
    """Time of what dispatchers send beside tokens in 16 bits, mean of both passes of an expert block. [s]

    Probabilities travel by an all-to-all of their own, their gradients back, and with etp they are gathered;
    forward, where rows are counted, ranks tell each other how many tokens every expert gets. DeepEP and
    HybridEP send all with the tokens. Where all tokens are gathered, so are every token's map of experts, a byte each,
    and its probabilities for all of them, and results are reduced in the probabilities' format. Source: Megatron-Core
    0.16.1, token_dispatcher.py, preprocess, token_dispatch, dispatch_postprocess, token_combine.
    """
    copies = number_bytes(x) * x.capacity * dispatched.routed_copies(x)
    numbers = all_to_all_time(x, copies, x.ep, inside)
    numbers += all_gather_time(x, copies * x.etp, x.etp, etp_inside)
    ranks = x.ep * x.etp
    near = communication.ranks_in_domain(x, ranks, 1)
    counted = all_gather_time(x, COUNT_BYTES * x.E * ranks, ranks, near)
    apart = (1 - x.dispatch_once) * (1 - x.dispatch_gather) * is_more_than_one(x.ep)
    of_all = x.dispatch_gather * is_more_than_one(ranks) * numbers_of_all(x, ranks, near)
    return apart * (numbers + counts_vary(x) * counted / 2) + of_all


def numbers_of_all(x: SimpleNamespace, ranks: Amount, inside: Amount) -> Amount:
    """What the all-gather dispatcher sends beside tokens in 16 bits, mean of both passes of an expert block. [s]

    ranks: ep x etp; inside: those of them in a domain. Casts of what is reduced are part of it.
    """
    tokens = residual_tokens(x) * ranks
    wider = x.he * (result_bytes(x) - x.activation_bytes)
    size = (number_bytes(x) * x.E + wider) * tokens
    told = all_gather_time(x, tokens * x.E, ranks, inside)
    told += all_gather_time(x, size, ranks, inside) + reduce_scatter_time(x, size, ranks, inside)
    return told / 2 + casts_of_results(x, tokens * x.he, ranks)


@dataclass(frozen=True)
class Beside:
    """Compute of one module for one expert block and micro-batch, beside which another micro-batch's tokens travel. [s]

    forward; backward, without weight gradients; wgrad: these.
    """

    forward: Amount
    backward: Amount
    wgrad: Amount

    @property
    def whole(self) -> Amount:
        """Of both passes. [s]"""
        return self.forward + self.backward + self.wgrad


def inner_compute(x: SimpleNamespace, gemms: Times, small: Times, grouped: Collection[str]) -> Beside:
    """What the routed experts compute between dispatch and combine, with what recompute of moe_act repeats of it."""
    streams = [small[name] for name in ("permute", "padding", "clamp", "activation", "expert_bias")]

    def of(kind: str) -> Amount:
        return sum(gemms[layer][kind] for layer in grouped)

    again = x.recompute_moe_act * (small["activation"]["forward"] + small["clamp"]["forward"])
    return Beside(
        of("forward") + of("quantise_forward") + sum(times["forward"] for times in streams),
        of("dgrad") + of("quantise_backward") + sum(times["backward"] for times in streams) + again,
        of("wgrad"),
    )


def windows(x: SimpleNamespace, travel: Amount, beside: Beside) -> Amount:
    """What two exchanges of `travel` each add to a module's backward pass and the next forward pass. [s]

    The first starts with the backward pass and must end before the forward one, the second starts behind the backward
    pass. Delayed weight gradients stand between the passes; else they are part of the backward pass, all of which the
    second waits for. Source: Megatron-Core 0.16.1, model_chunk_schedule_plan.py, TransformerLayerSchedulePlan.run:
    experts with dispatch of the forward and the backward micro-batch, the rest of the layer with combine.
    """
    between = x.delay_wgrad * beside.wgrad
    backward = beside.backward + beside.wgrad - between
    tokens = maximum(travel, backward + between) + beside.forward
    gradients = maximum(travel, backward) + travel
    return maximum(0, maximum(tokens, gradients) - beside.whole)


def alone_share(x: SimpleNamespace) -> Amount:
    """Share of the micro-batches whose tokens travel with nothing beside, under overlap of expert parallelism. [1]

    A stage's chunks of the warm-up run forward alone, and as many of the cool-down backward: one, and with virtual
    stages (vpp - 1) groups of micro-batches. So do those with which the pipeline fills and drains, whose bubble is of
    chunks as all are: pp - 1 more, here and of all. Source: Megatron-Core 0.16.1, schedules.py,
    get_pp_rank_microbatches, of the last stage, whose way is the longest.
    """
    chunks, filling = x.m * x.vpp / x.flushes, x.pp - 1
    return minimum(1, ((x.vpp - 1) * x.vpp_group + 1 + filling) / (chunks + filling))


def overlapped_dispatch(
    x: SimpleNamespace, travel: Amount, own: Beside, other: Beside, shared: Amount
) -> Amount:
    """Exposed part of dispatch and combine of one expert block, forward and backward together. [s]

    travel: of one pass; own: compute of the experts themselves, other: of the layers around, both for each expert
    block; shared: that of the shared experts. With ep_overlap tokens travel under the compute of another micro-batch,
    whose GEMMs lose the SMs that the dispatch takes, and memory bandwidth. Before Blackwell one hardware queue is
    taken to let nothing run beside (Megatron-Bridge sets 32). Sources: DeepSeek-AI, DualPipe,
    arXiv:2412.19437, sec. 3.2; Megatron-Core, combined_1f1b.
    """
    alone = overlap.exposed(2 * travel, x.shared_overlap * shared)
    shown = windows(x, travel / 2, own) + windows(x, travel / 2, other)
    taken = x.dispatch_sms / x.gpu_sms + x.overlap_slowdown
    beside = shown + overlap.contention(2 * travel - shown, own.whole + other.whole, taken)
    share = alone_share(x)
    beneath = x.ep_overlap * (1 - x.queued * x.one_queue)
    return (1 - beneath) * alone + beneath * ((1 - share) * beside + share * alone)
