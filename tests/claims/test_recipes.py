"""Claims CL089 to CL105: the recipes of guide 004, as exact arithmetic and as legal plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from claim_cases import broken, errors, plan_of, spent, step

from costmodel.layout import even_chunks
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.prediction import Prediction

BOTH_ENDS = {"account_embedding": True, "account_loss": True}


@dataclass(frozen=True)
class Recipe:
    """A row of guide 004. dp, accumulation and layers of a chunk are what the arithmetic must give."""

    model: str
    gpu: str
    gpus: int
    sizes: tuple[int, int, int, int, int]
    micro_batch: int
    global_batch: int
    dp: int
    accumulation: int
    layers: float
    seq_len: int = 8192
    load: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def knobs(self) -> dict[str, Any]:
        """tp, pp, cp, vpp, ep and what the row needs beside them."""
        names = ("tp", "pp", "cp", "vpp", "ep")
        sizes = dict(zip(names, self.sizes, strict=True))
        return sizes | {"micro_batch": self.micro_batch} | self.more


def spec_of(recipe: Recipe) -> ModelSpec:
    """The recipe's model."""
    return load_model(recipe.model)


def check(recipe: Recipe, *, legal: bool = True) -> None:
    """dp, micro-batches and layers of a chunk are the table's, and no rule forbids the plan."""
    plan = plan_of(recipe.gpus, **recipe.knobs())
    assert plan.world == recipe.gpus
    assert plan.dp == recipe.dp
    assert plan.num_microbatches(recipe.global_batch) == recipe.accumulation
    assert spec_of(recipe).num_layers / (plan.pp * plan.vpp) == recipe.layers
    if legal:
        assert refusals(recipe) == []


def refusals(recipe: Recipe, **changed: Any) -> list[str]:
    """Errors of the recipe with some knobs changed."""
    found = broken(
        recipe.model,
        recipe.gpu,
        recipe.gpus,
        recipe.seq_len,
        recipe.global_batch,
        load=recipe.load,
        **recipe.knobs() | changed,
    )
    return errors(found)


def test_CL089_llama3_8b_on_8_h100_has_dp_4_and_32_micro_batches():
    check(Recipe("llama3-8b", "dgx-h100", 8, (1, 1, 2, 1, 1), 1, 128, 4, 32, 32))


def test_CL090_llama3_70b_on_64_h100_has_dp_2_and_64_micro_batches():
    check(Recipe("llama3-70b", "dgx-h100", 64, (4, 8, 1, 5, 1), 1, 128, 2, 64, 2))


def test_CL091_llama31_405b_on_128_h100_needs_embedding_and_loss_counted():
    """126 layers give 1.97 a chunk; with embedding and loss counted 128 / (8 x 8) = 2. It does not fit 80 GB."""
    recipe = Recipe("llama3.1-405b", "dgx-h100", 128, (8, 8, 2, 8, 1), 1, 64, 1, 64, 1.96875, more=BOTH_ENDS)
    check(recipe)
    assert "126 layers" in refusals(recipe, account_embedding=False, account_loss=False)[0]
    assert even_chunks(126, 8, 8, True, True) is not None
    prediction = step("llama3.1-405b", "dgx-h100", 128, 8192, 64, **recipe.knobs() | {"precision": "fp8-cs"})
    assert not prediction.fits


def test_CL092_llama3_8b_on_8_b200_accumulates_8_with_the_tables_micro_batch_and_16_with_the_commands():
    """The table says micro-batch 2, the command passes -mb 1: accumulation 8 is that of the table."""
    check(Recipe("llama3-8b", "dgx-b200", 8, (1, 1, 1, 1, 1), 2, 128, 8, 8, 32))
    check(Recipe("llama3-8b", "dgx-b200", 8, (1, 1, 1, 1, 1), 1, 128, 8, 16, 32))


def test_CL093_llama3_70b_on_64_b200_without_model_parallelism_needs_fsdp():
    """The command has -fsdp 1 commented out: without it the plan needs far more than a B200's memory."""
    recipe = Recipe(
        "llama3-70b", "dgx-b200", 64, (1, 1, 1, 1, 1), 1, 128, 64, 2, 80, more={"fsdp": True, "zero_stage": 3}
    )
    check(recipe)
    sharded, whole = (
        step("llama3-70b", "dgx-b200", 64, 8192, 128, fsdp=fsdp, recompute="full") for fsdp in (True, False)
    )
    assert sharded.fits
    assert whole.peak_memory_bytes > 1.5 * whole.device_bytes


def test_CL094_llama3_70b_on_64_b200_with_cp_2_has_dp_4_and_32_micro_batches():
    check(Recipe("llama3-70b", "dgx-b200", 64, (2, 4, 2, 5, 1), 1, 128, 4, 32, 4))


def test_CL095_llama31_405b_on_128_b200_has_dp_2_and_32_micro_batches():
    recipe = Recipe("llama3.1-405b", "dgx-b200", 128, (4, 8, 2, 8, 1), 1, 64, 2, 32, 1.96875, more=BOTH_ENDS)
    check(recipe)
    assert refusals(recipe, account_embedding=False, account_loss=False)


def test_CL096_llama4_scout_on_64_b200_has_dp_32_and_32_micro_batches():
    check(Recipe("llama4-scout", "dgx-b200", 64, (1, 2, 1, 24, 8), 1, 1024, 32, 32, 1))


def test_CL097_llama4_maverick_on_128_b200_spreads_experts_over_8_nodes():
    recipe = Recipe("llama4-maverick", "dgx-b200", 128, (1, 2, 1, 12, 64), 1, 1024, 64, 16, 2)
    check(recipe)
    prediction = step("llama4-maverick", "dgx-b200", 128, 8192, 1024, **recipe.knobs())
    assert prediction.plan.ep / prediction.cluster.domain_size == 8
    assert prediction.values["dispatch_bytes_outside"] > 0


def test_CL098_mixtral_8x7b_on_64_b200_has_dp_64_and_2_micro_batches():
    check(Recipe("mixtral-8x7b", "dgx-b200", 64, (1, 1, 1, 1, 8), 2, 256, 64, 2, 32, seq_len=4096))


def test_CL099_mixtral_8x22b_on_256_b200_at_64k_has_dp_4_and_16_micro_batches():
    check(Recipe("mixtral-8x22b", "dgx-b200", 256, (2, 4, 8, 14, 8), 1, 64, 4, 16, 1, seq_len=65536))


def test_CL100_nemotron5_h_56b_on_64_b200_has_dp_16_and_6_micro_batches():
    """The catalogue has the 118-layer hybrid under its published name, Nemotron-H 56B."""
    check(Recipe("nemotronh-56b", "dgx-b200", 64, (4, 1, 1, 1, 1), 2, 192, 16, 6, 118))


def test_CL101_deepseek_v3_on_256_b200_needs_a_layout_for_61_layers_on_16_stages():
    recipe = Recipe("deepseek-v3", "dgx-b200", 256, (2, 16, 1, 1, 8), 1, 2048, 8, 256, 3.8125, seq_len=4096)
    check(recipe, legal=False)
    assert "61 layers" in refusals(recipe)[0]
    assert refusals(recipe, pipeline_layout="balanced") == []


def test_CL102_llama3_70b_sft_on_32_b200_has_dp_4_and_8_micro_batches():
    recipe = Recipe("llama3-70b", "dgx-b200", 32, (2, 4, 1, 5, 1), 1, 32, 4, 8, 4, 4096, load={"task": "sft"})
    check(recipe)


def test_CL103_llama3_70b_lora_on_8_b200_has_dp_2_and_16_micro_batches():
    recipe = Recipe(
        "llama3-70b", "dgx-b200", 8, (1, 4, 1, 20, 1), 1, 32, 2, 16, 1, 4096, load={"task": "lora"}
    )
    check(recipe)


@pytest.mark.parametrize("where", ["dgx-h100", "dgx-b200"])
def test_CL104_without_cudnn_attention_the_attention_core_is_slower_and_the_plan_is_warned(where):
    """NVTE_FUSED_ATTN=0 in env_vars.json of guide 004 leaves cuDNN's kernels out."""
    fused, unfused = (
        step(
            "llama3-70b", where, 64, 8192, 128, tp=4, pp=8, vpp=5, precision="fp8-cs", attention_backend=kind
        )
        for kind in ("fused", "unfused")
    )
    core = ("forward_attention", "backward_attention")
    assert spent(unfused, *core) > 1.5 * spent(fused, *core)
    found = broken("llama3-70b", where, 64, 8192, 128, tp=4, pp=8, vpp=5, attention_backend="unfused")
    assert "unfused_attention" in {each.id for each in found}


def test_CL105_more_tensor_parallelism_is_the_last_cure_for_out_of_memory():
    """Guide 004 says "increase TP" first; a smaller micro-batch and context parallelism fit and cost less time.

    Gradient accumulation (-ga) frees nothing: one micro-batch's activations and the state stay as they are.
    """
    base: dict[str, Any] = {"tp": 4, "pp": 4, "vpp": 5, "micro_batch": 2}

    def with_(batch: int = 128, **cure: Any) -> Prediction:
        return step("llama3-70b", "dgx-h100", 64, 8192, batch, **base | cure)

    start, wider = with_(), with_(tp=8)
    assert not start.fits
    sequence = with_(micro_batch=1, cp=2)
    assert sequence.fits
    assert sequence.step_time_s < wider.step_time_s
    for cure in ({"micro_batch": 1}, {"cp": 2}, {"pp": 8}, {"recompute": "full"}):
        assert with_(**cure).peak_memory_bytes < start.peak_memory_bytes
    assert with_(batch=256).peak_memory_bytes >= start.peak_memory_bytes * (1 - 1e-9)
