"""Checks of the fields of a model: every value has the type of its annotation and a sane size."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

# Largest value of each count: far above anything published, low enough that no product overflows a double.
_LARGEST = {
    "num_layers": 10_000,
    "vocab": 2**24,
    "vocab_padded": 2**24,
    "seq_len": 2**27,
    "rotary_base": 10**12,
    "rotary_local_base": 10**12,
    "original_positions": 2**27,
    "params": 10**16,
}
_LARGEST_OTHER = 2**20
# Largest value of each number that is no count, and one to try; the others are shares or coefficients.
_LARGEST_NUMBER = {
    "router_scaling_factor": (1000, 2.5),
    "rotary_percent": (1, 0.5),
    "factor": (10**6, 8.0),
    **dict.fromkeys(("low_freq_factor", "high_freq_factor"), (1000, 4.0)),
    **dict.fromkeys(("beta_fast", "beta_slow"), (10**4, 32.0)),
    **dict.fromkeys(("mscale", "mscale_all_dim"), (100, 1.0)),
    **dict.fromkeys(("score_cap", "logit_cap"), (10**4, 50.0)),
    "embedding_scale": (10**4, 64.0),
    "value_scale": (10**4, 0.707),
}
_LARGEST_OTHER_NUMBER = (1, 0.001)
_MAY_BE_ZERO = {
    "learned_positions",
    "seq_len",
    "mtp_layers",
    "attention_chunk",
    "nope_layer_interval",
    "shared_expert_ffn",
    "dense_first_layers",
}
_TEXT_LIMIT = 10_000


class Checked:
    """Checks every field of a frozen dataclass by its annotation."""

    _where = ""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            _check(self._where + field.name, str(field.type), getattr(self, field.name))


def largest_count(name: str) -> int:
    """Largest value that a count may have, by the name of its field. [1]"""
    return _LARGEST.get("params" if name.startswith("params_") else name, _LARGEST_OTHER)


def _check(key: str, annotation: str, value: Any) -> None:
    if value is None and annotation.endswith("| None"):
        return
    kind = annotation.removesuffix(" | None")
    if kind == "int":
        _check_int(key, value)
    elif kind == "bool" and not isinstance(value, bool):
        raise ValueError(f"{key} {value!r:.60} is not true or false. Write {key} = true, or false.")
    elif kind == "float":
        _check_number(key, value)
    elif kind == "str" and not (isinstance(value, str) and len(value) <= _TEXT_LIMIT):
        raise ValueError(
            f'{key} {value!r:.60} is not a text of at most {_TEXT_LIMIT} characters. Write {key} = "...".'
        )
    elif kind[0].isupper() and not isinstance(value, Checked):
        raise ValueError(f"{key} {value!r:.60} is not a table. Write [{key}] and its keys, or leave it out.")


def _check_number(key: str, value: Any) -> None:
    largest, usual = _LARGEST_NUMBER.get(key.rpartition(".")[2], _LARGEST_OTHER_NUMBER)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= largest:
        raise ValueError(f"{key} {value!r:.60} is not a number from 0 to {largest}. Try {key} = {usual}.")


def _check_int(key: str, value: Any) -> None:
    last = key.rpartition(".")[2]
    smallest = 0 if last in _MAY_BE_ZERO else 1
    largest = largest_count(last)
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        given = f"{value!r:.60}" if not isinstance(value, int) or abs(value) < 10**60 else "a huge number"
        raise ValueError(
            f"{key} {given} is not a whole number from {smallest} to {largest}. Correct it in the model."
        )
