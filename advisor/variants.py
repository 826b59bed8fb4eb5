"""Plans that could have been: the chosen one with some choice changed, predicted or forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from advisor.host_fault import host_fault
from advisor.render import gib, seconds
from advisor.rules import violations
from advisor.rules.features import lacked
from advisor.search.candidates import resource_seconds
from advisor.space import fp32_reduction_ranks, loss_by_tokens, usual_dispatcher
from advisor.space.options import has_user_buffers
from costmodel.layout import BALANCED
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule

# Model chunks a stage that published interleaved recipes use where nothing else is said.
_USUAL_VPP = 5


def without_partners(plan: Plan) -> dict[str, Any]:
    """Changes that a plan takes whose experts stand on every rank: nobody to send to.

    See the rules flex_needs_ranks and hybridep_alone.
    """
    if plan.ep * plan.etp > 1 or plan.moe_dispatcher not in ("deepep", "hybridep"):
        return {}
    return {"moe_dispatcher": "alltoall", "overlap_moe_comm": False, "delay_wgrad": False}


@dataclass(frozen=True)
class Variant:
    """A plan that could have been: its prediction, or what forbids it. rule: of which kind that is, "" for any."""

    label: str
    plan: Plan
    prediction: Prediction | None
    forbidden: str = ""
    rule: str = ""

    @property
    def fits(self) -> bool:
        """Whether it runs and fits."""
        return self.prediction is not None and self.prediction.fits

    def text(self) -> str:
        """`TP4 5.120 s`, `TP2 needs 212.3 GiB`, or why it cannot be."""
        if self.prediction is None:
            return f"{self.label} cannot be ({self.forbidden})"
        if not self.prediction.fits:
            return f"{self.label} needs {gib(self.prediction.peak_memory_bytes)}"
        return f"{self.label} {seconds(self.prediction.step_time_s)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        known = self.prediction
        return {
            "label": self.label,
            "knobs": self.plan.to_dict(),
            "step_time_s": known.step_time_s if known else None,
            "peak_memory_gib": known.peak_memory_bytes / 2**30 if known else None,
            "fits": self.fits,
            "forbidden": self.forbidden or None,
        }


def fusion_beside(chosen: Prediction, fsdp: bool) -> dict[str, bool]:
    """What a change of FSDP does to gradient_accumulation_fusion: see the rule fsdp_fused_gradients."""
    ours = bool(chosen.values["megatron_core"]) and chosen.plan.fsdp != fsdp
    return {"gradient_accumulation_fusion": not fsdp} if ours else {}


class Variants:
    """Maker of variants of one chosen plan, in its setting."""

    def __init__(self, chosen: Prediction, stack: str | None = None) -> None:
        self.chosen = chosen
        self.plan = chosen.plan
        self.stack = stack
        self.absent = lacked(stack)

    def of(self, label: str, plan: Plan) -> Variant:
        """The prediction of `plan` in this setting, or the first rule that forbids it.

        Pipelines are simulated only where the plan fits: of the others only memory is told.
        """
        chosen = self.chosen
        if plan == self.plan:
            return Variant(label, plan, chosen)
        try:
            plan.num_microbatches(chosen.workload.global_batch)
        except ValueError:
            sizes = f"mbs{plan.micro_batch} x DP{plan.dp}"
            batch = chosen.workload.global_batch
            reason = f"{batch} {'sequences do' if batch > 1 else 'sequence does'} not divide over {sizes}"
            return Variant(label, plan, None, reason, "batch")
        for violation in violations(chosen.model, chosen.workload, chosen.cluster, plan, stack=self.stack):
            if violation.severity == "ERROR":
                return Variant(label, plan, None, violation.text, violation.id)
        try:
            closed_form = predict(
                chosen.model, chosen.workload, chosen.cluster, plan, self.stack, judged=False
            )
        except ValueError as error:
            return Variant(label, plan, None, str(error))
        if fault := host_fault(closed_form):
            return Variant(label, plan, None, fault.text)
        return Variant(label, plan, with_schedule(closed_form) if closed_form.fits else closed_form)

    def resized(self, **sizes: int) -> Plan | None:
        """The chosen plan with other parallel sizes, dp taking up the rest; None when it does not divide."""
        sized = replace(self.plan, **sizes)
        others = sized.replica
        if self.plan.world % others:
            return None
        changes: dict[str, Any] = {"dp": self.plan.world // others}
        if (sized.tp > 1) != (self.plan.tp > 1):
            overlapped = sized.tp > 1 and has_user_buffers(self.chosen.cluster)
            changes |= {"sequence_parallel": sized.tp > 1, "tp_comm_overlap": overlapped}
        if sized.cp > 1 and self.plan.cp == 1:
            changes |= self._exchange()
            by_tokens = loss_by_tokens(self.chosen.workload.task, self.stack)
            changes |= {"calculate_per_token_loss": True} if by_tokens else {}
        if sized.pp != self.plan.pp:
            changes |= self._stages(sized.pp, changes["dp"])
        return replace(sized, **changes, **self._dispatch(sized))

    def reduced(self, plan: Plan) -> Plan:
        """The plan with gradients summed as the search takes it of its ranks; as chosen where a pin chose it."""
        least, chosen = fp32_reduction_ranks(self.stack), self.plan
        if chosen.grad_reduce_in_fp32 != (chosen.dp * chosen.cp >= least):
            return plan
        return replace(plan, grad_reduce_in_fp32=plan.dp * plan.cp >= least)

    def _dispatch(self, sized: Plan) -> dict[str, Any]:
        """The dispatcher of another number of expert ranks, as the search takes it."""
        if sized.ep > 1 == self.plan.ep * self.plan.etp and self.plan.moe_dispatcher == "alltoall":
            padded = self.plan.moe_pad_expert_input_to_capacity
            return {"moe_dispatcher": usual_dispatcher(self.chosen.cluster, self.stack, padded)}
        return without_partners(sized)

    def _exchange(self) -> dict[str, Any]:
        """The exchange that sinks or windows leave, see the rules cp_sinks and cp_sliding_window."""
        model = self.chosen.model
        if model.attention_sink:
            return {"cp_comm_type": "a2a"}
        return {"cp_comm_type": "all_gather"} if model.sliding_window else {}

    def _stages(self, pp: int, dp: int) -> dict[str, Any]:
        """Layer split of another pipeline size: account for embedding and loss where layers do not divide.

        A layout names the stages of one pipeline size; the balancer's, for any, stays where neither split is even.
        """
        layers = self.chosen.model.num_layers
        hybrid = bool(self.chosen.model.layer_pattern)  # even stages of one chunk, see the rule hybrid_split
        account = not hybrid and pp > 1 and layers % pp != 0 and (layers + 2) % pp == 0
        each = (layers + 2 * account) // pp
        number = self.chosen.workload.global_batch // (self.plan.micro_batch * dp)
        vpp = 1
        if pp > 1 and number % pp == 0 and not hybrid:
            vpp = max(v for v in range(1, max(self.plan.vpp, _USUAL_VPP) + 1) if each % v == 0)
        changes: dict[str, Any] = {"vpp": vpp, "account_embedding": account, "account_loss": account}
        if self.plan.pipeline_layout:
            even = account or hybrid or layers % pp == 0
            changes["pipeline_layout"] = "" if even else BALANCED
        if pp > 1 and self.plan.fsdp and "distributed_optimizer" not in self.absent:
            changes |= {"fsdp": False, "zero_stage": 1, "fsdp_shard_size": 0}
            changes |= fusion_beside(self.chosen, False)
        return changes

    def sizes(self, name: str, sizes: list[int]) -> Iterator[Variant]:
        """Variants with these values of one parallel size up to the GPUs, and the chosen one, in order."""
        for size in sorted({*sizes, getattr(self.plan, name)}):
            label, plan = f"{name.upper()}{size}", self.resized(**{name: size})
            if plan is None:
                if size <= self.plan.world:
                    yield self._undivided(label, name, size)
                continue
            plan = self.reduced(plan)
            if name == "pp" and plan.vpp > 1:
                label += f" VPP{plan.vpp}"
            found = self.of(label, plan)
            if found.prediction is None and name == "cp" and plan.cp_comm_type.startswith("a2a"):
                # heads and inner size were chosen for another cp
                label += " p2p" * (size > 1)
                found = self.of(label, replace(plan, cp_comm_type="p2p", cp_a2a_size=1))
            yield found

    def _undivided(self, label: str, name: str, size: int) -> Variant:
        """A size over which the GPUs that the other sizes leave do not divide."""
        world, plan = self.plan.world, replace(self.plan, **{name: size})
        ranks = world * getattr(self.plan, name) // self.plan.replica
        left = f"leave {ranks:,} for {name} x dp, which {name} must divide"
        if plan.encoder_pp:
            left = f"do not divide over the {plan.replica:,} of a replica"
        return Variant(label, plan, None, f"{world:,} GPUs {left}", "world")

    def listed(self, tried: Iterable[Variant]) -> str:
        """Variants in words, each slower one with what it loses most to; last those that cannot be, once a reason."""
        told, barred = [], dict[str, list[Variant]]()
        for variant in tried:
            if variant.prediction is None:
                barred.setdefault(variant.rule or variant.label, []).append(variant)
            else:
                told.append(variant.text() + self._loss(variant))
        for first, *others in barred.values():
            *before, last = [first.label, *(each.label for each in others)]
            labels = f"{', '.join(before)} and {last}" if before else last
            told.append(replace(first, label=labels).text())
        return ", ".join(told)

    def _loss(self, variant: Variant) -> str:
        """What a slower variant loses most to, and whether memory is tight."""
        other = variant.prediction
        if other is None or not other.fits:
            return ""
        words = ["tight"] if other.tight else []
        if other.step_time_s > 1.005 * self.chosen.step_time_s:
            mine = resource_seconds(self.chosen)
            lost = {name: value - mine.get(name, 0.0) for name, value in resource_seconds(other).items()}
            name = max(lost, key=lambda each: lost[each])
            words.append(f"{name} +{seconds(lost[name])}")
        return f" ({', '.join(words)})" if words else ""
