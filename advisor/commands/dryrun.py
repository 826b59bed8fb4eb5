"""advisor dryrun: what real Megatron-Core computes, sends and keeps under a plan, beside the cost model's amounts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from advisor.case import read_case, setting_options
from advisor.commands import HELP, not_blank, options_given
from advisor.options import knob_options
from advisor.whole_numbers import WholeNumber, WholeNumberWithin


@click.command(name="dryrun", context_settings=HELP)
@click.argument("plan", required=False, callback=not_blank)
@setting_options
@knob_options
@click.option("--stage", type=WholeNumber(0), metavar="N", help="One pipeline stage, from 0.")
@click.option(
    "--stages",
    default="first,middle,last",
    show_default=True,
    metavar="LIST",
    help="Stages to trace: all, first, middle, last or numbers, with commas.",
)
@click.option(
    "--microbatches",
    type=WholeNumberWithin(1, 1),
    metavar="N",
    help="Micro-batches to trace [1; with --vpp as few as the schedule takes].",
)
@click.option(
    "--megatron-core",
    "core_folder",
    type=click.Path(path_type=Path),
    callback=not_blank,
    metavar="DIR",
    help="An unpacked wheel of another Megatron-Core [the one installed].",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(
    context: click.Context,
    plan: str | None,
    stage: int | None,
    stages: str,
    microbatches: int | None,
    core_folder: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """What real Megatron-Core computes, sends and keeps under a plan, beside the cost model's amounts.

    Builds the plan's model as one rank of the full world, without GPUs and without memory for it, runs forward,
    backward and optimizer step, and counts. FLOPs, messages, parameters and optimizer state must be equal to the
    digit, saved activations within 1 %. Exit code 1 when they are not, and of a plan that breaks an ERROR rule.

    PLAN is a plan file (`advisor explain --save`); any option changes it. Without one, options describe the plan, or,
    without --model, change the one that `advisor explain` gave last.

    \b
    advisor dryrun plan.toml --stages all
    advisor dryrun --model 70b --gpus 64 --gpu h100 --tp 4 --pp 8 --vpp 5 \\
      --sequence-parallel --stage 3
    """
    from advisor.dryrun_text import dryrun_lines
    from advisor.plan_faults import plan_faults, refuse_broken
    from advisor.progress import Progress
    from executor.core_here import core_here, core_in
    from executor.dryrun import dry_run, traced_microbatches, which_stages
    from executor.dryrun_tracer import DryRunFailed
    from executor.run import missing_software

    if stage is not None and "stages" in options_given(context):
        raise ValueError(f"--stage {stage} and --stages {stages} both say what is traced. Give one of them.")
    problem = missing_software()
    if problem:
        raise ValueError(problem.replace("advisor run", "advisor dryrun"))
    core = core_in(core_folder) if core_folder else core_here()
    case = read_case(plan, options)
    refuse_broken(case, "it is not traced")
    last = plan is None and options["model"] is None
    try:
        with (
            plan_faults(case, "the plan that `advisor explain` gave last" if last else ""),
            Progress(not as_json, patience=0.0) as tell,
            tempfile.TemporaryDirectory() as folder,
        ):
            result = dry_run(
                case.plan,
                case.workload,
                case.model,
                stages=which_stages(
                    case.plan, *((stages, "--stages") if stage is None else (str(stage), "--stage"))
                ),
                num_microbatches=traced_microbatches(case.plan, case.workload, microbatches),
                folder=Path(folder),
                tell=tell,
                core=core,
            )
    except DryRunFailed as error:
        click.echo(f"Error: {' '.join(str(error).split())}", err=True)
        context.exit(1)
    if as_json:
        click.echo(json.dumps(result.to_dict() | {"notes": list(case.notes)}, indent=2))
    else:
        click.echo("\n".join(dryrun_lines(result, case)))
    context.exit(1 if result.differing else 0)
