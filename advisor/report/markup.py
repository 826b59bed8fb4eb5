"""HTML out of pieces in which every text is escaped: what a user named stays text wherever it is put."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_EMPTY = frozenset({"meta", "link", "br", "input", "col"})


class Markup(str):
    """Text that is HTML already; only `tag`, `join` and `raw` make it."""

    __slots__ = ()


def raw(text: str) -> Markup:
    """What this package wrote itself (style, script): taken as it is."""
    return Markup(text)


def text(value: object) -> Markup:
    """A value as text of a page: escaped unless it is markup."""
    return value if isinstance(value, Markup) else Markup(escape(str(value), quote=True))


def join(pieces: Iterable[object], between: str = "") -> Markup:
    """Pieces one after the other, texts among them escaped."""
    return Markup(between.join(text(piece) for piece in pieces))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. Attributes: class_ for class, _ for -; None and False are left out, True stands alone.

    Examples
    --------
    >>> str(tag("p", "a < b", class_="note", data_term="x"))
    '<p class="note" data-term="x">a &lt; b</p>'
    """
    said = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        said.append(f" {word}" if value is True else f' {word}="{text(str(value))}"')
    opening = f"<{name}{''.join(said)}>"
    return Markup(opening if name in _EMPTY else f"{opening}{join(children)}</{name}>")


def data_script(identity: str, value: Any) -> Markup:
    """A value as JSON that a script of the page reads; nothing in it can end the element."""
    told = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    safe = told.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    # Lone surrogates (of a file name that is not UTF-8) have no place in a UTF-8 page.
    safe = safe.encode("utf-8", "replace").decode("utf-8")
    return Markup(f'<script type="application/json" id="{identity}">{safe}</script>')


def plain(value: Any) -> Any:
    """The value as JSON can hold it: what is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], caption: str, align: str = "") -> Markup:
    """A table that scrolls inside itself; align has one l or r a column, the first column heads its row."""
    align = align or "l" * len(headers)
    sides = ["right" if side == "r" else None for side in align]
    head = tag(
        "tr", *(tag("th", name, scope="col", class_=side) for name, side in zip(headers, sides, strict=True))
    )
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=sides[0]),
            *(tag("td", cell, class_=side) for cell, side in zip(row[1:], sides[1:], strict=True)),
        )
        for row in rows
    ]
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_="table")
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def chart(identity: str, label: str, caption: object, height: str = "") -> Markup:
    """A place where the page's script draws; label says in words what is drawn."""
    place = tag("div", class_=f"chart {height}".strip(), id=identity, role="img", aria_label=label)
    return tag("figure", place, tag("figcaption", caption))


def section(identity: str, title: str, *children: object) -> Markup:
    """One part of the page with its heading."""
    heading = tag("h2", title, id=f"{identity}-title")
    return tag("section", heading, *children, id=identity, class_="card", aria_labelledby=f"{identity}-title")


def folded(summary: str, *children: object) -> Markup:
    """Something that opens when asked for."""
    return tag("details", tag("summary", summary), *children)
