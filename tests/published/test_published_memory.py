"""Peak memory of published runs."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.model_file import with_overrides
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload
from hardware_db import load_cluster

GIB = 2**30
# SimuMax, release v1.2 (real_ms), Megatron-LM on 8 B200: max over the ranks of torch's max_memory_allocated. Models
# cut to a few layers. Formulas of live tensors: 2 %.
SIMUMAX = [
    ("llama3-70b", 12, 16, {"pp": 2, "dp": 4}, 66.55),
    ("llama3-70b", 12, 16, {"tp": 2, "dp": 4, "sequence_parallel": True}, 60.68),
    ("llama3-70b", 12, 8, {"tp": 4, "dp": 2, "sequence_parallel": True}, 39.1),
    ("llama3-70b", 12, 8, {"tp": 8, "sequence_parallel": True}, 28.3),
    ("llama3.1-405b", 4, 16, {"pp": 2, "dp": 4}, 87.08),
    ("llama3.1-405b", 4, 16, {"tp": 2, "dp": 4, "sequence_parallel": True}, 81.59),
    ("llama3.1-405b", 4, 4, {"tp": 8, "sequence_parallel": True}, 38.57),
]
# Megatron-LM's functional tests on DGX H100: peak allocated in GB of a GPT of 12 layers, hidden 512, with the loss that
# is not fused and with Megatron-Core's own fused one. The models are small: what is not counted weighs more, 8 %.
FUNCTIONAL = [
    ({"pp": 4, "dp": 2, "zero_stage": 0}, False, 2.211),
    ({"dp": 8}, False, 2.692),
    ({"tp": 2, "pp": 2, "dp": 2, "zero_stage": 0}, True, 1.838),
]
# torchtitan, benchmarks/llama3_h100_202412_torchtitan.md and the H200 runs of 2025-06: max reserved in GiB. The
# allocator's cache varies by a few GiB from run to run: 10 %, 12 % beside pipeline stages.
PER_OP = {"recompute": "selective", "recompute_modules": ("layernorm", "activation", "ops")}
FSDP = {"fsdp": True, "zero_stage": 3}
STAGES = {"tp": 8, "pp": 8, "sequence_parallel": True, "recompute": "full"}
TORCHTITAN = [
    ("llama3-8b", "h100", 8192, 16, {"dp": 8, "micro_batch": 2, **PER_OP}, False, 77.0, 0.10),
    ("llama3-8b", "h100", 8192, 256, {"dp": 128, "micro_batch": 2, **PER_OP}, False, 62.0, 0.10),
    ("llama3-8b", "h200", 8192, 64, {"dp": 32, "micro_batch": 2, **PER_OP}, True, 47.96, 0.10),
    ("llama3.1-405b", "h100", 8192, 256, {"dp": 8, "micro_batch": 4, **STAGES}, False, 72.7, 0.12),
    ("llama3.1-405b", "h100", 131072, 16, {"dp": 2, "cp": 4, **STAGES}, False, 77.1, 0.12),
]
# torchtitan, docs/nvfp4.md: Llama 3 8B on 4 B200, 32 sequences of 2,048 tokens each, max reserved in GiB.
BLACKWELL = [("bf16", 0, 174.49), ("mxfp8", 0, 179.94), ("nvfp4", 2, 110.95)]


@pytest.mark.parametrize(("name", "layers", "batch", "sizes", "published"), SIMUMAX)
def test_simumax_b200_allocated(name: str, layers: int, batch: int, sizes: dict[str, Any], published: float):
    model = with_overrides(load_model(name), {"num_layers": layers})
    found = predict(model, Workload(4096, batch), load_cluster("dgx-b200"), Plan(**sizes), "mcore-26.01")
    assert found.allocated_bytes / GIB == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(("sizes", "fused", "published"), FUNCTIONAL)
def test_megatron_functional_allocated(sizes: dict[str, Any], fused: bool, published: float):
    changes = {
        "num_layers": 12,
        "hidden": 512,
        "num_heads": 8,
        "num_kv_heads": 8,
        "head_dim": 64,
        "ffn_hidden": 2048,
        "learned_positions": 1024,
        "vocab": 50257,
        "vocab_padded": None,
    }
    model = with_overrides(load_model("gpt3-175b"), changes)
    plan = Plan(
        **sizes,
        micro_batch=4,
        dropout=True,
        fused_cross_entropy=fused,
        gradient_accumulation_fusion=False,
        expandable_segments=False,
    )
    found = predict(model, Workload(1024, 32), load_cluster("dgx-h100"), plan, "mcore-26.05")
    assert found.allocated_bytes == pytest.approx(published * 1e9, rel=0.08)


@pytest.mark.parametrize(
    ("name", "gpu", "seq_len", "batch", "knobs", "fused", "published", "tolerance"), TORCHTITAN
)
def test_torchtitan_reserved(
    name: str,
    gpu: str,
    seq_len: int,
    batch: int,
    knobs: dict[str, Any],
    fused: bool,
    published: float,
    tolerance: float,
):
    plan = Plan(**FSDP, **knobs, fused_cross_entropy=fused)
    found = predict(
        load_model(name), Workload(seq_len, batch), load_cluster(f"dgx-{gpu}"), plan, "torchtitan-24.12"
    )
    assert found.reserved_bytes / GIB == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(("precision", "ends", "published"), BLACKWELL)
def test_torchtitan_reserved_on_blackwell(precision: str, ends: int, published: float):
    plan = Plan(
        **FSDP,
        **PER_OP,
        dp=4,
        micro_batch=32,
        precision=precision,
        bf16_end_layers=ends,
        grad_reduce_in_fp32=True,
    )
    found = predict(
        load_model("llama3-8b"), Workload(2048, 128), load_cluster("gb200-nvl72"), plan, "torchtitan-26.06"
    )
    assert found.reserved_bytes / GIB == pytest.approx(published, rel=0.03)


def test_megatron_bridge_qwen3_30b_allocated():
    """Megatron-Bridge, expert-parallel overlap skill: 61.351 GB on 16 H100, EP 16, alltoall, without overlap."""
    found: Prediction = predict(
        load_model("qwen3-30b-a3b"),
        Workload(4096, 1024),
        load_cluster("dgx-h100"),
        Plan(ep=16, dp=16, grad_reduce_in_fp32=False),
        "nemo-26.04",
    )
    assert found.allocated_bytes == pytest.approx(61.351e9, rel=0.05)
