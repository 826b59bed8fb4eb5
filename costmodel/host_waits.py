"""The host in a step: gaps between the kernels it issues, and how long GPUs wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.block_kernels import graphed, graphed_whole
from costmodel.layer import BlockTimes
from costmodel.symbols import ATTENTION_BLOCKS, HEADED_BLOCKS, in_stage, symbol
from costmodel.term import Ledger, Term
from costmodel.timing import host
from costmodel.work.attention import exchange_loops
from costmodel.work.elementwise import rotary_stops
from costmodel.work.experts import counts_vary
from costmodel.work.recompute import repeated

# Small kernels of an MTP head beside its layer and its logits, forward and backward: labels, masks and words rolled,
# words embedded, two norms, join and projection, the loss. Counted by hand in Megatron-Core 0.17.1,
# multi_token_prediction.py, to within a third.
MTP_KERNELS = 35 + 27
# Host time that DTensor adds to a linear layer of tensor parallelism, forward and backward, without and with an adapter
# [s]: it finds out the sharding of each tensor in Python. Measured on a server CPU (AMD EPYC) with PyTorch 2.13
# by benchmarks/dtensor_host.py.
TENSOR_FORWARD, TENSOR_BACKWARD = (0.5e-3, 1.5e-3), (1.0e-3, 2.3e-3)


def block_gaps(x: SimpleNamespace, name: str, times: BlockTimes) -> Amount:
    """Gaps between the kernels of one block, forward and backward, and those in which the host reads a number. [s]"""
    issued = times.kernels
    stops = rotary_stops(x) * (1 + x.recompute_layers) if name in ATTENTION_BLOCKS else 0
    return (
        host.launch_gaps(issued.forward + issued.backward, x.kernel_launch, x.graph_launch, graphed(x, name))
        + host.launch_gaps(
            issued.loops_forward + issued.loops_backward,
            x.kernel_launch,
            x.graph_launch,
            graphed_whole(x, name),
        )
        + stops * x.expert_wait
    )


def stops_at_exchanges(x: SimpleNamespace) -> Amount:
    """1 where the host waits for the device at each exchange between pipeline stages, 0 where it runs ahead. [1]

    Megatron-Core sends and receives in batches unless stages are interleaved and overlapped, and synchronises after
    each batch. Source: Megatron-Core 0.16.1, p2p_communication.py, _communicate (batch_p2p_sync, on by default); in
    Megatron-LM since 2021.
    """
    return x.megatron_core * is_more_than_one(x.pp) * (1 - x.overlap_p2p * is_more_than_one(x.vpp))


def kernel_time(x: SimpleNamespace) -> Amount:
    """Host time to issue one kernel on a rank. [s]"""
    return host.issue_time(x.host_kernel, x.unbound, x.unbound_launch)


def issuing_time(x: SimpleNamespace, name: str, times: BlockTimes, kind: str) -> Amount:
    """What the host needs to issue one pass of a block: kernels that no graph replays, and its own work. [s]"""
    again = repeated(x, x.recompute_moe)
    kernels = times.kernels.forward if kind == "forward" else times.kernels.backward
    loops = times.kernels.loops_forward if kind == "forward" else times.kernels.loops_backward
    own = x.expert_host * (1 + (again if kind == "backward" else 0)) if name == "experts" else 0
    in_loops = (1 - graphed_whole(x, name)) * (own + loops * x.loop_launch)
    return ((1 - graphed(x, name)) * kernels + in_loops) * kernel_time(x) + sharded_layers_time(x, name, kind)


def drained_time(x: SimpleNamespace, name: str, kind: str) -> Amount:
    """Host time of one pass of a block in which the device has nothing left to run. [s]

    That of loops over packed documents' chunks, each turn of which reads numbers from the device. Source: Transformer
    Engine 2.13 to 2.17, context_parallel.py, torch.arange between bounds that are tensors.
    """
    if name not in ATTENTION_BLOCKS:
        return 0
    forward, backward = exchange_loops(x)
    loops = forward if kind == "forward" else backward + x.recompute_layers * forward
    return (1 - graphed_whole(x, name)) * loops * x.loop_launch * kernel_time(x)


def sharded_layers_time(x: SimpleNamespace, name: str, kind: str) -> Amount:
    """What DTensor adds to the host's time for one pass of a block under tensor parallelism, unless compiled. [s]

    By its linear layers: queries, keys, values and output, gate, up and down, each a module where they are kept apart.
    Source: nemo-automodel 0.7.0, distributed/parallel_styles.py; torchtitan compiles its layers where it fuses.
    """
    layers = {
        **dict.fromkeys(HEADED_BLOCKS, ((1 + 2 * x.separate_gate, x.lora_qkv), (1, x.lora_proj))),
        "mlp": ((1 + x.separate_gate * x.gates, x.lora_mlp), (1, x.lora_mlp)),
    }.get(name, ())

    def of(each: tuple[float, float]) -> Amount:
        plain, with_adapter = each
        adapters = 1 - x.trained
        return sum(
            number * (plain + adapters * adapted * (with_adapter - plain)) for number, adapted in layers
        )

    seconds = of(TENSOR_FORWARD)
    if kind == "backward":
        seconds = of(TENSOR_BACKWARD) + x.recompute_layers * seconds
    return x.dtensor * maximum(x.eager, x.residual_split) * is_more_than_one(x.tp) * seconds


def _waits_apart(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Mapping[str, BlockTimes],
    totals: Mapping[str, Mapping[str, Amount]],
    stage: str,
) -> dict[str, Amount]:
    """How long each pass of one micro-batch on a stage waits for the host, no pass lending another its lead. [s]"""
    waits = {}
    for kind in ("forward", "backward"):
        issuing = sum(
            in_stage(x, name, stage) * issuing_time(x, name, times, kind) for name, times in blocks.items()
        )
        running = sum(in_stage(x, name, stage) * part[kind] for name, part in totals.items())
        drained = sum(in_stage(x, name, stage) * drained_time(x, name, kind) for name in blocks)
        issues = ledger.define(f"host_issues_{kind}_{stage}", issuing, "s", issuing_time)
        wait = drained + host.host_exposed(issues - drained, running)
        waits[kind] = ledger.define(f"host_waits_{kind}_{stage}", wait, "s", host.host_exposed)
    return waits


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
    block of the forward pass, so that it is never far ahead there: each pass waits by itself. So it does where each
    exchange between stages stops the host, or each chunk of a packed document (`drained_time`). Else the lead of one
    pass helps the other.

    While a pipeline fills, its first micro-batch meets one halting stage after the other. A host that never halts has
    issued its pass before the micro-batch comes. While it drains, waits of backward passes, which are shorter, are
    left out.
    """
    behind = {stage: _waits_apart(ledger, x, blocks, totals, stage) for stage in ("pace", "first", "last")}
    issued = symbol("host_issues_forward_pace") + symbol("host_issues_backward_pace")
    free = host.host_exposed(issued, stages["slowest"])
    halting = maximum(stops_at_exchanges(x), minimum(1, exchange_loops(x)[0]))
    if "experts" in blocks:
        halting = maximum(halting, counts_vary(x))
    # A stage that is slowest for its logits waits in its own layers, and where an MTP head begins and ends.
    heads = x.mtp_heads * MTP_KERNELS * kernel_time(x)
    reached = maximum(
        stages["pace"] + sum(behind["pace"].values()),
        maximum(
            symbol("first_stage_time") + sum(behind["first"].values()),
            symbol("last_stage_time") + sum(behind["last"].values()) + heads,
        ),
    )
    slower = maximum(reached - stages["slowest"], 0)
    # Divided as the pace-setting stage waits; where only others do, all of it is the forward pass's.
    share = behind["pace"]["backward"] / maximum(sum(behind["pace"].values()), 1e-12)
    for kind, part in (("forward", 1 - share), ("backward", share)):
        waits = (halting * slower + (1 - halting) * free) * part
        ledger.define(f"host_wait_{kind}", waits, "s", host.host_exposed)
    waiting = x.m * (symbol("host_wait_forward") + symbol("host_wait_backward"))
    source = "wait for the host in a stage's forward pass where its host halts, while the pipeline fills"
    halt = ledger.define("host_halt", halting * symbol("host_wait_forward"), "s", source)
    waiting += x.flushes * (x.pp - 1) / x.vpp * halt
    return ledger.term("host_bound", "waiting for the host", waiting, "s", host.host_exposed)
