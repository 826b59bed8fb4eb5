"""Knobs that the what-if section of a page offers, with the values that it can compute exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.rules.message_words import divisors
from advisor.whatif.neighbours import LADDERS
from costmodel.binding import bind
from costmodel.knobs import KNOBS
from costmodel.layout import BALANCED
from costmodel.placement import segment_sizes
from costmodel.prediction import Prediction

# What is seen first; the other knobs stand under their topics.
MAIN = (
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "micro_batch",
    "global_batch",
    "seq_len",
    "precision",
    "zero_stage",
    "recompute",
    "recompute_modules",
    "recompute_num_layers",
    "sequence_parallel",
    "tp_comm_overlap",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p",
    "moe_dispatcher",
    "overlap_moe_comm",
    "cuda_graph",
)
# dp follows from the GPUs, fsdp from the ZeRO stage; the others name stages or ranks of one layout.
NOT_OFFERED = (
    "dp",
    "fsdp",
    "fsdp_shard_size",
    "encoder_tp",
    "encoder_pp",
    "first_stage_layers",
    "last_stage_layers",
    "vpp_group_size",
    "pipeline_flushes",
    "wgrad_deferral_limit",
)
# Chunks that balanced layouts take for any number of layers.
USUAL_CHUNKS = (2, 3, 4)
MOST_RANKS, MOST_CHUNKS = 64, 12
# A batch and a sequence length are halved and doubled so often.
POWERS = range(-2, 3)
LAYER_COUNTS = (0, 1, 2, 4, 8, 16)
EXPERTS = (
    "ep",
    "etp",
    *(name for name, knob in KNOBS.items() if knob.topic == KNOBS["moe_dispatcher"].topic),
)
# Items of lists that only some models have.
EXPERT_ITEMS = (
    "moe",
    "moe_act",
    "moe_router",
    "moe_preprocess",
    "shared_experts",
    "expert_fc1",
    "fused_group_mlp",
)


@dataclass(frozen=True)
class Control:
    """One knob on the page. kind: slider over `values`, switch, choice, or items of a list."""

    knob: str
    label: str
    meaning: str
    topic: str
    kind: str
    values: tuple[Any, ...]
    current: Any
    main: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the page."""
        current = list(self.current) if isinstance(self.current, tuple) else self.current
        return {
            "knob": self.knob,
            "label": self.label,
            "meaning": self.meaning,
            "topic": self.topic,
            "kind": self.kind,
            "values": list(self.values),
            "current": current,
            "main": self.main,
        }


def controls(prediction: Prediction, stack: str | None = None) -> list[dict[str, Any]]:
    """The controls of a plan's page, main ones first."""
    return [control.to_dict() for control in offered(prediction, stack)]


def offered(prediction: Prediction, stack: str | None = None) -> tuple[Control, ...]:
    """Every knob that has more than one value to choose from."""
    found = [*_knob_controls(prediction, stack), *_workload_controls(prediction)]
    first = {name: place for place, name in enumerate(MAIN)}
    return tuple(sorted(found, key=lambda control: first.get(control.knob, len(first))))


def _knob_controls(prediction: Prediction, stack: str | None) -> Iterator[Control]:
    plan, experts = prediction.plan, prediction.model.moe is not None
    for name, knob in KNOBS.items():
        if name in NOT_OFFERED or (name in EXPERTS and not experts):
            continue
        now = getattr(plan, name)
        kind = {"bool": "switch", "choice": "choice", "text": "choice", "list": "items"}.get(
            knob.kind, "slider"
        )
        values: Sequence[Any] = knob.choices
        if kind == "items":
            values = [item for item in knob.choices if item in now or _has(prediction, item)]
        elif name == "precision":
            values = [value for value in knob.choices if _binds(prediction, value, stack)]
        elif name == "pipeline_layout":
            values = list(dict.fromkeys(("", BALANCED, now)))
        elif knob.kind == "bool":
            values = (False, True)
        elif kind == "slider":
            values = sorted({now, *(v for v in _numbers(prediction, name) if knob.low <= v <= knob.high)})
        if name == "zero_stage":
            kind = "choice"
        if len(values) > 1 or (kind == "items" and values):
            label = name.replace("_", " ")
            yield Control(name, label, knob.meaning, knob.topic, kind, tuple(values), now, name in MAIN)


def _has(prediction: Prediction, item: str) -> bool:
    """Whether the model has what an item of a list knob acts on."""
    model = prediction.model
    if item in EXPERT_ITEMS:
        return model.moe is not None
    latent = model.mla is not None or model.compressed_attention is not None
    known = {"mla_up_proj": latent, "mhc": model.residual_streams > 1, "mamba": model.mamba is not None}
    return known.get(item, True)


def _numbers(prediction: Prediction, name: str) -> Sequence[float]:
    """Values worth trying of a number."""
    plan, model, cluster = prediction.plan, prediction.model, prediction.cluster
    sizes = [size for size in divisors(plan.world) if size <= MOST_RANKS]
    if name == "vpp":
        return _chunks(prediction, [size for size in sizes if size <= model.num_layers])
    return {
        "tp": sizes,
        "cp": sizes,
        "pp": [size for size in sizes if size <= model.num_layers],
        "ep": [size for size in sizes if model.moe is not None and model.moe.num_experts % size == 0],
        "etp": [size for size in sizes if size <= 8],
        "micro_batch": (1, 2, 4, 8, 16),
        "cp_a2a_size": (1, 2, 4, 8),
        "optimizer_instances": (1, 2, 4, 8),
        "recompute_num_layers": [plan.vpp * count for count in LAYER_COUNTS],
        "offload_layers": LAYER_COUNTS,
        "nvl_segment": segment_sizes(cluster.domain_size, cluster.gpus_per_node, plan.world),
    }.get(name, LADDERS.get(name, ()))


def _chunks(prediction: Prediction, stages: Sequence[int]) -> list[int]:
    """Chunks that share out the layers of some number of stages, with or without embedding and loss counted."""
    layers = prediction.model.num_layers
    counts = {
        chunks
        for pp in {*stages, prediction.plan.pp}
        for extra in (0, 1, 2)
        if pp > 1 and (layers + extra) % pp == 0
        for chunks in divisors((layers + extra) // pp)
    }
    return sorted({1, *USUAL_CHUNKS, *(count for count in counts if count <= MOST_CHUNKS)})


def _binds(prediction: Prediction, precision: str, stack: str | None) -> bool:
    try:
        bind(prediction.model, prediction.workload, prediction.cluster, precision, stack)
    except ValueError:
        return False
    return True


def _workload_controls(prediction: Prediction) -> Iterator[Control]:
    """Batch and sequence length, halved and doubled."""
    load = prediction.workload
    titles = {
        "global_batch": "sequences in one optimizer step",
        "seq_len": "tokens of one sequence",
    }
    for name, meaning in titles.items():
        now: int = getattr(load, name)
        values: list[Any] = []
        for power in POWERS:
            value = int(now * 2.0**power)
            try:
                replace(load, **{name: value})
            except ValueError:
                continue
            if value == now * 2.0**power:
                values.append(value)
        label, topic = name.replace("_", " "), KNOBS["tp"].topic
        yield Control(name, label, meaning, topic, "slider", tuple(values), now, True)
