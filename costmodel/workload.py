"""What has to be computed: sequence length, batch and task."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

LORA_TARGETS = ("qkv", "attention", "all")
TASKS = ("pretrain", "sft", "lora")
# What padded batches are rounded up to. Source: NeMo 2.5, llm/gpt/data/core.py:139, pad_seq_length_to_mult.
PADDED_TO = 16
# Tokens of the busiest expert rank over the mean, at most.
MOST_IMBALANCE = 64


@dataclass(frozen=True)
class Workload:
    """One optimizer step of training.

    seq_len: tokens in one sequence (of a pack, when sequences are packed). global_batch: sequences (or packs)
    in one optimizer step over all GPUs. mean_length: mean tokens of a document, 0 when each fills its
    sequence; length_cv: standard deviation of its length over the mean, None when nobody says; packed: documents
    fill sequences together rather than each being padded, see `padded_to_longest`. lora_rank, lora_targets: adapters
    of task lora and whether QKV, attention or all dense layers have them.
    moe_imbalance: tokens of the busiest expert rank over the mean, 1 is balanced. moe_adjacent: a token's experts
    stand side by side, as the gate of AutoModel's benchmarks deals them out.
    Raises ValueError with one line when a number cannot be meant.
    """

    seq_len: int
    global_batch: int
    task: str = "pretrain"
    mean_length: int = 0
    length_cv: float | None = None
    packed: bool = True
    lora_rank: int = 16
    lora_targets: str = "all"
    moe_imbalance: float = 1.0
    moe_adjacent: bool = False

    def __post_init__(self) -> None:
        for name, largest, example in (("seq_len", 2**24, 4096), ("global_batch", 2**22, 128)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
                option = "--" + name.replace("_", "-")
                instead = largest if nearest(value, 1, largest) == largest else example
                raise ValueError(
                    f"{option} {value!r} is not a whole number from 1 to {largest}. Try {option} {instead}."
                )
        for name, least, most in (("mean_length", 0, self.seq_len), ("lora_rank", 1, 4096)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                option = "--" + name.replace("_", "-")
                what = f"{most}, the sequence length" if name == "mean_length" else f"{most}"
                way = f"{option} {nearest(value, least, most)}"
                raise ValueError(
                    f"{option} {value!r} is not a whole number from {least} to {what}. Try {way}."
                )
        for name, low, high in (("length_cv", 0, 10), ("moe_imbalance", 1, MOST_IMBALANCE)):
            number = getattr(self, name)
            if number is None and name == "length_cv":
                continue
            if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
                option = "--" + name.replace("_", "-")
                way = f"{option} {nearest(number, low, high)}"
                raise ValueError(f"{option} {number!r} is not a number from {low} to {high}. Try {way}.")
        if self.lora_targets not in LORA_TARGETS:
            raise ValueError(f"--lora-targets {self.lora_targets!r} is not one of {', '.join(LORA_TARGETS)}.")
        if self.task not in TASKS:
            raise ValueError(f"--task {self.task!r} is not one of {', '.join(TASKS)}.")

    @property
    def fill(self) -> float:
        """Share of the tokens computed that are documents' own, the rest is padding. [1]

        Padded, a sequence holds one document. Packs are filled in the order of the data: of equal documents as many as
        fit; of unequal ones half of that which does not fit any more stays empty, and it is one of the longer ones,
        mean (1 + cv^2). Between them as far as the lengths of a full pack spread, in documents; lengths of unknown
        spread are unequal. A pack holds one document at least. Source: W. Feller, An Introduction to Probability
        Theory, vol. 2, 1971, sec. XI.4 (residual waiting times).
        """
        mean, whole = self.mean_length, self.seq_len
        if not 0 < mean < whole:
            return 1.0
        if not self.packed:
            return mean / whole
        cv = self.length_cv or 0.0
        fitting = whole // mean
        equal = fitting * mean / whole
        unequal = max(1 - self.weighted_length / (2 * whole), mean / whole)
        spread = 1.0 if self.length_cv is None else min(cv * math.sqrt(fitting), 1.0)
        return equal + spread * (unequal - equal)

    @property
    def weighted_length(self) -> float:
        """Mean length of the document that a token is in: mean (1 + cv^2), a sequence at most. [token]"""
        return min(self.mean_length * (1 + (self.length_cv or 0.0) ** 2), self.seq_len)

    @property
    def tokens_per_step(self) -> int:
        """Documents' own tokens in one optimizer step, without padding. [1]"""
        return round(self.fill * self.seq_len * self.global_batch)

    @property
    def longest(self) -> int:
        """Tokens of the longest document of one global batch: seq_len where lengths or their spread are not said. [1]

        Of fine-tuning without packing; data sets of pretraining fill their sequences.

        The largest of n normal lengths is expected at most mean (1 + cv sqrt(2 ln n)); those with a long tail reach
        further. Source: S. Boucheron et al., Concentration Inequalities, 2013, sec. 2.5.
        """
        if self.task == "pretrain" or self.packed or not self.mean_length or self.length_cv is None:
            return self.seq_len
        reach = self.mean_length * (1 + self.length_cv * math.sqrt(2 * math.log(self.global_batch)))
        return min(math.ceil(reach / PADDED_TO) * PADDED_TO, self.seq_len)

    def padded_to_longest(self) -> Workload:
        """The workload of a step whose sequences are padded to the longest of its batch.

        A rank pads to the longest document of its own share of the global batch, all micro-batches alike, and the
        others wait for the rank with the longest of all: its step is the step. Memory must hold seq_len, which some
        batch reaches. Source: Megatron-Bridge 0.3.1, data/samplers.py:267-279 and data/datasets/sft.py:699-703;
        NeMo 2.5, llm/gpt/data/core.py:617-627.
        """
        return self if self.longest == self.seq_len else replace(self, seq_len=self.longest, length_cv=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as plan files hold them: without what nobody says."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def nearest(value: Any, least: float, most: float) -> float:
    """What a number between two may be that is nearest to what was given; the least for what is no number."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return min(max(value, least), most) if number else least
