"""The top of the page, readable without a script: the plan, its numbers, what to type, and why it is the one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.counts_text import count_notes
from advisor.explain_text import price_of
from advisor.names_there import name_there, names_shown
from advisor.options import value_text
from advisor.render import gib, percent, seconds
from advisor.report.markup import Markup, folded, join, section, table, tag
from advisor.report.subject import Subject
from advisor.search.simplest import simpler_than_faster, toss_up
from advisor.sections import (
    ORDER_HELD,
    SEVERITY_WORDS,
    cost_line,
    evidence_text,
    fit_text,
    knobs_to_set,
    pace,
    setting,
)
from costmodel.prediction import TIGHT_ABOVE, Prediction
from hardware_db.units import flop_rate


def answer(subject: Subject, data: dict[str, Any]) -> Markup:
    """Plan, verdict, four numbers, command."""
    prediction = subject.prediction
    return tag(
        "section",
        tag("p", setting(prediction, subject.gpus), class_="setting"),
        tag("h1", prediction.plan.describe(), id="answer-title"),
        verdict(subject),
        _numbers(prediction, data),
        *_notes(subject, data),
        _commands(subject),
        id="answer",
        class_="card answer",
        aria_labelledby="answer-title",
    )


def verdict(subject: Subject) -> Markup:
    """In a sentence: whether it runs, and how it stands among all plans."""
    errors = [each for each in subject.found if each.severity == "ERROR"]
    prediction, explanation = subject.prediction, subject.explanation
    if errors:
        words, mood = f"This plan cannot run: {errors[0].text}. {errors[0].way_out}", "bad"
    elif not prediction.fits:
        words, mood = f"This plan does not fit: {fit_text(prediction)}.", "bad"
        if explanation and not explanation.best and explanation.remedies:
            words += f" No plan fits here. What would: {'; '.join(explanation.remedies)}."
    elif explanation is None:
        words, mood = f"Fits. No search beside it: {subject.problem}", "warn"
    elif subject.best:
        goal = {"throughput": "fastest", "cost": "cheapest", "memory": "leanest"}[
            explanation.request.objective
        ]
        behind = explanation.result.plans[0].behind
        equal = f"The simplest within {percent(toss_up().below, 0)} of the" if behind else "The"
        fitting, legal = explanation.result.feasible, explanation.result.legal
        words = f"{equal} {goal} of {fitting:,} plans that fit, of {legal:,} legal."
        if explanation.request.objective == "memory":
            words += f" Among those {pace(explanation.request.slowdown)} the fastest."
        mood = "good"
    elif explanation.best is None:
        words, mood = (
            "Fits; no plan that a search tries does: what makes this one fit is not searched.",
            "good",
        )
    else:
        best = explanation.best
        ratio = prediction.step_time_s / best.step_time
        behind = f"{percent(ratio - 1)} slower than" if ratio > 1 else f"{percent(1 - ratio)} faster than"
        words = f"Fits; {behind} the best plan that a search finds, {best.plan.describe()}, {seconds(best.step_time)}."
        if best.behind and ratio < 1:
            close = percent(toss_up().below, 0)
            words += f" Plans within {close} count as equal, and that one is the simplest of them."
        mood = "good" if ratio < 1.02 else "warn"
    return tag("p", words, class_=f"verdict {mood}")


def _numbers(prediction: Prediction, data: dict[str, Any]) -> Markup:
    low, high = prediction.interval_low, prediction.interval_high
    level = percent(prediction.interval_level, 0)
    name, share = next(iter(data["bound"].items()))
    used = prediction.peak_memory_bytes / prediction.device_bytes
    mood = "bad" if not prediction.fits else "warn" if prediction.tight else "good"
    tiles = [
        _tile(
            "step time",
            seconds(prediction.step_time_s),
            f"{level} interval {seconds(low)} to {seconds(high)}",
            _interval(prediction),
        ),
        _tile("MFU", percent(prediction.mfu), f"of {prediction.mfu_peak}, recompute not counted"),
        _tile(
            "throughput",
            f"{prediction.tokens_per_second_per_gpu:,.0f}",
            f"tokens/s/GPU; {flop_rate(prediction.model_tflops_per_gpu * 1e12, 'model ')}/GPU",
        ),
        _tile("memory", gib(prediction.peak_memory_bytes), fit_text(prediction), _meter(used, mood)),
        _tile("bound by", name, f"{percent(share)} of the step waits for it"),
    ]
    return tag("dl", *tiles, class_="tiles")


def _notes(subject: Subject, data: dict[str, Any]) -> Iterator[Markup]:
    """Lines that are there only sometimes: what was asked for in vain, fewer GPUs, the cost of training, evidence."""
    explanation, world = subject.explanation, subject.prediction.plan.world
    if explanation and subject.best:
        yield from (tag("p", line) for line in explanation.not_there)
    if explanation and world < explanation.request.gpus:
        yield tag("p", f"{world:,} of {explanation.request.gpus:,} GPUs: fewest GPU-hours a token.")
    if subject.cost:
        told = " ".join(cost_line(subject.cost).split()[1:])
        yield tag("p", f"Training: {told}.")
    if explanation and (subject.best or not explanation.best):
        yield from (
            tag("p", f"{label[0].upper()}{label[1:]}: {text}.") for label, text in count_notes(explanation)
        )
    for run in data["prediction"]["evidence"][:1]:
        yield tag("p", f"Evidence: {evidence_text(run)}.", class_="note")


def _tile(label: str, value: str, note: str, extra: object = "") -> Markup:
    drawn = tag("dd", extra, class_="drawn") if extra else ""
    return tag(
        "div", tag("dt", label), tag("dd", value, class_="value"), drawn, tag("dd", note, class_="note")
    )


def _interval(prediction: Prediction) -> Markup:
    """A line from zero to a little above the interval, the interval thick on it, the prediction a mark."""
    most = 1.1 * prediction.interval_high
    left, right, mark = (
        f"{100 * value / most:.2f}%"
        for value in (prediction.interval_low, prediction.interval_high, prediction.step_time_s)
    )
    style = f"--left:{left};--right:{right};--mark:{mark}"
    return tag("span", tag("i"), tag("b"), class_="interval", style=style, aria_hidden="true")


def _meter(share: float, mood: str) -> Markup:
    style = f"--share:{100 * min(share, 1.0):.2f}%;--limit:{100 * TIGHT_ABOVE:.0f}%"
    return tag("span", tag("i", class_=mood), tag("b"), class_="meter", style=style, aria_hidden="true")


def _commands(subject: Subject) -> Markup:
    rows = [
        tag(
            "li",
            tag("code", command),
            tag(
                "button",
                "copy",
                type="button",
                class_="button copy",
                data_copy=command,
                aria_label="copy command",
            ),
            tag("span", what, class_="note"),
        )
        for command, what in subject.commands
    ]
    return tag("ul", *rows, class_="commands")


def why(subject: Subject) -> Markup:
    """Reasons in the order of the tuning guides, what the others lose, the knobs to set, what the rules say."""
    steps = [join([tag("dt", step.topic), tag("dd", step.text)]) for step in subject.steps]
    vendor = subject.prediction.cluster.gpu.vendor
    return section(
        "why",
        "Why this plan",
        _binds(subject.prediction),
        tag("h3", "The path of the tuning guides, with the numbers of this case"),
        tag("dl", *steps, class_="path"),
        *_why_not(subject),
        *_runners_up(subject),
        *_worth_knowing(subject),
        folded(
            f"Knobs to set, with their names in {names_shown(subject.stack, vendor)[0]}",
            _knobs(subject.prediction, subject.stack),
        ),
    )


def _binds(prediction: Prediction) -> Markup:
    from costmodel.prediction import resource_shares

    rows = [
        (name, percent(share), seconds(prediction.step_time_s * (1 - share)), f"{1 / (1 - share):.2f}x")
        for name, share in resource_shares(prediction.time).items()
        if 0.005 <= share < 0.995
    ]
    return table(
        ["the step waits for", "share of it", "step at best without", "gain"],
        rows[:6],
        "What binds",
        "lrrr",
    )


def _why_not(subject: Subject) -> Iterator[Markup]:
    for each in subject.explanation.alternatives if subject.explanation else ():
        asked = ", ".join(f"{name}={value_text(value)}" for name, value in each.pins.items())
        yield tag("h3", f"Why not {asked}?")
        yield tag("p", f"{each.reason.rstrip('.')}.")


def _runners_up(subject: Subject) -> Iterator[Markup]:
    explanation = subject.explanation
    if explanation is None or not explanation.result.plans:
        return
    memory = explanation.request.objective == "memory"
    rows = []
    for each in explanation.result.plans:
        lost = (gib if memory else seconds)(each.lost_amount)
        rows.append(
            (
                each.plan.describe(),
                seconds(each.step_time),
                percent(each.lost_by, signed=True) if each.rank > 1 else "",
                percent(each.order.share, 0) if each.order else "",
                gib(each.peak_memory),
                f"{lost} to {each.lost_to_term}" if each.lost_to_term else "",
            )
        )
    yield table(
        ["plan", "step", "loses", "order held", "memory", "most of it"],
        rows,
        "The best plan of each layout, by rank",
        "lrrrrl",
    )
    held = ORDER_HELD if any(each.order for each in explanation.result.plans) else ""
    best, *others = explanation.result.plans
    for note in (held, simpler_than_faster(best, others)):
        if note:
            yield tag("p", f"{note[0].upper()}{note[1:]}", class_="note")


def _worth_knowing(subject: Subject) -> Iterator[Markup]:
    if subject.found:
        yield tag("h3", "Worth knowing")
        rows = [
            tag(
                "li",
                tag("strong", f"{each.severity} ({SEVERITY_WORDS[each.severity]}) "),
                f"{each.text}. {each.way_out} ",
                tag("code", each.id),
            )
            for each in subject.found
        ]
        yield tag("ul", *rows)
        if subject.explanation and subject.best and (price := price_of(subject.explanation)):
            yield tag("p", price, class_="note")


def _knobs(prediction: Prediction, stack: str | None) -> Markup:
    vendor = prediction.cluster.gpu.vendor
    rows = [
        (tag("code", name), value_text(value), name_there(name, stack, vendor, value))
        for name, value in knobs_to_set(prediction).items()
    ]
    title, note = names_shown(stack, vendor)
    shown = table(["knob", "value", f"in {title}"], rows, "Knobs that are not at their default")
    return join([shown, tag("p", note)]) if note else shown
