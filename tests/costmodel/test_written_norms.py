"""Layers of Gemma 4: norms around every block, keys that are values, heads that no fused kernel takes."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from family_cases import H100, SMALL, unjudged

from costmodel.layer import block_work
from costmodel.model_file import from_mapping
from costmodel.model_registry import load_model
from costmodel.model_work import weights_of_block
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.tensors import block_tensors
from costmodel.work import activations
from costmodel.work.block import BlockWork
from costmodel.work.linear import linear_flops_forward
from costmodel.work.split_activation import PROBABILITY_BYTES, PROBABILITY_KERNELS
from costmodel.work.vocabulary import CAP_BYTES, cross_entropy_bytes
from costmodel.work.written_norms import (
    BY_POWER,
    BY_QUOTIENT,
    ROUTER,
    SCALED,
    WEIGHTED,
    Written,
)
from costmodel.workload import Workload

DENSE, SPARSE = load_model("gemma4-31b"), load_model("gemma4-26b-a4b")
TOKENS = 4096
LOAD, ALONE = Workload(TOKENS, 64), Plan(dp=64)
SIZES = SMALL | {"name": "norms", "qk_norm": True}


def inputs(model, plan=ALONE, load=LOAD) -> tuple[SimpleNamespace, frozenset[str]]:
    found = unjudged(model, load, H100, plan)
    return SimpleNamespace(**found.values), found.features


def work(model, block: str, plan=ALONE, load=LOAD) -> BlockWork:
    x, features = inputs(model, plan, load)
    return block_work(x, block, features)


def stream(one: BlockWork, name: str) -> tuple[float, float]:
    found = {each.name: each for each in one.streams}[name]
    return found.forward, found.backward


def test_a_norm_of_one_vector_in_front_of_each_block_is_what_every_model_has():
    plain = from_mapping(SIZES)
    bare = from_mapping(SIZES | {"norms": {"written": "mlp", "mlp": 1}})
    assert count_parameters(plain) == count_parameters(bare)
    both = from_mapping(SIZES | {"norms": {"attention": 2, "mlp": 2}})
    assert count_parameters(both).total - count_parameters(plain).total == 8 * 2 * 2048


def test_values_that_are_keys_have_no_projection_of_their_own_but_megatron_core_computes_it():
    tied = from_mapping(SIZES | {"values_are_keys": True})
    plain = from_mapping(SIZES)
    columns = 2048 * 4 * 128
    assert count_parameters(plain).total - count_parameters(tied).total == 8 * columns
    held = [unjudged(each, LOAD, H100, ALONE).values["first_stage_parameters"] for each in (plain, tied)]
    assert held[0] == held[1]
    x, features = inputs(tied)
    needed = 2 * weights_of_block(x, "attention", features) * TOKENS
    done = sum(linear_flops_forward(each) for each in block_work(x, "attention", features).linears)
    assert done - needed == 2 * TOKENS * columns
    model_flops = [unjudged(each, LOAD, H100, ALONE).values["model_flops"] for each in (plain, tied)]
    assert model_flops[0] - model_flops[1] == pytest.approx(6 * 64 * TOKENS * 8 * columns)


@pytest.mark.parametrize("tp", [1, 8])
def test_layers_with_windows_have_heads_of_their_own(tp):
    """16 key-value heads of 256 in windows, 4 of 512 in the others; Megatron-Core's product has keys and values."""
    plan = Plan(tp=tp, dp=64 // tp, sequence_parallel=tp > 1)
    x, features = inputs(DENSE, plan)
    qkv = {
        name: block_work(x, name, features).linears[0].columns for name in ("attention", "window_attention")
    }
    assert qkv["window_attention"] == (32 + 2 * 16) * 256 / tp
    assert qkv["attention"] == (32 + 2 * 4) * 512 / tp


def test_a_dense_layer_moves_the_bytes_of_four_norms_and_those_of_heads():
    attention, mlp = work(DENSE, "window_attention"), work(DENSE, "mlp")
    hidden, heads, values = TOKENS * 5376, TOKENS * (32 + 16) * 256, TOKENS * 16 * 256
    assert stream(attention, "written_norms") == (
        46 * (2 * hidden + heads) + 32 * values,
        104 * (2 * hidden + heads) + 80 * values,
    )
    assert stream(mlp, "written_norms") == (46 * 2 * hidden, 104 * 2 * hidden)
    assert stream(attention, "norm") == stream(mlp, "norm") == (0, 0)
    assert stream(mlp, "layer_scale") == (4 * hidden, 4 * hidden)
    assert attention.saved["written norms"] == 12 * (2 * hidden + heads) + 4 * values
    assert (attention.saved["norm input"], mlp.saved["norm input"]) == (0, 0)
    assert mlp.saved["activation output"] == 2 * 2 * TOKENS * 21504
    assert attention.saved["queries, keys, values"] == 2 * (heads + values)
    assert attention.vectors == 2 * 5376 + 2 * 256
    assert mlp.vectors == 2 * 5376


def test_a_sparse_layer_has_fused_norms_around_attention_and_six_written_ones():
    plan = Plan(ep=8, dp=64)
    attention, experts = work(SPARSE, "window_attention", plan), work(SPARSE, "experts", plan)
    hidden, heads, values = TOKENS * 2816, TOKENS * (16 + 8) * 256, TOKENS * 8 * 256
    assert stream(attention, "norm") == (4 * (2 * hidden + heads), 6 * (2 * hidden + heads))
    assert stream(attention, "written_norms") == (32 * values, 104 * values)
    assert stream(experts, "norm") == (0, 0)
    assert stream(experts, "written_norms") == (46 * 3 * hidden, 104 * 3 * hidden)
    assert stream(experts, "branch_norms") == (46 * 2 * hidden + 46 * hidden, 104 * 2 * hidden + 96 * hidden)
    assert experts.saved["written norms"] == (5 * 12 + 10) * hidden
    assert experts.vectors == 5 * 2816 + 2816 + 128
    rows = TOKENS * 8 * 704
    assert stream(experts, "probabilities") == (12 * rows, 34 * rows)
    assert experts.saved["activation output"] == 2 * (3 * rows + 2 * TOKENS * 2112)
    assert experts.saved["expert fc2 input"] == 2 * rows
    again = work(SPARSE, "experts", Plan(ep=8, dp=64, recompute="selective", recompute_modules=("moe",)))
    assert again.saved["activation output"] == 0
    assert again.saved["written norms"] == 3 * 12 * hidden
    assert again.saved["inputs apart"] == 2 * 2 * hidden


def test_frozen_weights_need_no_gradients_of_norms():
    tuned = Workload(TOKENS, 64, "lora")
    mlp = work(DENSE, "mlp", load=tuned)
    hidden = TOKENS * 5376
    assert stream(mlp, "written_norms") == (46 * 2 * hidden, (104 - 16) * 2 * hidden)
    assert mlp.saved["written norms"] == (12 - 4) * 2 * hidden


def test_tensors_add_up_to_weights_and_vectors():
    for model, plan in ((DENSE, Plan(tp=4, dp=16)), (SPARSE, Plan(tp=2, ep=8, dp=32))):
        x, features = inputs(model, plan)
        for name in ("attention", "window_attention", "experts" if model.moe else "mlp"):
            one = block_work(x, name, features)
            sizes = one.weights(True) + one.weights(False) + one.vectors + one.expert_vectors
            assert sum(each.elements for each in block_tensors(x, one)) == sizes, (model.name, name)


def test_wide_heads_write_their_scores_and_those_of_windows_do_not():
    plan = Plan(ep=8, dp=64)
    full, windows = work(SPARSE, "attention", plan), work(SPARSE, "window_attention", plan)
    assert full.saved["attention scores"] == 2 * 16 * TOKENS**2
    assert windows.saved["attention scores"] == 0
    # Keys and values of 2 heads are repeated for 16: 16 x (512 + 512) numbers of 2 bytes a token.
    assert full.saved["repeated heads"] == 2 * TOKENS * 16 * 1024
    assert windows.saved["repeated heads"] == 0
    chosen = Plan(ep=8, dp=64, recompute="selective", recompute_modules=("core_attn",))
    again = work(SPARSE, "attention", chosen)
    assert again.saved["attention scores"] == again.saved["repeated heads"] == 0


@pytest.mark.parametrize(("head_dim", "fused"), [(256, True), (264, False)])
def test_the_widest_fused_head_is_of_256(head_dim, fused):
    model = from_mapping(SIZES | {"head_dim": head_dim})
    x, features = inputs(model)
    assert (block_work(x, "attention", features).saved["attention scores"] == 0) == fused


@pytest.mark.parametrize(("seq_len", "bytes_each"), [(4096, 2), (8192, 6)])
def test_layers_of_megatron_core_write_all_scores_and_longer_ones_in_fp32(seq_len, bytes_each):
    for block in ("attention", "window_attention"):
        one = work(DENSE, block, load=Workload(seq_len, 64))
        assert one.saved["attention scores"] == bytes_each * 32 * seq_len**2


def test_capped_logits_are_read_and_written_by_six_kernels_and_one_is_kept():
    sizes = SIZES | {"norms": {"attention": 2}}
    plain, capped = (from_mapping(sizes | extra) for extra in ({}, {"logit_cap": 30.0}))
    logits = TOKENS * plain.padded_vocab(1)
    xs = [inputs(each)[0] for each in (plain, capped)]
    assert cross_entropy_bytes(xs[1]) - cross_entropy_bytes(xs[0]) == 26 * logits
    assert activations.logits(xs[1]) - activations.logits(xs[0]) == 2 * logits
    assert xs[1].loss_time > xs[0].loss_time


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norms": {"written": "some"}}, "norms.written 'some' is not known. Use all, mlp or none"),
        ({"norms": {"behind": 2}}, "norms.behind is not a key of a model"),
        ({"values_are_keys": True, "v_head_dim": 64}, "values that are keys have their size"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(changes, said):
    with pytest.raises(ValueError, match=said) as refused:
        from_mapping(SIZES | changes)
    assert "\n" not in str(refused.value)


def test_norms_are_of_plain_attention():
    mla = load_model("deepseek-v3")
    with pytest.raises(ValueError, match="all have plain attention"):
        dataclasses.replace(mla, local_layers=True)


@pytest.mark.parametrize(
    "kind", ["weighted", "router", "by power", "by quotient", "scaled", "capped", "probabilities"]
)
def test_bytes_and_kernels_are_those_of_pytorchs_operations(kind):
    """Megatron-Bridge 0.6.2, gemma/modeling_gemma4.py, as PyTorch issues it; vectors and statistics do not count."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    rows, width = 64, 128
    x = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(width, dtype=torch.bfloat16, requires_grad=True)

    share = torch.rand(rows, 1, requires_grad=True)

    def rms(states, scale=None):
        normed = states.float() * torch.pow(states.float().pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)
        return (normed if scale is None else normed * scale.float()).type_as(states)

    def by_power(states):
        wide = states.float()
        return (wide * torch.pow(wide.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)).to(states)

    def by_quotient(states):
        wide = states.float()
        return (wide / wide.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()).to(states.dtype)

    functions = {
        "weighted": (lambda: rms(x, weight), WEIGHTED),
        "router": (lambda: rms(x) * weight * width**-0.5, ROUTER),
        "by power": (lambda: by_power(x), BY_POWER),
        "by quotient": (lambda: by_quotient(x), BY_QUOTIENT),
        "scaled": (lambda: x * torch.ones(1, dtype=torch.bfloat16), (SCALED, SCALED)),
        "probabilities": (
            lambda: (x * share).to(x.dtype),
            Written(PROBABILITY_BYTES, PROBABILITY_KERNELS, 2.0),
        ),
        "capped": (lambda: 30.0 * torch.tanh(x / 30.0), (12, CAP_BYTES - 12)),
    }

    class Moved(TorchDispatchMode):
        bytes, kernels = 0, 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            result = operator(*args, **(kwargs or {}))
            if not operator.is_view and operator.overloadpacket is not torch.ops.aten.detach:
                tensors = [each for each in tree_leaves((args, result)) if isinstance(each, torch.Tensor)]
                # An expanded gradient of a mean stands in memory once a row.
                whole = [each for each in tensors if each.numel() == x.numel() and 0 not in each.stride()]
                self.bytes += sum(each.numel() * each.element_size() for each in whole)
                self.kernels += 1
            return result

    function, expected = functions[kind]
    gradient = torch.randn(rows, width, dtype=torch.bfloat16)
    kept: dict[int, float] = {}

    def keep(tensor):
        if tensor.numel() == x.numel():
            kept[tensor.data_ptr()] = tensor.element_size()
        return tensor

    with Moved() as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function()
    beside = {"weighted": weight, "router": weight, "probabilities": share}
    needed = [x, beside[kind]] if kind in beside else [x]
    with Moved() as backward:
        torch.autograd.grad(result, needed, gradient)
    moved = (forward.bytes / x.numel(), backward.bytes / x.numel())
    if not isinstance(expected, Written):
        assert moved == expected
        return
    assert moved == expected.moved
    assert (forward.kernels, backward.kernels) == expected.kernels
    assert sum(kept.values()) == expected.kept
