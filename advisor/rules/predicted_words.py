"""Words of the rules that only a predicted plan has; `advisor.rules.facts` leaves them unsaid, which is below 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.rules.setting_words import UNSAID

if TYPE_CHECKING:
    from costmodel.prediction import Prediction


# Forward products whose output user buffers scatter in chunks: entry of the scatter, entry of the product.
# Source: Transformer Engine's names proj_fprop and fc2_fprop, Megatron-Bridge 0.3.1 training/comm_overlap.py:204-252.
SCATTERED = (
    ("attention_reduce_scatter", "attention_proj_forward"),
    ("mla_reduce_scatter", "mla_proj_forward"),
    ("mlp_reduce_scatter", "mlp_fc2_forward"),
)
UNPREDICTED: dict[str, Any] = {"memory_percent": UNSAID, "scatter_percent": UNSAID}


def predicted_words(prediction: Prediction | None) -> dict[str, Any]:
    """memory_percent: peak over the device's memory. scatter_percent: the longest scatter over its product."""
    if prediction is None:
        return UNPREDICTED
    return {
        "memory_percent": round(100 * prediction.peak_memory_bytes / prediction.device_bytes),
        "scatter_percent": round(100 * longest_scatter(prediction.values)),
    }


def longest_scatter(values: Mapping[str, float]) -> float:
    """Time of a reduce-scatter over that of the forward product that it can hide under, the largest. [1]"""
    shares = [
        values[scatter] / values[gemm]
        for scatter, gemm in SCATTERED
        if values.get(scatter, 0) > 0 and values.get(gemm, 0) > 0
    ]
    return max(shares, default=0.0)
