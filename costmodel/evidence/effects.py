"""How much each setting of a case moves its predicted step: what two runs differ in beside layout and formats.

A setting's effect is log(step / step with the setting at its default), by the closed form. Where two runs have it
otherwise, they are as far apart as its effects are: a knob that does nothing in either is no difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from costmodel.columns import plan_columns
from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, evaluate_plans
from costmodel.workload import Workload

# Name -> (value in words without blanks, effect [log]).
Effects = dict[str, tuple[str, float]]
# A setting that moves the step by less than this does nothing there. [log]
LEAST = 1e-4
# Knobs that are compared otherwise: sizes, formats, clusters, and the words of `evidence.setting.techniques`; and how
# layers are split over stages, where the default may not divide.
COMPARED = frozenset((
    "tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "precision", "fsdp", "nvl_segment", "encoder_tp", "encoder_pp",
    "optimizer", "moe_dispatcher", "overlap_moe_comm", "cuda_graph", "pipeline_layout",
    "first_stage_layers", "last_stage_layers", "account_embedding", "account_loss",
))  # fmt: skip
# Knobs of one decision, by the one that names it.
TOGETHER = {
    "recompute": ("recompute", "recompute_modules", "recompute_num_layers"),
    "cp_comm_type": ("cp_comm_type", "cp_a2a_size"),
}
FOLLOWING = frozenset(name for names in TOGETHER.values() for name in names[1:])
# What of the workload is one decision.
LOADS = {
    "lora_targets": ("lora_targets",),
    "lora_rank": ("lora_rank",),
    "documents": ("mean_length", "length_cv", "packed"),
    "moe_imbalance": ("moe_imbalance",),
    "moe_adjacent": ("moe_adjacent",),
}
PLAIN = Workload(1, 1)


def effects(case: PlanArray, plan: Plan) -> Effects:
    """Settings of a plan in its setting that are off their default and move the step by LEAST or more, with how much.

    case: of the plan alone. Kinds of recompute are named also where they cost nothing.
    """
    named = dict(_reset_plans(plan))
    plans = replace(case, columns=plan_columns([plan, *(other for _, other in named.values())]))
    step, *others = evaluate_plans(plans)["step_time"].tolist()
    found = {name: (text, other) for (name, (text, _)), other in zip(named.items(), others, strict=True)}
    for name, (text, load) in _reset_loads(case.workload):
        found[name] = (text, float(evaluate_plans(replace(case, workload=load))["step_time"][0]))
    moved = {name: (text, math.log(step / other)) for name, (text, other) in found.items()}
    return {name: entry for name, entry in moved.items() if abs(entry[1]) >= LEAST or name == "recompute"}


def default_text(name: str) -> str:
    """The value in words of a setting that `effects` leaves out."""
    if name == "documents":
        return documents(PLAIN)
    return _text(getattr(PLAIN, name) if name in LOADS else KNOBS[name].default)


def documents(workload: Workload) -> str:
    """How documents fill sequences: "whole", or as packed-250-0.5 by mean length and its coefficient of variation."""
    if not workload.mean_length:
        return "whole"
    kind = "packed" if workload.packed else "padded"
    return f"{kind}-{workload.mean_length}-{workload.length_cv or 0:g}"


def effects_text(found: Mapping[str, tuple[str, float]]) -> str:
    """Effects as one cell of a table: name=value@effect, blanks between them."""
    return " ".join(f"{name}={text}@{effect:.4f}" for name, (text, effect) in found.items())


def read_effects(text: str) -> Effects:
    """Of `effects_text`.

    Examples
    --------
    >>> read_effects("lora_targets=qkv@-0.2130 tp_comm_overlap=on@-0.0200")
    {'lora_targets': ('qkv', -0.213), 'tp_comm_overlap': ('on', -0.02)}
    """
    found = {}
    for entry in text.split():
        name, _, rest = entry.partition("=")
        value, _, effect = rest.rpartition("@")
        found[name] = (value, float(effect))
    return found


def _reset_plans(plan: Plan) -> Iterator[tuple[str, tuple[str, Plan]]]:
    """Every decision of a plan that is not the default's: its value, and the plan without it."""
    for name, knob in KNOBS.items():
        if name in COMPARED | FOLLOWING or (name == "zero_stage" and plan.fsdp):
            continue
        names = TOGETHER.get(name, (name,))
        defaults = {each: _default(each) for each in names}
        if any(getattr(plan, each) != value for each, value in defaults.items()):
            text = _recompute(plan) if name == "recompute" else _text(getattr(plan, knob.name))
            yield name, (text, replace(plan, **defaults))


def _reset_loads(workload: Workload) -> Iterator[tuple[str, tuple[str, Workload]]]:
    """The same of a workload. Lengths of documents that are not said are nothing to reset."""
    for name, names in LOADS.items():
        defaults = {each: getattr(PLAIN, each) for each in names}
        if name == "documents" and not workload.mean_length:
            continue
        if name.startswith("lora") and workload.task != "lora":
            continue
        if any(getattr(workload, each) != value for each, value in defaults.items()):
            text = documents(workload) if name == "documents" else _text(getattr(workload, name))
            yield name, (text, replace(workload, **defaults))


def _recompute(plan: Plan) -> str:
    """What is recomputed: full, full-12 of a stage's layers, or modules such as mlp+layernorm."""
    if plan.recompute == "selective":
        return "+".join(sorted(plan.recompute_modules)) or "selective"
    return f"{plan.recompute}-{plan.recompute_num_layers}" if plan.recompute_num_layers else plan.recompute


def _default(name: str) -> Any:
    default = KNOBS[name].default
    return tuple(default) if isinstance(default, list) else default


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return "+".join(value) or "all"
    return str(value)
