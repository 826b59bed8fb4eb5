"""Llama 3 8B on H100s in any sizes, and the plan that a search recommends."""

from __future__ import annotations

from typing import Any

from claim_cases import cluster, step

from advisor.request import Request
from advisor.search import search
from advisor.search.candidates import Candidate
from costmodel.model_registry import load_model
from costmodel.prediction import Prediction
from costmodel.workload import Workload


def llama_8b(gpus: int = 8, seq_len: int = 8192, batch: int = 128, **knobs: Any) -> Prediction:
    """Llama 3 8B on H100s."""
    return step("llama3-8b", "dgx-h100", gpus, seq_len, batch, **knobs)


def best(model: str, where: str, gpus: int, seq_len: int, batch: int, **pins: int) -> Candidate:
    """The plan that the advisor recommends, with its prediction."""
    request = Request(
        model=load_model(model),
        gpus=gpus,
        cluster=cluster(where),
        workload=Workload(seq_len, batch),
        precisions=("fp8-cs",),
        pins=pins,
        top=1,
    )
    found = search(request).best
    assert found is not None
    return found
