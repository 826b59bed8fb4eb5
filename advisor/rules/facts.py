"""The words in which rules are written: knobs, model, workload and cluster as arrays over plans."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import CODED, ITEMS, MODULE_COLUMNS, Columns, default_columns
from costmodel.knobs import KNOBS
from costmodel.model_spec import ModelSpec
from costmodel.workload import Workload

if TYPE_CHECKING:
    from hardware_db import Cluster


Facts = dict[str, Any]
# Words of choice knobs: value -> word.
CHOICES = {
    "recompute": {
        "none": "recompute_none",
        "selective": "recompute_selective",
        "full": "recompute_full",
    },
    "cp_comm_type": {"p2p": "cp_p2p", "all_gather": "cp_all_gather", "a2a": "cp_a2a", "a2a+p2p": "cp_mixed"},
    "attention_backend": {"fused": "fused", "unfused": "unfused"},
}
FLAGS = tuple(name for name, knob in KNOBS.items() if knob.kind == "bool")
# Matrix sizes must be multiples of this for a quantised GEMM: 16 for FP8 and NVFP4, MXFP8 blocks of 32.
QUANTISED_BLOCK = {"mxfp8": 32}


def facts(
    model: ModelSpec, workload: Workload, cluster: Cluster, precision: str, columns: Columns, gpus: int = 0
) -> Facts:
    """Every word of the rules: arrays over the rows of `columns`, and single values. gpus 0 is not given."""
    words: Facts = dict(default_columns()) | {name: np.asarray(array) for name, array in columns.items()}
    for name in (*FLAGS, *ITEMS):
        words[name] = np.asarray(words[name]) != 0
    for knob in CODED:
        codes = np.asarray(words.pop(knob))
        for number, value in enumerate(KNOBS[knob].choices):
            words[CHOICES.get(knob, {}).get(value, f"{knob}_{value}")] = codes == number
    words |= _single_values(model, workload, cluster, precision, gpus)
    words["modules_given"] = reduce(np.logical_or, [words[name] for name in MODULE_COLUMNS])
    words["shards"] = words["dp"] * words["cp"]
    words["world"] = words["tp"] * words["pp"] * words["shards"]
    words["m"] = words["global_batch"] / (words["micro_batch"] * words["dp"])
    words["accounted"] = words["layers"] + words["account_embedding"] + words["account_loss"]
    words["stage_layers"] = np.ceil(words["accounted"] / (words["pp"] * words["vpp"])) * words["vpp"]
    return words


def _single_values(
    model: ModelSpec, workload: Workload, cluster: Cluster, precision: str, gpus: int
) -> Facts:
    generation = cluster.gpu.generation
    return {
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "layers": model.num_layers,
        "hidden": model.hidden,
        "ffn": model.ffn_hidden,
        "positions": model.learned_positions,
        "experts": model.moe.num_experts if model.moe else 0,
        "seq_len": workload.seq_len,
        "global_batch": workload.global_batch,
        "finetune": np.bool_(workload.task != "pretrain"),
        "domain": cluster.domain_size,
        "gpu": cluster.gpu.title,
        "gpus": gpus,
        "ampere": np.bool_(generation == "ampere"),
        "ada": np.bool_(generation == "ada"),
        "hopper": np.bool_(generation == "hopper"),
        "blackwell": np.bool_(generation.startswith("blackwell")),
        "precision": precision,
        "fp8": np.bool_(precision.startswith(("fp8", "mxfp8"))),
        "fp8_delayed": np.bool_(precision == "fp8-delayed"),
        "fp8_sc": np.bool_(precision == "fp8-sc"),
        "mxfp8": np.bool_(precision == "mxfp8"),
        "fp4": np.bool_(precision == "nvfp4"),
        "quantised": np.bool_(precision.startswith(("fp8", "mxfp8", "nvfp4"))),
        "block": QUANTISED_BLOCK.get(precision, 16),
    }


def row_facts(words: Facts, index: int) -> Facts:
    """The same words as plain numbers of one row, whole ones as int, for messages."""
    row = {name: _plain(value, index) for name, value in words.items()}
    row["layers_text"], row["layers_way_out"] = _layers_text(row)
    return row


def _plain(value: Any, index: int) -> Any:
    if isinstance(value, str):
        return value
    array: NDArray[Any] = np.asarray(value)
    number = array.reshape(-1)[index if array.size > 1 else 0].item()
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _layers_text(row: Facts) -> tuple[str, str]:
    """How many layers count in the pipeline split, and splits that divide."""
    counted = [
        word for word, flag in (("embedding", "account_embedding"), ("loss", "account_loss")) if row[flag]
    ]
    text = f"{row['layers']} layers" + "".join(f" + 1 for the {word}" for word in counted)
    chunks = row["pp"] * row["vpp"]
    ways = []
    for extra, flags in (
        (0, "without account flags"),
        (1, "--account-loss"),
        (2, "--account-embedding --account-loss"),
    ):
        if (row["layers"] + extra) % chunks == 0 and extra != len(counted):
            ways.append(flags)
    vpps = [v for v in divisors(max(row["accounted"] // row["pp"], 1)) if v > 1]
    if row["accounted"] % row["pp"] == 0 and row["pp"] > 1:
        ways.append(f"--vpp 1 or {', '.join(map(str, vpps[:6]))}" if vpps else "--vpp 1")
    ways.append(f"--pp {near(row['layers'], row['pp'])} --vpp 1")
    return text, f"Try {ways[0]}" + (f", or {ways[1]}." if len(ways) > 1 else ".")


def divisors(number: int) -> list[int]:
    """Divisors of a whole number, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def near(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted`, the smaller of two."""
    return min(divisors(max(int(number), 1)), key=lambda d: (abs(d - wanted), d))


def up(number: int, step: int) -> int:
    """The least multiple of `step` from `number` up."""
    return -(-number // step) * step


# What rules may call, in `when` and in their texts.
HELPERS: Facts = {"near": near, "up": up, "maximum": np.maximum, "minimum": np.minimum}
