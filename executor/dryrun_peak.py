"""The most that activations take on a stage of a dry run, by the formulas that give a plan's memory."""

from __future__ import annotations

from dataclasses import replace

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster

# What a step holds beside weights, gradients and optimizer state, fragments and contexts.
PARTS = ("activations", "logits", "workspace", "stand_ins", "deferred", "flat_gradients")
# Bytes are the same on all.
ANY_CLUSTER = "dgx-h100"


def predicted_peak(
    plan: Plan, workload: Workload, model: ModelSpec, stage: int, num_microbatches: int, software: str
) -> float:
    """Activations of a stage at their most, with logits and stand-ins of weight gradients. [byte]

    0 for a stage that the memory formulas do not have (they know the first, the second and the last), and in FP32,
    which has no rates on file. As it is traced: 8-bit and 4-bit formats as BF16, a fused loss as operations that
    nothing compiles, which work in place. software: the stack whose Megatron-Core runs.
    """
    names = {1: "second", plan.pp - 1: "last", 0: "first"}
    if stage not in names or plan.precision == "fp32":
        return 0.0
    plan = replace(plan, fused_cross_entropy=False)
    if plan.precision not in ("bf16", "fp16"):
        plan = replace(
            plan, precision="bf16", fp8_param_gather=False, fp8_attention=False, reuse_grad_buf=False
        )
    traced = replace(workload, global_batch=plan.dp * plan.micro_batch * num_microbatches)
    values = predict(model, traced, load_cluster(ANY_CLUSTER), plan, software, judged=False).values
    return sum(values.get(f"memory_{names[stage]}_{part}", 0.0) for part in PARTS)
