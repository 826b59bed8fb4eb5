"""Rotary embedding and activation that are not fused: what real operations move, and what the cost model says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.work import elementwise
from costmodel.work.attention import EXCHANGE_LAUNCHES
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]
# Where all kernels wait for their bytes: on Hopper some wait for the multiprocessors (test_streams).
A100 = hardware_db.resolve("a100", None)[0]
HEADS = 512  # so many that tables of cosines, which heads share, do not count


def values(model: str, stack: str = "mcore-26.03", **knobs: Any) -> dict[str, float]:
    return dict(predict(load_model(model), Workload(4096, 64), A100, Plan(dp=8, **knobs), stack).values)


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


def test_torchtitan_issues_the_operations_that_are_counted():
    """As in torchtitan 0.1.0 to 0.2.2, models/llama3, apply_rotary_emb; ComplexRoPE of 0.3.0 is the same."""
    torch = pytest.importorskip("torch")
    table = torch.polar(torch.ones(16, 1, 1, 16), torch.randn(16, 1, 1, 16))

    def turned(tensor: Any) -> Any:
        pairs = torch.view_as_complex(tensor.float().reshape(*tensor.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * table).flatten(3).type_as(tensor)

    counted = operations(torch, turned, 32, in_bytes=True)
    passes, kernels = elementwise.COMPLEX_ROTARY_PASSES, elementwise.COMPLEX_ROTARY_KERNELS
    for found, moved, more in zip(counted, passes, kernels, strict=True):
        large = [each for each in found if each > 1]
        assert sum(large) / 2 == pytest.approx(moved, rel=0.03)
        assert 2 * (len(large) - 1) == more


def test_hugging_face_issues_the_operations_of_a_norm_that_are_counted():
    """As in transformers 5.24.0, LlamaRMSNorm; a number for each token is not counted as bytes, but as a kernel."""
    torch = pytest.importorskip("torch")
    weight = torch.ones(4096, dtype=torch.bfloat16, requires_grad=True)

    def norm(tensor: Any) -> Any:
        wide = tensor.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * scaled.to(tensor.dtype)

    counted = operations(torch, norm, 4096, in_bytes=True, beside=[weight])
    sizes, kernels = elementwise.COMPOSED_NORM_BYTES, elementwise.COMPOSED_NORM_KERNELS
    for found, moved, number in zip(counted, sizes, kernels, strict=True):
        assert sum(found) == pytest.approx(moved, rel=0.01)
        assert len(found) == number


def test_a_layer_norm_that_nothing_compiles_is_one_kernel_of_pytorch():
    """native_layer_norm and its backward pass, where an RMSNorm of then is a row of kernels."""
    torch = pytest.importorskip("torch")
    weight, bias = (torch.ones(4096, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))

    def norm(tensor: Any) -> Any:
        return torch.nn.functional.layer_norm(tensor, (4096,), weight, bias)

    assert [len(found) for found in operations(torch, norm, 4096, beside=[weight, bias])] == [1, 1]
    fused, apart = (
        values("gpt3-5b", "torchtitan-24.12", bias_dropout_fusion=fusion) for fusion in (True, False)
    )
    assert apart["attention_norm_forward"] == fused["attention_norm_forward"]
    slower = elementwise.PLAIN_NORM_BACKWARD
    assert apart["mlp_norm_backward"] == pytest.approx(slower * fused["mlp_norm_backward"])
    residual = elementwise.RESIDUAL_KERNELS
    assert apart["attention_kernels_forward"] - fused["attention_kernels_forward"] == pytest.approx(residual)


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


APART: dict[str, Any] = {"rope_fusion": False}
AGAIN: dict[str, Any] = {"recompute": "full", "recompute_num_layers": 32}


def packed(mean_length: float, stack: str, model: str = "llama3-8b", **knobs: Any) -> dict[str, float]:
    work = Workload(4096, 64, "sft", mean_length=mean_length)
    return dict(predict(load_model(model), work, A100, Plan(dp=8, **knobs), stack).values)


def test_lengths_of_packed_documents_are_read_on_the_host_twice_for_queries_and_for_keys():
    """However many they are; full recompute reads them again, a fused embedding and other frameworks never."""

    def stops(mean_length: float, stack: str = "nemo-26.06", **knobs: Any) -> float:
        found = packed(mean_length, stack, **knobs)
        return found["attention_launch_gaps"] / found["expert_wait"]

    assert stops(256, **APART) - stops(0, **APART) == pytest.approx(4)
    assert stops(128, **APART) == pytest.approx(stops(256, **APART))
    assert stops(256, **APART, **AGAIN) - stops(0, **APART, **AGAIN) == pytest.approx(2 * 4)
    assert stops(256) == pytest.approx(stops(0))
    other = "torchtitan-24.12"
    assert stops(256, other, **APART) == pytest.approx(stops(0, other, **APART))


@pytest.mark.parametrize(
    ("model", "block", "kernels"),
    [
        ("llama3-8b", "attention", elementwise.DOCUMENT_KERNELS),
        ("moonlight-16b-a3b", "mla", elementwise.LATENT_DOCUMENT_KERNELS),
    ],
)
@pytest.mark.parametrize(("stack", "apart"), [("nemo-26.08", 1), ("nemo-26.06", 0), ("nemo-25.07", 1)])
def test_documents_turned_one_by_one_cost_kernels_and_copies_each(model, block, kernels, stack, apart):
    few, many = (packed(mean, stack, model, **APART) for mean in (256, 128))
    more = (many[f"{block}_launch_gaps"] - few[f"{block}_launch_gaps"]) / few["kernel_launch"]
    assert more == pytest.approx(apart * 2 * 16 * sum(kernels))
    assert many[f"{block}_kernels_forward"] == pytest.approx(few[f"{block}_kernels_forward"])
    copied = (
        many[f"{block}_rotary_backward"] - few[f"{block}_rotary_backward"]
    ) / elementwise.DOCUMENT_COPIES
    fused = packed(256, stack, model)[f"{block}_rotary_forward"] / 2
    assert copied == pytest.approx(apart * 16 * fused)


def test_full_recompute_turns_documents_again():
    def loops(stack: str, **knobs: Any) -> float:
        few, many = (packed(mean, stack, **APART, **knobs) for mean in (256, 128))
        return (many["attention_launch_gaps"] - few["attention_launch_gaps"]) / few["kernel_launch"]

    forward, backward = elementwise.DOCUMENT_KERNELS
    assert loops("nemo-26.08", **AGAIN) == pytest.approx(2 * 16 * (2 * forward + backward))


@pytest.mark.parametrize(
    ("knobs", "again"),
    [
        ({}, 0),
        ({"recompute": "selective", "recompute_modules": ("core_attn",)}, 1),
        ({"recompute": "full", "recompute_num_layers": 32}, 1),
    ],
)
@pytest.mark.parametrize("cp", [2, 4])
def test_an_exchange_of_heads_orders_the_chunks_of_packed_documents_one_by_one(knobs, again, cp):
    def loops(**more: Any) -> float:
        work = [Workload(4096, 64, "sft", mean_length=mean) for mean in (256, 128)]
        plan = Plan(dp=8 // cp, cp=cp, **knobs, **more)
        few, many = (predict(load_model("llama3-8b"), each, H100, plan, "nemo-26.06").values for each in work)
        return float(many["attention_launch_gaps"] - few["attention_launch_gaps"]) / float(
            few["kernel_launch"]
        )

    forward, backward = EXCHANGE_LAUNCHES
    assert loops(cp_comm_type="a2a") == pytest.approx(2 * cp * 16 * ((1 + again) * forward + backward))
    assert loops(cp_comm_type="p2p") == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("cp", [2, 4])
def test_the_device_waits_for_every_chunk_whose_bounds_the_host_reads(cp):
    """Its queue is empty when the bounds have come, so that no lead of the host hides the loop."""
    load = Workload(4096, 64, "sft", mean_length=64)
    plan = Plan(dp=8 // cp, cp=cp, cp_comm_type="a2a")
    found = predict(load_model("llama3-8b"), load, H100, plan, "nemo-26.06").values
    for kind, launches in zip(("forward", "backward"), EXCHANGE_LAUNCHES, strict=True):
        loop = 2 * cp * 64 * launches * found["loop_launch"] * found["host_kernel"]
        assert found[f"host_waits_{kind}_pace"] >= 32 * loop * (1 - 1e-9)
    ring = replace(plan, cp_comm_type="p2p")
    hidden = predict(load_model("llama3-8b"), load, H100, ring, "nemo-26.06").values
    assert hidden["host_waits_forward_pace"] < found["host_waits_forward_pace"]


@pytest.mark.parametrize(
    ("latent", "kernels"),
    [(False, elementwise.DOCUMENT_KERNELS), (True, elementwise.LATENT_DOCUMENT_KERNELS)],
)
def test_a_loop_over_documents_issues_the_kernels_that_are_counted(latent, kernels):
    """The loop of Megatron-Core 0.19.2 around the function that it shares with the installed one."""
    torch = pytest.importorskip("torch")
    rope = pytest.importorskip("megatron.core.models.common.embeddings.rope_utils")

    def turned(tensor: Any, lengths: list[int]) -> Any:
        table, output, begin = torch.randn(max(lengths), 1, 1, 32), torch.empty_like(tensor), 0
        for part in torch.split(tensor, lengths):
            angles = table[: part.size(0)]
            one = rope._apply_rotary_pos_emb_bshd(part.unsqueeze(1), angles, multi_latent_attention=latent)
            output.narrow(0, begin, part.size(0)).copy_(one.squeeze(1))
            begin += part.size(0)
        return output

    def counted(documents: int) -> list[tuple[int, int]]:
        tensor = torch.randn(16, HEADS, 32, dtype=torch.bfloat16, requires_grad=True)
        result, forward = recorded(torch, lambda: turned(tensor, [16 // documents] * documents))
        gradient = torch.ones_like(result)
        _, backward = recorded(torch, lambda: torch.autograd.grad(result, tensor, gradient))
        whole = tensor.numel()
        copies = [
            sum(name == "copy_" and size == whole for name, size in each) for each in (forward, backward)
        ]
        return [
            (sum(KERNELS_OF.get(name, 1) for name, _ in each), whole_copies)
            for each, whole_copies in zip((forward, backward), copies, strict=True)
        ]

    few, many = counted(4), counted(8)
    assert [(more[0] - less[0]) / 4 for less, more in zip(few, many, strict=True)] == list(kernels)
    assert [more[1] - less[1] for less, more in zip(few, many, strict=True)] == [0, 4]


# Memory that nobody writes yet; a slice's gradient, filled with zeros and then written.
KERNELS_OF = {"new_empty_strided": 0, "slice_backward": 2}


def recorded(torch: Any, function: Callable[[], Any]) -> tuple[Any, list[tuple[str, int]]]:
    """A function's result, and each operation that it issues with the elements of its result; no views."""
    from torch.utils._python_dispatch import TorchDispatchMode

    issued: list[tuple[str, int]] = []

    class Recording(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operation(*args, **(kwargs or {}))
            if not operation.is_view and operation.overloadpacket is not torch.ops.aten.detach:
                issued.append((operation.overloadpacket.__name__, result.numel()))
            return result

    with Recording():
        return function(), issued


def operations(
    torch: Any, function: Callable[..., Any], *widths: int, in_bytes: bool = False, beside: Sequence[Any] = ()
) -> tuple[list[float], list[float]]:
    """Elements that each operation reads and writes for one of the result, forward and backward; views move none.

    widths: last size of each tensor that the function takes. in_bytes: bytes instead, of what stands in memory alone.
    beside: weights whose gradients are asked for too.
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
        if isinstance(value, torch.Tensor) and in_bytes:
            kept = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
            return math.prod(kept) * int(value.element_size())
        if isinstance(value, torch.Tensor):
            return int(value.numel())
        return sum(map(numbers, value)) if isinstance(value, (list, tuple)) else 0

    tensors = [torch.randn(16, 1, HEADS, width, dtype=torch.bfloat16, requires_grad=True) for width in widths]
    with Counting() as counting:
        result = function(*tensors)
        forward = len(counting.moved)
        gradient = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
        begun = len(counting.moved)
        torch.autograd.grad(result, [*tensors, *beside], gradient)
    share = [each / result.numel() for each in counting.moved]
    return share[:forward], share[begun:]


def test_squared_relu_is_one_kernel_with_or_without_fusion():
    """It has no bias and no gate that a fused kernel could take along."""
    fused, apart = (
        values("nemotronh-8b", "nemo-25.09", bias_activation_fusion=fusion) for fusion in (True, False)
    )
    assert fused["mlp_kernels_forward"] == apart["mlp_kernels_forward"]
    assert fused["mlp_activation_forward"] == apart["mlp_activation_forward"]
