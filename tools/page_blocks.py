"""Run the shell blocks of a page and put what they print beside what the page shows.

python tools/page_blocks.py docs/tutorial.md            run the page and write what is shown anew; exit 1 and what
                                                            is shown stays where a command failed
python tools/page_blocks.py --check docs/tutorial.md    exit 1 when the page shows something else

A ```console block holds commands after `$ ` (`> ` goes on) and the output shown under each; a ```sh block commands
alone. All blocks of a page run in one shell, in order, in one folder. A line `...` stands for lines left out. A comment
before a block says what else holds: `<!-- page: exit 1 -->`, or `<!-- page: measured -->` where times of this machine
are shown: there the lines shown have to come in their order, each compared up to its first number.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from page_folder import prepare

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 900
SKIP = "..."
# Lines that are as alike as this are taken for the same one, changed.
ALIKE = 0.8
_FENCE = re.compile(
    r"(?:^<!-- page: (?P<notes>[^\n]*?) -->\n)?^```(?P<kind>console|sh)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Step:
    """One command of a page: its text, the lines shown under it, the line of the page, and what holds."""

    command: str
    shown: tuple[str, ...]
    line: int
    exit_code: int = 0
    measured: bool = False
    console: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a command printed and its exit code."""

    lines: tuple[str, ...]
    exit_code: int


def steps_of(page: str) -> list[Step]:
    """Commands of a page in order."""
    steps = []
    for match in _FENCE.finditer(page):
        notes = match["notes"] or ""
        code = re.search(r"exit (\d+)", notes)
        at = page.count("\n", 0, match.start("body")) + 1
        held = {"exit_code": int(code[1]) if code else 0, "measured": "measured" in notes}
        if match["kind"] == "sh":
            steps.append(Step(match["body"].rstrip("\n"), (), at, console=False, **held))
            continue
        for command, shown, offset in _console(match["body"]):
            steps.append(Step(command, shown, at + offset, **held))
    return steps


def _console(body: str) -> list[tuple[str, tuple[str, ...], int]]:
    """Command, output shown and first line of each command of a console block."""
    found: list[tuple[list[str], list[str], int]] = []
    for number, line in enumerate(body.splitlines()):
        if line.startswith("$ "):
            found.append(([line[2:]], [], number))
        elif line == ">" or (line.startswith("> ") and found and not found[-1][1]):
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line.rstrip())
    return [("\n".join(command), tuple(shown), number) for command, shown, number in found]


def run_steps(steps: list[Step], folder: Path, environment: dict[str, str]) -> list[Outcome]:
    """Run all commands in one shell in `folder`; a command that did not run has exit code -1."""
    kept = Path(tempfile.mkdtemp(prefix="page-"))
    script = "".join(
        f"{{\n{step.command}\n}} >{kept}/{index}.out 2>{kept}/{index}.err </dev/null; echo $? >{kept}/{index}.code\n"
        for index, step in enumerate(steps)
    )
    try:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=environment, start_new_session=True, text=True
        )
        try:
            shell.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        return [_outcome(kept, index) for index in range(len(steps))]
    finally:
        shutil.rmtree(kept)


def _outcome(kept: Path, index: int) -> Outcome:
    def text(kind: str) -> str:
        path = kept / f"{index}.{kind}"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    code = int(text("code") or -1)
    # Progress goes to standard error, and so does the one line of an error.
    said = text("out") + (text("err") if code else "")
    return Outcome(tuple(line.rstrip() for line in said.rstrip("\n").splitlines()), code)


def difference(step: Step, outcome: Outcome) -> str:
    """What is wrong with a step, else nothing."""
    if outcome.exit_code != step.exit_code:
        said = "\n".join(outcome.lines[-12:])
        return f"`{step.command}` ended with {outcome.exit_code}, not {step.exit_code}:\n{said}"
    if not step.console:
        return ""
    if step.measured:
        return _measured_difference(step, outcome)
    printed = list(outcome.lines)
    at = 0
    for index, wanted in enumerate(segments(step.shown)):
        anywhere = index > 0
        last = index == len(segments(step.shown)) - 1
        place = _find(printed, wanted, at, anywhere=anywhere, to_end=last)
        if place is None:
            return _told(step, wanted, outcome)
        at = place + len(wanted)
    return ""


def _told(step: Step, wanted: list[str], outcome: Outcome) -> str:
    lines = difflib.unified_diff(wanted, outcome.lines, "shown", "printed", n=0, lineterm="")
    return "\n".join([f"`{step.command}` prints something else:", *lines])


def _measured_difference(step: Step, outcome: Outcome) -> str:
    """Lines shown have to come in their order; longer numbers may wrap them, and warnings stand between."""
    printed, at = [_rough(line) for line in outcome.lines], 0
    for line in step.shown:
        if line.strip() in ("", SKIP):
            continue
        if _rough(line) not in printed[at:]:
            return _told(step, [line], outcome)
        at = printed.index(_rough(line), at) + 1
    return ""


def segments(shown: tuple[str, ...]) -> list[list[str]]:
    """Runs of lines between those left out. A page that ends with `...` ends with an empty run."""
    parts: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == SKIP:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _find(printed: list[str], wanted: list[str], start: int, *, anywhere: bool, to_end: bool) -> int | None:
    """Where `wanted` begins among the lines printed, from `start` on."""
    if to_end and anywhere and not wanted:
        return len(printed)
    last = len(printed) - len(wanted)
    places = range(start, last + 1) if anywhere else range(start, min(start, last) + 1)
    for place in places:
        if printed[place : place + len(wanted)] == wanted and (not to_end or place == last):
            return place
    return None


def _rough(line: str) -> str:
    """A line with measured numbers: its words up to the first of them, or all its words where it begins with one."""
    head, *_ = re.split(r"[-+]?\d", line, maxsplit=1)
    return " ".join(head.split()) or " ".join(re.sub(r"\d[\d.,]*", "0", line).split())


def written(page: str, steps: list[Step], outcomes: list[Outcome]) -> str:
    """The page with what was printed in the place of what it showed; lines left out stay out.

    What is shown under a command that failed, as on a machine too busy to end it, stays as it is.
    """
    lines = page.split("\n")
    for step, outcome in reversed(list(zip(steps, outcomes, strict=True))):
        failed = outcome.exit_code != step.exit_code
        if not step.console or failed or not difference(step, outcome):
            continue
        first = step.line + step.command.count("\n")
        lines[first : first + len(step.shown)] = _renewed(step, list(outcome.lines))
    return "\n".join(lines)


def _renewed(step: Step, printed: list[str]) -> list[str]:
    """Each run of shown lines by its nearest among those printed, of as many paragraphs."""
    if SKIP not in [line.strip() for line in step.shown]:
        return printed
    parts, result, at = segments(step.shown), list[str](), 0
    for index, part in enumerate(parts):
        if index:
            result.append(next(line for line in step.shown if line.strip() == SKIP))
        if not part or at >= len(printed):
            continue
        first = at if index == 0 else _nearest(printed, part[0], range(at, len(printed)))
        last = len(printed) - 1 if index == len(parts) - 1 else _last(printed, part, first)
        result += printed[first : last + 1]
        at = last + 1
    return result


def _last(printed: list[str], part: list[str], first: int) -> int:
    """Where a run of lines that begins at `first` ends: at the line like its last, else with its paragraph."""
    if len(part) == 1:
        return first
    blanks = [index for index in range(first, len(printed)) if not printed[index]] + [len(printed)]
    paragraph = part.count("")
    end = blanks[min(paragraph, len(blanks) - 1)]
    begin = first if paragraph == 0 else blanks[min(paragraph, len(blanks) - 1) - 1]
    places = range(begin, end)
    if not places:  # less was printed than is shown, as by a command that failed
        return end - 1
    near = _nearest(printed, part[-1], places)
    return near if _likeness(part[-1], printed[near]) >= ALIKE else end - 1


def _nearest(printed: list[str], line: str, places: range) -> int:
    return max(places, key=lambda index: _likeness(line, printed[index]), default=places.start)


def _likeness(one: str, other: str) -> float:
    """How alike two lines are, whatever their numbers. [1]"""
    plain = [re.sub(r"[\d.,]+", "0", text) for text in (one, other)]
    return difflib.SequenceMatcher(None, *plain, autojunk=False).ratio()


def run_page(path: Path, folder: Path) -> tuple[list[Step], list[Outcome]]:
    """Run a page in `folder` as a new user would."""
    steps = steps_of(path.read_text(encoding="utf-8"))
    return steps, run_steps(steps, folder, prepare(folder))


def run_for_tests(path: Path, folder: Path) -> tuple[list[Step], list[Outcome], Path]:
    """A page run once in `folder`; with UPDATE_GOLDEN in the environment what it shows is written anew first."""
    folder.mkdir()
    text = path.read_text(encoding="utf-8")  # once: another test process may write the page too
    steps = steps_of(text)
    outcomes = run_steps(steps, folder, prepare(folder))
    if os.environ.get("UPDATE_GOLDEN"):
        text = written(text, steps, outcomes)
        path.write_text(text, encoding="utf-8")
        steps = steps_of(text)
    return steps, outcomes, folder


def main(arguments: list[str] | None = None) -> int:
    """0 when the pages show (now) what their commands print, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("pages", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    wrong = 0
    for path in options.pages:
        with tempfile.TemporaryDirectory(prefix="tutorial-") as name:
            folder = Path(name) / "work"
            folder.mkdir()
            steps, outcomes = run_page(path, folder)
        found = [
            text for step, outcome in zip(steps, outcomes, strict=True) if (text := difference(step, outcome))
        ]
        failed = [o for s, o in zip(steps, outcomes, strict=True) if s.exit_code != o.exit_code]
        print("\n\n".join(found), file=sys.stderr)
        if found and not options.check:
            path.write_text(written(path.read_text(encoding="utf-8"), steps, outcomes), encoding="utf-8")
            print(f"wrote {path}")
        wrong += bool(found) if options.check else bool(failed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
