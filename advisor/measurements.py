"""Tables of published training runs, row by row as plans.

Columns as in `measurements.csv`: what a row states is taken, what its source leaves unsaid comes from
`measurement_habits.toml` and is named in the case's assumptions. A row that cannot be expressed is
skipped with a reason.
"""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import hardware_db
from costmodel.model_file import with_overrides
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import CP_COMM_TYPES, PRECISIONS, Plan
from costmodel.workload import Workload
from hardware_db import Cluster

HABITS = Path(__file__).with_name("measurement_habits.toml")
NEEDED = ("id", "model", "system", "gpus", "precision", "gbs", "seq_len")
LARGEST_FILE = 256 * 2**20  # bytes
# Recipe names of other frameworks -> the precision whose arithmetic and traffic they have.
PRECISION_NAMES = {
    "fp8-tensorwise(torchao)": "fp8-cs",
    "fp8-rowwise(torchao)": "fp8-cs",
    "fp8-delayed(te)": "fp8-delayed",
    "mxfp8(mxfp8_cublas)": "mxfp8",
    "nvfp4(bf16 tail)": "nvfp4",
}


@dataclass(frozen=True)
class Row:
    """One row of a table, as text by column."""

    values: Mapping[str, str]

    def text(self, name: str) -> str:
        """A column's text, '' when empty or absent."""
        return self.values.get(name, "") or ""

    def number(self, name: str) -> float | None:
        """A column as a number above 0, None when empty or not one."""
        try:
            value = float(self.text(name))
        except ValueError:
            return None
        return value if math.isfinite(value) and value > 0 else None

    def count(self, name: str, default: int = 1) -> int:
        """A column as a whole number, `default` when empty."""
        value = self.number(name)
        return int(value) if value is not None else default

    def flag(self, name: str, default: bool) -> bool:
        """A column of 0 and 1, `default` when empty: unknown is not off."""
        return {"1": True, "0": False}.get(self.text(name), default)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON column, {} when empty or broken."""
        try:
            found = json.loads(self.text(name) or "{}")
        except json.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Case:
    """A row as a plan on a cluster, with what was measured. measured_memory_bytes: peak allocated, or None."""

    id: str
    row: Row
    model: ModelSpec
    workload: Workload
    plan: Plan
    cluster: Cluster
    stack: str
    measured_step_time_s: float
    measured_memory_bytes: float | None
    note: str = ""
    assumptions: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Skip:
    """A row that cannot be expressed, and why."""

    id: str
    reason: str


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a CSV. ValueError in one line when it is not such a table."""
    path = Path(path)
    try:
        if path.is_dir() or path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"{path} is not a CSV file of measurements. Name a file with a header line.")
        csv.field_size_limit(2**20)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or [])]
            if missing:
                raise ValueError(
                    f"{path} lacks the columns {', '.join(missing)}. Columns needed: {', '.join(NEEDED)}."
                )
            return [
                Row({key: value or "" for key, value in row.items() if isinstance(key, str)})
                for row in reader
            ]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}.") from None


@lru_cache(maxsize=1)
def _habits() -> list[dict[str, Any]]:
    with HABITS.open("rb") as file:
        return list(tomllib.load(file)["source"])


def habit_of(row: Row) -> dict[str, Any]:
    """The habits of the row's source."""
    where = f"{row.text('source')} | {row.text('container')}"
    return next(habit for habit in _habits() if habit["match"] in where)


def stack_of(row: Row) -> str:
    """Software stack as family-release, the release from the container where it names one."""
    habit = habit_of(row)
    container = row.text("container")
    release = container.partition(":")[2][:5] if container.startswith("nemo:") else habit.get("release", "0")
    return f"{habit['family']}-{release or '0'}"


def row_case(row: Row) -> Case | Skip:
    """The row as a case, or why not."""
    name = row.text("id") or "?"
    task = row.text("task") or "pretrain"
    if task != "pretrain":
        return Skip(name, f"task {task}: its cost is not built yet")
    try:
        model = with_overrides(load_model(row.text("model")), row.json("model_overrides"))
        cluster = hardware_db.load_cluster(row.text("system"))
    except ValueError as error:
        return Skip(name, str(error))
    reason = model.unsupported_reason()
    if reason:
        return Skip(name, reason)
    gpus, batch, seq_len = (row.count(column, 0) for column in ("gpus", "gbs", "seq_len"))
    if not gpus or not batch or not seq_len:
        return Skip(name, "GPUs, global batch or sequence length are not stated")
    if not (row.text("tp") or row.text("pp") or row.text("fsdp")):
        return Skip(name, "the parallel layout is not stated")
    step = row.number("step_time_s")
    rate = row.number("tokens_per_sec_per_gpu")
    if step is None:
        if rate is None:
            return Skip(name, "neither step time nor tokens/s are stated")
        step = batch * seq_len / (gpus * rate)
    try:
        plan, assumptions = _plan(row, model, gpus)
        plan.num_microbatches(batch)
        workload = Workload(seq_len, batch)
    except ValueError as error:
        return Skip(name, str(error))
    memory = row.number("peak_memory_gb")
    return Case(
        id=name,
        row=row,
        model=model,
        workload=workload,
        plan=plan,
        cluster=cluster,
        stack=stack_of(row),
        measured_step_time_s=step,
        measured_memory_bytes=memory * 1e9 if memory else None,
        assumptions=tuple(assumptions),
    )


def _plan(row: Row, model: ModelSpec, gpus: int) -> tuple[Plan, list[str]]:
    """The row's plan, and what had to be assumed for it."""
    habit = habit_of(row)
    modern: bool = habit["modern"]
    assumed = [habit["why"]]
    tp, pp, cp, vpp = (row.count(name) for name in ("tp", "pp", "cp", "vp"))
    if pp > 1 and not row.text("vp"):
        vpp = habit.get("vpp", vpp)
    if gpus % (tp * pp * cp):
        raise ValueError(f"{gpus} GPUs are not a multiple of tp x pp x cp = {tp * pp * cp}")
    if not row.number("mbs"):
        assumed.append("micro-batch not stated: 1")
    precision = PRECISION_NAMES.get(row.text("precision"), row.text("precision"))
    if precision not in PRECISIONS:
        raise ValueError(f"precision {row.text('precision')!r} is not one of {', '.join(PRECISIONS)}")
    sharding = row.text("fsdp")
    fsdp = sharding not in ("", "0", "zero2-like")
    overlap = habit.get("overlap", modern)
    other = row.json("other_flags")
    comm = other.get("cp_comm_type")
    uneven = model.num_layers % (pp * vpp) != 0
    if uneven:
        assumed.append(
            f"{model.num_layers} layers do not divide over {pp * vpp} chunks: embedding and loss count as layers"
        )
    recompute, modules, layers = _recompute(row, habit, vpp)
    quantised = precision not in ("bf16", "fp16", "fp32", "nvfp4")
    plan = Plan(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        dp=gpus // (tp * pp * cp),
        micro_batch=row.count("mbs"),
        precision=precision,
        sequence_parallel=tp > 1 and row.flag("sequence_parallel", modern),
        zero_stage=3 if fsdp else habit.get("zero_stage", 1),
        fsdp=fsdp,
        fsdp_shard_size=int(sharding) if fsdp and sharding.isdigit() and int(sharding) > 1 else 0,
        cp_comm_type=comm if comm in CP_COMM_TYPES else "p2p",
        recompute=recompute,
        recompute_modules=modules,
        recompute_num_layers=layers,
        attention_backend="fused" if modern else "unfused",
        tp_comm_overlap=row.flag("tp_comm_overlap", habit.get("tp_overlap", False) and tp > 1),
        overlap_grad_reduce=row.flag("overlap_grad_reduce", overlap),
        overlap_param_gather=row.flag("overlap_param_gather", overlap),
        overlap_p2p=overlap,
        cuda_graph=row.text("cuda_graph") not in ("", "0", "none"),
        grad_reduce_in_fp32=row.flag("grad_reduce_in_fp32", habit["grad_fp32"]),
        fp8_param_gather=quantised and row.flag("fp8_param_gather", False),
        precision_aware_optimizer=row.flag("precision_aware_optimizer", False),
        account_embedding=uneven,
        account_loss=uneven,
        fused_cross_entropy=habit["fused_loss"],
        dropout=not modern,
    )
    return plan, assumed


def _recompute(row: Row, habit: Mapping[str, Any], vpp: int) -> tuple[str, tuple[str, ...], int]:
    """Recompute setting; Megatron counts the layers of each virtual stage, plans those of the stage."""
    stated = row.text("recompute_granularity") or habit.get("recompute", "none")
    if stated == "full":
        layers = row.text("recompute_num_layers")
        return "full", (), int(layers) * vpp if layers.isdigit() else 0
    if stated != "selective":
        return "none", (), 0
    named = row.text("recompute_modules")
    if "recompute_modules" in habit:
        return "selective", tuple(habit["recompute_modules"]), 0
    modules = [
        ours
        for theirs, ours in (("core", "core_attn"), ("mlp", "mlp"), ("layernorm", "layernorm"))
        if theirs in named
    ]
    return "selective", tuple(modules or ["core_attn"]), 0
