"""Laws of parameters that are kept quantised: who casts them, how they are gathered, and what is made behind."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.rates import tuned_stream
from costmodel.workload import Workload

CLUSTERS = {gpu: hardware_db.resolve(gpu, None)[0] for gpu in ("h100", "b200")}
B200 = CLUSTERS["b200"]
CLUSTERS["slow"] = replace(B200, intra=replace(B200.intra, bandwidth=1e-4 * B200.intra.bandwidth))
LINEAR = 218_112_000 - 2 * 4096  # of one layer of Llama 3 8B


def values(gpu: str = "h100", batch: int = 16, task: str = "pretrain", **knobs: Any) -> SimpleNamespace:
    plan = Plan(**{"dp": 8, "fp8_param_gather": True} | knobs)
    workload = Workload(2048, batch, task=task)
    return SimpleNamespace(
        **predict(load_model("llama3-8b"), workload, CLUSTERS[gpu], plan, "nemo", judged=False).values
    )


def cast(x: SimpleNamespace) -> float:
    """Bytes an element and step in which a layer's casts differ from one another's, inputs and gradients included."""
    names = ("attention_qkv", "attention_proj", "mlp_fc1", "mlp_fc2")
    seconds = sum(getattr(x, f"{name}_quantise_{way}") for name in names for way in ("forward", "backward"))
    return float(x.m * seconds / tuned_stream(x, LINEAR, x.elementwise_fraction))


def spared(gpu: str = "h100", batch: int = 16, **knobs: Any) -> float:
    """Bytes an element and step that quantised parameters spare their layers."""
    return cast(values(gpu, batch, **knobs, fp8_param_gather=False)) - cast(values(gpu, batch, **knobs))


@pytest.mark.parametrize(
    ("gpu", "precision", "whole", "behind"),
    [
        ("h100", "fp8-delayed", 4, 2),
        ("h100", "fp8-cs", 6, 2),
        ("b200", "fp8-delayed", 3, 0),
        ("b200", "fp8-cs", 5, 0),
    ],
)
@pytest.mark.parametrize("batch", [8, 32])
def test_each_rank_casts_its_shard_and_transposes_what_was_gathered(gpu, precision, whole, behind, batch):
    assert spared(gpu, batch, precision=precision) == pytest.approx(whole * 7 / 8 - behind, rel=1e-3)


def test_mxfp8_is_gathered_in_16_bits_and_cast_whole():
    assert spared("b200", precision="mxfp8") == pytest.approx(0, abs=1e-6)


def test_megatrons_fsdp_transposes_in_every_backward_pass():
    fsdp = {"fsdp": True, "zero_stage": 3, "precision": "fp8-cs"}
    for batch in (8, 32):
        assert spared("h100", batch, **fsdp) == pytest.approx(6 * 7 / 8 - 2 * batch / 8, rel=1e-3)


def test_frozen_weights_are_never_cast_again():
    x, plain = (values(task="lora", precision="fp8-cs", fp8_param_gather=kept) for kept in (True, False))
    assert cast(plain) - cast(x) == pytest.approx(6, rel=1e-3)


def test_fsdp_gathers_mxfp8_in_8_bits_rows_forward_and_columns_backward():
    fsdp: dict[str, Any] = {"fsdp": True, "zero_stage": 3, "precision": "mxfp8"}
    rows, wide = (values("b200", **fsdp, fp8_param_gather=kept) for kept in (True, False))
    assert (rows.gather_bytes, wide.gather_bytes, rows.fsdp_columns) == (1, 2, 1)
    assert rows.gather_copy_bytes == 0
    assert rows.dp_fsdp_gather < 0.6 * wide.dp_fsdp_gather
    # Where nothing hides them: rows forward, columns backward, and rows again for a recomputed forward pass.
    plain, again = (values("slow", **fsdp, recompute=recompute) for recompute in ("none", "full"))
    assert again.fsdp_exposed - plain.fsdp_exposed == pytest.approx(
        plain.m * 32 * plain.dp_fsdp_gather, rel=0.01
    )
    assert values("b200", precision="mxfp8").gather_bytes == 2


def test_vocabulary_tables_are_gathered_in_16_bits():
    x, wide = (values("slow", precision="fp8-cs", fp8_param_gather=kept) for kept in (True, False))
    tables = 2 * 128_256 * 4096
    share = tables / (tables + 32 * 218_112_000)
    assert x.dp_all_gather / wide.dp_all_gather == pytest.approx((1 + share) / 2, rel=1e-3)


def test_casts_have_a_rate_of_their_own():
    x = values(batch=8, precision="fp8-cs", fp8_param_gather=False)
    moved = x.quantise_grad_bytes * x.b * x.s * x.h
    rate = x.hbm_bandwidth * x.elementwise_fraction * x.release_scale
    assert x.mlp_fc2_quantise_backward == pytest.approx(moved / (rate * x.tuned_stream_scale))
    assert x.tuned_stream_scale != x.elementwise_scale
