"""advisor check: everything that keeps a plan from running or makes it slower than it must be."""

from __future__ import annotations

import json
from typing import Any

import click

from advisor.case import read_case, setting_options
from advisor.options import knob_options


@click.command(name="check")
@click.argument("plan", required=False)
@setting_options
@knob_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, plan: str | None, as_json: bool, **options: Any) -> None:
    """Everything that keeps a plan from running, and the way out.

    PLAN is a plan file; any option changes it. All rules are told at once: ERROR (refused, or wrong results),
    AUTOFIX (the framework silently changes it), SILENT (no effect), PERF (slower or in vain), ENV (the
    environment must say so too) and NOTE (depends on version or framework). Memory is one of the rules. Exit
    code 1 when an ERROR stands.

    \b
    advisor check plan.toml
    advisor check plan.toml --tp 16
    """
    from advisor.render import bold, gib
    from advisor.rules import violations
    from advisor.sections import assumption_section, fit_text, violation_section
    from costmodel.predict import Prediction, predict

    case = read_case(plan, options)
    found = violations(case.model, case.workload, case.cluster, case.plan, case.gpus)
    prediction: Prediction | None = None
    reason = ""
    try:
        prediction = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
    except ValueError as error:
        reason = str(error)
    fits = prediction is None or prediction.fits
    holds = fits and all(violation.severity != "ERROR" for violation in found)
    if as_json:
        record: dict[str, Any] = {
            "plan": case.plan.to_dict(),
            "holds": holds,
            "violations": [violation.to_dict() for violation in found],
            "memory": prediction.to_dict()["memory"] if prediction else None,
            "not_predicted": reason or None,
        }
        click.echo(json.dumps(record, indent=2))
    else:
        errors = sum(violation.severity == "ERROR" for violation in found) + (not fits)
        others = len(found) - errors + (not fits)
        verdict = "holds" if holds else f"does not hold: {errors} error{'s' * (errors != 1)}"
        also = f", {others} thing{'s' * (others != 1)} worth knowing" if others else ""
        lines = [bold(f"{case.plan.describe()}: {verdict}{also}.")]
        if prediction is not None:
            lines.append(f"  memory     {fit_text(prediction)}")
            if not prediction.fits:
                excess = prediction.peak_memory_bytes - prediction.device_bytes
                lines.append(f"  Over by {gib(max(excess, 0.0))}. `advisor explain` finds plans that fit.")
        else:
            lines.append(f"  not predicted: {reason}")
        lines += violation_section(found)
        lines += assumption_section(list(case.notes))
        click.echo("\n".join(lines))
    context.exit(0 if holds else 1)
