"""A prediction: the step's time and memory as trees of terms, what it waits for, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from costmodel.evidence import Near
from costmodel.evidence.mfu import beyond_published
from costmodel.host_memory import node_bytes
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.term import formula_source
from costmodel.workload import Workload
from hardware_db import Cluster, Platform, platform_of

# A plan whose device memory is above this share of the usable memory does not fit; above TIGHT it is slow and fragile.
FITS_BELOW = 0.97
TIGHT_ABOVE = 0.94


@dataclass(frozen=True)
class TermValue:
    """A term with its number. value is in `unit`; parts sum to it. formula is a dotted function name."""

    name: str
    title: str
    unit: str
    value: float
    formula: str
    parts: tuple[TermValue, ...] = ()

    def to_dict(self, total: float | None = None) -> dict[str, Any]:
        """DESIGN's term object: name, seconds or bytes, share of the root, formula and its source, parts."""
        whole = self.value if total is None else total
        return {
            "name": self.name,
            "title": self.title,
            {"s": "seconds", "byte": "bytes"}.get(self.unit, self.unit): self.value,
            "share": self.value / whole if whole else 0.0,
            "formula": self.formula,
            "source": formula_source(self.formula),
            "parts": [part.to_dict(whole) for part in self.parts],
        }

    def names(self) -> Iterable[str]:
        """Its own name and those of all its parts."""
        yield self.name
        for part in self.parts:
            yield from part.names()

    def leaves(self) -> Iterable[TermValue]:
        """Terms without parts, in order."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True)
class Prediction:
    """One plan's step: time and memory with their trees. Units in the names; mfu without recompute.

    interval_basis: what the interval rests on, in a sentence; evidence: the nearest published runs. values: every
    entry of the step by name; memory_values: those that memory was counted with, of sequences of seq_len, where the
    step is timed with sequences padded to the longest of a batch; else empty.
    host_bytes: stage -> what one of its ranks keeps in host memory, empty where nothing is offloaded. [byte]
    """

    model: ModelSpec
    workload: Workload
    cluster: Cluster
    plan: Plan
    step_time_s: float
    tokens_per_second_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    mfu_peak: str
    interval_low: float
    interval_high: float
    interval_level: float
    peak_memory_bytes: float
    device_bytes: float
    worst_stage: str
    time: TermValue
    memory: TermValue
    values: dict[str, float] = field(repr=False)
    sources: dict[str, str] = field(repr=False)
    features: frozenset[str] = frozenset()
    bound_by: str = ""
    assumptions: tuple[str, ...] = ()
    interval_basis: str = ""
    evidence: tuple[Near, ...] = ()
    memory_values: dict[str, float] = field(default_factory=dict, repr=False)
    host_bytes: dict[str, float] = field(default_factory=dict, repr=False)

    def behind(self, name: str) -> dict[str, float]:
        """The entries that the entry `name` was counted with: those of memory where it is a term of it."""
        apart = self.memory_values and name in set(self.memory.names())
        return self.memory_values if apart else self.values

    @property
    def platform(self) -> Platform:
        """What surrounds the cluster's GPUs, in whose words titles are told."""
        return platform_of(self.cluster.gpu.vendor)

    @property
    def reserved_bytes(self) -> float:
        """What the allocator of the worst rank takes from the device: all but context and libraries. [byte]"""
        return self.peak_memory_bytes - self._memory_part("context")

    @property
    def allocated_bytes(self) -> float:
        """Peak of live tensors on the worst rank, torch's max_memory_allocated: reserved less fragmentation. [byte]"""
        return self.reserved_bytes - self._memory_part("fragmentation")

    def _memory_part(self, name: str) -> float:
        return sum(part.value for part in self.memory.parts if part.name.endswith(f"_{name}"))

    @property
    def fits(self) -> bool:
        """Whether what the worst rank takes of the device, reserved and context, leaves it room to live."""
        return self.peak_memory_bytes <= FITS_BELOW * self.device_bytes

    @property
    def tight(self) -> bool:
        """Whether the peak is so near the device's memory that the allocator will stall."""
        return self.peak_memory_bytes > TIGHT_ABOVE * self.device_bytes

    @property
    def node_host_bytes(self) -> tuple[float, float]:
        """Host memory that offloading takes of the fullest node: at least, and at most. [byte]

        See `costmodel.host_memory.node_bytes`. Not counted is what the system, data loaders and checkpoints take.
        """
        if not self.host_bytes:
            return 0.0, 0.0
        plan = self.plan
        fullest, emptiest = max(self.host_bytes.values()), min(self.host_bytes.values())
        ranks = plan.tp * plan.cp * plan.dp
        least, most = node_bytes(fullest, emptiest, ranks, plan.pp, self.cluster.gpus_per_node)
        return float(least), float(most)

    @property
    def fits_host(self) -> bool:
        """Whether what is offloaded can fit the fullest node's host memory; True where that is not on file."""
        whole = self.cluster.host_memory
        return whole is None or self.node_host_bytes[0] <= whole

    @property
    def beyond_published(self) -> str:
        """A sentence where no published run on such GPUs has the MFU predicted, else ""."""
        return beyond_published(self.mfu, self.cluster.gpu, self.plan.precision, self.workload.task)

    def to_dict(self) -> dict[str, Any]:
        """The object that `predict --json` prints."""
        gib = 2**30
        least, most = self.node_host_bytes
        host = {"host_node_gib": {"least": least / gib, "most": most / gib}} if most else {}
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "gpus": self.plan.world,
            "workload": self.workload.to_dict(),
            "knobs": self.plan.to_dict(),
            "step_time_s": self.step_time_s,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "model_tflops_per_gpu": self.model_tflops_per_gpu,
            "mfu": self.mfu,
            "mfu_peak": self.mfu_peak,
            "mfu_beyond_published": self.beyond_published or None,
            "interval": {
                "low": self.interval_low,
                "high": self.interval_high,
                "level": self.interval_level,
                "basis": self.interval_basis,
            },
            "evidence": [near.to_dict() for near in self.evidence],
            "memory": {
                "worst_rank_gib": self.peak_memory_bytes / gib,
                "allocated_gib": self.allocated_bytes / gib,
                "reserved_gib": self.reserved_bytes / gib,
                "device_gib": self.device_bytes / gib,
                "fits": self.fits,
                "tight": self.tight,
                "worst_stage": self.worst_stage,
                "components": {part.title: part.value / gib for part in self.memory.parts},
                **host,
            },
            "terms": self.time.to_dict(),
            "memory_terms": self.memory.to_dict(),
            "bound_by": self.bound_by,
            "assumptions": list(self.assumptions),
        }


# What a simulated pipeline takes beyond the closed form: the term that `simulated_pipeline.with_schedule` adds.
CORRECTION = "schedule_correction"
# Waits of a run outside its passes, by who makes it wait: also what logs and phases of a run are compared by.
DATA_PARALLEL = ("dp_gradients", "dp_gather", "fsdp_exposed", "maxima")
PIPELINE = (
    "pipeline_bubble",
    "pipeline_send_recv",
    "pipeline_starts",
    CORRECTION,
    "shared_embedding",
)
# Which resource a leaf of the time tree waits for.
RESOURCES = {
    "GEMM rate": (
        "forward_linear",
        "backward_linear_dgrad",
        "backward_linear_wgrad",
        "forward_experts",
        "backward_experts",
        "forward_adapters",
        "backward_adapters",
        "vocabulary",
        "deferred_wgrad",
    ),
    "Muon's matrices": ("optimizer_muon",),
    "attention rate": ("forward_attention", "backward_attention"),
    "recurrent scan": ("forward_scan", "backward_scan"),
    "expert dispatch": ("forward_dispatch", "backward_dispatch", "forward_wait", "slower_layers"),
    "memory bandwidth": (
        "forward_elementwise",
        "backward_elementwise",
        "forward_quantise",
        "backward_quantise",
        "optimizer_step",
        "gradient_scaling",
        "nan_checks",
    ),
    "tensor-parallel communication": ("forward_tensor_parallel", "backward_tensor_parallel"),
    "context-parallel communication": ("forward_context_parallel", "backward_context_parallel"),
    "data-parallel communication": DATA_PARALLEL,
    "pipeline bubble and transfers": PIPELINE,
    "host and launch": ("host_bound", "launch_gaps", "step_fixed"),
    "host memory and its link": ("offload", "optimizer_host"),
    "recompute": ("recompute",),
    "stragglers": ("straggler_time", "length_variance"),
}


def resource_shares(time: TermValue) -> dict[str, float]:
    """Share of the step that waits for each resource, largest first. [1]"""
    leaves = {leaf.name: leaf.value for leaf in time.leaves()}
    shares = {
        name: sum(leaves.get(leaf, 0.0) for leaf in group) / time.value for name, group in RESOURCES.items()
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def bound_by(time: TermValue) -> str:
    """The resource that the step waits for most."""
    return next(iter(resource_shares(time)))
