"""Text for people: numbers with units, tables, trees and bars that fit the page, plain when piped."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costmodel.prediction import TermValue

# Parts smaller than this share of the whole are gathered in "other".
SMALL = 0.005
_NARROWEST, _WIDEST = 60, 100
# Words of a folded line that stay whole up to so many letters.
_KEPT = 24
# Parts of a long name or path, each up to a joint.
_PARTS = re.compile(r"[^_.,/+=*(@:-]*[_.,/+=*(@:-]|[^_.,/+=*(@:-]+")


def width() -> int:
    """Columns to fill: the terminal's or $COLUMNS, between 60 and 100; 80 when piped. [1]"""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))


def colours() -> bool:
    """Whether to style text: on a terminal, unless NO_COLOR is set or the terminal is dumb."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> str:
    """A heading."""
    return f"\x1b[1m{text}\x1b[0m" if colours() else text


def dim(text: str) -> str:
    """Small print."""
    return f"\x1b[2m{text}\x1b[0m" if colours() else text


def seconds(value: float) -> str:
    """A time with four figures: 5.123 s, 12.35 ms, 45.2 us, 1 h 05 min from an hour on."""
    size = abs(value)
    if size >= 3600:
        hours, rest = divmod(round(value / 60), 60)
        return f"{hours:,} h {rest:02d} min"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= scale * 0.9995 or unit == "us":
            return f"{_figures(value / scale)} {unit}"
    raise AssertionError("unreachable")


def gib(value: float) -> str:
    """Bytes as GiB (2**30): 123.4 GiB."""
    amount = value / 2**30
    return f"{amount:.1f} GiB" if abs(amount) >= 0.05 or not amount else f"{value / 2**20:.1f} MiB"


def memory(value: float) -> str:
    """Bytes as GiB, below one as MiB: three figures at least, so that a ratio of two can be seen."""
    return gib(value) if abs(value) >= 2**30 or not value else f"{value / 2**20:.0f} MiB"


def percent(share: float, digits: int = 1, signed: bool = False) -> str:
    """A share as percent, with a plus in front where `signed`."""
    return f"{100 * share:{'+' * signed}.{digits}f} %"


def count(value: float) -> str:
    """A large count: 8.03 B, 70.6 B, 1.2 T, 512."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{_figures(value / size, 3)} {unit}"
    return f"{value:,.0f}"


def _figures(value: float, figures: int = 4) -> str:
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, figures - whole)}f}"


def heading(text: str) -> str:
    """A section title with an empty line before it."""
    return "\n" + bold(text)


def gpus_text(count: int) -> str:
    """A number of GPUs in words.

    Examples
    --------
    >>> gpus_text(1), gpus_text(1024)
    ('1 GPU', '1,024 GPUs')
    """
    return f"{count:,} GPU{'s' * (count != 1)}"


def wrap(text: str, indent: str = "", hanging: str | None = None) -> str:
    """Text broken at spaces to the width of the page."""
    return textwrap.fill(
        text,
        width(),
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def folded(line: str) -> str:
    """A long line of names or of a formula, folded under itself; breaks at spaces, else at a joint of a name."""
    if len(line) <= width():
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    below = indent + "    "
    pieces = _pieces(line.strip(), width() - len(below), whole=_KEPT)
    return "\n".join([indent + pieces[0], *(below + piece for piece in pieces[1:])])


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> list[str]:
    """Lines of a table indented by two that fit the page; align has one l or r a column.

    Where the page is too narrow the last column wraps, and then the widest others do. Trailing spaces are cut, so
    that a piped table compares equal.
    """
    cells = [list(map(str, row)) for row in rows]
    align = align or "l" * len(headers)
    sizes = _column_sizes([list(headers), *cells])

    def lines(row: Sequence[str]) -> list[str]:
        pieces = [_pieces(cell, size) for cell, size in zip(row, sizes, strict=True)]
        return [
            (
                "  "
                + "  ".join(
                    (piece[line] if line < len(piece) else "").rjust(size)
                    if side == "r"
                    else (piece[line] if line < len(piece) else "").ljust(size)
                    for piece, size, side in zip(pieces, sizes, align, strict=False)
                )
            ).rstrip()
            for line in range(max(map(len, pieces)))
        ]

    return [*map(dim, lines(headers)), *(line for row in cells for line in lines(row))]


def _pieces(cell: str, size: int, whole: int = 0) -> list[str]:
    """A cell in lines of a column; a word longer than it, or than `whole`, may break where it has a joint."""
    if len(cell) <= size:
        return [cell]
    lines = [""]
    for word in cell.split():
        glue = " " if lines[-1] else ""
        for part in _PARTS.findall(word) if len(word) > (whole or size) else [word]:
            for piece in (part[i : i + size] for i in range(0, len(part), size)):
                if len(lines[-1] + glue + piece) <= size:
                    lines[-1] += glue + piece
                else:
                    lines.append(piece)
                glue = ""
    return lines


def _column_sizes(rows: Sequence[Sequence[str]]) -> list[int]:
    """Widths of columns that fit the page: as wide as their cells, else narrower from the last one on."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = [
        max((len(word) for cell in column for word in cell.split()), default=0)
        for column in zip(*rows, strict=True)
    ]
    over = 2 * len(sizes) + sum(sizes) - width()
    last = len(sizes) - 1
    # First the last column to a readable width, then wide ones to their longest word, then whatever is widest.
    for floors in ([*sizes[:last], min(sizes[last], max(24, words[last]))], words, [8] * len(sizes)):
        while over > 0:
            room = [size - floor for size, floor in zip(sizes, floors, strict=True)]
            widest = max(range(len(sizes)), key=lambda i: (room[i] > 0) * sizes[i])
            if room[widest] <= 0:
                break
            sizes[widest] -= 1
            over -= 1
    return sizes


def bar(share: float, size: int = 20) -> str:
    """A share from 0 to 1 as a bar of `size` columns at most; blocks on a terminal that has them, # elsewhere."""
    filled = round(max(0.0, min(1.0, share)) * size)
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    mark = "\u2588" if sys.stdout.isatty() and encoding == "utf8" else "#"
    return mark * (filled or int(share > 0))


def closing_round(values: Sequence[float], total: float, digits: int) -> list[float]:
    """The values rounded to `digits` so that they sum exactly to the rounded total.

    What rounding loses goes to the values that were nearest to the next step (largest remainder).
    `values` must sum to `total` but for floating point.
    """
    step = 10.0**-digits
    exact = [value / step for value in values]
    units = [math.floor(value) for value in exact]
    missing = round(total / step) - sum(units)
    while missing:
        turn = 1 if missing > 0 else -1
        nearest = max(range(len(units)), key=lambda i: turn * (exact[i] - units[i]))
        units[nearest] += turn
        missing -= turn
    return [round(unit * step, digits) for unit in units]


def tree(root: TermValue, scale: float, unit: str, digits: int | None = None) -> list[str]:
    """A breakdown: value in `unit` (one unit is `scale` base units), share, title; parts sum to the whole.

    Parts below half a percent of the root are gathered in "other", so that every level still closes.
    """
    if digits is None:
        whole = abs(root.value / scale)
        digits = max(0, 4 - len(str(int(whole)))) if whole < 1000 else 1
    lines: list[tuple[str, float, float]] = []
    _branch(root, round(root.value / scale, digits), root.value, scale, digits, "", "", lines)
    values = [f"{shown:,.{digits}f}" for _, shown, _ in lines]
    size = max(map(len, values))
    room = width() - size - len(unit) - 14
    return [
        f"  {value.rjust(size)} {unit} {percent(share).rjust(8)}  {_cut(title, room)}"
        for value, (title, _, share) in zip(values, lines, strict=True)
    ]


def _branch(
    term: TermValue,
    shown: float,
    whole: float,
    scale: float,
    digits: int,
    before: str,
    below: str,
    lines: list[tuple[str, float, float]],
) -> None:
    lines.append((before + term.title, shown, term.value / whole if whole else 0.0))
    present = [part for part in term.parts if part.value]
    small = [abs(part.value) < SMALL * abs(whole) for part in present]
    if sum(small) == 1:  # one small part needs no line called other
        small = [False] * len(present)
    large = [part for part, is_small in zip(present, small, strict=True) if not is_small]
    named = [part for part, is_small in zip(present, small, strict=True) if is_small]
    if not large:
        return
    other = sum(part.value for part in named)
    numbers = closing_round(
        [part.value / scale for part in large] + ([other / scale] if named else []), shown, digits
    )
    rows = len(large) + bool(named)
    for i, part in enumerate(large):
        last = i == rows - 1
        _branch(
            part,
            numbers[i],
            whole,
            scale,
            digits,
            below + ("`- " if last else "|- "),
            below + ("   " if last else "|  "),
            lines,
        )
    if named:
        titles = "; ".join(part.title.partition(" (")[0] for part in named)
        lines.append((f"{below}`- other: {titles}", numbers[-1], other / whole if whole else 0.0))


def _cut(text: str, room: int) -> str:
    """A title in its room: of a list as many whole parts as there is room for, and how many more there are."""
    if len(text) <= room:
        return text
    parts = text.split("; ")
    for kept in range(len(parts) - 1, 0, -1):
        told = f"{'; '.join(parts[:kept])}; {len(parts) - kept} more"
        if len(told) <= room:
            return told
    return text[: room - 3].rstrip(" ,") + "..."
