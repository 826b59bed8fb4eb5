"""Where a plan's groups stand: inside one scale-up domain, over several, or straddling the edge of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from costmodel.placement import Group, straddling_groups, used_domain
from costmodel.prediction import Prediction


@dataclass(frozen=True)
class Placed:
    """One kind of group: ranks of it, GPUs between neighbours, ranks that share a domain, one that straddles.

    made_of: the sizes whose product its ranks are where that is not the one of its name, in words.
    """

    name: str
    ranks: int
    stride: int
    inside: int
    straddles: Group | None
    made_of: str = ""

    def text(self) -> str:
        """One line for people."""
        count = f"{self.made_of} = {self.ranks}" if self.made_of else f"{self.ranks}"
        if self.straddles is not None:
            first, last = self.straddles.ranks[0], self.straddles.ranks[-1]
            parts = shares(self.straddles.per_domain)
            return (
                f"{self.name}: {count} ranks, {self.stride} apart, straddle domains: ranks {first} to {last} of "
                f"pipeline stage {self.straddles.stage} lie {parts}, and the smaller side's network cards set the pace"
            )
        if self.inside >= self.ranks:
            return f"{self.name}: {count} ranks inside one domain"
        return (
            f"{self.name}: {count} ranks over {-(-self.ranks // self.inside)} domains, {self.inside} in each"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        group = self.straddles
        return {
            "group": self.name,
            "ranks": self.ranks,
            "stride": self.stride,
            "ranks_in_domain": self.inside,
            "straddles": None
            if group is None
            else {"stage": group.stage, "ranks": list(group.ranks), "per_domain": list(group.per_domain)},
        }


def shares(per_domain: Iterable[int]) -> str:
    """Ranks in each domain that a group meets, in order; of three equal ones or more in a row how many: 125 x 8 + 1."""
    runs = [(number, len(list(run))) for number, run in groupby(per_domain)]
    return " + ".join(
        f"{times} x {number}" if times > 2 else " + ".join([str(number)] * times) for number, times in runs
    )


def placement(prediction: Prediction) -> list[Placed]:
    """Every group of more than one rank, in Megatron's order tp-cp-ep-dp-pp."""
    plan = prediction.plan
    domain = used_domain(prediction.cluster.domain_size, plan.world, plan.nvl_segment)
    block = plan.tp * plan.cp * plan.dp
    groups = [
        ("tensor parallel", plan.tp, 1),
        ("context parallel", plan.cp, plan.tp),
        ("data parallel", plan.dp * plan.cp, plan.tp),
    ]
    if prediction.model.moe is not None:
        edp = max(block // (plan.ep * plan.etp), 1)
        groups += [("expert parallel", plan.ep, plan.etp), ("expert data parallel", edp, plan.ep * plan.etp)]
    found = []
    for name, ranks, stride in groups:
        if ranks > 1:
            straddling = straddling_groups(domain, block, plan.pp, ranks, stride, 1)
            inside = max(min(ranks, domain // stride), 1)
            made_of = f"dp {plan.dp} x cp {plan.cp}" if name == "data parallel" and plan.cp > 1 else ""
            found.append(Placed(name, ranks, stride, inside, straddling[0] if straddling else None, made_of))
    return found


def placement_lines(prediction: Prediction) -> list[str]:
    """Lines of the section; empty for one GPU."""
    plan, cluster = prediction.plan, prediction.cluster
    if plan.world == 1:
        return []
    used = used_domain(cluster.domain_size, plan.world, plan.nvl_segment)
    lines = [placed.text() for placed in placement(prediction)]
    if used < cluster.domain_size:
        lines.insert(
            0,
            f"{used} of the {cluster.domain_size} GPUs of each NVLink domain are used, so that groups align",
        )
    return lines
