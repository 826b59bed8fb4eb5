"""advisor doctor: whether this machine is ready for a run, and for a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from advisor.commands import HELP, not_blank

if TYPE_CHECKING:
    from advisor.case import Case
    from executor.doctor import Finding

MARKS = {"ok": "ok", "warn": "WARN", "fail": "FAIL"}


@click.command(name="doctor", context_settings=HELP)
@click.option(
    "--plan",
    "plan_file",
    metavar="PLAN",
    callback=not_blank,
    help="Also what this plan needs: versions, variables, memory.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, plan_file: str | None, as_json: bool) -> None:
    """Whether this machine is ready: devices, versions, network, environment, memory, limits, disk.

    Each check is ok, WARN (slower, or a risk) or FAIL (a run would not start or not be right), with what was found,
    why it matters and the way out. Exit code 1 when one fails. `advisor run` asks the same before it starts.

    \b
    advisor doctor
    advisor doctor --plan plan.toml --json
    """
    findings = examined(plan_file)
    from executor.doctor import worst

    status = worst(findings)
    if as_json:
        found = {"status": status, "checks": [finding.to_dict() for finding in findings]}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo("\n".join(lines(findings)))
    context.exit(1 if status == "fail" else 0)


def examined(plan_file: str | None) -> list[Finding]:
    """Every finding of this machine, and of a plan on it."""
    from executor.doctor import examine, this_machine
    from executor.local_profile import home

    machine = this_machine(home())
    if plan_file is None:
        return examine(machine)
    from advisor.case import read_case

    case = read_case(plan_file, {})
    found = examine(machine, planned(case)) + other_machine(case, len(machine.gpus) or machine.amd_gpus)
    return found + plan_findings(case, machine.environment)


def other_machine(case: Case, gpus: int) -> list[Finding]:
    """Whether this machine is none of the plan's nodes, by its number of GPUs: then its checks say nothing of those."""
    from executor.doctor import Finding

    wanted = min(case.plan.world, case.cluster.gpus_per_node)
    if case.cluster.gpu.generation == "cpu" or gpus >= wanted:
        return []
    has = f"{gpus} GPUs" if gpus > 1 else "one GPU" if gpus else "no GPU"
    return [
        Finding(
            "plan",
            "warn",
            f"made for nodes of {case.cluster.name} with {wanted} GPUs, and this machine has {has}",
            "devices, versions and network are those of this machine, not of the nodes that will run the plan",
            "Run `advisor doctor --plan` on such a node",
        )
    ]


def planned(case: Case) -> dict[str, Any]:
    """A plan's knobs as checks read them, and its ranks on one node of its cluster."""
    one_machine = case.cluster.gpu.generation == "cpu"  # whose processes may outnumber its cores
    ranks = case.plan.world if one_machine else min(case.plan.world, case.cluster.gpus_per_node)
    return case.plan.to_dict() | {"ranks_here": ranks}


def plan_findings(case: Case, environment: Any) -> list[Finding]:
    """What the variables of this shell do to a plan: against what it needs, and under the rules between knobs."""
    from advisor.commands.check import checked
    from advisor.rules import violations
    from executor.doctor import Finding
    from executor.export.environment import environment as needed
    from executor.export.environment import environment_knobs
    from executor.export.exported import Job

    found = []
    held = checked(case)
    for each in held.violations:
        if each.severity == "ERROR":
            found.append(Finding("plan", "fail", each.id, each.text, each.way_out.rstrip("."), each.source))
    if held.prediction is not None:
        peak, device = held.prediction.peak_memory_bytes, held.prediction.device_bytes
        there = f"{peak / 2**30:.1f} GiB predicted of {device / 2**30:.1f} on {case.cluster.name}"
        if held.fits:
            found.append(Finding("plan", "ok", there))
        else:
            way = "`advisor check` names the first change that mends it"
            found.append(Finding("plan", "fail", there, "the worst rank does not fit", way))
    for variable in needed(Job(case.plan, case.workload, case.model, case.cluster)):
        given = environment.get(variable.name)
        if given is None or given == variable.value:
            continue
        way = (
            f"Set {variable.name}={variable.value}"
            if variable.value is not None
            else f"Unset {variable.name}"
        )
        found.append(
            Finding(
                "plan",
                "warn",
                f"{variable.name}={given} here",
                f"the plan needs otherwise: {variable.why}",
                way,
            )
        )
    knobs = environment_knobs({name: environment[name] for name in environment})
    knobs.pop("settings", None)
    setting = (case.model, case.workload, case.cluster)
    before = {each.id for each in violations(*setting, case.plan, stack=case.stack)}
    changed = replace(case.plan, **knobs)
    for each in violations(*setting, changed, stack=case.stack):
        if each.id not in before:
            status = "fail" if each.severity == "ERROR" else "warn"
            way = each.way_out.rstrip(".")
            found.append(Finding("plan", status, "with this environment", each.text, way, each.source))
    return found


def refuse_failures(findings: list[Finding]) -> None:
    """Raise ValueError in one line for the first check that fails; warnings are for `advisor doctor`."""
    failed = [finding for finding in findings if finding.status == "fail"]
    if failed:
        more = f" And {len(failed) - 1} more: `advisor doctor`." if failed[1:] else ""
        raise ValueError(failed[0].line() + more)


def lines(findings: list[Finding]) -> list[str]:
    """Answer first, then every check."""
    counts = {status: sum(finding.status == status for finding in findings) for status in MARKS}
    if counts["fail"]:
        answer = f"not ready: {counts['fail']} of {len(findings)} checks fail"
    else:
        answer = f"ready: {counts['ok']} checks are ok" + (
            f", {counts['warn']} warn" if counts["warn"] else ""
        )
    text = [answer, ""]
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        text.append(f"{MARKS[finding.status]:4}  {finding.check:{width}}  {finding.found}")
        if finding.status != "ok":
            pad = " " * (width + 8)
            text += [f"{pad}{finding.why}", f"{pad}-> {finding.way_out}"]
    return text
