"""Since which release a framework's published runs use a number format: what is older may not have it."""

from __future__ import annotations

from functools import lru_cache

from costmodel.stack import months
from hardware_db.evidence import Setting, load_evidence


def before_its_time(setting: Setting) -> str:
    """A line where a release is older than every published run of its framework in the format asked; else ""."""
    family, _, release = setting.stack.partition("-")
    first = first_release(family, setting.precision)
    if setting.precision == "bf16" or not release or not first or months(release) >= months(first):
        return ""
    return (
        f"stack {setting.stack}: the first published run of {family} in {setting.precision} is of {family}-{first}; "
        "check that your release has the format"
    )


@lru_cache(maxsize=64)
def first_release(family: str, precision: str) -> str:
    """First release "yy.mm" of a family with a published run in a format, "" where there is none."""
    of_stacks = (run.stack.partition("-") for run in load_evidence() if run.precision == precision)
    releases = [release for name, _, release in of_stacks if name == family and release]
    return min(releases, key=months, default="")
