"""The declared space of plans: built by crossing small tables, never by a loop over plans.

Layouts (parallel sizes and micro-batch) are crossed with the options one table at a time; after each
step the rules of the knobs just added drop what is illegal. What is not searched is fixed, and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.options import as_pins, value_text
from advisor.request import Request
from advisor.rules import rules_of, untrainable
from advisor.rules.features import lacked
from advisor.rules.message_words import divisors
from advisor.sizes import MOST_GPUS
from advisor.space.grid import LAYOUT_AXES, Space, cross, drop_illegal, keep
from advisor.space.options import (
    Columns,
    Finish,
    Row,
    option_tables,
    pinned,
    pipelines,
)
from advisor.space.there import there
from costmodel.binding import fuses_activation
from costmodel.columns import (
    ITEM_PREFIX,
    ITEMS,
    Array,
    code,
    default_columns,
    plan_columns,
    plan_from_columns,
)
from costmodel.knobs import KNOBS
from costmodel.placement import used_domain
from costmodel.plan import Plan
from costmodel.stack import Stack, default_stack, load_stack
from hardware_db import Cluster, platform_of

MICRO_BATCHES = (1, 2, 4, 8)
# Sizes beside those where a rank's sequences are no multiple of 4, so that few of those divide them.
OTHER_MICRO_BATCHES = (3, 5, 6, 7)
# Shortest piece of a sequence that context parallelism may leave to a GPU.
SHORTEST_SHARD = 1024
# Up to this many data-parallel ranks gradients are summed in BF16, beyond in FP32 (tuning guide).
BF16_REDUCTION_RANKS = 128


def build_space(request: Request, precision: str) -> Space:
    """Every legal plan of the declared space for one precision recipe, pins honoured."""
    pins = {name: value for name, value in request.knob_pins.items() if name != "precision"}
    layouts = _layouts(request, precision, pins)
    tables = option_tables(request, precision, pins)
    decided_later = _searched(tables)
    fixed = {
        name: column
        for name, column in _fixed(layouts, request, precision, pins).items()
        if name not in decided_later
    }
    rows = len(layouts["tp"])
    space = Space(precision, layouts | fixed, np.ones(rows, dtype=bool), rows)
    waiting = drop_illegal(space, request, list(rules_of(request.stack)))
    for table, finish in tables:
        space.cross(table)
        space.keep_useful(finish(space.grid))
        waiting = drop_illegal(space, request, waiting)
    assert not waiting, f"rules that were never applied: {[rule.id for rule in waiting]}"
    space.drop_empty_layouts()
    return space


def fixed_beside(request: Request, plan: Plan) -> dict[str, Any]:
    """Values of the knobs that are not searched, on the layout of a plan.

    Some follow from the layout: how gradients are reduced from the ranks, the dispatcher from ep.
    """
    pins = {name: value for name, value in request.knob_pins.items() if name != "precision"}
    columns = plan_columns([plan])
    layout = {name: column for name, column in columns.items() if name in LAYOUT_AXES}
    tables = option_tables(request, plan.precision, pins)
    fixed = {
        name: column
        for name, column in _fixed(layout, request, plan.precision, pins).items()
        if name not in _searched(tables)
    }
    whole = plan_from_columns(columns | fixed, 0, plan.precision)
    return {name: getattr(whole, name) for name in fixed if name in KNOBS}


def _searched(tables: list[tuple[list[Row], Finish]]) -> set[str]:
    """Columns that tables of options decide."""
    return {name for table, _ in tables for name in table[0]} | {"recompute_num_layers"}


def _layouts(request: Request, precision: str, pins: dict[str, Any]) -> Columns:
    """Parallel sizes and micro-batch that use all GPUs, before any rule."""
    gpus, layers = request.gpus, request.model.num_layers
    longest_cp = max(request.workload.seq_len // SHORTEST_SHARD, 1)
    apart = pins.get("encoder_pp", 0)
    sizes = divisors(gpus)
    # Beside an encoder's GPUs the sizes of the decoder need not divide all of them.
    own = list(range(1, gpus + 1)) if apart else sizes
    axes: dict[str, list[int]] = {
        "tp": [size for size in own if size <= request.cluster.domain_size],
        "pp": [size for size in own if size <= layers + 2],
        "cp": [size for size in sizes if size <= longest_cp],
        "micro_batch": sorted(MICRO_BATCHES + OTHER_MICRO_BATCHES),
    }
    axes |= {name: [pins[name]] for name in axes if name in pins}
    grid = np.meshgrid(*(np.array(axes[name], dtype=float) for name in ("tp", "pp", "cp")), indexing="ij")
    columns = {name: array.ravel() for name, array in zip(("tp", "pp", "cp"), grid, strict=True)}
    encoder = (pins.get("encoder_tp") or columns["tp"]) * apart
    columns["dp"] = gpus / (columns["cp"] * (columns["tp"] * columns["pp"] + encoder))
    keep(columns, (columns["dp"] % 1 == 0) & (columns["dp"] == pins.get("dp", columns["dp"])))
    columns = _expert_sizes(columns, request, pins)
    columns = cross(columns, pinned(_segments(request), pins))
    columns = cross(columns, [{"micro_batch": float(size)} for size in axes["micro_batch"]])
    if "micro_batch" not in pins:
        keep(columns, _dividing(columns["micro_batch"], request.workload.global_batch / columns["dp"]))
    stages = [size for size in axes["pp"] if size in columns["pp"]]
    columns = cross(columns, there(pipelines(request.model, stages, pins), request, precision))
    keep(columns, columns["pp"] == columns.pop("of_pp"))
    return columns


def _dividing(size: Array, sequences: Array) -> NDArray[np.bool_]:
    """Whether a micro-batch is worth having for a rank's sequences of a step."""
    other = np.isin(size, OTHER_MICRO_BATCHES)
    return ~other | ((sequences % 4 != 0) & (sequences % size == 0))


def _segments(request: Request) -> list[Row]:
    """Of a domain's GPUs a power of two (0), or all of them where they tile the job and are no power of two."""
    domain = request.cluster.domain_size
    left_over = used_domain(domain, request.gpus) < domain and request.gpus % domain == 0
    return [{"nvl_segment": float(size)} for size in (0, domain)[: 1 + left_over]]


def _expert_sizes(columns: Columns, request: Request, pins: dict[str, Any]) -> Columns:
    """ep over divisors of the experts, on their own mesh inside each stage; etp 1 unless pinned.

    Software whose experts have no tensor parallel size of their own splits them over tp, and so are experts split
    without expert parallelism where nobody would sum the gradients of whole ones.
    """
    moe = request.model.moe
    if moe is None:
        return cross(columns, pinned([{"ep": 1.0, "etp": 1.0}], pins))
    dispatcher = pins.get("moe_dispatcher") or _dispatcher(request, pins)
    most = min(request.gpus, most_expert_ranks(request.cluster, dispatcher))
    eps = [pins["ep"]] if "ep" in pins else [size for size in divisors(moe.num_experts) if size <= most]
    columns = cross(columns, [{"ep": float(size)} for size in eps])
    columns = cross(columns, [{"etp": float(pins.get("etp", 1))}])
    if "etp" not in pins:
        missing = lacked(request.stack)
        split = (columns["ep"] == 1) & ("whole_experts" in missing) | ("expert_tensor_parallel" in missing)
        columns["etp"] = np.where(split, columns["tp"], columns["etp"])
    ranks = columns["tp"] * columns["cp"] * columns["dp"]
    keep(columns, ranks % (columns["ep"] * columns["etp"]) == 0)
    return columns


def fp32_reduction_ranks(stack: str | None) -> int:
    """Data-parallel ranks, those of context parallelism among them, from which on gradients are summed in FP32."""
    return 0 if "bf16_reduction" in lacked(stack) else BF16_REDUCTION_RANKS


def loss_by_tokens(task: str, stack: str | None) -> bool:
    """Whether context parallelism needs the loss divided by tokens, as ranks may hold only masked ones.

    See the rule finetune_cp_loss.
    """
    return task != "pretrain" and load_stack(stack or default_stack()).megatron_core


def most_expert_ranks(cluster: Cluster, dispatcher: str) -> int:
    """Ranks that experts are spread over: HybridEP stays in a domain of more than 8 GPUs, see hybridep_domain."""
    return cluster.domain_size if dispatcher == "hybridep" and cluster.domain_size > 8 else MOST_GPUS


def _dispatcher(request: Request, pins: Mapping[str, Any]) -> str:
    """Who sends tokens to experts where no pin says it."""
    padded = bool(pins.get("moe_pad_expert_input_to_capacity"))
    return usual_dispatcher(request.cluster, request.stack, padded)


def usual_dispatcher(cluster: Cluster, stack_name: str | None, padded: bool = False) -> str:
    """Who sends tokens to experts: HybridEP and DeepEP write over NVLink, so that others have all-to-all.

    DeepEP does not run in domains of more than 8 GPUs (rule deepep_gpu), nor where experts are padded to a capacity
    (pad_needs_capacity). Source: costmodel/stacks.toml.
    """
    if cluster.intra.name.startswith("pcie") or platform_of(cluster.gpu.vendor).is_rocm:
        return "alltoall"
    stack = load_stack(stack_name or default_stack())
    absent = lacked(stack_name)
    if stack.plain_dispatch:
        return "alltoall"
    if "hybridep" not in absent and (cluster.domain_size > 8 or _small_hybrid(stack, cluster)):
        return "hybridep"
    deepep = cluster.domain_size <= 8 and "deepep" not in absent and not padded
    return "deepep" if deepep else "alltoall"


def _small_hybrid(stack: Stack, cluster: Cluster) -> bool:
    """Whether runs of that software are published with HybridEP in domains of up to 8 GPUs."""
    return stack.hybrid_dispatch and cluster.gpu.generation != "ampere"


def _attention(request: Request) -> str:
    """Fused, but for heads that Transformer Engine has no fused kernel for: see the rule head_size."""
    model = request.model
    latents = model.mla is not None or model.compressed_attention is not None
    engine = load_stack(request.stack or default_stack()).megatron_core
    return "unfused" if engine and not latents and model.head_dim % 8 else "fused"


def _fixed(layouts: Columns, request: Request, precision: str, pins: dict[str, Any]) -> Columns:
    """Columns of the knobs that are not searched: best value, default, or the pin."""
    shards = layouts["dp"] * layouts["cp"]
    by_tokens = loss_by_tokens(request.workload.task, request.stack)
    fixed = {name: np.array([value]) for name, value in default_columns().items() if name not in layouts}
    dispatcher = code("moe_dispatcher", _dispatcher(request, pins))
    fixed |= {
        "sequence_parallel": (layouts["tp"] > 1) * 1.0,
        "grad_reduce_in_fp32": (shards >= fp32_reduction_ranks(request.stack)) * 1.0,
        "overlap_param_gather": np.array([float(pins.get("zero_stage", 1) > 0)]),
        "cudnn_norms": np.array(
            [
                precision == "mxfp8"
                and load_stack(request.stack or default_stack()).norm_linear
                and not platform_of(request.cluster.gpu.vendor).is_rocm
            ],
            dtype=float,
        ),
        "moe_dispatcher": np.where(layouts["ep"] > 1, float(dispatcher), 0.0),
        "calculate_per_token_loss": (layouts["cp"] > 1) * float(by_tokens),
        "attention_backend": np.array([float(code("attention_backend", _attention(request)))]),
        # Of others there is no kernel: see the rule activation_fusion.
        "bias_activation_fusion": np.array(
            [float(fuses_activation(request.model, request.cluster, request.stack))]
        ),
    }
    for name, value in pins.items():
        if name in ITEM_PREFIX:
            chosen = {column: item for column, (knob, item) in ITEMS.items() if knob == name}
            fixed |= {column: np.array([float(item in value)]) for column, item in chosen.items()}
        elif name in fixed:
            number = code(name, value) if isinstance(value, str) else value
            fixed[name] = np.array([float(number)])
    return fixed


def nothing_legal(request: Request, given: Mapping[str, Any] | None = None) -> str:
    """One line for a request without a legal plan: what leaves none, and GPUs or batches that do.

    given: pins that the user named, all of the request's when not given.
    """
    if lacking := untrainable(request.model, request.cluster, request.stack):
        return lacking
    # Without interleaving each fault shows once.
    plain = request if "vpp" in request.pins else replace(request, pins={**request.pins, "vpp": 1})
    space = build_space(plain, request.precisions[0])
    # Rules that leave nothing say all; else the first rule about each size.
    examples = [found for rule, found in space.examples.items() if not space.fatal or rule in space.fatal]
    first = {
        found.id if space.fatal else found.knobs[0]: found.text for found in reversed(examples) if found.knobs
    }
    texts = [*_no_layout(request), *reversed(first.values())]
    reasons = "; ".join(texts) or "no parallel sizes multiply up to it"
    named = request.pins if given is None else given
    pins = "".join(f" --pin {name}={value_text(value)}" for name, value in named.items())
    share = request.gpus * request.pins.get("micro_batch", 1)
    batch = max(1, round(request.workload.global_batch / share)) * share
    ways = [f"--gpus {usable}"] if (usable := nearest_usable(request)) else []
    if _has_legal(replace(request, workload=replace(request.workload, global_batch=batch))):
        ways.append(f"--global-batch {batch}")
    own = [as_pins(found.way_out) for rule, found in space.examples.items() if rule in space.fatal]
    way_out = (
        f"Try {', or '.join(ways)}."
        if ways
        else " ".join(dict.fromkeys(own)) or "Relax the pins or the sizes."
    )
    return (
        f"--gpus {request.gpus} with --global-batch {request.workload.global_batch}{pins} leaves no legal plan "
        f"of {request.model.name}: {reasons}. {way_out}"
    )


def _no_layout(request: Request) -> list[str]:
    """What keeps the pinned sizes from being a layout at all, before any rule; nothing where some are."""
    pins, model, gpus = request.pins, request.model, request.gpus
    texts = []
    if model.moe is not None and gpus % (experts := pins.get("ep", 1) * pins.get("etp", 1)):
        texts.append(f"ep x etp = {experts} does not divide {gpus} GPUs")
    stages = [pins["pp"]] if "pp" in pins else [size for size in divisors(gpus) if size > 1]
    split = any(row["of_pp"] > 0 for row in pipelines(model, stages, request.knob_pins)) if stages else True
    if not split and pins.get("vpp", 1) > 1:
        chunks = f"pp x vpp = {min(stages)} x {pins['vpp']}"
        texts.append(f"{model.num_layers} layers do not make {chunks} chunks")
    return texts


def nearest_usable(request: Request) -> int:
    """Number of GPUs nearest to the request's that has a legal plan, 0 when none is near. [1]"""
    powers = {2 ** round(np.log2(request.gpus)), request.gpus - request.gpus % request.cluster.domain_size}
    near = {request.gpus + step for step in range(-4, 5)} | powers
    for gpus in sorted(near - {request.gpus}, key=lambda count: (abs(count - request.gpus), count)):
        if gpus < 1:
            continue
        try:
            other = replace(request, gpus=int(gpus))
        except ValueError:
            continue
        if _has_legal(other):
            return int(gpus)
    return 0


def _has_legal(request: Request) -> bool:
    return any(build_space(request, precision).legal for precision in request.precisions)
