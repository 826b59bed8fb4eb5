"""What the page offers is what the command line would try."""

from __future__ import annotations

import pytest

from advisor.report.controls import offered
from advisor.whatif.neighbours import neighbours
from costmodel.model_registry import load_model
from costmodel.placement import segment_sizes
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import resolve


@pytest.mark.parametrize("dp", [36, 64])
def test_segments_of_a_domain_are_those_of_the_search_and_of_what_if(dp: int) -> None:
    cluster = resolve("gb200", None)[0]
    plan = Plan(tp=2, dp=dp, pp=2, sequence_parallel=True)
    found = predict(load_model("llama3-8b"), Workload(8192, 2 * dp), cluster, plan)
    control = next(each for each in offered(found) if each.knob == "nvl_segment")
    assert list(control.values) == segment_sizes(cluster.domain_size, cluster.gpus_per_node, plan.world)
    assert {0, cluster.domain_size} <= set(control.values)
    assert {each.after for each in neighbours(found, "nvl_segment")} == set(control.values) - {0}
