"""Compressed sparse attention and the hyper-connections around it (DeepSeek-V4)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

import hardware_db
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.work.csa import INDEX_PROJECTIONS, KEY_PROJECTIONS, hyper_connections, mixing_weights
from costmodel.workload import Workload

MODEL = load_model("deepseek-v4-flash")
GB200 = hardware_db.load_cluster("gb200-nvl72")
PLAN = Plan(ep=32, dp=64, precision="mxfp8")


def with_streams(model: ModelSpec, streams: int) -> ModelSpec:
    """The model with other residual streams."""
    assert model.compressed_attention is not None
    attention = dataclasses.replace(model.compressed_attention, residual_streams=streams)
    return dataclasses.replace(model, compressed_attention=attention)


def values(model: ModelSpec = MODEL, **changes):
    """What is told of the model on 64 GB200."""
    return predict(model, Workload(4096, 1024), GB200, dataclasses.replace(PLAN, **changes)).values


class Kernel(torch.autograd.Function):
    """One kernel forward and one backward, each reading its tensors and writing its results once."""

    @staticmethod
    def forward(ctx, moved, work, *tensors):
        ctx.moved, ctx.work = moved, work
        ctx.save_for_backward(*tensors)
        found = work(*tensors)
        moved.append((*tensors, found))
        return found

    @staticmethod
    def backward(ctx, grad):
        tensors = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            grads = torch.autograd.grad(ctx.work(*tensors), tensors, grad)
        ctx.moved.append((grad, *tensors, *grads))
        return None, None, *grads


@pytest.mark.parametrize("streams", [2, 4])
def test_hyper_connections_move_what_their_kernels_read_and_write(streams):
    """Projection, sum into the block, and mixing, as transformers' DeepseekV4HyperConnection, a kernel each."""
    tokens, hidden = 6, 64
    moved: list[tuple[torch.Tensor, ...]] = []

    def counted(*work):
        return Kernel.apply(moved, *work)

    def elements() -> float:
        """Hidden states of all tokens moved since the last call; weights of a token and of a layer are small."""
        found = sum(each.numel() for kernel in moved for each in kernel if hidden in each.shape)
        moved.clear()
        return found / (tokens * hidden)

    inputs = torch.randn(tokens, streams, hidden, requires_grad=True)
    weight = torch.randn(streams * hidden, streams * (streams + 2), requires_grad=True)
    state = inputs * 1  # as a layer in front has it: no leaf, whose gradients are added up elsewhere
    weights = counted(lambda x, w: x.flatten(1) @ w, state, weight)
    into, out, among = weights.split([streams, streams, streams**2], 1)
    block = counted(lambda x, w: (x * w[..., None]).sum(1), state, into.contiguous())
    mixed = counted(
        lambda x, y, w, v: w.view(-1, streams, streams) @ x + v[..., None] * y[:, None],
        state,
        block * 1,
        among.contiguous(),
        out.contiguous(),
    )
    forward = elements()
    mixed.backward(torch.randn_like(mixed))
    # Autograd adds up the three gradients of the streams: two sums that read two and write one.
    backward = elements() + 2 * 3 * streams
    x = SimpleNamespace(
        residual_streams=streams, activation_bytes=2, b=1, s=tokens, cp=1, sp=0, tp=1, h=hidden
    )
    told = hyper_connections(x)
    size = 2 * 2 * tokens * hidden  # both blocks of a layer, two bytes a number
    assert told.forward == size * (forward - 3)
    assert told.backward == size * (backward - 3)
    assert mixing_weights(hidden, streams) == 2 * (weight.numel() + weight.shape[1] + 3)


def test_one_stream_has_no_hyper_connections():
    """No weights, no traffic, nothing kept beside what a residual addition has."""
    one, four = (values(with_streams(MODEL, streams)) for streams in (1, 4))
    assert mixing_weights(4096, 1) == 0
    assert one["csa_hyper_forward"] == one["csa_hyper_backward"] == 0
    assert four["csa_hyper_backward"] > 3 * four["csa_hyper_forward"] > 0
    assert four["csa_backward_time"] > 1.2 * one["csa_backward_time"]


def test_mixing_again_keeps_one_state_a_block_for_the_time_of_mixing():
    """Module mhc: the streams are mixed again from each block's output."""
    kept, again = (
        values(recompute="selective", recompute_modules=modules)
        for modules in (("layernorm",), ("layernorm", "mhc"))
    )
    states = 2 * 4 * 2 * 4096 * MODEL.hidden * (MODEL.num_layers + MODEL.mtp_layers)
    assert kept["memory_first"] - again["memory_first"] == pytest.approx(states, rel=0.05)
    assert 0 < again["csa_recompute"] - kept["csa_recompute"] < 2 * kept["csa_hyper_forward"]


def test_up_projections_again_free_queries_before_and_behind_their_norm():
    """64 heads of 512: both are 16 times a hidden state."""
    kept, again = (
        values(recompute="selective", recompute_modules=modules)
        for modules in (("layernorm",), ("layernorm", "mla_up_proj"))
    )
    queries = 2 * 2 * 4096 * MODEL.num_heads * MODEL.head_dim
    found = (kept["memory_first"] - again["memory_first"]) / queries
    assert found == pytest.approx(MODEL.num_layers + MODEL.mtp_layers, rel=0.05)


def test_projections_are_those_of_the_compressors_and_the_indexer():
    """Megatron-Bridge's count of a token's FLOPs, training/utils/flop_utils.py, for one light and one heavy layer."""
    h, d, index_d = MODEL.hidden, MODEL.head_dim, 128
    light, heavy = h * 2 * d * 2, h * d * 2
    assert 2 * (KEY_PROJECTIONS - 1) * d * h == light + heavy
    assert INDEX_PROJECTIONS * index_d * h == h * 2 * index_d * 2


def test_the_output_s_group_projection_stays_in_sixteen_bits():
    """A plain parameter, no layer of Transformer Engine: no format makes it quicker, none casts its input."""
    narrow, wide = (values(precision=precision) for precision in ("mxfp8", "bf16"))
    assert narrow["csa_out_down_forward"] == wide["csa_out_down_forward"]
    assert narrow["csa_out_up_forward"] < wide["csa_out_up_forward"]
