"""Megatron-Core's own configuration classes (the installed release) take what exports are made of."""

from __future__ import annotations

import pytest
from guide_rows import plans

from costmodel.model_registry import list_models, load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_args import core_fields
from executor.megatron_here import without_te
from executor.megatron_model import config_class
from executor.megatron_training import ddp_fields, optimizer_fields

CASES = [
    (name, Plan(dp=8, ep=2 if load_model(name).moe else 1), Workload(4096, 64)) for name in list_models()
]
CASES += [(model, plan, workload) for model, _, plan, workload in plans()]


@pytest.mark.parametrize(("name", "plan", "workload"), CASES)
def test_the_configuration_classes_take_the_fields(name, plan, workload):
    pytest.importorskip("megatron.core")
    from megatron.core import transformer
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig

    from executor.workers.config import make

    model = load_model(name)
    if model.sparse_attention:
        pytest.skip("no such layer in Megatron-Core")
    left_out: list[str] = []
    fields = core_fields(plan, model, workload) | without_te() | {"moe_permute_fusion": False}
    if model.moe is not None:
        fields.pop("fp8", None)  # asks for Transformer Engine's version, which is not here
    config = make(getattr(transformer, config_class(model)), fields, left_out)
    ddp = make(DistributedDataParallelConfig, ddp_fields(plan), left_out)
    make(OptimizerConfig, dict(optimizer_fields(plan), lr=1e-4), left_out)
    assert not left_out
    assert config.num_layers == model.num_layers
    assert config.tensor_model_parallel_size == plan.tp
    assert ddp.use_distributed_optimizer == (plan.zero_stage > 0)
