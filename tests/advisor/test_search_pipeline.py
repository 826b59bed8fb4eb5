"""The replayed schedule of a pipeline against the closed form that search ranks by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.model_registry import load_model
from costmodel.passes import chunk_times, pipeline_arguments
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.simulate import simulate_pipeline
from costmodel.simulated_pipeline import with_schedule
from costmodel.workload import Workload
from hardware_db import resolve

LLAMA_8B = load_model("llama3-8b")
H100 = resolve("h100", None)[0]


class TestPipeline:
    plan = Plan(pp=4, vpp=2, dp=2, precision="bf16", zero_stage=1)
    workload = Workload(8192, 32)

    def predicted(self, **changes):
        return predict(LLAMA_8B, self.workload, H100, replace(self.plan, **changes))

    def test_one_stage_is_left_alone(self):
        closed = self.predicted(pp=1, vpp=1, dp=8)
        assert with_schedule(closed) is closed

    @pytest.mark.parametrize("vpp", [1, 2, 4])
    def test_chunks_sum_to_the_stages_of_the_model(self, vpp):
        closed = self.predicted(vpp=vpp)
        forward, backward = chunk_times(closed)
        sums = [sum(f) + sum(b) for f, b in zip(forward, backward, strict=True)]
        values = closed.values
        expected = [values["first_stage_time"], *[values["pace_stage_time"]] * 2, values["last_stage_time"]]
        assert sums == pytest.approx(expected)
        assert all(time > 0 for stage in (*forward, *backward) for time in stage)

    def test_the_step_is_never_shorter_than_the_slowest_stage(self):
        closed = self.predicted()
        m = self.plan.num_microbatches(32)
        assert (
            simulate_pipeline(**pipeline_arguments(closed)).makespan
            >= m * closed.values["slowest_stage_time"]
        )

    def test_correction_is_a_term_and_everything_follows_it(self):
        closed = self.predicted()
        exact = with_schedule(closed)
        assert exact.step_time_s == pytest.approx(sum(part.value for part in exact.time.parts))
        ratio = exact.step_time_s / closed.step_time_s
        assert exact.mfu * ratio == pytest.approx(closed.mfu)
        assert exact.interval_low < exact.step_time_s < exact.interval_high
        assert with_schedule(closed).step_time_s == exact.step_time_s

    def test_it_stays_near_the_closed_form_when_stages_are_nearly_equal(self):
        """Within one micro-batch's imbalance of embedding and loss at fill and drain: a few percent here."""
        closed = self.predicted(vpp=1)
        assert with_schedule(closed).step_time_s == pytest.approx(closed.step_time_s, rel=0.05)
