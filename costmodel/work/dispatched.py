"""Tokens on their way to the experts and back: copies, rows, bytes of one dispatch, and what dispatchers hold.

A token's copies travel to the ranks of its experts and back; these and the dispatcher decide how many, and how far.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work.elementwise import residual_tokens
from costmodel.work.router import held_bytes


def routed_copies(x: SimpleNamespace) -> Amount:
    """Copies of its own tokens that one rank sends to experts, itself included. [1]

    T topk: every token visits topk experts; a capacity factor below what comes drops the rest.
    Source: N. Shazeer et al., arXiv:1701.06538; D. Lepikhin et al., GShard, arXiv:2006.16668.
    """
    return residual_tokens(x) * x.topk


def expert_rows(x: SimpleNamespace) -> Amount:
    """Rows that the local experts of the busiest rank compute. [1]

    Balanced, each of the ep ranks receives as many copies as it sends; etp ranks see the tokens of all of
    them. imbalance raises it, up to a capacity factor, which drops the rest; rows that are padded are that many.
    """
    uneven = minimum(minimum(x.imbalance, x.capacity_limit), most_imbalance(x.E, x.topk, x.ep))
    return routed_copies(x) * x.etp * x.capacity * (1 + x.ragged * (uneven - 1))


def most_imbalance(experts: Amount, chosen: Amount, ranks: Amount) -> Amount:
    """Tokens of the busiest expert rank over the mean, at most. [1]

    No rank gets a token more often than the token chooses, or the rank has experts: one with all of them has the mean.
    """
    return ranks * minimum(1, experts / ranks / chosen)


def local_experts(x: SimpleNamespace) -> Amount:
    """Experts on one rank: E / ep. [1]"""
    return x.E / x.ep


def distinct(groups: Amount, picks: Amount) -> Amount:
    """Expected number of `groups` that `picks` uniform choices meet. [1]

    groups (1 - (1 - 1 / groups)^picks).
    """
    return groups * (1 - (1 - 1 / groups) ** picks)


def destinations(x: SimpleNamespace, blocks: Amount) -> Amount:
    """Expected number of ranks or domains, `blocks` equal runs of experts in all, that a token's experts are on. [1]

    A router with groups picks experts from router_picks of router_groups of them (node-limited routing), each alike;
    one without has a single group. A block larger than a group holds several. Experts side by side meet topk blocks / E
    of them. Balanced. Sources: DeepSeek-AI, arXiv:2412.19437, sec. 2.1.2; NeMo AutoModel, FakeBalancedGate.
    """
    groups_in_block = maximum(x.router_groups / blocks, 1)
    open_blocks = blocks * (1 - (1 - x.router_picks / x.router_groups) ** groups_in_block)
    anywhere = distinct(maximum(open_blocks, 1), x.topk)
    return (1 - x.adjacent) * anywhere + x.adjacent * maximum(x.topk * blocks / x.E, 1)


def dispatch_copies_inside(x: SimpleNamespace, inside: Amount) -> Amount:
    """Rows that one rank sends to the other ranks of its domain in one dispatch. [1]

    All-to-all sends every copy; DeepEP and HybridEP send a token once to each rank. `inside` ranks of the ep
    share the domain; what comes over the network is passed on there too. Where all tokens are gathered, a rank gets
    those of all others, of each other domain's ranks one over its own card.
    Sources: DeepSeek-AI, DeepEP; NVIDIA HybridEP; Megatron-Core, token_dispatcher.py.
    """
    once = destinations(x, x.ep)
    copies = (1 - x.dispatch_once) * x.topk + x.dispatch_once * once
    copies = (1 - x.dispatch_gather) * copies + x.dispatch_gather * x.ep
    leaving = minimum((inside - 1) / x.ep + x.dispatch_once * (x.ep - inside) / x.ep, 1)
    leaving += x.dispatch_gather * ((inside - 1) / inside - leaving)
    return residual_tokens(x) * copies * leaving


def dispatch_bytes_inside(x: SimpleNamespace, inside: Amount) -> Amount:
    """Bytes that one rank sends to the other ranks of its domain in one dispatch. [byte]"""
    return x.activation_bytes * x.he * dispatch_copies_inside(x, inside)


def dispatch_row_bytes(x: SimpleNamespace, inside: Amount) -> Amount:
    """Bytes that would take as long as what HybridEP's kernels spend on rows beside sending them. [byte]"""
    return x.dispatch_fused * x.dispatch_row * dispatch_copies_inside(x, inside)


def dispatch_bytes_outside(x: SimpleNamespace, inside: Amount) -> Amount:
    """Bytes that one rank sends over its network card in one dispatch. [byte]

    All-to-all sends every copy, DeepEP and HybridEP a token once to each domain.
    """
    domains = x.ep / inside
    copies = (1 - x.dispatch_once) * x.topk * (1 - inside / x.ep)
    copies += x.dispatch_once * destinations(x, domains) * (1 - 1 / domains)
    gathered = (x.ep - inside) / inside
    copies = (1 - x.dispatch_gather) * copies + x.dispatch_gather * gathered
    return x.activation_bytes * residual_tokens(x) * copies * x.he


def held_maps(x: SimpleNamespace) -> Amount:
    """What the dispatcher of an expert block holds of its last micro-batch even when the block is recomputed: two rows
    of the permutation's map, the map of chosen experts, their probabilities. [byte]

    One set a layer, whatever is in flight. Source: Megatron-Core 0.16.1, token_dispatcher.py; dry run.
    """
    return held_bytes(x) * residual_tokens(x) * x.E


def gathered_tokens(x: SimpleNamespace) -> Amount:
    """The buffer into which the all-gather dispatcher gathers the tokens of all ep x etp ranks. [byte]

    One for all layers. Source: Megatron-Core 0.16.1, token_dispatcher.py, token_dispatch, use_global_buffer.
    """
    ranks = x.ep * x.etp
    return (
        x.dispatch_gather * is_more_than_one(ranks) * x.activation_bytes * residual_tokens(x) * ranks * x.he
    )


def forward_rows(x: SimpleNamespace) -> Amount:
    """What an expert block holds of its rows while it combines them, beyond what it keeps for its backward pass. [byte]

    All-to-all: rows as they were sent, and as they came where the rank has several experts, whose order they take
    then; results in that order and in the one they came in, or as they came back. Where experts have biases, results
    stand in three: as FC2 gave them, with their biases expert by expert, joined. DeepEP: tokens as they came, and what
    is summed for each; HybridEP permutes while it sends. A gather's tokens and results are counted by themselves.
    Frames of the forward pass hold them, before Megatron-Core 0.13 those of results alone. Source: Megatron-Core 0.12.3
    to 0.19.2, moe_layer.py, custom_forward, and token_dispatcher.py; checked against the peak of a dry run.
    """
    copies, rows = x.capacity * routed_copies(x), expert_rows(x)
    sent, sorted_rows = is_more_than_one(x.ep), is_more_than_one(local_experts(x))
    results = (1 + maximum(maximum(sent, sorted_rows), 2 * x.biases)) * rows
    moved = sent * copies + sorted_rows * rows + results
    deepep = x.dispatch_once * (1 - x.dispatch_fused)
    met = residual_tokens(x) * destinations(x, x.ep)
    apart = (1 - x.dispatch_once) * (1 - x.dispatch_gather)
    held = apart * moved + deepep * (2 * met + rows) + x.dispatch_fused * rows + x.dispatch_gather * rows
    return x.activation_bytes * x.he * held


def gathered_results(x: SimpleNamespace) -> Amount:
    """Results of all ranks' tokens before their reduction, and their copy in the probabilities' format. [byte]"""
    wider = 4 * x.results_wide / x.activation_bytes
    return (1 + wider) * gathered_tokens(x)
