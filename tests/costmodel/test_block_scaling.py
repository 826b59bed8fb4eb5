"""Block scaling on GPUs that have no products for it."""

from __future__ import annotations

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload

H100, B200 = (hardware_db.resolve(name, None)[0] for name in ("h100", "b200"))


def values(precision: str, stack: str, cluster=B200) -> dict[str, float]:
    plan = Plan(dp=8, precision=precision)
    return predict(load_model("llama3-8b"), Workload(8192, 64), cluster, plan, stack).values


def test_block_scaling_has_the_products_of_mxfp8_on_blackwell():
    """Transformer Engine converts its scales for them: never quicker than MXFP8, of which it has no norms either."""
    for stack in ("nemo-26.06", "mcore-26.05"):
        block, mx = (values(precision, stack) for precision in ("fp8-sc", "mxfp8"))
        assert block["mlp_fc1_forward"] == pytest.approx(mx["mlp_fc1_forward"])
        assert block["step_time"] >= mx["step_time"] * 0.995
    hopper = values("fp8-sc", "nemo-26.06", H100)
    assert hopper["linear_fraction"] != block["linear_fraction"]
    # torchao's rowwise products are its own.
    own, rows = (values("fp8-sc", "torchtitan", B200), values("mxfp8", "torchtitan", B200))
    assert own["mlp_fc1_forward"] != pytest.approx(rows["mlp_fc1_forward"])
