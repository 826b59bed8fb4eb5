"""Fit the step constants of each GPU generation from published training runs.

    python tools/fit_step.py MEASUREMENTS.csv [MORE.csv ...] [--cross-validate]

Kernel tables say what a kernel reaches alone; inside a training step it shares power, memory and
links. A few physical factors per GPU generation and software family take that up. They are fitted here
on log(predicted / measured) with a robust loss and a prior (value and width stand in PARAMETERS), so
that a constant the rows do not determine stays where physics puts it. Written with residuals and
uncertainty to hardware_db/calibrated/step.toml. Nothing is keyed by model or row.
"""

from __future__ import annotations

import argparse
import collections
import datetime
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tomli_w
from scipy.optimize import least_squares

from advisor.measurements import Skip, read_rows, row_case
from costmodel.binding import bind, interval_kind
from costmodel.columns import plan_columns, plan_inputs
from costmodel.predict import compiled_family, family_features, precision_recipe
from costmodel.step_constants import NOT_FITTED, PRIORS, STEP_FILE, parameter_keys

LEVEL = 0.9  # of the interval that predictions carry
# Runs that their publisher calls functional: waiting for data, natural routing, no kernels tuned.
UNTUNED = "not tuned for speed"
FEW_ROWS = 10  # models with fewer are left out of the fit together
OUTLIER = 0.10  # residuals beyond about this count less and less (soft l1)


@dataclass
class Stack:
    """Cases of one generation as stacked inputs: one array per symbol, one element per case."""

    inputs: dict[str, np.ndarray]
    measured: np.ndarray
    weights: np.ndarray
    models: list[str]
    systems: list[str]
    ids: list[str]
    # rows of each family of formulas
    families: dict[frozenset[str], np.ndarray]
    # constant -> input symbol -> mask of the cases in which it gives that symbol its number
    owners: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def mask(self, parameter: str) -> np.ndarray:
        """Cases that a constant moves at all."""
        return np.any(list(self.owners[parameter].values()), axis=0)


def load_cases(path: Path) -> list:
    """Cases of the table that are fitted: current rows whose cost is built."""
    cases = []
    for row in read_rows(path):
        case = row_case(row)
        if isinstance(case, Skip) or row.text("superseded") == "1" or UNTUNED in row.text("notes"):
            continue
        cases.append(case)
    return cases


def stack_cases(cases: list) -> Stack:
    """Bind every case and stack its inputs."""
    columns: dict[str, list[float]] = collections.defaultdict(list)
    keys: dict[str, list[str]] = collections.defaultdict(list)
    families: list[frozenset[str]] = []
    for case in cases:
        bound = bind(case.model, case.workload, case.cluster, case.plan.precision, case.stack)
        recipe = precision_recipe(case.plan.precision)
        plan = plan_columns([case.plan])
        inputs = plan_inputs(
            plan,
            model=case.model,
            workload=case.workload,
            domain=case.cluster.domain_size,
            precision_bytes=float(recipe["base"]),
            quantised=float(recipe["copies"]) > 1.5,
            block_scaled=case.plan.precision == "mxfp8",
            casts=float(recipe["kernels"]) > 0,
        )
        families.append(family_features(case.model, case.workload, plan))
        for name, entry in bound.items():
            columns[name].append(entry.value)
        for name, array in inputs.items():
            columns[name].append(float(np.ravel(array)[0]))
        for symbol, key in parameter_keys(case.cluster, recipe["gemm"], case.stack).items():
            keys[symbol].append(key)
    groups = collections.Counter(
        (case.model.name, case.cluster.name, case.stack, case.plan.precision) for case in cases
    )
    weights = [
        groups[case.model.name, case.cluster.name, case.stack, case.plan.precision] ** -0.25 for case in cases
    ]
    stack = Stack(
        inputs={name: np.array(values) for name, values in columns.items()},
        measured=np.array([case.measured_step_time_s for case in cases]),
        weights=np.array(weights),
        models=[case.model.name for case in cases],
        systems=[case.cluster.name for case in cases],
        ids=[case.id for case in cases],
        families={
            family: np.flatnonzero([one == family for one in families]) for family in dict.fromkeys(families)
        },
    )
    for symbol, names in keys.items():
        for key in sorted(set(names)):
            if key.split("/")[0] not in NOT_FITTED:
                stack.owners.setdefault(key, {})[symbol] = np.array([one == key for one in names])
    return stack


def residuals(stack: Stack, parameters: list[str], values: np.ndarray) -> np.ndarray:
    """log(predicted / measured) of every case with some constants replaced."""
    inputs = dict(stack.inputs)
    for parameter, value in zip(parameters, values, strict=True):
        for symbol, mask in stack.owners[parameter].items():
            inputs[symbol] = np.where(mask, value, inputs[symbol])
    predicted = np.empty(len(stack.measured))
    for family, rows in stack.families.items():
        own = {name: array[rows] for name, array in inputs.items()}
        predicted[rows] = compiled_family(family).search(own)["step_time"]
    return np.log(predicted / stack.measured)


def fit(
    stack: Stack, rows: np.ndarray, start: dict[str, float] | None = None
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Parameters, fitted values and standard errors (in log space) from the chosen rows.

    start: values to begin from (the fit to all rows), which makes a refit quick.
    """
    parameters = [name for name in stack.owners if (stack.mask(name) & rows).any()]
    priors = [PRIORS[name.split("/")[0]] for name in parameters]
    centre = np.log([prior.value for prior in priors])
    width = np.array([prior.width for prior in priors])
    low = np.log([prior.low for prior in priors])
    high = np.log([prior.high for prior in priors])

    # Below the host-bound regime host_kernel moves nothing, so the search begins well inside it.
    given = {name: 25e-6 for name in parameters if name.startswith("host_kernel/")} | (start or {})
    begin = np.log([given.get(name, np.exp(value)) for name, value in zip(parameters, centre, strict=True)])

    def cost(point: np.ndarray) -> np.ndarray:
        error = residuals(stack, parameters, np.exp(point))[rows] / OUTLIER
        robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        # One row weighs as much as a deviation of a tenth of its width from the prior.
        return np.concatenate([stack.weights[rows] * robust, 0.5 * (point - centre) / width])

    result = least_squares(
        cost,
        np.clip(begin, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        method="trf",
        max_nfev=60 if start is None else 6,
    )
    covariance = np.linalg.pinv(result.jac.T @ result.jac)
    scale = 2 * result.cost / max(1, len(result.fun) - len(centre))
    return parameters, np.exp(result.x), np.sqrt(np.diag(covariance) * scale)


def cross_validate(stack: Stack, groups: list[str], start: dict[str, float]) -> np.ndarray:
    """Relative errors of each row when its group (model or system) is left out of the fit."""
    labels = np.array(groups)
    errors = np.full(len(labels), np.nan)
    for label in sorted(set(groups)):
        held = labels == label
        parameters, values, _ = fit(stack, ~held, start)
        errors[held] = np.exp(residuals(stack, parameters, values)[held]) - 1
    return errors


def _grouped(models: list[str]) -> list[str]:
    """Models as they are left out: those of fewer than ten rows together, and the made-up GPTs of vTrain by width."""
    count = collections.Counter(models)
    wide = [name.split("-l")[0] if name.startswith("gpt-h") else name for name in models]
    return [
        name if count[model] >= FEW_ROWS else "few rows" for name, model in zip(wide, models, strict=True)
    ]


def main() -> None:
    """Fit, report, write."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("csv", type=Path, nargs="+")
    arguments.add_argument("--cross-validate", action="store_true")
    options = arguments.parse_args()
    cases = [case for path in options.csv for case in load_cases(path)]
    assert cases, "no row of the tables can be expressed"
    stack = stack_cases(cases)
    everything = np.ones(len(cases), dtype=bool)
    before = np.abs(np.exp(residuals(stack, [], np.array([]))) - 1)
    parameters, values, errors = fit(stack, everything)
    relative = np.exp(residuals(stack, parameters, values)) - 1
    absolute = np.abs(relative)
    print(
        f"{len(cases)} rows: MAPE {before.mean():.1%} before, {absolute.mean():.1%} fitted, "
        f"median {np.median(absolute):.1%}"
    )
    summary = {"rows": len(cases), "mape": float(absolute.mean()), "median_ape": float(np.median(absolute))}
    generations = np.array(
        [f"{case.cluster.gpu.generation}-{interval_kind(case.model, case.workload)}" for case in cases]
    )
    tables = ", ".join(path.name for path in options.csv)

    def save(held_out: np.ndarray, kind: str) -> None:
        intervals = {
            name: float(np.nanquantile(held_out[generations == name], LEVEL))
            for name in sorted(set(generations))
        }
        write(STEP_FILE, parameters, values, errors, stack, relative, summary, intervals, kind, tables)

    # Already now, for leaving groups out takes long.
    save(absolute, "in the fit")
    if not options.cross_validate:
        return
    start = dict(zip(parameters, values, strict=True))
    for kind, groups in (("system", stack.systems), ("model", _grouped(stack.models))):
        held = np.abs(cross_validate(stack, groups, start))
        print(
            f"leave one {kind} out: MAPE {np.nanmean(held):.1%}, median {np.nanmedian(held):.1%}", flush=True
        )
        summary[f"mape_leave_one_{kind}_out"] = float(np.nanmean(held))
        save(held, f"whose {kind} was left out of the fit")


def write(
    path: Path,
    parameters: list[str],
    values: np.ndarray,
    errors: np.ndarray,
    stack: Stack,
    relative: np.ndarray,
    summary: dict,
    intervals: dict[str, float],
    kind: str,
    table: str,
) -> None:
    """Write the constants with their uncertainty, the rows that determine them and the residuals."""
    today = datetime.date.today()
    record: dict = {"fit": summary | {"table": table, "read_on": today}}
    for parameter, value, error in zip(parameters, values, errors, strict=True):
        name, key = parameter.split("/")
        mask = stack.mask(parameter)
        record.setdefault(name, {})[key] = {
            "value": float(f"{value:.4g}"),
            "unit": PRIORS[name].unit,
            "kind": "measured",
            "source": f"fitted by tools/fit_step.py from {int(mask.sum())} published runs in {table}",
            "read_on": today,
            "log_error": float(f"{min(error, 9.99):.2g}"),
            "residual": float(f"{np.abs(relative[mask]).mean():.2g}"),
            "num_points": int(mask.sum()),
        }
    for name, spread in intervals.items():
        record.setdefault("interval", {})[name] = {
            "value": float(f"{spread:.3g}"),
            "unit": "1",
            "kind": "measured",
            "source": f"{LEVEL:.0%} quantile of the errors of runs {kind}, {table}",
            "read_on": today,
        }
    header = (
        "# Written by tools/fit_step.py; do not edit. Factors of a training step over the kernel tables.\n"
    )
    path.write_text(header + tomli_w.dumps(record))


if __name__ == "__main__":
    main()
