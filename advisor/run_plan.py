"""The plan that `advisor run` executes: from a file, the last one explained, or searched for the machine at hand."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.request import Request
    from advisor.search import SearchResult
    from costmodel.plan import Plan
    from costmodel.prediction import Prediction
    from executor.resolve import Here
    from hardware_db import Cluster

# What a run on this machine takes when nothing is said: small enough for a laptop's processor.
LOCAL_SEQ_LEN, LOCAL_GLOBAL_BATCH = 256, 8
LOCAL_PINS = {
    "cp": 1,
    "fsdp": False,
    "zero_stage": 1,
    "cuda_graph": False,
    "recompute": "none",
    "fused_cross_entropy": False,
    "bias_activation_fusion": False,
}


@dataclass(frozen=True)
class Prepared:
    """What runs: the plan as asked for, its prediction as it runs here, and warnings about the machine's profile."""

    requested: Plan
    prediction: Prediction
    cluster: Cluster
    warnings: list[str]


def prepare(
    plan_file: str | None,
    options: Mapping[str, Any],
    here: Here,
    tell: Callable[[str], None],
) -> Prepared:
    """The plan to run, resolved for this machine and predicted for it. options: of `advisor run`."""
    from costmodel.plan_file import last_plan_path

    if plan_file is None and options["model"] is None:
        if not last_plan_path().is_file():
            raise ValueError(
                "nothing to run: no PLAN, no --model and no plan explained before. Try --model tiny-gpt --gpus 2."
            )
        plan_file = str(last_plan_path())
    if plan_file is not None:
        return from_file(plan_file, options, here, tell)
    return searched(options, here, tell)


def from_file(
    plan_file: str, options: Mapping[str, Any], here: Here, tell: Callable[[str], None]
) -> Prepared:
    """The plan of a file, on this machine or, with GPUs, on the machine that the file names."""
    from advisor.case import read_case
    from advisor.plan_faults import plan_faults, refuse_broken
    from executor.resolve import resolve

    case = read_case(plan_file, {})
    check_processes(case.plan.world, f"the plan {case.plan_file.model} of {plan_file}", options, here)
    # A plan that breaks a rule is told before the machine is measured; what this machine lacks is switched off first.
    resolved, _ = resolve(case.plan, case.model, here)
    with plan_faults(case):
        check_here(resolved, case.model, case.workload, here, plan_file)
    refuse_broken(replace(case, plan=resolved), "it is not run", anywhere=True)
    asked = None if options["gpu"] == "local" else options["gpu"]
    if here.cuda and asked is None and not options["profile"]:
        cluster, warnings = case.cluster, []
    else:
        cluster, warnings = machine(case.plan.world, options, here, tell)
    with plan_faults(case):
        return prepared(case.plan, case.model, case.workload, cluster, warnings, here, plan_file)


def searched(options: Mapping[str, Any], here: Here, tell: Callable[[str], None]) -> Prepared:
    """The best plan for this machine."""
    from advisor.plan_faults import PlanError
    from advisor.request import make_request, parse_pins
    from advisor.search import search
    from advisor.space import build_space, nothing_legal
    from costmodel.model_registry import load_model
    from costmodel.workload import Workload
    from executor.megatron_here import why_not_model

    processes = options["gpus"] if options["gpus"] is not None else 2
    check_processes(processes, f"--gpus {processes}", options, here)
    # What the user mistyped is told before the machine is measured.
    model, given = load_model(options["model"]), parse_pins(options["pin"])
    pins = (LOCAL_PINS if not here.cuda else {}) | given
    precision = pins.get("precision", "bf16" if here.cuda else "fp32")
    seq_len = LOCAL_SEQ_LEN if options["seq_len"] is None else options["seq_len"]
    global_batch = LOCAL_GLOBAL_BATCH if options["global_batch"] is None else options["global_batch"]
    Workload(seq_len, global_batch)
    if problem := why_not_model(model, precision, here):
        raise ValueError(problem.replace("--precision ", "--pin precision="))

    def asked(where: str) -> Request:
        return make_request(
            options["model"],
            processes,
            cluster=where,
            seq_len=seq_len,
            global_batch=global_batch,
            precision=precision,
            pins=pins,
            stack="local",
        )

    if not here.cuda and not options["profile"]:
        unmeasured = asked("dgx-h100")
        unmeasured = replace(unmeasured, cluster=as_processor(unmeasured.cluster))
        if not any(build_space(unmeasured, each).legal for each in unmeasured.precisions):
            raise ValueError(nothing_legal(unmeasured, given))
    cluster, warnings = machine(processes, options, here, tell)
    request = asked(options["profile"] or (cluster.name if here.cuda else str(_path(processes, options))))
    found = search(request)
    if not found.plans:
        raise PlanError(too_large(found, given))
    plans = found.plans
    # The best plan that runs here: some need layers that this machine has not.
    best = next((each.prediction for each in plans if runs(each.prediction, here)), plans[0].prediction)
    return prepared(best.plan, best.model, best.workload, cluster, warnings, here)


def too_large(found: SearchResult, given: Mapping[str, Any]) -> str:
    """What a search that found nothing says: what a process has, what the leanest plan needs, and the way out.

    given: the user's own pins. Recompute, which a run here is searched without, is named where it makes a plan fit.
    """
    from advisor.alternatives import shortfall
    from advisor.search import search

    request, way = found.request, "Try a smaller model, such as tiny-gpt."
    if request.pins.get("recompute") == LOCAL_PINS["recompute"] and "recompute" not in given:
        with contextlib.suppress(ValueError):
            if search(replace(request, pins={**request.pins, "recompute": "full"})).plans:
                way = "Try --pin recompute=full, or a smaller model, such as tiny-gpt."
    least = found.least_bad
    assert least is not None
    has = least.prediction.device_bytes / 2**30
    return f"{request.model.name} does not fit this machine: a process has {has:.1f} GiB, {shortfall(least)}. {way}"


def as_processor(cluster: Cluster) -> Cluster:
    """A machine of which the rules say what they say of this one's processor; its rates are another's, and not used."""
    from executor.local_profile import WHAT_IT_IS, WHERE_IT_IS

    link = replace(cluster.intra, name=WHERE_IT_IS["intra"])
    return replace(
        cluster,
        gpu=replace(cluster.gpu, **WHAT_IT_IS),
        domain_size=WHERE_IT_IS["domain_size"],
        intra=link,
        inter=link,
        host_link=link,
    )


def runs(prediction: Prediction, here: Here) -> bool:
    """Whether a plan can run on this machine once it is resolved."""
    from executor.megatron_here import why_not_here
    from executor.resolve import resolve

    resolved, _ = resolve(prediction.plan, prediction.model, here)
    return why_not_here(resolved, prediction.workload, prediction.model, here) is None


def check_here(resolved: Plan, model: Any, workload: Any, here: Here, plan_file: str = "") -> None:
    """ValueError where the resolved plan cannot run on this machine.

    plan_file: that has it, "" where it was searched. A file's machine may have no rate of FP32, as GPUs have none here.
    """
    from advisor.options import as_pins
    from executor.megatron_here import why_not_here

    problem = why_not_here(resolved, workload, model, here)
    if problem and plan_file:
        # Quantised parameters go with the formats that are dropped.
        bf16 = "Try --precision bf16" + " --no-fp8-param-gather" * resolved.fp8_param_gather
        said = problem.replace("Try --precision fp32", "Try --precision bf16").replace(
            "Try --precision bf16", bf16
        )
        raise ValueError(f"{said} {rewritten(plan_file)}")
    if problem:
        raise ValueError(as_pins(problem).replace("--precision ", "--pin precision="))


def rewritten(plan_file: str) -> str:
    """How a plan file takes an option that `advisor run` has not."""
    return (
        f"`advisor predict {shlex.quote(plan_file)} ... --save other.toml` writes a plan with such options."
    )


def prepared(
    plan: Plan,
    model: Any,
    workload: Any,
    cluster: Cluster,
    warnings: list[str],
    here: Here,
    plan_file: str = "",
) -> Prepared:
    """The prediction of what really runs; ValueError when it cannot run, PlanError when it does not fit.

    plan_file: as in `check_here`.
    """
    from advisor.plan_faults import PlanError
    from costmodel.predict import predict
    from costmodel.simulated_pipeline import with_schedule
    from executor.resolve import resolve
    from executor.run_job import stack_of

    resolved, _ = resolve(plan, model, here)
    check_here(resolved, model, workload, here, plan_file)
    prediction = with_schedule(predict(model, workload, cluster, resolved, stack_of(here.cuda)))
    if not prediction.fits:
        gib = 2**30
        way = f"--recompute full. {rewritten(plan_file)}" if plan_file else "--pin recompute=full."
        raise PlanError(
            f"the plan needs {prediction.peak_memory_bytes / gib:.1f} GiB of {prediction.device_bytes / gib:.1f} GiB "
            f"a process. Try more processes, or {way}"
        )
    return Prepared(plan, prediction, cluster, warnings)


def machine(
    processes: int, options: Mapping[str, Any], here: Here, tell: Callable[[str], None]
) -> tuple[Cluster, list[str]]:
    """The machine to predict for: a file that is named, the GPUs found, or this machine, measured now or before."""
    import hardware_db
    from executor.devices import gpu_here
    from executor.local_profile import kept_warnings, local_profile, own_cluster

    if options["profile"]:
        from advisor.profiles import other_processes

        found = hardware_db.load_cluster(options["profile"])
        kept = kept_warnings(Path(options["profile"]), "`advisor calibrate`")
        return found, [*other_processes(found, processes // (options.get("nodes") or 1)), *kept]
    if here.cuda:
        named = options["gpu"] if options["gpu"] != "local" else gpu_here()
        return hardware_db.resolve(named, None)[0], []
    nodes = options["nodes"] or 1
    path, warnings = local_profile(processes // nodes, options["recalibrate"], tell)
    if nodes > 1:
        warnings = [
            *warnings,
            "links between nodes are not measured: predicted as one machine; --profile names them",
        ]
    return own_cluster(path, "--recalibrate"), warnings


def _path(processes: int, options: Mapping[str, Any]) -> Any:
    from executor.local_profile import profile_path

    return profile_path(processes // (options["nodes"] or 1))


def check_processes(
    processes: int,
    given: str,
    options: Mapping[str, Any] | None = None,
    here: Here | None = None,
    way_out: str = "Try --model tiny-gpt --gpus 2, or run the plan on its cluster.",
) -> None:
    """Refuse what this machine cannot run at all. way_out: what the command has for it."""
    nodes = (options or {}).get("nodes") or 1
    if processes % nodes:
        raise ValueError(
            f"{given} needs {processes} processes, not a multiple of --nodes {nodes}. Try --nodes 1."
        )
    if here is not None and here.cuda:
        from executor.devices import most_ranks

        most, where = most_ranks(nodes), " on its GPUs"
    else:
        most, where = 4 * (os.cpu_count() or 1), ""
    if not 1 <= processes // nodes <= most:
        raise ValueError(
            f"{given} needs {processes // nodes} processes, and this machine runs 1 to {most}{where}. "
            + way_out
        )
