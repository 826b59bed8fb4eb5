"""A dry run as text: whether both sides agree, then each stage term by term, then why terms differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.render import bold, dim, heading, wrap

if TYPE_CHECKING:
    from advisor.case import Case
    from executor.dryrun import DryRun, StageResult
    from executor.dryrun_terms import Term

SECTIONS = {
    "flops": "FLOPs of products and attention",
    "messages": "Messages [byte]",
    "parameters": "Parameters",
    "state": "Parameters, gradients and optimizer in memory [byte]",
    "saved": "Activations of one micro-batch [byte]",
}
# From here on digits stand without separators, so that two numbers and a name fit a line of 80 columns.
CROWDED = 1e15
NAME, NUMBER = 31, 19
# Differences that the first lines name.
TOLD = 3


def dryrun_lines(result: DryRun, case: Case) -> list[str]:
    """Answer first, then the stages, then reasons and notes."""
    lines = [
        bold(headline(result)),
        *where_it_differs(result),
        wrap(
            f"{case.model.name}, {case.plan.describe()}, {case.plan.world:,} ranks, traced with Megatron-Core "
            f"{result.megatron_core}"
        ),
    ]
    reasons = list(dict.fromkeys(term.reason for term in result.documented))
    for stage in result.stages:
        lines += stage_lines(stage, case.plan.pp, reasons)
    if reasons:
        lines.append(heading("Documented differences"))
        lines += [wrap(f"[{index}] {reason}", "  ", "      ") for index, reason in enumerate(reasons, 1)]
    notes = dict.fromkeys(note for stage in result.stages for note in stage.notes)
    if notes or case.notes:
        lines.append(heading("Counted otherwise than the plan says, or taken for granted"))
        lines += [wrap(note, "  - ", "    ") for note in (*case.notes, *notes)]
    return lines


def headline(result: DryRun) -> str:
    """Whether both agree."""
    word = "differs" if result.differing else "agrees"
    known = len([term for term in result.documented if not term.tolerance])
    told = f", {known} with a documented difference" if known else ""
    saved = f"saved activations within {100 * result.worst_saved:.1f} %"
    if len(result.documented) > known:
        saved += " (documented)"
    return wrap(f"{word}: {result.num_equal} of {len(result.exact)} exact amounts equal{told}, {saved}")


def where_it_differs(result: DryRun) -> list[str]:
    """Which amounts differ without a known reason, before a reader looks through all stages for them."""
    found = [
        f"{SECTIONS[term.section].partition(' [')[0]}, {term.name}, on stage {stage.stage} ({_share(term)})"
        for stage in result.stages
        for term in stage.terms
        if term in result.differing
    ]
    if not found:
        return []
    more = f"; and {len(found) - TOLD} more" if len(found) > TOLD else ""
    return [
        wrap(
            f"without a known reason: {'; '.join(found[:TOLD])}{more}. Predictions of this plan rest on our amounts: "
            "a bug of ours, and worth a report"
        )
    ]


def _share(term: Term) -> str:
    """How far the prediction lies from what was counted."""
    apart = 100 * term.difference
    if apart == float("inf"):
        return "only the model has it"
    return f"{apart:+.3g} %" + f", {100 * term.tolerance:g} % allowed" * bool(term.tolerance)


def stage_lines(stage: StageResult, pp: int, reasons: Sequence[str]) -> list[str]:
    """One stage: its terms by section, what was dispatched and how long it took."""
    count = stage.predicted.num_microbatches
    several = f"{count} micro-batches" if count > 1 else "1 micro-batch"
    lines = [heading(f"Stage {stage.stage} of {pp}, {several}, traced in {stage.seconds:.1f} s")]
    lines.append(dim(f"  {'':{NAME}}{'predicted':>{NUMBER}}  {'counted':>{NUMBER}}"))
    for section, title in SECTIONS.items():
        terms = [term for term in stage.terms if term.section == section]
        if terms:
            lines.append(f"  {title}")
            lines += [line for term in terms for line in term_lines(term, reasons)]
    return [*lines, *_counted_only(stage)]


def term_lines(term: Term, reasons: Sequence[str]) -> list[str]:
    """A term with its verdict; one that differs has a second line."""
    name = f"  {term.name}".ljust(NAME)
    ours, theirs = number(term.predicted), number(term.counted)
    line = f"  {name}{ours:>{NUMBER}}  {theirs:>{NUMBER}}"
    if term.predicted == term.counted:
        return [f"{line}  equal"]
    apart = 100 * term.difference
    share = _share(replace(term, tolerance=0.0))
    if term.verdict == "within":
        return [f"{line}  {apart:+.1f}%"]
    if term.verdict == "documented":
        return [f"{line}  known", f"      known [{reasons.index(term.reason) + 1}]: {share}"]
    return [line, f"      DIFFERS: {share}"]


def _counted_only(stage: StageResult) -> Iterable[str]:
    """What has no exact formula: peak of activations and dispatched operations."""
    counted, predicted = stage.counted, stage.predicted
    found = []
    if counted.peak and predicted.peak:
        found.append(
            f"activations at most [byte]: {number(predicted.peak)} predicted, {number(counted.peak)} counted"
        )
        # As in the rows above: by how much the model's is more.
        apart = f"{100 * (predicted.peak / counted.peak - 1):+.1f} %"
        found.append(f"  {apart}, no verdict: no exact formula, loss as of uncompiled operations")
    elif counted.peak:
        found.append(f"activations at most [byte]: {number(counted.peak)} counted")
    if counted.operations:
        parts = ", ".join(f"{number(size)} {name}" for name, size in counted.operations.items())
        found.append(f"operations dispatched: {parts}")
    return [wrap(line.lstrip(), "    " if line.startswith(" ") else "  ", "    ") for line in found]


def number(value: float) -> str:
    """All digits of an amount."""
    if value == int(value):
        return f"{int(value):,}" if abs(value) < CROWDED else str(int(value))
    return f"{value:,.1f}"
