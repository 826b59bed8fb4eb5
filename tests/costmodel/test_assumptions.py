"""What a prediction takes for granted of the machine is told."""

from __future__ import annotations

import pytest
from family_cases import unjudged

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from hardware_db import resolve


@pytest.mark.parametrize(
    ("gpu", "told"), [("h800", "h100-sxm"), ("a100-sxm-40", "a100-sxm-80"), ("h100", ""), ("mi300x", "")]
)
def test_kernel_tables_of_another_gpu_are_told(gpu, told):
    cluster = resolve(gpu, None)[0]
    found = unjudged(load_model("llama3-8b"), Workload(4096, 8), cluster, Plan(dp=8)).assumptions
    lines = [line for line in found if "no kernel tables of its own" in line]
    assert len(lines) == bool(told)
    assert not told or f"those of {told}," in lines[0]
