"""What has to be computed: sequence length, batch and task."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

TASKS = ("pretrain", "sft", "lora")


@dataclass(frozen=True)
class Workload:
    """One optimizer step of training.

    seq_len: tokens in one sequence. global_batch: sequences in one optimizer step over all GPUs.
    Raises ValueError with one line when a number cannot be meant.
    """

    seq_len: int
    global_batch: int
    task: str = "pretrain"

    def __post_init__(self) -> None:
        for name, largest in (("seq_len", 2**24), ("global_batch", 2**22)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
                option = "--" + name.replace("_", "-")
                raise ValueError(
                    f"{option} {value!r} is not a whole number from 1 to {largest}. Try {option} 4096."
                )
        if self.task not in TASKS:
            raise ValueError(f"--task {self.task!r} is not one of {', '.join(TASKS)}.")

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step. [1]"""
        return self.seq_len * self.global_batch

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as plan files hold them."""
        return asdict(self)
