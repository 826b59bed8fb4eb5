"""Splits, SMs and cluster size of the overlapped tensor-parallel GEMMs, as targets take them, written and read back.

Transformer Engine takes them for each of ten GEMMs; those that are not named keep its defaults.
Sources: Megatron-Bridge 0.2.0rc6 to 0.6.2, training/comm_overlap.py and training/initialize.py; NeMo 2.3 and 2.6,
llm/recipes/tp_overlap_configs/userbuffers.py and megatron_comm_overlap.py: both drop GEMMs that are None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.plan import Plan
from executor.export.configuration_text import dotted_name, value_of, yaml_of
from executor.export.unsaid import OVERLAP_SETTING, own_overlap

# Forward projections whose reduce-scatter is pipelined with the GEMM: what the knobs are about.
PIPELINED = ("proj_fprop", "fc2_fprop")
GEMMS = (
    "qkv_dgrad",
    "qkv_wgrad",
    "fc1_dgrad",
    "fc1_wgrad",
    "qkv_fprop",
    "proj_dgrad",
    "fc1_fprop",
    "fc2_dgrad",
)
NAMED = re.compile(r"(qkv|proj|fc1|fc2)_(fprop|dgrad|wgrad)")
TABLE, ROW = "TransformerLayerTPOverlapCfg", "PipelineOverlapCfg"
FIELD = "tp_comm_overlap_cfg"
KNOBS = {"num_splits": "tp_overlap_splits", "num_sm": "tp_overlap_sms", "cga_size": "tp_overlap_cga"}


def pipelined(plan: Plan) -> dict[str, Any]:
    """What each of the PIPELINED GEMMs takes, {} where all is usual. No splits named are as many as ranks, as priced.

    fp8_buf is said, since the classes of NeMo and Megatron-Bridge have a default that is true: `(False,)`.
    """
    own = own_overlap(plan)
    if not own or dict(plan.settings).get(FIELD):
        return {}
    return {
        "num_sm": plan.tp_overlap_sms,
        "cga_size": plan.tp_overlap_cga,
        "num_splits": plan.tp_overlap_splits or plan.tp,
        "set_sm_margin": True,
        "fp8_buf": OVERLAP_SETTING in own,
    }


def own_table(plan: Plan) -> dict[str, Any]:
    """GEMMs that the plan's own file names (setting tp_comm_overlap_cfg), as Megatron-LM reads it; {} for none.

    ValueError in one line where it is no such file, as the name of a preset of NeMo or Megatron-Bridge is none.
    """
    path = dict(plan.settings).get(FIELD)
    if not path or not plan.tp_comm_overlap or plan.tp == 1:
        return {}
    file = Path(path)
    if not file.is_file():
        raise ValueError(
            f"{FIELD}={path}: there is no such file. A run reads one as Megatron-LM's --tp-comm-overlap-cfg does, and "
            f"knows no presets: name the file, or leave it out and give --tp-overlap-splits, --tp-overlap-sms and "
            "--tp-overlap-cga."
        )
    table = yaml_of(file.read_text(errors="replace"))
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise ValueError(
            f"{path} holds no table of GEMMs. Write `fc2_fprop: {{method: pipeline}}`, one a line."
        )
    for name in table:
        if not NAMED.fullmatch(str(name)):
            raise ValueError(
                f"{path}: {str(name)!r:.60} is no overlapped GEMM. Write qkv, proj, fc1 or fc2, then _fprop, _dgrad or "
                "_wgrad."
            )
    return table


def table_of(row: Mapping[str, Any], made: str = "{}(") -> str:
    """The table as Python builds it. made: how a class is called, as "run.Config({}, "."""
    said = ", ".join(f"{name}={value!r}" for name, value in row.items())
    rows = [f"{name}={made.format(ROW)}{said})" for name in PIPELINED]
    inside = "".join(f"\n        {each}," for each in [f"{name}=None" for name in GEMMS] + rows)
    return f"{made.format(TABLE).rstrip()}{inside}\n    )"


def row_in(call: ast.expr) -> dict[str, Any]:
    """What a table as Python builds it says of the first of the PIPELINED GEMMs, {} for others."""
    if not isinstance(call, ast.Call) or TABLE not in _classes(call):
        return {}
    for each in call.keywords:
        if each.arg in PIPELINED and isinstance(each.value, ast.Call) and ROW in _classes(each.value):
            return {word.arg: value_of(word.value) for word in each.value.keywords if word.arg}
    return {}


def knobs_in(said: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The knobs that a configuration says of the overlapped GEMMs. place: of the table, by dotted name."""
    row = f"{place}.{FIELD}.{PIPELINED[0]}".lstrip(".")
    knobs = {knob: said[f"{row}.{name}"] for name, knob in KNOBS.items() if f"{row}.{name}" in said}
    return knobs | ({OVERLAP_SETTING: True} if said.get(f"{row}.fp8_buf") is True else {})


def with_overlap(knobs: Mapping[str, Any], said: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The knobs with those of `knobs_in`, and its setting among theirs. As many splits as ranks are none named."""
    found = knobs_in(said, place)
    if found.pop(OVERLAP_SETTING, False):
        found["settings"] = dict(knobs.get("settings", {})) | {OVERLAP_SETTING: True}
    if found.get("tp_overlap_splits") == knobs.get("tp", 1):
        del found["tp_overlap_splits"]
    return knobs | found


def with_file(knobs: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The knobs with what Megatron-LM's file says. ValueError in one line when it is no table of GEMMs.

    Transformer Engine pipelines PIPELINED where no other method is said; a ring's SMs are not those of the knobs.
    """
    table = yaml_of(text)
    if not isinstance(table, Mapping):
        raise ValueError("it holds no table of GEMMs. Write `proj_fprop:` and below it `num_sm: 16`.")
    row = table.get(PIPELINED[0])
    if not isinstance(row, Mapping) or row.get("method", "pipeline") != "pipeline":
        return dict(knobs)
    return with_overlap(knobs, {f"{FIELD}.{PIPELINED[0]}.{name}": value for name, value in row.items()}, "")


def _classes(call: ast.Call) -> set[str]:
    """The class that is called, or that run.Config is given."""
    names = [dotted_name(call.func), *(dotted_name(each) for each in call.args)]
    return {name.rpartition(".")[2] for name in names}
