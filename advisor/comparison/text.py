"""A comparison as text: the verdict, how sure it is, both sides, then every term by its difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from advisor.comparison import TERM_ERROR, Comparison, Line
from advisor.comparison.record import Side
from advisor.options import value_text
from advisor.render import bold, gib, gpus_text, heading, memory, percent, seconds, table, wrap
from advisor.sections import evidence_text
from executor.compare import Row

GIB = 2**30


def comparison_lines(found: Comparison) -> list[str]:
    """The page of `compare`."""
    lines = [bold(wrap(answer(found)))]
    lines += [
        wrap(text, "", "  ")
        for text in (
            *_other_work(found),
            *certainty(found),
            *_evidence(found),
            *_price(found),
            *_not_holding(found),
        )
    ]
    lines += ["", wrap(f"A  {_named(found.a)}", "", "   "), wrap(f"B  {_named(found.b)}", "", "   ")]
    lines += [heading("Side by side"), *_numbers(found)]
    if found.measured:
        lines += [heading(_measured_title(found)), *_measured(found.measured)]
    for name, side in (("A", found.a), ("B", found.b)):
        lines += [wrap(f"warning: {name}: {text}", "  ", "    ") for text in side.warnings]
        lines += [wrap(f"{name}: {text}", "  ", "    ") for text in side.notes]
    lines += _pairs("What differs beside the knobs", found.setting)
    lines += _pairs("Knobs that differ", found.knobs)
    if (
        found.a.measured
        and found.b.measured
        and not any(line.delta for line in (*found.terms, *found.memory))
    ):
        same = (
            "Both are predicted alike, term by term: nothing in the plans explains a difference. `advisor diagnose` "
            "tells what slows either run."
        )
        return [*lines, "", wrap(same)]
    title = "Time of one step" if found.same_work else "Seconds of one GPU for a million tokens"
    if found.a.measured or found.b.measured:
        title += ", predicted"
    lines += [heading(f"{title}, largest difference first"), *_terms(found)]
    lines += [heading("Memory of the worst rank"), *_table(_present(found.memory), lambda line: _gib)]
    return lines


def answer(found: Comparison) -> str:
    """One line: who is quicker, and by how much."""
    verdict = found.verdict
    if verdict.faster is None:
        same = "" if found.knobs or found.setting or found.a.measured or found.b.measured else ", as one plan"
        return f"A and B take the same time{same}: {_time(found, found.a)}."
    winner, loser = (found.a, found.b) if verdict.faster == "a" else (found.b, found.a)
    first, second = ("A", "B") if verdict.faster == "a" else ("B", "A")
    how = f"{percent(verdict.by)} faster than" if verdict.by < 1 else f"{1 + verdict.by:.2f} times as fast as"
    close = ", which is within the uncertainty" if verdict.close else ""
    return f"{first} is {how} {second}: {_time(found, winner)} against {_time(found, loser)}{close}."


def _time(found: Comparison, side: Side) -> str:
    known = " measured" if side.measured else " predicted" if found.a.measured or found.b.measured else ""
    if found.same_work:
        return f"{seconds(side.step_time)} a step{known}"
    return f"{side.tokens_per_second_per_gpu:,.0f} tokens/s/GPU{known}"


def _other_work(found: Comparison) -> list[str]:
    """Why tokens are compared and not steps, where the two do not train the same."""
    if found.same_work:
        return []
    one, other = found.a.predicted, found.b.predicted
    words = {"model": "model", "gpus": "number of GPUs", "workload": "batch or sequences"}
    differ = " and ".join(word for key, word in words.items() if one[key] != other[key])
    text = f"They differ in {differ}, so that tokens a second and GPU are compared, not steps."
    if one["model"] != other["model"]:
        text += " A token of another model is other work: this says which trains more of them, not which is better."
    return [text]


def certainty(found: Comparison) -> list[str]:
    """What the uncertainty of both sides leaves of the difference."""
    verdict = found.verdict
    if verdict.faster is None:
        return []
    overlap = "overlap" if verdict.intervals_overlap else "do not overlap"
    spans = ", ".join(f"{name} {_span(found, side)}" for name, side in (("A", found.a), ("B", found.b)))
    if found.a.measured and found.b.measured:
        single = [name for name, side in (("A", found.a), ("B", found.b)) if _one_step(side)]
        if single:
            which = f"{' and '.join(single)} measured one step{' each' * (len(single) > 1)}"
            return [f"{which}, of which no scatter is known: the order may be chance ({spans})."]
        return [f"The scatters of the measured steps {overlap} ({spans})."]
    if found.a.measured or found.b.measured:
        return [f"Predicted interval and scatter of the measured steps {overlap} ({spans})."]
    level = percent(found.a.predicted["interval"]["level"], 0)
    text = f"The {level} intervals {overlap} ({spans})"
    if not verdict.shared_errors:
        return [f"{text}; models or machines differ, so their errors do not cancel.", _decides(found)]
    held = (
        f" Of {verdict.order.pairs:,} pairs of published plans that are predicted about as far apart, "
        f"{percent(verdict.order.share, 0)} were measured in that order."
        if verdict.order
        else ""
    )
    return [
        f"{text}; plans of one model on one machine share most errors, so their order is surer than that.{held}",
        _decides(found),
    ]


def _decides(found: Comparison) -> str:
    """Which term decides, and how wrong it must be to turn the order."""
    verdict, line = found.verdict, found.verdict.deciding
    if line is None or not line.delta:
        return ""
    difference = found.time(found.b) - found.time(found.a)
    show, unit = _amounts(found), "" if found.same_work else f" {found.unit}"
    text = f"The largest part is {line.name}: {show(line.delta, True)} of {show(difference, True)}{unit}."
    winner = (verdict.faster or "").upper()
    if verdict.turns_at >= 1:
        return f"{text} {winner} is the faster one without it too."
    turns = f"If that difference is wrong by {percent(verdict.turns_at, 0)} or more, {winner} is not the faster one"
    limit = percent(TERM_ERROR, 0)
    reason = (
        f": too close to call, as single terms may err by {limit}" if verdict.turns_at < TERM_ERROR else ""
    )
    return f"{text} {turns}{reason}."


def _one_step(side: Side) -> bool:
    """Whether a run measured a single step."""
    return bool(side.measured) and side.measured.get("num_steps") == 1


def _span(found: Comparison, side: Side) -> str:
    low, high = found.interval(side)
    if found.same_work:
        return f"{seconds(low)} to {seconds(high)}"
    return f"{1e6 / high:,.0f} to {1e6 / low:,.0f} tokens/s/GPU"


def _evidence(found: Comparison) -> list[str]:
    """The published run nearest to each plan, once where both share it with its differences. Old records name none."""
    texts = {
        name: evidence_text(side.predicted["evidence"][0])
        for name, side in (("A", found.a), ("B", found.b))
        if not side.measured and side.predicted.get("evidence")
    }
    if len(texts) == 2 and texts["A"] == texts["B"]:
        return [f"A and B: {texts['A']}."]
    return [f"{name}: {text}." for name, text in texts.items()]


def _price(found: Comparison) -> list[str]:
    """What a token costs, where steps do not compare and both prices are on file."""
    cost = next((line for line in found.numbers if line.unit == "USD"), None)
    if found.same_work or cost is None or cost.a is None or cost.b is None:
        return []
    return [f"A billion tokens cost ${cost.a:,.2f} with A and ${cost.b:,.2f} with B."]


def _not_holding(found: Comparison) -> list[str]:
    lines = []
    for name, side in (("A", found.a), ("B", found.b)):
        memory = side.predicted["memory"]
        lines += [f"{name} cannot run: {error}" for error in side.errors]
        if not memory["fits"] and not side.measured:
            used = f"{memory['worst_rank_gib']:.1f} of {memory['device_gib']:.1f} GiB"
            lines.append(f"{name} DOES NOT FIT: {used} on the worst rank.")
    return lines


def _named(side: Side) -> str:
    from costmodel.plan import Plan

    known = side.predicted
    plan = Plan(**known["knobs"]).describe()
    run = ", a run" if side.measured else ""
    return f"{side.path}{run}: {known['model']}, {plan}, {gpus_text(known['gpus'])} of {known['cluster']}"


def _numbers(found: Comparison) -> list[str]:
    shown: dict[str, Callable[[float, bool], str]] = {
        "s": _seconds,
        "GiB": _gib,
        "1": lambda value, sign: f"{100 * value:+.1f} points" if sign else percent(value),
        "USD": lambda value, sign: (
            ("+" if sign and value > 0 else "-" if value < 0 else "") + f"${abs(value):,.2f}"
        ),
    }
    return _table(found.numbers, lambda line: shown.get(line.unit, _plain))


def _terms(found: Comparison) -> list[str]:
    whole = Line("step" if found.same_work else "all", found.unit, *_totals(found))
    show = _amounts(found)
    return _table([whole, *_present(found.terms)], lambda line: show)


def _present(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if line.a or line.b]


def _totals(found: Comparison) -> tuple[float, float]:
    a, b = (side.predicted["step_time_s"] * found.scale(side) for side in (found.a, found.b))
    return a, b


def _amounts(found: Comparison) -> Callable[[float, bool], str]:
    return _seconds if found.same_work else _plain


def _table(lines: Iterable[Line], show: Callable[[Line], Callable[[float, bool], str]]) -> list[str]:
    rows = []
    for line in lines:
        write = show(line)
        cells = ["-" if value is None else write(value, False) for value in (line.a, line.b)]
        rows.append([line.name, *cells, "" if line.delta is None else write(line.delta, True)])
    return table(["", "A", "B", "B minus A"], rows, "lrrr")


def _pairs(title: str, found: dict[str, tuple[Any, Any]]) -> list[str]:
    if not found:
        return []
    rows = [[name, *(_value(value) for value in pair)] for name, pair in found.items()]
    return [heading(title), *table(["", "A", "B"], rows, "lll")]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return "-" if value is None else value_text(value)


def _measured_title(found: Comparison) -> str:
    run, other = ("B", "A") if found.b.measured else ("A", "B")
    return f"Predicted {other if found.same_work else run} beside measured {run}"


def _measured(rows: list[Row]) -> list[str]:
    shown: dict[str, Callable[[float], str]] = {
        "s": seconds,
        "byte": memory,
        "tokens/s": lambda value: f"{value:,.0f}",
    }
    cells = [
        [
            row.name,
            shown[row.unit](row.predicted),
            shown[row.unit](row.measured),
            f"{row.ratio:.2f}" if row.predicted else "-",
            row.verdict,
        ]
        for row in rows
    ]
    return table(["quantity", "predicted", "measured", "ratio", "verdict"], cells, "lrrrl")


def _seconds(value: float, sign: bool) -> str:
    if abs(value) < 5e-9:
        return "0"
    return f"{'+' if sign and value > 0 else '-' if value < 0 else ''}{seconds(abs(value))}"


def _gib(value: float, sign: bool) -> str:
    if abs(value) < 5e-5:
        return "0"
    return f"{'+' if sign and value > 0 else '-' if value < 0 else ''}{gib(abs(value) * GIB)}"


def _plain(value: float, sign: bool) -> str:
    plus = "+" if sign else ""
    if abs(value) < 1:
        return f"{value:{plus}#.3g}" if value else "0"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 3
    return f"{value:{plus},.{digits}f}"
