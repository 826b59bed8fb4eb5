"""The neighbours of a plan: for every knob the values beside its own, and what must follow them.

A neighbour is one decision. Where the frameworks tie a knob to others (dp follows tp on the same GPUs,
sequence parallelism follows tp, the ZeRO stage follows FSDP) these follow, and are told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from advisor.options import value_text
from advisor.rules.message_words import divisors
from advisor.space.options import GRAPHS
from advisor.variants import Variants, fusion_beside, without_partners
from costmodel.graph_parts import PARTS
from costmodel.knobs import KNOBS, Knob
from costmodel.layout import total_blocks
from costmodel.placement import segment_sizes
from costmodel.plan import Plan
from costmodel.prediction import Prediction

MOST_VALUES = 3
SPLITS = ("tp", "pp", "cp")
# Formats that user buffers of tensor parallelism do not take: see the rule tp_overlap_format.
WITHOUT_USER_BUFFERS = ("nvfp4", "fp8-sc")
# Values worth trying of whole numbers and factors that no size of the model bounds; 0 is automatic or off.
LADDERS: dict[str, tuple[float, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "max_connections": (0, 1, 8, 32),
    "dispatcher_sms": (0, 8, 16, 24, 32),
    "moe_capacity_factor": (0.0, 1.0, 1.25, 1.5, 2.0),
    "bucket_size": (0, 40_000_000, 100_000_000, 400_000_000, 1_000_000_000),
    "optimizer_offload": (0, 25, 50, 100),
    "bf16_end_layers": (0, 1, 2, 4),
    "layernorm_sm_margin": (0, 8, 16, 32),
    "tp_overlap_splits": (0, 2, 4, 8),
    "tp_overlap_sms": (4, 8, 16, 24, 32),
    "tp_overlap_cga": (1, 2, 4),
    "encoder_tp": (0, 1, 2, 4, 8),
    "encoder_pp": (0, 1),
}
# Lists that mean everything when empty, so that a first item takes the others away.
WHOLE_WHEN_EMPTY = {"cuda_graph_scope": "all"}


@dataclass(frozen=True)
class Neighbour:
    """A plan with one knob changed. follows: the other knobs that had to change with it, by name.

    problem: why no such plan can be built, empty when it can; plan is then the unchanged one. instead: what an item
    of a list takes the place of, such as `recompute full`.
    """

    knob: str
    before: Any
    after: Any
    plan: Plan
    follows: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    instead: str = ""


def named(neighbour: Neighbour) -> dict[str, Any]:
    """What a neighbour changes, as plain values."""

    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    return {
        "knob": neighbour.knob,
        "from": plain(neighbour.before),
        "to": plain(neighbour.after),
        "follows": {name: plain(value) for name, value in neighbour.follows.items()},
    }


def label(neighbour: Neighbour) -> str:
    """`tp 4 -> 2`, `sequence_parallel off`, `recompute_modules +mlp`, `cuda_graph_scope all -> attn`."""
    name, before, after = neighbour.knob, neighbour.before, neighbour.after
    if neighbour.instead:
        return f"{neighbour.instead} -> {'+'.join(after)}"
    if isinstance(after, bool):
        return f"{name} {value_text(after)}"
    if name in WHOLE_WHEN_EMPTY and not (before and after):
        return f"{name} " + " -> ".join(
            "+".join(items) or WHOLE_WHEN_EMPTY[name] for items in (before, after)
        )
    if isinstance(after, tuple):
        added, gone = set(after) - set(before), set(before) - set(after)
        return f"{name} " + "".join([*(f"+{item}" for item in added), *(f"-{item}" for item in gone)])
    if isinstance(after, str) and KNOBS[name].kind == "text":
        return f"{name} {after or 'even'}"
    return f"{name} {value_text(before)} -> {value_text(after)}"


def neighbours(chosen: Prediction, knob: str) -> list[Neighbour]:
    """Every neighbour of the predicted plan along one knob, in the order of its values."""
    plan = chosen.plan
    found = (_neighbour(chosen, knob, value) for value in values_beside(chosen, KNOBS[knob]))
    return [each for each in found if each.problem or each.plan != plan]


def values_beside(chosen: Prediction, knob: Knob) -> list[Any]:
    """Values to try: bools toggled, sizes halved and doubled, other choices, items added or removed."""
    now = getattr(chosen.plan, knob.name)
    if knob.name == "dp":  # what the other sizes leave of the GPUs
        return []
    if knob.name == "nvl_segment":  # few, and which is best does not follow from its neighbours
        cluster = chosen.cluster
        return [
            size
            for size in segment_sizes(cluster.domain_size, cluster.gpus_per_node, chosen.plan.world)
            if size != now
        ]
    if knob.kind == "bool":
        return [not now]
    if knob.kind == "choice":
        return [choice for choice in knob.choices if choice != now]
    if knob.kind == "list":
        items = (item for item in knob.choices if item in now or _has_blocks(chosen, knob.name, item))
        return [_toggled(knob, now, item) for item in items]
    if knob.kind == "text":
        return [""] if now else ["balanced"]
    if knob.name in (*SPLITS, "ep", "etp", "optimizer_instances"):
        return [value for value in (now // 2, now * 2) if knob.low <= value <= knob.high]
    return _beside(_ladder(chosen, knob), now)


def _has_blocks(chosen: Prediction, knob: str, item: str) -> bool:
    """Whether the model has blocks of a scope of graphs, so that it captures any; true of other lists."""
    part = PARTS.get(item.partition("_")[0]) if knob == "cuda_graph_scope" else None
    blocks = total_blocks(chosen.model)
    return part is None or any(blocks[name] for name in part[0])


def _toggled(knob: Knob, now: tuple[str, ...], item: str) -> tuple[str, ...]:
    wanted = set(now) ^ {item}
    return tuple(choice for choice in knob.choices if choice in wanted)


def _beside(ladder: Sequence[float], now: float) -> list[float]:
    """The next values below and above `now`; from 0 (automatic or off) the first few above it."""
    above = [value for value in ladder if value > now]
    if not now:
        return above[:MOST_VALUES]
    below = [value for value in ladder if value < now]
    automatic = [0] if 0 in below and below[-1] != 0 else []
    return [*automatic, *below[-1:], *above[:1]]


def _ladder(chosen: Prediction, knob: Knob) -> Sequence[float]:
    """Values of a whole number that make sense for this plan, ascending."""
    if knob.name in LADDERS:
        return LADDERS[knob.name]
    plan, layers = chosen.plan, chosen.model.num_layers
    each = max(1, (layers + plan.account_embedding + plan.account_loss) // plan.pp)
    chunk = each // plan.vpp
    shards = plan.dp * plan.cp
    batch = chosen.workload.global_batch
    # An end stage may differ only by what the stages between it and the others can share out evenly.
    uneven = {layers - (plan.pp - 1) * (each + turn * plan.vpp) for turn in (-1, 1)}
    ends = [0, *sorted(size for size in uneven if size > 0)] if plan.pp > 1 else [0]
    ladders: dict[str, Sequence[float]] = {
        "vpp": divisors(each) if plan.pp > 1 else [1],
        "micro_batch": divisors(batch // plan.dp) if batch % plan.dp == 0 else divisors(batch),
        "fsdp_shard_size": [0, *reversed([d for d in divisors(shards) if 1 < d < shards])],
        "cp_a2a_size": divisors(plan.cp),
        "recompute_num_layers": sorted({0, *(plan.vpp * max(1, chunk * part // 4) for part in (1, 2, 3))}),
        "offload_layers": sorted({0, *(max(1, each * part // 4) for part in (1, 2, 3)), max(1, each - 1)}),
        "first_stage_layers": ends,
        "last_stage_layers": ends,
        "vpp_group_size": [0, 2 * plan.pp, 4 * plan.pp] if plan.vpp > 1 else [0],
        "pipeline_flushes": [1, 2, 4] if plan.pp > 1 else [1],
        "wgrad_deferral_limit": [0, plan.pp, 2 * plan.pp] if plan.defer_embedding_wgrad else [0],
    }
    if knob.name == "fsdp_shard_size" and plan.fsdp_shard_size:
        return sorted(ladders[knob.name])
    if knob.name in ladders:
        return ladders[knob.name]
    now = getattr(plan, knob.name)  # a knob that is new to the catalogue: half and double
    return [value for value in sorted({now // 2, now, max(1, now * 2)}) if knob.low <= value <= knob.high]


def _neighbour(chosen: Prediction, knob: str, value: Any) -> Neighbour:
    plan = chosen.plan
    now = getattr(plan, knob)
    try:
        changed = _resized(chosen, knob, value) if knob in SPLITS else None
        if changed is None:
            changed = replace(plan, **{knob: value}, **_followers(chosen, knob, value))
    except ValueError as error:
        return Neighbour(knob, now, value, plan, problem=str(error))
    instead = "recompute full" if knob == "recompute_modules" and value and plan.recompute == "full" else ""
    return Neighbour(knob, now, value, changed, dict(_changes(plan, changed, knob)), instead=instead)


def _resized(chosen: Prediction, knob: str, value: int) -> Plan:
    """Another split of the same GPUs: dp takes up the rest, expert groups shrink until they tile it."""
    plan = chosen.plan
    sized = Variants(chosen).resized(**{knob: value})
    if sized is None:
        others = replace(plan, **{knob: value}).replica
        apart = ", the encoder's GPUs with them" if plan.encoder_pp else ""
        raise ValueError(f"{plan.world} GPUs are not a multiple of tp x pp x cp = {others}{apart}")
    stage = sized.tp * sized.cp * sized.dp
    ep = math.gcd(sized.ep, stage)
    changes: dict[str, Any] = {"ep": ep, "etp": math.gcd(sized.etp, stage // ep)}
    if knob == "pp":  # layouts name every stage, so they belong to one pp
        changes |= {"pipeline_layout": "", "first_stage_layers": 0, "last_stage_layers": 0}
    if knob == "cp" and value == 1:
        changes |= {"cp_comm_type": KNOBS["cp_comm_type"].default, "cp_a2a_size": 1}
    sized = replace(sized, **changes)
    return replace(sized, **without_partners(sized))


def _followers(chosen: Prediction, knob: str, value: Any) -> dict[str, Any]:
    """Knobs that a change of `knob` takes along, as the frameworks demand."""
    plan = chosen.plan
    if knob in ("ep", "etp"):
        return without_partners(replace(plan, **{knob: value}))
    if knob in GRAPHS:
        return _checks_beside(replace(plan, **{knob: value}))
    if knob == "precision" and value in WITHOUT_USER_BUFFERS:
        return {"tp_comm_overlap": False}
    if knob == "fsdp":
        return {"zero_stage": 3 if value else 1, "fsdp_shard_size": 0, **_beside_shards(chosen, value)}
    if knob == "zero_stage":
        overlap = {"overlap_param_gather": False} if value == 0 else {}
        shards = {"fsdp": value >= 2, **overlap, **_beside_shards(chosen, value >= 2)}
        return shards | ({} if value == 3 else {"fsdp_shard_size": 0})
    if knob == "nccl_ub" and value:
        # In vain without the switch inside a domain; growing segments are refused (rules user_buffers_*).
        switch = {"nvls": True} if chosen.values["switch_reduces"] else {}
        return switch | {"expandable_segments": False}
    if knob == "sequence_parallel" and not value:
        return {"tp_comm_overlap": False}
    if knob == "tp_comm_overlap" and value and plan.tp > 1:
        return {"sequence_parallel": True}
    if knob == "overlap_grad_reduce" and not value and plan.zero_stage == 1:
        return {"overlap_param_gather": False}
    if knob == "overlap_param_gather" and value:
        return {"overlap_grad_reduce": True}
    if knob == "moe_capacity_factor" and not value:
        return {"moe_pad_expert_input_to_capacity": False}
    if knob == "moe_pad_expert_input_to_capacity" and value:
        return {"moe_capacity_factor": plan.moe_capacity_factor or 1.0}
    if knob == "overlap_moe_comm" and not value:
        return {"delay_wgrad": False}
    if knob == "delay_wgrad" and value:
        return {"overlap_moe_comm": True}
    if knob in ("account_embedding", "account_loss") and value:
        other = "account_loss" if knob == "account_embedding" else "account_embedding"
        layers, pp = chosen.model.num_layers, plan.pp
        both = (layers + 1) % pp != 0 and (layers + 2) % pp == 0
        return {other: True} if both else {}
    if knob == "cp_comm_type":
        return {"cp_a2a_size": _inner_size(chosen) if value == "a2a+p2p" else 1}
    if knob == "recompute":
        return {
            "recompute_modules": (plan.recompute_modules or ("core_attn",)) if value == "selective" else (),
            "recompute_num_layers": 0,
        }
    if knob == "recompute_modules":
        return {"recompute": "selective" if value else "none", "recompute_num_layers": 0}
    return {}


def _beside_shards(chosen: Prediction, fsdp: bool) -> dict[str, Any]:
    """Graphs go where FSDP comes: see the rule fsdp_cuda_graph. Those of a sharded plan are its own."""
    graphs = {"cuda_graph": False, "cuda_graph_scope": ()} if fsdp and not chosen.plan.fsdp else {}
    return graphs | fusion_beside(chosen, fsdp)


def _checks_beside(plan: Plan) -> dict[str, Any]:
    """One graph of the whole step takes no check that waits for the host: see the rule graph_whole_nan."""
    whole = plan.cuda_graph and "full_iteration" in plan.cuda_graph_scope
    return {"check_for_nan_in_grad": False} if whole else {}


def _inner_size(chosen: Prediction) -> int:
    """Ranks of the inner all-to-all: as many as one NVLink domain holds beside tp."""
    plan, domain = chosen.plan, chosen.cluster.domain_size
    inner = [d for d in divisors(plan.cp) if 1 < d < plan.cp]
    return max((d for d in inner if d * plan.tp <= domain), default=inner[0] if inner else 1)


def _changes(before: Plan, after: Plan, knob: str) -> Iterator[tuple[str, Any]]:
    for name in KNOBS:
        if name != knob and getattr(before, name) != getattr(after, name):
            yield name, getattr(after, name)
