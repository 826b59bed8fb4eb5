"""Months of frameworks' versions (versions.toml): which release of a stack a version is of."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

VERSIONS = Path(__file__).with_name("versions.toml")


@lru_cache(maxsize=1)
def version_tables() -> dict[str, Any]:
    """By framework: `words` that texts call it by, `releases` with the month "yy.mm" of each version."""
    with VERSIONS.open("rb") as file:
        return tomllib.load(file)


def version_months(framework: str) -> dict[str, str]:
    """Month "yy.mm" of each version of a framework of the table."""
    return dict(version_tables()[framework]["releases"])


def month_of(version: str, releases: Mapping[str, str]) -> str:
    """Month "yy.mm" of a version, else of the one that it is a patch of; "" where neither is known."""
    return releases.get(version) or releases.get(".".join(version.split(".")[:2]), "")
