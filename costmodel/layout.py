"""Which layers stand on which pipeline stage: even splits, Megatron's layout texts, and a balancer.

Virtual stage c x pp + s is chunk c of stage s, as in interleaved 1F1B. A layout text has a letter for
each part (E embedding, t decoder layer, m MTP head, L loss), | between virtual stages, and (..)*n and t*n
for repetition: Et*4|(t*4|)*14tmL. Source: Megatron-Core, pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from costmodel import model_spec
from costmodel.model_spec import ModelSpec
from costmodel.parameter_counts import layer_parts
from costmodel.plan import Plan
from costmodel.shared_choices import inseparable

BALANCED = "balanced"
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
LONGEST = 20_000  # letters of an expanded layout


@dataclass(frozen=True)
class Chunk:
    """Model parts of one virtual stage: blocks by kind, decoder layers, MTP heads, embedding and loss."""

    blocks: tuple[tuple[str, int], ...]
    layers: int
    mtp: int = 0
    embedding: bool = False
    loss: bool = False

    def count(self, block: str) -> int:
        """Blocks of one kind. [1]"""
        return dict(self.blocks).get(block, 0)


@dataclass(frozen=True)
class Layout:
    """chunks[stage][chunk], and the text that Megatron takes for it."""

    chunks: tuple[tuple[Chunk, ...], ...]
    text: str

    def stage_count(self, stage: int, block: str) -> int:
        """Blocks of one kind on a stage. [1]"""
        return sum(chunk.count(block) for chunk in self.chunks[stage])

    def stage_layers(self, stage: int) -> int:
        """Decoder layers of a stage. [1]"""
        return sum(chunk.layers for chunk in self.chunks[stage])


def blocks_of(model: ModelSpec, kind: str) -> tuple[str, ...]:
    """Blocks that one layer of a kind is made of."""
    latent = "dsa" if model.indexer is not None else "mla"
    mixer = latent if model.mla is not None else "csa" if model.compressed_attention else "attention"
    feed = "experts" if model.moe is not None else "mlp"
    return {
        model_spec.DENSE: (mixer, "mlp"),
        model_spec.SPARSE: (mixer, "experts"),
        model_spec.WINDOW_DENSE: ("window_attention", "mlp"),
        model_spec.WINDOW_SPARSE: ("window_attention", "experts"),
        model_spec.WINDOW_ATTENTION: ("window_attention",),
        model_spec.GATED_DELTA: ("delta", feed),
        model_spec.ATTENTION: (mixer,),
        model_spec.MLP: ("mlp",),
        model_spec.MOE: ("experts",),
        model_spec.MAMBA: ("mamba",),
    }[kind]


def total_blocks(model: ModelSpec) -> Counter[str]:
    """Blocks of the whole model by kind, those of MTP heads included."""
    counts: Counter[str] = Counter()
    for kind in (*model.layer_kinds(), *model.mtp_layer_kinds() * model.mtp_layers):
        counts.update(blocks_of(model, kind))
    return counts


def mtp_blocks(model: ModelSpec) -> Counter[str]:
    """Blocks of one MTP head by kind."""
    counts: Counter[str] = Counter()
    if model.mtp_layers:
        for kind in model.mtp_layer_kinds():
            counts.update(blocks_of(model, kind))
    return counts


def even_chunks(
    num_layers: int, pp: int, vpp: int, account_embedding: bool = False, account_loss: bool = False
) -> list[int] | None:
    """Layers of each virtual stage where they divide, else None. Source: get_num_layers_to_build."""
    per_chunk, rest = divmod(num_layers + account_embedding + account_loss, pp * vpp)
    if rest or pp * vpp == 1:
        return None if rest else [num_layers]
    sizes = [per_chunk] * (pp * vpp)
    sizes[0] -= account_embedding
    sizes[-1] -= account_loss
    return sizes if min(sizes) >= 0 else None


def edge_chunks(num_layers: int, pp: int, vpp: int, first: int, last: int) -> list[int] | None:
    """Layers of each virtual stage when first or last stage have their own number; None if they do not divide."""
    stages: list[int | None] = [first or None] + [None] * (pp - 2) + [last or None] if pp > 1 else [None]
    free = stages.count(None)
    rest = num_layers - first - last
    if rest < 0 or (free and rest % free) or (not free and rest):
        return None
    sizes = [rest // free if size is None else size for size in stages]
    if any(size % vpp for size in sizes):
        return None
    return [sizes[stage] // vpp for _ in range(vpp) for stage in range(pp)]


def expand(text: str) -> list[str]:
    """Letters of each virtual stage of a layout text. ValueError in one line when it is not one."""
    text = text.strip()
    if text.startswith("["):
        text = _from_lists(text)
    flat = text.replace(" ", "")
    while match := re.search(r"\(([^()]*)\)\*(\d+)|([A-Za-z])\*(\d+)", flat):
        part, times = (match[1], match[2]) if match[2] else (match[3], match[4])
        if len(flat) + len(part) * int(times) > LONGEST:
            raise ValueError(f"pipeline_layout {text!r:.60} is longer than {LONGEST} parts. Shorten it.")
        flat = flat[: match.start()] + part * int(times) + flat[match.end() :]
    if not flat or set(flat) - set("EtmL|"):
        raise ValueError(
            f"pipeline_layout {text!r:.60} is not a layout: letters E t m L, | between stages, (..)*n and t*n. "
            "Try balanced, or Et*4|(t*4|)*14t*3L."
        )
    return flat.split("|")


def _from_lists(text: str) -> str:
    try:
        stages = json.loads(text)
        return "|".join("".join(LETTERS[part] for part in stage) for stage in stages)
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"pipeline_layout {text!r:.60} is not a list of lists of {', '.join(LETTERS)}."
        ) from None


def block_weights(model: ModelSpec, seq_len: int) -> dict[str, float]:
    """Work of one block of each kind for the balancer: weights that a token meets, and its share of attention. [1]"""
    cores = dict.fromkeys(("attention", "mla", "dsa"), model.num_heads * model.head_dim * seq_len / 2)
    if model.windows_apart and model.sliding_window is not None:
        own = model.window_heads
        keys = min(model.sliding_window.window, seq_len / 2)
        cores["window_attention"] = own.num_heads * own.head_dim * keys
    met = _parameters_by_block(model, of_a_token=True)
    return {name: number + cores.get(name, 0) for name, number in met.items()}


@lru_cache(maxsize=64)
def block_parameters(model: ModelSpec) -> dict[str, float]:
    """Parameters of one block of each kind, all experts counted. [1]"""
    return _parameters_by_block(model, of_a_token=False)


def _parameters_by_block(model: ModelSpec, *, of_a_token: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind in {*model.layer_kinds(), *model.mtp_layer_kinds()}:
        parts = dict(layer_parts(model, kind))
        if of_a_token and "experts" in parts and model.moe is not None:
            parts["experts"] = parts["experts"] * model.moe.topk // model.moe.num_experts
        mixer = parts.pop("attention", 0) + parts.pop(kind, 0)
        for name in blocks_of(model, kind):
            found[name] = sum(parts.values()) if name in ("mlp", "experts") else mixer
    return found


def layer_weight(model: ModelSpec, kind: str, seq_len: int) -> float:
    """Work of one layer in the balancer's units. [1]"""
    weights = block_weights(model, seq_len)
    return sum(weights[name] for name in blocks_of(model, kind))


def balance(weights: Sequence[float], bins: int, pp: int) -> list[int]:
    """Parts of each virtual stage, contiguous, so that the heaviest *stage* is as light as can be. [1]

    The heaviest chunk is minimised exactly (binary search over its weight, greedy filling from either end);
    beside that stand the splits of nearly equal counts, which can be better for stages of several chunks. Where one
    part is the heaviest stage, such as the loss of a model with light layers, filling leaves stages empty: of splits
    that are as good, the most even ones among them, that of the most even chunks is taken. Most even ones that would be
    better by weight are not: weights are FLOPs, of which the loss has more than of the time beside experts.
    Source: the linear partition problem.
    """
    low, high = max(weights), sum(weights)
    for _ in range(60):
        middle = (low + high) / 2
        if len(_fill(weights, middle)) <= bins:
            high = middle
        else:
            low = middle
    options = []
    for order in (1, -1):
        sizes = _fill(weights[::order], high * (1 + 1e-9))
        options.append(([*sizes, *[0] * (bins - len(sizes))])[::order])
    each, rest = divmod(len(weights), bins)
    options.append([each + (index < rest) for index in range(bins)])
    options.append([each + (index >= bins - rest) for index in range(bins)])
    least = min(max(_loads(weights, sizes, pp)) for sizes in options)
    options.append(_over_chunks(_even(weights, pp), bins // pp))
    if bins > pp:
        options.append(_even(weights, bins))
    as_good = [sizes for sizes in options if abs(max(_loads(weights, sizes, pp)) / least - 1) < 1e-6]
    return min(as_good, key=lambda sizes: sum(load**2 for load in _loads(weights, sizes, bins)))


def _over_chunks(sizes: Sequence[int], vpp: int) -> list[int]:
    """Parts of each virtual stage where the stages have so many, of which later chunks take what is over. [1]"""
    return [size // vpp + (chunk >= vpp - size % vpp) for chunk in range(vpp) for size in sizes]


def _even(weights: Sequence[float], bins: int) -> list[int]:
    """Parts of each bin, contiguous, so that the squares of the bins' weights add up to least. [1]"""
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    filled = ends[:, None] - ends
    squares = np.where(filled >= 0, filled, np.inf) ** 2
    best, begins, places = squares[:, 0], [], np.arange(len(ends))
    for _ in range(bins - 1):
        sums = squares + best
        begin = sums.argmin(axis=1)
        begins.append(begin)
        best = sums[places, begin]
    edges = [len(weights)]
    for begin in reversed(begins):
        edges.append(int(begin[edges[-1]]))
    edges.append(0)
    return [last - first for last, first in pairwise(edges)][::-1]


def _fill(weights: Sequence[float], limit: float) -> list[int]:
    sizes, load = [0], 0.0
    for weight in weights:
        if sizes[-1] and load + weight > limit:
            sizes.append(0)
            load = 0.0
        sizes[-1] += 1
        load += weight
    return sizes


def _loads(weights: Sequence[float], sizes: Sequence[int], pp: int) -> list[float]:
    """Weight on each of pp stages, all its chunks together. [1]"""
    loads = [0.0] * pp
    start = 0
    for index, size in enumerate(sizes):
        loads[index % pp] += sum(weights[start : start + size])
        start += size
    return loads


@lru_cache(maxsize=1024)
def balanced_stages(model: ModelSpec, pp: int, vpp: int, seq_len: int) -> tuple[str, ...]:
    """Letters of each virtual stage as the balancer places them: layers, MTP heads and loss by their work."""
    kinds = model.layer_kinds()
    loss = float(model.vocab * model.hidden)
    work = {kind: layer_weight(model, kind, seq_len) for kind in {*kinds, *model.mtp_layer_kinds()}}
    mtp = sum(work[kind] for kind in model.mtp_layer_kinds())
    mtp += loss + 2 * model.hidden**2
    groups = inseparable(model)
    letters = ["t" * size for size in groups] + ["m"] * model.mtp_layers + ["L"]
    ends = np.cumsum([0, *groups])
    layers = [sum(work[kind] for kind in kinds[start:end]) for start, end in pairwise(ends)]
    weights = layers + [mtp] * model.mtp_layers + [loss]
    sizes = balance(weights, pp * vpp, pp)
    stages, start = [], 0
    for size in sizes:
        stages.append("".join(letters[start : start + size]))
        start += size
    if "L" not in stages[-1]:  # the loss must stand on the last virtual stage
        stages = [stage.replace("L", "") for stage in stages]
        stages[-1] += "L"
    stages = _heads_together(stages, pp, vpp)
    return ("E" + stages[0], *stages[1:])


def _heads_together(stages: list[str], pp: int, vpp: int) -> list[str]:
    """MTP heads where Megatron-Core takes them: on one virtual stage, the last of its rank, and not of the first rank.

    Source: pipeline_parallel_layer_layout.py, validate_layer_layout.
    """
    holders = [index for index, stage in enumerate(stages) if "m" in stage]
    if not holders:
        return stages
    first_allowed = pp * (vpp - 1) + (pp > 1)
    place = max(holders[-1], first_allowed)
    heads = "m" * sum(stage.count("m") for stage in stages)
    bare = [stage.replace("m", "") for stage in stages]
    loss = "L" if "L" in bare[place] else ""
    bare[place] = bare[place].replace("L", "") + heads + loss
    return bare


@lru_cache(maxsize=4096)
def plan_layout(
    model: ModelSpec,
    pp: int,
    vpp: int,
    *,
    account_embedding: bool = False,
    account_loss: bool = False,
    text: str = "",
    first: int = 0,
    last: int = 0,
    seq_len: int = 4096,
) -> Layout:
    """The layout of a plan. Where an even split does not divide, the balancer's stands for it.

    Raises ValueError in one line when a text does not fit the model or the stages.
    """
    if text and text != BALANCED:
        stages = expand(text)
        if len(stages) != pp * vpp:
            raise ValueError(
                f"pipeline_layout has {len(stages)} virtual stages for pp x vpp = {pp} x {vpp} = {pp * vpp}. "
                "Give as many, or try balanced."
            )
        found = sum(stage.count("t") for stage in stages)
        if found != model.num_layers:
            raise ValueError(
                f"pipeline_layout places {found} decoder layers, {model.name} has {model.num_layers}. "
                "Correct it, or try balanced."
            )
    else:
        sizes = None
        if text != BALANCED:
            sizes = (
                edge_chunks(model.num_layers, pp, vpp, first, last)
                if first or last
                else even_chunks(model.num_layers, pp, vpp, account_embedding, account_loss)
            )
        if sizes is None:
            stages = list(balanced_stages(model, pp, vpp, seq_len))
        else:
            stages = ["t" * size for size in sizes]
            stages[0] = "E" + stages[0]
            stages[-1] += "m" * model.mtp_layers + "L"
    return _layout(model, pp, tuple(stages))


def layout_of(plan: Plan, model: ModelSpec, seq_len: int) -> Layout:
    """The layout of a plan on sequences of `seq_len` tokens. ValueError as `plan_layout`."""
    return plan_layout(
        model,
        plan.pp,
        plan.vpp,
        account_embedding=plan.account_embedding,
        account_loss=plan.account_loss,
        text=plan.pipeline_layout,
        first=plan.first_stage_layers,
        last=plan.last_stage_layers,
        seq_len=seq_len,
    )


def most_layers(plan: Plan, model: ModelSpec, seq_len: int = 4096) -> int:
    """Decoder layers of the virtual stage with most of them. [1] ValueError as `plan_layout`."""
    return max(chunk.layers for stage in layout_of(plan, model, seq_len).chunks for chunk in stage)


@lru_cache(maxsize=4096)
def _layout(model: ModelSpec, pp: int, stages: tuple[str, ...]) -> Layout:
    """The layout of these virtual stages: the same of many sequence lengths and ways to count the layers."""
    kinds = model.layer_kinds()
    inside_mtp = model.mtp_layer_kinds()
    chunks: list[list[Chunk]] = [[] for _ in range(pp)]
    start = 0
    for index, letters in enumerate(stages):
        size = letters.count("t")
        blocks: Counter[str] = Counter()
        for kind in kinds[start : start + size]:
            blocks.update(blocks_of(model, kind))
        start += size
        heads = min(letters.count("m"), model.mtp_layers)
        for kind in inside_mtp * heads:
            blocks.update(blocks_of(model, kind))
        chunk = Chunk(tuple(sorted(blocks.items())), size, heads, "E" in letters, "L" in letters)
        chunks[index % pp].append(chunk)
    return Layout(tuple(map(tuple, chunks)), "|".join(map(_short, stages)))


def _short(letters: str) -> str:
    """Ettttm as Et*4m."""
    return re.sub(r"t{2,}", lambda match: f"t*{len(match[0])}", letters)
