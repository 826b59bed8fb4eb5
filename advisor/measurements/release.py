"""When a published run was measured and of which software release it is, by whatever its row says of that."""

from __future__ import annotations

import re
from functools import lru_cache

from advisor.measurements.rows import Row
from costmodel.stack import families, nearest_release
from costmodel.versions import month_of, version_tables

# "26.02" in nemo:26.02.01 or in pytorch:26.04-py3.
RELEASE = re.compile(r"(?<![\d.])2\d\.(0[1-9]|1[0-2])(?!\d)")
# "26.02.01" in nemo:26.02.01.
PATCH = re.compile(r"(?<![\d.])2\d\.(?:0[1-9]|1[0-2])\.0[1-9](?!\d)")
# A year, and the month taken for one that stands alone.
YEAR = re.compile(r"(?<!\d)20(2\d)(?!\d)")
MIDYEAR = "06"
# "2025-10", "2025/10/01", "202510", and the month before its year as in "10/2025".
YEAR_MONTH = re.compile(r"(?<!\d)20(2\d)[-/. ]?(0[1-9]|1[0-2]|[1-9](?!\d))")
MONTH_YEAR = re.compile(r"(?<!\d)(0?[1-9]|1[0-2])[-/. ]20(2\d)(?!\d)")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH_NAME = re.compile(rf"(?<![a-z])({'|'.join(MONTHS)})[a-z]*", re.IGNORECASE)
# The month of a paper is in its number.
ARXIV = re.compile(r"arxiv(?:\.org/\w+/|\W{0,2})(2\d)(0[1-9]|1[0-2])\.\d{4,5}", re.IGNORECASE)


def named_release(row: Row) -> str:
    """The release "yy.mm" that a row names: of its container, else of a version in its container or source; else ""."""
    container, source = row.text("container"), row.text("source")
    return release_in(container) or _of_version(container) or _of_version(source)


def release_in(text: str) -> str:
    """The release "yy.mm" that stands in a text, "" when none does."""
    found = RELEASE.search(text)
    return found[0] if found else ""


def with_patch(row: Row, release: str) -> str:
    """A release "yy.mm", with the patch "yy.mm.pp" of it that the row's container names."""
    found = PATCH.search(row.text("container"))
    return found[0] if release and found and found[0].startswith(release) else release


def _of_version(text: str) -> str:
    """The month of a framework's version in a text; the newest release known where the version is later than all."""
    for words, releases in _versions():
        found = re.search(rf"(?<![a-z])(?:{words})[\s:=_v@-]*((\d\.\d+)(?:\.\d+)?)(?!\d)", text.lower())
        if found is None:
            continue
        if month := month_of(found[1], releases):
            return month
        if _parts(found[2]) > max(map(_parts, releases)):
            return newest_release()
    return ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@lru_cache(maxsize=1)
def _versions() -> list[tuple[str, dict[str, str]]]:
    return [
        (
            "|".join(re.escape(word) for word in sorted(table["words"], key=len, reverse=True)),
            table["releases"],
        )
        for table in version_tables().values()
    ]


def newest_release() -> str:
    """The newest release that any family's published runs are of."""
    return max(release for family in families().values() for release in family["releases"])


def unknown_release(stack: str) -> str:
    """In words, the release whose fitted rates a stack takes when no published run is of its own; "" when one is."""
    family, _, release = stack.partition("-")
    near = nearest_release(release, families()[family]["releases"])
    if near is None or near == release:
        return ""
    return f"no run of {stack} is known: what is fitted to {family}-{near} counts"


def row_date(row: Row) -> str:
    """When the row was measured, "yy.mm"; "" when nothing says it.

    By its date, else what its container names, else the month or the arXiv number of its source.
    """
    source = row.text("source")
    paper = ARXIV.search(source)
    return (
        _month(row.text("date"))
        or _month(row.text("container"))
        or (f"{paper[1]}.{paper[2]}" if paper else _month(source))
    )


def _month(text: str) -> str:
    """The month that a text tells, "yy.mm"; the middle of the year where it tells the year alone, "" without one."""
    if not (year := YEAR.search(text) or YEAR_MONTH.search(text)):
        return ""
    if found := YEAR_MONTH.search(text):
        return f"{found[1]}.{int(found[2]):02d}"
    if found := MONTH_YEAR.search(text):
        return f"{found[2]}.{int(found[1]):02d}"
    named = MONTH_NAME.search(text)
    return f"{year[1]}.{MONTHS.index(named[1].lower()) + 1:02d}" if named else f"{year[1]}.{MIDYEAR}"
