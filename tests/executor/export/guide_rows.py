"""Rows of the NeMo performance recipes on AWS (awsome-distributed-training, nemo, PERFORMANCE.md), as plans.

Sizes as in its tables: GPUs, global batch, micro-batch, sequence, TP, PP, CP, VP, EP. Layer counts that do not divide
get accounting or a layout, which the guide leaves to NeMo's recipes.
"""

from __future__ import annotations

from typing import Any

from costmodel.plan import Plan
from costmodel.workload import Workload

# model, machine, task, precision, GPUs, GBS, MBS, sequence, TP, PP, CP, VP, EP, further knobs
FSDP = {"fsdp": True, "zero_stage": 3}
BOTH = {"account_embedding": True, "account_loss": True}
TABLE: tuple[tuple[Any, ...], ...] = (
    ("llama3-8b", "aws-p5en", "pretrain", "bf16", 8, 128, 1, 8192, 1, 1, 2, 1, 1, {}),
    ("llama3-70b", "aws-p5en", "pretrain", "bf16", 64, 128, 1, 8192, 4, 8, 1, 5, 1, {}),
    ("llama3.1-405b", "aws-p5en", "pretrain", "bf16", 128, 64, 1, 8192, 8, 8, 2, 8, 1, BOTH),
    ("llama3-8b", "aws-p6-b200", "pretrain", "fp8-cs", 8, 128, 2, 8192, 1, 1, 1, 1, 1, {}),
    ("llama3-8b", "aws-p6-b200", "pretrain", "mxfp8", 8, 128, 1, 8192, 1, 1, 1, 1, 1, {}),
    ("llama3-70b", "aws-p6-b200", "pretrain", "fp8-cs", 64, 128, 1, 8192, 1, 1, 1, 1, 1, FSDP),
    ("llama3-70b", "aws-p6-b200", "pretrain", "fp8-cs", 64, 128, 1, 8192, 2, 4, 2, 5, 1, {}),
    ("llama3.1-405b", "aws-p6-b200", "pretrain", "fp8-cs", 128, 64, 1, 8192, 4, 8, 2, 8, 1, BOTH),
    ("llama4-scout", "aws-p6-b200", "pretrain", "fp8-cs", 64, 1024, 1, 8192, 1, 2, 1, 24, 8, {}),
    ("llama4-maverick", "aws-p6-b200", "pretrain", "fp8-cs", 128, 1024, 1, 8192, 1, 2, 1, 12, 64, {}),
    ("mixtral-8x7b", "aws-p6-b200", "pretrain", "fp8-cs", 64, 256, 2, 4096, 1, 1, 1, 1, 8, {}),
    ("mixtral-8x22b", "aws-p6-b200", "pretrain", "fp8-cs", 256, 64, 1, 65536, 2, 4, 8, 14, 8, {}),
    ("nemotronh-56b", "aws-p6-b200", "pretrain", "fp8-cs", 64, 192, 2, 8192, 4, 1, 1, 1, 1, {}),
    ("deepseek-v3", "aws-p6-b200", "pretrain", "fp8-cs", 256, 2048, 1, 4096, 2, 16, 1, 1, 8, {}),
    ("llama3-8b", "aws-p6-b200", "sft", "fp8-cs", 8, 8, 1, 16384, 1, 1, 1, 1, 1, {}),
    ("llama3-70b", "aws-p6-b200", "sft", "fp8-cs", 32, 32, 1, 4096, 2, 4, 1, 5, 1, {}),
    ("llama3-70b", "aws-p6-b200", "lora", "fp8-cs", 8, 32, 1, 4096, 1, 4, 1, 20, 1, {}),
)


def plans() -> list[tuple[str, str, Plan, Workload]]:
    """Model, machine, plan and workload of every row."""
    found = []
    for model, machine, task, precision, gpus, gbs, mbs, seq, tp, pp, cp, vp, ep, more in TABLE:
        sizes = {"tp": tp, "pp": pp, "cp": cp, "vpp": vp, "ep": ep, "dp": gpus // (tp * pp * cp)}
        plan = Plan(**sizes, micro_batch=mbs, precision=precision, sequence_parallel=tp > 1, **more)
        found.append((model, machine, plan, Workload(seq, gbs, task)))
    return found
