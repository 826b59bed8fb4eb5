"""Predicting: a model, a workload, a cluster and a plan in; seconds, bytes and their trees out."""

from __future__ import annotations

import math

import numpy as np

from costmodel.binding import precision_recipe, step_keys
from costmodel.bound import Bound
from costmodel.columns import plan_columns
from costmodel.compiled import CompiledModel
from costmodel.evidence import Interval, Near, interval, nearest, own_interval
from costmodel.evidence.quantile import LEVEL
from costmodel.evidence.release import before_its_time
from costmodel.evidence.setting import setting_of
from costmodel.family import compiled_family
from costmodel.host_memory import rank_host_bytes
from costmodel.memory import MEMORY_STAGES
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray, padded_to_seq_len
from costmodel.prediction import Prediction, TermValue, bound_by
from costmodel.term import Term
from costmodel.uncertainty import parameter_spread
from costmodel.work.dispatched import most_imbalance
from costmodel.workload import Workload
from hardware_db import Cluster, Platform, load_calibration, platform_of
from hardware_db.units import flop_rate


def predict(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    stack: str | None = None,
    published_id: str = "",
    judged: bool = True,
) -> Prediction:
    """Time and memory of one plan, term by term.

    ValueError when the GPU lacks the precision, or micro_batch x dp does not divide the global batch.
    published_id: the published run that the plan is, which is then no evidence for itself. judged: whether published
    runs are asked how far off it may be, which takes half of the time; else the interval is the prediction.
    """
    plan.num_microbatches(workload.global_batch)  # refuses a batch that does not divide
    plans = PlanArray(model, workload, cluster, plan.precision, plan_columns([plan]), stack)
    # A step pads its sequences to the longest of its batch where nothing pads them further; memory must hold seq_len.
    timed = plans if padded_to_seq_len(plans.columns)[0] else plans.padded_to_longest()
    features = plans.features
    compiled = compiled_family(features)
    bound = timed.bound()
    of_plan = {name: np.float64(np.ravel(array)[0]) for name, array in timed.inputs().items()}
    inputs = {name: entry.value for name, entry in bound.items()} | of_plan
    values = _values(compiled, inputs)
    memory_values: dict[str, float] = {}
    if timed.workload is not workload:
        memory_values = _values(
            compiled, {name: each.value for name, each in plans.bound().items()} | of_plan
        )
        trees = [tree for name, tree in compiled.trees.items() if name.startswith("memory_")]
        values |= {term.name: memory_values[term.name] for tree in trees for term in tree.walk()}
    stages = MEMORY_STAGES if plan.pp > 1 else MEMORY_STAGES[:1]
    worst = max(stages, key=lambda stage: values[f"memory_{stage}"])
    platform = platform_of(cluster.gpu.vendor)
    time = _tree(compiled, compiled.trees["step_time"], values, platform)
    memory = _tree(compiled, compiled.trees[f"memory_{worst}"], values, platform)
    step, world, peak = values["step_time"], plan.world, values["linear_peak"]
    achieved = values["model_flops"] / step / world
    sources = {name: entry.source for name, entry in bound.items()}
    spread, early = Interval(0.0, 0.0, ""), ""
    near: tuple[Near, ...] = ()
    if judged:
        keys = step_keys(model, cluster, plan.precision, stack)
        values["parameter_spread"] = parameter_spread(compiled, inputs, keys, sources)
        setting = setting_of(model, workload, cluster, plan, stack)
        near, early = nearest(setting, published_id), before_its_time(setting)
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
        mfu=achieved / peak,
        mfu_peak=f"{flop_rate(peak, comma='')} dense {precision_recipe(plan.precision)['gemm']}",
        interval_low=step * math.exp(spread.low),
        interval_high=step * math.exp(spread.high),
        interval_level=LEVEL,
        peak_memory_bytes=memory.value,
        device_bytes=values["gpu_memory"],
        worst_stage=worst,
        time=time,
        memory=memory,
        values=values,
        sources=sources,
        features=features,
        bound_by=bound_by(time),
        assumptions=_assumptions(bound, model, cluster, plan, workload, timed.workload, early),
        interval_basis=spread.basis,
        evidence=near,
        memory_values=memory_values,
        host_bytes=rank_host_bytes(compiled, memory_values or values, stages),
    )


def _values(compiled: CompiledModel, inputs: dict[str, float]) -> dict[str, float]:
    """Every entry of the ledger and every input by name, in base units."""
    return {name: float(value) for name, value in (compiled.full(inputs) | inputs).items()}


def _tree(compiled: CompiledModel, term: Term, values: dict[str, float], platform: Platform) -> TermValue:
    return TermValue(
        term.name,
        platform.told(term.title),
        term.unit,
        values[term.name],
        compiled.entries[term.name]["formula"],
        tuple(_tree(compiled, part, values, platform) for part in term.parts),
    )


def _assumptions(
    bound: dict[str, Bound],
    model: ModelSpec,
    cluster: Cluster,
    plan: Plan,
    workload: Workload,
    timed: Workload,
    early: str,
) -> tuple[str, ...]:
    """What was taken for granted: of the plan and its loads, then of the constants, each as its number notes it."""
    first = [f"not counted of the model: {model.left_out}"] if model.left_out else []
    first += [early] if early else []
    if timed is not workload:
        first.append(
            f"time is that of sequences padded to {timed.seq_len:,} tokens, the longest of a batch of "
            f"{workload.global_batch:,} by --mean-length and --length-cv; memory holds {workload.seq_len:,}"
        )
    elif workload.fill < 1 and not workload.packed:
        known = (
            ""
            if workload.length_cv is not None
            else ": --length-cv tells how far lengths spread, 0 not at all"
        )
        first.append(f"every document is padded to {workload.seq_len:,} tokens, in time and memory{known}")
    if plan.optimizer == "muon":
        first.append(
            "optimizer muon: no run of a real model's size timed with it is published that we know of; its products "
            "and streams are taken at the rates of runs with Adam"
        )
    first += _loads(timed, model, plan.ep)
    gpu = cluster.gpu
    if gpu.calibrated_like != gpu.name and not gpu.own_calibration:
        first.append(
            f"{gpu.name} has no kernel tables of its own: those of {gpu.calibrated_like}, as shares of its peaks"
        )
    if platform_of(gpu.vendor).is_rocm and not gpu.own_calibration:
        first.append(
            f"no run on {gpu.vendor}'s GPUs is on file: what the host, communication and libraries cost is learned on "
            "NVIDIA's, with NVIDIA's software"
        )
    return (*first, *dict.fromkeys(entry.note for entry in bound.values() if entry.note))


def _loads(workload: Workload, model: ModelSpec, ep: int) -> list[str]:
    """What a reader must know about the loads that were taken for granted."""
    told = []
    most = most_imbalance(model.moe.num_experts, model.moe.topk, ep) if model.moe is not None else 1
    if model.moe is not None and workload.moe_imbalance > most:
        told.append(
            f"no expert rank can have more than {most:g} times the mean tokens at ep {ep}: "
            f"--moe-imbalance {workload.moe_imbalance:g} counts as that"
        )
    elif most > 1 and workload.moe_imbalance == 1:
        told.append(
            "expert loads are taken as balanced, as benchmarks force them; real routing is not: "
            "--moe-imbalance 1.3 shows what that costs"
        )
    elif most > 1:
        told.append(f"the busiest expert rank has {workload.moe_imbalance:g} times the mean tokens")
    if workload.task != "pretrain" and not workload.mean_length:
        told.append("every sequence is taken as one full document; --mean-length says how long they are")
    return told
