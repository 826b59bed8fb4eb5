"""What goes into an export and what comes out of it, the same for every target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from hardware_db import Cluster

TARGETS = ("megatron-bridge", "nemo", "megatron-lm")
# Shell variables of a launch script that say how long to train and how fast to learn: name to default and meaning.
SCHEDULE = {
    "TRAIN_ITERS": ("1000", "optimizer steps"),
    "LR": ("3e-4", "peak learning rate: yours to choose"),
    "MIN_LR": ("3e-5", "learning rate at the end"),
    "WARMUP_ITERS": ("100", "steps of warm-up"),
}


@dataclass(frozen=True)
class Job:
    """A plan with all that its export needs.

    benchmark: also settings for benchmarks only (forced routing balance, mock data, no NaN checks). version: of the
    target, "" for the newest known. native_loss: the fused loss that was priced is Megatron-Core's own, not
    Transformer Engine's.
    """

    plan: Plan
    workload: Workload
    model: ModelSpec
    cluster: Cluster
    benchmark: bool = False
    version: str = ""
    native_loss: bool = False


@dataclass(frozen=True)
class Exported:
    """A plan as one target takes it.

    settings: the target's own names and values, as tests and the way back read them. files: name to text, of what
    stands beside the launch line (a recipe, overrides). command: what each process runs, the launcher apart.
    notes: what the target cannot say, or says otherwise, a line each.
    """

    target: str
    version: str
    settings: Mapping[str, Any]
    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """A target's configuration read back.

    knobs: values of `Plan` by name, without those left at the target's default of the same meaning. model: the
    name in our registry, "" when only its shape is given, which `architecture` then holds. workload: seq_len,
    global_batch and the like. unread: what has no counterpart here, a line each. left_open: what is said by variables
    that the text does not set, a line each. unsaid: knobs that a recipe below the text sets and the text does not.
    otherwise: what is read otherwise
    than it is said, or holds for some releases alone, a line each. alike: models that the text may mean, the one
    read first, where it leaves open which. vocab: its vocabulary where that is not the model's, else 0. [tokens]
    gpus: ranks that a launch line names, 0 where none does; options may say others. [1]
    stack: software release that its settings belong to, "" for the newest.
    unseen: knobs that stand in an environment or a launch line, of which the text has none.
    batches: smaller ones before the global batch is reached, that must be shared out evenly. [1]
    mtp_heads: heads of multi-token prediction that the text says [1], None where it says nothing of them.
    positions: length of the table of learned positions that the text says, 0 for none. [1]
    table: file of the overlapped GEMMs that the text names, "" for none.
    needs_tp: switches that the target's parser turns off with tp = 1.
    """

    knobs: Mapping[str, Any]
    model: str = ""
    architecture: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    left_open: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    vocab: int = 0
    gpus: int = 0
    stack: str = ""
    unseen: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    mtp_heads: int | None = None
    positions: int = 0
    table: str = ""
    needs_tp: tuple[str, ...] = ()
