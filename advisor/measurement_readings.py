"""What a row of an unknown recipe leaves unsaid, what else that may have been, and what the step time then is.

Of a source that we know `measurement_habits.toml` says how it runs. Of software that anyone may run it says only what
is usual, and an empty column may stand for something else: each such column has another reading here, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.measurement_habits import habit_of
from advisor.measurement_memory import refuted
from advisor.measurement_sizes import stage_layout
from advisor.measurements import Case
from advisor.ranking import NOISE
from advisor.rules import violations
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction


@dataclass(frozen=True)
class Unsaid:
    """A thing that a row does not say: what was taken for it, what else it may have been.

    ratio: step time with that over the step time as the row was read. [1]
    """

    name: str
    taken: str
    other: str
    ratio: float

    def to_dict(self) -> dict[str, Any]:
        """As `advisor validate --json` has it."""
        return {"name": self.name, "taken": self.taken, "other": self.other, "step_ratio": self.ratio}


@dataclass(frozen=True)
class _Reading:
    """A row read otherwise in one thing: its name, what was taken, what else it may be; model and plan with that."""

    name: str
    taken: str
    other: str
    model: ModelSpec
    plan: Plan


@dataclass(frozen=True)
class Silence:
    """One thing that several rows do not say, read alike, in words, and the ends of their ratios. [1]"""

    name: str
    taken: str
    other: str
    rows: int
    least: float
    most: float


def silences(rows: Iterable[Mapping[str, Any]]) -> list[Silence]:
    """What rows of a report leave unsaid that moves their time by more than noise, most rows first."""
    groups: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for row in rows:
        for each in row["unsaid"]:
            if abs(each["step_ratio"] - 1) > NOISE:
                groups.setdefault((each["name"], each["taken"]), []).append(
                    (each["other"], each["step_ratio"])
                )
    found = []
    for (name, taken), readings in groups.items():
        others = sorted({other for other, _ in readings}, key=lambda other: (len(other), other))
        ratios = [ratio for _, ratio in readings]
        words = others[0] if len(others) == 1 else f"{others[0]} to {others[-1]}"
        found.append(Silence(name, taken, words, len(readings), min(ratios), max(ratios)))
    return sorted(found, key=lambda each: (-each.rows, each.name, each.taken))


def unsaid(case: Case, read: Prediction) -> list[Unsaid]:
    """What a row leaves unsaid that moves its step time, largest effect first; nothing of a source that we know.

    read: the prediction of the row as it was read. A reading that breaks a rule which that does not break, or that
    memory refutes, is none.
    """
    if not habit_of(case.row).get("anyone", False):
        return []
    broken = _errors(case, case.model, case.plan)
    found = []
    for each in _readings(case):
        try:
            if _errors(case, each.model, each.plan) - broken:
                continue
            told = predict(each.model, case.workload, case.cluster, each.plan, case.stack, judged=False)
        except ValueError:
            continue
        if not refuted(told):
            ratio = told.step_time_s / read.step_time_s
            found.append(Unsaid(each.name, each.taken, each.other, ratio))
    return sorted(found, key=lambda each: -abs(each.ratio - 1))


def _errors(case: Case, model: ModelSpec, plan: Plan) -> set[str]:
    """Names of the rules that a plan cannot break and run."""
    broken = violations(model, case.workload, case.cluster, plan, stack=case.stack)
    return {each.id for each in broken if each.severity == "ERROR"}


def _readings(case: Case) -> Iterator[_Reading]:
    """Each thing that the row does not say, with what else it may be: the parallel layout, the layers, the switches."""
    row, model, plan = case.row, case.model, case.plan
    experts = model.moe is not None

    def silent(*columns: str) -> bool:
        return not any(row.text(column) for column in columns)

    def other(name: str, taken: object, instead: object, **knobs: Any) -> _Reading:
        return _Reading(name, str(taken), str(instead), model, replace(plan, **knobs))

    if experts and plan.tp > 1 and silent("etp"):
        etp = plan.tp if plan.etp == 1 else 1
        if plan.world % (plan.pp * plan.ep * etp) == 0:
            yield other("expert tensor parallel size", plan.etp, etp, etp=etp)
    if experts and plan.ep > 1 and silent("moe_dispatcher"):
        kind = "deepep" if plan.moe_dispatcher == "alltoall" else "alltoall"
        yield other("dispatcher of experts", plan.moe_dispatcher, kind, moe_dispatcher=kind)
    if plan.pp > 1 and silent("vp", "pp_layout"):
        chunks = 1 if plan.vpp > 1 else -(-model.num_layers // plan.pp)  # one layer each, as wide as they go
        layout = stage_layout(row, model, {"pp": plan.pp, "vpp": chunks}, [])
        yield other("virtual stages", plan.vpp, chunks, vpp=chunks, **layout)
    if silent("recompute_granularity", "recompute_modules"):
        kind = "none" if plan.recompute == "full" else "full"
        layers = {"recompute_modules": (), "recompute_num_layers": 0}
        yield other("recompute", plan.recompute, kind, recompute=kind, **layers)
    if model.mtp_layers and silent("mtp_layers"):
        yield _Reading("MTP layers", str(model.mtp_layers), "0", replace(model, mtp_layers=0), plan)
    for name, knob, acts in (
        ("sequence parallelism", "sequence_parallel", plan.tp > 1 and not experts),
        ("overlap of tensor parallelism", "tp_comm_overlap", plan.tp > 1),
        ("overlap of gradient reduction", "overlap_grad_reduce", plan.dp > 1),
    ):
        if acts and silent(knob):
            on = getattr(plan, knob)
            yield other(name, *(("on", "off") if on else ("off", "on")), **{knob: not on})
