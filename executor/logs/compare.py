"""Predicted beside what a log or a trace measured: terms that do not overlap, summing to the step.

Megatron's timers nest: all-grads-sync lies inside forward-backward, params-all-gather inside optimizer; gathers that
overlap are launched and waited for in the next forward pass instead (core/pipeline_parallel/schedules.py and
core/optimizer of megatron-core 0.19.2; step_with_ready_grads in core/optimizer/distrib_optimizer.py of 0.16.1).
forward-compute and backward-compute, of log level 2, wait for the device at every micro-batch, so that they slow the
run a little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.prediction import DATA_PARALLEL, PIPELINE
from executor.compare import Row, verdict
from executor.logs.record import RUN, Log
from executor.logs.summary import Steady, timer_medians
from executor.profiles.profile import Profile
from executor.term_phases import GAPS

# Megatron's descriptions of groups, and NeMo's, by the dimension they serve. Source: parallel_state.py.
DIMENSIONS = (
    ("tp", ("TENSOR_MODEL_PARALLEL", "TENSOR_AND_", "EXPERT_TENSOR_PARALLEL")),
    ("ep", ("EXPERT_MODEL_PARALLEL", "TENSOR_AND_EXPERT", "EXPERT_TENSOR_AND_MODEL", "TP_EP")),
    ("dp", ("DATA_PARALLEL", "EXPERT_DATA", "FSDP", "DISTRIBUTED_OPTIMIZER", "DP_")),
    ("cp", ("CONTEXT_PARALLEL", "CP_")),
    ("pp", ("PIPELINE_MODEL_PARALLEL", "EMBEDDING", "PP_")),
)


# Dimensions that use a collective; experts and context send by send/recv too in some layouts.
USERS = {
    "all-to-all": ("ep",),
    "send/recv": ("pp", "cp", "ep"),
    "reduce-scatter": ("tp", "dp"),
    "all-gather": ("tp", "dp", "cp"),
    "all-reduce": ("tp", "dp"),
}


def dimension(group: str, collective: str, knobs: Mapping[str, Any] | None = None) -> str:
    """Which parallel size a group of a trace serves: tp, cp, ep, dp, pp, or "" when nothing tells.

    knobs: of the plan; where only one of the sizes that use a collective is above 1, it is that one.
    """
    name = group.upper()
    if "EXPERT_MODEL" in name or "TENSOR_AND_EXPERT" in name or "EXPERT_TENSOR_AND_MODEL" in name:
        return "ep"
    if "DATA_PARALLEL" in name or "EXPERT_DATA" in name:
        return "dp"  # with or without the context group
    for dim, marks in DIMENSIONS:
        if any(mark in name for mark in marks):
            return dim
    # Streams of nsys have no names: what only one dimension does is told by the collective.
    users = USERS.get(collective, ())
    if knobs is not None:
        users = tuple(dim for dim in users if int(knobs.get(dim, 1)) > 1)
    return users[0] if len(users) == 1 else ""


def leaves(term: dict[str, Any]) -> dict[str, float]:
    """Seconds of every leaf of a time tree by name."""
    if not term["parts"]:
        return {term["name"]: float(term["seconds"])}
    found: dict[str, float] = {}
    for part in term["parts"]:
        found |= leaves(part)
    return found


def predicted_parts(predicted: dict[str, Any]) -> dict[str, float]:
    """Seconds of the step by the words of diagnosis; they sum to the step. [s]"""
    told = leaves(predicted["terms"])

    def sum_of(*ends: str) -> float:
        return sum(value for name, value in told.items() if name.endswith(ends))

    def all_of(names: tuple[str, ...]) -> float:
        return sum(told.get(name, 0.0) for name in names)

    parts = {
        "linear": sum_of("_linear", "_linear_dgrad", "_linear_wgrad", "_experts")
        + told.get("vocabulary", 0.0),
        "attention": sum_of("_attention"),
        "element-wise": sum_of("_elementwise", "_mixer"),
        "quantisation": sum_of("_quantise"),
        "recompute": told.get("recompute", 0.0),
        "tp": sum_of("_tensor_parallel"),
        "cp": sum_of("_context_parallel"),
        "ep": sum_of("_dispatch", "_wait"),
        "pp": all_of(PIPELINE),
        "dp": all_of(DATA_PARALLEL),
        "host": told.get("launch_gaps", 0.0) + told.get("host_bound", 0.0),
        "optimizer": sum(seconds for name, seconds in told.items() if name.startswith("optimizer_")),
        "jitter": told.get("straggler_time", 0.0) + told.get("length_variance", 0.0),
    }
    return parts | {"rest": float(predicted["step_time_s"]) - sum(parts.values())}


def log_rows(predicted: dict[str, Any], log: Log, kept: Steady, peak: float | None = None) -> list[Row]:
    """Step time, throughput, then every term that the timers tell, then memory. peak: of the worst rank [byte]."""
    interval, step = predicted["interval"], float(predicted["step_time_s"])
    rows = [
        Row(
            "step time",
            step,
            kept.seconds,
            "s",
            verdict(step, kept.seconds, interval["low"], interval["high"]),
        )
    ]
    rate = float(predicted["tokens_per_second_per_gpu"])
    done = work_of_step(predicted, log)
    measured = rate * done * step / kept.seconds
    rows.append(Row("tokens/s/GPU", rate, measured, "tokens/s", verdict(rate, measured)))
    # By our count of FLOP, whatever the log counts.
    flops = float(predicted["model_tflops_per_gpu"])
    rows.append(
        Row("model TFLOP/s/GPU", flops, flops * done * step / kept.seconds, "TFLOP/s", rows[-1].verdict)
    )
    rows += timer_rows(predicted, log, kept)
    if peak:
        memory = (
            float(predicted["memory"].get("allocated_gib") or predicted["memory"]["worst_rank_gib"]) * 2**30
        )
        rows.append(Row("allocated memory of the worst rank", memory, peak, "byte", verdict(memory, peak)))
    return rows


def last_batch(log: Log) -> int:
    """Sequences of the last step that tells them, 0 when none does."""
    return next((each.global_batch for each in reversed(log.iterations) if each.global_batch), 0)


def work_of_step(predicted: Mapping[str, Any], log: Log) -> float:
    """Tokens of a GPU in a step of the log over those of the predicted step, as far as the log tells. [1]"""
    batch = last_batch(log)
    share = batch / predicted["workload"]["global_batch"] if batch else 1.0
    return share * (predicted["gpus"] / log.world if log.world else 1.0)


def timer_rows(predicted: dict[str, Any], log: Log, kept: Steady) -> list[Row]:
    """The step by Megatron's timers, slowest rank; nothing when the log has none."""
    slow = {name: high for name, (_, high) in timer_medians(log, kept).items()}
    if log.framework == RUN or "forward-backward" not in slow:
        return []
    parts, told = predicted_parts(predicted), leaves(predicted["terms"])
    gather = told.get("dp_gather", 0.0)
    grads = parts["dp"] - gather
    waits = bool(predicted["knobs"].get("overlap_param_gather"))  # of the gather, in the forward pass
    optimizer = parts["optimizer"] + (0.0 if waits else gather)
    whole = (gather if waits else 0.0) + sum(
        parts[name]
        for name in (
            "linear",
            "attention",
            "element-wise",
            "quantisation",
            "recompute",
            "tp",
            "cp",
            "ep",
            "pp",
            "host",
        )
    )
    sync = slow.get("all-grads-sync", 0.0)
    pairs: list[tuple[str, float, float]] = []
    if "forward-compute" in slow and "backward-compute" in slow:
        forward, backward = _passes(told, parts)
        forward += gather if waits else 0.0
        pairs += [
            ("forward compute", forward, slow["forward-compute"]),
            ("backward compute", backward, slow["backward-compute"]),
        ]
        rest = slow["forward-backward"] - sync - slow["forward-compute"] - slow["backward-compute"]
        pairs.append(("pipeline: bubble and transfers", whole - forward - backward, max(rest, 0.0)))
    else:
        pairs.append(("forward and backward", whole, slow["forward-backward"] - sync))
    if "all-grads-sync" in slow:
        pairs.append(("gradient reduction, exposed", grads, sync))
    else:
        name, expected, got = pairs[-1]
        pairs[-1] = (name, expected + grads, got)
    if "optimizer" in slow:
        title = "optimizer" if waits else "optimizer and parameter gather"
        pairs.append((title, optimizer, slow["optimizer"]))
    seen = sum(value for _, _, value in pairs)
    others = float(predicted["step_time_s"]) - sum(value for _, value, _ in pairs)
    pairs.append(("everything else", others, max(0.0, kept.seconds - seen)))
    return [Row(name, one, other, "s", verdict(one, other)) for name, one, other in pairs]


def _passes(told: dict[str, float], parts: dict[str, float]) -> tuple[float, float]:
    """Forward and backward with what they wait for inside a layer; embedding and logits a third and two thirds."""
    forward = sum(value for name, value in told.items() if name.startswith("forward_"))
    backward = sum(value for name, value in told.items() if name.startswith("backward_")) + parts["recompute"]
    vocabulary = told.get("vocabulary", 0.0)
    return (
        forward + vocabulary / 3 + parts["host"] * GAPS["forward"],
        backward + vocabulary * 2 / 3 + parts["host"] * GAPS["backward"],
    )


def exposed_by_dimension(profile: Profile, knobs: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Exposed communication of a step by the dimension that it serves; "" for groups that nothing names. [s]"""
    found: dict[str, float] = {}
    for group in profile.groups:
        dim = dimension(group.group, group.collective, knobs)
        found[dim] = found.get(dim, 0.0) + group.exposed / max(profile.steps, 1)
    return found


def profile_rows(predicted: dict[str, Any], profile: Profile) -> list[Row]:
    """The step as a trace tells it: classes of kernels, exposed communication by dimension, idle."""
    parts = predicted_parts(predicted)
    steps = max(profile.steps, 1)
    seen = {name: seconds / steps for name, seconds in profile.compute.items()}
    exposed = exposed_by_dimension(profile, predicted["knobs"])
    recomputed = parts["recompute"]
    compute = parts["linear"] + parts["attention"] + parts["element-wise"] + parts["quantisation"]
    rows = []
    for name in ("linear", "attention", "element-wise", "quantisation", "optimizer"):
        expected = parts[name]
        if name in ("linear", "attention", "element-wise") and compute:
            expected += recomputed * parts[name] / compute  # what is done again is done alike
        rows.append((f"{name} kernels", expected, seen.get(name, 0.0)))
    titles = {
        "tp": "tensor-parallel",
        "cp": "context-parallel",
        "ep": "expert dispatch",
        "dp": "data-parallel",
    }
    for dim, title in titles.items():
        if parts[dim] or exposed.get(dim):
            rows.append((f"{title}, exposed", parts[dim], exposed.get(dim, 0.0)))
    if parts["pp"] or exposed.get("pp"):
        # A receiving kernel waits through the bubble.
        rows.append(("pipeline, waiting and transfers", parts["pp"], exposed.get("pp", 0.0)))
    if exposed.get(""):
        rows.append(("other communication, exposed", 0.0, exposed[""]))
    rows.append(
        (
            "idle: host, data, stragglers",
            parts["host"] + parts["jitter"] + parts["rest"],
            profile.idle / steps,
        )
    )
    return [Row(name, one, other, "s", verdict(one, other)) for name, one, other in rows]
