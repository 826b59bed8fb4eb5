"""The pieces of an answer about one plan, as lines: headline, knobs, trees, what binds, assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from advisor.names_there import name_there, names_shown
from advisor.options import value_text
from advisor.prices import EXAMPLE
from advisor.render import bar, count, gib, gpus_text, heading, percent, seconds, table, tree, wrap
from costmodel.graph_parts import captured_parts
from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from hardware_db.units import flop_rate

if TYPE_CHECKING:
    from advisor.rules import Violation
    from costmodel.prediction import Prediction

GIB = 2**30
METER = 40  # columns of the bar of memory
ORDER_HELD = (
    "order held: of published plans of the same work that are predicted as far apart, the share of pairs that were "
    "measured in that order."
)
SEVERITY_WORDS = {
    "ERROR": "cannot run",
    "AUTOFIX": "the framework changes it",
    "SILENT": "has no effect",
    "PERF": "runs, but costs",
    "ENV": "needs the environment",
    "NOTE": "worth knowing",
}


def pace(slowdown: float) -> str:
    """How slow plans may be, before what they are compared with."""
    return "as fast as" if slowdown == 1 else f"up to {slowdown:g} times as slow as"


def setting(prediction: Prediction, gpus: int = 0) -> str:
    """Model, batch and machine in one line. gpus: those there are, where the sizes may take another number; else 0."""
    load, cluster = prediction.workload, prediction.cluster
    task = "" if load.task == "pretrain" else f"{load.task}, "
    world = prediction.plan.world
    machine = f"{gpus or world:,} x {cluster.gpu.title} ({cluster.name})"
    if gpus not in (0, world):
        machine += (
            f", of which its sizes take {world:,}" if world < gpus else f", and its sizes take {world:,}"
        )
    sequences = f"{load.global_batch:,} sequence{'s' * (load.global_batch != 1)}"
    batch = f"{load.seq_len:,} tokens a sequence, {sequences} a step"
    return f"{prediction.model.name}, {task}{batch}, {machine}"


def gpus_told(prediction: Prediction, gpus: int = 0) -> dict[str, int]:
    """The same two numbers for `--json`: GPUs there are, and those that the plan's sizes take."""
    world = prediction.plan.world
    return {"gpus": gpus or world, "gpus_of_sizes": world}


def fit_text(prediction: Prediction) -> str:
    """Whether the worst rank fits, in words."""
    used = f"{gib(prediction.peak_memory_bytes)} of {gib(prediction.device_bytes)}"
    where = f"the worst rank ({prediction.worst_stage} stage)" if prediction.plan.pp > 1 else "every rank"
    if not prediction.fits:
        verdict = "DOES NOT FIT"
    elif prediction.tight:
        verdict = "fits, but tight: the allocator will stall"
    else:
        verdict = "fits"
    return f"{used} on {where}: {verdict}"


def over_by(prediction: Prediction) -> str:
    """Memory of the worst rank beyond what a run may fill of the device, in words."""
    from costmodel.prediction import FITS_BELOW

    return gib(prediction.peak_memory_bytes - FITS_BELOW * prediction.device_bytes)


def numbers(prediction: Prediction) -> list[str]:
    """The four numbers people ask for, what binds, and which published run is nearest."""
    from costmodel.prediction import resource_shares

    name, share = next(iter(resource_shares(prediction.time).items()))
    fill = prediction.values.get("fill", 1.0)
    own = f", padding ({percent(1 - fill)} of what is computed) not counted" if fill < 1 else ""
    low, high = prediction.interval_low, prediction.interval_high
    beyond = f"; {note}" if (note := prediction.beyond_published) else ""
    rows = [
        (
            "step time",
            f"{seconds(prediction.step_time_s)}   "
            f"({percent(prediction.interval_level, 0)} interval {seconds(low)} to {seconds(high)})",
        ),
        (
            "throughput",
            f"{prediction.tokens_per_second_per_gpu:,.0f} tokens/s/GPU, "
            f"{flop_rate(prediction.model_tflops_per_gpu * 1e12, 'model ')}/GPU{own}",
        ),
        ("MFU", f"{percent(prediction.mfu)} of {prediction.mfu_peak} (recompute not counted){beyond}"),
        ("memory", fit_text(prediction)),
        ("bound by", f"{name}, {percent(share)} of the step"),
    ]
    if prediction.interval_basis:
        nearest = [evidence_text(near.to_dict()) for near in prediction.evidence[:1]]
        rows.append(("evidence", "; ".join([*nearest, f"interval: {prediction.interval_basis}"])))
    return [wrap(f"{label:<11}{text}", "  ", " " * 13) for label, text in rows]


def evidence_text(near: dict[str, Any]) -> str:
    """A published run of `predict --json`: what it was, what the plan has instead, how far off we are there."""
    task = "" if near["task"] == "pretrain" else f"{near['task']} of "
    date = f", {near['date']}" if near["date"] else ""
    differs = ", ".join(near["differences"]) or "none that counts"
    return (
        f"nearest published run is {task}{near['model']}, {gpus_text(near['gpus'])} of {near['cluster']}, "
        f"{near['precision']}, {seconds(near['measured_step_time_s'])} for {batch_text(near)} "
        f"({near['source']}{date}); "
        f"differences of this plan: {differs}; there the model is off by {100 * near['our_error']:+.1f} %"
    )


def batch_text(near: dict[str, Any]) -> str:
    """The batch of a published run of `predict --json`: "128 sequences of 8,192 tokens"."""
    count, length = near["global_batch"], near["seq_len"]
    return f"{count:,} sequence{'s' * (count != 1)} of {length:,} tokens"


def knobs_to_set(prediction: Prediction) -> dict[str, Any]:
    """The changed knobs of a plan; what its CUDA graphs capture by name where frameworks ask for names."""
    plan, model = prediction.plan, prediction.model
    return changed_knobs(replace(plan, cuda_graph_scope=captured_parts(plan, model)))


def changed_knobs(plan: Plan) -> dict[str, Any]:
    """Knobs whose value is not the default, in the order of the catalogue."""
    return {name: getattr(plan, name) for name, knob in KNOBS.items() if _differs(plan, name, knob.default)}


def _differs(plan: Plan, name: str, default: Any) -> bool:
    value = getattr(plan, name)
    return bool(list(value) != list(default) if isinstance(value, tuple) else value != default)


def knob_table(changed: Mapping[str, Any], stack: str | None = None, vendor: str = "") -> list[str]:
    """Every knob and setting to set, with its name in the configuration of what trains: see `shown_stack`."""
    if not changed:
        return ["  every knob at its default"]
    title, note = names_shown(stack, vendor)
    rows = [
        (name, value_text(value), name_there(name, stack, vendor, value)) for name, value in changed.items()
    ]
    lines = table(["knob", "value", f"in {title}"], rows)
    return [*lines, wrap(note, "  ", "  ")] if note else lines


def time_section(prediction: Prediction) -> list[str]:
    """Where the step goes; parts sum to the step."""
    milli = prediction.step_time_s < 1
    return [
        heading("Time of one step"),
        *tree(prediction.time, 1e-3 if milli else 1.0, "ms" if milli else "s"),
    ]


def memory_section(prediction: Prediction) -> list[str]:
    """What the worst rank holds; parts sum to the peak. Allocated and reserved as torch counts them."""
    stage = f", {prediction.worst_stage} pipeline stage" if prediction.plan.pp > 1 else ""
    memory = replace(prediction.memory, title="peak")
    used = memory.value / prediction.device_bytes
    return [
        heading(f"Memory of the worst rank{stage}"),
        *tree(memory, GIB, "GiB", 1 if memory.value > 16 * GIB else 2),
        f"  allocated {prediction.allocated_bytes / GIB:.1f}, reserved {prediction.reserved_bytes / GIB:.1f}, "
        f"of the device {memory.value / GIB:.1f} of {prediction.device_bytes / GIB:.1f} GiB",
        f"  |{bar(used, METER).ljust(METER)}| {percent(used, 0)} of the device",
        *host_lines(prediction),
    ]


def host_lines(prediction: Prediction) -> list[str]:
    """Host memory of the fullest node, where something is offloaded."""
    least, most = prediction.node_host_bytes
    if not most:
        return []
    amount = f"{most / GIB:,.0f}" if least == most else f"{least / GIB:,.0f} to {most / GIB:,.0f}"
    whole = prediction.cluster.host_memory
    of = f"of {whole / GIB:,.0f} GiB" if whole else "GiB; how much a node has is not on file"
    return [f"  host memory of the fullest node {amount} {of}, by offloading"]


def binding_section(prediction: Prediction) -> list[str]:
    """What the step waits for, largest first, and what removing each would give at best."""
    from costmodel.prediction import resource_shares

    shares = [(name, share) for name, share in resource_shares(prediction.time).items() if share >= 0.005]
    rows = [
        (
            name,
            percent(share),
            f"{seconds(prediction.step_time_s * (1 - share))} ({1 / (1 - share):.2f}x)"
            if share < 0.995
            else "",
            bar(share),
        )
        for name, share in shares[:5]
    ]
    return [
        heading("What binds"),
        *table(["the step waits for", "share", "step at best without it", ""], rows, "lrll"),
    ]


def violation_section(found: list[Violation], title: str = "Rules") -> list[str]:
    """Every rule the plan breaks, errors first, with the way out; nothing when it breaks none."""
    if not found:
        return []
    lines = [heading(title)]
    for violation in found:
        words = SEVERITY_WORDS[violation.severity]
        lines.append(wrap(f"{violation.severity} ({words}) {violation.text}.", "  ", "    "))
        lines.append(wrap(f"{violation.way_out} [{violation.id}]", "    "))
    return lines


def assumption_section(notes: list[str]) -> list[str]:
    """What was taken for granted; numbers assumed for one reason share a line."""
    texts = assumption_texts(notes)
    return [heading("Assumed"), *(wrap(text, "  - ", "    ") for text in texts)] if texts else []


def assumption_texts(notes: list[str]) -> list[str]:
    """The same as texts, one an assumption."""
    lines: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        what, assumed, reason = note.partition(" is assumed: ")
        lines.setdefault(reason if assumed else note, []).extend([what] if assumed else [])
    return [f"{_joined(names)} assumed: {reason}" if names else reason for reason, names in lines.items()]


def _joined(names: list[str]) -> str:
    """`h100-sxm, memory.norm` and `h100-sxm, memory.elementwise` as one owner with its numbers."""
    owners: dict[str, list[str]] = {}
    for name in names:
        owner, _, number = name.rpartition(", ")
        owners.setdefault(owner, []).append(number)
    return "; ".join(
        f"{owner}: {', '.join(numbers)}" if owner else ", ".join(numbers) for owner, numbers in owners.items()
    )


def training_cost(prediction: Prediction, tokens: float) -> dict[str, float]:
    """What `tokens` tokens, padding not counted, cost at the predicted rate: hours of wall clock, GPU-hours, USD, kWh.

    USD and kWh are there when the cluster's file has `price_per_gpu_hour` [USD/h] and `power_per_gpu` [W].
    """
    steps = tokens / prediction.workload.tokens_per_step
    hours = steps * prediction.step_time_s / 3600
    gpu_hours = hours * prediction.plan.world
    cost = {"tokens": float(tokens), "steps": steps, "hours": hours, "gpu_hours": gpu_hours}
    if (fill := prediction.values.get("fill", 1.0)) < 1:
        cost["padding_share"] = 1 - fill
    cluster = prediction.cluster
    if (price := cluster.price_per_gpu_hour) is not None:
        cost |= {"usd_per_gpu_hour": price, "usd": gpu_hours * price}
    if (power := cluster.power_per_gpu) is not None:
        cost |= {"watt_per_gpu": power, "kwh": gpu_hours * power / 1000}
    return cost


def cost_line(cost: dict[str, float]) -> str:
    """Cost of a training run in one line."""
    words = [
        f"{count(cost['tokens'])} tokens{', padding not counted' * ('padding_share' in cost)}",
        f"{cost['steps']:,.0f} steps",
        f"{cost['hours'] / 24:,.1f} days",
        f"{cost['gpu_hours']:,.0f} GPU-hours",
    ]
    if "usd" in cost:
        words.append(f"${cost['usd']:,.0f} (${cost['usd_per_gpu_hour']:.2f} a GPU-hour)")
    if "kwh" in cost:
        words.append(f"{cost['kwh']:,.0f} kWh ({cost['watt_per_gpu']:,.0f} W a GPU, host included)")
    if "usd" not in cost:
        words.append(f"no price known: --price {EXAMPLE:g} gives one, in USD a GPU-hour")
    if "kwh" not in cost:
        words.append("no power known")
    return wrap("training   " + ", ".join(words), "  ", " " * 13)


def placement_section(prediction: Prediction) -> list[str]:
    """Which groups stay inside a scale-up domain, and which straddle its edge."""
    from advisor.placement import placement_lines

    lines = placement_lines(prediction)
    return [heading("Where groups stand"), *(wrap(line, "  - ", "    ") for line in lines)] if lines else []
