"""Reading one side of a comparison: a plan file with its prediction, the record of a run, or a log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.comparison.record import Side, run_side

if TYPE_CHECKING:
    from advisor.case import Case


def read_side(path: str, options: dict[str, Any] | None = None, case: Case | None = None) -> Side:
    """A plan file predicted, a run's folder or a log read. ValueError in one line.

    options: setting of a log, which then shows its plan; case: the plan that a log is of, whatever it shows.
    """
    from advisor.comparison.kinds import kind_of

    kind = kind_of(path)
    if kind == "log":
        return _log(path, options or {}, case)
    return run_side(Path(path)) if kind == "run" else _plan(path)


def _log(path: str, options: dict[str, Any], case: Case | None) -> Side:
    """A log with its case, else with the plan that it shows, measured as the record of a run is."""
    from advisor.measured import read_measured
    from executor.logs.compare import work_of_step

    found = read_measured(path, (), case, options, need_plan=True)
    assert found.predicted is not None
    assert found.log is not None
    assert found.kept is not None
    losses = [each.loss for each in found.log.iterations if each.loss is not None and not each.loss_is_lost]
    rate = found.predicted["tokens_per_second_per_gpu"] * found.predicted["step_time_s"]
    rate *= work_of_step(found.predicted, found.log)
    measured = {
        "step_time_s": found.step,
        "step_time_min_s": found.kept.low,
        "spread": found.kept.scatter,
        "num_steps": found.kept.num_steps,
        "tokens_per_second_per_gpu": rate / found.step,
        "phases": {},
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "peak_memory_bytes": [found.peak] if found.peak else [],
    }
    price = found.case.cluster.price_per_gpu_hour if found.case else None
    stack = (found.case.stack or "") if found.case else ""
    told = {"warnings": tuple(found.warnings), "notes": tuple(found.notes)}
    return Side(path, found.predicted, measured, price=price, stack=stack, **told)


def _plan(path: str) -> Side:
    from advisor.case import read_case
    from advisor.plan_faults import plan_faults
    from advisor.rules.predicted_words import all_words
    from costmodel.simulated_pipeline import with_schedule

    case = read_case(path, {})
    with plan_faults(case, path):
        closed_form = case.predict()
        predicted = with_schedule(closed_form).to_dict()
    words = all_words(closed_form, case.stack)
    found = case.violations(words)
    errors = tuple(violation.line() for violation in found if violation.severity == "ERROR")
    return Side(path, predicted, errors=errors, price=case.cluster.price_per_gpu_hour, stack=case.stack or "")
