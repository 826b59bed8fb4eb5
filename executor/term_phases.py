"""In which phase of a run each term of a predicted step is seen."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.prediction import DATA_PARALLEL, PIPELINE
from costmodel.work.elementwise import ATTENTION_KERNELS, MLP_KERNELS

PHASES = ("forward", "backward", "communication", "optimizer")
# What follows forward_ and backward_ in the names of messages inside a micro-batch.
MESSAGES = ("tensor_parallel", "context_parallel", "dispatch", "wait")
WAITING = (*PIPELINE, *DATA_PARALLEL)
# Embedding, logits and loss, and whole layers: one GEMM forward against two backward.
VOCABULARY = {"forward": 1 / 3, "backward": 2 / 3}
# Gaps between kernels are shared as the kernels of a layer are.
KERNELS = [sum(each) for each in zip(ATTENTION_KERNELS, MLP_KERNELS, strict=True)]
GAPS = {name: each / sum(KERNELS) for name, each in zip(("forward", "backward"), KERNELS, strict=True)}


def phases_of(leaf: str) -> Mapping[str, float]:
    """Share of a term in each phase, none for what a run sees in no phase apart. [1]"""
    direction, _, kind = leaf.partition("_")
    if direction in ("forward", "backward"):
        return {"communication" if kind in MESSAGES else direction: 1.0}
    if leaf in ("recompute", "deferred_wgrad", "gradient_scaling", "nan_checks"):
        return {"backward": 1.0}
    if leaf in WAITING:
        return {"communication": 1.0}
    if leaf.startswith("optimizer_"):
        return {"optimizer": 1.0}
    shared = {"vocabulary": VOCABULARY, "slower_layers": VOCABULARY, "launch_gaps": GAPS, "host_bound": GAPS}
    return shared.get(leaf, {})


def by_phase(terms: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every phase from seconds of the leaves of the time tree. [s]"""
    found = dict.fromkeys(PHASES, 0.0)
    for leaf, seconds in terms.items():
        for phase, share in phases_of(leaf).items():
            found[phase] += share * seconds
    return found
