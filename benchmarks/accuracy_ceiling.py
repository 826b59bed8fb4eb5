"""How well layouts alone can rank the runs of one work: the ceiling beside which docs/accuracy.md puts our ranking.

Regressions are trained on our errors at the other runs of the very same source, with every layout knob as a feature,
and correct the run left out. No physics can use more of a row than that: what they still rank wrongly is not in the
columns of the table (nodes, links, what else ran), or repeats nowhere in it.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from accuracy_sections import Report, percent, table
from numpy.typing import NDArray

from advisor.measurements import Case
from advisor.ranking import Timed, pairs, share_right
from advisor.validation import timed

# A source with fewer pairs teaches a regression nothing; with more runs, leaving each out takes hours.
MIN_PAIRS, MAX_RUNS = 200, 400
SEED = 0
Floats = NDArray[np.float64]
Fit = Callable[[Floats, Floats], Callable[[Floats], Floats]]


def features(case: Case) -> list[float]:
    """log2 of every size that tells the runs of a source apart."""
    plan, workload, model = case.plan, case.workload, case.model
    sizes = (plan.micro_batch, plan.tp, plan.pp, plan.vpp, plan.cp, plan.ep, plan.dp, plan.world)
    return [math.log2(size) for size in (*sizes, workload.global_batch, workload.seq_len, model.hidden)]


def gaussian_process(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Smooth in every feature, each with a length of its own, and noise; all by marginal likelihood."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    smooth = ConstantKernel(1.0) * RBF(np.full(x.shape[1], 2.0), (0.3, 30.0))
    kernel = smooth + WhiteKernel(0.1, (1e-3, 1.0))
    with warnings.catch_warnings():
        # A feature that does not matter has the longest length there is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = GaussianProcessRegressor(kernel, normalize_y=True, random_state=SEED).fit(x, y)
    return lambda at: np.asarray(fitted.predict(at), dtype=np.float64)


def forest(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """A random forest with three runs a leaf."""
    from sklearn.ensemble import RandomForestRegressor

    fitted = RandomForestRegressor(200, min_samples_leaf=3, random_state=SEED).fit(x, y)
    return lambda at: np.asarray(fitted.predict(at), dtype=np.float64)


REGRESSIONS: Mapping[str, Fit] = {"Gaussian process": gaussian_process, "random forest": forest}


def left_out(x: Floats, errors: Floats, fit: Fit) -> Floats:
    """Each run's error as the other runs tell it."""
    told = np.empty_like(errors)
    for run in range(len(errors)):
        others = np.arange(len(errors)) != run
        told[run] = fit(x[others], errors[others])(x[run : run + 1])[0]
    return told


def corrected(runs: Sequence[Timed], x: Floats, fit: Fit) -> list[Timed]:
    """The runs, their predictions multiplied by the error that the others tell."""
    varying = x[:, np.ptp(x, axis=0) > 0]
    errors = np.log([run.measured / run.predicted for run in runs])
    factors = np.exp(left_out(varying, errors, fit))
    return [
        replace(run, predicted=run.predicted * float(factor))
        for run, factor in zip(runs, factors, strict=True)
    ]


def mean_error(runs: Sequence[Timed]) -> float:
    """Mean of |predicted / measured - 1|. [1]"""
    return float(np.mean([abs(run.predicted / run.measured - 1) for run in runs]))


def _shares(runs: Sequence[Timed]) -> Mapping[str, Any]:
    return share_right([pair for pair in pairs(runs) if pair.kind == "plan"])


def ceiling_section(
    report: Report, cases: Mapping[str, Case], regressions: Mapping[str, Fit] = REGRESSIONS
) -> list[str]:
    """Per source with many pairs: ranked by us, and by regressions on our errors at its other runs."""
    sources: dict[Hashable, list[tuple[Timed, Case]]] = defaultdict(list)
    for result in report["rows"]:
        case = cases[result["id"]]
        sources[result["source"]].append((timed(case, result), case))
    rows = []
    for source, members in sources.items():
        runs = [run for run, _ in members]
        ours = _shares(runs)
        if ours["n"] < MIN_PAIRS or len(runs) > MAX_RUNS:
            continue
        x = np.array([features(case) for _, case in members])
        known = {"ours": runs, **{name: corrected(runs, x, fit) for name, fit in regressions.items()}}
        for name, told in known.items():
            share = _shares(told)
            rows.append(
                [str(source), name, str(share["n"]), percent(share["share"]), percent(mean_error(told))]
            )
    if not rows:
        return []
    return [
        "",
        "How much of that order layouts can tell at all: regressions trained on our errors at all other runs of the "
        "same source, with every parallel size, micro-batch, batch and width as features, correct the run left out "
        "(`benchmarks/accuracy_ceiling.py`). They may use what no physics may, the source's own runs; what they rank "
        "wrongly as well is not in the table's columns.",
        "",
        *table(["source", "prediction", "pairs", "right", "mean error"], rows),
    ]
