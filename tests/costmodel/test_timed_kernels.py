"""Laws of single kernels beside their times on a lent H100 (hardware_db/measured/h100-sxm-2026-11-27-kernels.csv)."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

import hardware_db
from costmodel.work.attention import sink_gradient
from costmodel.work.router import ROUTER_SPLIT_KERNELS, choice_cycles, maps

KERNELS = Path(hardware_db.__file__).parent / "measured" / "h100-sxm-2026-11-27-kernels.csv"
# The cycles of the laws are of an H100's multiprocessors at its boost clock on file.
CYCLES = 132 * 1.83e9
GAP = 2.5e-6  # between two kernels on a stream (costmodel.timing.host.launch_gaps)


def timed(kernel: str) -> list[tuple[SimpleNamespace, float, float]]:
    """Settings of a kernel's runs with their microseconds forward and backward (0 where there are none)."""
    with KERNELS.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["kernel"] == kernel]
    return [
        (
            SimpleNamespace(
                **{key: int(value) for key, value in (one.split("=") for one in row["setting"].split())}
            ),
            float(row["forward_us"] or 0),
            float(row["backward_us"] or 0),
        )
        for row in rows
    ]


def one_rank(**known: float) -> SimpleNamespace:
    """Symbols of one rank of a Megatron-Core run, alone."""
    return SimpleNamespace(
        **(
            {"b": 1, "cp": 1, "tp": 1, "sp": 0, "etp": 1, "ep": 1, "router_aux": 0, "dispatch_once": 0}
            | {"dispatch_fused": 0, "permute_fused": 1, "plain_routers": 0, "plain_permutations": 0}
            | {"megatron_core": 1, "sinks": 1}
            | known
        )
    )


@pytest.mark.parametrize(("kernel", "fused", "within"), [("fused", 1, 0.17), ("PyTorch", 0, 0.3)])
def test_the_choice_of_experts_takes_what_was_timed(kernel, fused, within):
    """From 2 of 8 to 22 of 512 experts, in groups and without; PyTorch's is a row of kernels, gaps between them."""
    runs = timed(f"choice of experts, {kernel}")
    gaps = 0 if fused else ROUTER_SPLIT_KERNELS * GAP
    assert len(runs) > 4
    for setting, forward, _ in runs:
        x = one_rank(
            s=setting.tokens,
            E=setting.experts,
            topk=setting.topk,
            router_groups=setting.groups,
            router_picks=setting.group_topk,
            router_fused=fused,
        )
        assert choice_cycles(x) / CYCLES + gaps == pytest.approx(forward * 1e-6, rel=within), vars(setting)


def test_maps_of_the_permutation_are_what_forward_takes_beyond_backward():
    """Both passes of a permutation move the same rows; the map of rows is made forward alone."""
    runs = timed("permute")
    assert len(runs) == 4
    for setting, forward, backward in runs:
        x = one_rank(s=setting.tokens, E=setting.experts, topk=setting.topk)
        busy, none = maps(x, 0, 1, 0).busy
        assert none == 0
        assert busy / CYCLES == pytest.approx((forward - backward) * 1e-6, rel=0.35), vars(setting)


def test_a_sinks_gradient_grows_with_tokens_and_heads_alone():
    """Sequences of 1,024 as of 8,192; with few heads what else the kernel does tells (4 us of 54)."""
    runs = timed("attention with a sink, product of output and gradient")
    assert len(runs) == 7
    for setting, _, whole in runs:
        x = one_rank(b=setting.sequences, s=setting.seq_len, a=setting.heads)
        forward, backward = sink_gradient(x).busy
        without = 49.5e-6 * setting.sequences * setting.seq_len * setting.heads / (4096 * 64)
        assert forward == 0
        assert backward / CYCLES == pytest.approx(whole * 1e-6 - without, rel=0.12), vars(setting)
