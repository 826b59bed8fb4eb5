"""Claims about tensor-parallel communication under its GEMMs: CL050, CL052 to CL055."""

from __future__ import annotations

from typing import Any

import pytest
from claim_cases import TENSOR_PARALLEL, broken, spent
from replica_cases import tp4


def test_CL050_more_than_one_connection_undoes_the_overlap_of_tensor_parallel_on_hopper():
    one, many = (tp4("dgx-h100", max_connections=number) for number in (1, 8))
    values = many.values
    each = sum(
        3 * values[f"{block}_all_gather"] + 2 * values[f"{block}_reduce_scatter"]
        for block in ("attention", "mlp")
    )
    assert spent(many, *TENSOR_PARALLEL) == pytest.approx(64 * 10 * each)
    assert spent(one, *TENSOR_PARALLEL) < spent(many, *TENSOR_PARALLEL) / 2


def test_CL050_connections_do_not_matter_on_blackwell():
    assert tp4("dgx-b200", max_connections=1).step_time_s == tp4("dgx-b200", max_connections=8).step_time_s


def overlapped(**more: Any) -> dict[str, float]:
    """Entries of the MLP on one rank of 70B with TP4 on H100, pipelined with its collectives."""
    return tp4("dgx-h100", **more).values


def test_CL052_overlapped_gemms_lose_the_share_of_the_sms_that_communication_takes():
    usual, told = overlapped(), overlapped(tp_overlap_sms=16)
    assert usual["mlp_tp_exposed_forward"] == told["mlp_tp_exposed_forward"]
    beside = sum(
        min(told[f"mlp_{collective}"], told[f"mlp_{gemm}_forward"])
        for collective, gemm in (("all_gather", "fc1"), ("reduce_scatter", "fc2"))
    )
    for sms in (1, 4, 32):
        more = overlapped(tp_overlap_sms=sms)["mlp_tp_exposed_forward"] - told["mlp_tp_exposed_forward"]
        assert more == pytest.approx((sms - 16) / 132 * beside)


@pytest.mark.parametrize("cga", [3, 4])
def test_CL053_more_than_2_thread_block_clusters_are_flagged(cga):
    found = broken("llama3-70b", "dgx-h100", 64, 8192, 128, tp=4, pp=8, vpp=5, tp_overlap_cga=cga)
    assert any("tp_overlap_cga" in each.knobs for each in found)


def test_CL053_2_thread_block_clusters_are_usual():
    assert tp4("dgx-h100").plan.tp_overlap_cga == 2
    found = broken("llama3-70b", "dgx-h100", 64, 8192, 128, tp=4, pp=8, vpp=5, tp_overlap_cga=2)
    assert not any("tp_overlap_cga" in each.knobs for each in found)


def test_CL054_a_few_splits_are_best_and_the_presets_have_4():
    """Width 8192, TP4, sequences of 8192. 4 is what the presets and we take with TP4, near the best of all."""
    times = {
        splits: tp4("dgx-h100", tp_overlap_splits=splits).step_time_s for splits in (0, 1, 2, 3, 4, 6, 8, 16)
    }
    best = min((1, 2, 4, 8, 16), key=lambda splits: times[splits])
    assert best in (2, 4, 8)
    assert times[0] == times[4] < 1.02 * min(times.values())


@pytest.mark.parametrize("splits", [2, 4, 8])
def test_CL055_one_chunk_of_the_reduce_scatter_stays_exposed(splits):
    """Beside the chunk: SMs that the GEMMs lend; each further chunk of both layers launches a product and a copy."""
    values = overlapped(tp_overlap_splits=splits)
    pairs = (("all_gather", "fc1"), ("reduce_scatter", "fc2"))
    assert all(values[f"mlp_{one}"] < values[f"mlp_{gemm}_forward"] for one, gemm in pairs)
    both = sum(values[f"mlp_{collective}"] for collective, _ in pairs)
    lent = 16 / 132 * both + 2 * 2 * (splits - 1) * values["linear_launch"]
    assert values["mlp_tp_exposed_forward"] - lent == pytest.approx(both / splits)
