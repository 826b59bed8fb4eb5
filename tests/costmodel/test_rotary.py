"""Rotary embedding that is not fused: what real operations move, and what the cost model says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.work import elementwise
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]
HEADS = 512  # so many that tables of cosines, which heads share, do not count


def values(model: str, stack: str = "mcore-26.03", **knobs: Any) -> dict[str, float]:
    return dict(predict(load_model(model), Workload(4096, 64), H100, Plan(dp=8, **knobs), stack).values)


@pytest.mark.parametrize(
    ("model", "block", "stack", "passes", "kernels"),
    [
        ("llama3-8b", "attention", "mcore-26.03", (12, 14), (22, 12)),
        ("moonlight-16b-a3b", "mla", "mcore-26.03", (14, 21), (24, 18)),
        ("llama3-8b", "attention", "torchtitan-24.12", (10, 10), (4, 4)),
    ],
)
def test_a_rotary_embedding_apart_moves_the_bytes_of_its_kernels(model, block, stack, passes, kernels):
    fused, apart = (values(model, stack, rope_fusion=fused) for fused in (True, False))
    for direction, times, more in zip(("forward", "backward"), passes, kernels, strict=True):
        rotary, count = f"{block}_rotary_{direction}", f"{block}_kernels_{direction}"
        assert apart[rotary] == pytest.approx(fused[rotary] * times / 2)
        assert apart[count] - fused[count] == pytest.approx(more)


def test_learned_positions_have_no_rotary_embedding_to_take_apart():
    fused, apart = (values("gpt3-5b", rope_fusion=fused) for fused in (True, False))
    assert apart["attention_time"] == fused["attention_time"]


@pytest.mark.parametrize(
    ("latent", "passes", "kernels"),
    [
        (False, elementwise.ROTARY_PASSES, elementwise.ROTARY_KERNELS),
        (True, elementwise.LATENT_ROTARY_PASSES, elementwise.LATENT_ROTARY_KERNELS),
    ],
)
def test_megatron_core_issues_the_operations_that_are_counted(latent, passes, kernels):
    """Elements moved for one of a query tensor, and kernels of queries and keys over the fused two."""
    torch = pytest.importorskip("torch")
    rope = pytest.importorskip("megatron.core.models.common.embeddings.rope_utils")
    table = torch.randn(16, 1, 1, 32)

    def turned(tensor: Any) -> Any:
        return rope._apply_rotary_pos_emb_bshd(tensor, table, multi_latent_attention=latent)

    forward, backward = operations(torch, turned)
    for found, moved, more in zip((forward, backward), passes, kernels, strict=True):
        assert sum(found) == pytest.approx(moved, rel=0.03)
        assert 2 * (len(found) - 1) == more


def operations(torch: Any, function: Callable[[Any], Any]) -> tuple[list[float], list[float]]:
    """Elements that each operation reads and writes for one of the input, forward and backward; views move none."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.moved: list[float] = []

        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operation(*args, **(kwargs or {}))
            # A slice's gradient is filled with zeros, then written: PyTorch, slice_backward.
            sliced = operation.overloadpacket is torch.ops.aten.slice_backward
            if sliced:
                self.moved.append(result.numel() + 2 * args[0].numel())
            elif not operation.is_view and torch.ops.aten.detach is not operation.overloadpacket:
                self.moved.append(numbers(args) + numbers(result))
            return result

    def numbers(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return int(value.numel())
        return sum(map(numbers, value)) if isinstance(value, (list, tuple)) else 0

    tensor = torch.randn(16, 1, HEADS, 32, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.ones_like(tensor)
    with Counting() as counting:
        result = function(tensor)
        forward = len(counting.moved)
        torch.autograd.grad(result, tensor, gradient)
    share = [each / tensor.numel() for each in counting.moved]
    return share[:forward], share[forward:]
