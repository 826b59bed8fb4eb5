"""Who keeps the master parameters of the precision-aware optimizer: Megatron-Core's own configuration beside ours."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster

B200 = load_cluster("dgx-b200")
# Our formats and Megatron's --fp8-recipe; 16-bit runs of Megatron-LM have the argument's default.
RECIPES = {
    "bf16": "delayed",
    "fp8-delayed": "delayed",
    "fp8-cs": "tensorwise",
    "fp8-sc": "blockwise",
    "mxfp8": "mxfp8",
}


def transformer_engine_keeps_them(**fields: Any) -> bool:
    """Megatron-Core's answer, which stands before its check of Transformer Engine's presence."""
    optimizer = pytest.importorskip("megatron.core.optimizer.optimizer_config")
    config = object.__new__(optimizer.OptimizerConfig)
    defaults = {name: field.default for name, field in optimizer.OptimizerConfig.__dataclass_fields__.items()}
    for name, value in (defaults | {"use_precision_aware_optimizer": True} | fields).items():
        setattr(config, name, value)
    with contextlib.suppress(RuntimeError, AssertionError):
        config.__post_init__()
    return bool(config.use_precision_aware_optimizer_no_fp8_or_ds_fp8)


@pytest.mark.parametrize("precision", RECIPES)
@pytest.mark.parametrize("master", ["fp32", "fp16"])
def test_masters_lose_16_bits_where_transformer_engine_keeps_them(precision, master):
    """4 bytes where Megatron-Core clones them in FP32, 2 where remainders or FP16 stand for them; moments in FP32."""
    torch = pytest.importorskip("torch")
    dtype = torch.float16 if master == "fp16" else torch.float32
    apart = transformer_engine_keeps_them(fp8_recipe=RECIPES[precision], main_params_dtype=dtype)
    plan = Plan(precision=precision, precision_aware_optimizer=True, main_params_dtype=master)
    values = predict(load_model("llama3-8b"), Workload(2048, 1), B200, plan).values
    assert values["state_bytes"] == (2 if apart else 4) + 8


def test_an_offloaded_optimizer_keeps_fp32_masters_and_is_told_no_formats():
    """Its own code: BF16 parameters get FP32 copies, and Megatron-Core hands it neither formats nor remainders."""
    torch = pytest.importorskip("torch")
    hybrid = pytest.importorskip("megatron.core.optimizer.cpu_offloading.hybrid_optimizer")
    import megatron.core.optimizer as optimizer

    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    fake = SimpleNamespace(param_groups=[{"params": [parameter]}], param_update_in_fp32=True)
    *_, masters = hybrid.HybridDeviceOptimizer._get_sub_optimizer_param_groups(fake, 0.5)
    assert masters[parameter].dtype == torch.float32
    text = inspect.getsource(optimizer._get_megatron_optimizer_based_on_param_groups)
    before, _, call = text.partition("optimizer = HybridDeviceOptimizer(")
    made = call.partition("init_state_fn")[0]
    assert "param_update_in_fp32=True" in made
    formats = {"precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    for word in ("exp_avg_dtype", "exp_avg_sq_dtype", "store_param_remainders", "master_weight_dtype"):
        assert word not in before.partition("if config.optimizer_cpu_offload")[2] + made
    values = predict(
        load_model("llama3-8b"), Workload(2048, 1), B200, Plan(**formats, optimizer_offload=50)
    ).values
    assert values["state_bytes"] == values["host_state_bytes"] == 12


def test_fp16_parameters_have_whole_masters():
    """Transformer Engine 2.8, fused_adam.py: remainders are of BF16 parameters alone."""
    plan = Plan(precision="fp16", precision_aware_optimizer=True)
    assert predict(load_model("llama3-8b"), Workload(2048, 1), B200, plan).values["state_bytes"] == 12


def test_the_recipe_alone_decides():
    """One of each, so that the cases above differ."""
    kept = {name: transformer_engine_keeps_them(fp8_recipe=name) for name in set(RECIPES.values())}
    assert kept == {"delayed": True, "tensorwise": False, "blockwise": False, "mxfp8": False}
