"""What memory says of a published run: techniques that its row leaves unsaid, and its micro-batch.

A run that was published did run. Where the plan as stated is predicted not to fit, the columns that are empty
(unknown, not off) are filled: what costs no time first, recompute last. What a row states is never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from advisor.measurements.plans import accumulation, habit_of
from advisor.measurements.recompute import granularity, modules_stated
from advisor.measurements.rows import Row
from advisor.rules.features import lacked
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.stack import load_stack
from costmodel.workload import Workload
from hardware_db import Cluster

# What the count of memory errs by: nine of ten published peaks are met within it (docs/accuracy.md).
COUNT_ERROR = 0.10
# Predicted over published peak, less one, that 95 of 100 published peaks stay below (docs/accuracy.md, Memory).
MEMORY_ERROR = 0.25
# Modules that fine-grained offloading takes where a row says that it offloads, but not what.
OFFLOADED = (("moe_act",), ("moe_act", "expert_fc1"), ("moe_act", "expert_fc1", "core_attn", "attn_proj"))

# Features without which no module is recomputed alone.
BY_MODULE = {"recompute_modules", "recompute_by_module"}


def refuted(prediction: Prediction) -> bool:
    """Whether memory says that the run cannot have been: over the whole device by more than the model errs.

    `Prediction.fits` keeps back what the allocator needs to live; a run that was published ran.
    """
    return prediction.peak_memory_bytes > prediction.device_bytes * (1 + MEMORY_ERROR)


def made_to_fit(
    row: Row, model: ModelSpec, workload: Workload, cluster: Cluster, plan: Plan, stack: str
) -> tuple[Plan, list[str]]:
    """The row's plan with what it leaves unsaid and needs to fit, and that in words.

    First what costs no time, as far as needed. What costs time only where memory is still over the device by more
    than the count errs: what is said to be offloaded, else the recompute with which the run is fastest. The plan as it
    is when it fits; what costs no time and what is offloaded where no recompute that the row leaves open is enough.
    """

    def at(candidate: Plan) -> Prediction:
        return predict(model, workload, cluster, candidate, stack, judged=False)

    def held(prediction: Prediction) -> bool:
        return prediction.peak_memory_bytes <= (1 + COUNT_ERROR) * prediction.device_bytes

    if at(plan).fits:
        return plan, []
    light, taken = plan, []
    for light, words in free_techniques(row, plan, load_stack(stack).native_loss):
        taken.append(words)
        if at(light).fits:
            break
    if held(at(light)):
        return light, _needed(taken)
    offloaded: list[str] = []
    offloading = light
    for offloading, words in offloads(row, model, light):
        offloaded = [words]
        if held(at(offloading)):
            return offloading, _needed(taken + offloaded)
    recomputing = [(at(each), each, words) for each, words in recomputes(row, model, offloading, stack)]
    enough = [found for found in recomputing if held(found[0])]
    if not enough and refuted(at(offloading)):
        # A run that was made did fit: recompute that brings it below what memory refutes, where nothing else is said.
        enough = [found for found in recomputing if not refuted(found[0])]
    if not enough:
        return offloading, _needed([*taken, *offloaded])
    _, fastest, words = min(enough, key=lambda found: found[0].step_time_s)
    return fastest, _needed([*taken, *offloaded, words])


def _needed(taken: list[str]) -> list[str]:
    return [f"not stated, and without it the run would not fit: {', '.join(taken)}"] if taken else []


def largest_micro_batch(
    row: Row, model: ModelSpec, workload: Workload, cluster: Cluster, plan: Plan, stack: str
) -> tuple[Plan, list[str]]:
    """The row's plan with the micro-batch that it leaves unsaid, where there are no stages to keep busy.

    Without a pipeline a smaller one only makes products smaller and leaves less to hide communication under, so a run
    that was tuned took the largest that fits. With stages, and where a row says it, the plan as it is; 1 of sources
    that run recipes as they come (131 of 180 that Megatron-Bridge 0.6.2 ships say 1).
    """
    samples = workload.global_batch // plan.dp
    if not (row.number("mbs") or plan.pp > 1 or habit_of(row).get("performance", True)):
        return plan, ["micro-batch not stated: 1, as most recipes come"]
    if row.number("mbs") or plan.pp > 1 or accumulation(row, samples):
        return plan, []
    for size in range(samples, 1, -1):
        larger = replace(plan, micro_batch=size)
        if samples % size == 0 and predict(model, workload, cluster, larger, stack, judged=False).fits:
            return larger, [
                f"micro-batch not stated: {size}, the largest that fits where there are no stages"
            ]
    return plan, ["micro-batch not stated: 1"]


def unsaid_sizes(row: Row, model: ModelSpec, cluster: Cluster, plan: Plan) -> Iterator[dict[str, str]]:
    """Columns that a row leaves empty and that decide how much of a model a GPU holds, filled: the likelier first."""
    spread = spread_of_experts(row, model, cluster, plan)
    open_ = [{"ep": str(spread[-1])}] if spread else []
    if splits_experts(row, model, plan):
        open_.append({"etp": str(plan.tp)})
    if not (row.text("fsdp") or plan.fsdp) and plan.dp * plan.cp > 1:
        open_.append({"fsdp": "1"})
    for many in range(1, len(open_) + 1):
        for columns in combinations(open_, many):
            yield {column: value for each in columns for column, value in each.items()}


def splits_experts(row: Row, model: ModelSpec, plan: Plan) -> bool:
    """Whether a row without `etp` may have split its experts over the tensor-parallel ranks."""
    open_to_it = model.moe is not None and not model.linear_bias and not row.text("etp")
    return open_to_it and plan.tp > 1 and not habit_of(row).get("plain_experts")


def spread_of_experts(row: Row, model: ModelSpec, cluster: Cluster, plan: Plan) -> list[int]:
    """Expert parallel sizes within a domain that a row without one may have had, smallest first."""
    if model.moe is None or row.text("ep") or plan.ep > 1:
        return []
    most = min(cluster.domain_size, plan.world // plan.pp)
    return [size for size in range(2, most + 1) if model.moe.num_experts % size == 0]


def free_techniques(row: Row, plan: Plan, native_loss: bool = False) -> Iterator[tuple[Plan, str]]:
    """Plans with more and more of what the row leaves unsaid and what costs no time.

    8-bit parameters of an 8-bit recipe, a fused loss unless it is Megatron-Core's own, which holds more than the one
    that is not fused, 16-bit moments (under FSDP only where the source's recipes have them), also of a precision-aware
    optimizer whose formats the row does not say: it is what such an optimizer is for.
    """
    eight_bit = plan.precision.startswith("fp8") or plan.precision == "mxfp8"
    if eight_bit and not plan.fp8_param_gather and not row.text("fp8_param_gather"):
        plan = replace(plan, fp8_param_gather=True, reuse_grad_buf=plan.precision == "mxfp8")
        yield plan, "parameters kept in 8 bits"
    silent = not any(f"cross_entropy_{what}" in row.text("other_flags") for what in ("fusion", "loss_fusion"))
    native_loss = native_loss or plan.cross_entropy_fusion_impl == "native"
    if not plan.fused_cross_entropy and silent and not native_loss:
        plan = replace(plan, fused_cross_entropy=True)
        yield plan, "fused loss"
    may = not plan.fsdp or habit_of(row).get("light_moments", False)
    formats = "exp_avg_dtype" in row.text("other_flags")
    open_to_it = plan.precision_aware_optimizer or not row.text("precision_aware_optimizer")
    if may and open_to_it and not formats:
        plan = replace(plan, precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")
        yield plan, "moments in 16 bits"


def offloads(row: Row, model: ModelSpec, plan: Plan) -> Iterator[tuple[Plan, str]]:
    """Plans that offload more and more: where a row says that it does, but not what, and where its source's recipes do.

    Those offload activations of whole layers under FSDP (cpu_offloading), counted here in eighths of the layers.
    """
    if "not printed" in row.text("fine_grained_offload"):
        for offloaded in OFFLOADED:
            yield replace(plan, offload_modules=offloaded), f"offload of {'+'.join(offloaded)}"
    if plan.fsdp and not row.text("act_offload_layers") and habit_of(row).get("offloads_layers"):
        for eighths in range(1, 8):
            layers = -(-model.num_layers * eighths // 8)
            yield replace(plan, offload_layers=layers), f"offload of {layers} layers' activations"


def recomputes(row: Row, model: ModelSpec, plan: Plan, stack: str) -> Iterator[tuple[Plan, str]]:
    """Plans that recompute what the row leaves open and its software has.

    Modules, or some layers; all of them where it is all or none.
    """
    stated = "" if flags_uncertain(row) else granularity(row)[0]
    if (
        habit_of(row).get("settled_recompute")
        or stated in ("none", "full")
        or (stated and (row.text("recompute_modules") or modules_stated(row)))
    ):
        return
    missing = lacked(stack)
    if habit_of(row).get("whole_recompute") or "recompute_layers" in missing:
        yield (
            replace(plan, recompute="full", recompute_modules=(), recompute_num_layers=0),
            "recompute of every layer",
        )
        return
    for modules in () if missing & BY_MODULE else recompute_ladder(model):
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
    if model.mla is not None or model.compressed_attention is not None:
        cheap = (*cheap, "mla_up_proj")
    large = ("moe", "layernorm", "mlp") if model.moe is not None else ("layernorm", "mlp")
    return [cheap, large]
