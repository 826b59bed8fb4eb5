"""Claims about context parallelism and long sequences: CL016 to CL019, CL021, CL059 to CL062, CL214."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from claim_cases import CONTEXT_PARALLEL, broken, errors, held, speedup, spent, step
from size_cases import best, llama_8b

from costmodel.model_file import with_overrides
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.prediction import Prediction
from costmodel.work import communication


class TestContextParallel:
    def ring(self, gpus: int, seq_len: int, **knobs: Any) -> Prediction:
        return step("llama3-8b", "dgx-h100", gpus, seq_len, gpus, recompute="full", **knobs)

    @pytest.mark.parametrize("seq_len", [32768, 65536])
    def test_CL059_the_ring_hides_on_nvlink_when_a_rank_has_8192_tokens_or_more(self, seq_len):
        """Exposed is max(0, message - attention of a chunk) in each of cp - 1 steps, forward."""
        prediction = self.ring(8, seq_len, cp=4)
        values = prediction.values
        chunk = values["attention_core_forward"] / 4
        assert values["attention_cp_ring_step"] < chunk
        assert spent(prediction, *CONTEXT_PARALLEL) == 0

    def test_CL059_the_ring_over_the_network_shows_while_chunks_are_short_and_hides_at_last(self):
        """CP 16 on two nodes: 2048 tokens a rank do not hide a message over InfiniBand, 8192 do."""
        short, long = (self.ring(16, seq_len, cp=16) for seq_len in (32768, 131072))
        values = short.values
        left = values["attention_cp_ring_step"] - values["attention_core_forward"] / 16
        assert left > 0
        assert values["attention_cp_exposed_forward"] == pytest.approx(15 * left)
        assert spent(long, *CONTEXT_PARALLEL) == 0

    def test_CL060_all_gather_moves_an_eighth_with_8_of_64_heads_and_stays_small(self):
        """Time a byte from two lengths, so that latency drops out: the ratio is that of the bytes."""
        whole = with_overrides(load_model("llama3-70b"), {"num_kv_heads": 64})

        def gather(model: str | ModelSpec, seq_len: int) -> Prediction:
            more: dict[str, Any] = {"tp": 4, "cp": 8, "pp": 2, "recompute": "full"}
            return step(model, "dgx-h100", 64, seq_len, 64, cp_comm_type="all_gather", **more)

        few, many = (
            [gather(model, seq_len).values["attention_cp_gather"] for seq_len in (131072, 262144)]
            for model in ("llama3-70b", whole)
        )
        assert (many[1] - many[0]) / (few[1] - few[0]) == pytest.approx(8, rel=1e-6)
        grouped = gather("llama3-70b", 131072)
        exposed = spent(grouped, *CONTEXT_PARALLEL)
        assert 0 < exposed < 0.05 * grouped.step_time_s
        assert spent(gather(whole, 131072), *CONTEXT_PARALLEL) > 4 * exposed

    def test_CL061_a2a_is_never_hidden_and_scatters_heads_over_cp(self):
        """Longer sequences make attention dearer in squares, and all of the exchange stays exposed."""
        for seq_len in (32768, 131072):
            values = self.ring(8, seq_len, cp=8, cp_comm_type="a2a").values
            for direction in ("forward", "backward"):
                assert values[f"attention_cp_exposed_{direction}"] == values["attention_cp_exchange"] > 0

    @pytest.mark.parametrize(("tp", "largest"), [(1, 8), (2, 4), (4, 2)])
    def test_CL061_a2a_allows_cp_up_to_key_value_heads_over_tp(self, tp, largest):
        def found(cp: int) -> list[str]:
            return errors(
                broken(
                    "llama3-8b", "dgx-h100", 64, 32768, 64, tp=tp, cp=cp, cp_comm_type="a2a", recompute="full"
                )
            )

        assert found(largest) == []
        assert f"over cp = {2 * largest}" in found(2 * largest)[0]

    @pytest.mark.parametrize("seq_len", [16384, 32768, 65536])
    def test_CL062_a2a_inside_a_node_and_a_ring_between_two_beat_a_ring_over_both(self, seq_len):
        """CP 16 as [8, 2] with 8 key/value heads; it is as fast as TP 2 with a2a over CP 4."""
        ring = self.ring(16, seq_len, cp=16)
        mixed = self.ring(16, seq_len, cp=16, cp_comm_type="a2a+p2p", cp_a2a_size=8)
        assert mixed.step_time_s < ring.step_time_s
        exchanged = self.ring(16, seq_len, cp=4, tp=2, cp_comm_type="a2a")
        assert speedup(exchanged, mixed) == pytest.approx(1, abs=0.1)


def attention_share(model: str, seq_len: int) -> float:
    """Share of the model's FLOPs that the attention core has: what grows with the square of the length."""

    def a_token(length: int) -> float:
        prediction = step(
            model,
            "dgx-h100",
            256,
            length,
            256,
            pp=8,
            cp=8,
            ep=8,
            pipeline_layout="balanced",
            recompute="full",
        )
        return prediction.values["model_flops"] / prediction.workload.tokens_per_step

    whole, half = a_token(seq_len), a_token(seq_len // 2)
    return 2 * (whole - half) / whole


def test_CL214_attention_is_two_thirds_of_deepseek_v3s_flops_at_64k():
    assert attention_share("deepseek-v3", 4096) < 0.2
    assert attention_share("deepseek-v3", 65536) == pytest.approx(0.7, abs=0.05)
    assert attention_share("deepseek-v3", 131072) > 0.75


def mixed_over_tensor(seq_len: int) -> float:
    """Step time of Llama 3 8B with TP2 CP2 over that with TP4. [1]"""
    mixed, tensor = (
        llama_8b(seq_len=seq_len, batch=32, **sizes) for sizes in ({"tp": 2, "cp": 2}, {"tp": 4})
    )
    return mixed.step_time_s / tensor.step_time_s


def test_CL016_context_parallelism_beats_tensor_parallelism_when_the_sequence_is_longer_than_hidden():
    """At 2048 tokens, half of hidden, it is a tie: within 6 % (the model has 5.2 % for the mixture, see below)."""
    assert mixed_over_tensor(32768) < 1
    assert mixed_over_tensor(2048) == pytest.approx(1, abs=0.06)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="TP2 CP2 gains 2.2 % at 2048 tokens, 3.9 % at 8192, but 3.0 % at 32768 (hidden 4096). A "
    "ring step costs its message and its merge; missing are Transformer Engine's copies of keys and values, and "
    "attention at shorter key blocks",
)
def test_CL016_context_parallelism_gains_more_the_longer_the_sequence():
    assert mixed_over_tensor(32768) < mixed_over_tensor(8192) < mixed_over_tensor(2048)


def test_CL017_context_parallelism_moves_a_sixteenth_of_the_bytes():
    """Keys and values of 8 heads of 128 against hidden states of 8192, 32K tokens: 8 x 128 / (2 x 8192)."""
    context = step("llama3-70b", "dgx-h100", 16, 32768, 8, cp=2, pp=8).values
    tensor = step("llama3-70b", "dgx-h100", 16, 32768, 8, tp=2, pp=8).values
    ring = communication.context_parallel_ring_bytes(SimpleNamespace(**context), 2 * 8 * 128)
    moved = sum(
        tensor[f"{block}_tp_{kind}"] for block in ("attention", "mlp") for kind in ("gathered", "reduced")
    )
    assert ring == 32768 / 2 * 2 * (8 * 128) * 2
    assert moved == 4 * 32768 * 8192 * 2
    # Of what tensor parallelism gathers and reduces, a rank sends (tp - 1) / tp; the ring has cp - 1 = 1 step.
    assert ring / (moved / 2) == 8 * 128 / (2 * 8192) == 1 / 16


def test_CL018_short_shards_make_skinny_gemms():
    """512 rows a rank reach less of the GPU than 2048."""
    rows = {cp: step("llama3-70b", "dgx-b200", 32, 2048, 32, tp=4, pp=2, cp=cp).values for cp in (1, 4)}
    for gemm in ("mlp_fc1_forward", "mlp_fc2_forward", "attention_qkv_forward"):
        assert 4 * rows[4][gemm] > 1.02 * rows[1][gemm]


def test_CL019_context_ranks_share_the_optimizer_states():
    """12 bytes a parameter over dp x cp = 8 ranks."""
    prediction = llama_8b(cp=2)
    assert prediction.plan.dp == 4
    parameters = prediction.values["first_stage_parameters"]
    assert held(prediction, "optimizer") == pytest.approx(12 * parameters / (4 * 2))


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="FSDP with 8 context ranks is told 0.9 % quicker than 16 without, a toss-up by published pairs",
)
def test_CL021_128k_tokens_start_with_16_or_32_context_ranks():
    """4096 to 8192 tokens remain on each rank."""
    plan = best("llama3-8b", "dgx-h100", 64, 131072, 32).plan
    assert plan.cp in (16, 32)
    assert 4096 <= 131072 / (plan.cp * plan.tp) <= 8192


def test_CL021_16_context_ranks_are_within_2_percent_of_the_best():
    free, started = (best("llama3-8b", "dgx-h100", 64, 131072, 32, **pins) for pins in ({}, {"cp": 16}))
    assert started.prediction.step_time_s < 1.02 * free.prediction.step_time_s
