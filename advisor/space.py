"""The declared space of plans as columns: built by crossing small tables, never by a loop over plans.

Layouts (parallel sizes and micro-batch) are crossed with the options one table at a time; after each
step the rules of the knobs just added drop what is illegal. What is not searched is fixed, and said.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from advisor.request import Request
from advisor.rules import Mask, Rule, Violation, error_masks, load_rules, violation
from advisor.rules.facts import divisors, facts
from advisor.space_options import SPLIT_KNOBS, Columns, Row, option_tables, pinned, pipelines
from costmodel.columns import ITEM_PREFIX, ITEMS, Array, code, collapsed, default_columns
from hardware_db import Cluster

MICRO_BATCHES = (1, 2, 4, 8)
# Columns that are arrays however many rows there are.
LAYOUT_AXES = ("tp", "pp", "cp", "dp", "ep", "etp", "micro_batch", "vpp", "of_pp", *SPLIT_KNOBS)
# Shortest piece of a sequence that context parallelism may leave to a GPU.
SHORTEST_SHARD = 1024
# Up to this many data-parallel ranks gradients are summed in BF16, beyond in FP32 (tuning guide).
BF16_REDUCTION_RANKS = 128


@dataclass
class Space:
    """The legal plans of one precision.

    columns: one array per knob, over the legal plans; what all plans share has one element. enumerated:
    combinations of the declared axes that use all GPUs. rejected: rule id -> rows it dropped; examples: what it
    says about one of them.
    """

    precision: str
    columns: Columns
    enumerated: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    examples: dict[str, Violation] = field(default_factory=dict)

    @property
    def legal(self) -> int:
        """Number of legal plans. [1]"""
        return len(self.columns["tp"])

    def column(self, name: str) -> Array:
        """One knob's value in every legal plan."""
        return np.broadcast_to(self.columns[name], (self.legal,))


def build_space(request: Request, precision: str) -> Space:
    """Every legal plan of the declared space for one precision recipe, pins honoured."""
    pins = {name: value for name, value in request.knob_pins.items() if name != "precision"}
    layouts = _layouts(request, pins)
    tables = option_tables(request, precision, pins)
    decided_later = {name for table, _ in tables for name in table[0]} | {"recompute_num_layers"}
    fixed = {
        name: column for name, column in _fixed(layouts, request, pins).items() if name not in decided_later
    }
    space = Space(precision, layouts | fixed, len(layouts["tp"]))
    waiting = _drop_illegal(space, request, list(load_rules()))
    for table, finish in tables:
        space.enumerated *= len(table)
        space.columns = _cross(space.columns, table)
        _keep(space.columns, finish(space.columns))
        waiting = _drop_illegal(space, request, waiting)
    assert not waiting, f"rules that were never applied: {[rule.id for rule in waiting]}"
    return space


def declared_space() -> tuple[str, ...]:
    """What is searched and what is fixed, in lines for people."""
    return (
        "searched: tp up to the scale-up domain, pp, vpp, cp (at least "
        f"{SHORTEST_SHARD} tokens a GPU), dp, micro_batch {', '.join(map(str, MICRO_BATCHES))}, even splits of the "
        "layers with accounting for embedding and loss, and the balancer's split where those do not divide; "
        "with experts ep; layers of a pattern (Mamba hybrids) in even stages of one chunk",
        "searched: ZeRO 1; FSDP (ZeRO 3) with pp = 1; recompute none, of modules (mlp, layernorm; experts: "
        "moe_act, moe; MLA: mla_up_proj), full of 1/4 to all layers; cp_comm_type; tp_comm_overlap; cuda_graph; "
        "fp8_param_gather with FP8; overlap_moe_comm with delay_wgrad",
        "fixed on, never worse in the model: sequence_parallel with tp > 1, overlap_grad_reduce, "
        "overlap_param_gather, overlap_p2p, fused attention, fused cross entropy, grouped GEMMs and fusions; "
        "tokens are dispatched by HybridEP in NVLink domains of more than 8 GPUs, by DeepEP in smaller ones, "
        "by all-to-all elsewhere",
        f"fixed, they change numerics: gradients reduced in BF16 below {BF16_REDUCTION_RANKS} "
        "data-parallel ranks and in FP32 from there on; optimizer adam; precision_aware_optimizer off; dropout off; "
        "no token dropped",
        "not searched, pin them: offload, pipeline_layout texts, etp, optimizer_instances, fsdp_shard_size, "
        "zero_stage 0 and 2 (whose unsharded gradient bucket is not priced), precision_aware_optimizer, unfused "
        "attention; CUDA graphs of the whole step (cuda_graph_scope full_iteration), whose gain is told where they run",
    )


def _layouts(request: Request, pins: dict[str, Any]) -> Columns:
    """Parallel sizes and micro-batch that use all GPUs, before any rule."""
    gpus, layers = request.gpus, request.model.num_layers
    longest_cp = max(request.workload.seq_len // SHORTEST_SHARD, 1)
    sizes = divisors(gpus)
    axes: dict[str, list[int]] = {
        "tp": [size for size in sizes if size <= request.cluster.domain_size],
        "pp": [size for size in sizes if size <= layers + 2],
        "cp": [size for size in sizes if size <= longest_cp],
        "micro_batch": list(MICRO_BATCHES),
    }
    axes |= {name: [pins[name]] for name in axes if name in pins}
    grid = np.meshgrid(*(np.array(axes[name], dtype=float) for name in ("tp", "pp", "cp")), indexing="ij")
    columns = {name: array.ravel() for name, array in zip(("tp", "pp", "cp"), grid, strict=True)}
    columns["dp"] = gpus / (columns["tp"] * columns["pp"] * columns["cp"])
    _keep(columns, (columns["dp"] % 1 == 0) & (columns["dp"] == pins.get("dp", columns["dp"])))
    columns = _expert_sizes(columns, request, pins)
    columns = _cross(columns, [{"micro_batch": float(size)} for size in axes["micro_batch"]])
    columns = _cross(columns, pipelines(request.model, axes["pp"], pins))
    _keep(columns, columns["pp"] == columns.pop("of_pp"))
    return columns


def _expert_sizes(columns: Columns, request: Request, pins: dict[str, Any]) -> Columns:
    """ep over divisors of the experts, etp 1 unless pinned, on their own mesh inside each stage."""
    moe = request.model.moe
    if moe is None:
        return _cross(columns, pinned([{"ep": 1.0, "etp": 1.0}], pins))
    eps = (
        [pins["ep"]] if "ep" in pins else [size for size in divisors(moe.num_experts) if size <= request.gpus]
    )
    columns = _cross(columns, [{"ep": float(size)} for size in eps])
    columns = _cross(columns, [{"etp": float(pins.get("etp", 1))}])
    ranks = columns["tp"] * columns["cp"] * columns["dp"]
    _keep(columns, ranks % (columns["ep"] * columns["etp"]) == 0)
    return columns


def _dispatcher(cluster: Cluster) -> str:
    """Who sends tokens to experts: HybridEP and DeepEP write over NVLink, so that others have all-to-all."""
    if cluster.intra.name.startswith("pcie") or cluster.gpu.vendor == "AMD":
        return "alltoall"
    return "hybridep" if cluster.domain_size > 8 else "deepep"


def _fixed(layouts: Columns, request: Request, pins: dict[str, Any]) -> Columns:
    """Columns of the knobs that are not searched: best value, default, or the pin."""
    shards = layouts["dp"] * layouts["cp"]
    fixed = {name: np.array([value]) for name, value in default_columns().items() if name not in layouts}
    dispatcher = code("moe_dispatcher", _dispatcher(request.cluster))
    fixed |= {
        "sequence_parallel": (layouts["tp"] > 1) * 1.0,
        "grad_reduce_in_fp32": (shards >= BF16_REDUCTION_RANKS) * 1.0,
        "overlap_param_gather": np.array([float(pins.get("zero_stage", 1) > 0)]),
        "moe_dispatcher": np.where(layouts["ep"] > 1, float(dispatcher), 0.0),
    }
    for name, value in pins.items():
        if name in ITEM_PREFIX:
            chosen = {column: item for column, (knob, item) in ITEMS.items() if knob == name}
            fixed |= {column: np.array([float(item in value)]) for column, item in chosen.items()}
        elif name in fixed:
            number = code(name, value) if isinstance(value, str) else value
            fixed[name] = np.array([float(number)])
    return fixed


def _cross(columns: Columns, table: list[Row]) -> Columns:
    """Every row with every row of the table."""
    rows, options = len(columns["tp"]), len(table)
    crossed = {
        name: np.repeat(array, options) if name in LAYOUT_AXES or len(array) > 1 else array
        for name, array in columns.items()
    }
    for name in table[0]:
        crossed[name] = np.tile(np.array([row[name] for row in table]), rows)
    return crossed


def _keep(columns: Columns, mask: Mask) -> None:
    if mask.all():
        return
    kept = np.flatnonzero(mask)
    for name, array in columns.items():
        if name in LAYOUT_AXES or len(array) > 1:
            columns[name] = array.take(kept)


def _drop_illegal(space: Space, request: Request, rules: list[Rule]) -> list[Rule]:
    """Drop and count the rows that break a rule whose knobs are all decided; returns the other rules."""
    decided = set(space.columns) | {"precision"}
    decided |= {knob for column, (knob, _) in ITEMS.items() if column in decided}
    ready = [rule for rule in rules if set(rule.knobs) <= decided]
    model, workload, cluster = request.model, request.workload, request.cluster
    columns = collapsed(space.columns)
    words = facts(model, workload, cluster, space.precision, columns, request.gpus, request.settings)
    masks = error_masks(words, space.legal, ready)
    broken = sum(masks.values(), np.zeros(space.legal, dtype=int))
    for rule in ready:
        if rule.id in masks:
            mask = masks[rule.id]
            # The clearest example is a plan with this fault alone.
            alone = mask & (broken == 1)
            index = int(np.argmax(alone if alone.any() else mask))
            space.rejected[rule.id] = int(mask.sum())
            space.examples[rule.id] = violation(rule, words, index)
    _keep(space.columns, broken == 0)
    return [rule for rule in rules if rule not in ready]


def nothing_legal(request: Request) -> str:
    """One line for a request without a legal plan: the rules that leave none, and GPUs or batches that do."""
    # Without interleaving each fault shows once.
    plain = request if "vpp" in request.pins else replace(request, pins={**request.pins, "vpp": 1})
    examples = build_space(plain, request.precisions[0]).examples
    # The first rule about each size says enough.
    first = {found.knobs[0]: found.text for found in reversed(examples.values()) if found.knobs}
    reasons = "; ".join(reversed(first.values())) or "no parallel sizes multiply up to it"
    pins = "".join(f" --pin {name}={value}" for name, value in request.pins.items())
    batch = max(1, round(request.workload.global_batch / request.gpus)) * request.gpus
    ways = [f"--gpus {usable}"] if (usable := nearest_usable(request)) else []
    if _has_legal(replace(request, workload=replace(request.workload, global_batch=batch))):
        ways.append(f"--global-batch {batch}")
    way_out = f"Try {', or '.join(ways)}." if ways else "Relax the pins or the sizes."
    return (
        f"--gpus {request.gpus} with --global-batch {request.workload.global_batch}{pins} leaves no legal plan "
        f"of {request.model.name}: {reasons}. {way_out}"
    )


def nearest_usable(request: Request) -> int:
    """Number of GPUs nearest to the request's that has a legal plan, 0 when none is near. [1]"""
    pins = {name: value for name, value in request.pins.items() if name != "dp"}
    powers = {2 ** round(np.log2(request.gpus)), request.gpus - request.gpus % request.cluster.domain_size}
    near = {request.gpus + step for step in range(-4, 5)} | powers
    for gpus in sorted(near - {request.gpus}, key=lambda count: (abs(count - request.gpus), count)):
        if gpus < 1:
            continue
        try:
            other = replace(request, gpus=int(gpus), pins=pins)
        except ValueError:
            continue
        if _has_legal(other):
            return int(gpus)
    return 0


def _has_legal(request: Request) -> bool:
    return any(build_space(request, precision).legal for precision in request.precisions)
