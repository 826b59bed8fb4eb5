"""The options of the declared space: small tables of knob values that are crossed with the layouts.

Each table comes with what to keep of the product: a knob that would do nothing (cp_comm_type without cp,
...) has one value there, unless it is pinned; on GPUs of AMD so have user buffers and graphs, unchecked there, and
over PCIe user buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from advisor.request import Request
from advisor.rules import Mask
from advisor.rules.features import lacked
from advisor.rules.message_words import FEW_CHUNKS
from advisor.space.there import Row, there
from costmodel.columns import Array, code
from costmodel.knobs import KNOBS
from costmodel.layout import BALANCED, even_chunks, total_blocks
from costmodel.model_spec import ModelSpec
from costmodel.plan import RECOMPUTE_MODULES
from costmodel.plan_array import padded_to_seq_len
from costmodel.shared_choices import inseparable, parted
from costmodel.stack import Stack, default_stack, load_stack
from costmodel.symbols import LATENT_BLOCKS
from hardware_db import Cluster, platform_of

Columns = dict[str, Array]
# Knobs of graphs, and of exchanges beside other work.
GRAPHS = ("cuda_graph", "cuda_graph_scope")
OVERLAP = ("overlap_moe_comm", "delay_wgrad")
# Looks at the rows just crossed, and says which to keep.
Finish = Callable[[Columns], Mask]
# (account_embedding, account_loss): the loss is the heavier of the two.
SPLITS = ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0))
SPLIT_KNOBS = (
    "account_embedding",
    "account_loss",
    "pipeline_layout",
    "first_stage_layers",
    "last_stage_layers",
)
# Chunks of a stage for which the balancer's split is tried; with experts, whose options are five times as many, fewer.
BALANCED_CHUNKS = tuple(range(1, FEW_CHUNKS + 1))
BALANCED_CHUNKS_OF_EXPERTS = (1, 2, 3, 4, 6)
# What selective recompute by op stands for, as published runs of torchtitan are read (measurements/habits.toml).
OPS = ("layernorm", "activation", "ops")
# Full recompute of all layers, and of these shares of the layers of a chunk.
RECOMPUTE_SHARES = (0.25, 0.5, 0.75, 1.0)


def _runs_cuda(cluster: Cluster) -> bool:
    """Whether user buffers and graphs are checked there, see rocm_unchecked; a processor has neither."""
    return not platform_of(cluster.gpu.vendor).is_rocm and cluster.gpu.generation != "cpu"


def has_user_buffers(cluster: Cluster) -> bool:
    """Whether GPUs reach each other's memory over NVLink: see tp_overlap_needs_peers and tp_overlap_over_pcie."""
    return _runs_cuda(cluster) and cluster.gpu.has_peers and not cluster.intra.name.startswith("pcie")


def option_tables(request: Request, precision: str, pins: dict[str, Any]) -> list[tuple[list[Row], Finish]]:
    """Tables to cross with, in order, and which rows of the product are worth having.

    A knob that would do nothing (cp_comm_type without cp, ...) keeps one value there, unless it is pinned.
    """
    quantised = precision not in ("bf16", "fp16", "fp32")
    graphed = _runs_cuda(request.cluster)
    # Beside adapters the overlap cannot run: see rule ep_overlap_adapters.
    adapters = request.workload.task == "lora"
    overlaps = request.model.moe is not None and not adapters
    absent = lacked(request.stack)
    whole = "distributed_optimizer" in absent
    tables: list[tuple[list[Row], Finish]] = [
        (
            _sharding(pins, whole, load_stack(request.stack or default_stack()), adapters),
            _useful_replicas if whole else _useful_sharding,
        ),
        (_context_exchange(), _useful_exchange(request.cluster.domain_size)),
        (_switch("tp_comm_overlap")[: 1 + has_user_buffers(request.cluster)], _useful_buffers(request)),
        (_switch("fp8_param_gather")[: 1 + quantised], _all),
    ]
    graphs = _switch("cuda_graph")[: 1 + graphed]
    # Graphs beside FSDP, from Megatron-Core 0.18 on, are in one recipe, of whole steps: only where both are asked for.
    both = "fsdp" in pins or pins.get("zero_stage", 0) > 1
    stays = () if both else (_graphs_without_fsdp,)
    refused = (
        request.model.linear_bias
        or request.model.qkv_bias
        or not pins.get("gradient_accumulation_fusion", True)
    )
    if overlaps and graphed and refused and not pins.keys() & {*GRAPHS, *OVERLAP}:
        tables.append((_graphs_or_delay(), lambda c: _useful_overlap(c) & _graphs_without_fsdp(c)))
    else:
        tables.append((graphs, _graphs_without_fsdp))
        if overlaps:
            tables.append((_overlapped_dispatch(refused), _useful_overlap))
    ready = [
        (
            pinned(there(rows, request, precision), pins),
            keep if keep in stays or not set(rows[0]) & set(pins) else _all,
        )
        for rows, keep in tables
    ]
    # Last, because it multiplies the rows most.
    rows = there(_recompute(request.model, pins, absent), request, precision)
    return [*ready, (rows, _distinct_recompute(request.model.num_layers))]


def pipelines(model: ModelSpec, sizes: list[int], pins: dict[str, Any]) -> list[Row]:
    """Pipelines worth having for each number of stages (column of_pp): vpp and how the layers are split.

    Even splits, where embedding and loss may count as layers; the balancer's for one chunk a stage, where no plain
    split divides or one parts layers that share a choice of tokens, where every number of chunks would be even, and
    for models with MTP heads. A pin of a layout or of the accounting leaves that alone. Hybrids of Mamba layers have
    one plain chunk on each stage: see the rule hybrid_split.
    """
    layers = model.num_layers
    balanced_chunks = BALANCED_CHUNKS_OF_EXPERTS if model.moe is not None else BALANCED_CHUNKS
    hybrid = bool(model.layer_pattern)
    fixed = [name for name in SPLIT_KNOBS if name in pins]
    rows: list[Row] = []
    for pp in sizes:
        chunks = [pins["vpp"]] if "vpp" in pins else [1] if pp == 1 or hybrid else range(1, layers // pp + 2)
        # Few chunks that a stage may have; where every number of them is even, none would be balanced.
        few = [v for v in chunks if v in balanced_chunks or "vpp" in pins]
        few = [v for v in few if pp * v <= len(inseparable(model)) + 1]
        all_even = all(_splits_evenly(model, pp, v, SPLITS[0]) for v in few)
        for vpp in chunks:
            row = {"of_pp": float(pp), "vpp": float(vpp)} | dict.fromkeys(SPLIT_KNOBS, 0.0)
            if fixed:
                values = {
                    name: code(name, pins[name]) if name == "pipeline_layout" else pins[name]
                    for name in fixed
                }
                rows.append(row | {name: float(value) for name, value in values.items()})
                continue
            even = [
                split
                for split in SPLITS[: 1 if pp == 1 or hybrid else None]
                if _splits_evenly(model, pp, vpp, split)
            ]
            rows += [
                row | dict(zip(("account_embedding", "account_loss"), split, strict=True)) for split in even
            ]
            plain = SPLITS[0] in even and not model.mtp_layers
            if pp > 1 and (not plain or vpp == 1 or all_even) and not hybrid and vpp in few:
                rows.append(row | {"pipeline_layout": float(code("pipeline_layout", BALANCED))})
    return rows or [{"of_pp": 0.0, "vpp": 1.0} | dict.fromkeys(SPLIT_KNOBS, 0.0)]


def _splits_evenly(model: ModelSpec, pp: int, vpp: int, split: tuple[float, float]) -> bool:
    """Whether layers divide over the chunks, embedding and loss counted or not, without parting those that share."""
    sizes = even_chunks(model.num_layers, pp, vpp, *map(bool, split))
    return sizes is not None and not parted(model, sizes)


def _switch(knob: str) -> list[Row]:
    return [{knob: 0.0}, {knob: 1.0}]


def _useful_buffers(request: Request) -> Finish:
    """User buffers, of one shape, only for messages of tensor ranks that have one: see the rule tp_overlap_shapes."""
    changing = request.workload.task != "pretrain" and not request.workload.packed

    def keep(columns: Columns) -> Mask:
        one_shape = padded_to_seq_len(columns) if changing else True
        return (columns["tp_comm_overlap"] == 0) | ((columns["tp"] > 1) & one_shape)

    return keep


def _graphs_without_fsdp(columns: Columns) -> Mask:
    return (columns["cuda_graph"] == 0) | (columns["fsdp"] == 0)


def _sharding(pins: dict[str, Any], whole: bool, stack: Stack, adapters: bool) -> list[Row]:
    """Distributed optimizer and FSDP; the other stages only where a pin asks for them.

    Megatron-Core's FSDP comes without gradient_accumulation_fusion, as in NVIDIA's recipes: see fsdp_fused_gradients.
    adapters: beside which no recipe has it, so that it has to be asked for: see fsdp_adapters.
    whole: parameters that are not sharded have whole optimizer states, for there is no distributed optimizer.
    """
    if pins.get("zero_stage") in (0, 2):
        return [{"zero_stage": float(pins["zero_stage"]), "fsdp": float(pins["zero_stage"] == 2)}]
    rows = [{"zero_stage": 1.0, "fsdp": 0.0}, {"zero_stage": 3.0, "fsdp": 1.0}]
    if whole:
        rows[0] = {"zero_stage": 0.0, "fsdp": 0.0, "overlap_param_gather": 0.0}
        rows[1]["overlap_param_gather"] = 1.0
    if stack.megatron_core and adapters and not ({"fsdp", "zero_stage"} & pins.keys()):
        return rows[:1]
    if stack.megatron_core:
        rows = [row | {"gradient_accumulation_fusion": 1 - row["fsdp"]} for row in rows]
    return rows


def _useful_sharding(columns: Columns) -> Mask:
    several = columns["dp"] * columns["cp"] > 1
    return (columns["fsdp"] == 0) | ((columns["pp"] + columns["encoder_pp"] == 1) & several)


def _useful_replicas(columns: Columns) -> Mask:
    """Shards with any pipeline; replicas where data parallelism is all there is, or where there are none."""
    alone = columns["tp"] * columns["pp"] * columns["cp"] == 1
    several = columns["dp"] * columns["cp"] > 1
    return np.where(columns["fsdp"] == 0, alone | ~several, several)


def _context_exchange() -> list[Row]:
    kinds = [
        {"cp_comm_type": float(code("cp_comm_type", kind)), "cp_a2a_size": 1.0}
        for kind in ("p2p", "all_gather", "a2a")
    ]
    mixed = float(code("cp_comm_type", "a2a+p2p"))
    return kinds + [{"cp_comm_type": mixed, "cp_a2a_size": size} for size in (2.0, 4.0, 8.0, 16.0)]


def _useful_exchange(domain: int) -> Finish:
    p2p, mixed = (float(code("cp_comm_type", kind)) for kind in ("p2p", "a2a+p2p"))

    def keep(columns: Columns) -> Mask:
        kind, cp = columns["cp_comm_type"], columns["cp"]
        # Inner all-to-all groups inside a domain, the ring between domains.
        spans = (cp * columns["tp"] > domain) & (columns["cp_a2a_size"] * columns["tp"] <= domain)
        return (kind == p2p) | ((cp > 1) & ((kind != mixed) | (spans & (columns["cp_a2a_size"] < cp))))

    return keep


def _overlapped_dispatch(refused: bool) -> list[Row]:
    """The exchange beside other work, weight gradients delayed beside it: never worse, but where graphs refuse them.

    refused: they do, for linear layers with bias (rule delay_wgrad_graph); then the overlap alone is tried too.
    """
    rows = [{"overlap_moe_comm": 0.0, "delay_wgrad": 0.0}, {"overlap_moe_comm": 1.0, "delay_wgrad": 1.0}]
    return [*rows, {"overlap_moe_comm": 1.0, "delay_wgrad": 0.0}] if refused else rows


def _graphs_or_delay() -> list[Row]:
    """Graphs and overlapped dispatch where graphs refuse delayed gradients: one table, as large as the two apart."""
    return [
        {"cuda_graph": graph, "overlap_moe_comm": overlap, "delay_wgrad": overlap * (1 - graph)}
        for graph in (0.0, 1.0)
        for overlap in (0.0, 1.0)
    ]


def _useful_overlap(columns: Columns) -> Mask:
    overlapped, alone = columns["overlap_moe_comm"] == 1, columns["delay_wgrad"] == 0
    return ~overlapped | ((columns["ep"] > 1) & (~alone | (columns["cuda_graph"] == 1)))


def recompute_choices(model: ModelSpec, absent: frozenset[str] = frozenset()) -> list[tuple[str, ...]]:
    """Sets of modules that are worth recomputing in a model, from cheap to thorough.

    absent: features that the stack lacks; without modules of its own choice it has ops.
    """
    if "recompute_by_module" in absent:
        return [OPS]
    blocks = set(total_blocks(model))
    cheap = ["layernorm"]
    if "experts" in blocks:
        cheap += ["moe_act"]
    if blocks.intersection(LATENT_BLOCKS):
        cheap += ["mla_up_proj"]
    streams = ["mhc"] if model.residual_streams > 1 else []
    # Streams are much of what is kept, and dear to compute again: the others without them too.
    less = [tuple(cheap)] if streams and len(cheap) > 1 else []
    cheap += streams
    chosen: list[tuple[str, ...]] = [*((module,) for module in cheap), *less]
    if len(cheap) > 1:
        chosen.append(tuple(cheap))
    thorough = (["mlp"] if "mlp" in blocks else []) + (["moe"] if "experts" in blocks else [])
    chosen += [(module,) for module in thorough]
    chosen.append((*cheap, *thorough))
    return chosen


def _recompute(model: ModelSpec, pins: dict[str, Any], absent: frozenset[str]) -> list[Row]:
    """Recompute settings; `share` of a chunk's layers becomes recompute_num_layers."""
    none, selective, full = (float(code("recompute", kind)) for kind in ("none", "selective", "full"))
    chosen = recompute_choices(model, absent)
    if "recompute_modules" in pins:
        chosen = [tuple(pins["recompute_modules"])]
    rows = [{"recompute": none, "share": 0.0}]
    rows += [
        {"recompute": selective, "share": 0.0} | {f"recompute_{module}": 1.0 for module in modules}
        for modules in chosen
    ]
    shares = RECOMPUTE_SHARES[-1:] if "recompute_layers" in absent else RECOMPUTE_SHARES
    if "recompute_num_layers" in pins:
        # A negative share is a count of layers.
        shares = (-float(pins["recompute_num_layers"]) or 1.0,)
    rows += [{"recompute": full, "share": share} for share in shares]
    if "recompute" in pins:
        rows = [row for row in rows if row["recompute"] == code("recompute", pins["recompute"])]
    elif pins.get("recompute_modules"):
        rows = [row for row in rows if row["recompute"] == selective]
    elif pins.get("recompute_num_layers"):
        rows = [row for row in rows if row["recompute"] == full]
    empty = {f"recompute_{module}": 0.0 for module in RECOMPUTE_MODULES}
    return [empty | row for row in rows]


def _distinct_recompute(num_layers: int) -> Finish:
    """Turns the column `share` into recompute_num_layers, whole layers of every chunk; drops repetitions."""
    step = min(RECOMPUTE_SHARES)

    def finish(columns: Columns) -> Mask:
        share = columns.pop("share")
        accounted = num_layers + columns["account_embedding"] + columns["account_loss"]
        chunk = np.ceil(accounted / (columns["pp"] * columns["vpp"]))
        partial = (share > 0) & (share < 1)
        layers = np.floor(share * chunk)
        number = np.where(partial, layers * columns["vpp"], 0.0)
        columns["recompute_num_layers"] = np.where(share < 0, -share, number)
        return ~partial | ((layers > np.floor((share - step) * chunk)) & (layers < chunk))

    return finish


def _all(columns: Columns) -> Mask:
    return np.ones(len(columns["tp"]), dtype=bool)


def pinned(table: list[Row], pins: dict[str, Any]) -> list[Row]:
    """Rows of the table that agree with the pins; with none, the table with the pins written over it."""
    wanted = {
        name: float(code(name, pins[name]) if KNOBS[name].kind == "choice" else pins[name])
        for name in table[0]
        if name in pins
    }
    agreeing = [row for row in table if row.items() >= wanted.items()]
    if agreeing or not wanted:
        return agreeing or table
    return [dict(row) for row in {tuple((table[0] | wanted).items())}]
