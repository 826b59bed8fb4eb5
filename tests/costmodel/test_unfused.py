"""Rotary embedding and activation that are not fused: what real operations move, and what the cost model says."""

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

    forward, backward = operations(torch, turned, 32)
    for found, moved, more in zip((forward, backward), passes, kernels, strict=True):
        assert sum(found) == pytest.approx(moved, rel=0.03)
        assert 2 * (len(found) - 1) == more


def halves(torch: Any, both: Any) -> Any:
    """As in Megatron-Core 0.16.1, transformer/mlp.py, glu, whose function is local to MLP.forward."""
    gate, rest = torch.chunk(both, 2, dim=-1)
    return torch.nn.functional.silu(gate) * (rest + 0.0)


def products(torch: Any, gate: Any, rest: Any) -> Any:
    return torch.nn.functional.silu(gate) * rest


@pytest.mark.parametrize(
    ("function", "widths", "stack", "forward", "backward"),
    [(halves, (64,), "mcore-26.03", 7, 13), (products, (32, 32), "torchtitan-24.12", 5, 9)],
)
def test_an_activation_apart_moves_the_bytes_of_its_kernels(function, widths, stack, forward, backward):
    fused, apart = (values("llama3-8b", stack, bias_activation_fusion=fusion) for fusion in (True, False))
    assert apart["mlp_activation_forward"] == pytest.approx(fused["mlp_activation_forward"] * forward / 3)
    assert apart["mlp_activation_backward"] == pytest.approx(fused["mlp_activation_backward"] * backward / 5)
    torch = pytest.importorskip("torch")
    counted = operations(torch, lambda *tensors: function(torch, *tensors), *widths)
    assert [sum(each) for each in counted] == pytest.approx([forward, backward])


def test_documents_apart_stop_the_host_twice_each():
    """Megatron-Core reads where each packed document begins, for queries and for keys; full recompute reads again."""

    def gaps(mean_length: float, stack: str = "nemo-26.06", **knobs: Any) -> float:
        work = Workload(4096, 64, "sft", mean_length=mean_length)
        found = predict(load_model("llama3-8b"), work, H100, Plan(dp=8, **knobs), stack).values
        return found["attention_launch_gaps"] / found["expert_wait"]

    apart: dict[str, Any] = {"rope_fusion": False}
    assert gaps(256, **apart) - gaps(0, **apart) == pytest.approx(2 * (16 + 2))
    assert gaps(128, **apart) - gaps(256, **apart) == pytest.approx(2 * 16)
    assert gaps(256) == pytest.approx(gaps(0))
    other = "torchtitan-24.12"
    assert gaps(256, other, **apart) == pytest.approx(gaps(0, other, **apart))
    again = {"recompute": "full", "recompute_num_layers": 32}
    assert gaps(256, **apart, **again) - gaps(0, **apart, **again) == pytest.approx(2 * 2 * (16 + 2))


def operations(torch: Any, function: Callable[..., Any], *widths: int) -> tuple[list[float], list[float]]:
    """Elements that each operation reads and writes for one of the result, forward and backward; views move none.

    widths: last size of each tensor that the function takes.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.moved: list[float] = []

        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operation(*args, **(kwargs or {}))
            # A slice's gradient is filled with zeros, then written: PyTorch, slice_backward.
            if operation.overloadpacket is torch.ops.aten.slice_backward:
                self.moved.append(result.numel() + 2 * args[0].numel())
            elif not operation.is_view and torch.ops.aten.detach is not operation.overloadpacket:
                self.moved.append(numbers(args) + numbers(result))
            return result

    def numbers(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return int(value.numel())
        return sum(map(numbers, value)) if isinstance(value, (list, tuple)) else 0

    tensors = [torch.randn(16, 1, HEADS, width, dtype=torch.bfloat16, requires_grad=True) for width in widths]
    with Counting() as counting:
        result = function(*tensors)
        forward = len(counting.moved)
        gradient = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
        begun = len(counting.moved)
        torch.autograd.grad(result, tensors, gradient)
    share = [each / result.numel() for each in counting.moved]
    return share[:forward], share[begun:]
