"""Layers of a job's pipeline stages: as torchtitan splits them, or as the job names them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchtitan_jobs import SEVENTY, P, case, toml

from advisor.torchtitan.job import read_job
from advisor.torchtitan.pipeline import pipeline_of


@given(layers=st.integers(1, 200), pp=st.integers(2, 16), first=st.integers(0, 3), last=st.integers(0, 3))
def test_layers_are_split_as_torchtitan_splits_them(layers, pp, first, last):
    """All of them, as many as others where embedding and output count as layers, and the first stages have one more."""
    less = "parallelism.pipeline_parallel_{}_stage_less_layers"
    job = read_job(toml({less.format("first"): first, less.format("last"): last}))
    if (layers + first + last) // pp < max(first, last, 1):
        with pytest.raises(ValueError, match="leave one without"):
            pipeline_of(job, layers, pp, [])
        return
    found = pipeline_of(job, layers, pp, [])
    if found.flags:
        assert (first, last, (layers + 2) % pp) == (1, 1, 0)
        return
    counts = [stage.count("t") for stage in found.layout.split("|")]
    assert (len(counts), sum(counts)) == (pp, layers)
    weights = [first + counts[0], *counts[1:-1], counts[-1] + last]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] - weights[-1] <= 1


def test_named_modules_are_the_layout():
    parts = [["tok_embeddings", "layers.0"], [f"layers.{n}" for n in range(1, 80)] + ["norm", "output"]]
    plan = case(
        SEVENTY | {f"{P}pipeline_parallel_degree": 2, f"{P}module_fqns_per_model_part": parts}, gpus=16
    ).plan
    assert plan.pipeline_layout == "Et|" + "t" * 79 + "L"
