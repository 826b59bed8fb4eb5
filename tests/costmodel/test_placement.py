"""Groups of ranks on domains, against enumeration of every rank in Megatron's order tp-cp-ep-dp-pp."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.placement import network_reduces, smaller_side, straddling_groups, used_domain
from costmodel.work.communication import ranks_in_domain

domains = st.sampled_from([4, 8, 16, 36, 72])
degrees = st.sampled_from([1, 2, 3, 4, 8])


def groups_by_enumeration(tp, cp, dp, pp, keep):
    """Groups of ranks that differ in the dimensions of `keep` alone."""
    groups = defaultdict(list)
    for rank in range(tp * cp * dp * pp):
        rest, t = divmod(rank, tp)
        rest, c = divmod(rest, cp)
        p, d = divmod(rest, dp)
        where = {"tp": t, "cp": c, "dp": d, "pp": p}
        groups[tuple(value for name, value in where.items() if name not in keep)].append(rank)
    return list(groups.values())


def uneven(group, domain):
    """Ranks that each domain holds."""
    return sorted(Counter(rank // domain for rank in group).values())


@settings(max_examples=150)
@given(domains, degrees, degrees, degrees, degrees, st.sampled_from(["cp", "dp", "dp cp"]))
def test_smaller_side_is_that_of_every_rank_counted(domain, tp, cp, dp, pp, dimensions):
    """The fewest ranks that any unevenly placed group has in one domain."""
    keep = dimensions.split()
    ranks = {"cp": cp, "dp": dp, "dp cp": dp * cp}[dimensions]
    stride = tp if "cp" in keep else tp * cp
    found = smaller_side(domain, tp * cp * dp, pp, ranks, stride)
    usual = min(ranks, max(domain // stride, 1))
    sides = []
    for group in groups_by_enumeration(tp, cp, dp, pp, keep):
        counts = uneven(group, domain)
        if len(counts) > 1 and counts[0] < usual:
            sides.append(counts[0])
    if len(sides) <= 64:  # the search for groups stops there
        assert found == min(sides, default=0)


def test_a_group_that_an_edge_cuts_in_halves_straddles():
    """Stages of 16 GPUs on domains of 72: the fifth is GPUs 64 to 79, eight on either side."""
    assert smaller_side(72, 16, 8, 16, 1) == 8


def test_three_ranks_inside_a_block_of_whole_domains_straddle():
    """tp 4, cp 3, dp 2 on domains of 8: the first context group is GPUs 0, 4 | 8, two and one."""
    assert smaller_side(8, 24, 1, 3, 4) == 1


@settings(max_examples=100)
@given(domains, degrees, degrees, degrees, degrees)
def test_ranks_in_domain_are_those_of_the_worst_group(domain, tp, cp, dp, pp):
    """Where no group straddles, min(ranks, domain / stride) ranks of each group share a domain."""
    side = smaller_side(domain, tp * cp * dp, pp, cp, tp)
    x = SimpleNamespace(domain=domain)
    found = ranks_in_domain(x, cp, tp, side)
    counts = [uneven(group, domain) for group in groups_by_enumeration(tp, cp, dp, pp, ["cp"])]
    if side:
        assert found == side
    elif domain % tp == 0:
        assert all(min(count) >= found for count in counts)


def test_a_later_stage_of_an_nvl72_straddles():
    """The example of the docstring, rank by rank: 2 of 16 ranks in the first domain, 14 in the second."""
    group = straddling_groups(domain=72, block=64, pp=4, ranks=16, stride=4)[0]
    assert group.stage == 1
    assert group.per_domain == (2, 14)
    assert group.ranks == tuple(range(64, 128, 4))


@given(domains, degrees, degrees, degrees)
def test_every_straddling_group_is_told_as_it_is(domain, tp, dp, pp):
    for group in straddling_groups(domain, tp * dp, pp, dp, tp):
        counts = Counter(rank // domain for rank in group.ranks)
        assert group.per_domain == tuple(counts[key] for key in sorted(counts))
        assert {rank // (tp * dp) for rank in group.ranks} == {group.stage}


@pytest.mark.parametrize(
    ("domain", "world", "segment", "used"),
    [
        (72, 64, 0, 72),
        (72, 72, 0, 72),
        (72, 128, 0, 64),
        (72, 512, 72, 72),
        (72, 512, 32, 32),
        (8, 1024, 0, 8),
        (8, 1024, 16, 8),
        (36, 64, 0, 32),
        (1, 8, 0, 1),
    ],
)
def test_gpus_of_a_domain_that_a_job_uses(domain, world, segment, used):
    assert used_domain(domain, world, segment) == used


@given(st.integers(1, 72), degrees, degrees, degrees, degrees)
def test_nothing_straddles_inside_one_domain(domain, tp, cp, dp, pp):
    if tp * cp * dp * pp <= domain:
        assert smaller_side(domain, tp * cp * dp, pp, dp, tp * cp) == 0


@pytest.mark.parametrize(
    ("link", "reduces"),
    [("ib-hdr-200", True), ("infiniband-own", True), ("roce-400", False), ("ibex-10", False)],
)
def test_switches_of_infiniband_alone_reduce(link, reduces):
    assert network_reduces(link) == reduces
