"""Transformer Engine's user buffers are made before the model, where layers overlap messages with GEMMs."""

from __future__ import annotations

import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.megatron_here import megatron_job, why_not_here
from executor.resolve import Here
from executor.workers import user_buffers

TINY, WORKLOAD = load_model("tiny-gpt"), Workload(512, 8)
NVIDIA = Here(cuda=True, te=True, apex=True)


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


def overlapped(path) -> Plan:
    settings = {"tp_comm_overlap_cfg": str(path)}
    return Plan(tp=2, dp=2, sequence_parallel=True, tp_comm_overlap=True, settings=settings)


def test_the_plans_own_file_of_gemms_is_what_transformer_engine_is_given(tmp_path):
    """It was exported, and a run took Transformer Engine's usual methods in its place."""
    file = tmp_path / "tp_comm_overlap.yaml"
    file.write_text("proj_fprop: {method: pipeline, num_splits: 4}\nfc1_dgrad: {method: bulk}\n")
    plan = overlapped(file)
    assert why_not_here(plan, WORKLOAD, TINY, NVIDIA) is None
    given = megatron_job(plan, WORKLOAD, TINY, NVIDIA)["user_buffers"]
    assert given == {"proj_fprop": {"method": "pipeline", "num_splits": 4}, "fc1_dgrad": {"method": "bulk"}}
    assert why_not_here(overlapped("preset"), WORKLOAD, TINY, Here()) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("- a\n", "holds no table of GEMMs"),
        ("fc3_fprop: {method: bulk}\n", "'fc3_fprop' is no overlapped GEMM"),
        ("fc1_dgrad: {", "cannot be read"),
    ],
    ids=["none", "list", "unknown", "broken"],
)
def test_another_file_is_refused_before_anything_runs(tmp_path, text, said):
    file = tmp_path / "table.yaml"
    if text is not None:
        file.write_text(text)
    reason = why_not_here(overlapped(file), WORKLOAD, TINY, NVIDIA)
    assert said in reason
    assert "\n" not in reason
