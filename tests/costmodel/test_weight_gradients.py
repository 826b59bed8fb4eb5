"""Laws of weight gradients: their buffer, their rate, and those of the output layer that are put off to the flush."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from step_cases import H100, leaf, llama, qwen

from costmodel.family import compiled_family
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload


def test_weight_gradients_pay_for_what_their_buffer_moves():
    wide, narrow = (llama(grad_reduce_in_fp32=fp32) for fp32 in (True, False))
    products = ("forward_linear", "backward_linear_dgrad")
    assert all(leaf(wide, name) == pytest.approx(leaf(narrow, name)) for name in products)
    assert leaf(wide, "backward_linear_wgrad") > leaf(narrow, "backward_linear_wgrad")
    assert leaf(narrow, "backward_linear_wgrad") > leaf(narrow, "backward_linear_dgrad")


def test_gradients_added_by_a_kernel_of_their_own_cost_more():
    fused, split = (llama(gradient_accumulation_fusion=fusion) for fusion in (True, False))
    assert leaf(split, "backward_linear_wgrad") < leaf(fused, "backward_linear_wgrad")
    assert split.step_time_s > fused.step_time_s


def test_the_output_layers_gradient_is_added_by_a_kernel_too():
    """It was added for nothing: 10 bytes of each of 128,256 x 4,096 weights at the rate of element-wise kernels."""
    fused, split = (llama(gradient_accumulation_fusion=fusion) for fusion in (True, False))
    v = split.values
    rate = v["hbm_bandwidth"] * v["elementwise_fraction"] * v["elementwise_scale"] * v["release_scale"]
    moved = (2 * 4 + 2) * 128256 * 4096 / split.plan.tp
    assert split.values["output_wgrad"] > fused.values["output_wgrad"]
    product = dataclasses.replace(split.plan, grad_reduce_in_fp32=False)
    plain = predict(split.model, split.workload, split.cluster, product).values["output_wgrad"]
    assert v["output_wgrad"] - plain == pytest.approx(moved * 4 / 10 / rate)


def test_the_host_issues_a_kernel_for_each_gradient_that_is_added_apart():
    """One for each weight: of two products in a dense block, of the router, and of two in each local expert."""
    dense, experts = (
        [case(gradient_accumulation_fusion=fusion, **sizes).values for fusion in (True, False)]
        for case, sizes in ((llama, {}), (qwen, {"ep": 8}))
    )
    for block in ("attention", "mlp"):
        assert dense[1][f"{block}_kernels_backward"] - dense[0][f"{block}_kernels_backward"] == 2
    assert experts[1]["experts_kernels_backward"] - experts[0]["experts_kernels_backward"] == 1
    issued = [values["host_issues_backward_pace"] for values in experts]
    kernel = experts[0]["host_kernel"]
    loops = 2 * 128 / 8 * experts[0]["loop_launch"]
    layers = experts[0]["layers_pace"]
    assert issued[1] - issued[0] == pytest.approx(layers * (2 + 1 + loops) * kernel)


def test_only_weight_gradients_go_at_their_own_rate():
    """At any other rate of them nothing else of the step's products changes; experts keep the grouped rate."""
    dense, experts = llama(), qwen(ep=8)
    for prediction, moved in (
        (dense, {"backward_linear_wgrad", "logits_gemms"}),
        (experts, {"backward_linear_wgrad", "logits_gemms"}),
    ):
        evaluate = compiled_family(prediction.features).full
        same, faster = (
            evaluate(prediction.values | {"wgrad_scale": factor * prediction.values["wgrad_scale"]})
            for factor in (1.0, 1.25)
        )
        gemms = [name for name in same if name.endswith(("_linear", "_dgrad", "_experts")) or name in moved]
        changed = {name for name in gemms if faster[name] != pytest.approx(same[name])}
        assert changed == moved
        assert all(faster[name] < same[name] for name in moved)


def deferred(sequences: int, **knobs: Any) -> Prediction:
    plan = Plan(pp=4, dp=2, defer_embedding_wgrad=True, **knobs)
    return predict(load_model("llama3-8b"), Workload(8192, 2 * sequences), H100, plan)


def test_deferred_weight_gradients_fill_the_flush_and_no_more():
    """The last stage still has to work them off: they were free, however many micro-batches there were."""
    few, many = deferred(4), deferred(64)
    for told, sequences in ((few, 4), (many, 64)):
        v = told.values
        share = 1 / (1 + v["forward"] / v["backward"])
        beyond = sequences * v["output_wgrad"] - share * v["pipeline_bubble"]
        assert leaf(told, "deferred_wgrad") == pytest.approx(max(0.0, beyond), rel=0.02)
    assert leaf(few, "deferred_wgrad") == 0 < leaf(many, "deferred_wgrad")
    at_once = dataclasses.replace(many.plan, defer_embedding_wgrad=False)
    plain = predict(many.model, many.workload, H100, at_once)
    assert leaf(plain, "deferred_wgrad") == 0
    gain = plain.step_time_s - many.step_time_s
    assert gain < plain.values["pipeline_bubble"] < 64 * many.values["output_wgrad"]


def test_deferred_weight_gradients_keep_the_gradients_of_the_logits():
    """Memory was "unchanged": of 16 micro-batches of 8,192 tokens and 128,256 words they are 29 GiB."""
    told = deferred(16)
    plain = predict(
        told.model, told.workload, H100, dataclasses.replace(told.plan, defer_embedding_wgrad=False)
    )
    each = 2 * 8192 * (128256 + 4096)
    assert told.values["memory_last"] - plain.values["memory_last"] == pytest.approx(15 * each)
    assert told.values["memory_first"] == plain.values["memory_first"]
    quarter = deferred(16, tp=4, sequence_parallel=True).values["memory_last_deferred"]
    assert quarter == pytest.approx(15 * each / 4, rel=0.01)  # the vocabulary is padded further


def test_a_limit_defers_the_first_micro_batches_alone():
    """Megatron-Core's 0 is no limit; the others are worked off as they come, and keep nothing."""
    everything, some = deferred(64), deferred(64, wgrad_deferral_limit=8)
    wgrad = some.values["output_wgrad"]
    plain = dataclasses.replace(some.plan, defer_embedding_wgrad=False)
    at_once = predict(some.model, some.workload, H100, plain).values["logits_gemms"]
    assert some.values["logits_gemms"] == pytest.approx(at_once - wgrad * 8 / 64)
    assert everything.values["logits_gemms"] == pytest.approx(at_once - wgrad)
    kept = [told.values["memory_last_deferred"] for told in (some, everything)]
    assert kept[0] == pytest.approx(kept[1] * 7 / 63)
    assert deferred(64, wgrad_deferral_limit=64).values == everything.values | {"deferral_limit": 64}
