"""Low-rank adapters (task lora) under tensor parallelism: their parameters, messages and what they keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload
from hardware_db import load_cluster

H100 = load_cluster("dgx-h100")
LORA = Workload(8192, 32, "lora")
LLAMA = "llama3-8b"
H, QKV, FFN, LAYERS = 4096, 6144, 14336, 32  # of it; QKV of 32 query and 2 x 8 key and value heads of 128


def run(model: str = LLAMA, work: Workload = LORA, **knobs: Any) -> Prediction:
    """A plan on H100s, with sequence parallelism beside tensor parallelism unless it says otherwise."""
    knobs = {"sequence_parallel": knobs.get("tp", 1) > 1} | knobs
    return predict(load_model(model), work, H100, Plan(**knobs))


def adapters(tp: int, targets: str = "all", rank: int = 16) -> float:
    """Trained parameters of a rank, from its gradients in FP32."""
    found = run(work=replace(LORA, lora_rank=rank, lora_targets=targets), tp=tp, dp=8 // tp)
    return found.values["memory_first_gradients"] / 4


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize(
    ("targets", "widths"),
    [
        ("qkv", H + QKV),
        ("attention", H + QKV + H + H),
        ("all", H + QKV + H + H + H + 2 * FFN + FFN + H),
    ],
)
def test_both_factors_of_every_adapter_are_split_over_tensor_parallel_ranks(tp, targets, widths):
    """Megatron-Bridge 0.6.2, peft/utils.py: both are column- or row-parallel layers."""
    assert adapters(tp, targets) == pytest.approx(16 * widths * LAYERS / tp, rel=1e-9)


def test_the_experts_of_a_rank_share_an_adapter():
    """Beside those of attention: FC1 and FC2 once a layer, however many experts a rank has. Mixtral 8x7B."""
    attention = 16 * (4096 + 6144 + 2 * 4096)
    experts = 16 * (4096 + 2 * 14336 + 14336 + 4096)
    for ep in (1, 8):
        found = run("mixtral-8x7b", ep=ep, dp=8)
        assert found.values["memory_first_gradients"] / 4 == pytest.approx(32 * (attention + experts))


def test_targets_of_attention_leave_experts_alone():
    few, many = (
        run("mixtral-8x7b", work=replace(LORA, lora_targets=targets), ep=8, dp=8).values
        for targets in ("attention", "all")
    )
    assert few["experts_adapters_forward"] == 0 < many["experts_adapters_forward"]
    # Without adapters frozen experts keep neither the rows that came nor FC2's input: 8,192 x 2 rows in 16 bits.
    rows = 8192 * 2
    saved = many["experts_activation_bytes"] - few["experts_activation_bytes"]
    assert saved == pytest.approx(2 * rows * (4096 + 14336) + 2 * 2 * rows * 16)


def test_mixers_of_hybrids_have_adapters():
    few, many = (
        run("nemotronh-8b", work=replace(LORA, lora_targets=targets), dp=8).values
        for targets in ("attention", "all")
    )
    assert few["mamba_adapters_forward"] == 0 < many["mamba_adapters_forward"]


def test_one_rank_sends_nothing_for_adapters():
    values = run(dp=8).values
    assert values["mlp_adapters_tp_forward"] == values["mlp_adapters_tp_backward"] == 0


def test_outputs_of_row_parallel_layers_adapters_are_gathered():
    """Projection and FC2: 8,192 x 4,096 elements in 16 bits forward, and their gradient where the sequence is split."""
    narrow = {"work": replace(LORA, lora_rank=8), "tp": 8}
    split, whole = (run(sequence_parallel=split, **narrow).values for split in (True, False))
    wire = 2 * 8192 * 4096 * 7 / 8 / 450e9  # at the link's datasheet rate: a lower bound
    for name in ("attention", "mlp"):
        assert split[f"{name}_adapters_tp_forward"] > wire
        assert split[f"{name}_adapters_tp_backward"] > wire
        # Unsplit, the input's gradient is reduced for the adapter too: twice the traffic of a gather.
        assert whole[f"{name}_adapters_tp_backward"] > 2 * wire
        assert whole[f"{name}_adapters_tp_forward"] == pytest.approx(split[f"{name}_adapters_tp_forward"])


def test_only_adapted_inputs_are_gathered_in_16_bits():
    """Transformer Engine gathers once for layer and adapter, in the adapter's format; FP8 halves it elsewhere."""
    plan = {"tp": 8, "precision": "fp8-delayed"}
    few, many = (run(work=replace(LORA, lora_targets=targets), **plan).values for targets in ("qkv", "all"))
    assert many["mlp_all_gather"] > 1.8 * few["mlp_all_gather"]
    assert many["attention_all_gather"] == few["attention_all_gather"]
    assert many["mlp_fc1_quantise_forward"] > 4 * few["mlp_fc1_quantise_forward"]


def test_frozen_layers_do_not_gather_their_input_again():
    """Their reduction has no weight gradient to hide behind, but with many messages that is all that is exposed."""
    lora, trained = (
        run(work=work, tp=8).values for work in (replace(LORA, lora_targets="qkv"), replace(LORA, task="sft"))
    )
    exposed = lora["mlp_reduce_scatter_backward"] + lora["mlp_all_gather_backward"]
    assert lora["mlp_tp_exposed_backward"] <= exposed * (1 + 1e-9)
    assert trained["mlp_all_gather"] > 0


def test_adapters_keep_what_sequence_parallelism_gathers():
    """Published: gathering it again frees 4.7 GB of Qwen3-8B at TP2 with 8,192 tokens (47.5 to 42.8 GB).

    Megatron-Bridge, skills, memory tuning, sequence_parallel_input_regather, which keeps a rank's own tokens alone.
    """
    found = run("qwen3-8b", tp=2).values
    frozen = run("qwen3-8b", tp=2, work=replace(LORA, task="sft")).values  # keeps a rank's own tokens
    more = sum(
        found[f"{name}_activation_bytes"] - frozen[f"{name}_activation_bytes"]
        for name in ("attention", "mlp")
    )
    between = 2 * 8192 * 16 * 4  # bytes of four adapters' r columns
    assert 36 * (more - between) == pytest.approx(4.7e9, rel=0.03)


def test_fp8_adapters_keep_inputs_in_16_bits_beside_the_layers_own():
    plan = {"dp": 8, "precision": "fp8-delayed"}
    lora, trained = (run(work=work, **plan).values for work in (LORA, replace(LORA, task="sft")))
    # FC1's input twice (2 + 1 bytes for 1), FC2's in 2 bytes for 1.
    more = 8192 * (2 * 4096 + FFN) + 2 * 8192 * 16 * 2
    assert lora["mlp_activation_bytes"] - trained["mlp_activation_bytes"] == pytest.approx(more)


def test_recompute_of_the_mlp_repeats_its_adapters():
    plan = {"dp": 8, "recompute": "selective", "recompute_modules": ("mlp",)}
    few, many = (
        run(work=replace(LORA, lora_targets=targets), **plan).values for targets in ("attention", "all")
    )
    again = many["mlp_recompute"] - few["mlp_recompute"]
    assert again == pytest.approx(many["mlp_adapters_forward"])


def test_a_frozen_embedding_has_no_gradient():
    """Frozen it moves 4 bytes an element of a row for 14, and no table: that of the trained one, of any length."""
    tables = []
    for seq_len in (LORA.seq_len, 2 * LORA.seq_len):
        work = replace(LORA, seq_len=seq_len)
        lora, trained = (run(work=each, dp=8).values for each in (work, replace(work, task="sft")))
        tables.append(trained["embedding_time"] - 14 / 4 * lora["embedding_time"])
    bandwidth = trained["hbm_bandwidth"] * trained["contiguous_fraction"] * trained["elementwise_scale"]
    written = tables[0] * bandwidth * trained["release_scale"]
    assert tables[0] == pytest.approx(tables[1])
    # Zeros written and read again, the buffer of gradients read and written.
    assert written == pytest.approx((2 * 2 + 2 * trained["grad_bytes"]) * 128_256 * 4096, rel=1e-6)


def test_a_stage_without_layers_reduces_nothing():
    """32 stages of 30 layers: the ends hold embedding and loss alone, those between them one layer's adapters."""
    ends = {"account_embedding": True, "account_loss": True}
    with np.errstate(all="raise"):
        found = run(model="mcore-gpt-7.1b", work=Workload(4096, 72, "lora"), pp=32, dp=9, **ends)
    hidden = 4096
    ins_and_outs = (1 + 3) * hidden + 2 * hidden + 2 * (1 + 4) * hidden  # QKV, projection, the MLP's two
    assert found.values["dp_parameters"] == 16 * ins_and_outs
    assert (found.values["memory_first_gradients"], found.values["memory_last_gradients"]) == (0, 0)
