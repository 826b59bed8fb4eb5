"""advisor run: execute a plan with Megatron-Core and put predicted beside measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from costmodel.predict import Prediction
    from executor.run import RunResult

# What a run on this machine takes when nothing is said: small enough for a laptop's processor.
LOCAL_SEQ_LEN, LOCAL_GLOBAL_BATCH = 256, 8
LOCAL_PINS = {
    "cp": 1,
    "fsdp": False,
    "zero_stage": 1,
    "cuda_graph": False,
    "recompute": "none",
    "fused_cross_entropy": False,
}


@click.command(name="run")
@click.argument("plan_file", required=False, metavar="[PLAN]")
@click.option("--model", default=None, help="Model to plan for, such as tiny-gpt, when no PLAN is given.")
@click.option("--gpus", type=int, default=None, metavar="N", help="Processes, one a GPU [2].")
@click.option("--gpu", default="local", show_default=True, help="local: this machine, measured first.")
@click.option(
    "--seq-len", type=int, default=None, metavar="TOKENS", help=f"Tokens of one sequence [{LOCAL_SEQ_LEN}]."
)
@click.option(
    "--global-batch", type=int, default=None, metavar="N", help=f"Sequences a step [{LOCAL_GLOBAL_BATCH}]."
)
@click.option("--pin", multiple=True, metavar="KNOB=VALUE", help="Only plans with this value; repeatable.")
@click.option(
    "--steps", type=click.IntRange(1, 10000), default=10, show_default=True, help="Steps to measure."
)
@click.option(
    "--warmup", type=click.IntRange(0, 1000), default=5, show_default=True, help="Steps before them."
)
@click.option("--recalibrate", is_flag=True, help="Measure this machine again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def command(
    plan_file: str | None, as_json: bool, recalibrate: bool, steps: int, warmup: int, **options: Any
) -> None:
    """Execute a plan with Megatron-Core on this machine and put predicted beside measured.

    Measures the machine (once), plans, trains real steps on generated text, and compares step time, tokens/s,
    memory and every phase with the prediction. Without PLAN and --model it runs the last plan explained.
    The record of the run is kept; it is written as the run goes.

    \b
    advisor run --model tiny-gpt --gpus 2 --gpu local
    advisor run plan.toml --steps 20
    """
    from executor.local_profile import home
    from executor.record import new_record
    from executor.run import check, execute, has_cuda, missing_software

    def tell(line: str) -> None:
        if not as_json:
            click.echo(f"  {line}", err=True)

    problem = missing_software()
    if problem:
        raise ValueError(problem)
    if options["gpu"] != "local":
        raise ValueError(
            f"--gpu {options['gpu']} is not this machine, and `run` executes here. Try --gpu local; "
            "`advisor explain` plans for other machines."
        )
    if has_cuda():
        raise ValueError(
            "this machine has NVIDIA GPUs, and runs on them come with the next release. Hide them to run on the CPU."
        )
    try:
        prediction, warnings = plan_here(plan_file, options, recalibrate, tell)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    check(prediction.plan, prediction.workload, prediction.model)
    folder = new_record(home(), prediction.model.name)
    click.echo(
        f"{prediction.plan.describe()}: {prediction.model.name}, {prediction.plan.world} processes",
        err=as_json,
    )
    try:
        result = execute(
            prediction.plan,
            prediction.workload,
            prediction.model,
            predicted=prediction.to_dict(),
            steps=steps,
            warmup=warmup,
            out=folder,
            progress=tell,
        )
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    result.warnings[:0] = warnings
    click.echo(json.dumps(to_json(result, prediction), indent=2) if as_json else page(result, prediction))


def plan_here(
    plan_file: str | None, options: dict[str, Any], again: bool, tell: Callable[[str], None]
) -> tuple[Prediction, list[str]]:
    """The plan to run with its prediction for this machine, and warnings about the machine's profile."""
    import hardware_db
    from advisor.pipeline import with_schedule
    from advisor.request import make_request, parse_pins
    from advisor.search import search
    from costmodel.model_registry import load_model
    from costmodel.plan_file import last_plan_path, load_plan_file
    from costmodel.predict import predict
    from costmodel.workload import Workload
    from executor.local_profile import local_profile

    if plan_file is None and options["model"] is None:
        if not last_plan_path().is_file():
            raise ValueError(
                "nothing to run: no PLAN, no --model and no plan explained before. Try --model tiny-gpt --gpus 2."
            )
        plan_file = str(last_plan_path())
    if plan_file is not None:
        from advisor.case import read_case

        record = load_plan_file(plan_file)
        case = read_case(plan_file, {})
        processes = case.plan.world
        check_processes(processes, f"the plan {record.model} of {plan_file}")
        path, warnings = local_profile(processes, again, tell)
        cluster = hardware_db.load_cluster(str(path))
        return with_schedule(predict(case.model, case.workload, cluster, case.plan)), warnings
    processes = options["gpus"] if options["gpus"] is not None else 2
    check_processes(processes, f"--gpus {processes}")
    # What the user mistyped is told before the machine is measured.
    load_model(options["model"])
    pins = LOCAL_PINS | parse_pins(options["pin"])
    seq_len = LOCAL_SEQ_LEN if options["seq_len"] is None else options["seq_len"]
    global_batch = LOCAL_GLOBAL_BATCH if options["global_batch"] is None else options["global_batch"]
    Workload(seq_len, global_batch)
    path, warnings = local_profile(processes, again, tell)
    request = make_request(
        options["model"],
        processes,
        cluster=str(path),
        seq_len=seq_len,
        global_batch=global_batch,
        precision="fp32",
        pins=pins,
        stack="local",
    )
    best = search(request).best
    if best is None:
        raise ValueError(
            f"{request.model.name} does not fit this machine's memory. Try a smaller model, such as tiny-gpt."
        )
    return best.prediction, warnings


def check_processes(processes: int, given: str) -> None:
    """Refuse what this machine cannot run at all."""
    import os

    most = 4 * (os.cpu_count() or 1)
    if not 1 <= processes <= most:
        raise ValueError(
            f"{given} needs {processes} processes, and this machine runs 1 to {most}. "
            "Try --model tiny-gpt --gpus 2, or run the plan on its cluster."
        )


def page(result: RunResult, prediction: Prediction) -> str:
    """The comparison as text, answer first."""
    from advisor.render import gib, heading, seconds, table

    measured = result.measured
    ratio = measured["step_time_s"] / prediction.step_time_s
    lines = [
        "",
        f"step {seconds(measured['step_time_s'])} measured, {seconds(prediction.step_time_s)} predicted: "
        f"measured is {ratio:.2f} of predicted",
        f"loss {measured['first_loss']:.3f} -> {measured['last_loss']:.3f} "
        f"over {measured['num_steps']} measured steps after the warm-up; steps scatter by {measured['spread']:.0%}"
        if measured["first_loss"] is not None
        else "no loss on these ranks",
        heading("Predicted beside measured"),
    ]
    shown = {"s": seconds, "byte": gib, "tokens/s": lambda value: f"{value:,.0f}"}
    rows = [
        [
            row.name,
            shown[row.unit](row.predicted),
            shown[row.unit](row.measured),
            f"{row.ratio:.2f}" if row.predicted else "-",
            row.verdict,
        ]
        for row in result.rows
    ]
    lines += table(["quantity", "predicted", "measured", "ratio", "verdict"], rows, "lrrrl")
    for warning in result.warnings:
        lines.append(f"  warning: {warning}")
    lines += ["", f"record: {result.record}"]
    return "\n".join(lines)


def to_json(result: RunResult, prediction: Prediction) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "plan": prediction.plan.to_dict(),
        "prediction": prediction.to_dict(),
        "measured": result.measured,
        "comparison": [row.to_dict() for row in result.rows],
        "warnings": result.warnings,
        "record": str(Path(result.record)),
    }
