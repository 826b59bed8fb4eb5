"""advisor export: a plan as the complete thing that a framework runs."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.case import Case, read_case, setting_options
from advisor.commands import HELP, not_blank, not_blank_version
from advisor.options import knob_options
from executor.export.exported import TARGETS

if TYPE_CHECKING:
    from advisor.commands.check import Checked
    from executor.export.bundle import Bundle

# A variable that a script asks for: `${NAME:?what it is}`.
REQUIRED = re.compile(r"\$\{(\w+):\?")


@click.command(name="export", context_settings=HELP)
@click.argument("plan", required=False, callback=not_blank)
@setting_options
@knob_options
@click.option("--to", "target", metavar="NAME", required=True, help=f"What runs it: {', '.join(TARGETS)}.")
@click.option(
    "--target-version",
    metavar="V",
    default="",
    callback=not_blank_version,
    help="Its version, such as 0.17 [that of --stack, else the newest known].",
)
@click.option("--slurm", is_flag=True, help="A job script for sbatch too, with container and rendezvous.")
@click.option(
    "--benchmark",
    is_flag=True,
    help="Settings for benchmarks only too: mock data, forced balance of experts.",
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    callback=not_blank,
    help="Write the files there instead of printing them.",
)
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, plan: str | None, target: str, **options: Any) -> None:
    """A plan as Megatron-Bridge, NeMo 2 or Megatron-LM runs it.

    PLAN is a plan file; any option changes it. Gives the configuration in the target's own names, the
    environment with a reason for every variable, the launch line with CPU binding, and with --slurm the job
    script. What the target cannot say is noted. A plan that breaks an ERROR rule is refused with exit code 1, and so
    is one that fits as it was predicted and does not with the target's fused loss. A plan that is predicted not to fit
    in memory is written, as the prediction may err: a line says by how much, and the exit code is 1.

    \b
    advisor export plan.toml --to megatron-lm
    advisor export plan.toml --to megatron-lm --slurm -o run/
    """
    target = _known(target)
    case = read_case(plan, options)
    from advisor.target_release import chosen_version

    version, chosen = chosen_version(case, target, options["target_version"])
    verdict = _verdict(case, target, version)
    _stop(context, verdict.broken)
    from advisor.target_loss import as_target, native_loss, with_stand_in
    from executor.export.bundle import bundle
    from executor.export.exported import Job

    parts = case.plan, case.workload, case.model, case.cluster
    job = Job(*parts, options["benchmark"], version, native_loss(case))
    first = [note for note in (chosen, verdict.note) if note]
    made = bundle(job, target, options["slurm"], first, _encoder_time(case))
    # Only now: a target that cannot run such a job at all says so first.
    _stop(context, verdict.refused)
    for line in verdict.warnings:
        click.echo(line, err=True)
    if options["output"]:
        _write(made, Path(options["output"]).expanduser(), options["force"])
    notes = [
        *case.notes,
        *as_target(case, target, version),
        *with_stand_in(case, target, version),
    ]
    if options["as_json"]:
        record = made.to_dict() | {"assumptions": notes, "warnings": verdict.warnings}
        click.echo(json.dumps(record, indent=2))
    elif options["output"]:
        click.echo("\n".join(_written(made, options["output"], notes)))
    else:
        click.echo(_printed(made), nl=False)
        # What is printed is piped into a file: what the target changes stands beside it.
        for note in _noted(made, notes):
            click.echo(note, err=True)
    context.exit(0 if verdict.fits else 1)


@dataclass(frozen=True)
class Verdict:
    """What is said of the plan before its files are made.

    broken: lines on rules, and refused: on memory, none where it is exported; warnings: lines beside the files;
    note: on memory that the target changes; fits: whether memory suffices.
    """

    broken: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    note: str = ""
    fits: bool = True


def _stop(context: click.Context, lines: list[str]) -> None:
    """Says the lines and ends with exit code 1, where there are any."""
    for line in lines:
        click.echo(line, err=True)
    if lines:
        context.exit(1)


def _known(target: str) -> str:
    if target not in TARGETS:
        from difflib import get_close_matches

        near = get_close_matches(target, TARGETS, n=1, cutoff=0.3)
        hint = f"Did you mean {near[0]}?" if near else f"Targets: {', '.join(TARGETS)}."
        raise ValueError(f"--to {target!r} is not a target. {hint}")
    return target


def _verdict(case: Case, target: str, version: str) -> Verdict:
    from advisor.commands.check import checked
    from advisor.target_loss import other_loss

    found = checked(case)
    errors = [each for each in found.violations if each.severity == "ERROR"]
    if errors:
        lines = [
            f"Error: the plan breaks {len(errors)} rule{'s' * (len(errors) != 1)}, so it is not exported."
        ]
        return Verdict(broken=[*lines, *(f"  {each.line()}" for each in errors)])
    other = other_loss(case, found.prediction, target, version)
    if other.refused:
        return Verdict(refused=[other.refused])
    warnings = []
    if not found.fits:
        warnings.append(_too_large(found))
    if found.violations:
        count = len(found.violations)
        them = "one thing" if count == 1 else f"{count} things"
        warnings.append(f"`advisor check` tells {them} worth knowing about this plan.")
    return Verdict(warnings=warnings, note=other.note, fits=found.fits)


def _too_large(found: Checked) -> str:
    """One line on a plan that does not fit: what it needs, what there is, by how much it is over, the way out."""
    from advisor.cures import searched
    from advisor.render import gib, percent
    from advisor.sections import over_by
    from costmodel.prediction import FITS_BELOW

    priced = found.prediction
    assert priced is not None
    way = f"Try {found.cure.options()}." if found.cure else searched(found.case)
    return (
        f"The plan does not fit: {gib(priced.peak_memory_bytes)} of {gib(priced.device_bytes)} on the worst rank, "
        f"{over_by(priced)} over the {percent(FITS_BELOW, 0)} that a run may fill. {way}"
    )


def _encoder_time(case: Case) -> str:
    """The step without the model's encoder and with it, in words; "" without an encoder, or where it is not priced."""
    if case.model.encoder is None:
        return ""
    from dataclasses import replace

    from advisor.render import seconds
    from costmodel.simulated_pipeline import with_schedule

    alone = replace(case.model, encoder=None)
    try:
        without, whole = (
            with_schedule(replace(case, model=model).predict(judged=False)).step_time_s
            for model in (alone, case.model)
        )
    except ValueError:
        return ""
    return f", predicted {seconds(without)} a step instead of {seconds(whole)}"


def _write(made: Bundle, folder: Path, force: bool) -> None:
    """All files or none: nothing is overwritten without --force."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"-o {folder} is a file, not a folder. Name another.")
    there = [name for name in made.files if (folder / name).exists()]
    if there and not force:
        raise ValueError(f"{folder} has {', '.join(there)} already. Name another folder, or add --force.")
    folder.mkdir(parents=True, exist_ok=True)
    partial = {folder / name: folder / f".{name}.{os.getpid()}.tmp" for name in made.files}
    try:
        for path, temporary in partial.items():
            text = made.files[path.name]
            temporary.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                os.chmod(temporary, 0o755)
        for path, temporary in partial.items():
            os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        for temporary in partial.values():
            temporary.unlink(missing_ok=True)


def _written(made: Bundle, folder: str, notes: list[str]) -> list[str]:
    from advisor.render import bold, wrap

    exported = made.exported
    lines = [bold(f"{made.job.plan.describe()} for {exported.target} {exported.version}, in {folder}:")]
    lines += [f"  {name}" for name in made.files]
    names = _to_be_set(made)
    first = f"set {', '.join(names)}, then " if names else ""
    lines += ["", wrap(f"To start it, in that folder: {first}{made.start}")]
    return lines + _noted(made, notes)


def _noted(made: Bundle, notes: list[str]) -> list[str]:
    from advisor.render import wrap

    return [wrap(note, "  ") for note in [*made.exported.notes, *notes]]


def _to_be_set(made: Bundle) -> list[str]:
    """Variables that the scripts refuse to run without and nothing else gives, in the order in which they ask."""
    asked = dict.fromkeys(name for text in made.files.values() for name in REQUIRED.findall(text))
    ranks = {
        "SLURM_NODEID": "NODE_RANK",
        "MASTER_ADDR": "MASTER_ADDR",
    }  # of several nodes: Slurm's job gives both
    if made.start.startswith("sbatch"):
        return [name for name in asked if name not in ranks]
    return [ranks.get(name, name) for name in asked]


def _printed(made: Bundle) -> str:
    """One file as it is; several under a heading each."""
    if len(made.files) == 1:
        return next(iter(made.files.values()))
    return "\n".join(f"# ==> {name} <==\n{text}" for name, text in made.files.items())
