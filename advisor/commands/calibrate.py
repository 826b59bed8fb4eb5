"""advisor calibrate: measure this machine, or learn from runs, into a profile that every command can use."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.commands import HELP, not_blank, not_blank_stack, options_given
from advisor.profiles import named
from advisor.whole_numbers import COUNT, NumberWithin

if TYPE_CHECKING:
    from executor.calibrate import Calibration
    from hardware_db import Cluster


@click.command(name="calibrate", context_settings=HELP)
@click.argument("more", nargs=-1, metavar="[RECORD]...", callback=not_blank)
@click.option("--time", "seconds", type=NumberWithin(180, 5, 3600), default=180, show_default=True,
              metavar="SECONDS", help="How long to measure, about.")  # fmt: skip
@click.option(
    "--gpus",
    type=COUNT,
    default=None,
    metavar="N",
    help="Processes that share the machine [2], or GPUs of a node [1].",
)
@click.option(
    "--from", "records", multiple=True, metavar="RECORD", callback=not_blank,
    help="Learn from runs instead: folders that `advisor run` wrote; further ones may follow.",
)  # fmt: skip
@click.option("--gpu", metavar="NAME", help="With --from: the machine of the runs [this one].")
@click.option("--cluster", metavar="NAME", help="With --from: its cluster.")
@click.option("--profile", metavar="NAME", callback=named, help="With --from: the profile to go on from.")
@click.option(
    "--stack", metavar="NAME", callback=not_blank_stack, help="With --from: software release of the runs."
)
@click.option(
    "-o",
    "--output",
    metavar="PROFILE",
    callback=not_blank,
    help="Where to write: a name, or a path to a TOML.",
)
@click.option("--refuse-noise", is_flag=True, help="Write nothing when other work disturbed the measurement.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, as_json: bool, **options: Any) -> None:
    """Measure this machine, or learn from runs, into a profile.

    It measures matrix products by shape and format, attention, memory, the optimizer, the dispatch of operations, and
    collectives by kind, size and group, with as many processes as a run will have. Short training runs follow, which
    show what kernels alone do not. With --from nothing is measured: the constants of a machine are adjusted to the
    records of runs. The profile is a machine file that commands take by --profile; data that we ship is never edited.

    \b
    advisor calibrate --time 180 -o mine
    advisor calibrate --from ~/.cache/advisor/runs/20261121-* -o learned
    """
    records = [Path(each) for each in (*options.pop("records"), *options.pop("more"))]
    from advisor.calibrate_text import calibration_lines, to_json

    idle = [
        word for name, word in options_given(context).items() if name in ("seconds", "gpus", "refuse_noise")
    ]
    if records and idle:
        raise ValueError(f"{', '.join(idle)} beside --from: nothing is measured then. Leave it out.")
    found = from_records(records, options) if records else here(options, as_json)
    if found is None:
        context.exit(1)
    click.echo(json.dumps(to_json(found), indent=2) if as_json else "\n".join(calibration_lines(found)))


def here(options: dict[str, Any], as_json: bool) -> Calibration | None:
    """Measure this machine; None when it was too noisy and --refuse-noise was given."""
    from advisor.progress import Progress
    from advisor.run_plan import check_processes
    from executor.calibrate import calibrate_here
    from executor.launch import check_variables
    from executor.local_profile import profile_path
    from executor.run import has_cuda, missing_software
    from executor.run import here as machine

    for name in ("gpu", "cluster", "profile", "stack"):
        if options[name]:
            raise ValueError(
                f"--{name} goes with --from: without it this machine is measured. Add --from RECORD."
            )
    problem = missing_software()
    if problem:
        raise ValueError(problem.replace("advisor run", "advisor calibrate", 1))
    check_variables()  # before anything is measured or written
    processes = options["gpus"] if options["gpus"] is not None else 1 if has_cuda() else 2
    check_processes(
        processes,
        f"--gpus {processes}",
        {"nodes": None} | options,
        machine(),
        "Try --gpus 1, or calibrate on the machine that runs so many.",
    )
    out = _out(options, profile_path(processes))
    if options["refuse_noise"] and os.getloadavg()[0] > (os.cpu_count() or 1):
        load = os.getloadavg()[0]
        click.echo(
            f"Refused: other work runs here (load {load:.1f}). Wait, or drop --refuse-noise.", err=True
        )
        return None
    said = f"measuring with {processes} process{'es' * (processes > 1)}, about {options['seconds']:.0f} s"
    click.echo(f"  {said}", err=True)
    import time

    began = time.monotonic()

    with Progress(wanted=not as_json) as bar:

        def progress(share: float, what: str) -> None:
            spent = time.monotonic() - began
            left = f", {spent * (1 - share) / share:.0f} s left" if share > 0.05 else ""
            bar(share, what + left)

        try:
            found = calibrate_here(processes, options["seconds"], out, progress, options["refuse_noise"])
        except RuntimeError as error:
            raise ValueError(str(error)) from None
    if found is None:
        click.echo("Refused: repeats scatter. Measure on a quiet machine, or drop --refuse-noise.", err=True)
    return found


def from_records(records: list[Path], options: dict[str, Any]) -> Calibration:
    """Learn from runs."""
    from executor.calibrate import calibrate_from
    from executor.local_profile import home

    cluster = cluster_of(records, options)
    out = _out(options, home() / "profiles" / "learned.toml")
    return calibrate_from(records, cluster, out, options["stack"])


def _out(options: dict[str, Any], default: Path) -> Path:
    """Where to write; ValueError and OSError before anything is measured where that would lose a file, or cannot be."""
    from advisor.case import files_read
    from costmodel.output_file import check_output
    from executor.calibrate import is_named, out_path
    from executor.local_profile import make_room

    given = options["output"]
    out = out_path(given, default)
    if not given:
        return out
    if is_named(given):
        make_room(out)
    check_output("-o", out, "profile", files_read(None, options))
    return out


def cluster_of(records: list[Path], options: dict[str, Any]) -> Cluster:
    """The machine whose constants the runs move: as named, else this machine's own profile."""
    import hardware_db
    from advisor.profiles import machine_options
    from executor.calibrate_records import read_all
    from executor.local_profile import own_cluster, profile_path

    if options["profile"]:
        chosen = options | machine_options(options["profile"], options)
        return hardware_db.resolve(chosen["gpu"], chosen["cluster"])[0]
    if options["gpu"] or options["cluster"]:
        return hardware_db.resolve(options["gpu"], options["cluster"])[0]
    processes = read_all(records)[0][0].plan.world
    path = profile_path(processes)
    if not path.is_file():
        raise ValueError(
            f"no profile of this machine with {processes} process{'es' * (processes > 1)} to go on from. "
            f"Try `advisor calibrate --gpus {processes}` first, or --gpu NAME for runs elsewhere."
        )
    return own_cluster(path, f"`advisor calibrate --gpus {processes}`")
