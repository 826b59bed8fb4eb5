"""Rows of a table of published training runs, as text by column with the types that columns have."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Columns that hold a number above 0 or nothing; of COUNTS a whole one, of OFFSETS also 0.
COUNTS = ("gpus", "gbs", "mbs", "seq_len", "tp", "pp", "cp", "vp", "ep", "etp")
OFFSETS = ("act_offload_layers", "first_stage_layers", "last_stage_layers")
# Of parallelism 0 is written for 1: there is none.
SIZES = ("tp", "pp", "cp", "vp", "ep", "etp")
AMOUNTS = (
    *("step_time_s", "step_time_ms", "tokens_per_sec_per_gpu", "tokens_per_sec", "samples_per_sec"),
    *("peak_memory_gb", "peak_reserved_gb"),
)
# Units that may stand behind a number of these columns, and what each counts.
GIGABYTES = {"gb": 1.0, "gib": 2**30 / 1e9, "mib": 2**20 / 1e9}
UNITS: dict[str, dict[str, float]] = {
    "peak_memory_gb": GIGABYTES,
    "peak_reserved_gb": GIGABYTES,
    "step_time_s": {"s": 1.0, "sec": 1.0, "ms": 1e-3},
    "step_time_ms": {"ms": 1.0},
    "seq_len": {"k": 1024.0},
}
# Columns that hold a switch; `fsdp` may hold ranks to shard over too.
FLAGS = (
    "moe_a2a_overlap",
    "moe_force_balance",
    "tp_comm_overlap",
    "sequence_parallel",
    "nccl_ub",
    "fp8_param_gather",
    "grad_reduce_in_fp32",
    "precision_aware_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
)
SWITCHES = dict.fromkeys(("1", "1.0", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "0.0", "false", "no", "off"), False
)
# Columns of words, in small letters whatever a table writes, and of text that is kept as it is.
WORDS = (
    "cuda_graph",
    "moe_dispatcher",
    "moe_token_drop",
    "precision",
    "recompute_granularity",
    "recompute_modules",
    "task",
)
TEXTS = (
    "id",
    "source",
    "container",
    "date",
    "model",
    "system",
    "memory_note",
    "pp_layout",
    "superseded",
    "trust",
    "model_overrides",
    "other_flags",
    "notes",
    "optimizer",
)
# What tables write where they know nothing; "none" not of words, for of recompute it says that there is none.
UNSTATED = (
    *("-", "--", "?", "n/a", "na", "nan", "null", "unknown", "tbd", "unstated", "unspecified"),
    *("not stated", "not printed", "not given", "not specified", "not reported", "not known"),
)
NUMBERS = (*COUNTS, *OFFSETS, *AMOUNTS, "fsdp", "dp", "ga")
# Columns of JSON objects, and what tables write where there is none; {} says that nothing is set.
OBJECTS = ("model_overrides", "other_flags")
NO_OBJECT = ("none", "[]")
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
AMOUNT = re.compile(r"([\d.,]+(?:e[+-]?\d+)?) ?([a-z]+)", re.IGNORECASE)
# Other names of columns, as small letters and digits.
OTHER_COLUMNS = {
    "name": "id",
    "run": "id",
    "hardware": "system",
    "cluster": "system",
    "gpu": "system",
    "gputype": "system",
    "numgpus": "gpus",
    "gpucount": "gpus",
    "ngpus": "gpus",
    "worldsize": "gpus",
    "dtype": "precision",
    "globalbatch": "gbs",
    "globalbatchsize": "gbs",
    "microbatch": "mbs",
    "microbatchsize": "mbs",
    "seqlen": "seq_len",
    "seqlength": "seq_len",
    "sequencelength": "seq_len",
    "vpp": "vp",
    "tensorparallel": "tp",
    "pipelineparallel": "pp",
    "contextparallel": "cp",
    "expertparallel": "ep",
    "dataparallel": "dp",
    "virtualpipelineparallel": "vp",
    "experttensorparallel": "etp",
    "steptime": "step_time_s",
    "iterationtime": "step_time_s",
    "iterationtimems": "step_time_ms",
    "elapsedtimeperiterationms": "step_time_ms",
    "steptimesec": "step_time_s",
    "steptimeseconds": "step_time_s",
    "secondsperstep": "step_time_s",
    "iterationtimes": "step_time_s",
    "tokenspersecondpergpu": "tokens_per_sec_per_gpu",
    "tokenssgpu": "tokens_per_sec_per_gpu",
    "tokensspergpu": "tokens_per_sec_per_gpu",
    "toksgpu": "tokens_per_sec_per_gpu",
    "tokenspersecond": "tokens_per_sec",
    "samplespersecond": "samples_per_sec",
    "sequencespersecond": "samples_per_sec",
    "tflopspergpu": "model_tflops_per_gpu",
}


def column_name(header: str) -> str:
    """The column that a header means, in any case and with any signs between its words; as it is when none of ours."""
    bare = re.sub(r"[^a-z0-9]", "", header.lower())
    bare = re.sub(r"(model)?parallel(size)?$", "parallel", re.sub(r"^(vpp?|[tpcde]p|etp)size$", r"\1", bare))
    return OTHER_COLUMNS.get(bare, _own_columns().get(bare, header.strip()))


@lru_cache(maxsize=1)
def _own_columns() -> dict[str, str]:
    named = (*NUMBERS, *FLAGS, *TEXTS, *WORDS)
    return {re.sub(r"[^a-z0-9]", "", name): name for name in named}


def whole_number(value: Any) -> int | None:
    """A number, or its text, that is whole and not below 0; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if math.isfinite(number) and number >= 0 and number % 1 == 0 else None


def row_id(row: Row) -> str:
    """What a row is called: its id, else the line that it ends in."""
    return row.text("id") or (f"line {row.line}" if row.line else "?")


# In the notes of runs that their publisher calls functional: real data, natural routing, no kernels tuned.
UNTUNED = "not tuned for speed"


@dataclass(frozen=True)
class Row:
    """One row of a table, as text by column. surplus: its cells and the header's columns, where it has more.

    line: where it ends in its file, 0 where it is of none.
    """

    values: Mapping[str, str]
    surplus: str = ""
    line: int = 0

    def text(self, name: str) -> str:
        """A column's text, '' when empty or absent, or when it says that nothing is known. Words in small letters."""
        text = (self.values.get(name, "") or "").strip()
        bare = text.lower()
        if bare in UNSTATED or (bare == "none" and name in (*NUMBERS, "pp_layout")):
            return ""
        if name in OBJECTS and bare in NO_OBJECT:
            return ""
        return bare if name in WORDS else text

    @property
    def untuned(self) -> bool:
        """Whether its publisher says that nobody tuned the run for speed."""
        return UNTUNED in self.text("notes")

    def number(self, name: str) -> float | None:
        """A column as a number above 0, in the column's own unit; None when empty or not one."""
        text, unit = self.text(name).strip(), 1.0
        if (amount := AMOUNT.fullmatch(text)) and amount[2].lower() in UNITS.get(name, {}):
            text, unit = amount[1], UNITS[name][amount[2].lower()]
        try:
            value = unit * float(text.replace(",", "") if THOUSANDS.fullmatch(text) else text)
        except ValueError:
            return None
        return value if math.isfinite(value) and value > 0 else None

    def count(self, name: str, default: int = 1) -> int:
        """A column as a whole number, `default` when empty."""
        value = self.number(name)
        return int(value) if value is not None else default

    def whole(self, name: str) -> int | None:
        """A column as a whole number from 0 on, also written as 5.0; None when empty or not one."""
        return whole_number(self.text(name))

    def said_number(self, name: str, default: int = 0) -> int:
        """A whole number of `other_flags`, `default` where nothing or something else stands there."""
        found = whole_number(self.json("other_flags").get(name))
        return default if found is None else found

    def fault(self) -> str:
        """The first number that cannot be meant: its column, what stands there and the rule; '' when none."""
        if self.surplus:
            return f"{self.surplus}: which cell is whose is open. Quote cells with commas, and write 8192, not 8,192."
        for name in (*COUNTS, *OFFSETS, *AMOUNTS):
            text = self.text(name).strip()
            value = self.number(name)
            if not text or (name in (*OFFSETS, *SIZES) and text.strip("0.") == ""):
                continue
            whole = "whole " if name not in AMOUNTS else ""
            if value is None or (whole and value % 1):
                shown = text if len(text) <= 40 else f"{text[:40]}..."
                return (
                    f"{name} {shown!r} is not a {whole}number above 0. Correct it, or leave the cell empty."
                )
        return ""

    def unread_switches(self) -> list[str]:
        """Of each switch that is neither on nor off, which counts as not said: a line that tells so."""
        found = []
        for name in FLAGS:
            text = self.text(name).strip()
            if text and text.lower() not in (*SWITCHES, "none"):
                shown = text if len(text) <= 40 else f"{text[:40]}..."
                found.append(f"{name} {shown!r} is neither on nor off: taken as not said")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """A column of 0 and 1, or of false and true, `default` when empty: unknown is not off."""
        return SWITCHES.get(self.text(name).strip().lower(), default)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON column, {} when empty. ValueError in one line when it is no object."""
        text = self.text(name).strip() or "{}"
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise ValueError(
                f'{name} {shown!r} is no JSON object. Write it as {{"num_layers": 40}}, or leave it empty.'
            )
        return found
