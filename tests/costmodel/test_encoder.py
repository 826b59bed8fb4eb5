"""An encoder in the decoder's first stage: what it holds and computes, by task, format, sharding and recompute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.model_registry import load_model
from costmodel.model_tables import Encoder
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload
from hardware_db import load_cluster

TOWER = Encoder(num_layers=32, hidden=1280, ffn_hidden=5120, num_heads=16, tokens=2048)
MODEL = replace(load_model("llama3-8b"), name="vision", encoder=TOWER)
MATRICES = 32 * 12 * 1280**2  # of attention 4 h^2, of an MLP that is not gated 8 h^2
NORMS = 32 * 2 * 1280  # RMS norms as the decoder's


def run(task: str = "sft", where: str = "dgx-h100", model: Any = MODEL, **knobs: Any) -> Prediction:
    return predict(model, Workload(4096, 64, task), load_cluster(where), Plan(**{"dp": 8} | knobs))


def held(**more: Any) -> float:
    return run(**more).values["memory_first_encoder"]


def kept(**more: Any) -> float:
    """Activations alone: what a batch twice as large holds more."""
    return held(micro_batch=2, **more) - held(**more)


def test_states_are_sharded_as_the_plan_says():
    """2 bytes of weights, 4 of gradients, 12 of states, of which eight ranks share the last, or all hold them."""
    parameters = MATRICES + NORMS
    for stage, states in ((1, 12 / 8), (0, 12)):
        state = held(zero_stage=stage) - kept(zero_stage=stage)
        assert state == pytest.approx((2 + 4 + states) * parameters, rel=1e-6)


def test_a_frozen_encoder_holds_its_weights_alone():
    assert held(task="lora") == pytest.approx(2 * (MATRICES + NORMS), rel=1e-6)


def test_fp8_keeps_copies_of_its_matrices():
    plain, fp8 = (held(precision=name) - kept(precision=name) for name in ("bf16", "fp8-cs"))
    assert fp8 - plain == pytest.approx(2 * MATRICES, rel=1e-6)


def test_full_recompute_keeps_inputs_of_its_layers():
    assert kept(recompute="full") == pytest.approx(32 * 2 * 2048 * 1280)
    assert kept() > 10 * kept(recompute="full")


def test_a_frozen_encoder_has_no_backward_pass():
    """A third of the model's FLOPs, and of the time but for what is not a product."""
    frozen, trained = (run(task).values for task in ("lora", "sft"))
    assert frozen["encoder_time"] < 0.4 * trained["encoder_time"]
    plain = replace(MODEL, encoder=None)
    own = [
        run(task).values["model_flops"] - run(task, model=plain).values["model_flops"]
        for task in ("lora", "sft")
    ]
    assert own[0] == pytest.approx(own[1] / 3)


def test_its_gradients_are_reduced_and_its_weights_updated():
    plain = run(model=replace(MODEL, encoder=None)).values
    more = run().values["dp_parameters"] - plain["dp_parameters"]
    assert more == pytest.approx(MATRICES + NORMS)
    # On ranks of its own an encoder smaller than the decoder's stages sets no pace.
    apart = run(encoder_pp=1, encoder_tp=1, dp=4).values["dp_parameters"]
    assert apart == plain["dp_parameters"]
