"""Links of the documents lead somewhere: files exist, headings have the anchors that are named, pages are reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guide_docs import anchor
from page_blocks import ROOT

PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """A page without its code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "code", FENCE.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """Anchors of a page: one for each heading, numbered where headings repeat."""
    found: dict[str, int] = {}
    result = set()
    for title in re.findall(
        r"^#{1,6} (.+?)\s*$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE
    ):
        name = anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title))
        seen = found.get(name, 0)
        result.add(f"{name}-{seen}" if seen else name)
        found[name] = seen + 1
    return result


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    wrong = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, part = target.partition("#")
        path = page if not name else (page.parent / name).resolve()
        missing = not path.exists()
        if missing or (part and (path.suffix != ".md" or part not in anchors(path))):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n\n[a](#one-two) [b](none.md) [c](page.md#three) `[d](none.md)` [e](https://x.y)\n"
    )
    assert broken(page) == ["none.md", "page.md#three"]


def test_every_page_of_docs_is_reached_from_its_index():
    """From docs/README.md over links between pages."""
    reached, waiting = set(), [ROOT / "docs" / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        linked = [
            (page.parent / target.partition("#")[0]).resolve()
            for target in LINK.findall(prose(page))
            if ".md" in target and not re.match(r"[a-z]+:", target)
        ]
        waiting += [path for path in linked if path.is_relative_to(ROOT / "docs")]
    assert {path for path in PAGES if path.is_relative_to(ROOT / "docs")} - reached == set()
