"""What memory says of a published run: techniques that its row leaves unsaid, and its micro-batch.

A run that was published did run. Where the plan as stated is predicted not to fit, the columns that are empty
(unknown, not off) are filled in one fixed order, until it fits or nothing unsaid is left. What a row states is
never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from advisor.measurement_plans import habit_of
from advisor.measurement_rows import Row
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import Cluster

# Modules that fine-grained offloading takes where a row says that it offloads, but not what.
OFFLOADED = (("moe_act",), ("moe_act", "expert_fc1"), ("moe_act", "expert_fc1", "core_attn", "attn_proj"))


def made_to_fit(
    row: Row, model: ModelSpec, workload: Workload, cluster: Cluster, plan: Plan, stack: str
) -> tuple[Plan, list[str]]:
    """The row's plan with what it leaves unsaid and needs to fit, and that in words.

    The plan as it is when it fits, or when nothing unsaid makes it fit.
    """

    def fits(candidate: Plan) -> bool:
        return predict(model, workload, cluster, candidate, stack).fits

    if fits(plan):
        return plan, []
    taken: list[str] = []
    for candidate, words in techniques(row, model, plan):
        # Settings of recompute, and those of offload, replace one another; everything else adds up.
        kind = words.split(" of ")[0]
        taken = [*(each for each in taken if not (" of " in words and each.startswith(kind))), words]
        if fits(candidate):
            return candidate, [f"not stated, and without it the run would not fit: {', '.join(taken)}"]
    return plan, []


def largest_micro_batch(
    row: Row, model: ModelSpec, workload: Workload, cluster: Cluster, plan: Plan, stack: str
) -> tuple[Plan, list[str]]:
    """The row's plan with the micro-batch that it leaves unsaid, where there are no stages to keep busy.

    Without a pipeline a smaller one only makes products smaller and leaves less to hide communication under, so a run
    that was tuned took the largest that fits. With stages, and where a row says it, the plan as it is.
    """
    if row.number("mbs") or plan.pp > 1:
        return plan, []
    samples = workload.global_batch // plan.dp
    for size in range(samples, 1, -1):
        larger = replace(plan, micro_batch=size)
        if samples % size == 0 and predict(model, workload, cluster, larger, stack).fits:
            return larger, [
                f"micro-batch not stated: {size}, the largest that fits where there are no stages"
            ]
    return plan, ["micro-batch not stated: 1"]


def techniques(row: Row, model: ModelSpec, plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Plans with more and more of what the row leaves unsaid, the cheapest in time first.

    Formats that cost no time (8-bit parameters of an 8-bit recipe, a fused loss, 16-bit moments; under FSDP only
    where the source's recipes have them), what the row says is offloaded, then selective recompute of what is cheap,
    of the MLP or the experts, at last of everything.
    """
    eight_bit = plan.precision.startswith("fp8") or plan.precision == "mxfp8"
    if eight_bit and not plan.fp8_param_gather and not row.text("fp8_param_gather"):
        plan = replace(plan, fp8_param_gather=True, reuse_grad_buf=plan.precision == "mxfp8")
        yield plan, "parameters kept in 8 bits"
    if not plan.fused_cross_entropy and "cross_entropy_fusion" not in row.text("other_flags"):
        plan = replace(plan, fused_cross_entropy=True)
        yield plan, "fused loss"
    may = not plan.fsdp or habit_of(row).get("light_moments", False)
    if may and not plan.precision_aware_optimizer and not row.text("precision_aware_optimizer"):
        plan = replace(plan, precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")
        yield plan, "moments in 16 bits"
    if "not printed" in row.text("fine_grained_offload"):
        for offloaded in OFFLOADED:
            plan = replace(plan, offload_modules=offloaded)
            yield plan, f"offload of {'+'.join(offloaded)}"
    stated = "" if flags_uncertain(row) else row.text("recompute_granularity")
    if stated in ("none", "full") or (stated and row.text("recompute_modules")):
        return
    for modules in recompute_ladder(model):
        yield (
            replace(plan, recompute="selective", recompute_modules=modules, recompute_num_layers=0),
            f"recompute of {'+'.join(modules)}",
        )
    if stated:
        return
    layers = -(-model.num_layers // plan.pp)
    for eighths in range(4, 9):
        share = min(-(-layers * eighths // (8 * plan.vpp)), max(layers // plan.vpp, 1)) * plan.vpp
        yield (
            replace(plan, recompute="full", recompute_modules=(), recompute_num_layers=share),
            f"recompute of {share} of {layers} layers",
        )


def flags_uncertain(row: Row) -> bool:
    """Whether the row's flags were joined from a recipe that is not the run's own."""
    return row.text("recipe_match").startswith("partial") or "not pinned" in row.text("recipe_match")


def recompute_ladder(model: ModelSpec) -> list[tuple[str, ...]]:
    """Recompute modules of a model's family, by memory over time. Source: Megatron-Bridge, recompute notes."""
    cheap: tuple[str, ...] = ("layernorm",)
    if model.moe is not None:
        cheap = ("moe_act", *cheap)
    if model.mla is not None:
        cheap = (*cheap, "mla_up_proj")
    large = ("moe", "layernorm", "mlp") if model.moe is not None else ("layernorm", "mlp")
    return [cheap, large]
