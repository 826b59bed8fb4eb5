"""What a plan carries beside Megatron-Core's fields: its values for a target, and a note for what finds no place."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from costmodel.graph_parts import captured_parts
from costmodel.knobs import SETTINGS
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan

# Knobs of each overlapped tensor-parallel GEMM, which targets take in a file or table of their own.
OVERLAP_KNOBS = ("tp_overlap_splits", "tp_overlap_sms", "tp_overlap_cga")
OVERLAP_SETTING = "tp_overlap_fp8_buf"


def own_overlap(plan: Plan) -> dict[str, Any]:
    """Knobs of the overlapped GEMMs that are not at their usual value, by name; none without overlap."""
    if not plan.tp_comm_overlap:
        return {}
    usual = Plan()
    found = {
        name: getattr(plan, name) for name in OVERLAP_KNOBS if getattr(plan, name) != getattr(usual, name)
    }
    if dict(plan.settings).get(OVERLAP_SETTING):
        found[OVERLAP_SETTING] = True
    return found


def overlap_note(plan: Plan, place: str) -> Iterator[str]:
    """A note that the target takes the overlapped GEMMs' own knobs in `place`, which no export writes."""
    found = own_overlap(plan)
    if found:
        said = ", ".join(f"{name}={value}" for name, value in found.items())
        yield f"{said}: set in {place}; without one Transformer Engine's defaults hold"


def graph_word(plan: Plan, model: ModelSpec) -> str:
    """What CUDA graphs capture, for releases that take one word: experts without fixed shapes stay out of full."""
    parts = captured_parts(plan, model)
    if len(parts) == 1:
        return parts[0]
    return "attn" if model.moe is not None and "moe" not in parts and "attn" in parts else "full"


def graph_word_note(plan: Plan, model: ModelSpec, release: str) -> Iterator[str]:
    """A note where one word cannot say the parts that CUDA graphs capture."""
    parts = captured_parts(plan, model)
    if plan.cuda_graph and len(parts) > 1:
        word = graph_word(plan, model)
        yield f"cuda_graph_scope {'+'.join(parts)}: {release} takes one word, so {word}"


def refuse_hybrid_stages(
    plan: Plan, model: ModelSpec, release: str, instead: str = "--to megatron-lm"
) -> None:
    """ValueError where a model with Mamba layers has stages that its class cannot be told: it splits evenly.

    Source: Megatron-Bridge 0.6.2, models/hybrid/hybrid_provider.py; Megatron-Core 0.16.1, ssm/mamba_block.py.
    """
    if not model.layer_pattern or plan.pp == 1:
        return
    asked = {
        f"--vpp {plan.vpp}": plan.vpp > 1,
        f"--pipeline-layout {plan.pipeline_layout}": plan.pipeline_layout,
        "--account-embedding": plan.account_embedding,
        "--account-loss": plan.account_loss,
    }
    if named := [flag for flag, said in asked.items() if said]:
        raise ValueError(
            f"{', '.join(named)}: {release} splits the Mamba and other layers of {model.name} evenly over stages, one "
            f"chunk each. Leave it out, or try {instead}."
        )


def setting_value(name: str, value: Any) -> Any:
    """A setting as targets take it: ranks separated by commas are a list of numbers."""
    if name != "profile_ranks":
        return value
    words = str(value).replace(",", " ").split()
    if not words or not all(word.isdigit() for word in words):
        raise ValueError(f"profile_ranks {value!r} are not ranks. Try --set profile_ranks=0,1.")
    return [int(word) for word in words]


def setting_notes(plan: Plan, target: str, title: str, said: Collection[str]) -> Iterator[str]:
    """A line for each setting that is neither in `said`, nor a field of Megatron-Core, nor a variable.

    target: field of the catalogue with the target's names. title: the target with its release.
    """
    for name, value in plan.settings:
        record = SETTINGS[name]
        if name in said or name == OVERLAP_SETTING or record.mcore or record.env or value == record.default:
            continue
        words = getattr(record, target)
        known = f"it as {words}, set outside this export" if words else "no such name"
        yield f"{name}={value}: {title} has {known}, left out"
