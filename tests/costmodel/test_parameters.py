"""Laws of the parameter formulas."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.model_file import from_mapping, with_overrides
from costmodel.model_registry import list_models, load_model
from costmodel.parameter_counts import count_parameters, layer_parts
from costmodel.parameters import (
    attention_parameters,
    embedding_parameters,
    gated_delta_parameters,
    mamba_parameters,
    mla_parameters,
    mlp_parameters,
    norm_parameters,
    router_parameters,
)

UNHURRIED = settings(deadline=None)
counts = st.integers(1, 512)
flags = st.booleans()


@st.composite
def dense_specs(draw):
    kv, group, d = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(1, 64)) * 2
    return from_mapping(
        {
            "name": "drawn",
            "num_layers": draw(st.integers(1, 64)),
            "hidden": draw(counts) * 8,
            "ffn_hidden": draw(counts) * 8,
            "num_heads": kv * group,
            "num_kv_heads": kv,
            "head_dim": d,
            "vocab": draw(st.integers(1, 300_000)),
            "gated": draw(flags),
            "tied_embeddings": draw(flags),
            "qk_norm": draw(flags),
            "qkv_bias": draw(flags),
            "linear_bias": draw(flags),
            "norm": draw(st.sampled_from(["RMSNorm", "LayerNorm"])),
            "learned_positions": draw(st.integers(0, 4096)),
        }
    )


@UNHURRIED
@given(dense_specs(), st.integers(1, 100))
def test_linear_in_layers(spec, more):
    one_layer = sum(layer_parts(spec, spec.layer_kinds()[0]).values())
    longer = replace(spec, num_layers=spec.num_layers + more)
    assert count_parameters(longer).total - count_parameters(spec).total == more * one_layer


@UNHURRIED
@given(dense_specs())
def test_tied_embeddings_save_one_table(spec):
    tied = count_parameters(replace(spec, tied_embeddings=True)).total
    assert count_parameters(replace(spec, tied_embeddings=False)).total - tied == spec.vocab * spec.hidden


@UNHURRIED
@given(dense_specs())
def test_dense_models_use_all_their_parameters(spec):
    count = count_parameters(spec)
    assert count.active == count.total == sum(count.parts.values())
    assert count.mtp == 0


@UNHURRIED
@given(h=counts, a=counts, d=counts)
def test_as_many_kv_heads_as_heads_is_multi_head(h, a, d):
    assert attention_parameters(h, a, a, d) == 4 * h * a * d


@UNHURRIED
@given(h=counts, k=counts, group=counts, d=counts)
def test_fewer_kv_heads_save_their_columns(h, k, group, d):
    saved = attention_parameters(h, k * group, k * group, d) - attention_parameters(h, k * group, k, d)
    assert saved == 2 * h * d * (k * group - k)


@UNHURRIED
@given(h=counts, f=counts)
def test_gate_is_one_more_matrix(h, f):
    assert mlp_parameters(h, f, gated=1) - mlp_parameters(h, f, gated=0) == h * f
    assert mlp_parameters(h, f, gated=0, bias=1) - mlp_parameters(h, f, gated=0) == f + h


@UNHURRIED
@given(h=counts, a=counts, rank=counts, d=counts)
def test_query_latent_replaces_the_projection(h, a, rank, d):
    sizes = {"kv_lora_rank": rank, "qk_head_dim": d, "qk_pos_emb_head_dim": d, "v_head_dim": d}
    with_latent = mla_parameters(h, a, q_lora_rank=rank, **sizes)
    assert mla_parameters(h, a, q_lora_rank=0, **sizes) - with_latent == (h - rank) * 2 * a * d - rank * (
        h + 1
    )


@pytest.mark.parametrize("name", [name for name in list_models() if load_model(name).moe is not None])
def test_all_experts_active_is_all_parameters(name):
    spec = load_model(name)
    if not spec.parameters_known:
        return
    count = count_parameters(spec)
    assert count.active < count.total
    everyone = replace(
        spec, moe=replace(spec.moe, topk=spec.moe.num_experts, router_groups=1, router_group_topk=1)
    )
    assert count_parameters(everyone).active == count.total


@pytest.mark.parametrize("name", list_models())
def test_parts_and_layers_sum_to_the_total(name):
    spec = load_model(name)
    if not spec.parameters_known:
        return
    count = count_parameters(spec)
    layers = sum(number * count.per_layer[kind] for kind, number in spec.layer_counts().items())
    final_norm = spec.hidden * (2 if spec.norm == "LayerNorm" else 1)
    assert sum(count.parts.values()) == count.total == count.embedding + layers + final_norm + count.output


def test_formulas_take_symbols_and_arrays():
    """One formula, three uses: numbers, arrays and symbols give the same."""
    sympy = pytest.importorskip("sympy")
    cases = [
        (lambda x: attention_parameters(x, 8, 2, 16, qkv_bias=1, qk_norm=1, sink=1)),
        (lambda x: mlp_parameters(x, 4 * x, gated=1, bias=1)),
        (lambda x: embedding_parameters(x, 1000, 10) + norm_parameters(x, 2) + router_parameters(x, 8)),
        (lambda x: mamba_parameters(x, num_heads=8, head_dim=4, state_dim=16, num_groups=2, conv_kernel=4)),
        (
            lambda x: gated_delta_parameters(
                x, num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=8, conv_kernel=4
            )
        ),
        (
            lambda x: mla_parameters(
                x, 8, q_lora_rank=4, kv_lora_rank=4, qk_head_dim=8, qk_pos_emb_head_dim=4, v_head_dim=8
            )
        ),
    ]
    h = sympy.Symbol("h")
    for formula in cases:
        assert int(formula(h).subs(h, 64)) == formula(64)
        assert list(formula(np.array([64, 128]))) == [formula(64), formula(128)]


def test_layer_override_keeps_the_rest():
    spec = load_model("deepseek-v3")
    short = with_overrides(spec, {"num_layers": 4, "first_dense_layers": 1})
    assert short.layer_counts() == {"attention + mlp": 1, "attention + experts": 3}
    full, cut = count_parameters(spec), count_parameters(short)
    assert (cut.embedding, cut.output, cut.per_layer) == (full.embedding, full.output, full.per_layer)


def test_counting_imports_neither_sympy_nor_numpy():
    program = (
        "import sys; from costmodel.model_registry import load_model; "
        "from costmodel.parameter_counts import count_parameters; count_parameters(load_model('70b')); "
        "print([name for name in ('sympy', 'numpy', 'pydantic', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
