"""Other numbers of GPUs in words, for the text and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.counts import MOST_GPUS, Count
from advisor.render import count, seconds
from advisor.sections import training_cost

if TYPE_CHECKING:
    from advisor.explain import Explanation


def count_notes(explanation: Explanation) -> list[tuple[str, str]]:
    """Label and sentence: what fewer GPUs would do where they do more, and how many keep to the deadline."""
    fewer, days = explanation.fewer, explanation.days
    own = Count(explanation.best) if explanation.best else None
    notes = []
    if fewer and own:
        times = fewer.rate / own.rate
        notes.append(
            ("fewer GPUs", f"{fewer.gpus:,} of them do {times:.2f} times the work: {on_count(fewer)}")
        )
    if days:
        notes.append(("deadline", _deadline(explanation, own, days)))
    return notes


def _deadline(explanation: Explanation, own: Count | None, days: float) -> str:
    found, tokens = explanation.in_time, explanation.request.tokens
    assert tokens is not None
    time = "1 day" if days == 1 else f"{days:g} days"
    if found is None:
        none = f"no number of GPUs that was tried trains {count(tokens)} tokens in {time}"
        if own is None:
            return none
        fewest = tokens / (own.rate / own.gpus * MOST_GPUS) / 86400
        these = f"{'these' if own.gpus > 1 else 'this'} {_gpus(own)}"
        return f"{none}: at the pace of {these} even {MOST_GPUS:,} would need {fewest:,.2g} days"
    gpus, there = _gpus(found), on_count(found)
    if own is None:
        text = f"of those tried, {gpus} are the fewest that hold a plan and keep to {time}: {there}"
    elif own.rate < tokens / (days * 86400):
        text = f"{time} {'takes' if days == 1 else 'take'} {gpus}, the least number tried that is quick enough: {there}"
    else:
        these = f"these {_gpus(own)} keep" if own.gpus > 1 else "this GPU keeps"
        text = f"{these} to {time}"
        if found.gpus < own.gpus:
            text += f", and the least number tried that does is {gpus}: {there}"
        elif own.gpus > 1:
            text += ", and no fewer were found that do"
    known = found.best.prediction
    cost = training_cost(known, tokens)
    needed = cost["hours"] / 24
    low, high = (needed * end / known.step_time_s for end in (known.interval_low, known.interval_high))
    late = ", the slow end too late" if high > days else ""
    needs = "They need" if found.gpus > 1 else "It needs"
    price = f", ${cost['usd']:,.0f}" if "usd" in cost else ""
    return (
        f"{text}. {needs} {needed:,.1f} days ({low:,.1f} to {high:,.1f}{late}), restarts not counted{price}"
    )


def _gpus(found: Count) -> str:
    return f"{found.gpus:,} GPU{'s' * (found.gpus > 1)}"


def on_count(found: Count) -> str:
    """The plan of another number of GPUs, and how to ask for it."""
    known = found.best.prediction
    batch = known.workload.global_batch
    return (
        f"{found.best.plan.describe()}, {seconds(known.step_time_s)} a step of {batch:,} sequences; "
        f"--gpus {found.gpus} --global-batch {batch} explains it"
    )
