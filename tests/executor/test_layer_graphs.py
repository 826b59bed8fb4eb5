"""When a run captures the graphs of its layers: after a few steps, within its warm-up, and only where it was asked."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")

from executor.workers.layer_graphs import LayerGraphs, replayed


def job(impl: str | None, warmup: int = 5) -> dict:
    """What a rank is told, as far as graphs go."""
    return {
        "megatron": {
            "config": {"cuda_graph_impl": impl} if impl else {},
            "ddp": {"overlap_param_gather": True},
        },
        "plan": {"micro_batch": 2, "dp": 1},
        "workload": {"global_batch": 8, "seq_len": 64},
        "warmup": warmup,
    }


class Chunk:
    """A model chunk that remembers what was done to its hooks."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def disable_forward_pre_hook(self, param_sync: bool) -> None:
        self.done.append(f"hooks off, gathered {param_sync}")

    def enable_forward_pre_hook(self) -> None:
        self.done.append("hooks on")


@pytest.fixture
def captured(monkeypatch):
    """Stand-ins for the parts of Megatron-Core that need a GPU; what the helper was given and did."""
    seen = SimpleNamespace(made=[], did=[], batches=None)

    class Helper:
        def __init__(self, *given) -> None:
            seen.made.append(given)

        def create_cudagraphs(self) -> None:
            seen.did.append("captured")

        def cuda_graph_set_manual_hooks(self) -> None:
            seen.did.append("hooks by hand")

    def init(**sizes) -> None:
        seen.batches = sizes

    calculator = ModuleType("megatron.core.num_microbatches_calculator")
    calculator.unset_num_microbatches_calculator = lambda: None
    calculator.init_num_microbatches_calculator = init
    core = ModuleType("megatron.core")
    core.num_microbatches_calculator = calculator
    graphs = ModuleType("megatron.core.transformer.cuda_graphs")
    graphs.TECudaGraphHelper = Helper
    utils = ModuleType("megatron.core.utils")
    utils.get_model_config = lambda chunk: "config"
    for module in (core, calculator, graphs, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


@pytest.mark.parametrize(("warmup", "at"), [(5, 3), (2, 1), (0, 0)])
def test_captured_once_and_within_the_warm_up(captured, warmup, at):
    chunk = Chunk()
    graphs = LayerGraphs(job("transformer_engine", warmup), [chunk], "optimizer")
    assert [index for index in range(8) if graphs.before_step(index)] == [at]
    assert captured.made == [([chunk], "config", 64, 2, ["optimizer"])]
    assert captured.batches["global_batch_size"] == 8
    # Hooks that gather parameters are no part of a graph; in the first step there are none yet.
    hooked = at > 0
    assert chunk.done == (["hooks off, gathered False", "hooks on"] if hooked else [])
    assert captured.did == (["captured", "hooks by hand"] if hooked else ["captured"])


@pytest.mark.parametrize("impl", [None, "none", "local"])
def test_nothing_is_captured_unasked(captured, impl):
    graphs = LayerGraphs(job(impl), [Chunk()], "optimizer")
    assert not any(graphs.before_step(index) for index in range(8))
    assert captured.made == []


def test_the_receipt_counts_layers_that_replay():
    layers = [SimpleNamespace(cuda_graphs=[1, 2]), SimpleNamespace(cuda_graphs=[]), SimpleNamespace()]
    assert replayed(layers) == "graphs of 1 layers"
    assert replayed(layers[1:]) == ""
