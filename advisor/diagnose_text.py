"""A diagnosis as text: the answer, every finding with its evidence and way out, what was measured, what is unseen."""

from __future__ import annotations

from collections import defaultdict

from advisor.diagnosis import Diagnosed, examples, how_to_see
from advisor.measured.checks import COLD
from advisor.measured.run import Measured
from advisor.render import bold, heading, memory, percent, seconds, table, wrap
from advisor.whatif.neighbours import label
from costmodel.knobs import KNOBS, SETTINGS
from executor.diagnose import Finding

# Letters of a log's line that are quoted.
LONGEST = 200


def diagnosis_lines(found: Diagnosed, everything: bool = False) -> list[str]:
    """The page of `diagnose`."""
    lines = [bold(wrap(answer(found)))]
    for number, finding in enumerate(found.diagnosis.findings, 1):
        lines += _finding(found, number, finding)
    if sum(bool(each.ceiling) and each.rule.severity != "fault" for each in found.diagnosis.findings) > 1:
        lines += ["", wrap("Ceilings do not add up: findings may explain the same time.")]
    lines += [heading("Measured"), *measured_lines(found.measured)]
    lines += [wrap(f"warning: {text}", "  ", "    ") for text in found.measured.warnings]
    lines += [wrap(text, "  ", "    ") for text in found.measured.notes]
    lines += _unseen(found, everything)
    return lines


def answer(found: Diagnosed) -> str:
    """One line: what costs most, and at most how much; or that nothing stands out."""
    findings = found.diagnosis.findings
    if found.measured.apart and not (findings and findings[0].rule.severity == "fault"):
        return f"{found.measured.apart} Nothing is therefore inferred from the prediction: {found.measured.remedy}."
    judged = len(findings) + len(found.diagnosis.clear)
    total = judged + len(found.diagnosis.unseen)
    if not findings and found.measured.log is not None and found.measured.log.cold:
        return f"Too early to tell: {COLD}. Ask again after a few more steps."
    if not findings:
        return f"Nothing stands out: none of the {judged} symptoms that can be judged here, of {total}."
    first = findings[0]
    # What the prediction infers comes after that the measured step is not the predicted one.
    if not first.measured:
        first = next((each for each in findings if each.rule.severity == "rest"), first)
    if not first.measured and first.rule.severity != "rest":
        title = first.rule.title[0].lower() + first.rule.title[1:]
        return f"Nothing measured stands out; by the prediction {title}{_ceiling(found.measured, first)}."
    others = len(findings) - 1
    more = f"; {others} more finding{'s' * (others > 1)} below" if others else ""
    return f"{first.rule.title}{_ceiling(found.measured, first)}{more}."


def _ceiling(found: Measured, finding: Finding) -> str:
    """What a cure can win of a step; a fault is mended for other reasons than its time."""
    if not finding.ceiling or finding.rule.severity == "fault":
        return ""
    time = f"{seconds(finding.ceiling * found.step)} of {seconds(found.step)}"
    return f": at most {percent(finding.ceiling)} of the step ({time})"


def _finding(found: Diagnosed, number: int, finding: Finding) -> list[str]:
    rule = finding.rule
    known = {"fault": "fault", "risk": "risk"}.get(rule.severity, "")
    ceiling = f"at most {percent(finding.ceiling)}" if finding.ceiling else known or "no ceiling known"
    ceiling = "fault" if rule.severity == "fault" else ceiling
    lines = [heading(f"{number}. {rule.title} ({ceiling})")]
    kind = "Evidence" if finding.measured or rule.severity == "rest" else "Inferred, not measured"
    lines.append(wrap(f"{kind}: {finding.evidence}", "  ", "    "))
    lines += [wrap(f"Line: {line[:LONGEST]}", "  ", "    ") for line in examples(found.measured, finding)[:3]]
    lines.append(wrap(f"Cause: {rule.cause}", "  ", "    "))
    lines += [wrap(f"Do: {rule.do}", "  ", "    ")] * bool(rule.do)
    knobs = [name for name in rule.knobs if name in KNOBS or name in SETTINGS]
    if knobs:
        lines.append(wrap(f"Knobs: {', '.join(_knob(name) for name in knobs)}", "  ", "    "))
    change = found.expected.get(rule.id)
    if change is not None:
        lines.append(
            wrap(
                f"The model expects {percent(-change.share)} of {label(change.neighbour)}"
                f"{'' if change.fits else ', which does not fit'}.",
                "  ",
                "    ",
            )
        )
    lines.append(wrap(f"Guide: {rule.guide}.", "  ", "    "))
    return lines


def _knob(name: str) -> str:
    """A knob with the name that Megatron-LM knows, or its variable."""
    record = KNOBS.get(name) or SETTINGS[name]
    other = (record.env or record.megatron_lm).partition(",")[0].partition(" (")[0].strip()
    return f"{name} ({other})" if other and other != name else name


def measured_lines(found: Measured) -> list[str]:
    """What was read, what counted and what did not."""
    rows: list[list[str]] = []
    if found.log is not None and found.kept is not None:
        log, kept = found.log, found.kept
        rows.append(
            [
                "read",
                f"{log.framework}, {_lines(len(log.iterations))} of steps, the last at {log.last_step:,}",
            ]
        )
        rows.append(["step time", f"{seconds(found.step)}, median of {_lines(kept.num_lines, 'steady ')}"])
        rows.append(
            ["spread", f"{percent(kept.scatter)}; 90 % from {seconds(kept.low)} to {seconds(kept.high)}"]
        )
        if kept.rounding > 0.002 * kept.seconds:
            rows.append(["rounding", f"the log rounds to +-{seconds(kept.rounding)}"])
        if kept.left_out:
            told = ", ".join(f"{number:,} {why}" for why, number in kept.left_out.items())
            rows.append(["left out", f"lines: {told}"])
        if kept.trend.sure:
            rows.append(["trend", f"{percent(kept.trend.change)} from beginning to end"])
    if found.predicted is not None:
        low, high = found.predicted["interval"]["low"], found.predicted["interval"]["high"]
        told = f"{seconds(found.predicted['step_time_s'])}, {seconds(low)} to {seconds(high)}"
        rows.append(["predicted", told])
    if found.peak:
        rows.append(["peak memory", f"{memory(found.peak)} allocated on the worst rank that tells"])
    for profile in found.profiles[:8]:
        rows.append(
            [
                f"trace, {profile.device}",
                f"{seconds(profile.step_seconds)} a step over {profile.steps}: computing "
                if profile.steps
                else f"{seconds(profile.window)}, no step marks: computing ",
            ]
        )
        shares = (
            f"{percent(profile.share(profile.computing))}, exposed communication "
            f"{percent(profile.share(profile.exposed))}, copies {percent(profile.share(profile.copying_exposed))}, "
            f"idle {percent(profile.share(profile.idle))}"
        )
        rows[-1][1] += shares
    return table(["", ""], rows, "ll")[1:]


def _lines(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}line{'s' * (number != 1)}"


def _unseen(found: Diagnosed, everything: bool) -> list[str]:
    """What could not be judged, by what would show it."""
    ways: dict[str, list[str]] = defaultdict(list)
    for name, facts in found.diagnosis.unseen.items():
        ways[how_to_see(facts)].append(name)
    if not ways:
        return []
    count = len(found.diagnosis.unseen)
    lines = [heading(f"Not judged: {count} symptoms, for lack of evidence")]
    rows = [[way, ", ".join(names)] for way, names in sorted(ways.items(), key=lambda each: -len(each[1]))]
    shown = rows if everything else rows[:6]
    lines += table(["what would show it", "symptoms"], shown, "ll")
    if len(shown) < len(rows):
        lines.append(f"  and {len(rows) - len(shown)} more; --all shows them")
    return lines
