"""What-if as text: the best single change first, then every change that moves something, fastest first."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.options import value_text
from advisor.render import bold, gib, heading, percent, seconds, table, width, wrap
from advisor.sections import fit_text, setting, violation_section
from advisor.whatif import HELPS_ABOVE, NUMERICS, PRICES, Change, Forbidden, Move, WhatIf
from advisor.whatif.neighbours import label
from costmodel.prediction import TIGHT_ABOVE

# Longer names of changes are cut, so that the table keeps to the page.
_WIDEST_LABEL = 38


def what_if_lines(result: WhatIf, everything: bool = False) -> list[str]:
    """The page of `whatif`. everything: also what rules forbid, each with its reason."""
    base = result.base
    fitting = [change for change in result.movers if change.fits]
    too_large = [change for change in result.movers if not change.fits]
    lines = [bold(wrap(answer(result)))]
    lines += [wrap(line) for line in (*_same_numerics(result), *_given_up(result))]
    lines += ["", wrap(f"{base.plan.describe()}; {setting(base, result.gpus)}"), wrap(_now(result))]
    lines += violation_section(list(result.errors), "This plan cannot run")
    if fitting:
        lines += [heading("Changes that fit, fastest first"), *_table(fitting)]
    if too_large:
        lines += [heading("Changes that do not fit"), *_table(too_large)]
    lines += _notes(result.movers)
    if everything and result.forbidden:
        lines += [heading("Cannot be"), *_forbidden(result.forbidden)]
    return lines + _closing(result, everything)


def answer(result: WhatIf) -> str:
    """One line: the best single change that fits, or that none helps."""
    base, best = result.base, result.best()
    wrong = "cannot run" if result.errors else "" if base.fits else "does not fit"
    if best is None and len(result.errors) == 1:  # its way out may be another number, or no knob's
        return f"This plan cannot run. {result.errors[0].way_out}"
    if best is None and wrong:
        return f"This plan {wrong}, and no single change mends it."
    if best is None and any(change.fits and change.share < -HELPS_ABOVE for change in result.movers):
        return "No single change makes this plan faster whose time is to be believed and whose memory leaves room."
    if best is None:
        return "No single change that fits makes this plan faster."
    change = f"{_long(best)}: {seconds(best.prediction.step_time_s)}"
    amount = _signed_gib(best.delta_memory)
    memory = f"{amount} of memory" if amount != "0" else "memory unchanged"
    if wrong:
        return f"This plan {wrong}; the fastest single change that mends it is {change}, {memory}."
    faster = percent(-best.share)
    return f"Best single change: {change}, {faster} less than {seconds(base.step_time_s)}, {memory}."


def _same_numerics(result: WhatIf) -> list[str]:
    """The best change that leaves the arithmetic alone, where the best does not."""
    best = result.best()
    if best is None or best.neighbour.knob not in NUMERICS:
        return []
    same = result.best(numerics=False)
    if same is None:
        return ["It changes the arithmetic; no change that keeps it helps."]
    return [
        f"It changes the arithmetic. Best that keeps it: {_long(same)}: {seconds(same.prediction.step_time_s)}, "
        f"{100 * same.share:+.1f} %."
    ]


def _given_up(result: WhatIf) -> list[str]:
    """What the best change gives up for its gain, a sentence each."""
    best = result.best()
    return [f"Then {note.text}." for note in best.notes if note.id in PRICES] if best else []


def _now(result: WhatIf) -> str:
    return f"step time {seconds(result.base.step_time_s)}, memory {fit_text(result.base)}"


def _long(change: Change) -> str:
    follows = ", ".join(f"{name} {value_text(value)}" for name, value in change.neighbour.follows.items())
    return label(change.neighbour) + (f" (with {follows})" if follows else "")


def _table(changes: Sequence[Change]) -> list[str]:
    rows = [
        (
            _cut(label(change.neighbour), _WIDEST_LABEL),
            _signed_seconds(change.delta_time),
            _signed_percent(change.share) + "?" * bool(change.doubt),
            _signed_gib(change.delta_memory) + ("!" if change.fits and change.prediction.tight else ""),
            _moved(change),
        )
        for change in changes
    ]
    lines = table(["change", "step", "", "memory", "moved most"], rows, "lrrrl")
    if any(change.fits and change.prediction.tight for change in changes):
        lines += [
            wrap(
                f"! fits, but above {percent(TIGHT_ABOVE, 0)} of the device, where the allocator stalls", "  "
            )
        ]
    if any(change.doubt for change in changes):
        lines.append("  ? not to be believed: Worth knowing says why")
    return lines


def _moved(change: Change) -> str:
    return "; ".join(_move(move) for move in (change.moved, change.drove) if move)


def _move(move: Move) -> str:
    title = move.title
    for ending in (", exposed", " on the slowest stage", ", simulated less closed form"):
        title = title.removesuffix(ending)
    return f"{title} {_signed_seconds(move.delta) if move.unit == 's' else _signed_gib(move.delta)}"


def _signed_percent(share: float) -> str:
    """A change as percent; below a twentieth of one, which would read as a signed zero, by its bound."""
    if abs(share) < 5e-4:
        return f"{'+' if share > 0 else '-'}<0.1 %" if abs(share) > 1e-9 else ""
    return f"{100 * share:+.1f} %"


def _signed_seconds(value: float) -> str:
    if abs(value) < 5e-8:
        return "0"
    return ("+" if value > 0 else "-") + seconds(abs(value))


def _signed_gib(value: float) -> str:
    if abs(value) < 2**20 / 20:
        return "0"
    return ("+" if value > 0 else "-") + gib(abs(value))


def _notes(changes: Sequence[Change]) -> list[str]:
    """What the framework does with a change, each rule once with the changes that it is about."""
    about: dict[str, tuple[str, list[str]]] = {}
    for change in changes:
        for note in change.notes:
            text = f"{note.severity} {note.text} [{note.id}]"
            about.setdefault(note.id, (text, []))[1].append(label(change.neighbour))
        if change.doubt and change.doubt not in {note.text for note in change.notes}:
            text = f"its time is not to be believed: {change.doubt}"
            about.setdefault(change.doubt, (text, []))[1].append(label(change.neighbour))
    if not about:
        return []
    lines = [heading("Worth knowing")]
    for text, labels in about.values():
        lines.append(wrap(f"{', '.join(labels)}: {text}", "  - ", "    "))
    return lines


def _forbidden(forbidden: Sequence[Forbidden]) -> list[str]:
    rows = [
        (_cut(label(each.neighbour), _WIDEST_LABEL), each.reason + (f" [{each.rule}]" if each.rule else ""))
        for each in forbidden
    ]
    return table(["change", "why not"], rows, "ll")


def _closing(result: WhatIf, everything: bool) -> list[str]:
    lines = [""]
    if result.still:
        lines.append(wrap(f"No effect on this plan: {', '.join(result.still)}", "", "  "))
    stuck = [name for name in result.stuck if name != "dp"]
    if result.errors and not result.changes:
        lines.append("Until then no value of another knob is legal.")
    elif stuck:
        lines.append(wrap(f"No other value is legal here: {', '.join(stuck)}", "", "  "))
    if "dp" in result.stuck and not any("dp" in error.knobs for error in result.errors):
        lines.append("dp follows from the GPUs and the other sizes.")
    if result.forbidden and not everything:
        number = len(result.forbidden)
        many = "1 more change is" if number == 1 else f"{number} more changes are"
        lines.append(f"{many} forbidden by rules; --all shows which, and why.")
    return lines


def _cut(text: str, room: int) -> str:
    room = min(room, width() // 2)
    return text if len(text) <= room else text[: room - 3] + "..."
