"""Of plans that are predicted too close to tell apart, the simplest: what is simpler, and how close that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from advisor.search.candidates import Candidate
from costmodel.columns import MODULE_COLUMNS, Array
from costmodel.prediction import TIGHT_ABOVE
from hardware_db.order import Order, load_order

# Layouts that are looked at, from the fastest on, however many are asked for.
SIMPLEST_OF = 5
# Times as many chunks a stage that have to gain more than a toss-up may hide: some more are no less simple a plan.
MANY_MORE_CHUNKS = 4
# Mean error of reserved memory where published runs tell it (docs/accuracy.md, 34 runs of SimuMax). [1]
MEMORY_ERROR = 0.03
SPLITS = ("tp", "pp", "cp", "etp")
EXTRAS = ("recompute", *MODULE_COLUMNS, "fsdp", "zero_stage", "cp_comm_type", "pipeline_layout")
SWITCHES = ("tp_comm_overlap", "fp8_param_gather", "cuda_graph", "account_embedding", "account_loss")


def toss_up() -> Order:
    """The closest pairs of published plans: what is predicted of them tells little of which is faster."""
    return load_order()[0]


def simpler_than_faster(best: Candidate, others: Sequence[Candidate]) -> str:
    """What to say where the best is not the fastest, "" where it is. others: those that are shown beside it."""
    if not best.behind:
        return ""
    shown = any(each.step_time < best.step_time for each in others)
    below = "below 0: " if shown else f"the fastest is faster by {100 * best.behind:.1f} %: "
    return (
        f"{below}plans within {100 * toss_up().below:.0f} % count as equal, and this is the simplest of them."
    )


def complexity(column: Callable[[str], Array]) -> Array:
    """Number of things that plans ask for beyond the default: doublings of sizes, and knobs. [1]

    Sizes that are no powers of two count their odd part twice: such groups fill no node, and PP8 is simpler than PP9.
    column: a knob's value in every plan, by name.
    """
    split = math.prod(column(name) for name in SPLITS)
    whole = np.asarray(split).astype(np.int64)
    odd = whole // (whole & -whole)
    sizes = np.log2(split * column("vpp") * odd)
    return sizes + sum(column(name) for name in (*EXTRAS, *SWITCHES, "overlap_moe_comm"))


def fewer_chunks(
    chosen: tuple[float, int],
    pipelines: Sequence[int],
    most: float,
    chunks: Callable[[int], float],
    value: Callable[[int], float],
) -> tuple[float, int]:
    """Of pipelines of one layout that with fewest chunks below `most`, of a quarter of the chosen's, else the chosen.

    chosen, and what is returned: value and number of a plan. chunks: of a stage, by a plan's number; value: what the
    search minimises, the pipeline simulated.
    """
    few = [each for each in pipelines if chunks(each) * MANY_MORE_CHUNKS <= chunks(chosen[1])]
    for number in sorted(few, key=chunks):
        found = value(number)
        if found < most:
            return found, number
    return chosen


def simplest_first(
    found: Sequence[tuple[float, int]], simple: Callable[[int], float], need: Callable[[int], float]
) -> list[tuple[float, int]]:
    """Values and numbers of plans in order of value, with the simplest of those within a toss-up of the first in front.

    simple: `complexity` of a plan by its number. Of equally simple ones the faster. need: the share of the device's
    memory that a plan takes [1]; one that may stall where the first cannot is not simpler to run.

    Examples
    --------
    >>> simple = {7: 6.3, 8: 3.0, 9: 0.0}.__getitem__
    >>> simplest_first([(1.0, 7), (1.004, 8), (1.5, 9)], simple, lambda number: 0.5)
    [(1.004, 8), (1.0, 7), (1.5, 9)]
    >>> simplest_first([(1.0, 7), (1.004, 8), (1.5, 9)], simple, {7: 0.8, 8: 0.93, 9: 0.5}.__getitem__)
    [(1.0, 7), (1.004, 8), (1.5, 9)]
    """
    most = found[0][0] * (1 + toss_up().below)
    room = max(TIGHT_ABOVE - MEMORY_ERROR, need(found[0][1]))
    close = [each for each in found[:SIMPLEST_OF] if each[0] < most and need(each[1]) <= room]
    first = min(close, key=lambda each: (simple(each[1]), each[0]))
    return [first, *(each for each in found if each is not first)]
