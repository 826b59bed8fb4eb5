"""Norms that are one module with a linear layer: operands they write, maxima they find."""

from __future__ import annotations

from typing import Any

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload

H100, B200 = (hardware_db.resolve(name, None)[0] for name in ("h100", "b200"))
# So many micro-batches that the weights' casts, once a step, vanish.
WORK = Workload(8192, 8 * 4096)


def values(
    precision: str, stack: str, cluster=B200, model: str = "llama3-8b", **knobs: Any
) -> dict[str, float]:
    work = knobs.pop("work", WORK)
    sizes = {"dp": 8 // knobs.get("tp", 1), "sequence_parallel": "tp" in knobs}
    return predict(
        load_model(model), work, cluster, Plan(precision=precision, **(sizes | knobs)), stack
    ).values


def element(found: dict[str, float], seconds: float, tokens: float = 8192) -> float:
    """HBM bytes for each element of a hidden state of so many tokens, at the rate of casts. [byte]"""
    rate = found["elementwise_fraction"] * found["tuned_stream_scale"] * found["hbm_bandwidth"]
    return seconds * rate * found["release_scale"] / (tokens * found["h"])


@pytest.mark.parametrize(
    ("cluster", "precision", "stack", "knobs", "bytes_moved"),
    [
        # The norm writes the operand: what is left is to transpose it, where products want it so.
        (H100, "fp8-delayed", "nemo-24.07", {}, 2),
        (B200, "fp8-delayed", "nemo-25.04", {}, 0),
        (H100, "fp8-delayed", "nemo-24.07", {"tp": 4}, 2),
        # llm-foundry's norms are modules of their own.
        (H100, "fp8-delayed", "llm_foundry-24.01", {}, 4),
        # Read for the maximum, read, written in one byte (and transposed in another on Hopper).
        (B200, "fp8-cs", "nemo-25.07", {}, 5),
        (B200, "fp8-cs", "nemo-25.09", {}, 3),
        (H100, "fp8-cs", "nemo-25.07", {}, 6),
        (H100, "fp8-cs", "nemo-25.09", {}, 4),
        (B200, "fp8-cs", "nemo-25.09", {"cudnn_norms": True}, 5),
        (B200, "fp8-cs", "nemo-25.09", {"tp": 4}, 3 / 4),
        (H100, "fp8-cs", "nemo-25.09", {"tp": 4}, 3 / 4 + 2),
        (B200, "mxfp8", "nemo-25.09", {}, 4.2),
        (B200, "mxfp8", "nemo-25.09", {"cudnn_norms": True}, 0),
    ],
)
def test_bytes_to_quantise_what_a_norm_feeds(cluster, precision, stack, knobs, bytes_moved):
    found = values(precision, stack, cluster, **knobs)
    latency = found["all_reduce_low_latency"] + 3 * found["all_reduce_low_latency_per_rank"]
    joint = latency * found["joint_scale"] * ("tp" in knobs)
    for name in ("attention_qkv", "mlp_fc1"):
        moved = element(found, found[f"{name}_quantise_forward"] - joint)
        assert moved == pytest.approx(bytes_moved, abs=0.05)


@pytest.mark.parametrize(
    ("precision", "stack", "knobs", "written"),
    [
        ("bf16", "nemo-25.09", {}, 2),
        ("fp8-cs", "nemo-25.09", {}, 2),
        ("fp8-delayed", "nemo-25.09", {}, 1),
        ("mxfp8", "nemo-25.09", {}, 2),
        # One byte and a scale for 32 elements, along rows and along columns.
        ("mxfp8", "nemo-25.09", {"cudnn_norms": True}, 2 * (1 + 1 / 32)),
        ("fp8-cs", "nemo-25.09", {"cudnn_norms": True}, 2),
    ],
)
def test_bytes_that_a_norm_writes(precision, stack, knobs, written):
    """It reads two bytes an element whatever it writes, and its backward pass stays as it is."""
    plain, found = values("bf16", stack), values(precision, stack, **knobs)
    for name in ("attention_norm", "mlp_norm"):
        ratio = found[f"{name}_forward"] / plain[f"{name}_forward"]
        assert ratio == pytest.approx((2 + written) / 4)
        assert found[f"{name}_backward"] == pytest.approx(plain[f"{name}_backward"])


def test_layers_in_16_bits_leave_their_norms_as_they_are():
    """Two of 32 layers in BF16."""
    whole, ends = (values("fp8-delayed", "nemo-25.09", bf16_end_layers=layers) for layers in (0, 1))
    assert ends["mlp_norm_forward"] / whole["mlp_norm_forward"] == pytest.approx((30 * 3 + 2 * 4) / (32 * 3))


def test_an_adapter_reads_the_norm_too():
    """So that it is written in 16 bits, and the operand made from it."""
    found = values("fp8-delayed", "nemo-25.09", work=Workload(8192, 8 * 64, task="lora"))
    plain = values("bf16", "nemo-25.09", work=Workload(8192, 8 * 64, task="lora"))
    assert found["mlp_norm_forward"] == pytest.approx(plain["mlp_norm_forward"])


@pytest.mark.parametrize(("model", "block"), [("qwen3-30b-a3b", "experts"), ("deepseek-v3", "mla")])
def test_norms_in_front_of_a_router_or_of_latents_stand_alone(model, block):
    """What they write is read by more than one layer. Latents' own norms are one with the up projections."""
    knobs = {"ep": 8, "work": Workload(4096, 8 * 64)}
    plain, found = (values(name, "nemo-25.09", model=model, **knobs) for name in ("bf16", "fp8-delayed"))
    latents = found["q_lora"] + found["kv_lora"] if block == "mla" else 0
    total = found["h"] + latents
    written = (4 * total - latents) / (4 * total)
    assert found[f"{block}_norm_forward"] / plain[f"{block}_norm_forward"] == pytest.approx(written)


def test_a_norm_spares_launches():
    """One for the maximum of each of the two layers that a norm feeds."""
    before, after = (values("fp8-cs", stack) for stack in ("nemo-25.07", "nemo-25.09"))
    for block in ("attention", "mlp"):
        assert before[f"{block}_kernels_forward"] - after[f"{block}_kernels_forward"] == 1
