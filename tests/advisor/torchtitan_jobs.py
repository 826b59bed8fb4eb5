"""Job files of torchtitan for tests, by the keys that they say."""

from __future__ import annotations

import json
from typing import Any

from advisor.case import Case
from advisor.case_from import read_foreign

P = "parallelism."
FLOAT8 = {"model.converters": ["quantize.linear.float8"], "quantize.linear.float8.filter_fqns": ["output"]}
SEVENTY = {"model.flavor": "70B", "training.seq_len": 8192, "activation_checkpoint.selective_ac_option": "op"}
EXPERTS = {"model.name": "deepseek_v3", "model.flavor": "16B", "training.seq_len": 4096}


def toml(said: dict[str, Any]) -> str:
    """The text of a job file that says some keys, given by dotted name."""
    tables: dict[str, list[str]] = {}
    for key, value in said.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items()) + "\n"


def case(said: dict[str, Any], **options: Any) -> Case:
    """What `check --from torchtitan` reads of them."""
    return read_foreign("torchtitan", toml(said), {"gpu": "h100", **options})
