"""FlexAttention, which AutoModel runs where heads have learned sinks, and the scaling of its output for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import hardware_db
from costmodel.binding import bind, step_keys
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.work.attention import SCALED_SINK, saved_core_output, sink_scaling
from costmodel.workload import Workload

WORKLOAD = Workload(4096, 16)
# Kernels of the scaling that are views and move nothing.
VIEWS = {"view", "expand", "unsqueeze", "squeeze", "detach", "alias"}


def attention_of(model: str, stack: str) -> dict[str, float]:
    cluster = hardware_db.load_cluster("dgx-h100")
    bound = bind(load_model(model), WORKLOAD, cluster, "bf16", stack)
    return {kind: bound[f"attention_{kind}_fraction"].value for kind in ("forward", "backward")}


def test_heads_with_sinks_run_flex_attention_in_automodel_alone():
    flex, plain = attention_of("gpt-oss-20b", "automodel-26.04"), attention_of("llama3-8b", "automodel-26.04")
    flash = attention_of("llama3-8b", "torchtitan-25.06")
    assert flex["forward"] == pytest.approx(0.9 * flash["forward"])
    assert flex["backward"] == pytest.approx(0.85 * flash["backward"])
    assert plain["forward"] > 1.5 * flex["forward"]
    assert attention_of("gpt-oss-20b", "nemo-26.06") == attention_of("llama3-8b", "nemo-26.06")


def test_flex_attention_is_rated_as_flash_attention():
    cluster = hardware_db.load_cluster("dgx-h100")
    keys = step_keys(load_model("gpt-oss-20b"), cluster, "bf16", "automodel-26.04")
    assert keys["attention_scale"] == "attention_rate/hopper-flash2"


def test_the_output_is_scaled_where_the_kernel_has_no_sinks():
    known = {"s": 4096, "b": 2, "cp": 1, "a": 64, "d_v": 64, "tp": 2, "sinks": 1, "scales_sinks": 1}
    scaled = sink_scaling(SimpleNamespace(**known))
    assert scaled.forward == SCALED_SINK[0] * 2 * 4096 * 64 * 64 / 2
    assert scaled.backward == pytest.approx(34 / 12 * scaled.forward)
    for without in ("sinks", "scales_sinks"):
        assert sink_scaling(SimpleNamespace(**known | {without: 0})).backward == 0


def test_the_scaled_output_is_kept_beside_the_kernels():
    cluster = hardware_db.load_cluster("dgx-h100")
    plan = Plan(dp=8, ep=8, zero_stage=3, fsdp=True, precision="bf16")
    values = predict(load_model("gpt-oss-20b"), WORKLOAD, cluster, plan, "automodel-26.04").values
    scaled, plain = (
        saved_core_output(SimpleNamespace(**values | {"scales_sinks": on}), values["d"]) for on in (1, 0)
    )
    assert values["scales_sinks"] == 1
    assert scaled - plain == pytest.approx(2 * 4096 * 64 * 64)


def test_bytes_of_the_scaling_are_those_of_pytorchs_kernels():
    """nemo-automodel 0.7.0, flex_attention.py: what autograd reads and writes of tensors as large as the output."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    shape = (1, 4, 32, 64)
    out = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    log_sums = torch.randn(shape[:3], requires_grad=True)
    sinks = torch.randn(shape[1], dtype=torch.bfloat16, requires_grad=True)

    class Moved(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            result = operator(*args, **(kwargs or {}))
            if operator.name().split("::")[1].split(".")[0] not in VIEWS:
                tensors = [each for each in tree_leaves((args, result)) if isinstance(each, torch.Tensor)]
                whole = [each for each in tensors if each.numel() == out.numel()]
                self.bytes += sum(each.numel() * each.element_size() for each in whole)
            return result

    with Moved() as forward:
        scale = torch.sigmoid(log_sums - sinks.view(1, -1, 1)).unsqueeze(-1)
        scaled = (out * scale).to(out.dtype)
    gradient = torch.randn(shape, dtype=torch.bfloat16)
    with Moved() as backward:
        scaled.backward(gradient)
    assert (forward.bytes / out.numel(), backward.bytes / out.numel()) == SCALED_SINK
