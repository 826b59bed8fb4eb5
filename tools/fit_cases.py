"""Published runs as stacked inputs of the cost model: what a fit of the step constants works on."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from advisor.measurements import Case, Skip, read_rows, row_case
from advisor.measurements.plans import habit_of
from costmodel.binding import step_keys
from costmodel.columns import plan_columns
from costmodel.family import compiled_family
from costmodel.plan_array import PlanArray
from costmodel.step_constants import NOT_FITTED

# States of one release's code before its last: what they lack no column says, so that their times would be taken for
# the host's. They are predicted and ranked all the same.
UNRELEASED = re.compile(r"step (\d+) of (?!\1 )\d+ of a cumulative optimisation history")


@dataclass
class StackedCases:
    """Cases as stacked inputs: one array per symbol, one element per case."""

    cases: list[Case]
    inputs: dict[str, np.ndarray]
    measured: np.ndarray
    weights: np.ndarray
    # rows of each family of formulas
    families: dict[frozenset[str], np.ndarray]
    # constant -> input symbol -> mask of the cases in which it gives that symbol its number
    symbols_of: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def mask(self, parameter: str) -> np.ndarray:
        """Cases that a constant moves at all."""
        return np.any(list(self.symbols_of[parameter].values()), axis=0)

    def residuals(self, parameters: list[str], values: np.ndarray) -> np.ndarray:
        """log(predicted / measured) of every case with some constants replaced."""
        inputs = dict(self.inputs)
        for parameter, value in zip(parameters, values, strict=True):
            for symbol, mask in self.symbols_of[parameter].items():
                inputs[symbol] = np.where(mask, value, inputs[symbol])
        predicted = np.empty(len(self.measured))
        for family, rows in self.families.items():
            own = {name: array[rows] for name, array in inputs.items()}
            predicted[rows] = compiled_family(family).search(own)["step_time"]
        return np.log(predicted / self.measured)


def load_cases(path: Path) -> list[Case]:
    """Cases of the table that are fitted: current rows whose plan is stated well enough."""
    cases = []
    for row in read_rows(path):
        case = row_case(row)
        notes = row.text("notes")
        if isinstance(case, Skip) or row.text("superseded") == "1":
            continue
        if case.row.untuned or UNRELEASED.search(notes) or habit_of(row).get("guessed"):
            continue
        cases.append(case)
    return cases


def stack_cases(cases: list[Case], shares: list[float]) -> StackedCases:
    """Bind every case and stack its inputs. shares: what each case counts beside its group's weight."""
    columns: dict[str, list[float]] = collections.defaultdict(list)
    keys: list[dict[str, str]] = []
    families: list[frozenset[str]] = []
    for case in cases:
        knobs = plan_columns([case.plan])
        plan = PlanArray(case.model, case.workload, case.cluster, case.plan.precision, knobs, case.stack)
        families.append(plan.features)
        for name, entry in plan.bound().items():
            columns[name].append(entry.value)
        for name, array in plan.inputs().items():
            columns[name].append(float(np.ravel(array)[0]))
        keys.append(step_keys(case.model, case.cluster, case.plan.precision, case.stack))
    # Many runs of one model on one system say much the same.
    groups = [(case.model.name, case.cluster.name, case.stack, case.plan.precision) for case in cases]
    count = collections.Counter(groups)
    stack = StackedCases(
        cases=cases,
        inputs={name: np.array(values) for name, values in columns.items()},
        measured=np.array([case.measured_step_time_s for case in cases]),
        weights=np.array(
            [share * count[group] ** -0.25 for share, group in zip(shares, groups, strict=True)]
        ),
        families={
            family: np.flatnonzero([one == family for one in families]) for family in dict.fromkeys(families)
        },
    )
    for symbol in dict.fromkeys(symbol for own in keys for symbol in own):
        names = [own.get(symbol, "") for own in keys]
        for key in sorted(set(names) - {""}):
            if key.split("/")[0] not in NOT_FITTED:
                stack.symbols_of.setdefault(key, {})[symbol] = np.array([one == key for one in names])
    return stack
