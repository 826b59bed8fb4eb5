"""Parallel sizes, virtual stages and layers of each stage of a published row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.measurements.experts import exchanges_tokens
from advisor.measurements.habits import row_release
from advisor.measurements.rows import Row
from costmodel.layout import BALANCED, even_chunks, expand
from costmodel.model_spec import ModelSpec

# Chunks of each rank in a looped schedule of torchtitan where none are stated. Source: torchtitan, pipeline_parallel.py
INTERLEAVED_CHUNKS = 2


def parallel_sizes(
    row: Row, habit: Mapping[str, Any], model: ModelSpec, gpus: int, assumed: list[str]
) -> dict[str, int]:
    """tp, pp, cp, vpp, ep, etp and dp of a row. assumed: takes what it does not say.

    ValueError where they do not divide the GPUs.
    """
    tp, pp, cp, vpp, ep = (row.count(name) for name in ("tp", "pp", "cp", "vp", "ep"))
    if pp == 1:
        vpp = 1
    elif not row.text("vp"):
        vpp = _virtual_stages(row, habit, model, pp, assumed)
    if gpus % (tp * pp * cp):
        raise ValueError(f"{gpus} GPUs are not a multiple of tp x pp x cp = {tp * pp * cp}")
    etp = row.count("etp")
    if model.moe is not None and ep == 1 < gpus and exchanges_tokens(row, habit):
        spread = gpus // (pp * etp)
        ep = next(
            size
            for size in range(max(spread, 1), 0, -1)
            if not spread % size and not model.moe.num_experts % size
        )
        assumed.append(f"its dispatcher exchanges tokens, so that experts are spread: expert parallel {ep}")
    if model.moe is None:
        ep = etp = 1
    elif row.text("etp") or tp == 1 or gpus % (pp * ep * tp) or habit.get("plain_experts"):
        pass
    elif ep > 1 and _whole_experts(row, habit):
        assumed.append("expert tensor parallel size not stated: 1, as in nearly all runs that state it")
    elif model.linear_bias:
        assumed.append("expert tensor parallel size not stated: 1, for experts with a bias allow no other")
    else:
        etp = tp
        assumed.append(f"expert tensor parallel size not stated: tp = {tp}, Megatron-Core's default")
    if gpus % (pp * ep * etp):
        raise ValueError(f"{gpus} GPUs are not a multiple of pp x ep x etp = {pp * ep * etp}")
    return {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "etp": etp, "dp": gpus // (tp * pp * cp)}


def _whole_experts(row: Row, habit: Mapping[str, Any]) -> bool:
    """Whether its software had an expert tensor parallel size of its own by then, which nearly all then set to 1."""
    since = habit.get("whole_experts_from", "")
    return bool(since) and (row_release(row, habit) or since) >= since


def _virtual_stages(row: Row, habit: Mapping[str, Any], model: ModelSpec, pp: int, assumed: list[str]) -> int:
    """Virtual stages where the table has none: as its notes or its recipe know them, else as the source's habit is."""
    if "Interleaved" in str(row.json("other_flags").get("schedule", "")):
        assumed.append(
            f"chunks of its interleaved schedule not stated: {INTERLEAVED_CHUNKS} for each rank, torchtitan's default"
        )
        return INTERLEAVED_CHUNKS
    launcher = re.search(
        rf"per launcher conf \(.*?\b{re.escape(row.text('model'))} VP(\d+)\b(?! in later)", row.text("notes")
    )
    recipe = re.search(r"\bvp row=1 recipe=(\d+)", row.text("recipe_match"))
    for found, whose in ((launcher, "the launcher's configuration"), (recipe, "its recipe")):
        if found and model.num_layers % (pp * int(found[1])) == 0:
            assumed.append(f"virtual stages of {whose}: {found[1]}")
            return int(found[1])
    stages: int = habit.get("vpp", 1)
    return stages or (1 if model.num_layers % pp else model.num_layers // pp)


def _printed_stages(text: str) -> list[str]:
    """Letters of each virtual stage of a printed layout, also as Python prints lists; none where it is no layout."""
    try:
        return expand(text.replace("'", '"') if text.startswith("[") else text)
    except ValueError:
        return []


def stage_layout(row: Row, model: ModelSpec, sizes: Mapping[str, int], assumed: list[str]) -> dict[str, Any]:
    """Layers of each stage: as printed, by the accounting flags where they divide, else balanced."""
    pp, vpp = sizes["pp"], sizes["vpp"]
    if pp == 1:
        return {}
    text = row.text("pp_layout")
    if text:
        stages = _printed_stages(text)
        placed = sum(stage.count("t") for stage in stages)
        if len(stages) % pp == 0 and len(stages) == pp * vpp and placed == model.num_layers:
            return {"pipeline_layout": "|".join(stages)}
        what = f"has {len(stages)} stages of {placed} layers" if stages else f"{text!r:.60} is not read"
        assumed.append(f"the printed layout {what}: balanced instead")
        return {"pipeline_layout": BALANCED}
    first, last = row.count("first_stage_layers", 0), row.count("last_stage_layers", 0)
    if first or last:
        return {"first_stage_layers": first, "last_stage_layers": last}
    flags = row.json("other_flags")
    stated = [bool(flags.get(f"account_for_{part}_in_pipeline_split")) for part in ("embedding", "loss")]
    for embedding, loss in (tuple(stated), (False, False), (True, True), (False, True)):
        if even_chunks(model.num_layers, pp, vpp, embedding, loss) is not None:
            if (embedding, loss) != (False, False) and not any(stated):
                assumed.append(
                    f"{model.num_layers} layers do not divide over {pp * vpp} chunks: embedding and loss count"
                )
            return {"account_embedding": embedding, "account_loss": loss}
    assumed.append(f"{model.num_layers} layers do not divide over {pp * vpp} chunks: balanced")
    return {"pipeline_layout": BALANCED}
