"""What an interval rests on, in words: how many runs were near, and what nobody published."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.evidence.runs import Table
from costmodel.evidence.setting import TRAITS, library, traits
from hardware_db.evidence import Setting


def basis(table: Table, query: Setting, distances: NDArray[np.float64], known_model: bool) -> str:
    """Why an interval at `distances` of the runs is as wide as it is."""
    count = int((distances <= distances.min() + 1).sum())
    errors = "errors" if known_model else "errors with their model left out of the fit"
    text = f"local 90 % quantile of the {errors} of {count} nearest of {len(table)} published runs"
    missing = [
        words
        for name, word, words in (
            ("generation", query.generation, f"on {_machines(query.generation)}"),
            ("library", library(query.stack), f"with the stack {library(query.stack)}"),
            ("precision", query.precision, f"in {query.precision}"),
            ("model", query.model, f"of {query.model}"),
        )
        if not table.knows(name, word)
    ]
    if table.guesses(query):
        missing.insert(0, f"on the {query.gpu}, whose kernels are those of the {query.kernels}")
    reasons = [f"none of them {', none '.join(missing)}"] if missing else []
    if rare := [TRAITS[trait] for trait in traits(query.family) & table.rare_traits]:
        reasons.append(f"hardly any with {' and '.join(sorted(rare))}")
    text += f"; {', '.join(reasons)}, so it is wider" if reasons else ""
    return text + (_untuned(table) if _only_untuned(table, query) else "")


def _machines(generation: str) -> str:
    """GPUs of a generation, in words."""
    return {"cpu": "processors", "unknown": "GPUs of this kind"}.get(generation, f"{generation} GPUs")


def _only_untuned(table: Table, query: Setting) -> bool:
    """Whether mixtures of experts were given this task in runs alone that nobody tuned."""
    with_experts = table.traits[:, list(TRAITS).index("moe")]
    return bool(
        table.untuned
        and query.task != "pretrain"
        and "moe" in traits(query.family)
        and not (with_experts & (table.other("task", query.task) == 0)).any()
    )


def _untuned(table: Table) -> str:
    low, high = table.untuned["quicker"], table.untuned["slower"]
    return (
        f"; of mixtures of experts nobody published a tuned run of this task: {table.untuned['runs']} runs on real "
        f"data, not tuned for speed, took {low:.2g} to {high:.2g} times as long as predicted"
    )
