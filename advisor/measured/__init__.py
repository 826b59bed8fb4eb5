"""Reading what was measured, whatever tells it: a log, a run's folder, traces; with the plan that ran, where known."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.measured.checks import warn
from advisor.measured.run import Measured
from advisor.progress import Progress
from executor.logs.read import read_log
from executor.logs.record import BRIDGE, LM, NEMO, Log
from executor.logs.run_record import log_of_run
from executor.logs.summary import steady
from executor.profiles.read import is_profile, read_profile

if TYPE_CHECKING:
    from advisor.case import Case

# What `check --from` takes of a framework, and what that is.
CONFIGURATIONS = {
    LM: ("megatron-lm train.sh", "a launch script"),
    BRIDGE: ("megatron-bridge config.yaml", "its configuration"),
    NEMO: ("nemo recipe.yaml", "its recipe"),
}


class NoPlanError(ValueError):
    """A measurement that shows no plan, or not the machine that ran it, where one is needed."""


def read_measured(
    source: str,
    traces: Sequence[str],
    plan: str | Case | None,
    options: dict[str, Any],
    need_plan: bool = False,
) -> Measured:
    """Everything that source, traces and plan tell together. ValueError in one line.

    plan: a plan file, or one in its setting, whose options are taken already.
    need_plan: refuse what cannot be predicted, instead of noting it.
    """
    path = Path(source).expanduser()
    found = Measured(source)
    if path.is_dir():
        found.log = log_of_run(path)
        _read_prediction(found, path)
    elif is_profile(path):
        found.profiles += read_profile(path)
    else:
        with Progress() as progress:
            found.log = read_log(path, progress)
    for trace in traces:
        found.profiles += read_profile(trace)
    if found.log is not None:
        found.kept = steady(found.log)
        _count_steps(found)
    _predict(found, plan, options, need_plan)
    warn(found)
    return found


def _count_steps(found: Measured) -> None:
    """Steps of traces that mark none, by the step time of the log."""
    for profile in found.profiles:
        if not profile.steps:
            profile.steps = max(1, round(profile.window / found.step))
            found.notes.append(
                f"{profile.path} marks no steps: by the step time of the log its window holds {profile.steps}."
            )


def _read_prediction(found: Measured, folder: Path) -> None:
    """Prediction, measurement and warnings that a run's record keeps; `advisor.comparison.record` checks their form."""
    from advisor.comparison.record import run_side

    if (folder / "prediction.json").is_file():
        side = run_side(folder)
        found.predicted, found.run = side.predicted, side.measured
        found.warnings += side.warnings


def _predict(found: Measured, plan: str | Case | None, options: dict[str, Any], need_plan: bool) -> None:
    """The case of the plan, of the log's own dump, or of the options; and its prediction."""
    from advisor.case import read_case
    from executor.logs.plan_text import plan_text

    if plan is not None:
        found.case = read_case(plan, options) if isinstance(plan, str) else plan
    elif found.predicted is None and found.log is not None:
        found.case = _case_of(found.log, options, found.notes, need_plan)
        others = any(options.get(name) for name in ("model", "gpus", "seq_len", "global_batch"))
        found.own_plan = found.case is not None and bool(plan_text(found.log)[0]) and not others
    if found.case is not None:
        from advisor.plan_faults import plan_faults
        from costmodel.simulated_pipeline import with_schedule

        case = found.case
        if plan is not None and case.stack is None and found.log is not None:
            case = found.case = _on_the_stack_of(found.log, case, found.notes)
        with plan_faults(case):
            prediction = case.predict()
            found.predicted = with_schedule(prediction).to_dict()
        found.notes += [note for note in case.notes if not note.startswith(("Not read", "No plan named"))]
    elif need_plan and found.predicted is None:
        raise NoPlanError(
            f"{found.source} does not show the plan that ran. "
            f"Give it: `advisor compare PLAN {shlex.quote(found.source)}`."
        )


def _on_the_stack_of(log: Log, case: Case, notes: list[str]) -> Case:
    """The case of a plan that names no software, on the release that the log's own dump belongs to."""
    from advisor.case_from import stack_note
    from executor.export.bundle import target_module
    from executor.logs.plan_text import plan_text

    target, text = plan_text(log)
    try:
        stack = target_module(target).read(text).stack if target else ""
    except ValueError:
        return case  # a dump that cannot be read shows no software either
    notes += [stack_note(stack)] if stack else []
    return replace(case, stack=stack) if stack else case


def _case_of_options(log: Log, options: dict[str, Any], notes: list[str]) -> Case:
    """The plan of the options, with the batch and the ranks that the log tells where they say none."""
    from advisor.case import read_case
    from executor.logs.compare import last_batch

    told = {"global_batch": last_batch(log), "gpus": log.world}
    taken = {name: value for name, value in told.items() if value and not options.get(name)}
    words = {"global_batch": "sequences a step", "gpus": "ranks"}
    if taken:
        notes.append(f"By the log: {', '.join(f'{value:,} {words[name]}' for name, value in taken.items())}.")
    return read_case(None, options | taken)


def _why_no_case(log: Log, target: str, text: str, options: dict[str, Any]) -> str:
    """Why a log's configuration makes no plan, "" where it does; ValueError where options alone are the reason."""
    import hardware_db
    from advisor.case_from import read_foreign
    from executor.logs.plan_text import gpus_of

    machine = {name: options.get(name) for name in ("gpu", "cluster", "profile")}
    hardware_db.resolve(machine["gpu"], machine["cluster"])
    gpus = gpus_of(log) or None
    try:
        read_foreign(target, text, options | {"gpus": options.get("gpus") or gpus})
    except ValueError as wrong:
        try:
            read_foreign(target, text, machine | {"gpus": gpus})
        except ValueError as error:
            return str(error)
        raise wrong
    return ""


def _case_of(log: Log, options: dict[str, Any], notes: list[str], need: bool) -> Case | None:
    """The plan that a log dumps, on the machine of --gpu or --cluster; else the plan of the options, if any."""
    from advisor.measured.log_gpus import gpus_by_work
    from executor.logs.compare import last_batch
    from executor.logs.plan_text import gpus_of, plan_text

    target, text = plan_text(log)
    machine = options.get("gpu") or options.get("cluster")
    if not target:
        if options.get("model") and machine:
            return _case_of_options(log, options, notes)
        if machine:  # a name that is none is refused, though nothing is predicted
            import hardware_db

            hardware_db.resolve(options.get("gpu"), options.get("cluster"))
        words, what = CONFIGURATIONS.get(log.framework, CONFIGURATIONS[LM])
        notes.append(
            "The log does not show its plan, so nothing is predicted: name it with --plan. `advisor check --from "
            f"{words} --gpu h100 --save plan.toml` makes one of {what}."
        )
        return None
    if not machine:
        if need:
            raise NoPlanError(
                f"{log.path} shows its plan but not its machine: give --gpu or --cluster. Try --gpu h100."
            )
        notes.append(
            "The log shows its plan but not its machine: with --gpu its prediction stands beside it."
        )
        return None
    from advisor.case_from import read_foreign

    if wrong := _why_no_case(log, target, text, options):
        if need:
            raise ValueError(
                f"The configuration in {log.path} cannot be read: {wrong} "
                f"Name the plan that ran: `advisor compare PLAN {shlex.quote(log.path)}`."
            )
        notes.append(f"The log's configuration cannot be read, so nothing is predicted: {wrong}")
        return None
    told = options | {"gpus": options.get("gpus") or gpus_of(log) or None}
    batch, said = last_batch(log), log.arguments.get("global_batch_size", "")
    if batch and said.isdigit() and batch != int(said) and not options.get("global_batch"):
        told["global_batch"] = batch  # while it ramps up
        notes.append(
            f"Predicted with the {batch:,} sequences of its last steps; its arguments say {int(said):,}."
        )
    notes.append(f"The plan is the one that the log shows ({log.framework}).")
    case = read_foreign(target, text, told)
    if told["gpus"] or not (found := gpus_by_work(log, case)):
        return case
    notes.append(
        f"The log does not say how many GPUs ran: {found[1]} make {found[0]:,}; --gpus names another number."
    )
    return read_foreign(target, text, told | {"gpus": found[0]})
