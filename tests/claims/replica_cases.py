"""Llama 3 of 8B and 70B in replicas, and the collectives between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from claim_cases import step

from costmodel.prediction import Prediction
from hardware_db import Cluster


def llama_8b(gpus: int, batch: int = 0, where: str = "dgx-h100", **more: Any) -> Prediction:
    """Llama 3 8B with sequences of 8192; a sequence a GPU and step unless said."""
    return step("llama3-8b", where, gpus, 8192, batch or gpus, **more)


def llama_70b(where: str | Cluster = "dgx-h100", gpus: int = 64, batch: int = 256, **more: Any) -> Prediction:
    """Llama 3 70B with sequences of 8192."""
    return step("llama3-70b", where, gpus, 8192, batch, **more)


def collectives(prediction: Prediction) -> float:
    """Seconds of the gradient reduction and the parameter gather before any overlap."""
    return prediction.values["dp_reduce_scatter"] + prediction.values["dp_all_gather"]


def inputs(prediction: Prediction) -> SimpleNamespace:
    """Inputs and entries of a prediction as the formulas take them."""
    return SimpleNamespace(**prediction.values)


def tp4(where: str, **more: Any) -> Prediction:
    """70B with TP4 PP8 VPP5, tensor-parallel communication pipelined with its GEMMs."""
    return llama_70b(where, 64, 128, tp=4, pp=8, vpp=5, **more)
