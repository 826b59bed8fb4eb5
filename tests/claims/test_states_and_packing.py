"""Claims about the states that a rank holds, and about packed sequences: CL076, CL077, CL079 to CL082."""

from __future__ import annotations

from typing import Any

import pytest
from claim_cases import GB, broken, held, spent, step

from costmodel.model_registry import load_model
from costmodel.prediction import Prediction


class TestStates:
    def test_CL076_remainders_halve_the_master_parameters(self):
        """4 to 2 bytes of each parameter, sharded over 8 ranks; the moments stay as they are."""

        def state(**changed: Any) -> Prediction:
            return step("llama3-8b", "dgx-h100", 8, 8192, 128, precision_aware_optimizer=True, **changed)

        whole, remainders = state(param_remainders=False), state()
        parameters = whole.values["first_stage_parameters"]
        assert held(whole, "optimizer") == pytest.approx(12 * parameters / 8)
        saved = held(whole, "optimizer") - held(remainders, "optimizer")
        assert saved == pytest.approx((4 - 2) * parameters / 8)
        plain = step("llama3-8b", "dgx-h100", 8, 8192, 128)
        assert held(plain, "optimizer") == held(whole, "optimizer")

    def test_CL079_lora_has_no_gradients_or_states_of_frozen_weights_and_fits(self):
        """Llama 3 70B on 8 H100: 2 bytes a parameter, adapters under a hundredth of them."""
        lora, tuned = (self.tuned(task) for task in ("lora", "sft"))
        parameters = tuned.values["first_stage_parameters"]
        assert lora.fits
        assert not tuned.fits
        assert held(lora, "weights") == pytest.approx(2 * parameters, rel=0.01)
        assert held(lora, "gradients") < 0.01 * held(tuned, "gradients")
        assert held(lora, "optimizer") < 0.01 * held(tuned, "optimizer")
        assert held(lora, "activations") > held(lora, "weights")

    def test_CL079_lora_counts_two_thirds_of_the_flops(self):
        """No weight gradients: 4 N of 6 N; attention and adapters keep theirs."""
        lora, tuned = (self.tuned(task) for task in ("lora", "sft"))
        assert spent(lora, "backward_linear_wgrad") == 0
        assert lora.values["model_flops"] / tuned.values["model_flops"] == pytest.approx(2 / 3, abs=0.03)

    def test_CL079_fp8_weights_of_lora_are_1_byte_on_blackwell(self):
        """On Hopper row-wise and column-wise copies are 2 bytes together: the claim's 1 byte is Blackwell's."""
        fp8 = {"precision": "fp8-cs", "fp8_param_gather": True}
        hopper, blackwell = (self.tuned("lora", where, **fp8) for where in ("dgx-h100", "dgx-b200"))
        parameters = hopper.values["first_stage_parameters"]
        assert held(hopper, "weights") == pytest.approx(2 * parameters, rel=0.02)
        assert held(blackwell, "weights") == pytest.approx(1.06 * parameters, rel=0.05)

    def tuned(self, task: str, where: str = "dgx-h100", **changed: Any) -> Prediction:
        """Adapters on QKV alone, as in the recipe (llama3_70b_lora_config_h100)."""
        load = {"task": task, "lora_targets": "qkv"}
        return step("llama3-70b", where, 8, 4096, 32, load=load, tp=2, pp=4, vpp=20, **changed)

    def test_CL081_mxfp8_without_the_gradient_buffer_holds_2_bytes_more_a_parameter(self):
        """Of each parameter that is quantised; the vocabulary and the norms are not."""
        alone, reused = (
            step(
                "llama3-8b",
                "dgx-b200",
                8,
                8192,
                128,
                precision="mxfp8",
                fp8_param_gather=True,
                reuse_grad_buf=reuse,
            )
            for reuse in (False, True)
        )
        model = load_model("llama3-8b")
        quantised = alone.values["first_stage_parameters"] - 2 * model.vocab * model.hidden
        assert alone.peak_memory_bytes - reused.peak_memory_bytes == pytest.approx(2 * quantised, rel=0.01)
        found = broken("llama3-8b", "dgx-b200", 8, 8192, 128, precision="mxfp8", fp8_param_gather=True)
        assert "grad_buffers_mxfp8" in {each.id for each in found}

    def test_CL077_expandable_segments_free_memory_at_no_cost(self):
        """What is allocated and taken again is a fifth larger without: 15 % more beside what is lost anyway."""
        on, off = (self.segments(kind) for kind in (True, False))
        assert off.step_time_s == on.step_time_s
        moving = sum(held(on, part) for part in ("activations", "logits", "workspace"))
        lost = held(off, "fragmentation") - held(on, "fragmentation")
        assert 0.15 <= lost / moving * (1 + 1e-9) <= 0.25

    def test_CL077_a_plan_of_59_gb_is_not_called_safe_without_expandable_segments(self):
        """The margin is 15 to 25 % of all that is allocated, or a warning says so."""
        off = self.segments(False, gpus=64)
        assert off.allocated_bytes == pytest.approx(58.8 * GB, rel=0.05)
        margin = held(off, "fragmentation") / off.allocated_bytes
        warned = any("expandable_segments" in each.knobs for each in self.warned())
        assert margin >= 0.15 or warned

    def segments(self, on: bool, gpus: int = 32) -> Prediction:
        return step(
            "llama3-70b",
            "dgx-h100",
            gpus,
            4096,
            32,
            load={"task": "sft"},
            tp=4,
            pp=4,
            vpp=5,
            expandable_segments=on,
        )

    def warned(self):
        plan: dict[str, Any] = {"tp": 4, "pp": 4, "vpp": 5, "expandable_segments": False}
        return broken("llama3-70b", "dgx-h100", 64, 4096, 32, load={"task": "sft"}, **plan)


def test_CL082_packing_wastes_no_tokens_and_evens_out_replicas():
    """Answers of 250 tokens in sequences of 4096: padded, a step has 250 / 4096 of useful tokens."""

    def tuned(**lengths: Any) -> Prediction:
        load = {"task": "sft", "mean_length": 250, **lengths}
        return step("llama3-8b", "dgx-h100", 8, 4096, 128, load=load)

    padded, packed = tuned(packed=False), tuned()
    assert padded.values["fill"] == pytest.approx(250 / 4096)
    assert packed.values["fill"] > 0.9

    def useful(prediction: Prediction) -> float:
        return prediction.values["fill"] * prediction.tokens_per_second_per_gpu

    assert useful(packed) > 0.9 * 4096 / 250 * useful(padded)


def test_CL082_longer_packs_make_replicas_more_alike():
    """A pack of n documents varies as 1 / sqrt(n) of what one document does."""

    def spread(seq_len: int) -> float:
        load = {"task": "sft", "mean_length": 250, "length_cv": 1.0}
        return step("llama3-8b", "dgx-h100", 8, seq_len, 128, load=load).values["document_spread"]

    assert spread(4096) == pytest.approx(2 / (4096 / 250) ** 0.5)
    assert spread(16384) == pytest.approx(spread(4096) / 2)


def test_CL082_without_packing_the_longest_document_of_the_batch_sets_the_pace():
    """Each rank pads to its longest document, and all wait for the rank with the longest: more documents, more padding.

    The wait is in the step of the longest, so it is no term of its own. Packs of the same documents waste less.
    """

    def tuned(batch: int, **changed: Any) -> Prediction:
        load = {"task": "sft", "mean_length": 250, "length_cv": 1.0, "packed": False} | changed
        return step("llama3-8b", "dgx-h100", 8, 4096, batch, load=load)

    few, many, packed = tuned(32), tuned(512), tuned(512, packed=True)
    assert 250 < few.values["s"] < many.values["s"] < 4096
    assert few.values["fill"] > many.values["fill"] == pytest.approx(250 / many.values["s"])
    assert packed.tokens_per_second_per_gpu > 3 * many.tokens_per_second_per_gpu
    assert many.tokens_per_second_per_gpu > 2 * tuned(512, length_cv=None).tokens_per_second_per_gpu
