"""What the ranks of a run measure beside the time of a step: memory, bytes of state, and features as they are seen."""

from __future__ import annotations

import resource
import socket
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from executor.workers.device import ranks_on_device
from executor.workers.layer_graphs import replayed
from executor.workers.state import (
    counter_bytes,
    flat,
    gradient_buffers,
    is_plain,
    parameter_counts,
    state_bytes,
)
from executor.workers.stopwatch import Stopwatch

RECOMPUTED: Counter[str] = Counter()
# A step's number, seconds and spans (`Stopwatch.spans`); how many of the last measured steps are kept, and in how
# large a world every rank tells of the one that is shown.
Kept = tuple[int, float, list[tuple[str, str, float, float]]]
KEPT_STEPS, ALL_RANKS = 16, 64


def memory(cuda: bool) -> dict[str, int]:
    """Bytes of this rank: of the CUDA allocator and the device, else resident. [byte]"""
    if cuda:
        free, total = torch.cuda.mem_get_info()
        return {
            "allocated": torch.cuda.memory_allocated(),
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "device": total - free,
        }
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return {"resident": resident, "peak_resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def peak(cuda: bool) -> int:
    """Peak bytes of this rank: allocated on the GPU, else resident. [byte]"""
    return memory(cuda)["peak_allocated" if cuda else "peak_resident"]


def everyone(mine: Any) -> list[Any]:
    """An object of every rank, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def gather(
    wall: float, queued: float, watch: Stopwatch, losses: list[Any], grad_norm: Any, cuda: bool
) -> dict[str, Any]:
    """One record of the step from all ranks: slowest wall time, mean phases, mean loss, memory by rank."""
    phases, groups = watch.read()
    mine = {
        "wall": wall,
        "queued": queued,
        "phases": phases,
        "groups": groups,
        "losses": [float(entry["loss"]) for entry in losses],
        "memory": memory(cuda),
    }
    ranks = everyone(mine)
    values = [loss for entry in ranks for loss in entry["losses"]]
    return {
        "seconds": max(entry["wall"] for entry in ranks),
        "queued": max(entry["queued"] for entry in ranks),
        "loss": sum(values) / len(values) if values else None,
        "grad_norm": float(grad_norm) if grad_norm is not None else None,
        "phases": _mean([entry["phases"] for entry in ranks]),
        "exposed": _mean([entry["groups"] for entry in ranks]),
        "seconds_by_rank": [round(entry["wall"], 6) for entry in ranks],
        "memory": {name: [entry["memory"][name] for entry in ranks] for name in mine["memory"]},
    }


def typical_step(kept: Sequence[Kept]) -> dict[str, Any] | None:
    """Spans of all ranks in the kept step whose time is nearest to their median; None where none was measured.

    In large worlds the first rank of each pipeline stage tells for the others. Every rank calls it.
    """
    from megatron.core import parallel_state

    if not kept:
        return None
    median = statistics.median(seconds for _, seconds, _ in kept)
    step, seconds, spans = min(kept, key=lambda each: abs(each[1] - median))
    world, stages = dist.get_world_size(), parallel_state.get_pipeline_model_parallel_world_size()
    told = world <= ALL_RANKS or dist.get_rank() % (world // stages) == 0
    stage = parallel_state.get_pipeline_model_parallel_rank()
    mine = {"rank": dist.get_rank(), "stage": stage, "spans": spans} if told else None
    ranks = [each for each in everyone(mine) if each is not None]
    return {"step": step, "seconds": seconds, "ranks": ranks}


def _mean(seconds: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for entry in seconds for name in entry})
    return {name: sum(entry.get(name, 0.0) for entry in seconds) / len(seconds) for name in names}


def rank_facts(chunks: list[Any], optimizer: Any, watch: Stopwatch, cuda: bool) -> dict[str, Any]:
    """Host, place, exact bytes of state, and observed features of this rank, once it has taken a step."""
    from megatron.core import parallel_state

    return {
        "rank": dist.get_rank(),
        "host": socket.gethostname(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "ranks_on_device": ranks_on_device() if cuda else 1,
        "stage": parallel_state.get_pipeline_model_parallel_rank(),
        # Among the ranks that share optimizer state, and that of experts.
        "places": [
            parallel_state.get_data_parallel_rank(with_context_parallel=True, partial_data_parallel=True),
            parallel_state.get_expert_data_parallel_rank(partial_expert_data_parallel=True),
        ],
        "parameters": parameter_counts(chunks),
        "plain": is_plain(chunks),
        "state": state_bytes(chunks, optimizer),
        "step_counters": counter_bytes(optimizer),
        "observed": observed(chunks, optimizer, watch),
    }


def count_recompute() -> None:
    """Count the regions that Megatron-Core computes again. Before the model is built."""
    from megatron.core.tensor_parallel import random as random_states

    whole: Any = random_states.CheckpointFunction
    backward = whole.backward

    def counted(ctx: Any, *grads: Any) -> Any:
        RECOMPUTED["regions"] += 1
        return backward(ctx, *grads)

    whole.backward = staticmethod(counted)
    part: Any = random_states.CheckpointWithoutOutput
    again = part._recompute

    def recompute(self: Any, *args: Any) -> Any:
        RECOMPUTED["outputs"] += 1
        return again(self, *args)

    part._recompute = recompute


def observed(chunks: list[Any], optimizer: Any, watch: Stopwatch) -> dict[str, str]:
    """Knob to what was seen in the last step: classes of modules, types of buffers, launches of collectives."""
    modules = [module for chunk in chunks for module in chunk.modules()]
    kinds = {type(module).__name__ for module in modules}
    gradients = [each.grad_data for each in gradient_buffers(chunks)] or flat("main_grad_buffer", chunks)
    found = {
        "precision": _types(chunks, gradients, modules),
        "attention_backend": ", ".join(
            sorted(_attention(module) for module in modules if _is_core(module))[:1]
        ),
        "zero_stage": ", ".join(
            sorted({type(part).__name__ for part in getattr(optimizer, "chained_optimizers", [optimizer])})
        ),
        "gradient_accumulation_fusion": _flags(modules, "gradient_accumulation_fusion"),
        "recompute": ", ".join(f"{number} {what} again" for what, number in RECOMPUTED.items())
        or "nothing again",
        "cuda_graph": replayed(modules),
    }
    RECOMPUTED.clear()
    experts = kinds & {"SequentialMLP", "GroupedMLP", "TEGroupedMLP"}
    dispatchers = {type(m.token_dispatcher).__name__ for m in modules if hasattr(m, "token_dispatcher")}
    if experts:
        found |= {"moe_grouped_gemm": ", ".join(experts), "moe_dispatcher": ", ".join(dispatchers)}
    return {name: text for name, text in (found | _overlaps(watch)).items() if text}


def _is_core(module: Any) -> bool:
    return type(module).__name__ in ("AttentionCore", "TEDotProductAttention", "DotProductAttention")


def _attention(module: Any) -> str:
    kernel = getattr(module, "kernel", "")
    return type(module).__name__ + (f": {kernel}" if kernel else "")


def _types(chunks: list[Any], gradients: list[torch.Tensor], modules: list[Any]) -> str:
    names = sorted({str(p.dtype).removeprefix("torch.") for chunk in chunks for p in chunk.parameters()})
    grads = sorted({str(each.dtype).removeprefix("torch.") for each in gradients})
    quantised = sum(bool(getattr(module, "fp8_initialized", False)) for module in modules)
    fp8 = f", {quantised} modules in FP8" if quantised else ""
    return f"parameters {'+'.join(names)}, gradients {'+'.join(grads)}{fp8}"


def _flags(modules: list[Any], name: str) -> str:
    values = {bool(getattr(module, name)) for module in modules if hasattr(module, name)}
    return " and ".join(("off", "on")[value] for value in sorted(values))


def _overlaps(watch: Stopwatch) -> dict[str, str]:
    """What collectives were launched where: beside compute when asynchronous and inside a pass."""
    seen: Counter[tuple[str, str]] = Counter()
    for (operation, group, phase, asynchronous), number in watch.launched.items():
        data = group in ("dp", "edp")
        beside = asynchronous and phase in ("forward", "backward")
        where = "beside compute" if beside else "alone"
        if data and operation in ("reduce_scatter_tensor", "all_reduce") and phase != "optimizer":
            seen["overlap_grad_reduce", where] += number
        elif data and operation == "all_gather_into_tensor":
            seen["overlap_param_gather", where] += number
        elif group in ("pp", "world") and operation in ("isend", "irecv", "batch_isend_irecv"):
            seen["overlap_p2p", "batched" if operation.startswith("batch") else "one by one"] += number
        elif group == "cp" and operation in ("all_gather_into_tensor", "isend", "all_to_all_single"):
            seen["cp_comm_type", f"{operation} in {phase or 'no phase'}"] += number
        elif group == "tp" and operation in ("all_gather_into_tensor", "reduce_scatter_tensor"):
            seen["sequence_parallel", "gathers and scatters of tp"] += number
    found: dict[str, str] = {}
    for (knob, where), number in sorted(seen.items()):
        found[knob] = ", ".join(filter(None, [found.get(knob, ""), f"{number} {where}"]))
    return found
