"""Lets Megatron-Core 0.16 train on CPU: the few places that assume a CUDA device.

Imported by workers on machines without a GPU, before Megatron-Core, and never elsewhere: it changes
torch.cuda for the whole process. What it replaces: the current device, streams and events (none on a
CPU), random-number states, the literal device "cuda", pinned memory, and type names.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _Event:
    """A CUDA event where everything has already happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def wait(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Stream(_Event):
    """The one stream of a CPU."""

    def wait_stream(self, _: Any) -> None:
        pass

    def wait_event(self, _: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class CudaToCpu(TorchFunctionMode):
    """Sends tensors asked for on "cuda" to the CPU, unpinned."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            # The optimizer compares type names with those of CUDA tensors.
            return function(*args).replace("torch.", "torch.cuda.", 1)
        if function is torch.Tensor.pin_memory:
            return args[0]
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*args, **kwargs)


def install() -> None:
    """Install the replacements for the life of this process."""
    cuda: Any = torch.cuda
    stream = _Stream()
    cuda.current_device = lambda: _CPU
    cuda.set_device = lambda *_, **__: None
    cuda.synchronize = lambda *_, **__: None
    cuda.Event, cuda.Stream = _Event, _Stream
    cuda.current_stream = lambda *_, **__: stream
    cuda.default_stream = lambda *_, **__: stream
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    here: Any = lambda self, *_, **__: self  # noqa: E731
    torch.Tensor.cuda = here  # type: ignore[method-assign]
    torch.nn.Module.cuda = here  # type: ignore[method-assign]
    CudaToCpu().__enter__()
    import megatron.core.tensor_parallel.random as random_states

    random_states._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random_states._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
