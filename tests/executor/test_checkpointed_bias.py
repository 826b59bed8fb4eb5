"""A bias that a checkpointed module hands out leads to the checkpoint: why rule recompute_mlp_biases is there."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")
random_states = pytest.importorskip("megatron.core.tensor_parallel.random")


class Mlp(torch.nn.Module):
    """As Megatron-Core's: the last layer's bias is handed on, to be added with the residual."""

    def __init__(self, biased: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(4)) if biased else None

    def forward(self, x):
        return self.linear(x), self.bias


@pytest.mark.parametrize("biased", [True, False])
def test_the_bias_of_a_checkpointed_mlp_leads_to_the_checkpoint(monkeypatch, biased):
    monkeypatch.setattr(random_states, "_get_all_rng_states", lambda: (None, None, None))
    monkeypatch.setattr(random_states, "_set_all_rng_states", lambda *_: None)
    monkeypatch.setattr(random_states, "_fork_rng", contextlib.nullcontext)
    mlp, x = Mlp(biased), torch.ones(2, 4, requires_grad=True)
    out, bias = random_states.CheckpointFunction.apply(mlp, False, x)
    if not biased:
        out.sum().backward()
        assert mlp.linear.weight.grad is not None
        return
    # The parameter itself is no leaf any more. Computed again, the module hands it out once more, and the backward
    # pass of what it computes goes through the checkpoint, without end.
    assert bias is mlp.bias
    assert "CheckpointFunction" in type(mlp.bias.grad_fn).__name__
