"""Transformer Engine's user buffers are made before the model, where layers overlap messages with GEMMs."""

from __future__ import annotations

import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest

from executor.workers import user_buffers


class Mode(Enum):
    """As Transformer Engine names them."""

    NONE = "none"
    FP8 = "fp8"


@pytest.fixture
def made(monkeypatch):
    """What Transformer Engine was asked for."""
    asked: list[dict] = []
    base = SimpleNamespace(UserBufferQuantizationMode=Mode, initialize_ub=lambda **given: asked.append(given))
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.module"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["transformer_engine.pytorch.module"].base = base
    monkeypatch.setattr(user_buffers, "ranks_on_device", lambda: 1)
    return asked


def job(tp: int = 2, **config) -> dict:
    """What a rank is told, as far as user buffers go."""
    return {
        "plan": {"tp": tp, "cp": 2, "micro_batch": 3},
        "workload": {"seq_len": 512},
        "megatron": {"config": {"hidden_size": 64, "tp_comm_overlap": True} | config, "user_buffers": {}},
    }


@pytest.mark.parametrize("given", [job(tp=1), job(tp_comm_overlap=False)], ids=["one rank", "no overlap"])
def test_none_where_no_layer_overlaps(made, given):
    user_buffers.make_user_buffers(given)
    assert made == []


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({}, [Mode.NONE]),
        ({"fp8": "hybrid"}, [Mode.FP8]),
        ({"fp8": "hybrid", "first_last_layers_bf16": True}, [Mode.FP8, Mode.NONE]),
    ],
    ids=["bf16", "fp8", "fp8 with ends in bf16"],
)
def test_for_the_tokens_of_a_rank_of_the_context_and_the_formats_of_the_layers(made, config, modes):
    user_buffers.make_user_buffers(job(**config))
    (asked,) = made
    assert asked["shape"] == [512 * 3 // 2, 64]
    assert asked["tp_size"] == 2
    assert asked["quantization_modes"] == modes
    assert asked["ub_cfgs"] is None


def test_ranks_of_one_device_have_none(made, monkeypatch):
    monkeypatch.setattr(user_buffers, "ranks_on_device", lambda: 2)
    with pytest.raises(RuntimeError, match=r"share a GPU .*--no-tp-comm-overlap"):
        user_buffers.make_user_buffers(job())
    assert made == []
