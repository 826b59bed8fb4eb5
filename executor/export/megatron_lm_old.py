"""Arguments of early Megatron-LM by their names of today, which newer releases do not take."""

from __future__ import annotations

from collections.abc import Mapping

from executor.export.shell_words import left_open

# Old flag -> flags of today, {} its value. Sources: Megatron-LM 0.17.1 to 0.19.2, training/arguments.py, which parse
# some to name their successors; Megatron-LM 2.5 to 3.0 and the first arguments of Transformer Engine (from memory).
OLD = {
    "--checkpoint-activations": {
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": "1",
    },
    "--checkpoint-num-layers": {"--recompute-num-layers": "{}"},
    "--activations-checkpoint-method": {"--recompute-granularity": "full", "--recompute-method": "{}"},
    "--activations-checkpoint-num-layers": {"--recompute-num-layers": "{}"},
    "--activations-checkpoint-granularity": {"--recompute-granularity": "{}"},
    "--fp8-hybrid": {"--fp8-format": "hybrid", "--fp8-recipe": "delayed"},
    "--fp8-e4m3": {"--fp8-format": "e4m3", "--fp8-recipe": "delayed"},
}
# A layer count alone says nothing of whether layers are computed again.
COUNTS = {"--checkpoint-num-layers", "--activations-checkpoint-num-layers"}


def renamed(given: Mapping[str, list[str]]) -> tuple[dict[str, list[str]], list[str]]:
    """The flags by today's names, what today's say before what old ones do, and a line on each that is old."""
    names = {flag: new for flag, new in OLD.items() if flag in given}
    if not set(names) - COUNTS and "--recompute-granularity" not in given:
        names = {}
    found, told = {flag: words for flag, words in given.items() if flag not in names}, []
    for flag in sorted(names, reverse=True):  # the switch last, whose layers and method others may say
        words = given[flag]
        if left_open(words):
            continue
        for new, value in names[flag].items():
            found.setdefault(new, [value.format(*words)] if "{}" not in value or words else [])
        meant = " ".join(
            f"{new} {value.format(*words or [''])}".strip() for new, value in names[flag].items()
        )
        told.append(f"{flag} is read as {meant}, which it was until 2023: newer Megatron-LM does not take it")
    return found, told
