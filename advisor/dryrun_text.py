"""A dry run as text: whether both sides agree, then each stage term by term, then why terms differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from advisor.render import bold, heading, table, wrap

if TYPE_CHECKING:
    from advisor.case import Case
    from executor.dryrun import DryRun, StageResult
    from executor.dryrun_terms import Term

SECTIONS = {
    "flops": "products and attention [FLOP]",
    "messages": "messages [byte]",
    "parameters": "parameters [1]",
    "state": "memory of parameters, gradients, optimizer [byte]",
    "saved": "activations of one micro-batch [byte]",
}
# From here on digits stand without separators, so that two numbers and a name fit a line.
CROWDED = 1e17


def dryrun_lines(result: DryRun, case: Case) -> list[str]:
    """Answer first, then the stages, then reasons and notes."""
    lines = [
        bold(headline(result)),
        wrap(f"{case.model.name}, {case.plan.describe()}, {case.plan.world:,} ranks"),
    ]
    for stage in result.stages:
        lines += stage_lines(stage, case.plan.pp)
    reasons = dict.fromkeys(term.reason for term in result.documented)
    if reasons:
        lines.append(heading("Documented differences"))
        lines += [wrap(f"[{index}] {reason}", "  ", "      ") for index, reason in enumerate(reasons, 1)]
    notes = dict.fromkeys(note for stage in result.stages for note in stage.notes)
    if notes or case.notes:
        lines.append(heading("Counted otherwise than the plan says, or taken for granted"))
        lines += [wrap(note, "  - ", "    ") for note in (*case.notes, *notes)]
    return lines


def headline(result: DryRun) -> str:
    """Whether both agree, in one line."""
    word = "differs" if result.differing else "agrees"
    known = f", {len(result.documented)} with a documented difference" if result.documented else ""
    saved = f"saved activations within {100 * result.worst_saved:.1f} %"
    return f"{word}: {result.num_equal} of {len(result.exact)} exact amounts equal{known}, {saved}"


def stage_lines(stage: StageResult, pp: int) -> list[str]:
    """One stage: a table of its terms by section, with what was dispatched and how long it took."""
    count = stage.predicted.num_microbatches
    several = f"{count} micro-batches" if count > 1 else "1 micro-batch"
    lines = [heading(f"Stage {stage.stage} of {pp}, {several}, traced in {stage.seconds:.1f} s")]
    rows: list[tuple[str, str, str, str]] = []
    for section, title in SECTIONS.items():
        terms = [term for term in stage.terms if term.section == section]
        if terms:
            rows.append((title, "", "", ""))
            rows += [
                (f"  {term.name}", number(term.predicted), number(term.counted), verdict(term))
                for term in terms
            ]
    lines += table(("", "predicted", "counted", "difference"), rows, "lrrl")
    return lines + _counted_only(stage)


def _counted_only(stage: StageResult) -> Iterable[str]:
    """What has no exact formula: peak of activations and dispatched operations."""
    counted, predicted = stage.counted, stage.predicted
    found = []
    if counted.peak:
        found.append(
            f"activations at their peak: {number(predicted.peak)} predicted, {number(counted.peak)} counted"
        )
    if counted.operations:
        parts = ", ".join(f"{number(size)} {name}" for name, size in counted.operations.items())
        found.append(f"operations dispatched: {parts}")
    return [wrap(line, "  ", "    ") for line in found]


def number(value: float) -> str:
    """All digits of an amount."""
    if value == int(value):
        return f"{int(value):,}" if abs(value) < CROWDED else str(int(value))
    return f"{value:,.1f}"


def verdict(term: Term) -> str:
    """equal, or by how much the prediction is off and whether that is known."""
    if term.predicted == term.counted:
        return "equal"
    apart = term.difference
    share = "not counted" if apart == float("inf") else f"{100 * apart:+.3g} %"
    words = {"documented": " known", "differs": " DIFFERS", "within": ""}
    return share + words[term.verdict]
