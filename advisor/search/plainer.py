"""Plainer plans where more gains nothing: BF16 for fewer bits, kernels launched one by one for CUDA graphs.

Fewer bits are worth their risk, and graphs their memory and fixed shapes, for the time that they save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from advisor.request import Request
from advisor.rules import Mask
from advisor.search.candidates import Candidate, candidate
from advisor.search.scored import Scored
from advisor.search.simplest import toss_up
from costmodel.plan import Plan

# The format that loses no accuracy, and what comes with those that may.
EXACT = "bf16"
OF_FORMATS = ("precision", "fp8_param_gather", "reuse_grad_buf", "cudnn_norms")


def exact_twins(
    scored: Sequence[Scored], part: int, row: int, ranked: Callable[[Scored], Mask]
) -> list[Plan]:
    """The plan of a row in BF16, where it is one of the spaces and no slower but for a toss-up: one or none.

    Fewer bits are worth their risk for what they gain, and where attention or the host binds that is nothing.
    ranked: the mask of plans that count. By the closed form.
    """
    plan, found = scored[part], []
    if plan.space.precision in (EXACT, "fp16", "fp32"):
        return []
    for each in scored:
        if each.space.precision == EXACT and each.gpus == plan.gpus:
            close = ranked(each) & (each.step_time < plan.step_time[row] * (1 + toss_up().below))
            rows = np.flatnonzero(close)
            for name in plan.space.grid:
                if name not in OF_FORMATS:
                    same = each.space.column(name, rows) == plan.space.column(name, np.array([row]))
                    rows = rows[same]
            found += each.plans(rows[np.argsort(each.step_time[rows])][:1])
    return found


def without_graphs(request: Request, found: Candidate, most: float) -> Candidate:
    """The plan without CUDA graphs where that takes less than `most` [s], unless the request pins them."""
    if not found.plan.cuda_graph or "cuda_graph" in request.pins:
        return found
    plain = candidate(request, replace(found.plan, cuda_graph=False))
    return plain if plain.step_time < most else found
