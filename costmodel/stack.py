"""The software stack: framework family and release. What a stack changes is data (`stacks.toml`, fitted rates)."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

STACK_FILE = Path(__file__).with_name("stacks.toml")
RELEASE = re.compile(r"(\d\d)\.(\d\d)(?:\.\d\d?)?")
# Widest head that cuDNN's own backward pass takes on the Blackwell of data centres; see `wide_heads_from`.
WIDEST_FUSED_HEAD = 128
DATACENTRE_BLACKWELL = ("blackwell", "blackwell-ultra")
# Fields of a stack that are inputs of formulas under the same names, 0 or 1.
INPUTS = (
    "early_stop",
    "expert_bias_fused",
    "scatter_gather",
    "plain_norms",
    "composed_norms",
    "norm_linear",
    "collective_mean",
    "norm_maxima",
    "packs_attention",
    "plain_squared_relu",
    "native_loss",
    "complex_rotary",
    "separate_gate",
    "reads_documents",
    "documents_apart",
    "early_zero3",
    "fsdp1",
    "fsdp2",
    "root_unit",
    "foreach_adam",
    "defers_gradients",
    "partial_rings",
    "unbalanced_rings",
    "dtensor",
    "megatron_core",
    "stand_ins",
    "master_shards",
    "large_buckets",
    "checks_gradients",
    "checks_loss",
)


@dataclass(frozen=True)
class Stack:
    """A framework family at a release "yy.mm" ("" where none is known).

    attention: kernel of the attention core. early_stop: recompute ends with the last saved tensor.
    expert_bias_fused: grouped GEMMs of captured expert blocks add biases. scatter_gather: stages send each other a
    share of the hidden states from every tensor-parallel rank, also without sequence parallelism. plain_norms: norms
    are PyTorch's own kernels. packs_attention: tokens are gathered in front of the attention core and scattered behind.
    wheels: matrix products are of the cuBLAS in PyTorch's wheels. native_loss: the fused loss is Megatron-Core's own.
    hybrid_dispatch: HybridEP sends tokens to experts in NVLink domains of any size, not in larger ones alone.
    composed_norms: an RMSNorm that nothing compiles is a row of kernels. whole_step: recipes capture a whole
    step of dropless experts in one CUDA graph. fp4_apart: rows and rotated columns of an NVFP4 operand are cast by
    kernels of their own. norm_linear: a norm and the linear layer behind it are one module. norm_maxima: such a norm
    finds the maximum of what it writes. collective_mean: reductions of gradients average them, but under FSDP.
    plain_squared_relu: squared ReLU is kernels of PyTorch, one an operation.
    complex_rotary: rotary embedding that is not fused multiplies complex numbers.
    separate_gate: gate and rest of a gated MLP, and queries, keys and values, are products of their own.
    reads_documents: the host reads the lengths of packed documents, for rotary embedding that is not fused.
    documents_apart: such an embedding turns one packed document after the other, each by kernels of its own.
    early_zero3: sharded parameters move at the rate of one network card a node.
    fsdp1, fsdp2: its FSDP is PyTorch's first one, or fully_shard. root_unit: with embedding and output layer as one
    unit, whole through a step. defers_gradients: and reduces gradients once a step.
    partial_rings: a ring over some of a node's GPUs leaves it at one GPU's share of the network cards.
    unbalanced_rings: ranks of a context ring hold contiguous chunks, of which the last sees most.
    torchao: linear layers leave the model's format by torchao's recipes.
    dtensor: each collective of tensor parallelism waits where it stands, with nothing but its own product beside it.
    transformer_engine: its layers are Transformer Engine's.
    plain_dispatch: its own configurations send tokens to experts by all-to-all.
    megatron_core: trains with Megatron-Core, or the Megatron-LM that it came from.
    stand_ins: a tensor for each shape of a weight stands for gradients that are in their buffer already.
    master_shards: FSDP shards FP32 parameters, which the optimizer updates.
    foreach_adam: Adam is a row of kernels for all tensors together.
    large_buckets: recipes cut gradients into buckets of 128 Mi elements.
    checks_gradients, checks_loss: training can look for NaN in gradients, and in the loss of each micro-batch.
    wide_heads_apart: cuDNN has no backward pass of wide heads for Blackwell.
    loop: fixed seconds of a step, 0 for those of published trainings. [s]
    title: the family in words. names: framework whose names of knobs its configuration has, as `costmodel.knobs.names`
    lists them; "" where they are not on file. names_from: the release from which on they are its own, "" for all.
    """

    family: str
    release: str
    attention: str
    early_stop: bool
    expert_bias_fused: bool = False
    scatter_gather: bool = False
    plain_norms: bool = False
    packs_attention: bool = False
    wheels: bool = False
    native_loss: bool = False
    composed_norms: bool = False
    whole_step: bool = False
    hybrid_dispatch: bool = False
    fp4_apart: bool = False
    norm_linear: bool = False
    collective_mean: bool = False
    norm_maxima: bool = False
    plain_squared_relu: bool = False
    wide_heads_apart: bool = False
    complex_rotary: bool = False
    separate_gate: bool = False
    reads_documents: bool = False
    documents_apart: bool = False
    early_zero3: bool = False
    fsdp1: bool = False
    fsdp2: bool = False
    root_unit: bool = False
    defers_gradients: bool = False
    partial_rings: bool = False
    unbalanced_rings: bool = False
    dtensor: bool = False
    torchao: bool = False
    megatron_core: bool = False
    transformer_engine: bool = False
    plain_dispatch: bool = False
    stand_ins: bool = False
    master_shards: bool = False
    foreach_adam: bool = False
    loop: float = 0.0
    large_buckets: bool = False
    checks_gradients: bool = False
    checks_loss: bool = False
    title: str = ""
    names: str = ""
    names_from: str = ""

    @property
    def kernels(self) -> str:
        """Which of a precision recipe's own kernels in `precision.toml` the stack has; "" for the usual ones."""
        return "torchao" if self.torchao else "apart" if self.fp4_apart else ""

    @property
    def name(self) -> str:
        """family-release."""
        return f"{self.family}-{self.release}" if self.release else self.family

    def with_heads(self, width: int, generation: str) -> Stack:
        """The stack with the attention kernel that heads of `width` train with on a generation of GPUs."""
        apart = self.wide_heads_apart and width > WIDEST_FUSED_HEAD and generation in DATACENTRE_BLACKWELL
        return replace(self, attention="flash2") if apart else self


@lru_cache(maxsize=1)
def families() -> dict[str, dict[str, Any]]:
    """The families of `stacks.toml` by name."""
    with STACK_FILE.open("rb") as file:
        return tomllib.load(file)


def default_stack() -> str:
    """Newest release of the first family: what an answer assumes when none is named."""
    name, family = next(iter(families().items()))
    return f"{name}-{family['newest']}"


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

    def known(name: str, otherwise: str) -> int:
        return months(family.get(name, otherwise))

    age = months(release) if release else None

    def begun(name: str) -> bool:
        # What a family without releases has, it has now.
        return name in family and (age is None or age >= months(family[name]))

    early = age is not None and age <= known("early_until", "00.01")
    early_names = age is not None and age <= known("early_names_until", "00.01")
    native = age is not None and not known("native_loss_until", "00.01") < age < known(
        "native_loss_from", "99.12"
    )
    flags = (
        "scatter_gather",
        "plain_norms",
        "norm_linear",
        "collective_mean",
        "packs_attention",
        "wheels",
        "complex_rotary",
        "separate_gate",
        "reads_documents",
        "partial_rings",
        "fsdp1",
        "fsdp2",
        "defers_gradients",
        "dtensor",
        "torchao",
        "megatron_core",
        "transformer_engine",
        "plain_dispatch",
        "master_shards",
    )
    return Stack(
        name,
        release,
        family["early_attention" if early else "attention"],
        family["early_stop"],
        expert_bias_fused=age is not None and age >= known("expert_bias_fused_from", "99.12"),
        **{flag: family.get(flag, False) for flag in flags},
        loop=family.get("loop", 0.0),
        title=family["title"],
        names=family["early_names" if early_names else "names"] if "names" in family else "",
        names_from=family.get("names_from", ""),
        native_loss=native,
        composed_norms=age is not None and age <= known("composed_norms_until", "00.01"),
        hybrid_dispatch=age is not None and age >= known("hybrid_dispatch_from", "99.12"),
        whole_step=age is not None and age >= known("whole_step_from", "99.12"),
        norm_maxima=begun("norm_maxima_from"),
        fp4_apart=age is not None and age <= known("fp4_apart_until", "00.01"),
        stand_ins=age is not None and age >= known("stand_ins_from", "99.12"),
        unbalanced_rings=age is not None and age <= known("unbalanced_rings_until", "00.01"),
        early_zero3=age is not None and age <= known("early_zero3_until", "00.01"),
        foreach_adam=age is not None and age <= known("foreach_adam_until", "00.01"),
        large_buckets=begun("large_buckets_from"),
        checks_gradients=begun("checks_gradients_from"),
        checks_loss=begun("checks_loss_from"),
        root_unit=age is not None and age <= known("root_unit_until", "00.01"),
        documents_apart=age is not None
        and not known("documents_apart_until", "00.01") < age < known("documents_apart_from", "99.12"),
        wide_heads_apart=age is not None and age < known("wide_heads_from", "00.01"),
        plain_squared_relu=age is not None
        and known("plain_squared_relu_from", "99.12") <= age <= known("plain_squared_relu_until", "99.12"),
    )


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
