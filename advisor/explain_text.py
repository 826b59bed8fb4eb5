"""An explanation as text: the plan first, then where its time and memory go, then why it is the one."""

from __future__ import annotations

from advisor.alternatives import WhyNot, missing, shortfall
from advisor.counts_text import count_notes, on_count
from advisor.explain import Explanation
from advisor.options import as_pins, value_text
from advisor.outside import outside_lines
from advisor.render import bold, gib, heading, percent, seconds, table, wrap
from advisor.search import HOW_RANKED
from advisor.search.candidates import Candidate
from advisor.search.simplest import simpler_than_faster, toss_up
from advisor.sections import (
    ORDER_HELD,
    assumption_section,
    binding_section,
    cost_line,
    knob_table,
    knobs_to_set,
    memory_section,
    numbers,
    pace,
    placement_section,
    setting,
    time_section,
    violation_section,
)
from advisor.space.declared import declared_space
from advisor.space.text import ADDED_UP, counted, reasons

# Ways out of PERF rules name sizes and overlaps that the search has compared, which reads as if it had not.
PRICE = (
    "PERF is the price of the fastest plan found, or of the simplest as fast: the sizes, micro-batches, recompute and "
    f"overlaps that its lines name were searched, and none is faster by {percent(toss_up().below, 0)}. A larger "
    "--global-batch, and what Space searched leaves out, were not tried."
)


def price_of(explanation: Explanation) -> str:
    """What to say below the PERF rules of the best plan, "" where none is told or speed was not searched for."""
    told = any(each.severity == "PERF" for each in explanation.found)
    return PRICE if told and explanation.best and explanation.request.objective == "throughput" else ""


def explanation_lines(explanation: Explanation, formulas: bool = False) -> list[str]:
    """Everything, answer first."""
    if explanation.best is None:
        return [
            *_nothing_fits(explanation),
            *_space(explanation),
            *assumption_section(explanation.assumptions),
        ]
    prediction = explanation.best.prediction
    lines = [bold(prediction.plan.describe()), *map(wrap, explanation.not_there)]
    lines += [wrap(setting(prediction)), "", *numbers(prediction)]
    if prediction.plan.world < explanation.request.gpus:
        lines.append(
            f"  GPUs       {prediction.plan.world:,} of {explanation.request.gpus:,}: fewest GPU-hours a token"
        )
    if explanation.request.objective == "memory":
        lines.append(_aim(explanation))
    if explanation.cost is not None:
        lines.append(cost_line(explanation.cost))
    lines += _other_counts(explanation)
    changed = knobs_to_set(prediction) | dict(prediction.plan.settings)
    names = explanation.request.stack, prediction.cluster.gpu.vendor
    lines += [heading("Set these"), *knob_table(changed, *names)]
    lines += violation_section(explanation.found, "Worth knowing")
    if price := price_of(explanation):
        lines.append(wrap(price, "  "))
    for alternative in explanation.alternatives:
        lines += _alternative(alternative)
    lines += time_section(prediction)
    lines += memory_section(prediction)
    if explanation.memory:
        lines += explanation.memory.lines()
    lines += binding_section(prediction)
    lines += placement_section(prediction)
    lines += _runners_up(explanation)
    lines += _path(explanation)
    lines += _space(explanation)
    lines += assumption_section(explanation.assumptions)
    if formulas:
        from advisor.predict_text import formula_section

        lines += formula_section(prediction)
    return lines


def _aim(explanation: Explanation) -> str:
    """What least memory was sought among."""
    slowdown = explanation.request.slowdown
    text = (
        f"least memory of plans {pace(slowdown)} the fastest that fits, which takes "
        f"{seconds(explanation.result.slowest / slowdown)} a step by the closed form; --slowdown bounds it otherwise"
    )
    return wrap(f"{'objective':<10} {text}", "  ", " " * 13)


def _other_counts(explanation: Explanation) -> list[str]:
    """What fewer GPUs would do where they do more, and how many keep to the deadline."""
    return [wrap(f"{label:<10} {text}", "  ", " " * 13) for label, text in count_notes(explanation)]


def _alternative(alternative: WhyNot) -> list[str]:
    asked = ", ".join(f"{name}={value_text(value)}" for name, value in alternative.pins.items())
    return [heading(f"Why not {asked}?"), wrap(f"{alternative.reason.rstrip('.')}.", "  ")]


def _runners_up(explanation: Explanation) -> list[str]:
    """Other layouts, what each loses by, how often such an order held, and to which term it is lost."""
    best, *others = explanation.result.plans
    simpler = simpler_than_faster(best, others)
    if not others:
        alone = explanation.request.top == 1
        none = "none told, as of --top 1." if alone else "none: no other layout fits."
        return [heading("Runners-up"), f"  {none}", *([wrap(simpler, "  ")] if simpler else [])]
    rows = [
        (
            str(candidate.rank),
            seconds(candidate.step_time),
            percent(candidate.lost_by, signed=True),
            percent(candidate.order.share, 0) if candidate.order else "",
            gib(candidate.peak_memory),
            f"{candidate.plan.describe()}{_lost(explanation, candidate)}",
        )
        for candidate in others
    ]
    title = "Runners-up, the best of each other layout"
    lines = table(["", "step", "loses", "order held", "memory", "plan"], rows, "rrrrrl")
    notes = [ORDER_HELD] if any(each.order for each in others) else []
    notes += [simpler]
    return [heading(title), *lines, *(wrap(note, "  ") for note in notes if note)]


def _lost(explanation: Explanation, candidate: Candidate) -> str:
    if not candidate.lost_to_term:
        return ""
    memory = explanation.request.objective == "memory"
    amount = (gib if memory else seconds)(candidate.lost_amount)
    return f": {amount} to {candidate.lost_to_term}"


def _path(explanation: Explanation) -> list[str]:
    lines = [heading("Why: the path of the tuning guides, with the numbers of this case")]
    for number, step in enumerate(explanation.steps, 1):
        lines.append(wrap(f"{number}. {step.topic}: {step.text}", "  ", "     "))
    return lines


def _space(explanation: Explanation) -> list[str]:
    result = explanation.result
    verdict = f"No sampling: {HOW_RANKED}."
    if not result.plans:
        verdict = "No sampling: the model knows no plan of this space that fits."
    lines = [
        heading("Space searched"),
        wrap(f"{counted(result)} {verdict}", "  "),
    ]
    told = (*declared_space(explanation.shown.prediction.platform), *outside_lines(explanation.outside))
    lines += [wrap(text[0].upper() + text[1:] + ".", "  - ", "    ") for text in told]
    if result.rejected:
        rows = [(*row, as_pins(example)) for *row, example in reasons(result, 5)]
        lines += ["", *table(["dropped by", "combinations", "for example"], rows, "lrl")]
        lines.append(wrap(f"{ADDED_UP}.", "  "))
    return lines


def _nothing_fits(explanation: Explanation) -> list[str]:
    """The least bad plan, by how much it misses, and what would make it fit."""
    shown = explanation.shown
    prediction = shown.prediction
    lines = [
        bold(wrap(f"Nothing fits: the leanest plan misses by {missing(shown)}.")),
        wrap(setting(prediction)),
        "",
        wrap(f"{shortfall(shown)}.", "  "),
        heading("What would make it fit"),
    ]
    lines += [wrap(change, "  - ", "    ") for change in explanation.remedies]
    if explanation.fewer:
        lines.append(wrap(f"fewer GPUs, which divide better: {on_count(explanation.fewer)}", "  - ", "    "))
    if not explanation.remedies and not explanation.fewer:
        lines.append("  no single change: not more GPUs, a shorter sequence or a leaner optimizer")
    if explanation.days:
        (_, text), *_ = count_notes(explanation)
        gpus = explanation.request.gpus
        why = f"On {gpus:,} GPU{'s' * (gpus > 1)} nothing fits: {missing(shown)} are missing. "
        lines += [heading("Deadline"), wrap(f"{why}{text[0].upper()}{text[1:]}.", "  ")]
    return [*lines, *memory_section(prediction)]
