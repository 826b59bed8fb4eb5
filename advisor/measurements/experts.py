"""Dispatcher, capacity and overlap of a published row's experts, however they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from advisor.measurements.rows import SWITCHES, Row
from costmodel.knobs import KNOBS

# Other words for dispatchers, as letters and digits alone.
DISPATCHERS = {kind: kind for kind in KNOBS["moe_dispatcher"].choices} | {
    "all2all": "alltoall",
    "a2a": "alltoall",
}
# That exchange tokens between ranks and do nothing on one.
EXCHANGES = ("deepep", "hybridep")
# Words that tell of no dropping: first of all that may stand beside a number.
DROPLESS = re.compile(r"drop-?less|^(none|no|not|without|never|false|off|disabled|-1(\.0)?)\b")
FACTOR = re.compile(r"(?:\bcf|factor|capacity)\D{0,4}?(\d+\.?\d*|\.\d+)")
NUMBER = re.compile(r"(?<![\w.])(\d+\.?\d*|\.\d+)x?(?![\w.])")
DROPPING = re.compile(r"drop|capacity|\bpad")


def dispatcher_stated(row: Row, habit: Mapping[str, Any]) -> str:
    """The dispatcher that a row states, "" where it is silent or not read.

    "flex" is the backend beside it, else that of its source's recipes, else Megatron-Core's default: DeepEP.
    """
    bare = re.sub(r"[^a-z0-9]", "", row.text("moe_dispatcher"))
    if found := next((kind for word, kind in DISPATCHERS.items() if word in bare), ""):
        return found
    if "flex" not in bare:
        return ""
    backend = row.json("other_flags").get("moe_flex_dispatcher_backend")
    known = (name for name in (backend, habit.get("moe_dispatcher")) if name in EXCHANGES)
    return str(next(known, "deepep"))


def exchanges_tokens(row: Row, habit: Mapping[str, Any]) -> bool:
    """Whether a row's dispatcher only makes sense between expert ranks."""
    usual = "" if row.text("ep") else habit.get("moe_dispatcher", "")
    return (dispatcher_stated(row, habit) or usual) in EXCHANGES


def capacity_stated(row: Row) -> tuple[float | None, str]:
    """The capacity factor that a row states, 0 of none dropped, None where it is silent or not read; and that in words.

    A row that only says that tokens are dropped has a factor above 0: nan until its source tells which.
    """
    text = row.text("moe_token_drop")
    if not text:
        return None, ""
    if DROPLESS.search(text):
        return 0.0, ""
    numbers = FACTOR.findall(text) or NUMBER.findall(text)
    if len(numbers) == 1:
        return float(numbers[0]), ""
    if DROPPING.search(text) or SWITCHES.get(text):
        return float("nan"), ""
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return None, f"moe_token_drop {shown!r} is neither dropless nor a capacity factor: taken as not said"


def drops_tokens(row: Row) -> bool:
    """Whether a row says that tokens beyond a capacity are dropped."""
    stated = capacity_stated(row)[0]
    return stated is not None and stated != 0


def _capacity(row: Row, habit: Mapping[str, Any], assumed: list[str]) -> float:
    stated, words = capacity_stated(row)
    assumed += [words] if words else []
    usual: float = habit.get("capacity_factor", 0.0)
    if stated is None:
        return usual
    if not math.isnan(stated):
        return stated
    assumed.append(f"tokens are dropped, the capacity factor is not stated: {usual or 1.0:g}")
    return usual or 1.0


def expert_knobs(
    row: Row, habit: Mapping[str, Any], sizes: Mapping[str, int], assumed: list[str]
) -> dict[str, Any]:
    """Dispatcher, capacity and overlap of experts. sizes: of the layout; assumed: takes what the row does not say."""
    text = row.text("moe_dispatcher")
    named = dispatcher_stated(row, habit)
    if text not in ("", "none") and not named:
        assumed.append(f"moe_dispatcher {text!r:.40} is not read: taken as not said")
    named = named or (habit.get("moe_dispatcher", "") if sizes["ep"] > 1 else "")
    if sizes["ep"] > 1 and not named:
        assumed.append("dispatcher of experts not stated: all-to-all")
    dispatcher = named or "alltoall"
    capacity = _capacity(row, habit, assumed)
    sms = row.said_number("moe_hybridep_num_sms", habit.get("dispatcher_sms", 0))
    overlap = row.flag("moe_a2a_overlap", habit.get("moe_overlap", False) and sizes["ep"] > 1)
    if overlap and sizes["pp"] > 1 and sizes["vpp"] == 1 and not habit.get("two_way"):
        overlap = False
        assumed.append("no overlap of the experts' exchange, which needs virtual stages and none are stated")
    return {
        "moe_dispatcher": dispatcher,
        "dispatcher_sms": sms if dispatcher == "hybridep" else 0,
        "moe_capacity_factor": capacity,
        # As the callback does by which NeMo's recipes drop tokens. Source: NeMo 2.4.0, moe_token_drop.py.
        "moe_pad_expert_input_to_capacity": capacity > 0 and dispatcher != "deepep",
        "overlap_moe_comm": overlap,
        "delay_wgrad": bool(overlap and habit.get("delay_wgrad", False)),
    }
