"""Plans as columns: one array per knob, so that a whole search is one evaluation.

Choice knobs are integer codes (their index in the catalogue's choices), flags 0 or 1, recompute
modules one column each. `plan_inputs` turns columns into the input symbols of the group "plan".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.knobs import KNOBS
from costmodel.plan import RECOMPUTE_MODULES, Plan

Array = NDArray[np.float64]
Columns = Mapping[str, Array]

CODED = tuple(name for name, knob in KNOBS.items() if knob.kind == "choice" and name != "precision")
NUMERIC = tuple(name for name, knob in KNOBS.items() if knob.kind in ("int", "float", "bool"))
# A list knob is a column for each of its items: recompute_mlp, offload_core_attn, graph_attn.
ITEM_PREFIX = {"recompute_modules": "recompute", "offload_modules": "offload", "cuda_graph_scope": "graph"}
ITEMS = {
    f"{prefix}_{item}": (knob, item) for knob, prefix in ITEM_PREFIX.items() for item in KNOBS[knob].choices
}
MODULE_COLUMNS = tuple(f"recompute_{module}" for module in RECOMPUTE_MODULES)


class _Texts:
    """Numbers for texts, so that a column can hold them; 0 is the empty text."""

    def __init__(self) -> None:
        self.known = [""]

    def code(self, text: str) -> int:
        if text not in self.known:
            self.known.append(text)
        return self.known.index(text)


LAYOUTS = _Texts()


def code(name: str, value: str) -> int:
    """Integer code of a choice knob's value, or of a pipeline layout."""
    return LAYOUTS.code(value) if name == "pipeline_layout" else KNOBS[name].choices.index(value)


def default_columns() -> dict[str, float]:
    """Every column at the knob's default."""
    return {name: float(array[0]) for name, array in plan_columns([Plan()]).items()}


def plan_columns(plans: Sequence[Plan]) -> dict[str, Array]:
    """Columns of some plans, in order. Precision is not a column: one evaluation has one precision."""
    columns = {name: np.array([float(getattr(plan, name)) for plan in plans]) for name in NUMERIC}
    columns |= {
        name: np.array([float(code(name, getattr(plan, name))) for plan in plans])
        for name in (*CODED, "pipeline_layout")
    }
    for column, (knob, item) in ITEMS.items():
        columns[column] = np.array([float(item in _acting(plan, knob)) for plan in plans])
    return columns


def _acting(plan: Plan, knob: str) -> tuple[str, ...]:
    """Items of a list knob that act: recompute modules only with selective recompute."""
    if knob == "recompute_modules" and plan.recompute != "selective":
        return ()
    items: tuple[str, ...] = getattr(plan, knob)
    return items


def plan_from_columns(columns: Columns, index: int, precision: str) -> Plan:
    """The plan of row `index`; columns that are missing take the default."""
    values: dict[str, Any] = {"precision": precision}
    for name, column in columns.items():
        number = float(column[index])
        if name in CODED:
            values[name] = KNOBS[name].choices[int(number)]
        elif name == "pipeline_layout":
            values[name] = LAYOUTS.known[int(number)]
        elif name in NUMERIC:
            kind = KNOBS[name].kind
            values[name] = bool(number) if kind == "bool" else int(number) if kind == "int" else number
    for knob in ITEM_PREFIX:
        values[knob] = tuple(
            item
            for column, (of, item) in ITEMS.items()
            if of == knob and column in columns and columns[column][index]
        )
    return Plan(**values)


def plan_inputs(
    columns: Columns, *, num_layers: int, global_batch: int, precision_bytes: float, quantised: bool
) -> dict[str, Array]:
    """Input symbols of the group "plan" for every row.

    precision_bytes is the size of the model's own format (2 or 4), quantised whether the recipe keeps
    quantised weights that fp8_param_gather can send.
    """
    rows = np.broadcast_shapes(*(np.shape(column) for column in columns.values()))
    full = {
        name: np.broadcast_to(np.asarray(value, dtype=np.float64), rows)
        for name, value in default_columns().items()
    }
    c = full | {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    p2p, gather, a2a, mixed = (
        c["cp_comm_type"] == code("cp_comm_type", kind) for kind in KNOBS["cp_comm_type"].choices
    )
    full_recompute = c["recompute"] == code("recompute", "full")
    selective = c["recompute"] == code("recompute", "selective")
    accounted = num_layers + c["account_embedding"] + c["account_loss"]
    stage_layers = np.ceil(accounted / (c["pp"] * c["vpp"])) * c["vpp"]
    chosen = np.where(c["recompute_num_layers"] > 0, c["recompute_num_layers"], stage_layers)
    world_shard = c["dp"] * c["cp"]
    return {
        "tp": c["tp"],
        "pp": c["pp"],
        "vpp": c["vpp"],
        "cp": c["cp"],
        "dp": c["dp"],
        "b": c["micro_batch"],
        "m": global_batch / (c["micro_batch"] * c["dp"]),
        "sp": c["sequence_parallel"] * (c["tp"] > 1),
        "optimizer_sharded": (c["zero_stage"] >= 1) * 1.0,
        "grads_sharded": (c["zero_stage"] >= 2) * 1.0,
        "params_sharded": (c["zero_stage"] >= 3) * 1.0,
        "fsdp": c["fsdp"],
        "shard": np.where(
            (c["fsdp_shard_size"] > 0) & (c["fsdp"] > 0),
            np.minimum(c["fsdp_shard_size"], world_shard),
            world_shard,
        ),
        "cp_p2p": p2p * 1.0,
        "cp_all_gather": gather * (c["cp"] > 1) * 1.0,
        "cp_a2a": a2a * 1.0,
        "cp_a2a_size": np.where(a2a, c["cp"], np.where(mixed, np.minimum(c["cp_a2a_size"], c["cp"]), 1.0)),
        "recompute_layers": np.where(full_recompute, np.minimum(chosen / stage_layers, 1.0), 0.0),
        "recompute_attention": selective * c["recompute_core_attn"],
        "recompute_mlp": selective * c["recompute_mlp"],
        "recompute_norm": selective * c["recompute_layernorm"],
        "recompute_activation": selective * c["recompute_activation"],
        "unfused": (c["attention_backend"] == code("attention_backend", "unfused")) * 1.0,
        "tp_overlap": c["tp_comm_overlap"] * c["sequence_parallel"],
        "overlap_reduce": c["overlap_grad_reduce"],
        "overlap_gather": c["overlap_param_gather"],
        "overlap_p2p": c["overlap_p2p"],
        "graph": c["cuda_graph"],
        "grad_bytes": np.where(c["grad_reduce_in_fp32"] > 0, 4.0, 2.0),
        "gather_bytes": np.where((c["fp8_param_gather"] > 0) & quantised, 1.0, precision_bytes),
        "param_gather": c["fp8_param_gather"] * quantised,
        "state_bytes": np.where(
            c["precision_aware_optimizer"] > 0, 6.0, 12.0 if precision_bytes < 4 else 8.0
        ),
        "account_embedding": c["account_embedding"],
        "account_loss": c["account_loss"],
        "fused_loss": c["fused_cross_entropy"],
        "dropout": c["dropout"],
    }
