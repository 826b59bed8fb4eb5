"""The precision of a published row, however it is written, and the recipe of an FP8 that names none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.measurements.habits import row_release
from advisor.measurements.rows import Row
from costmodel.plan import PRECISIONS

# Names of other frameworks -> the precision whose arithmetic and traffic they have: torchao's, and those of the
# performance scripts of Megatron-Bridge (--compute_dtype fp8_mx) and NeMo 2 (--fp8_recipe ds).
PRECISION_NAMES = {
    "fp8-tensorwise": "fp8-cs",
    "fp8-rowwise": "fp8-sc",
    "fp8-mx": "mxfp8",
    "fp8-ds": "fp8-delayed",
}
# Words that tell a format, and those that tell how FP8 is scaled; the first of each that stands in a text counts.
FORMATS = {
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp8": "mxfp8",
    "fp8": "fp8",
    "float8": "fp8",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
}
SCALINGS = {
    "mx": "mxfp8",
    "mxfp8": "mxfp8",
    "delayed": "fp8-delayed",
    "ds": "fp8-delayed",
    "current": "fp8-cs",
    "cs": "fp8-cs",
    "tensorwise": "fp8-cs",
    "per-tensor": "fp8-cs",
    "dynamic": "fp8-cs",
    "block": "fp8-sc",
    "blockwise": "fp8-sc",
    "block-wise": "fp8-sc",
    "blockscaling": "fp8-sc",
    "subchannel": "fp8-sc",
    "128x128": "fp8-sc",
    "sc": "fp8-sc",
    "rowwise": "fp8-sc",
}


def row_precision(row: Row, habit: Mapping[str, Any]) -> tuple[str, str]:
    """The row's precision, and in words what of it was assumed, "" when nothing.

    Of a known name what stands in brackets tells kernels alone. Else words count: the narrowest format, as "bf16" in
    "bf16 with fp8" is that of the rest; of FP8 how it is scaled, where that stands nowhere as the software of that
    release does it. ValueError when no format is told.
    """
    spelled = re.sub(r"[\s_]+", "-", row.text("precision").strip().lower())
    bare = spelled.partition("(")[0].strip("-")
    known = PRECISION_NAMES.get(bare, bare)
    if known in PRECISIONS:
        return known, ""
    told = _first(FORMATS, spelled)
    if told is None:
        raise ValueError(f"precision {row.text('precision')!r} is not one of {', '.join(PRECISIONS)}")
    scaling = _first(SCALINGS, spelled) if told == "fp8" else None
    found = scaling or told
    if found == "fp8":
        found = _usual_fp8(row, habit)
        return found, f"precision {row.text('precision')!r} names no scaling: {found}, as its software scales"
    return found, f"precision {row.text('precision')!r} taken as {found}"


def _usual_fp8(row: Row, habit: Mapping[str, Any]) -> str:
    release = row_release(row, habit)
    early = release and release <= habit.get("fp8_early_until", "")
    return str(habit.get("fp8_early" if early else "fp8", "fp8-delayed"))


def _first(words: Mapping[str, str], text: str) -> str | None:
    """What the first of some words means that stands in a text as a word of its own."""
    found = (word for word in words if re.search(rf"(?<![a-z0-9]){word}(?![0-9]|[a-z])", text))
    return next((words[word] for word in found), None)
