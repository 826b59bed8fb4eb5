"""How long sequences are and how many a step has where nobody says: as in published recipes."""

from __future__ import annotations

import math

from costmodel.model_spec import ModelSpec
from hardware_db import Cluster

# Sequence lengths of published pre-training runs (Megatron-Bridge performance summary, model papers), by name.
USUAL_SEQ_LEN = {"llama3": 8192, "llama2": 4096, "nemotron4": 4096, "tiny": 256}
DEFAULT_SEQ_LEN = 4096
# On a processor a step should still end in seconds.
CPU_SEQUENCES = 8
# Sequences of one step in the published recipes: 128 up to 64 GPUs, then 2 a GPU (llama3-70b: 128 on 64,
# 2048 on 1024); fine-tuning 32, then half a GPU. Longer sequences than 8192 keep the tokens of a step.
SEQUENCES = {"pretrain": (128, 2.0), "sft": (32, 0.5), "lora": (32, 0.5)}
# Those of mixtures of experts in pre-training: 512 up to 64 GPUs, then 8 a GPU. Of 27 published choices for a model and
# a number of GPUs, up to 8,192 tokens long, those on 8 GPUs are 480 and 512, 16 of the 21 on 64 and more are 8 to 20
# a GPU; DeepSeek-V3's own is 15,360 on 2,048. Sources: Megatron-Bridge performance summaries and verification cards,
# DGXC recipes 25.09, Megatron-MoE-ModelZoo (measurements.csv); arXiv:2412.19437. Fine-tuning is as of dense models.
SEQUENCES_OF_EXPERTS = {"pretrain": (512, 8.0)}
LONG_SEQUENCE = 8192
# Tokens of a step that no published pre-training run goes far beyond, whatever its GPUs: DeepSeek-V3's 15,360 sequences
# of 4,096 on 2,048 GPUs; Llama 3.1 405B takes 16 million on 16,384. Sources: arXiv:2412.19437, arXiv:2407.21783.
MOST_TOKENS = 2**26
# A batch that the odd part of the GPUs divides may be this many times what a recipe would take.
MOST_OVER = 4


def usual_seq_len(model: ModelSpec) -> int:
    """Sequence length at which the model is usually trained. [token]"""
    by_name = next((size for start, size in USUAL_SEQ_LEN.items() if model.name.startswith(start)), 0)
    return model.learned_positions or model.seq_len or by_name or DEFAULT_SEQ_LEN


def why_that_long(model: ModelSpec, seq_len: int) -> str:
    """Where the usual sequence length comes from."""
    from costmodel.model_registry import list_models

    said = model.learned_positions or model.seq_len or model.name in list_models()
    if said or seq_len != DEFAULT_SEQ_LEN:
        return f"as {model.name} is usually trained"
    return f"as nothing tells how {model.name} is trained"


def usual_global_batch(model: ModelSpec, cluster: Cluster, gpus: int, seq_len: int, task: str) -> int:
    """Sequences of one step where nobody says how many. [1]"""
    if cluster.gpu.generation == "cpu":
        return CPU_SEQUENCES * gpus
    return default_global_batch(gpus, seq_len, task, model.moe is not None)


def default_global_batch(gpus: int, seq_len: int, task: str, experts: bool = False) -> int:
    """Sequences of one step in the manner of published recipes, a multiple or a divisor of `gpus`. [1]

    experts: whether the model is a mixture of experts, whose recipes take more. Of multiples one that micro-batches
    divide; of divisors one that data parallelism can share out where no other size takes what is odd of the GPUs.
    """
    least, each = (SEQUENCES | (SEQUENCES_OF_EXPERTS if experts else {}))[task]
    target = max(least, each * gpus) * LONG_SEQUENCE / max(seq_len, LONG_SEQUENCE)
    target = min(target, MOST_TOKENS / seq_len)
    if target > gpus / 2:
        share = math.ceil(target / gpus)
        unit = 1 << max(0, share.bit_length() - 2)
        return gpus * math.ceil(share / unit) * unit
    found = sorted(gpus // d for d in range(1, gpus + 1) if gpus % d == 0 and gpus // d >= target)
    odd = gpus // (gpus & -gpus)
    shared = next(batch for batch in found if batch % odd == 0)
    return shared if shared <= MOST_OVER * target else found[0]


def why_that_many(model: ModelSpec, task: str) -> str:
    """Where the usual batch comes from."""
    of = "" if model.moe is None or task not in SEQUENCES_OF_EXPERTS else " of mixtures of experts"
    return f"scaled with the GPUs as published recipes{of} do"
