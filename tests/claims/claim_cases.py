"""Configurations shared by the tests of claims: published recipes, and what of a prediction they look at.

A claim is a statement of the tuning guides or of published tuning work; each test is named by its id and
asserts the statement on the configuration that it was made for. Numbers are those of the claim, never of the
model: constants may be fitted again without touching a test.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from advisor.rules import Violation, violations
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule
from costmodel.workload import Workload
from hardware_db import Cluster, load_cluster

GB = 1e9
MIB = 2**20
GIB = 2**30
GEMMS = ("forward_linear", "backward_linear_dgrad", "backward_linear_wgrad")
EXPERT_GEMMS = ("forward_experts", "backward_experts")
QUANTISE = ("forward_quantise", "backward_quantise")
DISPATCH = ("forward_dispatch", "backward_dispatch")
DATA_PARALLEL = ("dp_gradients", "dp_gather", "fsdp_exposed")
TENSOR_PARALLEL = ("forward_tensor_parallel", "backward_tensor_parallel")
CONTEXT_PARALLEL = ("forward_context_parallel", "backward_context_parallel")


@cache
def cluster(name: str) -> Cluster:
    """A cluster by name, read once."""
    return load_cluster(name)


def plan_of(gpus: int, **knobs: Any) -> Plan:
    """A plan on `gpus` GPUs as published recipes run it, dp from the rest of the sizes.

    Sequence parallel and overlapped tensor-parallel communication with tp, gradients reduced in BF16; every
    knob can be given otherwise.
    """
    tp = knobs.get("tp", 1)
    replica = tp * knobs.get("pp", 1) * knobs.get("cp", 1)
    assert gpus % replica == 0
    usual = {
        "dp": gpus // replica,
        "sequence_parallel": tp > 1,
        "tp_comm_overlap": tp > 1,
        "grad_reduce_in_fp32": False,
    }
    if knobs.get("fsdp"):
        usual["zero_stage"] = 3
    return Plan(**usual | knobs)


def step(
    model: str | ModelSpec,
    where: str | Cluster,
    gpus: int,
    seq_len: int,
    batch: int,
    *,
    load: dict[str, Any] | None = None,
    stack: str | None = None,
    **knobs: Any,
) -> Prediction:
    """The predicted step with its pipeline simulated. load: further fields of the workload, as its task."""
    spec = load_model(model) if isinstance(model, str) else model
    place = cluster(where) if isinstance(where, str) else where
    workload = Workload(seq_len, batch, **(load or {}))
    return with_schedule(predict(spec, workload, place, plan_of(gpus, **knobs), stack))


def broken(
    model: str | ModelSpec,
    where: str,
    gpus: int,
    seq_len: int,
    batch: int,
    *,
    load: dict[str, Any] | None = None,
    **knobs: Any,
) -> list[Violation]:
    """Rules that a plan breaks on that many GPUs."""
    spec = load_model(model) if isinstance(model, str) else model
    plan = plan_of(gpus, **knobs)
    return violations(spec, Workload(seq_len, batch, **(load or {})), cluster(where), plan, gpus)


def errors(found: list[Violation]) -> list[str]:
    """Lines of the violations that forbid a plan."""
    return [each.line() for each in found if each.severity == "ERROR"]


def spent(prediction: Prediction, *leaves: str) -> float:
    """Seconds of some leaves of the time tree together."""
    known = {leaf.name: leaf.value for leaf in prediction.time.leaves()}
    return sum(known.get(name, 0.0) for name in leaves)


def held(prediction: Prediction, part: str) -> float:
    """Bytes of one part of the worst rank's memory: weights, gradients, optimizer, activations, ..."""
    return sum(leaf.value for leaf in prediction.memory.leaves() if leaf.name.endswith(f"_{part}"))


def speedup(slow: Prediction, fast: Prediction) -> float:
    """Tokens a second and GPU of `fast` over those of `slow`. [1]"""
    return fast.tokens_per_second_per_gpu / slow.tokens_per_second_per_gpu


def selective(*modules: str) -> dict[str, Any]:
    """Knobs that recompute those modules."""
    return {"recompute": "selective", "recompute_modules": modules} if modules else {}
