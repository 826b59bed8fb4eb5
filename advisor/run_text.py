"""The page of a run: predicted beside measured, bytes of state, exposed communication, and the receipt."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.resolve import Feature
    from executor.run import RunResult


# Of processors, where no allocator tells what tensors take; the size is that which docs/run.md has.
RESIDENT = (
    "on a processor memory is what a rank's process holds: up to 0.3 GiB more than the tensors predicted"
)


def page(result: RunResult, predicted: dict[str, Any]) -> str:
    """The comparison as text, answer first."""
    from advisor.render import heading, memory, seconds, table, wrap

    measured = result.measured
    ratio, interval = measured["step_time_s"] / predicted["step_time_s"], predicted["interval"]
    lines = [
        "",
        wrap(
            f"step {seconds(measured['step_time_s'])} measured, {seconds(predicted['step_time_s'])} predicted: "
            f"{ratio:.2f} times as long"
        ),
        wrap(
            f"predicted between {seconds(interval['low'])} and {seconds(interval['high'])}: {result.rows[0].verdict}"
        ),
        wrap(
            f"loss {measured['first_loss']:.3f} at the first step, {measured['last_loss']:.3f} at the last; "
            f"{_counted(measured['num_steps'], measured['spread'])}"
        )
        if measured["first_loss"] is not None
        else "no loss on these ranks",
        *_resolved(result),
        *_disturbed(result),
        heading("Predicted beside measured"),
    ]
    shown = {"s": seconds, "byte": memory, "tokens/s": lambda value: f"{value:,.0f}"}
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
    if measured.get("peak_memory_bytes") and not measured.get("peak_allocated_bytes"):
        lines.append(wrap(f"  {RESIDENT}", "", "  "))
    exposed = {name: spent for name, spent in measured["exposed"].items() if spent > 0}
    if exposed:
        lines += [heading("Exposed communication and waiting, by group")]
        lines += table(
            ["group", "measured"], [[name, seconds(spent)] for name, spent in exposed.items()], "lr"
        )
    if result.states:
        lines += [heading("Bytes of state"), *state_lines(result)]
    lines += [heading("Requested, resolved, observed"), *feature_lines(result.features)]
    lines += [wrap(f"warning: {warning}", "  ", "    ") for warning in result.warnings]
    return "\n".join([*lines, "", f"record: {result.record}"])


def _resolved(result: RunResult) -> list[str]:
    """That what is predicted here is less than the plan, where this machine lacks features of it."""
    from advisor.render import wrap

    number = sum(each.resolved != each.requested for each in result.features)
    if not number:
        return []
    them = "one feature of the plan runs" if number == 1 else f"{number} features of the plan run"
    return [wrap(f"{them} otherwise or not at all here (last table): the prediction is of what ran")]


def _counted(steps: int, spread: float) -> str:
    from advisor.render import percent

    if steps == 1:
        return "one step after the warm-up"
    return f"the {steps} steps after the warm-up scatter by {percent(spread, 1)}"


def _disturbed(result: RunResult) -> list[str]:
    """That other work held the cores, before a reader takes the times for the plan's; nothing on a quiet machine."""
    from advisor.render import percent, wrap
    from executor.summary import QUEUED

    measured = result.measured
    share = measured.get("queued_s", 0.0) / measured["step_time_s"]
    if share <= QUEUED:
        return []
    if cores := measured.get("shared_cores"):
        return [
            wrap(
                f"the ranks share {cores} cores: for {percent(share, 0)} of a step each waited for one, as it did when "
                "the machine was measured; phases are told by who held a core, the step as a whole compares"
            )
        ]
    return [
        wrap(
            f"for {percent(share, 0)} of a step ranks waited for a core that other work or other ranks held: these "
            f"times are longer than the plan's; `advisor diagnose {shlex.quote(str(result.record))}` "
            "says more"
        )
    ]


def state_lines(result: RunResult) -> list[str]:
    """One row a kind for each stage; all its ranks hold the same."""
    from advisor.render import table

    rows = []
    for stage in sorted({each.stage for each in result.states}):
        here = [each for each in result.states if each.stage == stage]
        ranks = len({each.rank for each in here})
        for kind in dict.fromkeys(each.kind for each in here):
            of_kind = [each for each in here if each.kind == kind]
            wrong = [each for each in of_kind if not each.equal]
            one = (wrong or of_kind)[0]
            verdict = (
                f"{len(wrong)} of {ranks} differ" if wrong else f"equal on {ranks} rank{'s' * (ranks > 1)}"
            )
            rows.append([str(stage), kind, f"{one.predicted:,}", f"{one.measured:,}", verdict])
    return table(["stage", "kind", "counted", "held", "verdict"], rows, "llrrl")


def feature_lines(features: list[Feature]) -> list[str]:
    """The receipt; features that are off, stay off and were not seen are left out."""
    from advisor.render import table

    off = (False, 0, (), "none", "")
    rows = [
        [one.name, plain(one.requested), plain(one.resolved), one.observed or "-", one.note]
        for one in features
        if one.requested not in off
        or one.resolved not in off
        or (one.observed and "again" not in one.observed)
    ]
    return table(["feature", "requested", "resolved", "observed", "why"], rows, "lllll")


def plain(value: Any) -> str:
    """A knob's value in words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(value) if isinstance(value, list | tuple) else str(value)


def to_json(result: RunResult, predicted: dict[str, Any]) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "plan": json.loads((result.record / "job.json").read_text())["plan"],
        "prediction": predicted,
        "measured": result.measured,
        "comparison": [row.to_dict() for row in result.rows],
        "state": [each.to_dict() for each in result.states],
        "features": [feature.to_dict() for feature in result.features],
        "warnings": result.warnings,
        "record": str(Path(result.record)),
    }
