"""The release of a target that a plan's software stack stands for: what an export is of where none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.stack import families, load_stack, months, nearest_release
from costmodel.versions import version_months

if TYPE_CHECKING:
    from advisor.case import Case

TITLES = {"megatron-bridge": "Megatron-Bridge", "nemo": "NeMo", "megatron-lm": "Megatron-LM"}
# Megatron-LM's releases are told by the Megatron-Core in them.
VERSIONS = {"megatron-bridge": "megatron_bridge", "nemo": "nemo", "megatron-lm": "megatron_core"}


def version_of_stack(stack: str, target: str) -> str:
    """The target's version, as 2.5, that a stack stands for; "" where it stands for none of this target.

    A container of NVIDIA has NeMo up to 25.11 and Megatron-Bridge from 25.09 on. Of two versions as near the later one.
    """
    here = load_stack(stack)
    family, known = families()[here.family], version_months(VERSIONS[target])
    if target.replace("-", "_") not in (family.get("names"), family.get("early_names")) or not here.release:
        return ""
    first, *_, last = sorted(known.values(), key=months)
    if not months(first) <= months(here.release) <= months(last):
        return ""
    near = nearest_release(here.release[:5], known.values())  # a patch has what it mends
    return next(version for version, month in known.items() if month == near)


def chosen_version(case: Case, target: str, given: str) -> tuple[str, str]:
    """The version to export for, "" for the newest, and a note where the plan's stack chose it."""
    version = version_of_stack(case.stack, target) if case.stack and not given else ""
    if not version:
        return given, ""
    stack = load_stack(case.stack or "").name
    return version, f"{TITLES[target]} {version} is that of {stack}; --target-version names another"
