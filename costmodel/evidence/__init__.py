"""What published runs say about a prediction: the nearest ones, and how far it may be off.

The interval is a local conformal quantile: the 90 % quantile of errors at the nearest runs, weighted by an
exponential kernel, in quadrature with a part that grows with their distance and with the uncertainty of the
fitted constants. It stands around the prediction less the error that runs close by share, which takes a sixth
off the errors of runs left out one by one, and nothing where their model or source is left out too. Distances
and errors are those of `costmodel.evidence.runs`.

References
----------
Local quantiles of held-out errors: Y. Romano et al., NeurIPS 2019, arXiv:1905.03222; kernel weights:
L. Guan, Biometrika 110 (2023), arXiv:2106.08460.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.evidence.basis import basis
from costmodel.evidence.runs import SPREAD, Table, Z
from costmodel.evidence.setting import differences
from hardware_db.evidence import EVIDENCE_FILE, Evidence, Setting, load_evidence, load_spread

# The prediction itself lies inside its interval by this much. [log]
MARGIN = 0.02
# Half of the interval without any published run. [log]
WIDE = 0.45
NO_EVIDENCE = "no published run is on file: a wide interval is assumed"


@dataclass(frozen=True)
class Near:
    """A published run near a query. distance [1]; differences: what the query has instead, biggest first."""

    run: Evidence
    distance: float
    differences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`. our_error is predicted / measured - 1."""
        run = self.run
        return {
            "id": run.id,
            "source": run.source,
            "date": run.date,
            "model": run.model,
            "task": run.task,
            "cluster": run.cluster,
            "gpus": run.gpus,
            "global_batch": int(run.global_batch),
            "seq_len": int(run.seq_len),
            "precision": run.precision,
            "stack": run.stack,
            "measured_step_time_s": run.measured_step_time_s,
            "our_error": math.expm1(run.error),
            "distance": round(self.distance, 3),
            "differences": list(self.differences),
        }


@dataclass(frozen=True)
class Interval:
    """log(low / predicted) and log(high / predicted), what they rest on, and the parts of the half-width."""

    low: float
    high: float
    basis: str
    parts: dict[str, float] = field(default_factory=dict)


@lru_cache(maxsize=4)
def evidence_table(path: Path = EVIDENCE_FILE) -> Table:
    """The published runs on file with the constants learnt from them."""
    record = load_spread(path)
    spread = record.get("spread", {})
    return Table(
        load_evidence(path),
        SPREAD | {name: float(spread[name]) for name in SPREAD if name in spread},
        record.get("untuned", {}),
    )


def interval(
    query: Setting, run_id: str = "", parameter_spread: float = 0.0, table: Table | None = None
) -> Interval:
    """Where 90 % of measurements lie around a prediction.

    run_id: a run of the table that the query is. parameter_spread: standard error of the step time by the fitted
    constants. [log] table: published runs, None for those on file.
    """
    table = evidence_table() if table is None else table
    distances = table.without(table.distances(query), run_id) if table.runs else np.zeros(0)
    if not np.isfinite(distances).any():
        width = math.hypot(WIDE, Z * parameter_spread)
        return Interval(-width, width, NO_EVIDENCE)
    mine = np.isfinite(distances) & (table.other("model", query.model) == 0)
    known = bool(mine.any())
    width, parts = table.half_width(distances, known, parameter_spread)
    centre = -table.shared(distances, known)
    low, high = min(centre - width, -MARGIN), max(centre + width, MARGIN)
    return Interval(low, high, basis(table, query, distances, known), parts)


def nearest(
    query: Setting, run_id: str = "", number: int = 3, table: Table | None = None
) -> tuple[Near, ...]:
    """The nearest runs, one of each model, machine, size and precision, with what the query has instead.

    run_id and table as of `interval`.
    """
    table = evidence_table() if table is None else table
    if not table.runs:
        return ()
    terms = table.terms(query)
    distances = table.without(np.sum(list(terms.values()), axis=0), run_id)
    resized = table.resized(query)
    shown = terms | {name: terms.get(name, 0.0) + away for name, away in resized.items()}
    found: dict[tuple[Any, ...], Near] = {}
    for index in np.lexsort((np.stack(list(resized.values())).sum(axis=0), np.round(distances, 6))):
        run = table.runs[index]
        key = (run.model, run.cluster, run.gpus, run.precision, run.task)
        if len(found) == number or not np.isfinite(distances[index]):
            break
        if key not in found:
            own = {name: float(values[index]) for name, values in shown.items()}
            found[key] = Near(run, float(distances[index]), differences(query, run, own))
    return tuple(found.values())


def untuned_interval(tuned: Interval) -> Interval:
    """The interval of a run that nobody tuned for speed: as wide as such published runs lie, none of them fitted.

    tuned: what a run of its plan would have otherwise. Unchanged without such runs on file.
    """
    record = evidence_table().untuned
    if not record:
        return tuned
    low, high = math.log(record["quicker"]), math.log(record["slower"])
    basis = f"where {record['runs']} published runs lie that nobody tuned for speed"
    return Interval(min(low, tuned.low), max(high, tuned.high), basis)


def own_interval(tables: Mapping[str, Any]) -> Interval | None:
    """Where runs on a user's machine lie, when its profile was learned from enough of them; else None.

    tables: of `hardware_db.load_calibration`. The half-width is that of runs told by constants learned without them.
    """
    own = tables.get("evidence")
    if own is None:
        return None
    width = max(float(own["half_width"].si), MARGIN)
    runs = int(own["runs"].si)
    return Interval(
        -width, width, f"2.44 times the median error of {runs} runs here, each told without itself"
    )
