"""What regressions on our own errors make of the ranking of one source: a yardstick in docs/accuracy.md.

They are trained on our errors at the other runs of the very same source, with every layout knob as a feature, and
correct the runs left out: one run, or every run of a layout, whose other micro-batches tell its errors almost whole.
They may use what no physics may, so that what several of them leave wrong is hardly in the columns of the table. It is
no bound: another regression may do better.
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


def trees(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Extremely randomised trees with two runs a leaf."""
    from sklearn.ensemble import ExtraTreesRegressor

    fitted = ExtraTreesRegressor(200, min_samples_leaf=2, random_state=SEED).fit(x, y)
    return lambda at: np.asarray(fitted.predict(at), dtype=np.float64)


def boosting(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Gradient boosting of small trees."""
    from sklearn.ensemble import GradientBoostingRegressor

    shape = {"n_estimators": 150, "learning_rate": 0.05, "subsample": 0.8}
    fitted = GradientBoostingRegressor(max_depth=3, random_state=SEED, **shape).fit(x, y)
    return lambda at: np.asarray(fitted.predict(at), dtype=np.float64)


REGRESSIONS: Mapping[str, Fit] = {
    "Gaussian process": gaussian_process,
    "extra trees": trees,
    "gradient boosting": boosting,
}


def left_out(x: Floats, errors: Floats, fit: Fit, groups: Sequence[Hashable]) -> Floats:
    """Each run's error as the runs of other groups tell it."""
    told = np.empty_like(errors)
    for group in dict.fromkeys(groups):
        out = np.array([each == group for each in groups])
        told[out] = fit(x[~out], errors[~out])(x[out])
    return told


def corrected(runs: Sequence[Timed], x: Floats, fit: Fit, groups: Sequence[Hashable]) -> list[Timed]:
    """The runs, their predictions multiplied by the error that runs of other groups tell."""
    varying = x[:, np.ptp(x, axis=0) > 0]
    errors = np.log([run.measured / run.predicted for run in runs])
    factors = np.exp(left_out(varying, errors, fit, groups))
    return [
        replace(run, predicted=run.predicted * float(factor))
        for run, factor in zip(runs, factors, strict=True)
    ]


def mean_error(runs: Sequence[Timed]) -> float:
    """Mean of |predicted / measured - 1|. [1]"""
    return float(np.mean([abs(run.predicted / run.measured - 1) for run in runs]))


def _shares(runs: Sequence[Timed]) -> Mapping[str, Any]:
    return share_right([pair for pair in pairs(runs) if pair.kind == "plan"])


def layout(case: Case) -> Hashable:
    """What runs share that differ by micro-batch alone."""
    plan = case.plan
    return (case.model, case.workload, plan.world, plan.tp, plan.pp, plan.vpp, plan.cp, plan.ep)


def regression_section(
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
        groups: dict[str, list[Hashable]] = {
            "a run": [run.id for run in runs],
            "a layout": [layout(case) for _, case in members],
        }
        known = {("ours", ""): runs} | {
            (name, out): corrected(runs, x, fit, groups[out])
            for out in groups
            for name, fit in regressions.items()
        }
        for (name, out), told in known.items():
            share = percent(_shares(told)["share"])
            rows.append([str(source), name, out, str(ours["n"]), share, percent(mean_error(told))])
    if not rows:
        return []
    return [
        "",
        "How much of that order layouts tell, as far as some regressions show: trained on our errors at the other "
        "runs of the same source, with every parallel size, micro-batch, batch and width as features, they correct the "
        "runs left out (`benchmarks/accuracy_regressions.py`). They may use what no physics may, the source's own "
        "runs. With a layout left out, its other micro-batches are too.",
        "",
        *table(["source", "prediction", "left out", "pairs", "right", "mean error"], rows),
    ]
