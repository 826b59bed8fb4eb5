"""What Megatron-Bridge cannot say of a job, or says otherwise, a line each."""

from __future__ import annotations

from collections.abc import Iterator

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
from executor.megatron_model import not_expressed, yarn_arguments


def remarks(job: Job, names: Names, recipe: str) -> Iterator[str]:
    """What the target cannot say, or says otherwise."""
    plan, model = job.plan, job.model
    if not recipe:
        yield (
            f"Megatron-Bridge {names.release} has no recipe for {model.name}: the model is from our file, its "
            "initialisation Megatron-Core's default"
        )
        yarn = bool(yarn_arguments(model)) and names.has("model", "yarn_rotary_scaling_factor")
        yield from facts_not_on_file(model, "model.{}".format, yarn=yarn)
    elif job.workload.task != "pretrain" and "pretrain" in recipe:
        yield (
            f"Megatron-Bridge {names.release} has no recipe to fine-tune {model.name}: this is its pre-training "
            "recipe on SQuAD, with what the plan adds"
        )
    if plan.encoder_tp or plan.encoder_pp:
        yield "encoder_tp and encoder_pp: Megatron-Bridge has no sizes for an encoder of its own any more, left out"
    yield from (*gather_note(plan), *documents_note(job.workload))
    if plan.optimizer == "muon" and plan.overlap_param_gather:
        yield "overlap_param_gather is off: Megatron-Bridge gathers after Muon's step alone, the plan beside it"
    if plan.fsdp and plan.gradient_accumulation_fusion and names.numbers < (0, 4):
        yield "Megatron-Bridge switches gradient_accumulation_fusion off with FSDP; the plan has it on"
    if plan.precision == "mxfp8" and plan.fp8_param_gather and not plan.reuse_grad_buf and not plan.fsdp:
        yield "reuse_grad_buf_for_mxfp8_param_ag is on: Megatron-Bridge refuses fp8_param_gather in mxfp8 without it"
    if "full_iteration" in plan.cuda_graph_scope and plan.cuda_graph:
        yield "NaN checks are off: Megatron-Bridge refuses them with a graph of the whole iteration"
    if names.core_numbers < (0, 16):
        yield from graph_word_note(plan, model, f"release {names.release}")
    yield from pack_note(plan, job.workload, "Megatron-Bridge")
    yield from recompute_note(plan, model)
    yield from not_expressed(model, names.has("model", "hybrid_layer_pattern"), bool(recipe), indexers=True)
    if not job.workload.packed and job.workload.mean_length:
        yield "documents are padded: their lengths are those of your data set"
