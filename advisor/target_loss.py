"""A plan priced as other software than what it is exported for: its step time there, and its memory.

Memory differs where Megatron-LM has only its own fused loss, and Transformer Engine's was priced; time where NeMo 2
dispatches tokens by other means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advisor.render import gib, seconds
from advisor.target_release import TITLES, version_of_stack
from costmodel.predict import predict
from costmodel.stack import default_stack, load_stack, newest_stack

if TYPE_CHECKING:
    from advisor.case import Case
    from costmodel.prediction import Prediction


@dataclass(frozen=True)
class OtherLoss:
    """What the target's own fused loss makes of a plan. note: for the export; refused: one line, "" where it fits."""

    note: str = ""
    refused: str = ""


def native_loss(case: Case) -> bool:
    """Whether the fused loss that is priced is Megatron-Core's own."""
    chosen = case.plan.cross_entropy_fusion_impl == "native"
    return chosen or load_stack(case.stack or default_stack()).native_loss


def other_loss(case: Case, priced: Prediction | None, target: str, version: str) -> OtherLoss:
    """Memory of the plan in the release that it is exported for, where that has another loss than was priced."""
    if target != "megatron-lm" or not case.plan.fused_cross_entropy or native_loss(case):
        return OtherLoss()
    from executor.export.megatron_lm_names import version_of, versions

    known, other = version_of(version)
    if known.te_loss:
        return OtherLoss()
    named = known.name + (f", the nearest to {version} that is known," if other else "")
    said = f"Megatron-LM {named} refuses Transformer Engine's fused loss, and its own keeps FP32 logits"
    if priced is None:
        return OtherLoss(f"{said}, which the plan does not hold")
    there = replace(case, stack=newest_stack("megatron_lm", native_loss=True))
    found = there.predict(judged=False)
    before = gib(priced.peak_memory_bytes).removesuffix(" GiB")
    memory = f"{before} -> {gib(found.peak_memory_bytes)} of {gib(found.device_bytes)}"
    if found.fits or not priced.fits:
        if gib(found.peak_memory_bytes) == gib(priced.peak_memory_bytes):
            return OtherLoss()  # the fullest stage holds no logits
        return OtherLoss(f"{said}: memory {memory}, priced as {there.stack}")
    older = next(each.name for each in reversed(versions()) if each.te_loss)
    return OtherLoss(
        refused=f"Error: {said}: {memory}, which does not fit. "
        f"Try {_cure(there)}--target-version {older}, which takes Transformer Engine's."
    )


def with_stand_in(case: Case, target: str, version: str) -> list[str]:
    """One sentence where NeMo 2 dispatches tokens by other means than the plan was priced with; else nothing."""
    plan = case.plan
    if target != "nemo" or case.model.moe is None or plan.moe_dispatcher != "hybridep":
        return []
    from executor.export.nemo_remarks import lacks_hybridep, stand_in
    from executor.export.target_names import names_of

    names = names_of(target, version)[0]
    if not lacks_hybridep(names):
        return []
    other = stand_in(plan, case.cluster)
    from costmodel.simulated_pipeline import with_schedule

    there = replace(case, plan=replace(plan, moe_dispatcher=other))
    times = [with_schedule(each.predict(judged=False)).step_time_s for each in (case, there)]
    return [
        f"NeMo {names.release} has no HybridEP, with which the step was told to take {seconds(times[0])}: with {other} "
        f"the model expects {seconds(times[1])}; `advisor explain --pin moe_dispatcher={other}` searches for it."
    ]


def as_target(case: Case, target: str, version: str) -> list[str]:
    """One sentence where the plan was priced as other software than it is exported for; else nothing.

    With the step time as Megatron-LM; with the release of Megatron-Bridge and NeMo where the stack is of neither.
    """
    here = load_stack(case.stack or default_stack())
    other = here.name != load_stack(default_stack()).name
    own = version and version == version_of_stack(here.name, target)
    if target != "megatron-lm" and other and not own:
        from executor.export.target_names import names_of

        names = names_of(target.replace("-", "_"), version)[0]
        return [
            f"The plan was made for {here.name}; names are those of {TITLES[target]} {names.release} (Megatron-Core "
            f"{names.core}). --target-version takes the release that you run: what it lacks is noted then."
        ]
    if target != "megatron-lm" or here.names == "megatron_lm":
        return []
    from costmodel.simulated_pipeline import with_schedule
    from executor.export.megatron_lm_names import version_of

    fused = case.plan.fused_cross_entropy
    transformer_engine = fused and not native_loss(case) and version_of(version)[0].te_loss
    there = newest_stack("megatron_lm", native_loss=not transformer_engine)
    parts = (case.model, case.workload, case.cluster, case.plan)
    try:
        ours, other = (with_schedule(predict(*parts, stack)) for stack in (case.stack, there))
    except ValueError:
        return []  # a plan that this family cannot have is refused elsewhere
    those = " of those that take Transformer Engine's fused loss" if transformer_engine else ""
    return [
        f"The plan was made for {here.name}: {seconds(ours.step_time_s)} a step. As {there}, the newest Megatron-LM on "
        f"file{those}, the model expects {seconds(other.step_time_s)} ({seconds(other.interval_low)} to "
        f"{seconds(other.interval_high)}); `advisor explain --stack {there}` searches for it."
    ]


def _cure(case: Case) -> str:
    """The first change that makes it fit, with the word that joins it to the next way out; "" where none does."""
    from advisor.cures import first_cure

    cure = first_cure(case)
    return f"{cure.options()}, or " if cure else ""
