"""Element-wise kernels beside profiled training steps of an H200, and what the optimizer moves."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

import hardware_db
from costmodel.model_spec import ModelSpec
from costmodel.optimizer import adam_bytes
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.rates import outlasted
from costmodel.work import elementwise
from costmodel.workload import Workload

H200 = hardware_db.resolve("h200", None)[0]
LLAMA = ModelSpec(
    name="eight layers", num_layers=8, hidden=4096, ffn_hidden=11008, num_heads=32, num_kv_heads=8,
    head_dim=128, vocab=32000,
)  # fmt: skip
# Kernels of one micro-batch and layer of LLAMA at 8,192 tokens, in its profiled step (BF16). [s]
PROFILED = {
    "activation_backward": 380.9e-6,
    "rotary_forward": 92.2e-6,
    "rotary_backward": 96.2e-6,
    "heads_forward": 106e-6,
}


def values(stack: str | None = None, **knobs: object) -> dict[str, float]:
    """Entries of a step of LLAMA on one H200."""
    return predict(LLAMA, Workload(8192, 4), H200, Plan(**knobs), stack).values


@pytest.mark.parametrize("name", PROFILED)
def test_kernels_that_wait_for_the_sms_take_what_was_profiled(name):
    block = "mlp" if name.startswith("activation") else "attention"
    assert values("local")[f"{block}_{name}"] == pytest.approx(PROFILED[name], rel=0.1)


def test_cycles_count_where_they_outlast_the_bytes():
    x = SimpleNamespace(sm_cycles=100 * 1e9, release_scale=1.0, vboost=0, boost_slider=0)
    assert outlasted(x, 2.0, 1e11) == pytest.approx(2.0)
    assert outlasted(x, 2.0, 5e11) == pytest.approx(5.0)
    assert outlasted(x, 2.0, 0) == 2.0


def test_a_gate_of_its_own_waits_for_the_memory():
    titan, local = (values(stack)["mlp_activation_backward"] for stack in ("torchtitan", "local"))
    assert titan < 0.75 * local


def test_more_bandwidth_does_not_help_them_where_they_were_profiled():
    # H100 and H200 differ in their memory: 3.35 and 4.8 TB/s.
    h100 = predict(LLAMA, Workload(8192, 4), hardware_db.resolve("h100", None)[0], Plan(), "local").values
    assert h100["attention_heads_forward"] == pytest.approx(values("local")["attention_heads_forward"])
    # On a B200 nothing was profiled: its 8 TB/s count.
    b200 = predict(LLAMA, Workload(8192, 4), hardware_db.resolve("b200", None)[0], Plan(), "local").values
    assert b200["attention_heads_forward"] < 0.6 * h100["attention_heads_forward"]


def test_heads_are_copied_where_megatron_core_splits_them():
    x = SimpleNamespace(megatron_core=1, b=1, s=16, cp=1, rotary=1, activation_bytes=2)
    grouped = elementwise.head_copies(x, 8, 2, 2, 1)
    assert (grouped.forward, grouped.backward) == (2 * 2 * 16 * (8 + 2), 2 * 2 * 16 * (8 + 4))
    # Values narrower than keys: those alone are copied, both gradients are put together again.
    narrow = elementwise.head_copies(x, 8, 2, 1, 1)
    assert (narrow.forward, narrow.backward) == (2 * 2 * 16 * (8 + 1), 2 * 2 * 16 * (8 + 2 + 1))
    # As many key heads as query heads: queries lie as heads already.
    assert elementwise.head_copies(x, 8, 8, 8, 0).forward == 2 * 2 * 16 * 8
    x.rotary = 0
    assert elementwise.head_copies(x, 8, 8, 8, 0).forward == 0
    x.megatron_core = 0
    assert elementwise.head_copies(x, 8, 2, 2, 1).backward == 0


def test_bytes_of_an_update():
    def moved(**knobs: object) -> float:
        return float(adam_bytes(SimpleNamespace(**values("nemo-26.06", **knobs))))

    state, weight, copied = 2 * 12, 2, 4
    # Norm, Adam, clipping (read and written) of an FP32 gradient; the parameter copied from its master.
    assert moved(grad_reduce_in_fp32=True) == state + 4 * 4 + weight + copied
    # Of 16 bits it is made an FP32 one first.
    assert moved(grad_reduce_in_fp32=False) == state + 4 * 4 + weight + copied + 2 + 4
    # The precision-aware optimizer takes it as it is, and writes the parameter itself.
    aware = {"precision_aware_optimizer": True, "zero_stage": 1, "param_remainders": False}
    assert moved(grad_reduce_in_fp32=False, **aware) == state + 4 * 2 + weight


def test_a_machine_file_without_a_clock_predicts():
    bare = {name: each for name, each in H200.gpu.quantities.items() if name != "boost_clock"}
    without = dataclasses.replace(H200, gpu=dataclasses.replace(H200.gpu, quantities=bare))
    found = predict(LLAMA, Workload(8192, 4), without, Plan(), "local").values
    assert found["mlp_activation_backward"] < values("local")["mlp_activation_backward"]
