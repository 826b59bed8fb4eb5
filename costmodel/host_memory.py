"""What offloading keeps in host memory: the other side of what it takes off the devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from costmodel.compiled import CompiledModel
from costmodel.offload import MODULE_FLAGS
from costmodel.symbols import BY_NAME

# Inputs that move something to the host; without them everything stays on the device.
OFFLOADS = ("offload_share", "optimizer_offload", *MODULE_FLAGS)
# Copies of parameter and gradient in FP32 that an offloaded optimizer has on the host beside both moments, where the
# master parameters stay on the device: byte a parameter. Source: Megatron-Core 0.16.1, optimizer/cpu_offloading/
# hybrid_optimizer.py:109 and :274 (pinned).
HOST_COPIES = 8.0


def rank_host_bytes(
    compiled: CompiledModel, held: Mapping[str, float], stages: Iterable[str]
) -> dict[str, float]:
    """Stage -> bytes that one of its ranks keeps in host memory; empty where nothing is offloaded. [byte]

    held: every input and entry that memory was counted with. What the device would hold beside the plan if nothing were
    offloaded: buffers that activations pass through are left out, so it is the least.
    """
    if not any(held.get(name) for name in OFFLOADS):
        return {}
    inputs = {name: np.float64(held[name]) for name in BY_NAME if name in held}
    without = inputs | {name: np.float64(0.0) for name in OFFLOADS if name in inputs}
    whole = compiled.full(without)
    return {stage: host_bytes(held, whole, stage) for stage in stages}


def host_bytes(held: Mapping[str, float], whole: Mapping[str, float], stage: str) -> float:
    """Of one rank of a stage: activations and optimizer state that left the device, and the optimizer's copies. [byte]

    held: entries of the plan. whole: those of the plan without offloading.
    """
    activations, state = (
        float(whole[name] - held[name])
        for name in (f"memory_{stage}_activations", f"memory_{stage}_optimizer")
    )
    moved = held["host_state_bytes"]
    copies = HOST_COPIES if held["state_bytes"] > moved else 0.0
    return activations + state * (1 + copies / moved)
