"""The software stack: framework family and release. What a stack changes is data (`stacks.toml`, fitted rates)."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.symbols import BY_NAME

STACK_FILE = Path(__file__).with_name("stacks.toml")
RELEASE = re.compile(r"(\d\d)\.(\d\d)(?:\.\d\d?)?")
# Widest head that cuDNN's own backward pass takes on the Blackwell of data centres; see `wide_heads_apart`.
WIDEST_FUSED_HEAD = 128
DATACENTRE_BLACKWELL = ("blackwell", "blackwell-ultra")


@dataclass(frozen=True)
class Stack:
    """A framework family at a release "yy.mm", "" where none is known. `stacks.toml` says what each field means.

    attention: kernel of the attention core. title: the family in words. names: framework whose names of knobs it has,
    "" where they are not on file; names_from: the release from which on they are its own, "" for all. loop: fixed
    seconds of a step [s]. Flags, all that are true or false, hold for the whole family or for some of its releases.
    """

    family: str
    release: str
    attention: str
    title: str = ""
    names: str = ""
    names_from: str = ""
    loop: float = 0.0
    # What it trains with.
    megatron_core: bool = False
    transformer_engine: bool = False
    torchao: bool = False
    dtensor: bool = False
    fsdp1: bool = False
    fsdp2: bool = False
    wheels: bool = False
    # Kernels.
    expert_bias_fused: bool = False
    plain_norms: bool = False
    composed_norms: bool = False
    norm_linear: bool = False
    norm_maxima: bool = False
    plain_routers: bool = False
    plain_permutations: bool = False
    plain_squared_relu: bool = False
    plain_gelu_experts: bool = False
    composed_caps: bool = False
    flex_caps: bool = False
    packs_attention: bool = False
    single_packs: bool = False
    wide_heads_apart: bool = False
    scales_sinks: bool = False
    plain_mxfp8_attention: bool = False
    complex_rotary: bool = False
    reads_documents: bool = False
    documents_apart: bool = False
    separate_gate: bool = False
    native_loss: bool = False
    loss_metrics: bool = False
    counts_guesses: bool = False
    holds_mtp_logits: bool = False
    fp4_apart: bool = False
    foreach_adam: bool = False
    # What it computes again, keeps and sends.
    early_stop: bool = False
    fails_at_heads: bool = False
    keeps_hybrids: bool = False
    stand_ins: bool = False
    strided_delta: bool = False
    unsummed_experts: bool = False
    scatter_gather: bool = False
    collective_mean: bool = False
    large_buckets: bool = False
    gathers_on_demand: bool = False
    checks_gradients: bool = False
    checks_loss: bool = False
    partial_rings: bool = False
    unbalanced_rings: bool = False
    master_shards: bool = False
    root_unit: bool = False
    defers_gradients: bool = False
    blocking_sends: bool = False
    eager: bool = False
    fuses_fp4_experts: bool = False
    fuses_squared_relu: bool = False
    early_zero3: bool = False
    # What its recipes choose.
    hybrid_dispatch: bool = False
    plain_dispatch: bool = False
    whole_step: bool = False

    @property
    def kernels(self) -> str:
        """Which of a precision recipe's own kernels in `precision.toml` the stack has; "" for the usual ones."""
        return "torchao" if self.torchao else "apart" if self.fp4_apart else ""

    @property
    def name(self) -> str:
        """family-release."""
        return f"{self.family}-{self.release}" if self.release else self.family

    def with_heads(self, width: int, generation: str, sinks: bool = False, capped: bool = False) -> Stack:
        """The stack with the attention kernel that heads of `width` train with on a generation of GPUs.

        sinks: whether heads have a learned softmax sink; capped: whether a tanh bounds scores.
        """
        if (sinks and self.scales_sinks) or (capped and self.flex_caps):
            return replace(self, attention="flex")
        apart = self.wide_heads_apart and width > WIDEST_FUSED_HEAD and generation in DATACENTRE_BLACKWELL
        return replace(self, attention="flash2") if apart else self


FLAGS = tuple(entry.name for entry in fields(Stack) if entry.default is False)
# Flags that are inputs of formulas under the same names, 0 or 1.
INPUTS = tuple(flag for flag in FLAGS if flag in BY_NAME)


@lru_cache(maxsize=1)
def families() -> dict[str, dict[str, Any]]:
    """The families of `stacks.toml` by name."""
    with STACK_FILE.open("rb") as file:
        return tomllib.load(file)


def default_stack() -> str:
    """Newest release of the first family: what an answer assumes when none is named."""
    name, family = next(iter(families().items()))
    return f"{name}-{family['newest']}"


def shown_stack(stack: str | None, vendor: str = "") -> Stack:
    """The stack whose names of knobs a user is shown: the one named, else what trains on GPUs of that vendor.

    stack: None where none is named. vendor: as GPU files have it, "" for any. Times do not depend on it.
    """
    family = next((name for name, each in families().items() if vendor in each.get("vendors", {})), None)
    return load_stack(stack or family or default_stack())


def vendor_note(vendor: str) -> str:
    """What is to be known of a family's names on GPUs of a vendor, or nothing."""
    notes = [each["vendors"][vendor] for each in families().values() if vendor in each.get("vendors", {})]
    return notes[0] if notes else ""


@lru_cache(maxsize=64)
def load_stack(text: str) -> Stack:
    """A stack from "nemo-26.06", "26.06" or "nemo". ValueError in one line when it is not one.

    A patch release, "26.02.01", is one of its own where runs of it are known, else the release that it mends.
    """
    name, _, release = text.strip().partition("-")
    if RELEASE.fullmatch(name) and not release:
        release = name
        name = next(
            (each for each, family in families().items() if name in family["releases"]),
            next(iter(families())),
        )
    family = families().get(name)
    if family is None:
        near = difflib.get_close_matches(name, families(), n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Families: {', '.join(families())}."
        raise ValueError(f"--stack {text!r} is unknown: it is a family and a release, as nemo-26.06. {hint}")
    written = RELEASE.match(release)
    if release and not (written and 1 <= int(written[2]) <= 12):
        raise ValueError(
            f"--stack {text!r}: a release is written year.month, as in nemo-26.06. "
            f"Known of {name}: {', '.join(family['releases']) or 'none'}."
        )
    if not release and family["releases"]:
        release = family.get("newest", family["releases"][-1])
    release = release if release in family["releases"] else release[:5]
    early, early_names = (release_has(family, name, release) for name in ("early", "early_names"))
    return Stack(
        name,
        release,
        family["early_attention" if early else "attention"],
        title=family["title"],
        names=family["early_names" if early_names else "names"] if "names" in family else "",
        names_from=family.get("names_from", ""),
        loop=family.get("loop", 0.0),
        **{flag: family.get(flag, False) or release_has(family, flag, release) for flag in FLAGS},
    )


def release_has(family: Mapping[str, Any], name: str, release: str) -> bool:
    """Whether a release is of those with `name`, by NAME_from and NAME_until of its family as `stacks.toml` reads them.

    A family without releases has what came, not what went.
    """
    first, last = (family.get(f"{name}_{end}") for end in ("from", "until"))
    age = months(release) if release else math.inf
    begun = first is not None and age >= months(first)
    lasts = last is not None and age <= months(last)
    if first is None or last is None:
        return begun or lasts
    return begun and lasts if months(first) <= months(last) else begun or lasts


@lru_cache(maxsize=8)
def newest_stack(names: str, native_loss: bool) -> str:
    """The newest release whose configuration has these `names`, and whose fused loss is of that kind.

    native_loss: Megatron-Core's own rather than Transformer Engine's.
    """
    stacks = [
        load_stack(f"{family}-{release}")
        for family, record in families().items()
        for release in record["releases"]
    ]
    return max(
        (each for each in stacks if (each.names, each.native_loss) == (names, native_loss)),
        key=lambda each: months(each.release),
    ).name


def months(release: str) -> int:
    """Months from year 0 to a release "yy.mm", or to the one that a patch "yy.mm.pp" mends. [1]"""
    year, month = release.split(".")[:2]
    return 12 * int(year) + int(month)


def released(release: str) -> int:
    """Months from year 0 to when a release came out: a patch a month after what it mends. [1]

    Source: dates of NeMo's 26.02 and 26.02.01, 26.04 and 26.04.01 in Megatron-Bridge's performance summaries.
    """
    return months(release) + int([*release.split("."), "0"][2])


def nearest_release(release: str, known: Iterable[str]) -> str | None:
    """The known release nearest in time, the later of two as near; None when none is known."""
    candidates = sorted(known, key=released, reverse=True)
    if not candidates or not release:
        return None
    return min(candidates, key=lambda each: abs(released(each) - released(release)))
