"""Requests that tests of the space share: a model on a stub of a cluster, and all the plans of its space."""

from __future__ import annotations

from types import SimpleNamespace

from advisor.request import Request
from advisor.space import build_space
from costmodel.columns import plan_from_columns
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload

TINY = load_model("tiny-gpt")


LLAMA = load_model("llama3-70b")


def cluster(generation: str = "hopper", domain: int = 8, link: str = "nvlink4") -> SimpleNamespace:
    return SimpleNamespace(
        name="stub",
        domain_size=domain,
        gpu=SimpleNamespace(
            generation=generation,
            title=generation.upper(),
            vendor="NVIDIA",
            has_peers=True,
            get={"hbm_capacity_usable": 80 * 2**30}.get,
        ),
        intra=SimpleNamespace(name=link),
        inter=SimpleNamespace(name="ib-ndr-400"),
        host_link=SimpleNamespace(name="pcie5-x16"),
        has_nvlink_switch=link.startswith("nvlink"),
        has_c2c=False,
    )


def ask(model=TINY, gpus=4, seq_len=4096, batch=8, **more) -> Request:
    return Request(
        **{"model": model, "gpus": gpus, "cluster": cluster(), "workload": Workload(seq_len, batch)} | more
    )


def plans(request: Request, precision: str = "bf16", most: int | None = None) -> list[Plan]:
    """The first `most` plans of a space, all of them when not given."""
    space = build_space(request, precision)
    return [plan_from_columns(space.columns, index, precision) for index in range(space.legal)[:most]]
