"""advisor check: everything that keeps a plan from running or makes it slower than it must be."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from advisor.case import Case, files_read, read_case, setting_options
from advisor.commands import HELP, not_blank
from advisor.options import knob_options

if TYPE_CHECKING:
    from advisor.cures import Cure
    from advisor.rules import Violation
    from costmodel.prediction import Prediction


@dataclass(frozen=True)
class Checked:
    """What `check` found. reason: why nothing is predicted, empty where it is; cure: makes the plan fit."""

    case: Case
    violations: list[Violation]
    prediction: Prediction | None
    reason: str
    cure: Cure | None

    @property
    def fits(self) -> bool:
        """Whether it fits; what cannot be predicted is not said to be too large."""
        return self.prediction is None or self.prediction.fits

    @property
    def errors(self) -> int:
        """Errors, memory among them. [1]"""
        return sum(each.severity == "ERROR" for each in self.violations) + (not self.fits)

    @property
    def others(self) -> int:
        """Violations that are no errors. [1]"""
        return sum(each.severity != "ERROR" for each in self.violations)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "plan": self.case.plan.to_dict(),
            "holds": not self.errors,
            "violations": [violation.to_dict() for violation in self.violations],
            "memory": self.prediction.to_dict()["memory"] if self.prediction else None,
            "first_cure": self.cure.to_dict() if self.cure else None,
            "not_predicted": self.reason or None,
        }


class _TextOrOptions(click.Command):
    """Takes quoted arguments of another framework, which begin with dashes, for the PLAN that they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        texts = [
            word for word in args if word.startswith("--") and " " in word and "=" not in word.split()[0]
        ]
        if texts:
            args = [word for word in args if word not in texts] + ["--", *texts]
        return super().parse_args(ctx, args)


@click.command(name="check", context_settings=HELP, cls=_TextOrOptions)
@click.argument("plan", required=False)
@setting_options
@knob_options
@click.option(
    "--from",
    "source",
    metavar="NAME",
    help="PLAN is a configuration of megatron-lm, megatron-bridge, nemo or torchtitan: a file, or its text in "
    "quotes.",
)
@click.option(
    "--save",
    metavar="FILE",
    callback=not_blank,
    help="Write what was checked as a plan file, for every other command.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(
    context: click.Context,
    plan: str | None,
    source: str | None,
    save: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Everything that keeps a plan from running, and the way out.

    PLAN is a plan file; any option changes it. Every rule that the plan breaks is listed at once, memory among them:
    ERROR (refused, or wrong results), AUTOFIX (the framework silently changes it), SILENT (no effect), PERF (slower or
    in vain), ENV (the environment must say so too) and NOTE (depends on version or framework). The exit code is 1 when
    there is an ERROR. With --from, the configuration of a framework is read, checked and predicted; --save makes it a
    plan file for `whatif`, `compare`, `diagnose` and `export`.

    \b
    advisor check plan.toml
    advisor check plan.toml --tp 16
    advisor check --from megatron-lm train.sh --gpu h100
    advisor check --from megatron-lm train.sh --gpu h100 --save today.toml
    advisor check --from torchtitan job.toml --gpu h100 --gpus 64
    """
    if save:
        from costmodel.output_file import check_output

        check_output("--save", save, "plan file", files_read(plan, options))
    found = checked(_case(plan, source, options))
    if save:
        from advisor.case_save import save_case

        save_case(save, found.case, found.prediction)
    if as_json:
        click.echo(json.dumps(found.to_dict() | (read_record(found) if source else {}), indent=2))
    else:
        lines = check_lines(found, source)
        click.echo("\n".join([*lines, *_saved_lines(save)] if save else lines))
    context.exit(1 if found.errors else 0)


def _case(plan: str | None, source: str | None, options: dict[str, Any]) -> Case:
    if source is None:
        if plan is not None and not plan.strip():
            raise ValueError(
                f"PLAN is {plan!r}: it names a plan file. Name one, or leave it out and give --model."
            )
        return read_case(plan, options)
    from advisor.case_from import read_foreign

    return read_foreign(source, plan, options)


def _saved_lines(path: str) -> list[str]:
    from advisor.render import wrap

    name = shlex.quote(path)
    text = (
        f"Saved as {path}. `advisor whatif {name}` ranks what to change, "
        f"`advisor diagnose train.log --plan {name}` says why a run of it is slow."
    )
    return ["", wrap(text)]


def read_record(found: Checked) -> dict[str, Any]:
    """What was read of a framework's configuration, and what it is predicted to do."""
    case = found.case
    return {
        "model": case.model.name,
        "workload": case.workload.to_dict(),
        "assumptions": list(case.notes),
        "prediction": found.prediction.to_dict() if found.prediction else None,
    }


def checked(case: Case) -> Checked:
    """Rules, memory, and where that does not suffice the first change that mends it."""
    from advisor.cures import first_cure
    from advisor.rules.predicted_words import all_words
    from costmodel.simulated_pipeline import with_schedule

    prediction: Prediction | None = None
    reason = ""
    try:
        closed_form = case.predict()
        prediction = with_schedule(closed_form)
    except ValueError as error:
        reason = str(error)
    words = all_words(prediction, case.stack)
    found = case.violations(words, prediction)
    cure = first_cure(case) if prediction is not None and not prediction.fits else None
    return Checked(case, found, prediction, reason, cure)


def check_lines(found: Checked, source: str | None = None) -> list[str]:
    """The page: the verdict, memory and its cure, settings, every rule, what was assumed.

    source: where the plan was read, if elsewhere: also what it is for, how fast it is predicted to be, and what the
    options of the ways out are called there.
    """
    from advisor.names_there import names_section
    from advisor.predict_text import settings_lines
    from advisor.render import bold
    from advisor.sections import assumption_section, violation_section

    errors, others, plan = found.errors, found.others, found.case.plan
    verdict = f"does not hold: {errors} error{'s' * (errors != 1)}" if errors else "holds"
    also = f", {others} thing{'s' * (others != 1)} worth knowing" if others else ""
    memory = _memory_lines(found)
    ways = [*memory, *(violation.way_out for violation in found.violations)]
    return [
        bold(f"{plan.describe()}: {verdict}{also}."),
        *(_read_lines(found) if source else []),
        *memory,
        *settings_lines(plan),
        *violation_section(found.violations),
        *(names_section(ways, source, found.case.stack) if source else []),
        *assumption_section(list(found.case.notes)),
    ]


def _read_lines(found: Checked) -> list[str]:
    """The model, the workload, and the predicted step of a configuration that was read."""
    from advisor.render import gpus_text, percent, seconds

    case, prediction = found.case, found.prediction
    batch = f"{case.workload.global_batch:,} sequences of {case.workload.seq_len:,} tokens"
    task = "" if case.workload.task == "pretrain" else f"{case.workload.task}, "
    lines = [f"  reads as   {case.model.name}, {task}{gpus_text(case.plan.world)}, {batch}"]
    if prediction is not None:
        speed = f"{prediction.tokens_per_second_per_gpu:,.0f} tokens/s/GPU, MFU {percent(prediction.mfu, 1)}"
        low, high = seconds(prediction.interval_low), seconds(prediction.interval_high)
        lines.append(f"  step       {seconds(prediction.step_time_s)} ({low} to {high}), {speed}")
    return lines


def _memory_lines(found: Checked) -> list[str]:
    from advisor.cures import to_fit
    from advisor.render import percent, wrap
    from advisor.sections import fit_text, over_by
    from costmodel.prediction import FITS_BELOW

    prediction, cure = found.prediction, found.cure
    if prediction is None:
        # Rules that are broken tell their own ways out.
        reason = found.reason.partition(" Try ")[0] if found.violations else found.reason
        return [wrap(f"not predicted: {reason}", "  ")]
    lines = [f"  memory     {fit_text(prediction)}"]
    if prediction.fits:
        return lines
    over = f"Over {percent(FITS_BELOW, 0)} of the device by {over_by(prediction)}"
    return [*lines, wrap(f"{over}. {to_fit(found.case, cure)}", "  ")]
