"""Numbers for the symbols: model, workload, precision recipe, hardware and software stack.

Every number comes with the file and source it was read from, so that an explanation can end there.
This file and `costmodel.predict` are the only ones of the cost model that see `hardware_db`.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.binding_hardware import hardware_inputs
from costmodel.bound import Bound
from costmodel.model_spec import ModelSpec
from costmodel.workload import Workload
from hardware_db import Cluster

PRECISION_FILE = Path(__file__).with_name("precision.toml")


@lru_cache(maxsize=1)
def _recipes() -> dict[str, dict[str, Any]]:
    with PRECISION_FILE.open("rb") as file:
        return tomllib.load(file)


def precision_recipe(precision: str) -> dict[str, Any]:
    """Bytes and kernel table of a precision recipe; see `precision.toml`."""
    return _recipes()[precision]


def bind(
    model: ModelSpec, workload: Workload, cluster: Cluster, precision: str, stack: str | None = None
) -> dict[str, Bound]:
    """Every input that is not of the plan. ValueError when the GPU lacks the precision."""
    if workload.task != "pretrain":
        raise ValueError(
            f"--task {workload.task}: its cost is not built yet (frozen weights and packed sequences are missing). "
            "Try --task pretrain, an upper bound of its time and memory."
        )
    return (
        _model_inputs(model)
        | {"s": Bound(float(workload.seq_len), "workload: seq_len")}
        | _precision_inputs(precision)
        | hardware_inputs(cluster, precision_recipe(precision), precision, stack)
    )


def _model_inputs(model: ModelSpec) -> dict[str, Bound]:
    rotary = model.learned_positions == 0
    numbers: dict[str, float] = {
        "L": model.num_layers,
        "h": model.hidden,
        "f": model.ffn_hidden,
        "a": model.num_heads,
        "k": model.num_kv_heads,
        "d": model.head_dim,
        "gates": float(model.gated),
        "V": model.vocab_padded or model.vocab,
        "V_multiple": 1 if model.vocab_padded else (model.vocab_divisible_by or 128),
        "positions": model.learned_positions,
        "rotary": float(rotary),
        "tied": float(model.tied_embeddings),
        "norm_vectors": 1 if model.norm == "RMSNorm" else 2,
        "biases": float(model.linear_bias),
        "qkv_biases": float(model.linear_bias or model.qkv_bias),
        "qk_norms": float(model.qk_norm),
    }
    return {
        name: Bound(float(number), f"model {model.name}: {model.source}") for name, number in numbers.items()
    }


def _precision_inputs(precision: str) -> dict[str, Bound]:
    recipe = precision_recipe(precision)
    where = f"costmodel/precision.toml: {precision}"
    numbers = {
        "weight_bytes": recipe["base"],
        "activation_bytes": recipe["base"],
        "quantised_copy_bytes": recipe["copies"],
        "saved_bytes": recipe["saved"],
        "operand_bytes": recipe["operand"],
        "quantise_input_bytes": recipe["input_traffic"],
        "quantise_grad_bytes": recipe["grad_traffic"],
        "quantise_weight_bytes": recipe["weight_traffic"],
        "quantise_kernels": recipe["kernels"],
    }
    return {name: Bound(float(number), where) for name, number in numbers.items()}
