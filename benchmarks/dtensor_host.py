"""What PyTorch's DTensor takes of the host for a linear layer of tensor parallelism, beside the plain layer.

    python benchmarks/dtensor_host.py

A layer of Llama, with adapters and without, forward and backward, plain and split over two ranks as NeMo AutoModel
splits it (0.7.0, distributed/parallel_styles.py), on tensors so small that the processor does little but dispatch. No
rank sends anything: the process group is a fake. CPU time of the process, the least of many turns; the last columns are
what DTensor adds for each of the seven linear layers, in seconds and in element-wise operations of the plain layer. Its
seconds are the constants of costmodel/host_waits.py (TENSOR_FORWARD, TENSOR_BACKWARD).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

HIDDEN, HEADS, GROUPS, WIDTH, INNER, RANK, TOKENS = 64, 4, 2, 16, 128, 8, 8
TURNS, EACH = 25, 12
VIEWS = ("aten::detach", "aten::view", "aten::t", "aten::transpose.int", "aten::alias")


class Projection(nn.Module):
    """A linear layer, frozen beside an adapter where it has one."""

    def __init__(self, inputs: int, outputs: int, adapter: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / 50, requires_grad=not adapter)
        self.down = nn.Linear(inputs, RANK, bias=False) if adapter else None
        self.up = nn.Linear(RANK, outputs, bias=False) if adapter else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        return y if self.down is None else y + self.up(self.down(x)) * 2.0


class Norm(nn.Module):
    """RMSNorm of Hugging Face's models."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Layer(nn.Module):
    """A decoder layer of Llama."""

    def __init__(self, adapter: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([Norm(), Norm()])
        query, keys = HEADS * WIDTH, GROUPS * WIDTH
        self.columns = nn.ModuleDict(
            {
                name: Projection(HIDDEN, size, adapter)
                for name, size in zip("qkv", (query, keys, keys), strict=True)
            }
            | {name: Projection(HIDDEN, INNER, adapter) for name in ("gate", "up")}
        )
        self.rows = nn.ModuleDict(
            {"out": Projection(query, HIDDEN, adapter), "down": Projection(INNER, HIDDEN, adapter)}
        )
        self.angles = (torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        read = self.norms[0](x)
        q, k, v = (self.columns[name](read).view(1, TOKENS, -1, WIDTH).transpose(1, 2) for name in "qkv")
        q, k = self.turned(q), self.turned(k)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.rows["out"](seen.transpose(1, 2).reshape(1, TOKENS, -1).contiguous())
        read = self.norms[1](x)
        return x + self.rows["down"](F.silu(self.columns["gate"](read)) * self.columns["up"](read))

    def turned(self, x: Tensor) -> Tensor:
        cosine, sine = self.angles
        half = torch.cat((-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]), -1)
        return x * cosine + half * sine


def split(layer: Layer) -> Layer:
    """The layer split over the two ranks of a fake process group."""
    mesh = init_device_mesh("cpu", (2,))
    for style, modules, dim, inputs in (
        (ColwiseParallel(), layer.columns.values(), 0, Replicate()),
        (RowwiseParallel(), layer.rows.values(), 1, Shard(-1)),
    ):
        for module in modules:
            for part in filter(None, (module, module.down, module.up)):
                weight = part.weight
                spread = nn.Parameter(distribute_tensor(weight, mesh, [Shard(dim)]), weight.requires_grad)
                part.register_parameter("weight", spread)
            if module.down is not None:
                module.down.register_forward_hook(joined)
            style.desired_input_layouts = (inputs,)
            distribute_module(
                module,
                mesh,
                None,
                partial(style._prepare_input_fn, style.input_layouts, style.desired_input_layouts),
                partial(style._prepare_output_fn, style.output_layouts, style.use_local_output),
            )
    return layer


def joined(module: nn.Module, given: tuple[Tensor, ...], made: DTensor) -> DTensor:
    """An adapter's narrow output, whole on each rank."""
    return made.redistribute(made.device_mesh, [Replicate()])


class Counter(TorchDispatchMode):
    """Counts operations that are not views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += not (func.is_view or func.name() in VIEWS)
        return func(*args, **(kwargs or {}))


def least(work: Callable[[], object]) -> float:
    """CPU time of one turn. [s]"""
    for _ in range(5):
        work()
    times = []
    for _ in range(TURNS):
        start = time.process_time()
        for _ in range(EACH):
            work()
        times.append((time.process_time() - start) / EACH)
    return min(times)


def measured(layer: Layer) -> tuple[float, float]:
    """Forward and backward. [s]"""
    x = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    forward = least(lambda: layer(x))
    return forward, least(lambda: layer(x).sum().backward()) - forward


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    rows = []
    for adapter in (False, True):
        plain = Layer(adapter)
        counter = Counter()
        with counter:
            plain(torch.randn(1, TOKENS, HIDDEN, requires_grad=True)).sum().backward()
        alone, spread = measured(plain), measured(split(Layer(adapter)))
        operation = sum(alone) / counter.count
        for way, before, after in zip(("forward", "backward"), alone, spread, strict=True):
            added = (after - before) / 7
            rows.append(
                (
                    "adapters" if adapter else "plain",
                    way,
                    1e3 * before,
                    1e3 * after,
                    1e3 * added,
                    added / operation,
                )
            )
    names = ("linear layers", "pass", "plain [ms]", "DTensor [ms]", "added by each [ms]", "in operations")
    print(tabulate(rows, names, floatfmt=".2f"))


if __name__ == "__main__":
    main()
