"""What every knob buys on one plan: its neighbours predicted, ranked, and explained by the term that moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from advisor.host_fault import host_fault
from advisor.plan_faults import plan_faults
from advisor.progress import Tell
from advisor.rules import Violation, load_rules
from advisor.rules.predicted_words import predicted_words
from advisor.search.candidates import memory_parts
from advisor.sections import gpus_told
from advisor.whatif.neighbours import Neighbour, named, neighbours
from costmodel.knobs import KNOBS
from costmodel.knobs.names import meant
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule

if TYPE_CHECKING:
    from advisor.case import Case

GIB = 2**30
# Below this share of the step a change is no gain: it is less than what two runs of one plan differ by.
HELPS_ABOVE = 0.001
# Rules that say what a machine lacks: no change uses more of that.
MACHINE_LACKS = frozenset(rule.id for rule in load_rules() if rule.lacks)
# Notes of what is given up for a gain, which a change must not be told without.
PRICES = ("nan_checks_off", "bf16_reduction_wide", "bf16_accumulation")
# Knobs some of whose values lack a cost in the model, these values, and what is not counted: a gain from them is not
# believed.
UNPRICED = {
    "zero_stage": ((0, 2), "a bucket of unsharded gradients is not priced"),
}
# Rules that forbid nothing and yet say that a gain is not to be believed, that the framework takes it back, or that the
# machine lacks what would gain.
DOUBTED = frozenset(
    {
        "head_size",
        "fsdp_cuda_graph",
        "fsdp_alone",
        "fsdp_fused_gradients",
        "fsdp_adapters",
        "shared_overlap_flex",
        "rocm_connections",
        *MACHINE_LACKS,
    }
)
# Below these a knob moves nothing: seconds as a share of the step, and bytes.
STILL_SECONDS, STILL_BYTES = 1e-9, 1024.0
# Knobs that change what is computed, not only how fast: a gain from one of them needs a look at the loss.
NUMERICS = (
    "precision",
    "dropout",
    "moe_capacity_factor",
    "moe_pad_expert_input_to_capacity",
    "grad_reduce_in_fp32",
    "optimizer",
    "main_params_dtype",
    "main_grads_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "fp8_attention",
    "fp8_output",
    "bf16_end_layers",
    "tp_only_amax_red",
    "calculate_per_token_loss",
)


@dataclass(frozen=True)
class Move:
    """The term that moved most. title: of a leaf of the time tree or of a memory part; delta [s] or [byte]."""

    title: str
    delta: float
    unit: str


@dataclass(frozen=True)
class Change:
    """One legal neighbour. deltas are its prediction less the plan's: step time [s], worst rank [byte].

    drove: the term that did most of it, where the one that moved most went the other way. notes: AUTOFIX
    and SILENT rules that it breaks and the plan does not, and what else is given up for it. doubt: why its time is
    not to be believed, "" where it is.
    """

    neighbour: Neighbour
    prediction: Prediction
    delta_time: float
    delta_memory: float
    share: float
    moved: Move | None
    drove: Move | None = None
    notes: tuple[Violation, ...] = ()
    doubt: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits the device."""
        return self.prediction.fits

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        other = self.prediction
        return {
            **named(self.neighbour),
            "step_time_s": other.step_time_s,
            "delta_step_time_s": self.delta_time,
            "delta_share": self.share,
            "worst_rank_gib": other.peak_memory_bytes / GIB,
            "delta_memory_gib": self.delta_memory / GIB,
            "fits": other.fits,
            "tight": other.tight,
            "moves": self.moved is not None,
            "moved_most": asdict(self.moved) if self.moved else None,
            "drove": asdict(self.drove) if self.drove else None,
            "changes_numerics": self.neighbour.knob in NUMERICS,
            "notes": [note.to_dict() for note in self.notes],
            "doubt": self.doubt or None,
        }


@dataclass(frozen=True)
class Forbidden:
    """A neighbour that cannot run, and the first reason."""

    neighbour: Neighbour
    reason: str
    rule: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {**named(self.neighbour), "reason": self.reason, "rule": self.rule or None}


@dataclass(frozen=True)
class WhatIf:
    """Every neighbour of one plan. changes: fastest first, those that do not fit last.

    errors: ERROR rules that the plan itself breaks. stuck: knobs without a legal neighbour. gpus: those there are, 0
    where no plan file or option says.
    """

    base: Prediction
    errors: tuple[Violation, ...]
    changes: tuple[Change, ...]
    forbidden: tuple[Forbidden, ...]
    stuck: tuple[str, ...]
    gpus: int = 0

    @property
    def movers(self) -> tuple[Change, ...]:
        """Changes that move time or memory."""
        return tuple(change for change in self.changes if change.moved)

    @property
    def still(self) -> tuple[str, ...]:
        """Knobs whose legal neighbours all move nothing on this plan."""
        moving = {change.neighbour.knob for change in self.movers}
        tried = dict.fromkeys(change.neighbour.knob for change in self.changes)
        return tuple(name for name in KNOBS if name in tried and name not in moving)

    def best(self, numerics: bool = True) -> Change | None:
        """The fastest change that fits and helps; where the plan itself cannot be, the fastest that can.

        As in a search, a change whose time is doubted does not count, nor one that fills the memory until the
        allocator stalls, where the plan does not. numerics: whether changes of the arithmetic count too.
        """
        holds = self.base.fits and not self.errors
        roomy = holds and not self.base.tight
        for change in self.movers:
            if not change.fits or change.doubt or (roomy and change.prediction.tight):
                continue
            if not numerics and change.neighbour.knob in NUMERICS:
                continue
            return change if not holds or change.share < -HELPS_ABOVE else None
        return None

    def to_dict(self) -> dict[str, Any]:
        """The object of `whatif --json`."""
        best, same = self.best(), self.best(numerics=False)
        return {
            "base": self.base.to_dict()
            | gpus_told(self.base, self.gpus)
            | {"violations": [error.to_dict() for error in self.errors]},
            "best": best.to_dict() if best else None,
            "best_with_same_numerics": same.to_dict() if same else None,
            "changes": [change.to_dict() for change in self.changes],
            "forbidden": [each.to_dict() for each in self.forbidden],
            "move_nothing": list(self.still),
            "no_legal_neighbour": list(self.stuck),
        }


def chosen_knobs(names: Sequence[str]) -> tuple[str, ...]:
    """Knobs that were asked for under any name, ours or a framework's, or all. ValueError in one line."""
    wanted = [meant(name, "--knob") for name in names]
    for given, knob in zip(names, wanted, strict=True):
        if knob.name not in KNOBS:
            raise ValueError(
                f"--knob {given}: {knob.name} is a setting, and what-if changes knobs alone. "
                f"`advisor knobs {knob.name}` tells what it does."
            )
    return tuple(dict.fromkeys(knob.name for knob in wanted)) or tuple(KNOBS)


def what_if(case: Case, names: Sequence[str], progress: Tell | None = None) -> WhatIf:
    """Predict every neighbour of the case's plan along the named knobs. PlanError where it cannot be predicted."""
    with plan_faults(case):
        base = with_schedule(case.predict())
    words = predicted_words(base)
    found = case.violations(words)
    known = {violation.id for violation in found}
    changes: list[Change] = []
    forbidden: list[Forbidden] = []
    stuck: list[str] = []
    for place, name in enumerate(names):
        if progress:
            progress(place / len(names), f"changing {name}")
        tried = [_tried(case, base, known, each) for each in neighbours(base, name)]
        legal = [each for each in tried if isinstance(each, Change) and not _in_vain(each)]
        changes += legal
        forbidden += [each for each in tried if isinstance(each, Forbidden)]
        if not legal:
            stuck.append(name)
    changes.sort(key=lambda each: (not each.fits, each.delta_time, each.delta_memory))
    errors = tuple(violation for violation in found if violation.severity == "ERROR")
    return WhatIf(base, errors, tuple(changes), tuple(forbidden), tuple(stuck), case.gpus)


def _tried(case: Case, base: Prediction, known: set[str], each: Neighbour) -> Change | Forbidden:
    if each.problem:
        return Forbidden(each, each.problem)
    changed = replace(case, plan=each.plan)
    found = changed.violations()
    for violation in found:
        if violation.severity == "ERROR" or (violation.id in MACHINE_LACKS and violation.id not in known):
            return Forbidden(each, violation.text, violation.id)
    try:
        other = with_schedule(changed.predict(judged=False))
    except ValueError as error:
        return Forbidden(each, str(error))
    if fault := host_fault(other):
        return Forbidden(each, fault.text, fault.id)
    notes = tuple(
        violation
        for violation in found
        if violation.id not in known
        and (violation.severity in ("AUTOFIX", "SILENT") or violation.id in PRICES)
    )
    taken_back = (violation.text for violation in found if violation.id in DOUBTED - known)
    delta = other.step_time_s - base.step_time_s
    memory = other.peak_memory_bytes - base.peak_memory_bytes
    moved, drove = _moves(base, other, delta)
    doubt = unpriced(each.knob, each.after) or next(taken_back, "")
    return Change(each, other, delta, memory, delta / base.step_time_s, moved, drove, notes, doubt)


def unpriced(knob: str, value: Any) -> str:
    """What the model does not count of a value of a knob, "" where it counts all."""
    values, lacking = UNPRICED.get(knob, ((), ""))
    return lacking if value in values else ""


def _in_vain(change: Change) -> bool:
    """Whether modules that the model lacks take the place of full recompute: what is gained is that of none at all."""
    knobs = {knob for note in change.notes if note.severity == "SILENT" for knob in note.knobs}
    return bool(change.neighbour.instead) and change.neighbour.knob in knobs


def _moves(base: Prediction, other: Prediction, delta: float) -> tuple[Move | None, Move | None]:
    """What moved most, and what drove the change where that went the other way."""
    if abs(delta) > STILL_SECONDS * base.step_time_s:
        times = leaf_deltas(base, other)
        most = max(times, key=lambda move: abs(move.delta))
        with_it = max(times, key=lambda move: move.delta * delta)
        against = most.delta * delta < 0 < with_it.delta * delta
        return most, with_it if against else None
    mine, its = memory_parts(base), memory_parts(other)
    sizes = [Move(part, its.get(part, 0.0) - mine.get(part, 0.0), "byte") for part in mine | its]
    most = max(sizes, key=lambda move: abs(move.delta))
    moved = abs(other.peak_memory_bytes - base.peak_memory_bytes) > STILL_BYTES
    return (most if moved else None), None


def leaf_deltas(base: Prediction, other: Prediction) -> list[Move]:
    """Seconds by which every leaf of the time tree differs, in the order of the tree."""
    before = {leaf.name: leaf for leaf in base.time.leaves()}
    after = {leaf.name: leaf for leaf in other.time.leaves()}
    seconds = [{name: leaf.value for name, leaf in side.items()} for side in (before, after)]
    return [
        Move(leaf.title, seconds[1].get(name, 0.0) - seconds[0].get(name, 0.0), "s")
        for name, leaf in (before | after).items()
    ]
