"""The path of the tuning guides, walked with this case's numbers.

Data parallel first; shard what does not fit; tensor parallel inside the NVLink domain; context parallel
when the sequence outgrows the hidden size; expert parallel for experts; pipeline when the rest does not
suffice; then micro-batch, recompute and precision. Every claim here is a prediction of a plan that differs
in that one choice, or of the best that the search found with another, and says which.
Source: Megatron-Bridge performance guide (parallel mapping strategies).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from advisor.render import gib, percent, seconds
from advisor.search.best_with import BestWith, Which
from advisor.sizes import kinder_batch, most_ranks
from advisor.space import MICRO_BATCHES, most_expert_ranks
from advisor.space.options import recompute_choices
from advisor.variants import Variant, Variants, fusion_beside
from costmodel.columns import Array
from costmodel.prediction import CORRECTION, FITS_BELOW, Prediction

# What plain data parallel leaves off.
_UNSPLIT: dict[str, Any] = {
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp"), 1),
    "overlap_moe_comm": False,
    "delay_wgrad": False,
    "moe_dispatcher": "alltoall",
    "pipeline_layout": "",
    "cp_comm_type": "p2p",
    "cp_a2a_size": 1,
    **dict.fromkeys(("sequence_parallel", "tp_comm_overlap", "account_embedding", "account_loss"), False),
    "fsdp": False,
    **dict.fromkeys(("fsdp_shard_size", "recompute_num_layers"), 0),
    "zero_stage": 1,
    "recompute": "none",
    "recompute_modules": (),
}
ONE_RANK = "Nothing to shard over before sequences are split: one data-parallel rank"
# Leaves of the time tree that a recipe of fewer bits computes faster: adapters and logits stay as they are.
PRODUCTS = (
    *("forward_linear", "backward_linear_dgrad", "backward_linear_wgrad"),
    *("forward_experts", "backward_experts"),
)


def _whole(layout: Mapping[str, Array]) -> Any:
    """Whether layouts split and shard nothing but the optimizer's state."""
    splits = np.maximum.reduce([layout[name] for name in ("tp", "pp", "cp", "ep", "etp")])
    return (splits == 1) & (layout["fsdp"] == 0)


@dataclass(frozen=True)
class Step:
    """One question of the guides, its answer in this case, and the plans that show it."""

    topic: str
    text: str
    evidence: tuple[Variant, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "topic": self.topic,
            "text": self.text,
            "evidence": [variant.to_dict() for variant in self.evidence],
        }


ALONE = "Nothing to split over: one rank."


class GuidePath:
    """The walk for one chosen plan; `steps` in the order of the guides.

    best: asked for the best plans with other choices; None for a plan that no search for throughput chose.
    """

    def __init__(
        self,
        chosen: Prediction,
        precisions: tuple[str, ...],
        stack: str | None = None,
        best: BestWith | None = None,
    ) -> None:
        self.chosen = chosen
        self.plan = chosen.plan
        self.precisions = precisions
        self.variants = Variants(chosen, stack)
        self.best = best
        self.room = f"a plan may use {gib(FITS_BELOW * chosen.device_bytes)}"
        batch, world = chosen.workload.global_batch, self.plan.world
        self.most_dp = most_ranks(batch, world)
        unsplit = _UNSPLIT | fusion_beside(chosen, False)
        self.plain = self.variants.reduced(replace(self.plan, **unsplit, dp=self.most_dp))

    def steps(self) -> list[Step]:
        """Every step of the path."""
        return [
            self.data_parallel(),
            self.distributed_optimizer(),
            self.fully_sharded(),
            self.tensor_parallel(),
            self.context_parallel(),
            *([self.experts()] if self.chosen.model.moe else []),
            self.pipeline(),
            self.micro_batch(),
            self.recompute(),
            self.precision(),
        ]

    def data_parallel(self) -> Step:
        """Does plain data parallel fit?"""
        # One all-reduce of gradients: there is no parameter gather to overlap or to quantise.
        off = {"zero_stage": 0, "overlap_param_gather": False, "fp8_param_gather": False}
        alone = self._unsplit("DP alone", **off)
        world, batch = self.plan.world, self.chosen.workload.global_batch
        idle = ""
        if self.most_dp < world:
            idle = (
                f" {batch:,} {'sequences feed' if batch > 1 else 'sequence feeds'} at most DP{self.most_dp} of "
                f"{world:,} GPUs, so at least {world // self.most_dp} GPUs must share each sequence."
                f"{self._kinder()}"
            )
        if alone.prediction is None:
            return Step("data parallel", f"Not possible: {alone.forbidden}.{idle}", (alone,))
        parts = ", ".join(
            f"{part.title} {gib(part.value)}"
            for part in sorted(alone.prediction.memory.parts, key=lambda part: -part.value)[:3]
        )
        need = gib(alone.prediction.peak_memory_bytes)
        room = f"{self.room}, {percent(FITS_BELOW, 0)} of the device"
        verdict = "fits" if alone.fits else "does not fit"
        text = f"The whole model on every GPU needs {need} ({parts}); {room}: it {verdict}."
        return Step("data parallel", text + idle, (alone,))

    def _kinder(self) -> str:
        """A batch beside the own that more ranks divide, "" where there is none."""
        batch, world = self.chosen.workload.global_batch, self.plan.world
        other = kinder_batch(batch, world)
        return f" A batch of {other:,} would feed DP{most_ranks(other, world)}." if other else ""

    def distributed_optimizer(self) -> Step:
        """Does sharding the optimizer state suffice?"""
        if self.most_dp == 1:
            ranks = self.plan.dp * self.plan.cp
            shared = f" With CP{self.plan.cp}, below, {ranks} ranks share it." if self.plan.cp > 1 else ""
            return Step("distributed optimizer", f"{ONE_RANK}.{shared}")
        sharded = self._unsplit("distributed optimizer")
        if sharded.prediction is None:
            return Step("distributed optimizer", f"Not possible: {sharded.forbidden}.", (sharded,))
        need = gib(sharded.prediction.peak_memory_bytes)
        verdict = "fits" if sharded.fits else "still does not fit"
        told, tried = self._versus(sharded, "without splits", _whole)
        text = (
            f"Optimizer state over {self.most_dp} ranks {self._traffic()}. Each GPU then needs {need}, "
            f"{self.room}: {verdict}{told}"
        )
        return Step("distributed optimizer", text, tried)

    def fully_sharded(self) -> Step:
        """Would FSDP do, and at what price?"""
        if self.most_dp == 1 and not self.plan.fsdp:
            found = self._found("with it", lambda each: each["fsdp"] == 1)
            text, tried = (f" {found[0]}", (found[1],)) if found else ("", ())
            return Step("FSDP", f"{ONE_RANK}.{text}", tried)
        spread = self.plan.ep if self.most_dp % self.plan.ep == 0 else 1
        experts = {"ep": spread, "moe_dispatcher": self.plan.moe_dispatcher} if spread > 1 else {}
        fusion = self.plan.gradient_accumulation_fusion if self.plan.fsdp else self._fused_with_shards()
        found = self._unsplit("FSDP", zero_stage=3, fsdp=True, gradient_accumulation_fusion=fusion, **experts)
        if self.plan.fsdp:
            return Step("FSDP", "Chosen: weights, gradients and optimizer state are sharded.", (found,))
        told, tried = self._versus(found, "with it", lambda each: each["fsdp"] == 1)
        if found.prediction is None:
            where = "Not possible" if len(tried) == 1 else "Without splits not possible"
            return Step("FSDP", f"{where}: {found.forbidden}{told}", tried)
        need = gib(found.prediction.peak_memory_bytes)
        shards = "Shards weights and gradients too" + (
            f", with experts over EP{spread}" if spread > 1 else ""
        )
        if not found.fits:
            text = f"{shards}, activations stay: needs {need}, {self.room}: no fit{told}"
        else:
            text = f"{shards}: {need}, fits{told}"
        return Step("FSDP", text, tried)

    def tensor_parallel(self) -> Step:
        """Which tensor-parallel size, inside the NVLink domain?"""
        if self.plan.world == 1:
            return Step("tensor parallel", ALONE)
        cluster = self.chosen.cluster
        domain = cluster.domain_size
        on_cpu = cluster.gpu.generation == "cpu"
        joined = "one box, over PCIe" if cluster.intra.name.startswith("pcie") else "one fast domain"
        shared = (
            f"{domain} GPUs share {joined}"
            if domain > 1
            else "no GPU shares a node or fast link with another"
        )
        place = "the processes share one machine" if on_cpu else shared
        sizes = [size for size in (1, 2, 4, 8, 16) if size <= domain]
        tried = tuple(self.variants.sizes("tp", sizes))
        text = f"Splits every layer; {place}. {self._as_chosen(tried)} Chosen: TP{self.plan.tp}."
        return Step("tensor parallel", *self._other(text, tried, "tp"))

    def context_parallel(self) -> Step:
        """Does the sequence outgrow the hidden size?"""
        if self.plan.world == 1:
            return Step("context parallel", ALONE)
        seq_len, hidden = self.chosen.workload.seq_len, self.chosen.model.hidden
        tried = tuple(self.variants.sizes("cp", [1, 2, 4, 8]))
        outgrown = "outgrows" if seq_len > hidden else "does not outgrow"
        text = (
            f"Splits the sequence, which {outgrown} the hidden size, when the guides begin with it "
            f"({seq_len:,} tokens, hidden {hidden:,}). {self._as_chosen(tried)} Chosen: CP{self.plan.cp}."
        )
        return Step("context parallel", *self._other(text, tried, "cp"))

    def experts(self) -> Step:
        """How many ranks share the experts, and what does their traffic cost?"""
        moe = self.chosen.model.moe
        assert moe is not None
        most = most_expert_ranks(self.chosen.cluster, self.plan.moe_dispatcher)
        sizes = [
            size for size in (1, 2, 4, 8, 16, 32, 64, 128) if moe.num_experts % size == 0 and size <= most
        ]
        tried = tuple(self.variants.sizes("ep", sizes))
        shown = [leaf for leaf in self.chosen.time.leaves() if leaf.name.endswith("_dispatch")]
        share = sum(leaf.value for leaf in shown) / self.chosen.step_time_s
        text = (
            f"Spreads {moe.num_experts} experts, of which a token visits {moe.topk}, on a mesh of their own: the "
            f"GPUs needed are pp x max(tp x cp, ep x etp). {self._as_chosen(tried)} Chosen: EP{self.plan.ep}, "
            f"{self.plan.moe_dispatcher}; its traffic leaves {percent(share)} of the step exposed."
        )
        return Step("expert parallel", *self._other(text, tried, "ep"))

    def pipeline(self) -> Step:
        """Which pipeline size, and what does interleaving save?"""
        if self.plan.world == 1:
            return Step("pipeline parallel", ALONE)
        tried = list(self.variants.sizes("pp", [1, 2, 4, 8, 16]))
        text = f"Splits the layers into stages. {self._as_chosen(tried)} Chosen: PP{self.plan.pp}."
        if self.plan.pp > 1:
            text += f" Its bubble is {percent(self._bubble(self.chosen))} of the step"
            if self.plan.vpp > 1:
                plain = self.variants.of("VPP1", replace(self.plan, vpp=1))
                tried.append(plain)
                text += f" with VPP{self.plan.vpp}; {plain.text()}"
                if plain.prediction is not None:
                    text += f" with a bubble of {percent(self._bubble(plain.prediction))}"
            text += "."
        return Step("pipeline parallel", *self._other(text, tuple(tried), "pp"))

    def micro_batch(self) -> Step:
        """Would a smaller or larger micro-batch do better?"""
        size = self.plan.micro_batch
        tried = tuple(
            self.variants.of(f"mbs{other}", replace(self.plan, micro_batch=other))
            for other in sorted({max(1, size // 2), size, size * 2})
        )
        number = self.plan.num_microbatches(self.chosen.workload.global_batch)
        beyond = "" if 2 * size in MICRO_BATCHES else f", mbs{2 * size} was not searched"
        text = (
            f"Larger makes GEMMs fuller, smaller saves activations and bubble. {self._as_chosen(tried)} "
            f"Chosen: mbs{size}, {number} micro-batch{'es' * (number != 1)} a step{beyond}."
        )
        return Step("micro-batch", text, tried)

    def recompute(self) -> Step:
        """What does recompute cost or save here?"""
        none = replace(self.plan, recompute="none", recompute_modules=(), recompute_num_layers=0)
        plans = {"none": none}
        for modules in recompute_choices(self.chosen.model, self.variants.absent):
            plans["+".join(modules)] = replace(none, recompute="selective", recompute_modules=modules)
        plans["full"] = replace(none, recompute="full", cuda_graph=False)
        tried = [self.variants.of(label, plan) for label, plan in plans.items()]
        legal = tuple(variant for variant in tried if variant.prediction is not None)
        chosen = "+".join(self.plan.recompute_modules) or self.plan.recompute
        if self.plan.recompute_num_layers:
            chosen += f" of {self.plan.recompute_num_layers} layers a stage"
        text = f"Saves activations for time. {self._as_chosen(legal)} Chosen: {chosen}."
        return Step("recompute", text, legal)

    def precision(self) -> Step:
        """What does each recipe that was searched give on this plan?"""
        names = dict.fromkeys((*self.precisions, self.plan.precision))
        tried = tuple(
            self.variants.of(name, replace(self.plan, precision=name, fp8_param_gather=self._gathers(name)))
            for name in names
        )
        text = f"On this plan {self.variants.listed(tried)}. Chosen: {self.plan.precision}."
        plain = next((v.prediction for v in tried if v.label == "bf16" and v.prediction), None)
        if plain is not None and plain.step_time_s > 1.005 * self.chosen.step_time_s:
            repeated = ", and what recompute repeats of them" if self._share(plain, "recompute") else ""
            text += (
                f" It gains {plain.step_time_s / self.chosen.step_time_s:.2f}x over bf16: of compute only linear "
                f"layers{'' if self.chosen.model.moe is None else ' and experts'} run faster, "
                f"{percent(self._share(plain, *PRODUCTS))} of the bf16 step{repeated}; quantisation costs."
            )
        return Step("precision", text, tried)

    def _unsplit(self, label: str, **changes: Any) -> Variant:
        """The chosen plan without splits: with its micro-batch where that fits, else sequence by sequence."""
        whole = self.variants.of(label, replace(self.plain, **changes))
        if whole.fits or self.plan.micro_batch == 1:
            return whole
        return self.variants.of(label, replace(self.plain, micro_batch=1, **changes))

    def _fused_with_shards(self) -> bool:
        beside = fusion_beside(self.chosen, True)
        return beside.get("gradient_accumulation_fusion", self.plan.gradient_accumulation_fusion)

    def _gathers(self, precision: str) -> bool:
        return self.plan.fp8_param_gather and precision not in ("bf16", "fp16", "fp32")

    @staticmethod
    def _share(prediction: Prediction, *names: str) -> float:
        """Share of the step of the leaves of some names. [1]"""
        return (
            sum(leaf.value for leaf in prediction.time.leaves() if leaf.name in names)
            / prediction.step_time_s
        )

    def _bubble(self, prediction: Prediction) -> float:
        """Share of the step that stages wait for each other, as the simulated schedule has it. [1]"""
        return max(0.0, self._share(prediction, "pipeline_bubble", CORRECTION))

    def _as_chosen(self, tried: Iterable[Variant]) -> str:
        return f"With the rest as chosen: {self.variants.listed(tried)}."

    def _other(self, text: str, tried: tuple[Variant, ...], name: str) -> tuple[str, tuple[Variant, ...]]:
        """The text and its evidence with the best plan found with another value of a size, the rest free."""
        chosen = getattr(self.plan, name)
        found = self._found(f"with another {name.upper()}", lambda each: each[name] != chosen)
        return (f"{text} {found[0]}", (*tried, found[1])) if found else (text, tried)

    def _versus(self, other: Variant, how: str, which: Which) -> tuple[str, tuple[Variant, ...]]:
        """The end of a sentence about a choice, and its evidence: the best plan found with it, or this one's time."""
        if found := self._found(how, which):
            return f". {found[0]}", (other, found[1])
        if other.prediction is None or not other.fits:
            return ".", (other,)
        rest = "" if other.prediction is self.chosen else ", with nothing else tuned for it"
        return f", {self._slower(other.prediction)}{rest}.", (other,)

    def _found(self, how: str, which: Which) -> tuple[str, Variant] | None:
        """The best plan that the search found with a choice, in words."""
        best = self.best.plan(which) if self.best else None
        if best is None:
            return None
        label = f"best {how}"
        if best.plan == self.plan:
            return f"Best found {how}: the chosen plan.", Variant(label, self.plan, self.chosen)
        plan = f"runner-up {best.rank}" if best.rank > 1 else best.plan.describe()
        text = f"Best found {how}: {seconds(best.step_time)}, {self._slower(best.prediction)} ({plan})."
        return text, Variant(label, best.plan, best.prediction)

    def _slower(self, other: Prediction) -> str:
        ratio = other.step_time_s / self.chosen.step_time_s - 1
        tight = "but tightly, " if other.tight and not self.chosen.tight else ""
        if abs(ratio) < 0.0005:
            return f"{tight}as fast as the chosen plan"
        return f"{tight}{percent(abs(ratio))} {'slower' if ratio > 0 else 'faster'} than the chosen plan"

    def _traffic(self) -> str:
        """What sharing the optimizer state costs: nothing where its gather takes half of the all-reduce's place."""
        return (
            "costs no more traffic" if self.plan.optimizer == "adam" else "costs a gather of the parameters"
        )
