"""Tensor-parallel ranks that gather quantised operands of one scale exchange the maximum first."""

from __future__ import annotations

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload

H100, B200 = (hardware_db.resolve(name, None)[0] for name in ("h100", "b200"))


def values(
    precision: str, tp: int, model: str = "llama3-8b", cluster=H100, batch: int = 32, **knobs
) -> dict[str, float]:
    plan = Plan(tp=tp, dp=8 // tp, sequence_parallel=tp > 1, precision=precision, **knobs)
    return predict(load_model(model), Workload(8192, batch), cluster, plan).values


def without_exchange(found: dict[str, float], name: str) -> float:
    """What is left of a cast when the latency of a tiny all-reduce of 4 ranks is taken off. [s]"""
    latency = found["all_reduce_low_latency"] + 3 * found["all_reduce_low_latency_per_rank"]
    return found[name] - latency


def test_current_scaling_adds_an_all_reduce_forward_in_column_and_backward_in_row_layers():
    """Delayed scaling on Blackwell moves 2 bytes less an element and exchanges nothing here."""
    current, delayed = (values(precision, 4, cluster=B200) for precision in ("fp8-cs", "fp8-delayed"))
    name = "mlp_fc2_quantise_backward"
    assert without_exchange(current, name) / delayed[name] == pytest.approx(5 / 3, rel=0.01)
    # What norms feed, on a quarter of the tokens a rank; with so many micro-batches the weights' casts vanish.
    alone, split = (values("fp8-cs", tp, cluster=B200, batch=32768) for tp in (1, 4))
    name = "attention_qkv_quantise_forward"
    assert without_exchange(split, name) / alone[name] == pytest.approx(1 / 4, rel=0.01)
    # Operands that nobody gathers are scaled by each rank alone.
    for name in ("attention_proj_quantise_forward", "mlp_fc1_quantise_backward"):
        assert current[name] / delayed[name] == pytest.approx(5 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "exchanges"), [("fp8-cs", 2), ("nvfp4", 2), ("mxfp8", 0), ("fp8-delayed", 0)]
)
def test_the_exchange_is_one_kernel_more_of_each_layer_that_gathers(precision, exchanges):
    """QKV and FC1 forward, projection and FC2 backward, one each in an attention and in an MLP block."""
    alone, split = (values(precision, tp, cluster=B200) for tp in (1, 4))
    bf16_alone, bf16_split = (values("bf16", tp, cluster=B200) for tp in (1, 4))
    for direction in ("forward", "backward"):
        more = sum(
            (split[name] - alone[name]) - (bf16_split[name] - bf16_alone[name])
            for name in (f"attention_kernels_{direction}", f"mlp_kernels_{direction}")
        )
        assert more == pytest.approx(exchanges)


def test_experts_agree_on_no_scale():
    """Grouped layers gather nothing quantised, with a tensor split of experts neither."""
    found = values("fp8-cs", 4, "mixtral-8x7b", cluster=B200, ep=2, etp=4)
    free = values("fp8-delayed", 4, "mixtral-8x7b", cluster=B200, ep=2, etp=4)
    assert found["experts_fc1_quantise_forward"] / free["experts_fc1_quantise_forward"] == pytest.approx(
        5 / 3, rel=0.02
    )


@pytest.mark.parametrize(
    ("precision", "bytes_each"),
    [("bf16", 2.0), ("fp8-cs", 1.0), ("mxfp8", 2 * (1 + 1 / 32)), ("nvfp4", 2 * 0.5625)],
)
def test_rows_and_columns_of_a_gradient_are_gathered_apart_where_each_has_its_scales(precision, bytes_each):
    """Bytes of an element of the output's gradient, by what a gather of twice the tokens takes longer."""
    short, long = (
        predict(
            load_model("llama3-8b"),
            Workload(length, 32),
            B200,
            Plan(tp=4, dp=2, sequence_parallel=True, precision=precision),
        ).values
        for length in (65536, 131072)
    )
    more = long["mlp_all_gather_backward"] - short["mlp_all_gather_backward"]
    growth = 4 / (4 + short["all_gather_half_ranks"])
    wire = 65536 * 4096 * bytes_each * 3 / 4
    assert more == pytest.approx(wire / (short["all_gather_bandwidth"] * short["intra_scale"] * growth))


def test_overlapped_gemms_and_frozen_weights_gather_rows_alone():
    plain, overlapped = (values("mxfp8", 4, cluster=B200, tp_comm_overlap=on) for on in (False, True))
    assert overlapped["mlp_all_gather_backward"] < 0.65 * plain["mlp_all_gather_backward"]
    plan = Plan(tp=4, dp=2, sequence_parallel=True, precision="mxfp8")
    load = Workload(8192, 32, "lora")
    frozen = predict(load_model("llama3-8b"), load, B200, plan).values
    assert frozen["mlp_all_gather_backward"] < 0.65 * plain["mlp_all_gather_backward"]
