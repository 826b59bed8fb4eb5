"""Predicting: a model, a workload, a cluster and plans in; seconds, bytes and their trees out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.binding import bind, precision_recipe, step_keys
from costmodel.bound import Bound
from costmodel.columns import ITEMS, Array, Columns, code, plan_columns, plan_inputs
from costmodel.compiled import CompiledModel, compile_model
from costmodel.evidence import interval, nearest, own_interval
from costmodel.evidence_quantile import LEVEL
from costmodel.evidence_release import before_its_time
from costmodel.evidence_setting import setting_of
from costmodel.layout import total_blocks
from costmodel.memory import STAGES
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.prediction import Prediction, TermValue, bound_by
from costmodel.term import Term
from costmodel.uncertainty import parameter_spread
from costmodel.workload import Workload
from hardware_db import Cluster, load_calibration

# Cells evaluated at once: the temporaries of a chunk stay in the processor's cache.
CHUNK = 131072
ZERO = np.zeros(1)


@lru_cache(maxsize=32)
def compiled_family(features: frozenset[str]) -> CompiledModel:
    """The compiled cost of a family of models and plans, from the cache where possible.

    features: blocks and what else the formulas need; see `costmodel.step.build_step`.
    """

    def build() -> Any:
        from costmodel.step import build_step

        return build_step(features)

    return compile_model(build, ("step_time", "peak_memory", "model_flops"), "-".join(sorted(features)))


def family_features(model: ModelSpec, workload: Workload, columns: Columns) -> frozenset[str]:
    """What the formulas of a model, task and plans need."""
    features = {name for name, count in total_blocks(model).items() if count}
    if model.mla is not None and model.mla.q_lora_rank:
        features.add("q_lora")
    if model.moe is not None:
        features |= {"shared"} if model.moe.shared_expert_ffn else set()
        features |= {"latent"} if model.moe.latent_size else set()
    if model.mtp_layers:
        features.add("mtp")
    if model.encoder is not None:
        features.add("encoder")
    if workload.task == "lora":
        features.add("lora")
    if np.any(columns.get("optimizer", ZERO) == code("optimizer", "muon")):
        features.add("muon")
    if np.any(columns.get("bf16_end_layers", ZERO) > 0):
        features.add("ends")
    moved = [name for name, (knob, _) in ITEMS.items() if knob == "offload_modules"]
    if any(np.any(columns.get(name, ZERO) > 0) for name in ("offload_layers", *moved)):
        features.add("offload")
    return frozenset(features)


def evaluate_plans(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    precision: str,
    columns: Columns,
    stack: str | None = None,
) -> dict[str, Array]:
    """step_time [s], peak_memory [byte] and model_flops [FLOP] of every plan.

    columns: an array for each knob, which broadcast. The last axis may be long; axes before it hold options that every
    plan of the last axis takes, and what does not depend on them is worked out once for all. Results have the axes in
    reverse: for columns of one axis, a value for each row.
    The caller guarantees that global_batch is a multiple of micro_batch x dp in every plan.
    Raises ValueError when the family's cost is not built or the GPU lacks the precision.
    """
    found = _evaluate(model, workload, cluster, precision, columns, stack)
    if workload.longest < workload.seq_len:
        timed = _evaluate(model, workload.as_padded(), cluster, precision, columns, stack)
        shape = np.broadcast_shapes(*(np.shape(column) for column in columns.values()))
        free = np.broadcast_to(~padded_in_full(columns), shape).T
        found |= {name: np.where(free, timed[name], found[name]) for name in ("step_time", "model_flops")}
    return found


def padded_in_full(columns: Columns) -> NDArray[np.bool_]:
    """Rows in which unpacked sequences are padded to seq_len, whatever the longest of the batch.

    Stages, an encoder's among them, and experts make Megatron-Bridge do so (rule padded_full_length), and CUDA graphs
    need it (graph_padded).
    """
    least = {"pp": 1.0, "ep": 1.0, "encoder_pp": 0.0, "cuda_graph": 0.0}
    return np.asarray(sum(columns.get(name, ZERO) > above for name, above in least.items()) > 0)


def _evaluate(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    precision: str,
    columns: Columns,
    stack: str | None,
) -> dict[str, Array]:
    bound, inputs = _inputs(model, workload, cluster, precision, columns, stack)
    scalars = {name: entry.value for name, entry in bound.items()}
    scalars |= {name: float(value) for name, value in inputs.items() if not np.ndim(value)}
    arrays = {name: value for name, value in inputs.items() if np.ndim(value)}
    compiled = compiled_family(family_features(model, workload, columns))
    *options, rows = np.broadcast_shapes(*(np.shape(column) for column in columns.values()))
    results: dict[str, Array] = {}
    step = max(CHUNK // math.prod(options), 1)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        some = {name: array[..., part] if array.shape[-1] > 1 else array for name, array in arrays.items()}
        for name, values in compiled.search(scalars | some).items():
            found = results.setdefault(name, np.empty((rows, *reversed(options))))[part]
            found[...] = np.broadcast_to(values, found.shape[::-1]).T
    return results


def plan_values(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    precision: str,
    columns: Columns,
    stack: str | None = None,
) -> dict[str, Any]:
    """Every quantity of some plans and every input, by name: an array over the plans, or a number for all of them.

    Step times are `evaluate_plans`'s, of padded sequences where those are timed; what is behind them has seq_len.
    """
    bound, inputs = _inputs(model, workload, cluster, precision, columns, stack)
    scalars = {name: entry.value for name, entry in bound.items()}
    known = scalars | {
        name: np.float64(value) if not np.ndim(value) else value for name, value in inputs.items()
    }
    found = known | compiled_family(family_features(model, workload, columns)).full(known)
    if workload.longest < workload.seq_len:
        found["step_time"] = evaluate_plans(model, workload, cluster, precision, columns, stack)["step_time"]
    return found


def predict(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    stack: str | None = None,
    published_id: str = "",
) -> Prediction:
    """Time and memory of one plan, term by term. ValueError as `evaluate_plans`.

    published_id: the published run that the plan is, which is then no evidence for itself.
    """
    plan.num_microbatches(workload.global_batch)
    columns = plan_columns([plan])
    timed = workload if padded_in_full(columns)[0] else workload.as_padded()
    bound, inputs = _inputs(model, timed, cluster, plan.precision, columns, stack)
    features = family_features(model, workload, columns)
    compiled = compiled_family(features)
    scalars = {name: entry.value for name, entry in bound.items()}
    numbers = {name: float(np.ravel(array)[0]) for name, array in inputs.items()}
    values = _values(compiled, scalars, numbers)
    held: dict[str, float] = {}
    if timed is not workload:
        own = bind(model, workload, cluster, plan.precision, stack)
        held = _values(compiled, {name: entry.value for name, entry in own.items()}, numbers)
        terms = [term for name, term in compiled.trees.items() if name.startswith("memory_")]
        values |= {term.name: held[term.name] for tree in terms for term in tree.walk()}
    stages = STAGES if plan.pp > 1 else STAGES[:1]
    worst = max(stages, key=lambda stage: (held or values)[f"memory_{stage}"])
    time = _tree(compiled, compiled.trees["step_time"], values)
    memory = _tree(compiled, compiled.trees[f"memory_{worst}"], held or values)
    step, world = values["step_time"], plan.world
    achieved = values["model_flops"] / step / world
    setting = setting_of(model, workload, cluster, plan, stack)
    sources = {name: entry.source for name, entry in bound.items()}
    keys = step_keys(model, cluster, plan.precision, stack)
    values["parameter_spread"] = parameter_spread(compiled, scalars | numbers, keys, sources)
    spread = own_interval(load_calibration(cluster.gpu)) or interval(
        setting, published_id, values["parameter_spread"]
    )
    return Prediction(
        model=model,
        workload=workload,
        cluster=cluster,
        plan=plan,
        step_time_s=step,
        tokens_per_second_per_gpu=workload.tokens_per_step / step / world,
        model_tflops_per_gpu=achieved / 1e12,
        mfu=achieved / scalars["linear_peak"],
        mfu_peak=f"{scalars['linear_peak'] / 1e12:.0f} TFLOP/s dense {precision_recipe(plan.precision)['gemm']}",
        interval_low=step * math.exp(spread.low),
        interval_high=step * math.exp(spread.high),
        interval_level=LEVEL,
        peak_memory_bytes=memory.value,
        device_bytes=scalars["gpu_memory"],
        worst_stage=worst,
        time=time,
        memory=memory,
        values=values,
        sources=sources,
        features=features,
        bound_by=bound_by(time),
        assumptions=_assumptions(bound, model, plan, workload, timed, before_its_time(setting)),
        interval_basis=spread.basis,
        evidence=nearest(setting, published_id),
        held=held,
    )


def _inputs(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    precision: str,
    columns: Columns,
    stack: str | None,
) -> tuple[dict[str, Bound], dict[str, Array]]:
    bound = bind(model, workload, cluster, precision, stack)
    formats = recipe_formats(precision)
    inputs = plan_inputs(columns, model=model, workload=workload, domain=cluster.domain_size, **formats)
    return bound, inputs


def recipe_formats(precision: str) -> dict[str, Any]:
    """What `costmodel.columns.plan_inputs` asks of a precision recipe."""
    recipe = precision_recipe(precision)
    return {
        "precision_bytes": float(recipe["base"]),
        "quantised": float(recipe["copies"]) > 1.5,
        "block_scaled": precision == "mxfp8",
        "casts": float(recipe["kernels"]) > 0,
        "delayed": precision == "fp8-delayed",
    }


def _values(
    compiled: CompiledModel, scalars: dict[str, float], numbers: dict[str, float]
) -> dict[str, float]:
    raw = compiled.full(scalars | {name: np.float64(number) for name, number in numbers.items()})
    return {name: float(value) for name, value in raw.items()} | scalars | numbers


def _tree(compiled: CompiledModel, term: Term, values: dict[str, float]) -> TermValue:
    return TermValue(
        term.name,
        term.title,
        term.unit,
        values[term.name],
        compiled.entries[term.name]["formula"],
        tuple(_tree(compiled, part, values) for part in term.parts),
    )


def _assumptions(
    bound: dict[str, Bound], model: ModelSpec, plan: Plan, workload: Workload, timed: Workload, early: str
) -> tuple[str, ...]:
    first = [f"not counted of the model: {model.left_out}"] if model.left_out else []
    first += [early] if early else []
    if timed is not workload:
        first.append(
            f"time is that of sequences padded to {timed.seq_len:,} tokens, the longest of a batch of "
            f"{workload.global_batch:,} by --mean-length and --length-cv; memory holds {workload.seq_len:,}"
        )
    elif workload.fill < 1 and not workload.packed:
        first.append(f"every document is padded to {workload.seq_len:,} tokens, in time and memory")
    if plan.optimizer == "muon":
        first.append(
            "optimizer muon: no run of a real model's size timed with it is published that we know of; its products "
            "and streams are taken at the rates of runs with Adam"
        )
    return (*first, *dict.fromkeys(entry.note for entry in bound.values() if entry.note))
