"""Predictions on H100s that the laws of single terms share, and a term of one by its name."""

from __future__ import annotations

from typing import Any

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]


def llama(**knobs: Any) -> Prediction:
    return predict(load_model("llama3-8b"), Workload(8192, 64), H100, Plan(dp=8, **knobs))


def qwen(**knobs: Any) -> Prediction:
    return predict(load_model("qwen3-30b-a3b"), Workload(4096, 512), H100, Plan(dp=16, **knobs))


def leaf(prediction: Prediction, name: str) -> float:
    return sum(term.value for term in prediction.time.leaves() if term.name == name)


def llama_of_four_stages(vpp: int, dp: int = 2) -> Prediction:
    return predict(load_model("llama3-8b"), Workload(8192, 64 * dp), H100, Plan(pp=4, dp=dp, vpp=vpp))
