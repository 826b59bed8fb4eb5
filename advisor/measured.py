"""What was measured, whatever tells it: a log, a run's folder, traces; with the plan that ran, where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.progress import Progress
from executor.logs.read import read_log
from executor.logs.record import Log
from executor.logs.run_record import log_of_run
from executor.logs.summary import Steady, steady
from executor.profiles.profile import Profile
from executor.profiles.read import is_profile, read_profile

if TYPE_CHECKING:
    from advisor.case import Case

GIB = 2**30


@dataclass
class Measured:
    """A measurement with its prediction. log and kept are None where only traces are given.

    predicted: the object of `predict --json`, None when plan or machine are unknown. case: the plan in its setting,
    where one can be built. run: what the record of a run keeps as measured. notes: what was taken for granted;
    warnings: what makes the comparison doubtful.
    """

    source: str
    log: Log | None = None
    kept: Steady | None = None
    profiles: list[Profile] = field(default_factory=list)
    predicted: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
    case: Case | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def step(self) -> float:
        """Seconds of a steady step, of the run's record, the log or the traces."""
        if self.run is not None:
            return float(self.run["step_time_s"])
        if self.kept is not None:
            return self.kept.seconds
        return max(each.step_seconds for each in self.profiles)

    @property
    def peak(self) -> float | None:
        """Largest peak of torch's allocator over the ranks that tell. [byte]"""
        peaks = [each.max_allocated for each in self.log.memory if each.max_allocated] if self.log else []
        return max(peaks) if peaks else None


def read_measured(
    source: str, traces: Sequence[str], plan: str | None, options: dict[str, Any], need_plan: bool = False
) -> Measured:
    """Everything that source, traces and plan tell together. ValueError in one line.

    need_plan: refuse what cannot be predicted, instead of noting it.
    """
    path = Path(source).expanduser()
    found = Measured(source)
    if path.is_dir():
        found.log = log_of_run(path)
        found.predicted, found.run = _own_prediction(path)
    elif is_profile(path):
        found.profiles += read_profile(path)
    else:
        with Progress() as progress:
            found.log = read_log(path, progress)
    for trace in traces:
        found.profiles += read_profile(trace)
    if found.log is not None:
        found.kept = steady(found.log)
    _predict(found, plan, options, need_plan)
    _warn(found)
    return found


def _own_prediction(folder: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The prediction and the measurement that a run's record keeps; `advisor.comparison_sides` checks their form."""
    from advisor.comparison_sides import read_side

    if not (folder / "prediction.json").is_file():
        return None, None
    side = read_side(str(folder))
    return side.predicted, side.measured


def _predict(found: Measured, plan: str | None, options: dict[str, Any], need_plan: bool) -> None:
    """The case of the plan file, of the log's own dump, or of the options; and its prediction."""
    from advisor.case import read_case

    if plan is not None:
        found.case = read_case(plan, options)
    elif found.predicted is None and found.log is not None:
        found.case = _case_of(found.log, options, found.notes, need_plan)
    if found.case is not None:
        from advisor.pipeline import with_schedule
        from costmodel.predict import predict

        case = found.case
        prediction = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
        found.predicted = with_schedule(prediction).to_dict()
        found.notes += [note for note in case.notes if not note.startswith(("Not read", "No plan named"))]
    elif need_plan and found.predicted is None:
        raise ValueError(
            f"{found.source} does not show the plan that ran. Give it: `advisor compare PLAN {found.source}`."
        )


def _case_of(log: Log, options: dict[str, Any], notes: list[str], need: bool) -> Case | None:
    """The plan that a log dumps, on the machine of --gpu or --cluster; else the plan of the options, if any."""
    from executor.logs.plan_text import gpus_of, plan_text

    target, text = plan_text(log)
    machine = options.get("gpu") or options.get("cluster")
    if not target:
        if options.get("model") and machine:
            from advisor.case import read_case

            return read_case(None, options)
        return None
    if not machine:
        if need:
            raise ValueError(
                f"{log.path} shows its plan but not its machine: give --gpu or --cluster. Try --gpu h100."
            )
        notes.append(
            "The log shows its plan but not its machine: with --gpu its prediction stands beside it."
        )
        return None
    from advisor.case_from import read_foreign

    told = options | {"gpus": options.get("gpus") or gpus_of(log) or None}
    notes.append(f"The plan is the one that the log shows ({log.framework}).")
    return read_foreign(target, text, told)


# Knobs whose difference makes another run of it.
TELLING = (
    *(
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "etp",
        "dp",
        "micro_batch",
        "precision",
        "sequence_parallel",
        "recompute",
    ),
    *(
        "recompute_num_layers",
        "zero_stage",
        "fsdp",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "tp_comm_overlap",
    ),
    *("overlap_p2p", "cuda_graph", "moe_dispatcher", "cp_comm_type"),
)


def _warn_of_another_plan(found: Measured) -> None:
    """What the log's own dump says otherwise than the plan that it is compared with."""
    from costmodel.plan import Plan
    from executor.export.bundle import target_module
    from executor.logs.plan_text import plan_text

    assert found.log is not None
    target, text = plan_text(found.log)
    if not target or found.case is None:
        return
    try:
        told = Plan(**target_module(target).read(text).knobs)
    except ValueError:
        return
    plan = found.case.plan
    skipped = () if found.case.model.moe else ("moe_dispatcher", "ep", "etp")
    differing = [
        f"{name} {getattr(told, name)} (plan: {getattr(plan, name)})"
        for name in TELLING
        if name not in skipped and getattr(told, name) != getattr(plan, name)
    ]
    if differing:
        found.warnings.append(f"the log shows another plan: {', '.join(differing)}")


def _warn(found: Measured) -> None:
    """What makes measured and predicted two different things."""
    log, predicted = found.log, found.predicted
    if log is None or found.kept is None:
        return
    batches = {each.global_batch for each in log.iterations[-10:] if each.global_batch}
    if predicted and batches and batches != {predicted["workload"]["global_batch"]}:
        told = ", ".join(f"{batch:,}" for batch in sorted(batches))
        found.warnings.append(
            f"the log trains {told} sequences a step, the plan {predicted['workload']['global_batch']:,}: "
            "the prediction is of another step"
        )
    if predicted and log.world and log.world != predicted["gpus"]:
        found.warnings.append(f"the log is of {log.world:,} ranks, the plan of {predicted['gpus']:,} GPUs")
    _warn_of_another_plan(found)
    if log.truncated:
        found.warnings.append("the log ends inside a dump: it was cut")
    if found.kept.num_lines < 5:
        found.warnings.append(f"only {found.kept.num_lines} steady lines: too few for a spread")
    if log.restarts:
        steps = ", ".join(str(step) for step in log.restarts[:5])
        found.warnings.append(f"the run was started again at step {steps}; the last attempt counts")
    _warn_of_counting(found)


def _warn_of_counting(found: Measured) -> None:
    """The framework's FLOP count beside ours: a difference is another convention, or another model."""
    from executor.logs.summary import median_of

    assert found.log is not None
    assert found.kept is not None
    told = median_of(found.log, "tflops", found.kept)
    if not told or not found.predicted:
        return
    ours = found.predicted["model_tflops_per_gpu"] * found.predicted["step_time_s"]
    ratio = told * found.kept.seconds / ours
    if abs(ratio - 1) > 0.03:
        found.warnings.append(
            f"the log counts {ratio:.2f} times the FLOP of a step that we count: another convention (attention "
            "without the causal half, padded vocabulary), or another model or batch than the plan's"
        )
