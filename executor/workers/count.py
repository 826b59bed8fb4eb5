"""What a traced step computes, sends and keeps: FLOPs by product, messages by kind, live bytes by block.

`Counting` sees every operation that torch dispatches under fake tensors. Operators of torch that multiply matrices
are counted from their shapes; the stand-ins of fused kernels report their own FLOPs (`Ledger.flop`). Bytes are those
of live storages: each is followed by a weak reference until the last tensor on it is gone.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._python_dispatch import TorchDispatchMode

from executor.workers.groups import GROUP_NAMES

# An allocation of the caching allocator is a multiple of this. [byte] Source: c10/cuda/CUDACachingAllocator.cpp.
ROUNDING = 512

# c10d operators: our word, and which tensor argument holds the bytes that nccl-tests would name.
COLLECTIVES = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_base_": ("all_to_all", 1),
    "broadcast_": ("broadcast", 0),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "barrier": ("", 0),
}
# Operators that launch no kernel: allocations and views.
NO_KERNEL = ("empty", "new_empty", "_unsafe_view", "detach", "alias", "lift_fresh", "set_", "resize_")
VIEWS = ("aten::view", "aten::slice", "aten::as_strided", "aten::detach", "aten::t", "aten::transpose")


class LiveBytes:
    """Bytes of storages that came into being while this watched, and are still alive."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._known: dict[int, tuple[Any, int]] = {}
        self._inside = 0

    @contextlib.contextmanager
    def one_kernel(self) -> Iterator[None]:
        """What comes and goes inside is never in memory; what goes in and comes out is, at once."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._look()

    def see(self, tensor: torch.Tensor) -> None:
        """Follow the storage of a tensor."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        known = self._known.get(key)
        if known is not None:
            if known[1] == size:
                return
            self.now -= _rounded(known[1])
            self._known[key] = (known[0], size)
        else:
            self._known[key] = (weakref.ref(storage, lambda _, key=key: self._gone(key)), size)
        self.now += _rounded(size)
        self._look()

    def resized(self, storage: Any) -> None:
        """A storage was emptied or filled by hand, as checkpoints without output do."""
        known = self._known.get(storage._cdata)
        if known is not None:
            size = storage.nbytes()
            self.now += _rounded(size) - _rounded(known[1])
            self._look()
            self._known[storage._cdata] = (known[0], size)

    def _look(self) -> None:
        if not self._inside:
            self.peak = max(self.peak, self.now)

    def _gone(self, key: int) -> None:
        found = self._known.pop(key, None)
        if found is not None:
            self.now -= _rounded(found[1])


def _rounded(size: int) -> int:
    return -(-size // ROUNDING) * ROUNDING


class Ledger:
    """What has been counted so far; phases and products are set by whoever runs the step."""

    def __init__(self) -> None:
        self.phase = "build"
        self.product = ""
        self.counting = False
        self._fused = 0
        self.live = LiveBytes()
        self.flops: dict[str, Counter[str]] = defaultdict(Counter)
        self.messages: Counter[tuple[str, str, int, int, str]] = Counter()
        self.operations: Counter[str] = Counter()
        # Rows that a selection by values gives, where they are known beforehand; 0: they are not.
        self.rows = 0
        # Storages on their way between stages: the pass they belong to, and the number of stages.
        self.between_stages: dict[int, tuple[str, int]] = {}

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Everything inside belongs to `phase`."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    @contextlib.contextmanager
    def of(self, product: str) -> Iterator[None]:
        """Matrix products inside belong to `product`."""
        before, self.product = self.product, product
        try:
            yield
        finally:
            self.product = before

    def flop(self, product: str, amount: float) -> None:
        """Add FLOPs of a product to the phase at hand."""
        if self.counting:
            self.flops[product][self.phase] += amount

    def kernel(self, number: int = 1) -> None:
        """Add launches of kernels."""
        if self.counting and not self._fused:
            self.operations[self.phase] += number

    @contextlib.contextmanager
    def one_kernel(self) -> Iterator[None]:
        """Everything inside is compiled into one kernel."""
        self.kernel()
        self._fused += 1
        try:
            with self.live.one_kernel():
                yield
        finally:
            self._fused -= 1

    def message(self, operation: str, group: Any, size: int, between: tuple[str, int] | None = None) -> None:
        """Add one message of `size` bytes in a process group, or between stages: its pass, and their number."""
        if not self.counting or not operation or group.size() == 1:
            return
        if between is not None:
            # Of two stages, Megatron-Core sends one way in the group of all ranks.
            phase, stages = between
            self.messages[(operation, "pp", stages, size, phase)] += 1
            return
        name = GROUP_NAMES.get(group.group_desc, "")
        if not name or (group.size() == dist.get_world_size() and name == "optimizer_instance"):
            name = "cp" if group.group_desc.startswith("HIERARCHICAL_CONTEXT") else "world"
        self.messages[(operation, name, group.size(), size, self.phase)] += 1


LEDGER = Ledger()


def view(function: Any, args: Any, kwargs: Any) -> Any:
    """A view of a fake tensor by torch's own meta kernel.

    FakeTensorMode works views out in Python, and remembers each by its offset: of thousands of parameters in one
    buffer that is most of the time.
    """
    fake = args[0]
    if not isinstance(fake, FakeTensor):
        return function(*args, **kwargs)
    mode = fake.fake_mode
    with in_kernel_invocation_manager(mode):
        meta = function(*args, **kwargs)
    return mode.fake_tensor_converter.from_meta_and_device(mode, meta, fake.fake_device)


class Counting(TorchDispatchMode):
    """Counts what is dispatched into LEDGER, and follows every storage in its `live`."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if name == "aten::_local_scalar_dense":
            # A value that the host asks for: there is none. One, so that norms divide and losses scale; no finding.
            dtype = args[0].dtype
            return 1.0 if dtype.is_floating_point else dtype != torch.bool and 1
        if name == "aten::masked_select" and LEDGER.rows:
            LEDGER.kernel()
            return args[0].new_empty(LEDGER.rows)
        result = view(function, args, kwargs or {}) if name in VIEWS else function(*args, **(kwargs or {}))
        if name.startswith("c10d::"):
            self._collective(name.removeprefix("c10d::"), args)
        elif LEDGER.counting and name.startswith("aten::"):
            self._operator(function, name.removeprefix("aten::"), args, result)
        for tensor in _tensors(result):
            LEDGER.live.see(tensor)
        return result

    def _collective(self, name: str, args: Any) -> None:
        operation, place = COLLECTIVES.get(name, (name, 0))
        groups = [arg for arg in args if isinstance(arg, torch.ScriptObject)]
        for arg in groups:
            with contextlib.suppress(RuntimeError):
                tensors = list(_tensors(args[place]))
                between = LEDGER.between_stages.get(tensors[0].untyped_storage()._cdata) if tensors else None
                size = sum(tensor.nbytes for tensor in tensors)
                LEDGER.message(operation, dist.ProcessGroup.unbox(arg), size, between)
                return

    def _operator(self, function: Any, name: str, args: Any, result: Any) -> None:
        if function.is_view or name.startswith(NO_KERNEL):
            return
        LEDGER.kernel()
        if name in ("mm", "bmm"):
            LEDGER.flop(LEDGER.product or "other", 2 * args[0].numel() * args[1].shape[-1])
        elif name in ("addmm", "baddbmm"):
            LEDGER.flop(LEDGER.product or "other", 2 * args[1].numel() * args[2].shape[-1])


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
