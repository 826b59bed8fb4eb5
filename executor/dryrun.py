"""The dry run of a plan: real Megatron-Core, one rank of some pipeline stages, beside the cost model's amounts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.amounts import amount_inputs, rank_amounts
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.rank_amounts import RankAmounts
from costmodel.workload import Workload
from executor.core_here import Core, core_here
from executor.dryrun_job import make_job
from executor.dryrun_peak import predicted_peak
from executor.dryrun_terms import DIFFERS, DOCUMENTED, EQUAL, Term, compare
from executor.dryrun_tracer import Tracer
from executor.megatron_model import heads_apart

NAMED_STAGES = ("first", "middle", "last")


@dataclass(frozen=True)
class StageResult:
    """One stage: terms of both sides, its amounts, what is counted otherwise, and how long the trace took [s]."""

    stage: int
    terms: tuple[Term, ...]
    predicted: RankAmounts
    counted: RankAmounts
    seconds: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What either side counts otherwise than the plan says."""
        return tuple(dict.fromkeys([*self.predicted.notes, *self.counted.notes]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "stage": self.stage,
            "num_microbatches": self.predicted.num_microbatches,
            "terms": [term.to_dict() for term in self.terms],
            "predicted": self.predicted.to_dict(),
            "counted": self.counted.to_dict(),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class DryRun:
    """All stages of a dry run and what they come to. megatron_core: the version that traced them."""

    stages: tuple[StageResult, ...]
    megatron_core: str = ""

    @property
    def exact(self) -> list[Term]:
        """Terms that must be equal to the digit."""
        return [term for stage in self.stages for term in stage.terms if not term.tolerance]

    @property
    def num_equal(self) -> int:
        """Of them, those that are. [1]"""
        return sum(term.verdict == EQUAL for term in self.exact)

    @property
    def worst_saved(self) -> float:
        """Largest difference of saved activations, as a share. [1]"""
        return max(
            (abs(term.difference) for stage in self.stages for term in stage.terms if term.tolerance),
            default=0.0,
        )

    @property
    def differing(self) -> list[Term]:
        """Terms that differ without a documented reason."""
        return [term for stage in self.stages for term in stage.terms if term.verdict == DIFFERS]

    @property
    def documented(self) -> list[Term]:
        """Terms that differ for a documented reason."""
        return [term for stage in self.stages for term in stage.terms if term.verdict == DOCUMENTED]

    def to_dict(self) -> dict[str, Any]:
        """The object that `dryrun --json` prints."""
        return {
            "agrees": not self.differing,
            "megatron_core": self.megatron_core,
            "exact_terms": len(self.exact),
            "exact_equal": self.num_equal,
            "documented": len(self.documented),
            "differing": len(self.differing),
            "worst_saved_difference": self.worst_saved,
            "stages": [stage.to_dict() for stage in self.stages],
        }


def which_stages(plan: Plan, wanted: str, option: str = "--stages") -> list[int]:
    """Stages meant by "all", or by names and numbers with commas: "first,middle,last", "0,3". ValueError if none.

    option: what was given, for the error.
    """
    if wanted == "all":
        return list(range(plan.pp))
    places = dict(zip(NAMED_STAGES, (0, plan.pp // 2, plan.pp - 1), strict=True))
    known = "one " if option == "--stage" else f"all, {', '.join(NAMED_STAGES)} or numbers "
    found = []
    for word in (part.strip() for part in wanted.split(",")):
        if word not in places and not (word.isdecimal() and int(word) < plan.pp):
            raise ValueError(
                f"{option} {word!r} is no stage of --pp {plan.pp}: give {known}from 0 to {plan.pp - 1}. "
                f"Try {option} {'0' if option == '--stage' else 'first,last'}."
            )
        found.append(places[word] if word in places else int(word))
    return list(dict.fromkeys(found))


def traced_microbatches(plan: Plan, workload: Workload, wanted: int | None) -> int:
    """Micro-batches to trace: one, with interleaving as few as its schedule takes, two whose gradients are put off. [1]

    Source: Megatron-Core, schedules.py: a multiple of the stages; utils.py, drain_embedding_wgrad_compute, which fails
    with one.
    """
    available = plan.num_microbatches(workload.global_batch)
    least = max(plan.pp, plan.vpp_group_size) if plan.vpp > 1 else 1
    if wanted is not None and (wanted > available or wanted % least):
        rule = f" in multiples of {least}, as --vpp {plan.vpp} needs" if least > 1 else ""
        raise ValueError(
            f"--microbatches {wanted}: this plan has {available} in a step{rule}. Try --microbatches {least}."
        )
    return wanted or min(max(least, 1 + plan.defer_embedding_wgrad), available)


def traced_model(model: ModelSpec, core: Core) -> ModelSpec:
    """The model as Megatron-Core builds it: no MTP heads of hybrids in 0.16, other heads as the last layer, no chunks.

    `executor.megatron_model.not_expressed` says so in the notes.
    """
    if model.mamba is not None and model.mtp_layers and not core.stages_hybrids:
        model = replace(model, mtp_layers=0, mtp_pattern="")
    if heads_apart(model):
        model = replace(model, mtp_pattern="")
    return replace(model, attention_chunk=0)


def traced_plan(plan: Plan, model: ModelSpec, core: Core) -> Plan:
    """The plan as Megatron-Core runs it: full recompute of hybrids in some, see `keeps_hybrids` in stacks.toml."""
    ignored = model.mamba is not None and plan.recompute == "full" and core.stack.keeps_hybrids
    return replace(plan, recompute="none", recompute_num_layers=0) if ignored else plan


def plan_features(plan: Plan, workload: Workload, model: ModelSpec) -> frozenset[str]:
    """What the documented differences ask for: blocks and features of the model, knobs as "cp" or "recompute=full"."""
    found = set(amount_inputs(plan, workload, model)[1])
    found |= {name for name in ("tp", "pp", "vpp", "cp", "ep", "etp") if getattr(plan, name) > 1}
    flags = ("sequence_parallel", "dropout", "fused_cross_entropy", "calculate_per_token_loss")
    found |= {name for name in flags if getattr(plan, name)}
    found |= {f"recompute={plan.recompute}", f"cp_comm_type={plan.cp_comm_type}"}
    found |= {f"dispatcher={plan.moe_dispatcher}", f"attention={plan.attention_backend}"}
    if plan.optimizer_instances > 1:
        found.add("optimizer_instances")
    if plan.moe_capacity_factor:
        found.add("capacity")
    if plan.recompute == "selective":
        found |= {f"recompute={module}" for module in plan.recompute_modules}
    found |= {name for name in ("qk_norm", "linear_bias", "attention_sink") if getattr(model, name)}
    found |= {model.activation}
    if model.mla is not None and not model.mla.q_lora_rank:
        found.add("whole_queries")
    return frozenset(found)


def dry_run(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    *,
    stages: Sequence[int],
    num_microbatches: int,
    folder: Path,
    tell: Callable[[float, str], None] = lambda share, what: None,
    measure: Callable[[dict[str, Any], Path], RankAmounts] | None = None,
    core: Core | None = None,
) -> DryRun:
    """Trace the stages one after the other and compare each. measure: counts one stage; a Tracer's own if not given.

    core: the Megatron-Core that traces, by default the one that Python finds.

    Raises ValueError for a plan that does not fit together, DryRunFailed when Megatron-Core refuses it.
    """
    core = core or core_here()
    known, runs = traced_model(model, core), traced_plan(plan, model, core)
    traced = (num_microbatches, core.stack.name)
    predictions = [
        replace(
            rank_amounts(runs, workload, known, stage, *traced),
            peak=predicted_peak(runs, workload, known, stage, *traced),
        )
        for stage in stages
    ]
    features = plan_features(plan, workload, model) | core.features
    found = []
    with Tracer(core.folder) as tracer:
        for index, predicted in enumerate(predictions):
            tell(index / len(stages), f"tracing stage {predicted.stage} of {plan.pp}, a rank of {plan.world}")
            start = time.monotonic()
            job = make_job(plan, workload, model, predicted.stage, num_microbatches, core=core)
            counted = (measure or tracer.stage)(job, folder)
            terms = tuple(compare(predicted, counted, features))
            found.append(StageResult(predicted.stage, terms, predicted, counted, time.monotonic() - start))
    return DryRun(tuple(found), core.version)
