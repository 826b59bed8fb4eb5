"""Values out of a Hugging Face `config.json`: every one checked, every error one line that names its key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.model_checks import largest_count
from costmodel.model_file import split_heads

Config = dict[str, Any]

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
}

EPSILONS = (
    "rms_norm_eps",
    "norm_eps",
    "norm_epsilon",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
)
ROTARY_BASES = ("rope_theta", "rotary_emb_base")
ROTARY_SHARES = ("partial_rotary_factor", "rotary_pct")
# Keys whose largest value is that of a field of ours, not the general one.
_COUNTS_OF_OWN = {"num_hidden_layers": "num_layers", "n_layer": "num_layers", "vocab_size": "vocab"}


def count(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"{key} is missing. Give it in the file.")
    largest = largest_count(_COUNTS_OF_OWN.get(key, ""))
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
        raise ValueError(
            f"{key} {shown(value)} is not a whole number from 1 to {largest}. Correct it in the file."
        )
    return value


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def count_or_zero(config: Config, key: str) -> int:
    value = config.get(key)
    return 0 if value is None or (value == 0 and isinstance(value, int)) else count(config, key)


def number(config: Config, keys: Sequence[str], default: float | None = None) -> float | None:
    """The first of some keys that the file has."""
    key = next((key for key in keys if config.get(key) is not None), None)
    value = default if key is None else config[key]
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf
    ):
        raise ValueError(f"{key} {shown(value)} is not a number from 0 on. Correct it in the file.")
    return value


def renamed(config: Config, names: Mapping[str, str]) -> Config:
    """The configuration with keys also under the names that classes use now: old name to new. The new one wins."""
    return {new: config[old] for old, new in names.items() if old in config} | config


def expect(config: Config, values: Mapping[str, Any]) -> None:
    """ValueError where a key is set to another value than the one that its class's layers are told with here."""
    for key, value in values.items():
        if config.get(key) is not None and config[key] != value:
            usual = "without it" if value is None else f"with {json.dumps(value)}"
            raise ValueError(
                f"{key} {shown(config[key])} is not supported: the layers of this class are told {usual}. "
                "Write the model as a TOML."
            )


def norm_epsilon(config: Config) -> float | None:
    """What norms add to the variance, under the names of the classes. [1]"""
    return number(config, EPSILONS)


def rotary(config: Config) -> Config:
    """Base and share of rotary positions; no base where the file has several, or one that is no whole number."""
    inner = config.get("rope_parameters")
    said = config | inner if isinstance(inner, dict) else config
    several = isinstance(inner, dict) and any(isinstance(part, dict) for part in inner.values())
    base = number(said, ROTARY_BASES, 10_000)
    whole = base is not None and not several and base < 10**12 and base == int(base) > 0
    return {
        "rotary_base": int(base) if base is not None and whole else None,
        "rotary_percent": number(said, ROTARY_SHARES, 1.0),
        "rotary_scaling": None if several else rotary_scaling(config),
    }


# Kinds of scaled rotary positions: the classes' names, and ours; "mrope" shares dimensions out and stretches nothing.
ROTARY_KINDS = {
    "default": "none",
    "mrope": "none",
    "su": "longrope",
    **{kind: kind for kind in ("linear", "dynamic", "yarn", "longrope", "llama3")},
}
SCALING_NUMBERS = (
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)


def rotary_scaling(config: Config) -> Config:
    """How positions are stretched: rope_scaling, or rope_parameters of newer files. No entry says that they are not."""
    said = config.get("rope_scaling") or config.get("rope_parameters")
    if said is None:
        return {"kind": "none"}
    if not isinstance(said, dict):
        raise ValueError(f"rope_scaling {shown(said)} is not an object. Correct it in the file.")
    kind = said.get("rope_type", said.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROTARY_KINDS:
        raise ValueError(f"rope_scaling type {shown(kind)} is not known. Known: {', '.join(ROTARY_KINDS)}.")
    if ROTARY_KINDS[kind] == "none":
        return {"kind": "none"}
    found: Config = {"kind": ROTARY_KINDS[kind], "factor": number(said, ("factor",), 1.0)}
    # The length the class stretches from where the scaling names none: the longest context.
    length = count(
        said | {"max_position_embeddings": config.get("max_position_embeddings")}, _length_key(said), 4096
    )
    found["original_positions"] = length
    found |= {name: number(said, (name,)) for name in SCALING_NUMBERS}
    if "truncate" in said:
        found["round_to_int"] = flag(said, "truncate")
    return {name: value for name, value in found.items() if value is not None}


def _length_key(said: Config) -> str:
    own = "original_max_position_embeddings"
    return own if said.get(own) is not None else "max_position_embeddings"


def flag(config: Config, key: str, default: bool = False) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} {value!r:.60} is not true or false. Correct it in the file.")
    return value


def read_activation(config: Config, key: str, default: str) -> str:
    value = config.get(key) or default
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise ValueError(f"{key} {value!r:.60} is not known. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[value]


def every_nth(config: Config, kind: str, step: int) -> None:
    """Whether layers of `kind` are every step-th one, from the step-th on, where the file lists its layers."""
    listed = config.get("layer_types")
    if listed is None:
        return
    if not isinstance(listed, list) or any(
        (layer == kind) != (place % step == 0) for place, layer in enumerate(listed, 1)
    ):
        raise ValueError(
            f"layer_types is no list with {kind} at every {step}th layer. Write the model as a TOML."
        )


def dense_first(config: Config, default: int) -> int:
    """Layers with an MLP in front of those with experts: mlp_layer_types or is_moe_layer, else a count of them. [1]"""
    key = next((key for key in ("mlp_layer_types", "is_moe_layer") if config.get(key) is not None), None)
    if key is None:
        own = "first_k_dense_replace"
        return default if config.get(own) is None else count_or_zero(config, own)
    return dense_in_front(config, key, ("sparse", True, 1))


def dense_in_front(config: Config, key: str, sparse: Sequence[Any]) -> int:
    """Layers of a list, one entry each, in front of those with experts, whose entries are among `sparse`. [1]"""
    listed = config[key]
    kinds = [kind in sparse for kind in listed] if isinstance(listed, list) else []
    first = kinds.index(True) if True in kinds else 0
    if len(kinds) != count(config, "num_hidden_layers") or not all(kinds[first:]) or not kinds[first:]:
        raise ValueError(
            f"{key} is no list of a layer each with those of experts behind the others. Write the model as a TOML."
        )
    return first


def split(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ValueError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads} and head_dim is absent. "
            "Give head_dim, or correct one of the two."
        )
    return split_heads(hidden, heads)


def bias_of_linears(config: Config, key: str = "attention_bias") -> bool:
    """Whether linear layers have biases: attention's, by that key, and the MLP's alike."""
    attention, mlp = flag(config, key), flag(config, "mlp_bias")
    if attention != mlp:
        raise ValueError(
            f"{key} {str(attention).lower()} with mlp_bias {str(mlp).lower()} is not supported: "
            "both or neither. Write the model as a TOML with qkv_bias and linear_bias."
        )
    return mlp


def nope_interval(config: Config) -> int:
    """Every how many layers one has no rotary embedding: no_rope_layers lists 0 there, 1 elsewhere. [1]"""
    interval = count(config, "no_rope_layer_interval", 4)
    listed = config.get("no_rope_layers")
    if listed and (
        not isinstance(listed, list)
        or any((rotary == 0) != (place % interval == 0) for place, rotary in enumerate(listed, 1))
    ):
        raise ValueError(
            f"no_rope_layers is no list with 0 at every {interval}th layer. Write the model as a TOML."
        )
    return interval
