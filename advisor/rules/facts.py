"""The words in which rules are written: knobs, model, workload and cluster as arrays over plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from advisor.rules.layouts import layout_layers, layout_problems
from advisor.rules.message_words import layers_text, near, pipeline_ways, size_ways, up
from advisor.rules.model_words import cluster_words, model_words, workload_words
from advisor.rules.predicted_words import UNPREDICTED
from advisor.rules.setting_words import setting_words
from costmodel.columns import CODED, ITEMS, MODULE_COLUMNS, Columns, default_columns
from costmodel.knobs import KNOBS
from costmodel.model_spec import ModelSpec
from costmodel.placement import used_domain
from costmodel.plan import sharding_instances
from costmodel.stage_inputs import distinct
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
# Words that follow from those of the machine.
FROM_MACHINE = ("used", "aligned")
FLAGS = tuple(name for name, knob in KNOBS.items() if knob.kind == "bool")


def facts(
    model: ModelSpec,
    workload: Workload,
    cluster: Cluster,
    precision: str,
    columns: Columns,
    gpus: int = 0,
    settings: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
) -> Facts:
    """Every word of the rules: arrays over the rows of `columns`, and single values.

    gpus: GPUs there are, 0 when not said. settings: of the plan, or pinned for a whole search.
    """
    given = default_columns() | dict(columns)
    fixed = model_words(model) | workload_words(workload) | cluster_words(cluster, precision, gpus)
    fixed |= setting_words(settings)
    words = knob_words({name: np.asarray(array) for name, array in given.items()}, fixed)
    words |= _domains(words)
    words["layout_problem"] = layout_problems(model, words)
    words["layout_layers"] = layout_layers(model, words)
    return words


def knob_words(columns: Mapping[str, Any], fixed: Mapping[str, Any]) -> Facts:
    """The words that follow from all columns and the `fixed` words of the setting, without rank arithmetic.

    NumPy's operators and functions alone, so that `costmodel.javascript.columns` can write them down too.
    """
    words: Facts = dict(columns)
    for name in (*FLAGS, *ITEMS):
        words[name] = words[name] != 0
    for knob in CODED:
        codes = words.pop(knob)
        for number, value in enumerate(KNOBS[knob].choices):
            words[CHOICES.get(knob, {}).get(value, f"{knob}_{value}")] = codes == number
    words |= fixed
    words |= dict(UNPREDICTED)  # known of a predicted plan alone, see `violations`
    return following_words(words)


def following_words(words: Facts) -> Facts:
    """The words with those that follow from the others: once all are known, and again where some have changed."""
    words = words | _sizes(words)
    words |= _stages(words)
    return words | _memory_and_graphs(words)


def _sizes(w: Facts) -> Facts:
    """Ranks, batches and tokens that follow from the parallel sizes."""
    shards = w["dp"] * w["cp"]
    mesh = w["tp"] * shards
    encoder = shards * np.where(w["encoder_tp"] > 0, w["encoder_tp"], w["tp"]) * w["encoder_pp"]
    instances = sharding_instances(shards, w["fsdp"], w["fsdp_shard_size"], w["optimizer_instances"])
    tokens = w["micro_batch"] * w["seq_len"] / (w["cp"] * np.where(w["sequence_parallel"], w["tp"], 1))
    experts = w["ep"] * w["etp"]
    outside, inside = w["parameters_outside"] / w["tp"], w["parameters_inside"] / experts
    each = (
        np.where(w["fp32"], 4.0, np.where(w["fp8_param_gather"] & w["quantised"], 1.0, 2.0)) / w["pp"] / 2**30
    )
    sharded = outside / shards + inside / np.maximum(mesh / experts, 1.0)
    return {
        # Weights of a rank in whole GiB, stages alike: before data parallel ranks shard them, and with the shards.
        "base_gib": np.ceil(each * (outside + inside)),
        "wrapped_gib": np.ceil(each * (outside + inside + sharded)),
        "shards": shards,
        "instances": instances,
        "mesh": mesh,
        "encoder_gpus": encoder,
        "world": mesh * w["pp"] + encoder,
        "edp": mesh / (w["ep"] * w["etp"]),
        # Without it there is no number of micro-batches to judge.
        "batch_divides": w["global_batch"] % (w["micro_batch"] * w["dp"]) == 0,
        "m": w["global_batch"] / (w["micro_batch"] * w["dp"]),
        # Micro-batches of one pass of the pipeline.
        "passes": w["global_batch"] / (w["micro_batch"] * w["dp"] * w["pipeline_flushes"]),
        "tokens": tokens,
        "tokens_per_expert": tokens * w["topk"] * w["ep"] * w["etp"] / max(w["experts"], 1),
    }


def _domains(w: Facts) -> Facts:
    """GPUs of each scale-up domain that the job uses, and that a job larger than one uses without a wish."""
    combinations, where = distinct([w["nvl_segment"], w["world"]])
    domain = int(w["domain"])
    found = [used_domain(domain, int(world), int(segment)) for segment, world in combinations.T]
    return {"used": np.array(found)[where], "aligned": used_domain(domain, domain + 1)}


def _stages(w: Facts) -> Facts:
    """How the layers are shared out: evenly, with own numbers on the ends, or as a layout says."""
    first, last, pp = w["first_stage_layers"], w["last_stage_layers"], w["pp"]
    accounted = w["layers"] + w["account_embedding"] + w["account_loss"]
    free = pp - (first > 0) - (last > 0)
    uneven = (first > 0) | (last > 0)
    layout = w["pipeline_layout"] > 0
    middle = (w["layers"] - first - last) / np.maximum(free, 1)
    evenly = np.ceil(accounted / (pp * w["vpp"])) * w["vpp"]
    unevenly = np.maximum(np.maximum(first, last), middle * (free > 0))
    return {
        "layout": layout,
        "uneven": uneven,
        "even": ~layout & ~uneven,
        "free_stages": free,
        "middle_layers": middle,
        "group": np.where(w["vpp_group_size"] > 0, w["vpp_group_size"], pp),
        "accounted": accounted,
        "choice_parted": _choice_parted(w, accounted, np.where(first > 0, first, middle), middle, uneven),
        # Of the fullest stage; a layout's are `layout_layers`.
        "stage_layers": np.where(layout, 0.0, np.where(uneven, unevenly, evenly)),
    }


def _choice_parted(w: Facts, accounted: Any, first: Any, middle: Any, uneven: Any) -> Any:
    """Whether a stage without a layout of its own begins behind the layer whose choice of tokens it shares.

    Stages begin after so many layers: `first`, then every `middle` ones. See `costmodel.shared_choices`, which takes
    the splits one by one.
    """
    interval, chunks = w["index_interval"], w["pp"] * w["vpp"]
    each = np.where(uneven, middle / w["vpp"], accounted / chunks)
    begins = np.where(uneven, first / w["vpp"], each - w["account_embedding"])
    later = begins + np.maximum(chunks - 2, 0) * each
    apart = ((later + 1 - w["index_offset"]) % interval != 0) | ((chunks > 2) & (each % interval != 0))
    return (interval > 1) & (chunks > 1) & apart & (w["pipeline_layout"] == 0)


def _memory_and_graphs(w: Facts) -> Facts:
    """Which lists say anything, and what CUDA graphs capture."""
    scope = _any(w, [name for name in ITEMS if name.startswith("graph_")])
    layer_graph, dense = w["cuda_graph"] & ~w["graph_full_iteration"], w["experts"] == 0
    padded = (w["moe_capacity_factor"] > 0) & w["moe_pad_expert_input_to_capacity"]
    uncut = ~scope & ~w["overlap_moe_comm"]
    return {
        "modules_given": _any(w, MODULE_COLUMNS),
        "modules_beside_attention": _any(
            w, [name for name in MODULE_COLUMNS if name != "recompute_core_attn"]
        ),
        "offload_given": _any(w, [name for name, (knob, _) in ITEMS.items() if knob == "offload_modules"]),
        "scope_given": scope,
        "whole_graph": w["cuda_graph"] & w["graph_full_iteration"],
        "layer_graph": layer_graph,
        # Without a scope every layer is captured whole, of experts what has fixed shapes: see `captured_parts`.
        "attn_graph": layer_graph & (w["graph_attn"] | ~scope),
        "mlp_graph": layer_graph & (w["graph_mlp"] | (uncut & (w["mlps"] | dense))),
        "moe_graph": layer_graph & (w["graph_moe"] | (uncut & (padded | dense))),
    }


def _any(words: Facts, names: Iterable[str]) -> Any:
    return reduce(np.logical_or, [words[name] for name in names])


@dataclass(frozen=True)
class PlanWords:
    """The words of one plan, row `index` of those of many; each form of them is read once."""

    words: Facts
    index: int = 0

    @cached_property
    def plain(self) -> Facts:
        """For messages: see `row_facts`."""
        return row_facts(self.single)

    @cached_property
    def single(self) -> Facts:
        """For conditions: see `row_words`."""
        return row_words(self.words, self.index)


def row_facts(single: Facts) -> Facts:
    """The words of one row, see `row_words`, as plain numbers, whole ones as int, for messages."""
    row = {name: _plain(value) for name, value in single.items()}
    row["layers_text"], row["layers_chunks"] = layers_text(row)
    return row | size_ways(row) | pipeline_ways(row)


def row_words(words: Facts, index: int) -> Facts:
    """The same words as NumPy's single values of one row, for conditions."""
    return {name: _single(value, index) for name, value in words.items()}


def _single(value: Any, index: int) -> Any:
    if isinstance(value, str | np.generic):
        return value
    array: NDArray[Any] = np.asarray(value)
    return array.reshape(-1)[index if array.size > 1 else 0]


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    number = value.item()
    return int(number) if isinstance(number, float) and number.is_integer() else number


# What rules may call, in `when` and in their texts.
HELPERS: Facts = {"near": near, "up": up, "maximum": np.maximum, "minimum": np.minimum, "str": str}
