"""A model from its sizes alone, as tables print them for a model that has no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.huggingface import from_hf_config
from costmodel.huggingface.values import ACTIVATIONS
from costmodel.model_file import OTHER_NAMES, from_mapping
from costmodel.model_spec import ModelSpec

# Without them there is no model.
NEEDED = ("num_layers", "hidden", "ffn_hidden", "num_heads", "vocab")
# What GPT-3 (T. Brown et al., arXiv:2005.14165) and its like have, where sizes are theirs and nothing else is said.
LIKE_GPT = {
    "gated": False,
    "activation": "gelu",
    "norm": "LayerNorm",
    "linear_bias": True,
    "qkv_bias": True,
}


def from_sizes(name: str, sizes: Mapping[str, Any]) -> ModelSpec:
    """The model of a name with these sizes: our fields, those of recipes, or a whole Hugging Face configuration.

    Where the MLP is four times as wide as the model, heads share no keys, and neither gate nor activation are said, it
    is a GPT; else gated, with RMSNorm and without biases, as Llama. ValueError in one line for what is missing.
    """
    if "architectures" in sizes or "model_type" in sizes:
        return from_hf_config(sizes, name)
    values: dict[str, Any] = {}
    for key, value in sizes.items():
        field = OTHER_NAMES.get(key, key)
        table, _, part = field.partition(".")
        if part:
            values[table] = {**values.get(table, {}), part: value}
        else:
            values[field] = value
    experts = values.get("moe")
    if "ffn_hidden" not in values and isinstance(experts, Mapping) and "expert_ffn" in experts:
        values["ffn_hidden"] = experts["expert_ffn"]
    missing = [key for key in NEEDED if key not in values]
    if missing:
        raise ValueError(f"of its sizes {', '.join(missing)} are missing. Give them in model_overrides.")
    told = values.get("activation")
    if isinstance(told, str):
        values["activation"] = ACTIVATIONS.get(told, told)
    if _is_gpt(values):
        values = LIKE_GPT | values
    return from_mapping({"name": name, "source": "its sizes in the table"} | values)


def _is_gpt(values: Mapping[str, Any]) -> bool:
    """Whether sizes are a GPT's, and nothing says otherwise."""
    hidden, wide = values["hidden"], values["ffn_hidden"]
    alike = isinstance(hidden, int) and wide == 4 * hidden and not values.get("moe")
    shares = values.get("num_kv_heads") not in (None, values["num_heads"])
    return alike and not shares and not {"gated", "activation", "norm"} & set(values)
