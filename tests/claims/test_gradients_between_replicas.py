"""Claims about gradients between replicas, their format and the distributed optimizer: CL009, CL010, CL012, CL013."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from claim_cases import broken, held, spent
from size_cases import llama_8b

from costmodel.symbols import COLLECTIVE_CONSTANTS
from costmodel.timing.network import all_gather_time, all_reduce_time, reduce_scatter_time
from costmodel.work import communication


def test_CL009_gradients_in_bf16_halve_the_bytes_and_shorten_what_is_exposed():
    wide, narrow = (llama_8b(64, batch=64, grad_reduce_in_fp32=fp32) for fp32 in (True, False))
    assert wide.values["grad_bytes"] == 2 * narrow.values["grad_bytes"]
    assert wide.values["dp_reduce_scatter"] > 1.5 * narrow.values["dp_reduce_scatter"]
    assert spent(narrow, "dp_gradients") < spent(wide, "dp_gradients")


def test_CL010_from_128_ranks_on_a_ring_in_bf16_is_warned_of_with_both_ways_out():
    def said(gpus: int, **knobs: Any) -> str:
        return " ".join(each.line() for each in broken("llama3-8b", "dgx-h100", gpus, 8192, gpus, **knobs))

    assert "--grad-reduce-in-fp32" in said(128)
    assert "SHARP" in said(128)
    for text in (said(64), said(128, grad_reduce_in_fp32=True), said(128, sharp=True)):
        assert "--grad-reduce-in-fp32" not in text


def test_CL010_sums_in_fp32_of_what_travels_in_bf16_are_a_way_out():
    setting = "reduce_scatter_with_fp32_accumulation"

    def said(**knobs: Any) -> dict[str, str]:
        return {each.id: each.line() for each in broken("llama3-8b", "dgx-h100", 128, 8192, 128, **knobs)}

    assert setting in said()["bf16_reduction_wide"]
    assert "bf16_reduction_wide" not in said(settings={setting: True})


def test_CL012_data_parallelism_beats_tensor_parallelism_where_it_fits():
    """BF16 does not fit on 80 GB without context parallelism; with it, or recompute, it does."""
    assert not llama_8b().fits
    assert llama_8b(recompute="selective", recompute_modules=("mlp",)).fits
    for precision in ("bf16", "fp8-cs"):
        runs = [llama_8b(precision=precision, **knobs) for knobs in ({"cp": 2}, {"tp": 2}, {"tp": 8})]
        assert all(run.fits for run in runs)
        rates = [run.tokens_per_second_per_gpu for run in runs]
        assert rates == sorted(rates, reverse=True)


def test_CL013_reduce_scatter_and_gather_move_what_an_all_reduce_moves():
    """2 (n - 1) / n of the bytes both ways, so large messages take the same time.

    Inside an NVLink domain of 8 the all-reduce is faster, for switches reduce (NVLS).
    """
    x = SimpleNamespace(**llama_8b(64).values)
    for ranks in (2, 8, 64):
        inside = min(ranks, 8)
        both = reduce_scatter_time(x, 8e9, ranks, inside) + all_gather_time(x, 8e9, ranks, inside)
        assert both == pytest.approx(all_reduce_time(x, 8e9, ranks, inside), rel=0.3)


@pytest.mark.parametrize("gradient_bytes", [2, 4])
def test_CL013_the_distributed_optimizer_moves_the_bytes_of_an_all_reduce(gradient_bytes):
    """Without latencies and at one bandwidth the identity is exact: (n - 1) / n + (n - 1) / n = 2 (n - 1) / n.

    Gradients and parameters in 16 bits. Gradients in 32 bits make the all-reduce move a third more.
    """
    x = SimpleNamespace(**llama_8b(64, batch=64, grad_reduce_in_fp32=gradient_bytes == 4).values)
    for operation in ("all_gather", "reduce_scatter", "all_reduce"):
        for name in COLLECTIVE_CONSTANTS:
            setattr(x, f"{operation}_{name}", 4e11 if name.endswith("bandwidth") else 0)
    x.network_latency = x.ring_hop = 0
    parameters = x.dp_parameters
    gradients = communication.gradient_bytes(x, parameters)
    gathered = communication.gather_bytes(x, parameters)
    assert gradients == gradient_bytes * parameters
    assert gathered == 2 * parameters
    for ranks in (2, 8, 64, 1024):
        inside = min(ranks, 8)
        both = reduce_scatter_time(x, gradients, ranks, inside) + all_gather_time(x, gathered, ranks, inside)
        whole = all_reduce_time(x, gradients, ranks, inside)
        assert both == pytest.approx(whole * (gradient_bytes + 2) / (2 * gradient_bytes))


def test_CL013_the_distributed_optimizer_makes_no_step_slower():
    plain, sharded = (
        llama_8b(64, batch=64, zero_stage=stage, overlap_param_gather=stage > 0) for stage in (0, 1)
    )
    assert sharded.step_time_s < plain.step_time_s
    assert held(sharded, "optimizer") == pytest.approx(held(plain, "optimizer") / 64)
