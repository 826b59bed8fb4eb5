"""Knobs read back in the light of their model: what a framework says only because the model leaves no choice."""

from __future__ import annotations

from typing import Any

from costmodel.fusions import activation_has_kernel
from costmodel.knobs import SETTINGS
from costmodel.layout import most_layers
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from executor.megatron_args import fuses_activation, fuses_residual
from executor.megatron_model import model_fields


def of_model(knobs: dict[str, Any], model: ModelSpec) -> dict[str, Any]:
    """The knobs of a plan of `model`, without what follows from the model."""
    return _without_settings(_without_kernels(whole_recompute(knobs, model), model), model)


# Knobs that say which layers stand on which virtual stage.
OF_LAYOUT = ("pp", "vpp", "pipeline_layout", "first_stage_layers", "last_stage_layers")
OF_LAYOUT += ("account_embedding", "account_loss")


def whole_recompute(knobs: dict[str, Any], model: ModelSpec) -> dict[str, Any]:
    """Full recompute of as many layers as the fullest stage has is recompute of all."""
    if knobs.get("recompute") != "full" or not knobs.get("recompute_num_layers"):
        return knobs
    try:
        plan = Plan(**{name: knobs[name] for name in OF_LAYOUT if name in knobs})
        whole = most_layers(plan, model) * plan.vpp
    except ValueError:  # sizes or a layout that do not fit are told when the plan is made
        return knobs
    return knobs | {"recompute_num_layers": 0} if knobs["recompute_num_layers"] >= whole else knobs


def _without_kernels(knobs: dict[str, Any], model: ModelSpec) -> dict[str, Any]:
    """Fusions that are off because the model has no such kernel are not asked to be off.

    But for activations that none is for, where the search takes it off, and a rule asks for that.
    """
    plan = Plan(moe_grouped_gemm=knobs.get("moe_grouped_gemm", Plan().moe_grouped_gemm))
    has = {
        "bias_activation_fusion": fuses_activation(plan, model),
        "bias_dropout_fusion": fuses_residual(plan, model),
    }
    kept = {name: value for name, value in knobs.items() if has.get(name, True)}
    if activation_has_kernel(model):
        return kept
    return kept | {"bias_activation_fusion": knobs.get("bias_activation_fusion") is True}


def _without_settings(knobs: dict[str, Any], model: ModelSpec) -> dict[str, Any]:
    """Settings that only repeat what the model has anyway are none of the plan's."""
    own = model_fields(model)
    kept = {
        name: value
        for name, value in knobs.get("settings", {}).items()
        if own.get(SETTINGS[name].mcore.rpartition(".")[2]) != value
    }
    others = {name: value for name, value in knobs.items() if name != "settings"}
    return others | ({"settings": kept} if kept else {})
