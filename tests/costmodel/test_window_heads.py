"""Layers with windows whose heads are their own: a block of their own that costs what its heads cost elsewhere."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from family_cases import B200, FEW, H100, SMALL, unjudged
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layer import block_work
from costmodel.layout import block_weights, plan_layout
from costmodel.model_file import from_mapping, with_overrides
from costmodel.model_registry import load_model
from costmodel.model_spec import WINDOW_DENSE, ModelSpec
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.symbols import BY_NAME
from costmodel.workload import Workload

SIZES = SMALL | {"name": "windows"}
WINDOW = {"window": 512, "full_attention_interval": 4}
LOAD, ALONE = Workload(8192, 64), Plan()
PLAIN = from_mapping(SIZES | {"sliding_window": WINDOW})
OWN = {"num_heads": 24, "num_kv_heads": 8, "head_dim": 192, "v_head_dim": 96, "sinks": True}


def windows(**own: object) -> ModelSpec:
    """The model with heads of its own in layers with windows."""
    return from_mapping(SIZES | {"sliding_window": WINDOW | own})


def uniform(heads: dict[str, object], window: bool) -> ModelSpec:
    """A model whose layers all have the same heads, and a window or none."""
    own = {"sinks": "attention_sink"}
    sizes = {own.get(name, name): value for name, value in heads.items()}
    return from_mapping(SIZES | sizes | ({"sliding_window": {"window": 512}} if window else {}))


def told(model: ModelSpec, plan: Plan = ALONE) -> dict[str, float]:
    return unjudged(model, LOAD, H100, plan).values


@pytest.mark.parametrize(
    "same", [{"num_heads": 16}, {"num_kv_heads": 4, "head_dim": 128}, {"v_head_dim": 128}, {"sinks": False}]
)
def test_windows_with_the_same_heads_cost_what_they_did(same):
    model = windows(**same)
    assert not model.windows_apart
    assert told(model) == told(PLAIN)


@pytest.mark.parametrize("values", [None, 64])
@FEW
@given(
    tp=st.sampled_from([1, 2, 4]),
    precision=st.sampled_from(["bf16", "fp8-cs"]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_each_kind_of_layer_costs_what_its_heads_cost_in_a_model_of_it_alone(
    values, tp, precision, recompute
):
    """Every entry of the ledger: products, casts, core, element-wise kernels, messages, recompute, launches."""
    plan = Plan(tp=tp, dp=8 // tp, sequence_parallel=tp > 1, precision=precision, recompute=recompute)
    all_heads = {} if values is None else {"v_head_dim": values}
    own = {"num_heads": 24, "num_kv_heads": 8, "head_dim": 192, "v_head_dim": values or 192, "sinks": True}
    mixed = told(from_mapping(SIZES | all_heads | {"sliding_window": WINDOW | own}), plan)
    alone = {
        "window_attention_": told(uniform(own, window=True), plan),
        "attention_": told(uniform(all_heads, window=False), plan),
    }
    for prefix, one in alone.items():
        entries = {name for name in mixed if name.startswith(prefix) and name not in BY_NAME}
        assert {
            f"{prefix}{each}" for each in ("time", "flops", "core_backward", "qkv_wgrad", "recompute")
        } <= entries
        for name in entries:
            same = one["attention_" + name.removeprefix(prefix)]
            assert mixed[name] == pytest.approx(same, rel=1e-12, abs=1e-30), name


def test_layers_are_counted_by_kind_on_every_stage():
    model = windows(num_kv_heads=8)
    assert model.layer_counts() == {WINDOW_DENSE: 6, "attention + mlp": 2}
    layout = plan_layout(model, 4, 1)
    assert [layout.stage_count(stage, "window_attention") for stage in range(4)] == [2, 1, 2, 1]
    assert [layout.stage_count(stage, "attention") for stage in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "plan", [Plan(), Plan(dp=8), Plan(tp=4, dp=2, sequence_parallel=True), Plan(pp=4, dp=2)]
)
def test_more_key_value_heads_cost_more(plan):
    few, many = (told(windows(num_kv_heads=heads), plan) for heads in (8, 16))
    for name in ("step_time", "peak_memory", "model_flops"):
        assert many[name] > few[name]


@pytest.mark.parametrize("size", [{"head_dim": 192}, {"num_heads": 32}, {"v_head_dim": 192}])
def test_larger_heads_cost_more(size):
    base, large = told(windows(num_kv_heads=8)), told(windows(num_kv_heads=8, **size))
    for name in ("step_time", "peak_memory", "model_flops", "window_attention_flops"):
        assert large[name] > base[name]
    assert large["attention_flops"] == base["attention_flops"]


@FEW
@given(tp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2, 4]))
def test_ranks_share_what_one_gpu_has(tp, cp, pp):
    model = windows(**OWN)
    plan = Plan(tp=tp, cp=cp, pp=pp, dp=2, cp_comm_type="a2a", sequence_parallel=tp > 1)
    one, many = (unjudged(model, LOAD, B200, each) for each in (Plan(), plan))
    assert many.values["model_flops"] == pytest.approx(one.values["model_flops"], rel=1e-12)
    assert many.values["window_attention_flops"] * tp * cp == pytest.approx(
        one.values["window_attention_flops"]
    )
    works = [
        block_work(SimpleNamespace(**each.values), "window_attention", each.features) for each in (one, many)
    ]
    assert works[1].weights(grouped=False) * tp == pytest.approx(works[0].weights(grouped=False), rel=1e-12)


def test_one_gpu_holds_the_counted_parameters():
    model = windows(**OWN)
    padding = (model.padded_vocab(1) - model.vocab) * model.hidden * 2
    assert told(model)["first_stage_parameters"] == count_parameters(model).total + padding
    attention = 2048 * (24 * 192 + 8 * (192 + 96) + 24 * 96) + 24
    assert count_parameters(model).per_layer[WINDOW_DENSE] == attention + 3 * 2048 * 8192 + 2 * 2048


def test_windows_see_less_whatever_their_place():
    """The balancer weighs layers by what they compute, so that it puts more layers with windows on a stage."""
    weights = block_weights(windows(num_kv_heads=8), 65536)
    assert weights["window_attention"] < weights["attention"] / 3


def test_a_pattern_places_windows_where_no_interval_does():
    """Where heads are the same only the share of layers counts, and a pattern of every fourth is that interval."""
    pattern = {"window": 512, "pattern": "WWWFWWWF"}
    assert told(from_mapping(SIZES | {"sliding_window": pattern})) == told(PLAIN)
    shifted = from_mapping(SIZES | {"sliding_window": pattern | {"pattern": "FWWWFWWW", "num_kv_heads": 8}})
    assert [kind == WINDOW_DENSE for kind in shifted.layer_kinds()] == [False, True, True, True] * 2
    longer = with_overrides(shifted, {"num_layers": 10})
    assert longer.sliding_window.pattern == "FWWWFWWWFW"


def test_heads_for_more_tokens_have_windows():
    """Three heads of a layer with a window and an MLP, as MiMo-V2-Flash's card prints 0.33B for each (from memory)."""
    model = load_model("mimo-v2-flash")
    assert count_parameters(model).mtp / 3 == pytest.approx(0.33e9, rel=0.01)
    assert told(model, Plan(ep=8, dp=8, pp=8))["window_attention_mtp"] == 1


def test_scaled_values_free_the_output_of_the_projection():
    """The product is what attention keeps of them; backward their gradient is read and written once more."""
    plain = windows(num_kv_heads=8)
    scaled = dataclasses.replace(plain, value_scale=0.5)
    values = [told(model) for model in (plain, scaled)]
    works = [
        block_work(SimpleNamespace(**each.values), "window_attention", each.features)
        for each in (unjudged(model, LOAD, H100, Plan()) for model in (plain, scaled))
    ]
    saved = [work.saved["queries, keys, values"] / (2 * 8192 * 128) for work in works]
    assert saved == [pytest.approx(16 + 2 * 8 + 16 + 8), pytest.approx(16 + 2 * 8)]
    streams = [{each.name: each.backward for each in work.streams}["value_scale"] for work in works]
    assert streams == [0, 2 * 2 * 8192 * 8 * 128]
    assert values[1]["peak_memory"] < values[0]["peak_memory"]


def test_a_gate_of_one_number_a_head_is_laid_out_as_wide_as_the_head_by_megatron_core():
    wide = dataclasses.replace(windows(num_heads=24), attention_output_gate=True)
    narrow = dataclasses.replace(wide, attention_head_gate=True)
    assert told(narrow)["first_stage_parameters"] == told(wide)["first_stage_parameters"]
    heads = 6 * 24 + 2 * 16
    assert count_parameters(wide).total - count_parameters(narrow).total == 2048 * heads * 127
    assert told(narrow)["model_flops"] < told(wide)["model_flops"]
    stacked = [
        unjudged(each, LOAD, H100, Plan(dp=8, fsdp=True, zero_stage=3), "automodel")
        for each in (narrow, wide)
    ]
    assert stacked[0].values["step_time"] < stacked[1].values["step_time"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": WINDOW | {"num_kv_heads": 5}}, "not a multiple of their 5 key-value heads"),
        ({"sliding_window": {"window": 512, "pattern": "WWWX"}}, "its letters are W"),
        ({"sliding_window": {"window": 512, "pattern": "WWWF"}}, "has 4 letters for num_layers 8"),
        ({"sliding_window": WINDOW | {"pattern": "WWWFWWWF"}}, "Leave one out"),
        ({"mtp_layers": 1, "mtp_pattern": "W-"}, "no heads of their own"),
        ({"attention_head_gate": True}, "set attention_output_gate = true"),
        (
            {"layer_pattern": "****----", "v_head_dim": 64},
            "are of models whose layers all have plain attention",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        from_mapping(SIZES | {"sliding_window": WINDOW} | changes)
