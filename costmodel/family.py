"""Families of models and plans: what their formulas need, and their cost, compiled once for each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from costmodel.columns import ITEMS, Columns, code
from costmodel.compiled import CompiledModel, compile_model
from costmodel.layout import total_blocks
from costmodel.memory import MEMORY_STAGES
from costmodel.model_spec import ModelSpec
from costmodel.workload import Workload

# What search needs to rank plans and to see whether they fit.
SEARCH_OUTPUTS = ("step_time", "peak_memory", "model_flops")
# What leaves the device where something is offloaded, by stage.
HOST_OUTPUTS = tuple(
    f"memory_{stage}_{part}" for stage in MEMORY_STAGES for part in ("activations", "optimizer")
)
ZERO = np.zeros(1)


@lru_cache(maxsize=32)
def compiled_family(features: frozenset[str]) -> CompiledModel:
    """The compiled cost of a family of models and plans, from the cache where possible.

    features: as `family_features` finds them.
    """

    def build() -> Any:
        from costmodel.step import build_step

        return build_step(features)

    return compile_model(build, SEARCH_OUTPUTS, HOST_OUTPUTS, "-".join(sorted(features)))


def family_features(model: ModelSpec, workload: Workload, columns: Columns) -> frozenset[str]:
    """What the formulas of a model, task and plans need: blocks, of `costmodel.symbols.BLOCKS`, and parts by name."""
    features = {name for name, count in total_blocks(model).items() if count}
    if model.mla is not None and model.mla.q_lora_rank:
        features.add("q_lora")
    if model.moe is not None:
        features |= {"shared"} if model.moe.shared_expert_ffn else set()
        features |= {"latent"} if model.moe.latent_size else set()
    if model.norms is not None:
        features.add("norms")
    if model.values_are_keys:
        features.add("tied_values")
    if model.mtp_layers:
        features.add("mtp")
    if model.encoder is not None:
        features.add("encoder")
    if workload.task == "lora":
        features.add("lora")
    if np.any(columns.get("optimizer", ZERO) == code("optimizer", "muon")):
        features.add("muon")
    if np.any(columns.get("bf16_end_layers", ZERO) > 0):
        features.add("ends")  # layers in 16 bits at both ends
    moved = [name for name, (knob, _) in ITEMS.items() if knob == "offload_modules"]
    if any(np.any(columns.get(name, ZERO) > 0) for name in ("offload_layers", *moved)):
        features.add("offload")
    return frozenset(features)
