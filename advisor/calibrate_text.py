"""A calibration as text and as plain values."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from advisor.render import heading, percent, seconds, table, wrap

if TYPE_CHECKING:
    from executor.calibrate import Calibration

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Quantities of a profile's tables, with their dotted keys."""
    for name, entry in document.items():
        key = f"{path}.{name}" if path else name
        if isinstance(entry, Mapping) and "value" in entry:
            yield key, entry
        elif isinstance(entry, Mapping):
            yield from leaves(entry, key)


def calibration_lines(found: Calibration) -> list[str]:
    """Answer first: the profile and what it tells of the runs; then constants; then warnings."""
    from executor.calibrate import quality
    from executor.calibrate_fit import ENOUGH_RUNS

    lines = [f"profile: {found.path}"]
    if found.older is not None:
        lines.append(wrap(f"replaced the one that was there, which is kept as {found.older}"))
    if found.outcome is not None and found.outcome.before:
        before, after = quality(found.outcome)
        runs = f"{len(found.runs)} runs" if len(found.runs) > 1 else "run"
        told = (
            f"steps of the {runs} that it learned from are told within {percent(after, 0)} "
            f"(median; {percent(before, 0)} by kernels alone)"
        )
        lines.append(wrap(told))
        if not found.outcome.apart:
            kept = "evidence" in found.document.get("calibration", {})
            lines.append(
                wrap(
                    f"how well it tells other runs is open: that takes {ENOUGH_RUNS} runs that differ in model, batch "
                    "or plan, so intervals of predictions on this profile are those of "
                    + ("the profile that it goes on from" if kept else "published runs")
                )
            )
        if found.outcome.apart:
            apart, width = found.outcome.median(found.outcome.apart), math.expm1(found.outcome.half_width)
            told = (
                f"each told without itself: within {percent(apart, 0)} (median); nine of ten expected within "
                f"{percent(width, 0)}, the interval of predictions on this profile"
            )
            lines.append(wrap(told))
        rows = learned(found)
        if rows:
            lines.append(heading("Learned from runs"))
            lines += table(["constant", "before", "after", "uncertainty", "runs", "meaning"], rows, "lrrrrl")
        open_ = [each.constant.name for each in found.outcome.learned if not each.taught]
        if open_:
            lines.append(wrap(f"  as uncertain as before, so not written: {', '.join(open_)}", "", "  "))
    measured = [
        [key, shown(entry["value"], entry["unit"]), percent(entry["residual"], 0)]
        for key, entry in leaves(found.document.get("calibration", {}))
        if entry["kind"] == "measured" and entry.get("residual") and "in context" not in entry["source"]
    ]
    if measured:
        lines.append(heading("Measured alone, with the scatter about its formula"))
        lines += table(["constant", "value", "scatter"], measured, "lrr")
        lines.append(
            wrap(
                "  without a unit: shares of the machine's best rate (gemm, attention) and of its memory bandwidth "
                "(memory)",
                "",
                "  ",
            )
        )
    lines += [wrap(f"warning: {warning}", "  ", "    ") for warning in found.warnings]
    return [*lines, "", f"Use it: advisor predict ... --profile {shlex.quote(str(found.path))}"]


def shown(value: float, unit: str) -> str:
    """A number with its unit, if it has one."""
    if unit in TIMES:
        return seconds(value * TIMES[unit])
    return f"{value:.4g}" if unit == "1" else f"{value:.4g} {unit}"


def learned(found: Calibration) -> list[list[str]]:
    """Rows of the constants that runs taught, as they are written."""
    from executor.calibrate_fit import meaning

    assert found.outcome is not None
    return [
        [
            each.constant.name,
            shown(each.before / each.constant.per, each.constant.unit),
            shown(each.after / each.constant.per, each.constant.unit),
            percent(each.error, 0),
            str(each.runs),
            meaning(each.constant),
        ]
        for each in found.outcome.learned
        if each.taught
    ]


def to_json(found: Calibration) -> dict[str, Any]:
    """The calibration as plain values."""
    outcome = found.outcome
    return {
        "profile": str(found.path),
        "older": str(found.older) if found.older else None,
        "constants": {
            key: {name: str(value) if name == "read_on" else value for name, value in entry.items()}
            for key, entry in leaves(found.document.get("calibration", {}))
        },
        "learned": [
            {
                "name": each.constant.name,
                "before": each.before,
                "after": each.after,
                "log_error": each.error,
                "runs": each.runs,
                "written": each.taught,
            }
            for each in (outcome.learned if outcome else ())
        ],
        "runs": [
            {"name": run.name, "seconds": dict(run.seconds), "spread": run.spread, "busy": run.busy}
            for run in found.runs
        ],
        "log_errors_before": dict(outcome.before) if outcome else {},
        "log_errors_after": dict(outcome.after) if outcome else {},
        "log_errors_without_itself": dict(outcome.apart) if outcome else {},
        "warnings": list(found.warnings),
    }
