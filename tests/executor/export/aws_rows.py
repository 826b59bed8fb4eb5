"""Rows of NeMo's recipes on AWS as jobs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import hardware_db
from costmodel.layout import BALANCED, even_chunks
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.exported import Job

SIZES = ("tp", "pp", "cp", "vpp", "ep")


def rows() -> list[dict[str, Any]]:
    """The rows as the table has them."""
    with Path(__file__).with_name("aws_recipes.toml").open("rb") as file:
        return list(tomllib.load(file)["rows"])


def title(row: dict[str, Any]) -> str:
    """A row in a word."""
    return f"{row['model']}-{row['gpus']}-{row.get('precision', 'bf16')}-{row.get('task', 'pretrain')}"


def job_of(row: dict[str, Any], **more: Any) -> Job:
    """The row as a job; stages that cannot be even are balanced."""
    model = load_model(row["model"])
    sizes = {name: row.get(name, 1) for name in SIZES}
    uneven = not model.layer_pattern and sizes["pp"] > 1
    uneven = uneven and even_chunks(model.num_layers, sizes["pp"], sizes["vpp"], False, False) is None
    plan = Plan(
        **sizes,
        dp=row["gpus"] // (sizes["tp"] * sizes["pp"] * sizes["cp"]),
        micro_batch=row["mbs"],
        precision=row.get("precision", "bf16"),
        sequence_parallel=sizes["tp"] > 1,
        fsdp=row.get("fsdp", False),
        zero_stage=3 if row.get("fsdp") else 1,
        pipeline_layout=BALANCED if uneven else "",
    )
    workload = Workload(row["seq"], row["gbs"], row.get("task", "pretrain"))
    return Job(plan, workload, model, hardware_db.load_cluster(row["system"]), **more)
