"""Export to Megatron-LM: the arguments of its pre-training script, and configurations of it read back."""

from __future__ import annotations

from typing import Any

from costmodel.stack import vendor_note
from executor.export.exported import SCHEDULE, Exported, Job, Reading
from executor.export.megatron_lm_arguments import NO_MASK, arguments, words
from executor.export.megatron_lm_names import flag_of, version_of
from executor.export.overlap_table import PIPELINED, pipelined
from executor.export.unsaid import (
    facts_not_on_file,
    gather_note,
    refuse_custom_heads,
    refuse_heads_apart,
    refuse_indexer,
)
from hardware_db import platform_of

TARGET = "megatron-lm"
# Where the images of NGC keep the source.
HOME = "/opt/megatron-lm"
# Shell variables of the exported script that the user may or must set: default and meaning.
SCRIPT = {
    "MEGATRON_HOME": (HOME, "the checkout of Megatron-LM"),
    "CHECKPOINTS": ("$PWD/checkpoints", "where checkpoints are kept, on a file system all nodes share"),
}
DATA = {
    "DATA_PATH": ("", "the prefix of the tokenised data set, such as /data/text_document"),
    "TOKENIZER_MODEL": ("", "the tokenizer: a name on Hugging Face or a folder"),
}
TUNING = {"PRETRAINED": ("", "the checkpoint to start from")}
# What --tp-comm-overlap-cfg names.
OVERLAP_FILE = "tp_comm_overlap.yaml"


def export(job: Job) -> Exported:
    """The job as Megatron-LM takes it. ValueError in one line for what would train something else."""
    _refuse(job)
    version, note = version_of(job.version)
    core = tuple(map(int, version.name.split(".")))
    refuse_indexer(job.model, core, f"Megatron-LM {version.name}", "--target-version 0.19")
    refuse_heads_apart(job.model, f"Megatron-LM {version.name}")
    settings, notes = arguments(job, version)
    if note:
        notes.insert(0, note)
    notes += _unknown(job)
    files = _overlap_file(job)
    if files:
        settings["--tp-comm-overlap-cfg"] = "${HERE}/" + OVERLAP_FILE
    return Exported(
        target=TARGET,
        version=version.name,
        settings=settings,
        command=(f"${{MEGATRON_HOME}}/{_script(job)}", *words(settings), *words(user_arguments(job))),
        files=files,
        notes=tuple(notes),
    )


def read(text: str) -> Reading:
    """A command line, a shell script or YAML of Megatron-LM, read back."""
    from executor.export.megatron_lm_read import reading

    return reading(text)


def inputs(job: Job) -> dict[str, tuple[str, str]]:
    """Shell variables of the launch script: name to default ("" when it must be given) and meaning."""
    data = {} if job.benchmark else DATA | (TUNING if job.workload.task == "sft" else {})
    # /opt/megatron-lm is where NVIDIA's images have it; where AMD's do is on file nowhere, so it is asked for.
    rocm = platform_of(job.cluster.gpu.vendor).is_rocm
    script = SCRIPT | {"MEGATRON_HOME": ("", "the checkout of Megatron-LM")} if rocm else SCRIPT
    return data | script | SCHEDULE


def _refuse(job: Job) -> None:
    if job.workload.task == "lora":
        raise ValueError(
            "--task lora: Megatron-LM has no adapters and would train every weight. Try --to megatron-bridge."
        )
    refuse_custom_heads(job.model, "Megatron-LM up to 0.19")
    if job.model.compressed_attention is not None:
        raise ValueError(
            f"{job.model.name} has compressed sparse attention, which Megatron-LM does not build up to 0.19. "
            "`advisor predict` knows its cost."
        )
    if job.workload.task == "sft":
        _refuse_padding(job)
    _refuse_by_parser(job)
    if job.plan.encoder_pp:
        raise ValueError(
            f"--encoder-pp {job.plan.encoder_pp}: Megatron-LM has no stages for encoders any more. Try --encoder-pp 0."
        )


def _refuse_padding(job: Job) -> None:
    """Fine-tuning that its data set, which packs, cannot do.

    Source: megatron/training/datasets/sft_dataset.py of the wheels of 0.17.1 to 0.19.2; the assertion
    "micro-batch-size must be 1 for packing" of 0.17.1, megatron/training/utils.py, and that on the shape of cu_seqlens
    of 0.18.2, core/utils.py. 0.19.2, core/utils.py: flatten_batch_for_packed_sequences joins a micro-batch's packs.
    """
    workload, size = job.workload, job.plan.micro_batch
    if not workload.packed:
        raise ValueError(
            "--task sft --no-packed: Megatron-LM's --sft always packs conversations. "
            "Try --packed --micro-batch 1, or --to megatron-bridge."
        )
    if size > 1:
        raise ValueError(
            f"--task sft with --micro-batch {size}: Megatron-LM before 0.19 takes one pack a micro-batch, and 0.19 "
            f"joins the {size} to one. The same is --micro-batch 1 --seq-len {workload.seq_len * size} "
            f"--global-batch {workload.global_batch // size}."
        )


def _refuse_by_parser(job: Job) -> None:
    """What our rules allow, since other frameworks take it, and Megatron-LM's own checks do not."""
    plan = job.plan
    if (
        plan.main_grads_dtype == "bf16"
        and plan.grad_reduce_in_fp32
        and plan.precision not in ("fp32", "fp16")
    ):
        raise ValueError(
            "--main-grads-dtype bf16 with gradients reduced in FP32: Megatron-LM refuses the two together. "
            "Try --no-grad-reduce-in-fp32, or --main-grads-dtype fp32."
        )
    if plan.optimizer_offload and not plan.precision_aware_optimizer:
        raise ValueError(
            f"--optimizer-offload {plan.optimizer_offload}: Megatron-LM offloads the precision-aware optimizer alone, "
            "whose master parameters leave the GPU too. Try --precision-aware-optimizer, or --to megatron-bridge."
        )
    ordered = (plan.tp > 1 or plan.cp > 1) and not plan.fsdp and not plan.overlap_moe_comm
    older = not job.cluster.gpu.generation.startswith("blackwell")
    if ordered and older and plan.max_connections > 1:
        raise ValueError(
            f"--max-connections {plan.max_connections} with tp = {plan.tp}, cp = {plan.cp} before Blackwell: "
            "Megatron-LM refuses anything but 1. Try --max-connections 1."
        )


def _script(job: Job) -> str:
    return "pretrain_mamba.py" if job.model.mamba is not None else "pretrain_gpt.py"


def user_arguments(job: Job) -> dict[str, Any]:
    """Arguments that no plan knows: data, tokenizer, schedule, checkpoints; variables of the shell in them.

    The loader would build a mask of every token by every other for each sequence, 4 bytes each on the host and one on
    the GPU, that kernels with causal masks do not read. Source: Megatron-Core 0.16 to 0.19.2, gpt_dataset.py,
    _get_ltor_masks_and_position_ids, and get_batch_on_this_tp_rank.
    """
    found: dict[str, Any] = {NO_MASK: True}
    if job.model.mamba is not None:
        found["--spec"] = ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]
    if job.benchmark:
        found |= {
            "--mock-data": True,
            "--tokenizer-type": "NullTokenizer",
            "--vocab-size": job.model.vocab - 1,
        }
    else:
        kind = "SFTTokenizer" if job.workload.task == "sft" else "HuggingFaceTokenizer"
        found |= {"--data-path": "${DATA_PATH}", "--split": "99,1,0"}
        found |= {"--tokenizer-type": kind, "--tokenizer-model": "${TOKENIZER_MODEL}"}
        found |= {"--vocab-size": job.model.vocab}
        found |= {"--save": "${CHECKPOINTS}", "--load": "${CHECKPOINTS}", "--save-interval": 500}
    if job.workload.task == "sft":
        found["--sft"] = True
        found |= {} if job.benchmark else {"--pretrained-checkpoint": "${PRETRAINED}"}
    found |= {"--train-iters": "${TRAIN_ITERS}", "--lr": "${LR}", "--min-lr": "${MIN_LR}"}
    found |= {"--lr-decay-style": "cosine", "--lr-warmup-iters": "${WARMUP_ITERS}"}
    found |= {"--weight-decay": 0.1, "--adam-beta2": 0.95, "--init-method-std": 0.02}
    return found | {"--log-interval": 1, "--log-throughput": True, "--eval-iters": 0, "--eval-interval": 1000}


def _unknown(job: Job) -> list[str]:
    """What our model files do not hold and the user must add."""
    notes = [*facts_not_on_file(job.model, flag_of, latent_scaling=1), *gather_note(job.plan)]
    if job.model.mamba is not None:
        notes.append("newer checkouts call the script pretrain_hybrid.py")
    if note := vendor_note(job.cluster.gpu.vendor):
        notes.append(f"names are Megatron-LM's: {note}")
    if job.workload.task == "sft":
        notes.append("--sft packs conversations; documents and lengths are those of your data set")
    return notes


def _overlap_file(job: Job) -> dict[str, str]:
    """Splits, SMs and cluster size of the overlapped tensor-parallel GEMMs, as --tp-comm-overlap-cfg reads them."""
    row = pipelined(job.plan)
    if not row:
        return {}
    lines = [
        "# Forward projections whose reduce-scatter is pipelined with the GEMM; the others keep TE's defaults."
    ]
    for name in PIPELINED:
        lines += [f"{name}:", "  method: pipeline"]
        lines += [f"  {key}: {str(value).lower()}" for key, value in row.items()]
    return {OVERLAP_FILE: "\n".join(lines) + "\n"}
