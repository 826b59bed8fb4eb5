"""What offloading keeps in host memory: the other side of what it takes off the devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from costmodel.amount import Amount
from costmodel.compiled import CompiledModel
from costmodel.memory import MEMORY_STAGES
from costmodel.offload import MODULE_FLAGS
from costmodel.symbols import BY_NAME

# Inputs that move something to the host; without them everything stays on the device.
OFFLOADS = ("offload_share", "optimizer_offload", *MODULE_FLAGS)
# What an offloaded optimizer has on the host of a parameter, in FP32 all of it: itself, its gradient (pinned) and both
# moments. [byte] Source: Megatron-Core 0.16.1 and 0.19.2, optimizer/cpu_offloading/hybrid_optimizer.py,
# _set_sub_optimizer_grads and _get_sub_optimizer_param_groups.
HOST_STATE = 16.0


def rank_host_bytes(
    compiled: CompiledModel, held: Mapping[str, float], stages: Iterable[str]
) -> dict[str, float]:
    """Stage -> bytes that one of its ranks keeps in host memory; empty where nothing is offloaded. [byte]

    held: every input and entry that memory was counted with. What the device would hold beside the plan if nothing were
    offloaded: buffers that activations pass through are left out, so it is the least.
    """
    if not offloads(held):
        return {}
    inputs = {name: np.float64(held[name]) for name in BY_NAME if name in held}
    whole = compiled.host(_without(inputs))
    return {stage: float(host_bytes(held, whole, stage)) for stage in stages}


def fullest_node(compiled: CompiledModel, inputs: Mapping[str, Any], per_node: int) -> Any:
    """The least that offloading takes of the fullest node's host memory, of plans as columns. [byte]

    inputs: every input of the plans, arrays that broadcast or numbers, some of which offload. per_node: GPUs of a node.
    """
    held, whole = dict(inputs) | compiled.host(dict(inputs)), compiled.host(_without(inputs))
    first, *others = (host_bytes(held, whole, stage) for stage in MEMORY_STAGES)
    one_stage = inputs["pp"] == 1
    stages = [first, *(np.where(one_stage, first, each) for each in others)]
    tp, cp, dp, pp = (inputs[name] for name in ("tp", "cp", "dp", "pp"))
    return node_bytes(reduce(np.maximum, stages), reduce(np.minimum, stages), tp * cp * dp, pp, per_node)[0]


def offloads(inputs: Mapping[str, Any]) -> bool:
    """Whether anything of a plan, or of plans as columns, waits in host memory."""
    return any(np.any(inputs.get(name, 0)) for name in OFFLOADS)


def node_bytes(
    fullest: Amount, emptiest: Amount, stage_ranks: Amount, pp: Amount, per_node: int
) -> tuple[Any, Any]:
    """Host memory that offloading takes of the fullest node: at least, and at most. [byte]

    fullest, emptiest: of a rank of the stage that keeps most and least there. [byte] stage_ranks: of one stage. [1]
    Where a stage's ranks fill whole nodes the fullest node is that stage's; else stages share nodes, and it may be as
    little as the emptiest everywhere.
    """
    ranks = np.minimum(per_node, stage_ranks * pp)
    whole = (stage_ranks % per_node == 0) | (pp == 1)
    return ranks * np.where(whole, fullest, emptiest), ranks * fullest


def host_bytes(held: Mapping[str, Any], whole: Mapping[str, Any], stage: str) -> Any:
    """Of one rank of a stage: activations and optimizer state that left the device, and the optimizer's copies. [byte]

    held: entries of the plan. whole: those of the plan without offloading.
    """
    activations, state = (
        whole[name] - held[name] for name in (f"memory_{stage}_activations", f"memory_{stage}_optimizer")
    )
    return activations + state * HOST_STATE / held["host_state_bytes"]


def _without(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs with everything on the device."""
    return dict(inputs) | {name: np.float64(0.0) for name in OFFLOADS if name in inputs}
