"""What a task or a benchmark adds to a job in the words of Megatron-Bridge: adapters, packed sequences, mock data."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from costmodel.graph_parts import captured_parts
from costmodel.model_spec import ModelSpec
from costmodel.workload import Workload
from executor.export.exported import Job
from executor.export.target_names import Names

# Megatron-Core's names of layers that have adapters. Source: Megatron-Core 0.16.1, attention.py,
# multi_latent_attention.py (one query projection where there is no latent), mamba_mixer.py, gated_delta_net.py.
QUERIES_KEYS_VALUES = ("linear_qkv",)
LATENT_QUERIES = {True: ("linear_q_down_proj", "linear_q_up_proj"), False: ("linear_q_proj",)}
LATENT_KEYS_VALUES = ("linear_kv_down_proj", "linear_kv_up_proj")
MLPS, MIXERS = ("linear_fc1", "linear_fc2"), ("in_proj", "out_proj")
INTO_ATTENTION = {*QUERIES_KEYS_VALUES, *LATENT_QUERIES[True], *LATENT_QUERIES[False], *LATENT_KEYS_VALUES}
# What the targets adapt where nothing is said. Source: Megatron-Bridge 0.6.2, peft/lora.py.
DEFAULT_TARGETS = (*QUERIES_KEYS_VALUES, "linear_proj", *MLPS)


def target_modules(model: ModelSpec, reach: str) -> list[str]:
    """Modules that have adapters where `lora_targets` says so; MLPs are those of experts and shared experts too."""
    names = QUERIES_KEYS_VALUES
    if model.mla is not None:
        names = LATENT_QUERIES[bool(model.mla.q_lora_rank)] + LATENT_KEYS_VALUES
    if reach != "qkv":
        names += ("linear_proj",)
    if reach == "all":
        names += MLPS
        names += MIXERS if model.mamba is not None or model.gated_delta is not None else ()
    return list(names)


def reach_of(targets: Collection[str]) -> str:
    """`lora_targets` that adapts modules of these names."""
    if {*MLPS, *MIXERS} & set(targets):
        return "all"
    return "qkv" if set(targets) <= INTO_ATTENTION else "attention"


def adapter_settings(workload: Workload, model: ModelSpec) -> dict[str, Any]:
    """Low-rank adapters, in the words of both targets."""
    return {
        "peft.dim": workload.lora_rank,
        "peft.alpha": 2 * workload.lora_rank,
        "peft.target_modules": target_modules(model, workload.lora_targets),
    }


def task_settings(job: Job, names: Names) -> dict[str, Any]:
    """Adapters and packed sequences of fine-tuning."""
    workload = job.workload
    if workload.task == "pretrain":
        return {}
    settings: dict[str, Any] = {"dataset.seq_length": workload.seq_len}
    if job.plan.cp > 1:
        # ConfigContainer.validate: ranks of one sequence hold unequal numbers of tokens that count.
        settings |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    if workload.task == "lora":
        settings |= adapter_settings(workload, job.model)
    if names.has("finetuning", "enable_offline_packing"):
        settings["dataset.enable_offline_packing"] = workload.packed
        packing = "offline_packing_specs"
    else:
        packing = "packed_sequence_specs"
    if workload.packed:
        settings[f"dataset.{packing}.packed_sequence_size"] = workload.seq_len
        lengths = (f"dataset.{packing}.packed_sequence_size", "dataset.seq_length", "model.seq_length")
        settings |= packed_batch(job, lengths, "train")
        settings["dataset.dataset_kwargs"] = {"pad_to_max_length": True}
        if graphs_of_attention(job):
            settings[f"dataset.{packing}.pad_cu_seqlens"] = True
    else:
        settings[f"dataset.{packing}"] = None
        if job.plan.cuda_graph:  # of one shape, see rule graph_padded
            settings["dataset.dataset_kwargs"] = {"pad_to_max_length": True}
    return settings


def graphs_of_attention(job: Job) -> bool:
    """Whether CUDA graphs capture attention: packs must describe their documents in a fixed number of entries then.

    Both targets name that pad_cu_seqlens. Source: Megatron-Bridge 0.6.2, training/config.py:1181-1188.
    """
    parts = captured_parts(job.plan, job.model)
    return job.plan.cuda_graph and (not parts or not {"attn", "full_iteration"}.isdisjoint(parts))


def packed_batch(job: Job, lengths: tuple[str, ...], batch: str) -> dict[str, Any]:
    """Several packs in a micro-batch are one longer pack: both targets refuse more than one, and say this way out."""
    packs = job.plan.micro_batch
    if packs == 1:
        return {}
    tokens = packs * job.workload.seq_len
    return dict.fromkeys(lengths, tokens) | {
        f"{batch}.micro_batch_size": 1,
        f"{batch}.global_batch_size": job.workload.global_batch // packs,
    }


def benchmark_settings(job: Job) -> dict[str, Any]:
    """What only a benchmark may have: data from nowhere, tokens spread evenly, no checks, no checkpoints."""
    settings: dict[str, Any] = {
        "dataset.blend": None,
        "tokenizer.tokenizer_type": "NullTokenizer",
        "tokenizer.vocab_size": job.model.vocab,
        "rerun_state_machine.check_for_nan_in_loss": False,
        "ddp.check_for_nan_in_grad": False,
        "checkpoint.save": None,
        "checkpoint.load": None,
        "train.train_iters": 50,
    }
    if job.workload.task != "pretrain":
        settings = {
            name: value for name, value in settings.items() if not name.startswith(("dataset", "tokenizer"))
        }
    if job.model.moe is not None:
        settings["model.moe_router_force_load_balancing"] = True
    return settings
