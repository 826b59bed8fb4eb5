"""Pins in the space: each holds in every plan, alone and beside another."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import TINY, ask, plans

from advisor.space import build_space
from advisor.space.grid import Space
from costmodel.columns import ITEM_PREFIX, ITEMS, code
from costmodel.knobs import KNOBS
from costmodel.knobs.record import Knob
from costmodel.model_registry import load_model
from hardware_db import load_cluster


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tp": st.sampled_from([1, 2, 4]),
            "pp": st.sampled_from([1, 2]),
            "micro_batch": st.sampled_from([1, 2, 3]),
            "cuda_graph": st.booleans(),
            "recompute": st.sampled_from(["none", "selective", "full"]),
            "zero_stage": st.sampled_from([0, 1, 2, 3]),
            "fsdp": st.booleans(),
            "attention_backend": st.sampled_from(["fused", "unfused"]),
            "grad_reduce_in_fp32": st.booleans(),
            "precision_aware_optimizer": st.booleans(),
            "cp_comm_type": st.sampled_from(["p2p", "a2a"]),
            "account_loss": st.booleans(),
            "tp_comm_overlap": st.booleans(),
            "overlap_grad_reduce": st.booleans(),
            "dropout": st.booleans(),
        },
    )
)
@settings(max_examples=60, deadline=None)
def test_pins_hold_in_every_plan(pins):
    sharding = {name: pins[name] for name in ("fsdp", "zero_stage") if name in pins}
    if len(sharding) == 2 and sharding["fsdp"] != (sharding["zero_stage"] > 1):
        with pytest.raises(ValueError, match="--zero-stage"):
            ask(gpus=8, batch=48, pins=pins)
        return
    request = ask(gpus=8, batch=48, pins=pins)
    for plan in plans(request, most=500):
        assert {name: getattr(plan, name) for name in pins} == pins


def values_of(knob: Knob) -> list[Any]:
    """Values that a person might pin, the default among them."""
    if knob.kind == "bool":
        return [True, False]
    if knob.kind == "choice":
        return list(knob.choices)
    if knob.kind == "list":
        return [knob.choices[:1], knob.choices[-2:], ()]
    if knob.kind == "text":
        return ["balanced", ""]
    whole = knob.kind == "int"
    return [value if whole else float(value) for value in (2, 0, 1) if knob.low <= value <= knob.high][:2]


def held(space: Space, name: str, value: Any) -> bool:
    """Whether every plan of a space has a value."""
    if name in ITEM_PREFIX:
        items = {column: item for column, (knob, item) in ITEMS.items() if knob == name}
        return all((space.column(column) == (item in value)).all() for column, item in items.items())
    number = code(name, value) if isinstance(value, str) else value
    return bool((space.column(name) == number).all())


# With a dense layer and three of experts.
EXPERTS = replace(load_model("moonlight-16b-a3b"), num_layers=4)


@pytest.mark.parametrize("model", [TINY, EXPERTS], ids=["dense", "experts"])
def test_of_two_pins_none_is_dropped_in_silence(model, monkeypatch):
    """Every plan has both values, or the request is refused, or no plan is left, which the search refuses.

    Of every two knobs, one of them searched; pins of the others are columns of their own, and are tried all at once.
    Rules are left out: they refuse in words, and would hide here what the space drops.
    """
    monkeypatch.setattr("advisor.space.drop_illegal", lambda space, request, rules: [])
    whole = build_space(ask(model, 4, batch=16), "bf16").columns
    searched = {name for name, column in whole.items() if len(column) > 1}
    searched |= {"recompute_modules", "recompute_num_layers", "zero_stage", "etp", "cp_a2a_size"}
    knobs = {name: values_of(knob) for name, knob in KNOBS.items() if name != "precision"}
    rest = [name for name in knobs if name not in searched]
    cases = [{name: knobs[name][-1] for name in rest}, {name: knobs[name][0] for name in rest}]
    for names in itertools.combinations(knobs, 2):
        if searched.intersection(names):
            cases += [
                dict(zip(names, pair, strict=True))
                for pair in itertools.product(*(knobs[name] for name in names))
            ]
    dropped = []
    for pins in cases:
        try:
            space = build_space(ask(model, 4, batch=16, pins=pins), "bf16")
        except ValueError:
            continue
        dropped += [pins for name, value in pins.items() if not held(space, name, value)]
    assert dropped == []


@pytest.mark.parametrize("stage", [{"zero_stage": 3}, {"zero_stage": 2}, {"fsdp": True}])
def test_graphs_stay_beside_fsdp_where_both_are_pinned(stage):
    """`--pin zero_stage=3 --pin cuda_graph=on` left no plan, and blamed the parallel sizes."""
    assert plans(ask(pins=stage | {"cuda_graph": True}))


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"recompute_modules": ("mlp",)}, {("selective", ("mlp",), 0)}),
        ({"recompute_modules": ("core_attn",)}, {("selective", ("core_attn",), 0)}),
        ({"recompute": "full", "recompute_num_layers": 2}, {("full", (), 2)}),
        ({"recompute_num_layers": 1}, {("full", (), 1)}),
        ({"recompute": "none"}, {("none", (), 0)}),
    ],
)
def test_recompute_pins_belong_together(pins, expected):
    seen = {(p.recompute, p.recompute_modules, p.recompute_num_layers) for p in plans(ask(pins=pins))}
    assert seen == expected


def test_a_pin_outside_the_axes_is_honoured():
    found = plans(ask(gpus=6, batch=18, pins={"micro_batch": 3}))
    assert found
    assert {plan.micro_batch for plan in found} == {3}


def test_zero_stage_0_leaves_no_parameter_gather():
    found = plans(ask(pins={"zero_stage": 0}))
    assert found
    assert not any(plan.overlap_param_gather or plan.fsdp for plan in found)


PADDED = {"moe_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}


@pytest.mark.parametrize(("pins", "dispatcher"), [({}, "deepep"), (PADDED, "alltoall")])
def test_experts_padded_to_a_capacity_are_not_sent_by_deepep(pins, dispatcher):
    """Every plan with experts on several ranks was refused where the padding was pinned beside DeepEP."""
    place = {"cluster": load_cluster("dgx-h100"), "stack": "nemo-25.09"}
    request = ask(load_model("mixtral-8x7b"), 8, batch=64, pins={"ep": 8, "tp": 1, "pp": 1, **pins}, **place)
    space = build_space(request, "bf16")
    assert space.legal
    assert set(space.columns["moe_dispatcher"]) == {code("moe_dispatcher", dispatcher)}
