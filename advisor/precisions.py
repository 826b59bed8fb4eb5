"""Precision recipes that a question is about: those named, or those worth searching on its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.rules.features import lacked
from costmodel.knobs import KNOBS, parse_knob

if TYPE_CHECKING:
    from hardware_db import Cluster

# Precision recipes that "auto" searches, by GPU generation. Delayed scaling is superseded by current
# scaling (Megatron-Bridge recipes); NVFP4 changes numerics so much that it is searched only when named. Of AMD's GPUs
# peaks of FP8 are on file, and rates of its products (ROCm blogs on MI300X and CDNA4); of MXFP8 there are neither.
AUTO_PRECISIONS = {
    "ada": ("bf16", "fp8-cs"),
    "hopper": ("bf16", "fp8-cs"),
    "blackwell": ("bf16", "fp8-cs", "mxfp8"),
    "blackwell-ultra": ("bf16", "fp8-cs", "mxfp8"),
    "cdna3": ("bf16", "fp8-cs"),
    "cdna4": ("bf16", "fp8-cs"),
}
# Where a stack does not have one yet: what its recipes took.
OLDER = {"fp8-cs": "fp8-delayed"}
EIGHT_BITS = ("fp8", "mxfp8")
# Peaks of arithmetic on few bits, by the word in which a format of it is asked for.
PEAKS = {"fp4": ("nvfp4", "mxfp4"), "fp8": ("fp8",)}


def choose_precisions(
    precision: str, cluster: Cluster, stack: str | None = None
) -> tuple[tuple[str, ...], str]:
    """Recipes to search, and what was assumed. ValueError in one line for a recipe that is none.

    stack: software, whose recipes alone "auto" searches; None is the newest known.
    """
    if precision != "auto":
        names = [part.strip() for part in precision.split(",") if part.strip()]
        if not names:
            raise ValueError(f"--precision {precision!r} names no recipe. Try --precision auto.")
        known, _ = _auto_precisions(cluster, stack)
        wanted = (known if name == "auto" else (parse_precision(name, cluster),) for name in names)
        return tuple(dict.fromkeys(recipe for recipes in wanted for recipe in recipes)), ""
    return _auto_precisions(cluster, stack)


def parse_precision(text: str, cluster: Cluster) -> str:
    """The recipe that `text` means. ValueError in one line, which suggests none that the GPU does not have."""
    from costmodel.binding import usable_precisions

    try:
        recipe: str = parse_knob("precision", text)
    except ValueError:
        usable, near = usable_precisions(cluster), KNOBS["precision"].near(text)
        if not usable or not near or set(near) & set(usable):
            raise
        bits = next((name for name in PEAKS if name in text.lower()), "")
        if bits and (alike := [name for name in usable if name.startswith(bits)]):
            raise ValueError(f"--precision {text!r} is no recipe. Did you mean {', '.join(alike)}?") from None
        lacks = f"lacks what {' and '.join(near)} needs, or has no peak of it on file"
        if bits and not any(cluster.gpu.peak(peak) for peak in PEAKS[bits]):
            lacks = f"has no {bits.upper()}, or no peak of it on file"
        raise ValueError(
            f"--precision {text!r} is no recipe, and {cluster.gpu.title} {lacks}. It takes {', '.join(usable)}. "
            f"Try --precision {usable[0]}."
        ) from None
    return recipe


def _auto_precisions(cluster: Cluster, stack: str | None) -> tuple[tuple[str, ...], str]:
    gpu = cluster.gpu
    if gpu.generation == "cpu" or (gpu.peak("bf16") is None and gpu.peak("fp16") is None):
        return ("fp32",), f"precision fp32: {gpu.title} has no 16-bit matrix units"
    absent = lacked(stack)
    known = AUTO_PRECISIONS.get(gpu.generation, ("bf16",))
    wanted = (OLDER.get(name, name) if _feature(name) in absent else name for name in known)
    recipes = tuple(dict.fromkeys(name for name in wanted if _feature(name) not in absent))
    return recipes, f"precision auto: searched {', '.join(recipes)}; {_others(cluster, recipes, absent)}"


def _others(cluster: Cluster, searched: tuple[str, ...], absent: frozenset[str]) -> str:
    """What of FP8 the GPU has and the search leaves out, why, and what searches it too."""
    from costmodel.binding import usable_precisions

    others = "others only when named"
    usable = [name for name in usable_precisions(cluster) if _feature(name) not in absent]
    if not any(name.startswith(EIGHT_BITS) for name in searched):
        left = [name for name in ("fp8-cs", *OLDER.values()) if name in usable]
        if left:
            return (
                f"FP8, which {cluster.gpu.title} has, was not searched, as which of its recipes run on its "
                f"generation is not on file: --precision auto,{left[0]} searches it too"
            )
    elif "mxfp8" in usable and "mxfp8" not in searched:
        return (
            f"{others}, so MXFP8, of which no rate on {cluster.gpu.title} is measured: --precision auto,mxfp8 "
            "searches it too"
        )
    return others


def _feature(precision: str) -> str:
    """A recipe's name among the features of stacks."""
    return precision.replace("-", "_")
