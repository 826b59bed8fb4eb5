"""Claims about what is recomputed: CL022, CL069 to CL073."""

from __future__ import annotations

from typing import Any

import pytest
from claim_cases import GB, GIB, broken, selective, spent, step
from size_cases import llama_8b

from costmodel.prediction import Prediction

COMPUTE = (
    "forward_linear",
    "forward_attention",
    "forward_elementwise",
    "backward_linear_dgrad",
    "backward_linear_wgrad",
    "backward_attention",
    "backward_elementwise",
    "vocabulary",
)


class TestRecompute:
    def test_CL069_full_recompute_repeats_a_forward_pass(self):
        """Uniform recompute in units of one layer is every layer: 4F / 3F of the compute.

        "Approximately 30 %" is that of the step: the logits are not repeated, and bubble, gradients and
        optimizer do not grow with it.
        """
        base: dict[str, Any] = {"tp": 4, "pp": 4, "cp": 2, "vpp": 5}
        without, full = (
            step("llama3-70b", "dgx-h100", 64, 8192, 128, **base, recompute=kind) for kind in ("none", "full")
        )
        compute, again = spent(without, *COMPUTE), spent(full, "recompute")
        assert 1.25 <= (compute + again) / compute <= 1.35
        assert 1.2 < full.step_time_s / without.step_time_s < (compute + again) / compute
        assert full.peak_memory_bytes < 0.7 * without.peak_memory_bytes

    def test_CL070_recomputing_fused_attention_saves_nothing_and_costs_little(self):
        """Flash attention never stores the scores: no byte is saved, its forward pass is paid again."""
        without, cores = (moonlight(*modules) for modules in ((), ("core_attn",)))
        assert cores.peak_memory_bytes == pytest.approx(without.peak_memory_bytes, rel=1e-3)
        assert 1.005 < cores.step_time_s / without.step_time_s < 1.05
        warned = broken("moonlight-16b-a3b", "dgx-h100", 8, 4096, 4, **MOONLIGHT, **selective("core_attn"))
        assert "recompute_flash" in {each.id for each in warned}

    @pytest.mark.xfail(
        strict=True,
        raises=AssertionError,
        reason="model: 30.9 GB allocated with the recipe's optimizer; published 36.62 GB. The source leaves unsaid "
        "what would give the rest: 34.9 GB with FP32 master parameters in full, 32.2 GB with an unfused loss",
    )
    def test_CL072_moonlight_needs_36_6_gb_on_8_h100(self):
        """The optimizer as Megatron-Bridge's card of this model has it: BF16 gradients and moments."""
        assert moonlight().allocated_bytes == pytest.approx(36.6 * GB, rel=0.1)

    @pytest.mark.xfail(
        strict=True,
        raises=AssertionError,
        reason="the times are in order (0.309 s without, 0.319 with moe_act, 0.325 with mla_up_proj and with mlp; "
        "published 0.457, 0.466, 0.481, 0.497), but a byte that mlp saves costs least: 0.004 s a GB, moe_act 0.011, "
        "mla_up_proj 0.017",
    )
    def test_CL072_moe_act_saves_most_for_its_time_then_mla_up_proj_then_mlp(self):
        """Published: 457 ms; moe_act 466, mla_up_proj 481, with mlp 497; one of 27 layers has an MLP of its own."""
        without = moonlight()
        sets = (("moe_act",), ("mla_up_proj",), ("mla_up_proj", "mlp"))
        found = [moonlight(*modules) for modules in sets]
        times = [without.step_time_s, *(each.step_time_s for each in found)]
        assert times == sorted(times)
        assert times[0] < times[1]
        for prediction in found:
            assert prediction.allocated_bytes < without.allocated_bytes

        def price(module: str) -> float:
            one = moonlight(module)
            return (one.step_time_s - without.step_time_s) / (
                without.peak_memory_bytes - one.peak_memory_bytes
            )

        assert price("moe_act") < price("mla_up_proj") < price("mlp")

    def test_CL073_nemotron_3_nano_does_not_fit_with_moe_act_and_fits_with_moe(self):
        """Predicted peak above 72 GiB without whole experts recomputed; with them it fits 80 GB."""
        narrow = [nano(*modules) for modules in ((), ("moe_act",), ("moe_act", "layernorm"))]
        for prediction in narrow:
            assert prediction.peak_memory_bytes > 72 * GIB
            assert not prediction.fits
        wide = nano(*NANO_MODULES)
        assert wide.fits
        assert wide.peak_memory_bytes < min(each.peak_memory_bytes for each in narrow)

    def test_CL073_nemotron_3_nano_allocates_65_gb_without_graphs(self):
        """Published 64.65 GB with the recipe's modules; at most 66 GB."""
        assert nano(*NANO_MODULES, cuda_graph=False).allocated_bytes <= 66 * GB

    @pytest.mark.xfail(
        strict=True,
        raises=AssertionError,
        reason="model: 67.4 GB allocated with graphs of mamba blocks, 64.0 GB without; published 64.65 GB with "
        "them. Static inputs and gradients of captured layers are counted once each; here they share buffers",
    )
    def test_CL073_graphs_of_mamba_blocks_alone_leave_nano_within_66_gb(self):
        assert nano(*NANO_MODULES).allocated_bytes <= 66 * GB


MOONLIGHT: dict[str, Any] = {
    "tp": 2,
    "ep": 8,
    "precision_aware_optimizer": True,
    "main_grads_dtype": "bf16",
    "exp_avg_dtype": "bf16",
    "exp_avg_sq_dtype": "bf16",
}
NANO_MODULES = ("moe", "layernorm", "core_attn", "moe_act")


def moonlight(*modules: str) -> Prediction:
    """Moonlight 16B in BF16 on 8 H100, TP 2 EP 8, one sequence of 4096 a rank, recomputing some modules."""
    return step("moonlight-16b-a3b", "dgx-h100", 8, 4096, 4, **MOONLIGHT, **selective(*modules))


def nano(*modules: str, **changed: Any) -> Prediction:
    """Nemotron-3-Nano on 16 H100 as its recipe has it: EP 8, HybridEP, graphs of its mamba blocks."""
    usual = {"ep": 8, "moe_dispatcher": "hybridep", "cuda_graph": True, "cuda_graph_scope": ("mamba",)}
    if changed.get("cuda_graph") is False:
        usual["cuda_graph_scope"] = ()
    return step(
        "nemotron3-nano-30b-a3b", "dgx-h100", 16, 8192, 1024, **usual | changed, **selective(*modules)
    )


def test_CL022_recomputing_attention_costs_more_per_byte_than_recomputing_the_mlp():
    base = llama_8b(seq_len=131072, batch=8, cp=8)

    def bought(module: str) -> tuple[float, float]:
        run = llama_8b(seq_len=131072, batch=8, cp=8, recompute="selective", recompute_modules=(module,))
        return run.step_time_s - base.step_time_s, base.peak_memory_bytes - run.peak_memory_bytes

    core, mlp, norm = (bought(module) for module in ("core_attn", "mlp", "layernorm"))
    assert core[0] > mlp[0] > 0
    assert core[1] * mlp[0] < mlp[1] * core[0]
    # Norms of dense layers stand inside linear layers, where Megatron-Core recomputes nothing.
    assert norm == (0, 0)
