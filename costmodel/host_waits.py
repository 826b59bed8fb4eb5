"""The host in a step: gaps between the kernels it issues, and how long GPUs wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from costmodel.amount import Amount, maximum
from costmodel.block_kernels import graphed
from costmodel.layer import BlockTimes
from costmodel.stages import in_stage
from costmodel.term import Ledger, Term, symbol
from costmodel.timing import host
from costmodel.work.elementwise import rotary_stops
from costmodel.work.experts import counts_vary

# Small kernels of an MTP head beside its layer and its logits, forward and backward: labels, masks and words rolled,
# words embedded, two norms, join and projection, the loss. Counted by hand in Megatron-Core 0.17.1,
# multi_token_prediction.py, to within a third.
MTP_KERNELS = 35 + 27


def block_gaps(x: SimpleNamespace, name: str, times: BlockTimes) -> Amount:
    """Gaps between the kernels of one block, forward and backward, and those in which the host reads a number. [s]"""
    issued = times.kernels
    stops = rotary_stops(x) * (1 + x.recompute_layers) if name in ("attention", "mla", "csa") else 0
    return (
        host.launch_gaps(issued.forward + issued.backward, x.kernel_launch, x.graph_launch, graphed(x, name))
        + host.launch_gaps(
            issued.loops_forward + issued.loops_backward,
            x.kernel_launch,
            x.graph_launch,
            _replayed_loops(x, name),
        )
        + stops * x.expert_wait
    )


def _replayed_loops(x: SimpleNamespace, name: str) -> Amount:
    """Share of a block's loops that CUDA graphs replay. [1]"""
    return x.graph_experts if name == "experts" else graphed(x, name)


def host_term(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Mapping[str, BlockTimes],
    totals: Mapping[str, Mapping[str, Amount]],
    stages: Mapping[str, Amount],
) -> Term:
    """Time in which GPUs wait for kernels to be issued.

    Beside its kernels an expert block costs the host work of its own: routing maps, splits, autograd functions of
    the dispatcher. A host that must learn how many tokens came, with every dispatcher, stands still in every expert
    block of the forward pass, so that it is never far ahead there: each pass waits by itself. Else the lead of one pass
    helps the other.

    While a pipeline fills, its first micro-batch meets one halting stage after the other. A host that never halts has
    issued its pass before the micro-batch comes, and every host its backward pass before the gradient comes.
    """
    again = x.recompute_layers + (1 - x.recompute_layers) * x.recompute_moe

    def host_time(name: str, times: BlockTimes, kind: str) -> Amount:
        kernels = times.kernels.forward if kind == "forward" else times.kernels.backward
        loops = times.kernels.loops_forward if kind == "forward" else times.kernels.loops_backward
        own = x.expert_host * (1 + (again if kind == "backward" else 0)) if name == "experts" else 0
        in_loops = (1 - _replayed_loops(x, name)) * (own + loops * x.loop_launch)
        return ((1 - graphed(x, name)) * kernels + in_loops) * x.host_kernel

    def issued(stage: str, kind: str) -> Amount:
        return sum(in_stage(x, name, stage) * host_time(name, times, kind) for name, times in blocks.items())

    def waiting_apart(stage: str) -> dict[str, Amount]:
        """Waits of each pass of a stage by itself."""
        return {
            kind: host.host_exposed(
                issued(stage, kind),
                1,
                sum(in_stage(x, name, stage) * part[kind] for name, part in totals.items()),
            )
            for kind in ("forward", "backward")
        }

    apart = waiting_apart("pace")
    free = host.host_exposed(issued("pace", "forward") + issued("pace", "backward"), 1, stages["slowest"])
    halting = counts_vary(x) if "experts" in blocks else 0
    behind = sum(apart.values())
    # A stage that is slowest for its logits waits in its own layers, and where an MTP head begins and ends.
    heads = x.mtp_heads * MTP_KERNELS * x.host_kernel
    reached = maximum(
        stages["pace"] + behind,
        maximum(
            symbol("first_stage_time") + sum(waiting_apart("first").values()),
            symbol("last_stage_time") + sum(waiting_apart("last").values()) + heads,
        ),
    )
    slower = maximum(reached - stages["slowest"], 0)
    # Divided as the pace-setting stage waits; where only others do, all of it is the forward pass's.
    share = apart["backward"] / maximum(behind, 1e-12)
    for kind, part in (("forward", 1 - share), ("backward", share)):
        waits = (halting * slower + (1 - halting) * free) * part
        ledger.define(f"host_wait_{kind}", waits, "s", host.host_exposed)
    waiting = x.m * (symbol("host_wait_forward") + symbol("host_wait_backward"))
    if "experts" in blocks:
        source = "wait for the host in a stage's forward pass where its host halts, while the pipeline fills"
        waiting += (
            (x.pp - 1)
            / x.vpp
            * ledger.define("host_halt", halting * symbol("host_wait_forward"), "s", source)
        )
    return ledger.term("host_bound", "waiting for the host", waiting, "s", host.host_exposed)
