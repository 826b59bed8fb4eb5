"""Laws of a ring: a second domain never makes it quicker, whatever the message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.timing.network import all_gather_time, reduce_scatter_time
from costmodel.workload import Workload

CLUSTERS = ("a100", "h100", "b200", "gb200", "gb300")
INPUTS = {
    name: SimpleNamespace(
        **predict(
            load_model("llama3-8b"), Workload(8192, 8), hardware_db.resolve(name, None)[0], Plan(dp=8)
        ).values
    )
    for name in CLUSTERS
}


@pytest.mark.parametrize("formula", [all_gather_time, reduce_scatter_time])
@given(
    name=st.sampled_from(CLUSTERS),
    size=st.floats(1e3, 1e10),
    ranks=st.integers(2, 72),
    parts=st.integers(2, 8),
)
def test_a_ring_over_several_domains_is_no_quicker_than_in_one(formula, name, size, ranks, parts):
    x, ranks = INPUTS[name], ranks * parts
    whole = formula(x, size, ranks, ranks)
    assert formula(x, size, ranks, ranks / parts) >= whole * (1 - 1e-9)


@pytest.mark.parametrize("formula", [all_gather_time, reduce_scatter_time])
@given(name=st.sampled_from(CLUSTERS), size=st.floats(1e3, 1e10), domains=st.integers(1, 64))
def test_every_further_domain_costs_a_ring_its_hops(formula, name, size, domains):
    x = INPUTS[name]
    inside = x.domain
    some, more = (formula(x, size, inside * number, inside) for number in (domains, domains + 1))
    assert more > some
