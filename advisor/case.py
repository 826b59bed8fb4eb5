"""One plan in its setting, from a plan file, from options, or from both (options win)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from advisor.commands import not_blank_stack
from advisor.options import given_knobs, plan_from_options, resized
from advisor.prices import priced
from advisor.profiles import other_processes, profile_option
from advisor.sizes import Changes, SizesError
from advisor.whole_numbers import COUNT, SEQUENCES, TOKENS
from advisor.workload_options import check_acting, given_workload, task_option, workload_options
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile, last_plan_path, load_plan_file
from costmodel.workload import Workload

if TYPE_CHECKING:
    from advisor.rules import Violation
    from costmodel.prediction import Prediction
    from hardware_db import Cluster

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Case:
    """One plan in its setting, as commands about a plan take it. gpus: GPUs there are [1]; notes: what was assumed."""

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    gpus: int
    plan: Plan
    stack: str | None
    notes: tuple[str, ...]
    plan_file: PlanFile

    def predict(self, judged: bool = True) -> Prediction:
        """The plan's time and memory by the closed form. judged and ValueError as `costmodel.predict.predict`."""
        from costmodel.predict import predict

        return predict(self.model, self.workload, self.cluster, self.plan, self.stack, judged=judged)

    def violations(
        self, predicted: Mapping[str, Any] | None = None, prediction: Prediction | None = None
    ) -> list[Violation]:
        """Every rule that the plan breaks, errors first.

        predicted: words of its prediction, where there is one; prediction: it, where ways out must fit too.
        """
        from advisor.rules import violations
        from advisor.rules.predicted_words import UNPREDICTED

        words = UNPREDICTED if predicted is None else predicted
        from advisor.rules.room import room_of

        setting = (self.model, self.workload, self.cluster, self.plan, self.gpus)
        return violations(*setting, words, self.stack, room_of(prediction, self.stack))


def setting_options(function: Function) -> Function:
    """Decorator: model, machine and workload as options, None when not given."""
    function = workload_options(profile_option(function))
    for option in reversed(
        [
            click.option("--model", help="Model: a name, an alias such as 70b, a TOML or a config.json."),
            click.option("--gpus", type=COUNT, metavar="N", help="GPUs in all."),
            # Eager, so that errors about a precision know the machine.
            click.option(
                "--gpu",
                metavar="NAME",
                is_eager=True,
                help="GPU type, such as h100, b200, or a TOML of yours.",
            ),
            click.option(
                "--cluster",
                metavar="NAME",
                is_eager=True,
                help="A cluster instead of --gpu, such as dgx-h100.",
            ),
            click.option(
                "--seq-len", type=TOKENS, metavar="TOKENS", help="Tokens of one sequence, such as 128K."
            ),
            click.option(
                "--global-batch", type=SEQUENCES, metavar="N", help="Sequences in one optimizer step."
            ),
            task_option(None, "pretrain, sft or lora [default pretrain]."),
            click.option(
                "--stack",
                metavar="NAME",
                callback=not_blank_stack,
                help="Software release, such as nemo-26.06.",
            ),
        ]
    ):
        function = option(function)
    return function


def files_read(path: str | None, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What a command of a plan may read, that its outputs must not replace: the plan, and options that may be files."""
    told = (path, *(options.get(name) for name in ("model", "gpu", "cluster", "profile", "record")))
    return tuple(each for each in told if each)


def read_case(path: str | None, options: dict[str, Any]) -> Case:
    """The case that a plan file and options mean together.

    Without a file and without --model it is the plan that `explain` gave last.
    Raises ValueError in one line when something is missing, unknown or contradictory.
    """
    return with_ways(options, lambda told: _read(path, told))


def with_ways(options: dict[str, Any], read: Callable[[dict[str, Any]], Case]) -> Case:
    """The case that `read` makes of options; sizes that do not divide the GPUs are told with ways out that hold."""

    def broken(changes: Changes) -> int | None:
        try:
            found = read(resized(options, changes)).violations()
        except ValueError:
            return None
        return sum(each.severity == "ERROR" for each in found)

    try:
        return read(options)
    except SizesError as error:
        raise ValueError(error.line(broken)) from None


def _read(path: str | None, options: dict[str, Any]) -> Case:
    notes: list[str] = []
    if path is None and options.get("model") is None and last_plan_path().exists():
        path = str(last_plan_path())
        notes.append("No plan named: the one that `advisor explain` gave last.")
    record = load_plan_file(path) if path is not None else None
    case = _from_file(record, options, notes) if record is not None else _from_options(options, notes)
    from advisor.rules.features import unheard

    case = replace(case, notes=(*case.notes, *unheard(given_knobs(options), case.stack)))
    check_acting(given_workload(options), case.workload, case.model)
    return case


def _from_file(record: PlanFile, options: dict[str, Any], notes: list[str]) -> Case:
    knobs = given_knobs(options)
    gpus = options.get("gpus")
    if gpus is None and "dp" not in knobs and {"tp", "pp", "cp"} & set(knobs):
        gpus = record.gpus  # other sizes on the same GPUs: data parallel takes up the rest
        notes.append(f"dp follows from the {gpus} GPUs of the plan file.")
    record = replace(
        record,
        model=options.get("model") or record.model,
        cluster=options.get("cluster") or ("" if options.get("gpu") else record.cluster),
        workload=replace(
            record.workload,
            **{
                name: options[name]
                for name in ("seq_len", "global_batch", "task")
                if options.get(name) is not None
            },
            **given_workload(options),
        ),
        stack=options.get("stack") or record.stack,
        plan=plan_from_options(knobs, gpus, record.plan),
        gpus=options.get("gpus") or record.gpus,
        # A price is of the machine that it was given for.
        price=None if options.get("gpu") or options.get("cluster") else record.price,
    )
    return _case(record, options.get("gpu"), notes)


def _from_options(options: dict[str, Any], notes: list[str]) -> Case:
    if options.get("model") is None:
        raise ValueError(
            "no plan: give a plan file, or --model with --gpu and --gpus. "
            "Try `advisor predict --model llama3-8b --gpus 8 --gpu h100 --tp 2`."
        )
    if options.get("gpu") is None and options.get("cluster") is None:
        raise ValueError(
            "no machine: give --gpu or --cluster. Try --gpu h100; `advisor hardware` lists them."
        )
    from advisor.usual_sizes import default_global_batch, usual_seq_len
    from costmodel.model_registry import load_model

    model = load_model(options["model"])
    knobs = given_knobs(options)
    plan = plan_from_options(knobs, options.get("gpus"))
    task = options.get("task") or "pretrain"
    seq_len = options.get("seq_len")
    if seq_len is None:
        seq_len = usual_seq_len(model)
        notes.append(f"--seq-len {seq_len}: the usual length of {model.name}, as none was given.")
    batch = options.get("global_batch")
    if batch is None:
        Workload(seq_len, 1, task)  # says what is wrong with them before they are used
        batch = default_global_batch(plan.world, seq_len, task, model.moe is not None)
        step = plan.micro_batch * plan.dp
        batch = max(1, round(batch / step)) * step
        notes.append(f"--global-batch {batch}: a usual batch for this size, as none was given.")
    record = PlanFile(
        model=options["model"],
        workload=Workload(seq_len, batch, task, **given_workload(options)),
        cluster=options.get("cluster") or "",
        gpus=options.get("gpus") or plan.world,
        plan=plan,
        stack=options.get("stack") or "",
    )
    return _case(record, options.get("gpu"), notes)


def _case(record: PlanFile, gpu: str | None, notes: list[str]) -> Case:
    import hardware_db
    from costmodel.model_registry import load_model

    cluster, note = hardware_db.resolve(gpu, record.cluster or None)
    if note:
        notes.append(note)
    notes += other_processes(cluster, record.gpus)
    if not record.cluster:
        record = replace(record, cluster=gpu if gpu and gpu.endswith(".toml") else cluster.name)
    return Case(
        model=load_model(record.model),
        workload=record.workload,
        cluster=priced(cluster, record.price),
        gpus=record.gpus,
        plan=record.plan,
        stack=record.stack or None,
        notes=tuple(notes),
        plan_file=record,
    )
