"""advisor run: execute a plan with Megatron-Core and put predicted beside measured."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.commands import HELP, not_blank, options_given
from advisor.options import PinsKnobs
from advisor.profiles import named
from advisor.run_plan import LOCAL_GLOBAL_BATCH, LOCAL_SEQ_LEN
from advisor.whole_numbers import COUNT, SEQUENCES, TOKENS, WholeNumber, WholeNumberWithin

if TYPE_CHECKING:
    from executor.launch import Nodes

# Slices of the predicted step that a record keeps.
TRACE_SPANS = 20_000


@click.command(name="run", context_settings=HELP, cls=PinsKnobs)
@click.argument("plan_file", required=False, metavar="[PLAN]", callback=not_blank)
@click.option("--model", default=None, help="Model to plan for, such as tiny-gpt, when no PLAN is given.")
@click.option("--gpus", type=COUNT, default=None, metavar="N", help="Processes, one a GPU [2].")
@click.option(
    "--gpu",
    default="local",
    show_default=True,
    help="local: this machine, measured first; or its GPU's name.",
)
@click.option(
    "--profile",
    default=None,
    metavar="NAME",
    callback=named,
    help="Profile to predict with, as `advisor calibrate` wrote it: a name or a TOML.",
)
@click.option(
    "--seq-len",
    type=TOKENS,
    default=None,
    metavar="TOKENS",
    help=f"Tokens of one sequence [{LOCAL_SEQ_LEN}].",
)
@click.option(
    "--global-batch",
    type=SEQUENCES,
    default=None,
    metavar="N",
    help=f"Sequences a step [{LOCAL_GLOBAL_BATCH}].",
)
@click.option("--pin", multiple=True, metavar="NAME=VALUE", help="Only plans with this value; repeatable.")
@click.option(
    "--steps", type=WholeNumberWithin(10, 1, 10000), default=10, show_default=True, help="Steps to measure."
)
@click.option(
    "--warmup", type=WholeNumberWithin(5, 0, 1000), default=5, show_default=True, help="Steps before them."
)
@click.option(
    "--data",
    default="",
    metavar="PREFIX",
    callback=not_blank,
    help="Indexed dataset, PREFIX.bin and PREFIX.idx [generated text].",
)
@click.option(
    "--nodes",
    type=WholeNumber(2),
    default=None,
    metavar="N",
    help="Nodes that run this same command [1]; with --rdzv.",
)
@click.option("--rdzv", default="", metavar="HOST:PORT", help="Where they meet: the first node.")
@click.option(
    "--node-rank",
    type=WholeNumber(0),
    default=None,
    metavar="K",
    help="This node's place from 0 on [as they come].",
)
@click.option(
    "--slurm", is_flag=True, help="Write a job script for the plan's cluster and give it to sbatch."
)
@click.option("--print-only", is_flag=True, help="With --slurm: print the script, submit nothing.")
@click.option(
    "--resume-measure",
    default=None,
    metavar="RECORD",
    callback=not_blank,
    help="Go on with a run that was cut: its missing steps.",
)
@click.option(
    "--trace",
    metavar="FILE",
    callback=not_blank,
    help="Also the measured step beside the predicted one, for Perfetto.",
)
@click.option("--recalibrate", is_flag=True, help="Measure this machine again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, plan_file: str | None, as_json: bool, **options: Any) -> None:
    """Execute a plan with Megatron-Core and put predicted beside measured.

    It measures the machine (once), plans, trains real steps on generated text or on --data, and compares step time,
    tokens/s, memory, every phase and the bytes of state with the prediction. Features of the plan that this machine
    lacks are switched off, and the receipt lists them. Without PLAN and --model it runs the plan that `advisor explain`
    gave last. The record is written while the run goes on and is kept; --resume-measure completes one that was cut.

    \b
    advisor run --model tiny-gpt --gpus 2 --gpu local
    advisor run plan.toml --steps 20
    advisor run plan.toml --nodes 2 --rdzv node0:29500 --node-rank 0
    advisor run plan.toml --slurm --print-only
    """
    check_together(plan_file, options)
    said = options_given(context)
    told = [name for name in options if name in said]
    check_of_use(plan_file, options, told)
    if options["trace"]:
        from advisor.case import files_read
        from costmodel.output_file import check_output

        check_output("--trace", options["trace"], "trace", files_read(plan_file, options))

    def tell(line: str) -> None:
        if not as_json:
            click.echo(f"  {line}", err=True)

    if options["slurm"]:
        submit(plan_file, options, as_json)
        return
    from executor.run import missing_software

    problem = missing_software()
    if problem:
        raise ValueError(problem)
    from executor.launch import RunFailed, check_variables
    from executor.run import ElsewhereError

    check_variables()  # before anything is measured or written

    try:
        if options["resume_measure"]:
            result = resumed(options, tell)
        else:
            result = fresh(plan_file, options, tell, as_json)
    except ElsewhereError as elsewhere:
        click.echo(str(elsewhere), err=True)
        return
    except RunFailed as failed:
        # No bad input: the run began, and its record says the same.
        click.echo(f"Error: {failed}", err=True)
        raise click.exceptions.Exit(1) from None
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    from advisor.run_text import page, to_json

    if options["trace"]:
        from executor.trace import write_trace
        from executor.trace_measured import record_trace

        write_trace(Path(options["trace"]), record_trace(result.record))
    predicted = json.loads((result.record / "prediction.json").read_text())
    click.echo(json.dumps(to_json(result, predicted), indent=2) if as_json else page(result, predicted))


def check_together(plan_file: str | None, options: dict[str, Any]) -> None:
    """Options that need or exclude one another."""
    if options["nodes"] is not None and not options["slurm"] and not options["rdzv"]:
        raise ValueError(
            f"--nodes {options['nodes']} needs --rdzv: nodes must meet somewhere. Try --rdzv node0:29500."
        )
    for name in ("rdzv", "node_rank"):
        if options[name] not in ("", None) and options["nodes"] is None:
            given = f"--{name.replace('_', '-')} {options[name]}"
            raise ValueError(f"{given} needs --nodes, the number of nodes. Try --nodes 2.")
    if options["recalibrate"] and options["profile"]:
        raise ValueError(
            f"--recalibrate measures this machine's own profile, and --profile {options['profile']} is predicted "
            "with. Give one of them."
        )
    if options["print_only"] and not options["slurm"]:
        raise ValueError("--print-only prints the job script of --slurm. Try --slurm --print-only.")
    if options["resume_measure"] and (plan_file or options["model"] or options["slurm"]):
        raise ValueError(
            "--resume-measure goes on with the plan of its record: give no PLAN, --model or --slurm beside it."
        )


# Options that search a plan; those beside --resume-measure that say where the ranks run and what is written.
SEARCHING = ("model", "gpus", "seq_len", "global_batch", "pin")
RESUMING = ("resume_measure", "nodes", "rdzv", "node_rank", "trace")
# What a job script says; the plan and its cluster say the rest. --model has a line of its own.
SUBMITTING = ("slurm", "print_only", "steps", "warmup", "data", "model")


def check_of_use(plan_file: str | None, options: dict[str, Any], told: list[str]) -> None:
    """Refuse options that a plan or a record decides: left aside, they would run something else than was asked."""
    words = {name: "--" + name.replace("_", "-") for name in told}
    if options["resume_measure"]:
        idle = [words[name] for name in told if name not in RESUMING]
        if idle:
            raise ValueError(
                f"{', '.join(idle)} beside --resume-measure: the record says what runs. Leave it out."
            )
        return
    idle = [words[name] for name in told if name in SEARCHING]
    if plan_file is not None and idle:
        raise ValueError(
            f"{', '.join(idle)} beside the plan {plan_file}, which says all that: leave it out. "
            f"`advisor predict {shlex.quote(plan_file)} --tp 2 --save other.toml`, with any other option, "
            "writes a changed plan."
        )
    if plan_file is None and options["model"] is None and idle:
        raise ValueError(
            f"{', '.join(idle)} without --model: the plan explained last would run as it is. Try --model tiny-gpt."
        )
    idle = [words[name] for name in told if name not in SUBMITTING]
    if options["slurm"] and idle:
        raise ValueError(
            f"{', '.join(idle)} beside --slurm: the job takes nodes and GPUs of the plan's cluster, and each node "
            "what it finds. Leave it out."
        )


def nodes_of(options: dict[str, Any]) -> Nodes | None:
    """The other nodes, None where there are none."""
    from executor.launch import Nodes

    if options["nodes"] is None:
        return None
    found = Nodes(options["nodes"], options["rdzv"], options["node_rank"])
    found.check_host()  # torchrun asks for the name again and again, for minutes
    return found


def fresh(plan_file: str | None, options: dict[str, Any], tell: Callable[[str], None], as_json: bool) -> Any:
    """A new run with a record of its own."""
    from advisor.commands.doctor import examined, refuse_failures
    from advisor.run_plan import prepare
    from executor.local_profile import home
    from executor.record import new_record
    from executor.run import check_data, cuda_variables, execute, here
    from executor.trace import write_trace
    from executor.trace_measured import PREDICTED
    from executor.trace_predicted import predicted_trace
    from executor.watchdog import PATIENCE_OF_NODES

    nodes = nodes_of(options)
    check_data(options["data"])
    refuse_failures(examined(None))
    machine = here()
    if options["gpu"] != "local" and not machine.cuda:
        raise ValueError(
            f"--gpu {options['gpu']} is not this machine, and `run` executes here. Try --gpu local; "
            "`advisor explain` plans for other machines, and --slurm sends a run there."
        )
    ready = prepare(plan_file, options, machine, tell)
    prediction = ready.prediction
    name = prediction.model.name + (f"-node{nodes.rank}" if nodes is not None and nodes.rank else "")
    folder = new_record(home(), name)
    processes = f"{prediction.plan.world} process{'es' * (prediction.plan.world > 1)}"
    click.echo(
        f"{prediction.plan.describe()}: {prediction.model.name}, {processes}",
        err=as_json,
    )
    write_trace(folder / PREDICTED, predicted_trace(prediction, TRACE_SPANS))
    if nodes is not None and nodes.count > 1:
        tell(f"meeting the other nodes at {nodes.endpoint}, for at most {PATIENCE_OF_NODES:.0f} s")
    with says_where(folder):
        result = execute(
            prediction.plan,
            prediction.workload,
            prediction.model,
            predicted=prediction.to_dict(),
            steps=options["steps"],
            warmup=options["warmup"],
            out=folder,
            progress=tell,
            requested=ready.requested,
            data=options["data"],
            nodes=nodes,
            variables=cuda_variables(prediction, ready.cluster) if machine.cuda else None,
        )
    result.warnings[:0] = ready.warnings
    return result


def resumed(options: dict[str, Any], tell: Callable[[str], None]) -> Any:
    """The rest of a run that was cut."""
    from executor.run import resume

    folder = Path(options["resume_measure"])
    with says_where(folder):
        return resume(folder, tell, nodes=nodes_of(options))


@contextlib.contextmanager
def says_where(folder: Path) -> Iterator[None]:
    """Name the record of a run that is interrupted, and what goes on with it."""
    from executor.job_file import way_on

    try:
        yield
    except KeyboardInterrupt:
        way = way_on(folder)
        click.echo(f"record: {folder}; {way[0].lower()}{way[1:]}", err=True)
        raise


def submit(plan_file: str | None, options: dict[str, Any], as_json: bool) -> None:
    """Write the job script beside its plan, and give it to sbatch."""
    from advisor.case import read_case
    from advisor.plan_faults import refuse_broken
    from costmodel.plan_file import last_plan_path, save_plan_file
    from executor.export.exported import Job
    from executor.local_profile import home
    from executor.record import new_record
    from executor.slurm_run import PLAN, run_script
    from executor.slurm_run import submit as sbatch

    if options["model"] is not None:
        raise ValueError(
            "--slurm runs a PLAN. Save one first: `advisor explain --model ... --save plan.toml`."
        )
    case = read_case(plan_file, {})
    refuse_broken(case, "no job is made of it")
    words = ["--steps", str(options["steps"]), "--warmup", str(options["warmup"])]
    words += ["--data", str(Path(options["data"]).resolve())] if options["data"] else []
    job = Job(case.plan, case.workload, case.model, case.cluster)
    if options["print_only"]:
        script = run_script(job, words, plan_file or last_plan_path())
        click.echo(json.dumps({"script": script}) if as_json else script, nl=as_json)
        return
    script = run_script(job, words)
    folder = new_record(home(), f"slurm-{case.model.name}")
    save_plan_file(folder / PLAN, case.plan_file)
    said = sbatch(folder, script)
    click.echo(
        json.dumps({"folder": str(folder), "sbatch": said}) if as_json else f"{said}\nfolder: {folder}"
    )
