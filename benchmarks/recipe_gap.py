"""Published recipes against our best plan.

`python benchmarks/recipe_gap.py MEASUREMENTS.csv` writes docs/recipe-gap.csv, which benchmarks/accuracy.py reads.

For each work that a publisher's recipes cover (model, workload, cluster, GPUs, precision) the newest recipe's plan and
the best plan of our search are predicted by the same path. gap = predicted time of the recipe over predicted time of
our best: what a team would gain by us, if our model were right. Each of the largest is a discovery or an error of ours.

The search may use what the recipe's release had, by the facts of advisor/rules/features.toml, as every search for a
stack. Numerics are the recipe's. Works on more than 2048 GPUs, or than the
number given as a second argument, are left out. All of it takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from advisor.measurements import Case, Skip, read_rows, row_case
from advisor.request import Request
from advisor.search import search
from advisor.search.candidates import resource_seconds
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "recipe-gap.csv"
# Sources whose rows are tuned recipes; verification cards, A/B tests and papers' grids are not.
RECIPES = (
    "NeMo docs",
    "NeMo-Framework-Launcher",
    "Megatron-Bridge perf",
    "DGXC",
    "ModelZoo",
    "Megatron-Core MoE report",
    "DeepSeek-V3 GB200",
)
# What changes numerics, or is not searched and costs nothing to keep: as the recipe has it.
KEPT = (
    "grad_reduce_in_fp32",
    "precision_aware_optimizer",
    "main_params_dtype",
    "main_grads_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "moe_capacity_factor",
    "moe_pad_expert_input_to_capacity",
    "dropout",
    "attention_backend",
    "fused_cross_entropy",
    "nccl_ub",
    "layernorm_sm_margin",
)
LAYOUT = ("tp", "pp", "cp", "ep", "etp")
SHOWN = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "fsdp", "zero_stage", "recompute")
SHOWN += ("recompute_modules", "recompute_num_layers", "cuda_graph", "cuda_graph_scope", "tp_comm_overlap")
SHOWN += ("fp8_param_gather", "overlap_moe_comm", "moe_dispatcher", "cp_comm_type", "sequence_parallel")
SHOWN += ("offload_layers", "offload_modules", "optimizer_instances", "pipeline_layout")
MOST_GPUS = 2048
COLUMNS = (
    "id", "source", "stack", "model", "task", "family", "cluster", "gpus", "precision", "seq_len", "global_batch",
    "measured_s", "recipe_s", "recipe_fits", "best_s", "gap", "same_layout_s", "recipe_plan", "best_plan", "knobs",
    "terms", "feasible",
)  # fmt: skip


def recipes(cases: Iterable[Case], most_gpus: int = MOST_GPUS) -> list[Case]:
    """One case a work: of its newest release, the plan measured fastest."""
    best: dict[Any, Case] = {}
    for case in cases:
        if case.plan.world > most_gpus or not any(name in case.row.text("source") for name in RECIPES):
            continue
        work = (case.model, case.workload, case.cluster.name, case.plan.world, case.plan.precision)
        rival = best.get(work)
        if rival is None or _newness(case) > _newness(rival):
            best[work] = case
    return list(best.values())


def _newness(case: Case) -> tuple[str, float]:
    return case.stack.rpartition("-")[2], -case.measured_step_time_s


def compare(case: Case) -> dict[str, Any] | str:
    """The recipe's plan beside our best, or why there is none."""
    pins = {name: getattr(case.plan, name) for name in KEPT}
    layout = {name: getattr(case.plan, name) for name in LAYOUT}
    published = with_schedule(predict(case.model, case.workload, case.cluster, case.plan, case.stack))
    found = _search(case, pins)
    if found is None:
        return "no plan of the space fits"
    best, feasible = found
    same = _search(case, pins | layout)
    return {
        "id": case.id,
        "source": case.row.text("source"),
        "stack": case.stack,
        "model": case.model.name,
        "task": case.workload.task,
        "family": case.model.family,
        "cluster": case.cluster.name,
        "gpus": case.plan.world,
        "precision": case.plan.precision,
        "seq_len": case.workload.seq_len,
        "global_batch": case.workload.global_batch,
        "measured_s": f"{case.measured_step_time_s:.4g}",
        "recipe_s": f"{published.step_time_s:.4g}",
        "recipe_fits": int(published.fits),
        "best_s": f"{best.step_time_s:.4g}",
        "gap": f"{published.step_time_s / best.step_time_s:.3f}",
        "same_layout_s": f"{same[0].step_time_s:.4g}" if same else "",
        "recipe_plan": case.plan.describe(),
        "best_plan": best.plan.describe(),
        "knobs": "; ".join(differing(case.plan, best.plan)),
        "terms": "; ".join(gains(published, best)),
        "feasible": feasible,
    }


def _search(case: Case, pins: Mapping[str, Any]) -> tuple[Prediction, int] | None:
    request = Request(
        case.model,
        case.plan.world,
        case.cluster,
        case.workload,
        precisions=(case.plan.precision,),
        pins=dict(pins),
        top=1,
        stack=case.stack,
    )
    try:
        result = search(request)
    except ValueError:
        return None
    return (result.best.prediction, result.feasible) if result.best else None


def differing(recipe: Plan, best: Plan) -> list[str]:
    """Knobs in which our best differs: "pp 4 -> 1"."""
    return [
        f"{name} {_text(getattr(recipe, name))} -> {_text(getattr(best, name))}"
        for name in SHOWN
        if getattr(recipe, name) != getattr(best, name)
    ]


def _text(value: Any) -> str:
    return "+".join(value) or "none" if isinstance(value, tuple) else str(value) or "even"


def gains(recipe: Prediction, best: Prediction, least: float = 0.01) -> list[str]:
    """Resources by what our best saves on them, as shares of the recipe's step, largest first."""
    before, after = resource_seconds(recipe), resource_seconds(best)
    saved = {name: before.get(name, 0.0) - after.get(name, 0.0) for name in {**before, **after}}
    shares = sorted(
        ((seconds / recipe.step_time_s, name) for name, seconds in saved.items()),
        key=lambda entry: -abs(entry[0]),
    )
    return [f"{name} {-share:+.1%}" for share, name in shares if abs(share) >= least]


def main(path: Path, most_gpus: int = MOST_GPUS) -> None:
    """Compare every work and write the table."""
    cases = [
        case
        for row in read_rows(path)
        if row.text("superseded") != "1" and not isinstance(case := row_case(row), Skip)
    ]
    chosen = recipes(cases, most_gpus)
    started, rows = time.perf_counter(), []
    for number, case in enumerate(chosen, 1):
        try:
            found = compare(case)
        except ValueError as error:
            found = str(error)
        told = found if isinstance(found, str) else f"gap {found['gap']}"
        if not isinstance(found, str):
            rows.append(found)
        seconds = time.perf_counter() - started
        print(
            f"{number}/{len(chosen)} {seconds:.0f} s {case.id} {case.model.name} x{case.plan.world}: {told}",
            flush=True,
        )
    rows.sort(key=lambda row: (-float(row["gap"]), row["id"]))
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} works of {len(chosen)} written to {OUT}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="measurements.csv")
    parser.add_argument("most_gpus", type=int, nargs="?", default=MOST_GPUS, help="larger works are left out")
    given = parser.parse_args()
    main(given.table, given.most_gpus)
