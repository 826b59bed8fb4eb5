"""What a row of an unknown recipe leaves unsaid, what else that may have been, and what the step time then is.

Of a source that we know `measurements/habits.toml` says how it runs, and which columns its publisher does not print and
its runs do not tell. Of software that anyone may run it says only what is usual, and any empty column may stand for
something else. Such a row is read again with each of those columns filled otherwise, one at a time; what a run may have
had besides (kernels, graphs, offloading) is not tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from advisor.measurements import Case, row_case
from advisor.measurements.experts import dispatcher_stated
from advisor.measurements.habits import habit_of
from advisor.measurements.memory import refuted, spread_of_experts
from advisor.measurements.plans import accumulation
from advisor.measurements.recompute import granularity, recompute_knobs
from advisor.measurements.rows import SWITCHES, Row
from advisor.ranking import NOISE
from advisor.rules import violations
from advisor.space import usual_dispatcher
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction


@dataclass(frozen=True)
class Unsaid:
    """A column that a row leaves empty: what was taken for it, what else it may have held.

    ratio: step time with that over the step time as the row was read, both by the formulas. [1]
    """

    column: str
    taken: str
    other: str
    ratio: float

    def to_dict(self) -> dict[str, Any]:
        """As `advisor validate --json` has it."""
        return {"column": self.column, "taken": self.taken, "other": self.other, "step_ratio": self.ratio}


@dataclass(frozen=True)
class Silence:
    """A column that several rows leave empty, read alike, in words, and the ends of their ratios. [1]"""

    column: str
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
                key = (each["column"], each["taken"])
                groups.setdefault(key, []).append((each["other"], each["step_ratio"]))
    found = []
    for (column, taken), readings in groups.items():
        others = sorted({other for other, _ in readings}, key=lambda other: (len(other), other))
        ratios = [ratio for _, ratio in readings]
        words = others[0] if len(others) == 1 else f"{others[0]} to {others[-1]}"
        found.append(Silence(column, taken, words, len(readings), min(ratios), max(ratios)))
    return sorted(found, key=lambda each: (-each.rows, each.column, each.taken))


def unsaid(case: Case, read: Prediction) -> list[Unsaid]:
    """What a row leaves unsaid, with the reading of each column that moves its step time most, largest effect first.

    Of a source that we know only the columns that it is known not to print. read: the prediction of the row as it was
    read. A reading that breaks a rule which that does not break, or that memory refutes where it needs more than that,
    is none, nor is a larger micro-batch for which memory asks for more recompute, nor experts that only sharded
    parameters make fit: nobody pays for one with that.
    """
    habit = habit_of(case.row)
    columns = [
        each for each in _open_columns(case) if habit.get("anyone") or each[0] in habit.get("unprinted", ())
    ]
    broken = _errors(case) if columns else set()
    found: dict[str, Unsaid] = {}
    for column, taken, other in columns:
        again = row_case(Row(case.row.values | {column: other}))
        if not isinstance(again, Case) or _errors(again) - broken:
            continue
        if again.plan.micro_batch > case.plan.micro_batch and _recompute(again.plan) != _recompute(case.plan):
            continue
        if column == "etp" and again.plan.fsdp and not case.plan.fsdp:
            continue
        told = predict(again.model, again.workload, again.cluster, again.plan, again.stack, judged=False)
        if refuted(told) and told.peak_memory_bytes > read.peak_memory_bytes:
            continue
        reading = Unsaid(column, taken, other, told.step_time_s / read.step_time_s)
        if column not in found or abs(reading.ratio - 1) > abs(found[column].ratio - 1):
            found[column] = reading
    return sorted(found.values(), key=lambda each: -abs(each.ratio - 1))


def _recompute(plan: Plan) -> tuple[str, tuple[str, ...], int]:
    """What a plan computes again in the backward pass."""
    return plan.recompute, plan.recompute_modules, plan.recompute_num_layers


def _errors(case: Case) -> set[str]:
    """Ids of the rules that a plan cannot break and run."""
    broken = violations(case.model, case.workload, case.cluster, case.plan, stack=case.stack)
    return {each.id for each in broken if each.severity == "ERROR"}


def _open_columns(case: Case) -> Iterator[tuple[str, str, str]]:
    """Columns that are empty, or hold what nobody can read: what was taken, and each thing else it may be."""
    row, model, plan = case.row, case.model, case.plan
    if model.moe is not None:
        if plan.tp > 1 and not row.text("etp"):
            yield "etp", str(plan.etp), str(plan.tp if plan.etp == 1 else 1)
        for size in spread_of_experts(row, model, case.cluster, plan)[-1:]:
            yield "ep", "1", str(size)
        if plan.ep > 1 and not dispatcher_stated(row, habit_of(row)):
            kinds = {
                "alltoall",
                usual_dispatcher(case.cluster, case.stack, plan.moe_pad_expert_input_to_capacity),
            } - {plan.moe_dispatcher}
            yield from (("moe_dispatcher", plan.moe_dispatcher, kind) for kind in sorted(kinds))
    if plan.pp > 1 and not (row.text("vp") or row.text("pp_layout") or "schedule" in row.json("other_flags")):
        widest = -(-model.num_layers // plan.pp)  # one layer each
        sizes = [size for size in range(2, widest) if model.num_layers % (plan.pp * size) == 0]
        others = {1, *sizes, widest} - {plan.vpp}
        yield from (("vp", str(plan.vpp), str(size)) for size in sorted(others))
    if not (row.number("mbs") or accumulation(row, case.workload.global_batch // plan.dp)):
        yield "mbs", str(plan.micro_batch), "1" if plan.micro_batch > 1 else "2"
    if not granularity(row)[0]:
        some = plan.recompute == "full" and plan.recompute_num_layers
        taken = f"{plan.recompute_num_layers} layers" if some else plan.recompute
        if taken != "full":
            yield "recompute_granularity", taken, "full"
        elif recompute_knobs(row, habit_of(row), plan.vpp, 1, [])[0] == "full":  # not for want of memory
            yield "recompute_granularity", taken, "none"
    if habit_of(row)["family"] == "torchtitan" and not row.text("fsdp") and plan.dp * plan.cp > 1:
        yield "fsdp", *(("1", "0") if plan.fsdp else ("0", "1"))
    if model.mtp_layers and not row.text("mtp_layers"):
        yield "mtp_layers", str(model.mtp_layers), "0"
    for column, acts in (
        ("sequence_parallel", plan.tp > 1 and model.moe is None),
        ("tp_comm_overlap", plan.tp > 1),
        ("overlap_grad_reduce", plan.dp * plan.cp > 1),
    ):
        if acts and row.text(column).strip().lower() not in SWITCHES:
            on = getattr(plan, column)
            yield column, *(("1", "0") if on else ("0", "1"))
