"""Model specs from and to plain mappings and TOML files, and with some fields changed."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from costmodel.model_checks import largest_count
from costmodel.model_spec import ModelSpec
from costmodel.model_tables import (
    AttentionTemperature,
    CompressedAttention,
    Encoder,
    GatedDelta,
    Indexer,
    Mamba,
    Mla,
    Moe,
    Norms,
    RotaryScaling,
    SlidingWindow,
)

TABLES: dict[str, type] = {
    "moe": Moe,
    "mla": Mla,
    "indexer": Indexer,
    "mamba": Mamba,
    "gated_delta": GatedDelta,
    "sliding_window": SlidingWindow,
    "compressed_attention": CompressedAttention,
    "encoder": Encoder,
    "norms": Norms,
    "rotary_scaling": RotaryScaling,
    "attention_temperature": AttentionTemperature,
}
_LARGEST_FILE = 4 * 2**20  # bytes; a real model file is a few kilobytes

# Names that recipes and published tables use for the same fields.
OTHER_NAMES = {
    "layers": "num_layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn_hidden",
    "heads": "num_heads",
    "num_attention_heads": "num_heads",
    "kv_groups": "num_kv_heads",
    "num_query_groups": "num_kv_heads",
    "kv_channels": "head_dim",
    "vocab_size": "vocab",
    "seq_length": "seq_len",
    "max_position_embeddings": "learned_positions",
    "mtp_num_layers": "mtp_layers",
    "first_dense_layers": "moe.dense_first_layers",
    "num_moe_experts": "moe.num_experts",
    "moe_router_topk": "moe.topk",
    "moe_ffn_hidden_size": "moe.expert_ffn",
    "qk_layernorm": "qk_norm",
    "dense_first_layers": "moe.dense_first_layers",
    "moe.experts": "moe.num_experts",
    # Keys of Hugging Face's configurations, GPT-NeoX's and llm-foundry's.
    "num_hidden_layers": "num_layers",
    "n_layer": "num_layers",
    "n_layers": "num_layers",
    "n_embd": "hidden",
    "d_model": "hidden",
    "intermediate_size": "ffn_hidden",
    "n_head": "num_heads",
    "n_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "hidden_act": "activation",
    "tie_word_embeddings": "tied_embeddings",
    "num_experts": "moe.num_experts",
    "num_local_experts": "moe.num_experts",
    "n_routed_experts": "moe.num_experts",
    "num_experts_per_tok": "moe.topk",
    "moe_intermediate_size": "moe.expert_ffn",
    "first_k_dense_replace": "moe.dense_first_layers",
    "num_nextn_predict_layers": "mtp_layers",
}


def read_text(path: Path) -> str:
    """The text of a small regular file; ValueError naming it otherwise."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a directory without a config.json. Give a model file, or a folder holding one."
        )
    if not path.is_file():
        raise ValueError(f"{path} is not a file. Give a model TOML or a Hugging Face config.json.")
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(
            f"{path} is larger than {_LARGEST_FILE} bytes, so it is not a model file. Check the path."
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not UTF-8 text. Give a model TOML or a Hugging Face config.json."
        ) from None


def read_toml(path: Path) -> ModelSpec:
    """A model from its TOML file. ValueError in one line that names the file and the key."""
    text = read_text(path)
    try:
        mapping = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {_first_line(error)}. Correct it there.") from None
    if {"schema", "knobs"} <= mapping.keys():
        raise ValueError(
            f"{path} is a plan file, not a model. `advisor predict {path}` reads it; "
            "here give a model TOML, a config.json, or a name of `advisor models`."
        )
    try:
        return from_mapping({"name": path.stem} | mapping)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_mapping(mapping: Mapping[str, Any]) -> ModelSpec:
    """A model from plain values, with k = a and d = h / a where absent. Unknown keys are refused.

    Latents have norms unless qk_norm says otherwise, as those of every published model have.
    """
    values = dict(mapping)
    for key, table in TABLES.items():
        if values.get(key) is not None:
            values[key] = _table(key, table, values[key])
    _refuse_unknown(values, [field.name for field in fields(ModelSpec)], "")
    heads, hidden = values.get("num_heads"), values.get("hidden")
    values.setdefault("num_kv_heads", heads)
    if values.get("mla") is not None and values.get("qk_norm") is None:
        values["qk_norm"] = True
    if "head_dim" not in values and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        values["head_dim"] = split_heads(hidden, heads)
    _require(ModelSpec, values, "", skip=("head_dim", "num_kv_heads"))
    return ModelSpec(**{key: value for key, value in values.items() if value is not None} | _nones(values))


def to_mapping(spec: ModelSpec) -> dict[str, Any]:
    """Plain values of a model without those that are None or stand at their default of nothing."""
    mapping: dict[str, Any] = {}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value is None or (value == "" and field.name != "name"):
            continue
        if is_dataclass(value) and not isinstance(value, type):
            parts = {part.name: getattr(value, part.name) for part in fields(value)}
            value = {name: part for name, part in parts.items() if part is not None}
        mapping[field.name] = value
    return mapping


def with_overrides(spec: ModelSpec, overrides: Mapping[str, Any]) -> ModelSpec:
    """The model with some fields changed, as `num_layers` or `moe.topk`; recipe names work too.

    Head size and key-value heads follow hidden size and heads when they did before and are not given.
    A changed model drops its published counts. ValueError in one line for a name or a value that is none.
    """
    if not isinstance(overrides, Mapping):
        raise ValueError(
            f"overrides {overrides!r:.60} are not names with values. Give them as {{'num_layers': 4}}."
        )
    values = to_mapping(spec)
    given = {OTHER_NAMES.get(str(key), str(key)): value for key, value in overrides.items()}
    if not given:
        return spec
    _refuse_unknown(given, _override_names(), "")
    for key, value in given.items():
        table, _, part = key.partition(".")
        if not part:
            values[key] = value
        elif table in values:
            values[table] = dict(values[table]) | {part: value}
        else:
            raise ValueError(f"{key} cannot be set: {spec.name} has no table [{table}]. Leave it out.")
    if spec.layer_pattern and len(set(given) & {"num_layers", "layer_pattern"}) == 1:
        # Fewer layers are the first of a pattern, more begin it again, and a pattern says how many there are.
        if "layer_pattern" in given:
            values["num_layers"] = len(str(values["layer_pattern"]))
        else:
            values["layer_pattern"] = _as_long(spec.layer_pattern, values["num_layers"])
    windows = values.get("sliding_window")
    if isinstance(windows, dict) and windows.get("pattern") and "sliding_window.pattern" not in given:
        windows["pattern"] = _as_long(windows["pattern"], values["num_layers"])
    if spec.num_kv_heads == spec.num_heads and "num_kv_heads" not in given:
        values["num_kv_heads"] = values["num_heads"]
    if spec.head_dim * spec.num_heads == spec.hidden and "head_dim" not in given:
        del values["head_dim"]
    if "vocab" in given and "vocab_padded" not in given:
        values.pop("vocab_padded", None)
    for key in ("family", "params_published", "params_printed", "params_computed", "params_active_computed"):
        if key not in given:
            values.pop(key, None)
    return from_mapping(values)


def _as_long(pattern: str, layers: Any) -> str:
    """A pattern for so many layers: its first letters, or begun again; as it is where their number is none."""
    if not isinstance(layers, int) or layers > largest_count("num_layers"):
        return pattern
    return (pattern * -(-layers // len(pattern)))[:layers]


def split_heads(hidden: int, heads: int) -> int:
    """Head size that divides the hidden size evenly among the heads. [1] ValueError where there is none."""
    if heads < 1 or hidden % heads:
        raise ValueError(
            f"hidden {hidden} is not a multiple of num_heads {heads}. Give head_dim, or change one."
        )
    return hidden // heads


def nearest(name: str, known: list[str], cut: str = "") -> str:
    """' Did you mean X?' for the closest known name, or nothing. cut: where names begin to be alike, if they do."""
    stems = {each.partition(cut)[0] if cut else each: each for each in known}
    wanted = name.partition(cut)[0] if cut else name
    close = difflib.get_close_matches(wanted, list(stems), n=1, cutoff=0.5)
    return f" Did you mean {stems[close[0]]}?" if close else ""


def _table(key: str, table: type, value: Any) -> Any:
    if isinstance(value, table):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} {value!r:.60} is not a table. Write [{key}] and its keys, or leave it out.")
    _refuse_unknown(value, [field.name for field in fields(table)], f"{key}.")
    _require(table, value, f"{key}.", skip=())
    return table(**({"q_lora_rank": None, "kv_lora_rank": None} if table is Mla else {}) | dict(value))


def _require(table: type, values: Mapping[str, Any], prefix: str, skip: tuple[str, ...]) -> None:
    for field in fields(table):
        optional = field.default is not MISSING or str(field.type).endswith("| None") or field.name in skip
        if not optional and values.get(field.name) is None:
            raise ValueError(f"{prefix}{field.name} is missing. Give it in the model.")


def _nones(values: Mapping[str, Any]) -> dict[str, Any]:
    """Required fields left empty because another required field was wrong; the check of that one speaks."""
    return {key: values.get(key) for key in ("num_kv_heads", "head_dim") if values.get(key) is None}


def _refuse_unknown(values: Mapping[str, Any], known: list[str], prefix: str) -> None:
    for key in values:
        if key not in known:
            own = "" if prefix else _elsewhere(str(key))
            hint = own or nearest(str(key), known) or " `advisor models llama3-8b` shows the keys."
            raise ValueError(f"{prefix}{key!s:.60} is not a key of a model.{hint}")


def _elsewhere(key: str) -> str:
    """Our name of a key that other configurations use, or the table that it stands in here; "" where neither is known.

    Examples
    --------
    >>> _elsewhere("num_local_experts")
    ' Write num_experts in a table [moe].'
    >>> _elsewhere("n_layer")
    ' Did you mean num_layers?'
    """
    table, _, name = OTHER_NAMES.get(key, key).rpartition(".")
    tables = [table] if table else [each for each, record in TABLES.items() if name in _names(record)]
    if tables and name not in _names(ModelSpec):
        return f" Write {name} in a table [{'] or ['.join(tables)}]."
    return f" Did you mean {name}?" if name != key else ""


def _names(record: type) -> list[str]:
    return [field.name for field in fields(record)]


def _override_names() -> list[str]:
    names = [field.name for field in fields(ModelSpec) if field.name != "family"]
    return names + [f"{key}.{field.name}" for key, table in TABLES.items() for field in fields(table)]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
