"""Facts for diagnosis from a log or run record, traces and a prediction; a fact that nothing tells is absent."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from executor.export.environment import CONNECTIONS
from executor.logs.compare import exposed_by_dimension, predicted_parts
from executor.logs.record import ENDS, Iteration, Log
from executor.logs.summary import Steady, median_of, spikes_by_timer, timer_medians
from executor.profiles.profile import Profile

# Timers that a fact is made of, by Megatron's names; the slowest rank counts.
DATA_TIMER = "batch-generator"
TIMERS = {
    "timer_grads": ("all-grads-sync",),
    "timer_gather": ("params-all-gather",),
    "timer_optimizer": ("optimizer",),
    "timer_data": (DATA_TIMER,),
    "timer_transfers": (
        "forward-recv",
        "forward-send",
        "backward-recv",
        "backward-send",
        "forward-send-forward-recv",
        "forward-send-backward-recv",
        "backward-send-forward-recv",
        "backward-send-backward-recv",
        "forward-backward-send-forward-backward-recv",
    ),
}
COUNTED = {
    "socket_lines": ("nccl socket channel", "nccl uses socket"),
    "fast_network_lines": ("nccl fast channel", "nccl uses fast network"),
    "no_device_lines": ("nccl no device", "nccl plugin missing"),
    "no_gpu_direct_lines": ("nccl no gpu direct",),
    "shm_lines": ("nccl shm channel",),
    "nccl_lines": (
        "nccl socket channel",
        "nccl fast channel",
        "nccl p2p channel",
        "nccl shm channel",
        "nccl uses socket",
        "nccl uses fast network",
    ),
    "out_of_memory_lines": ("out of memory",),
    "kernel_fault_lines": ("kernel fault",),
    "retry_lines": ("allocator retry", "cache flush"),
    "loader_lines": ("data loader",),
    "overlap_off_lines": ("no overlap",),
    "unfused_lines": ("unfused attention",),
    "timeout_lines": ("nccl timeout", "lost rank"),
    "xid_lines": ("xid",),
    "throttle_lines": ("throttle",),
}
# What may have ended the run: counted where no step follows.
ENDINGS = {"killed_lines": ENDS, "signal_lines": ("killed",)}
# Misspelt in the guides; a variable of this name is silently ignored.
MISSPELT = {"NVTE_FLASH_ATT": "NVTE_FLASH_ATTN", "NVTE_FUSED_ATT": "NVTE_FUSED_ATTN"}


def log_facts(log: Log, kept: Steady) -> dict[str, Any]:
    """What the steps, timers, memory and other lines of a log tell."""
    facts: dict[str, Any] = {
        "step": None if log.cold else kept.seconds,
        "scatter": kept.scatter,
        "low_step": kept.low,
        "spikes": len(kept.spikes),
        "spike_loss": kept.spike_loss,
        "spike_data": spikes_by_timer(log, kept, DATA_TIMER),
        "period": kept.period,
        "trend": kept.trend.change if kept.trend.sure else 0.0,
        "num_lines": kept.num_lines,
        "last_step": log.last_step,
        "planned": log.planned,
        "skipped_share": _share(log, "skipped"),
        "nan_share": _lost_share(log),
        "first_lost": next(
            (each.step for each in _trained(log) if each.nan or each.skipped or each.loss_is_lost), None
        ),
        "measured_tflops": median_of(log, "tflops", kept),
        "power": median_of(log, "power", kept),
        "save_delay": kept.delays.get("checkpoint", 0.0) / max(1, sum(each.span for each in log.iterations)),
        "misspelt": ", ".join(
            f"{name} (meant: {MISSPELT[name]})" for name in log.variables if name in MISSPELT
        ),
    }
    facts |= {fact: sum(log.counted[kind] for kind in kinds) for fact, kinds in COUNTED.items()}
    facts |= {fact: sum(log.since_step[kind] for kind in kinds) for fact, kinds in ENDINGS.items()}
    if log.variables.get(CONNECTIONS, "").isdigit():
        facts["max_connections"] = int(log.variables[CONNECTIONS])
    return facts | _timer_facts(log, kept) | _memory_facts(log) | _straggler_facts(log)


def _share(log: Log, name: str) -> float:
    """Skipped or lost steps over all steps. [1]"""
    steps = sum(each.span for each in log.iterations)
    return sum(getattr(each, name) for each in _trained(log)) / steps if steps else 0.0


def _trained(log: Log) -> list[Iteration]:
    """Lines from the first on that updates weights: before it a dynamic loss scale is found, which skips by design."""
    begun = itertools.dropwhile(lambda each: each.skipped >= each.span, log.iterations)
    return list(begun) or log.iterations


def _lost_share(log: Log) -> float:
    """Steps whose loss is no number over all steps: as the log counts them, else lines that print none. [1]"""
    steps = sum(each.span for each in log.iterations)
    lost = sum(
        max(each.nan, each.span if each.loss_is_lost and not each.nan else 0) for each in log.iterations
    )
    return lost / steps if steps else 0.0


def _timer_facts(log: Log, kept: Steady) -> dict[str, Any]:
    found = timer_medians(log, kept)
    facts: dict[str, Any] = {}
    for fact, names in TIMERS.items():
        told = [found[name][1] for name in names if name in found]
        if told:
            facts[fact] = sum(told)
    imbalance = []
    for name in ("forward-compute", "backward-compute"):
        low, high = found.get(name, (None, 0.0))
        if low and high:
            imbalance.append((low, high))
    if imbalance:
        facts["compute_low"] = sum(low for low, _ in imbalance)
        facts["compute_high"] = sum(high for _, high in imbalance)
    save = log.timers.get("save-checkpoint", [])
    if save:
        facts["timer_save"] = sum(timer.high for timer in save) / max(
            1, sum(each.span for each in log.iterations)
        )
    return facts


def _memory_facts(log: Log) -> dict[str, Any]:
    """Of the rank whose peak is the highest. [byte]"""
    peaks = [each for each in log.memory if each.max_allocated]
    if not peaks:
        return {}
    worst = max(peaks, key=lambda each: each.max_allocated or 0.0)
    lowest = min({each.rank: each.max_allocated or 0.0 for each in peaks}.values())
    facts: dict[str, Any] = {"allocated": worst.max_allocated, "lowest_allocated": lowest}
    reserved = max((each.max_reserved or each.reserved or 0.0 for each in log.memory), default=0.0)
    if reserved:
        facts["reserved"] = reserved
    if worst.device:
        facts["device_used"] = worst.device
    return facts


def _straggler_facts(log: Log) -> dict[str, Any]:
    """Medians of Megatron's straggler detector: slowest over quickest rank, and who it was most often."""
    facts: dict[str, Any] = {}
    for fact, low, high in (
        ("straggle", "MnRtt/Rnk", "MxRtt/Rnk"),
        ("clock_ratio", "MxClk/Rnk", "MnClk/Rnk"),
    ):
        ratios = [
            each[high][0] / each[low][0] for each in log.stragglers if each.get(low, (0,))[0] and high in each
        ]
        if ratios:
            facts[fact] = statistics.median(ratios)
    ranks = [each["MxRtt/Rnk"][1] for each in log.stragglers if "MxRtt/Rnk" in each]
    if ranks:
        facts["slow_rank"] = statistics.mode(ranks)
        facts["slow_rank_share"] = ranks.count(facts["slow_rank"]) / len(ranks)
    return facts


def profile_facts(profiles: Sequence[Profile], knobs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Shares of the window of the device that waits most: the others wait for the same. knobs: of the plan."""
    if not profiles:
        return {}
    worst = max(profiles, key=lambda each: each.exposed + each.idle)
    facts: dict[str, Any] = {
        "idle_share": worst.share(worst.idle),
        "gap_share": worst.share(worst.gaps),
        "exposed_share": worst.share(worst.exposed),
        "compute_share": worst.share(worst.computing),
        "copy_share": worst.share(worst.copying_exposed),
        "linear_share": worst.share(worst.compute.get("linear", 0.0)),
        "quantise_share": worst.share(worst.compute.get("quantisation", 0.0)),
        "small_share": worst.share(worst.compute.get("element-wise", 0.0)),
    }
    if worst.steps:
        facts["profile_step"] = worst.step_seconds
    if worst.lead is not None:
        facts["lead"] = worst.lead
    exposed = exposed_by_dimension(worst, knobs)
    per_step = worst.step_seconds
    facts |= {f"exposed_{dim}": exposed.get(dim, 0.0) / per_step for dim in ("tp", "cp", "ep", "dp", "pp")}
    facts["exposed_unknown"] = exposed.get("", 0.0) / per_step
    computing = [each.computing for each in profiles]
    if len(computing) > 1 and min(computing):
        facts["device_imbalance"] = max(computing) / min(computing)
    return facts


def run_facts(measured: Mapping[str, Any]) -> dict[str, Any]:
    """What the record of a run tells beyond its steps: its own step time, waiting for cores and for other ranks."""
    step = float(measured["step_time_s"])
    return {
        "step": step,
        "queued_share": measured["queued_s"] / step if "queued_s" in measured else None,
        "waiting": measured.get("phases", {}).get("communication"),
    }


def prediction_facts(predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of the predicted step by part, its interval, memory, and the plan's knobs by name."""
    parts = predicted_parts(dict(predicted))
    memory = predicted["memory"]
    facts: dict[str, Any] = {f"p_{name.replace('-', '')}": value for name, value in parts.items()}
    inside = ("linear", "attention", "element-wise", "quantisation", "recompute", "tp", "cp", "ep", "host")
    facts |= {
        "p_compute": sum(parts[name] for name in inside),
        "p_messages": sum(parts[name] for name in ("tp", "cp", "ep", "dp", "pp")),
        "p_step": float(predicted["step_time_s"]),
        "p_low": float(predicted["interval"]["low"]),
        "p_high": float(predicted["interval"]["high"]),
        "p_memory": float(memory["worst_rank_gib"]) * 2**30,
        "device": float(memory["device_gib"]) * 2**30,
        "gpus": predicted["gpus"],
        "task": predicted["workload"]["task"],
        "packed": predicted["workload"]["packed"],
        "p_tflops": predicted["model_tflops_per_gpu"],
    }
    precision = str(predicted["knobs"].get("precision", ""))
    facts["quantised"] = precision.startswith(("fp8", "mxfp8", "nvfp4"))
    facts |= {name: value for name, value in predicted["knobs"].items() if name != "settings"}
    # 0 is what the plan needs: what a run had is for its environment to tell.
    return facts | {"max_connections": facts.get("max_connections") or None}
