"""A prediction as text: answer first, then the trees, what binds, the rules, the formulas."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from advisor.options import value_text
from advisor.render import bold, folded, heading, percent, seconds, table, wrap
from advisor.sections import (
    assumption_section,
    binding_section,
    memory_section,
    numbers,
    placement_section,
    setting,
    time_section,
    violation_section,
)

if TYPE_CHECKING:
    from advisor.rules import Violation
    from costmodel.plan import Plan
    from costmodel.prediction import Prediction


def prediction_lines(
    prediction: Prediction,
    found: list[Violation],
    notes: list[str],
    formulas: bool = False,
    way_out: str = "",
    gpus: int = 0,
) -> list[str]:
    """Everything about one plan. way_out: what to do where it does not fit, "" where it does; gpus: as in `setting`."""
    errors = [violation for violation in found if violation.severity == "ERROR"]
    others = [violation for violation in found if violation.severity != "ERROR"]
    lines = [bold(prediction.plan.describe()), wrap(setting(prediction, gpus))]
    if errors:
        lines += violation_section(errors, "This plan cannot run")
        lines.append(heading("If it ran"))
    else:
        lines.append("")
    lines += numbers(prediction)
    if way_out:
        lines.append(wrap(f"{'way out':<10} {way_out}", "  ", " " * 13))
    lines += settings_lines(prediction.plan)
    lines += time_section(prediction)
    lines += memory_section(prediction)
    lines += binding_section(prediction)
    lines += placement_section(prediction)
    lines += violation_section(others, "Worth knowing")
    lines += assumption_section([*notes, *prediction.assumptions])
    if formulas:
        lines += formula_section(prediction)
    return lines


def settings_lines(plan: Plan) -> list[str]:
    """What the plan carries without a predicted cost; nothing when it carries nothing."""
    if not plan.settings:
        return []
    text = value_text(dict(plan.settings))
    return [wrap(f"settings   {text} (carried; no prediction changes with them)", "  ", " " * 13)]


def formula_section(prediction: Prediction) -> list[str]:
    """Every entry of the ledger with this plan's numbers put in, in order of definition."""
    from costmodel.formulas import all_formulas, explain_entry

    lines = [heading("Formulas, in order of definition; times in s, sizes in byte")]
    for entry in all_formulas(prediction.features):
        lines += ["", *map(folded, explain_entry(prediction, entry["name"]))]
    return lines


def formula_records(prediction: Prediction) -> list[dict[str, Any]]:
    """The same as plain values: name, unit, expression, value, formula.

    After the step, which is the closed form, comes what simulating its pipeline changes, of no expression.
    """
    from costmodel.formulas import all_formulas
    from costmodel.simulated_pipeline import CORRECTION

    records: list[dict[str, Any]] = [
        {
            "name": entry["name"],
            "title": prediction.platform.told(entry["title"]),
            "unit": entry["unit"],
            "expression": entry["expression"],
            "value": prediction.behind(entry["name"])[entry["name"]],
            "formula": entry["formula"],
        }
        for entry in all_formulas(prediction.features)
    ]
    step = next(at for at, each in enumerate(records) if each["name"] == prediction.time.name)
    simulated = [
        {
            "name": part.name,
            "title": part.title,
            "unit": part.unit,
            "expression": "",
            "value": part.value,
            "formula": part.formula,
        }
        for part in prediction.time.parts
        if part.name == CORRECTION
    ]
    return records[: step + 1] + simulated + records[step + 1 :]


def resource_lines(prediction: Prediction, wanted: str) -> list[str]:
    """The terms that a line of "What binds" sums, with their times; nothing where that is no such line."""
    from costmodel.prediction import RESOURCES

    resource = next((name for name in RESOURCES if name.lower() == wanted), "")
    if not resource:
        return []
    found = [leaf for leaf in prediction.time.leaves() if leaf.name in RESOURCES[resource] and leaf.value]
    whole = sum(leaf.value for leaf in found)
    rows = [(leaf.name, seconds(leaf.value), leaf.title) for leaf in found]
    share = percent(whole / prediction.step_time_s)
    return [
        f"{resource}: {seconds(whole)}, {share} of the step, as terms of these names; --term NAME explains one.",
        *table(["term", "time", "what"], rows, "lrl"),
    ]


def term_lines(prediction: Prediction, name: str) -> list[str]:
    """One entry, by name or title, or those of a resource. ValueError with the nearest names when there is none."""
    from costmodel.formulas import all_formulas, correction_lines, explain_entry
    from costmodel.simulated_pipeline import CORRECTION, CORRECTION_TITLE

    told = prediction.platform.told
    entries = [entry | {"title": told(entry["title"])} for entry in all_formulas(prediction.features)]
    wanted = name.strip().lower()
    if wanted in (CORRECTION, CORRECTION_TITLE):
        if corrections := correction_lines(prediction):
            return [folded(line) for line in corrections]
        raise ValueError(
            f"--term {name!r} is what simulating stages changes, and this plan has one. Try --term step_time."
        )
    exact = [entry for entry in entries if entry["name"].lower() == wanted]
    matches = exact or [entry for entry in entries if entry["title"].lower() == wanted]
    if not matches and (lines := resource_lines(prediction, wanted)):
        return lines
    if not matches:
        words = {entry["title"].lower(): entry["name"] for entry in entries}
        words |= {entry["name"].lower(): entry["name"] for entry in entries}
        holding = sorted((each for each in words if wanted and wanted in each), key=len)
        close = holding or difflib.get_close_matches(wanted, words, n=3, cutoff=0.6)
        told = list(dict.fromkeys(words[each] for each in close))[:3]
        hint = f"Did you mean {', '.join(told)}? " if told else ""
        raise ValueError(
            f"--term {name!r} is not a term of the cost model. {hint}Any line of the breakdown is one, by its words or "
            "its name; `advisor predict --formulas` shows all."
        )
    lines: list[str] = []
    for entry in matches:
        lines += map(folded, explain_entry(prediction, entry["name"]))
    return lines
