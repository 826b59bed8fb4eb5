"""The first change that makes a plan fit: what is cheap for its kind of model before what is dear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from advisor.options import value_text
from advisor.precisions import choose_precisions
from advisor.render import gib, seconds
from advisor.request import Request
from advisor.rules import untrainable
from advisor.search import fits_at_all
from advisor.whatif import GIB, Change, what_if

if TYPE_CHECKING:
    from advisor.case import Case
    from costmodel.prediction import Prediction

# What costs little: modules recomputed, and where the CPU hangs on the GPU by NVLink-C2C layers that wait in host
# memory (NeMo performance tuning guide, Activation offloading to host memory; elsewhere PCIe makes that dear).
LIGHT = ("recompute_modules",)
# Knobs in the order in which they are tried, the fastest change of a group first: what costs nothing, what costs
# little, other sizes, what costs much, and tp last, whose messages every layer waits for (NeMo performance tuning
# guide, Techniques for Reducing Memory). With experts ep comes before all (Megatron-Bridge skills, recipe recommender:
# "increase EP first, not TP").
ORDER = (
    ("expandable_segments", "avoid_record_streams", "nvls"),
    ("precision_aware_optimizer", "fp8_param_gather"),
    LIGHT,
    ("micro_batch",),
    ("zero_stage", "fsdp"),
    ("cp",),
    ("pp",),
    ("recompute", "offload_layers", "optimizer_offload"),
    ("tp",),
)


@dataclass(frozen=True)
class Cure:
    """A plan that fits. changes: the knobs to change, with those that must follow; prediction: of that plan."""

    changes: dict[str, Any]
    prediction: Prediction

    def options(self) -> str:
        """The changes as options: `--pp 8 --dp 4`; modules that other recompute forgets need none."""
        forgotten = {"recompute_modules"} if self.changes.get("recompute") in ("none", "full") else set()
        return " ".join(_option(name, value) for name, value in self.changes.items() if name not in forgotten)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "changes": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self.changes.items()
            },
            "options": self.options(),
            "step_time_s": self.prediction.step_time_s,
            "worst_rank_gib": self.prediction.peak_memory_bytes / GIB,
        }


def to_fit(case: Case, cure: Cure | None) -> str:
    """What to do about a plan that does not fit, in sentences that hold: its first cure, else what a search finds."""
    if cure is None:
        return f"No usual change mends it alone. {searched(case)}"
    takes = f"{gib(cure.prediction.peak_memory_bytes)}, {seconds(cure.prediction.step_time_s)} a step"
    return (
        f"Try {cure.options()}: {takes}. `advisor whatif` ranks the others, and `advisor explain` searches all knobs "
        "together."
    )


def searched(case: Case) -> str:
    """Whether any plan that `explain` would search for the same model, workload and GPUs fits, in a sentence."""
    if lacking := untrainable(case.model, case.cluster, case.stack):
        return lacking
    recipes, _ = choose_precisions("auto", case.cluster, case.stack)
    gpus = case.plan.world
    try:
        request = Request(case.model, gpus, case.cluster, case.workload, precisions=recipes, stack=case.stack)
        fits = fits_at_all(request)
    except ValueError as refused:
        return str(refused)
    there = f"{gpus:,} GPU{'s' * (gpus > 1)}"
    if fits:
        return f"`advisor explain` finds plans for {there} that fit."
    return (
        f"Nor does any plan fit that `advisor explain` searches for {there}; it then tries more GPUs, shorter "
        "sequences and leaner optimizers."
    )


def first_cure(case: Case) -> Cure | None:
    """The first change that runs and fits, None where none of these does alone. ValueError as `predict`."""
    if case.model.moe is not None and (wider := _wider_experts(case)):
        return wider
    near_host = case.cluster.has_c2c
    for knobs in ORDER:
        tried = (*knobs, "offload_layers") if near_host and knobs == LIGHT else knobs
        if fitting := [change for change in what_if(case, tried).changes if change.fits]:
            change = min(fitting, key=_cost)
            return Cure(_changed(change), change.prediction)
    return None


def _cost(change: Change) -> tuple[float, int]:
    """Time, and of two that take the same the one that offloads fewer layers: host memory is finite too."""
    offloads = change.neighbour.knob == "offload_layers"
    return change.delta_time, change.neighbour.after if offloads else 0


def _wider_experts(case: Case) -> Cure | None:
    """The least more of ep that fits: experts over twice the ranks, and again."""
    changed: dict[str, Any] = {}
    while True:
        wider = [each for each in what_if(case, ("ep",)).changes if each.neighbour.after > case.plan.ep]
        if not wider:
            return None
        changed |= _changed(wider[0])
        if wider[0].fits:
            return Cure(changed, wider[0].prediction)
        case = replace(case, plan=wider[0].neighbour.plan)


def _changed(change: Change) -> dict[str, Any]:
    return {change.neighbour.knob: change.neighbour.after} | change.neighbour.follows


def _option(name: str, value: Any) -> str:
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    text = ",".join(value) if isinstance(value, tuple) else value_text(value)
    return f"--{words} {text or repr(text)}"
