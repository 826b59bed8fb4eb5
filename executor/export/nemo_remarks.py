"""What NeMo 2 cannot say of a job, or says otherwise, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.plan import Plan
from executor.export.exported import Job
from executor.export.target_names import Names
from executor.export.unsaid import (
    documents_note,
    facts_not_on_file,
    gather_note,
    graph_word_note,
    pack_note,
    recompute_note,
)
from executor.megatron_model import not_expressed
from hardware_db import Cluster


def remarks(job: Job, names: Names, module: str) -> Iterator[str]:
    """What the target cannot say, or says otherwise."""
    plan, model = job.plan, job.model
    if not module:
        yield (
            f"NeMo {names.release} has no recipe for {model.name}: the model is from our file, its initialisation "
            "NeMo's default"
        )
        yield from facts_not_on_file(model, "model.config.{}".format)
    if plan.fsdp and plan.fsdp_implementation == "torch":
        yield 'fsdp_implementation torch: NeMo 2 has no FSDP of torch (fsdp="pytorch" raises), so it is Megatron\'s'
    if plan.precision == "nvfp4" and plan.fp8_param_gather:
        yield f"fp8_param_gather: NeMo {names.release} gathers parameters in bf16 with nvfp4, left out"
    if plan.encoder_tp or plan.encoder_pp:
        yield "encoder_tp and encoder_pp: sizes of trainer.strategy for T5-like models only, left out"
    if plan.moe_dispatcher == "hybridep" and model.moe and lacks_hybridep(names):
        other = stand_in(plan, job.cluster)
        yield (
            f"moe_dispatcher hybridep: NeMo {names.release} has none, {other} is set; the plan is priced with HybridEP"
        )
    yield from (*gather_note(plan), *documents_note(job.workload))
    yield from graph_word_note(plan, model, f"NeMo {names.release}")
    if "full_iteration" in plan.cuda_graph_scope and plan.cuda_graph:
        yield "NaN checks of gradients are off: a graph of the whole iteration cannot stop for them"
    if names.release == "2.4.0":
        yield "NeMo 2.4.0 is best avoided: see issue 14392 of NVIDIA-NeMo/NeMo"
    if plan.attention_backend == "unfused":
        yield "attention without cuDNN or flash kernels: switch them off in the environment (NVTE_UNFUSED_ATTN)"
    yield from pack_note(plan, job.workload, "NeMo")
    if (
        job.workload.task != "pretrain"
    ):  # source: NeMo performance recipes on AWS, Fine-Tuning, Checkpoint Issues
        yield (
            "set NEMO_HOME to a folder on a file system that all nodes share: base weights and data are read there"
        )
    yield from recompute_note(plan, model)
    yield from not_expressed(model)


def lacks_hybridep(names: Names) -> bool:
    """Whether the release cannot be told of HybridEP."""
    return not names.has("model.config", "moe_flex_dispatcher_backend")


def stand_in(plan: Plan, cluster: Cluster) -> str:
    """What dispatches tokens where HybridEP has no name: DeepEP where it runs, see the rule deepep_gpu.

    Source: Megatron-Bridge src/megatron/bridge/training/flex_dispatcher_backend.py.
    """
    blackwell = cluster.gpu.generation.startswith("blackwell")
    racks = plan.moe_dispatcher == "hybridep" and blackwell and cluster.domain_size > 8
    return "alltoall" if racks else "deepep"
