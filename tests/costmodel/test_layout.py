"""Layers on stages: even splits, Megatron's texts, and the balancer."""

from __future__ import annotations

import json
import math

import pytest
from family_cases import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.layout import (
    BALANCED,
    balance,
    edge_chunks,
    even_chunks,
    expand,
    plan_layout,
    total_blocks,
)
from costmodel.model_registry import load_model
from costmodel.symbols import BLOCKS

LLAMA = load_model("llama3-70b")
DEEPSEEK = load_model("deepseek-v3")
weights = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Ett|ttL", ["Ett", "ttL"]),
        ("Et*3|(tt|)*2t*2mL", ["Ettt", "tt", "tt", "ttmL"]),
        ("E|(t|)*3L", ["E", "t", "t", "t", "L"]),
        ("Et*2||tL", ["Ett", "", "tL"]),
        ("E(t(tt)*2|)*2L", ["Ettttt", "ttttt", "L"]),
        (" E t * 2 | t L ", ["Ett", "tL"]),
        ("Et*4|(t*4|)*14tmL", ["Etttt", *["tttt"] * 14, "tmL"]),
        (json.dumps([["embedding", "decoder"], ["decoder", "mtp", "loss"]]), ["Et", "tmL"]),
    ],
)
def test_texts_of_megatron_expand(text, stages):
    assert expand(text) == stages


@pytest.mark.parametrize(
    "text",
    ["", "x", "Et|tq", "(tt", "t**2", "t*", "[1, 2]", "[[", '[["decode"]]', "t*999999", "(t*5000|)*5000L"],
)
def test_what_is_no_layout_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="pipeline_layout") as refusal:
        expand(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("text", "pp", "vpp", "says"),
    [
        ("Et*40|t*40L", 4, 1, "2 virtual stages for pp x vpp = 4 x 1 = 4"),
        ("Et*40|t*39L", 2, 1, "places 79 decoder layers, llama3-70b has 80"),
    ],
)
def test_a_layout_that_does_not_fit_says_what_was_given_and_the_way_out(text, pp, vpp, says):
    with pytest.raises(ValueError, match=says) as refusal:
        plan_layout(LLAMA, pp, vpp, text=text)
    assert "balanced" in str(refusal.value)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=20)
@given(pp=st.sampled_from([1, 2, 3, 4, 5, 8, 16]), vpp=st.sampled_from([1, 2, 3]), data=st.data())
def test_every_part_stands_on_one_stage(name, pp, vpp, data):
    """All blocks once, the embedding on the first and the loss on the last virtual stage."""
    model = load_model(name)
    vpp = 1 if pp == 1 else vpp
    text = data.draw(st.sampled_from(["", BALANCED]))
    accounts = (
        {} if text else {key: data.draw(st.booleans()) for key in ("account_embedding", "account_loss")}
    )
    layout = plan_layout(model, pp, vpp, text=text, **accounts)
    chunks = [layout.chunks[index % pp][index // pp] for index in range(pp * vpp)]
    assert all(len(stage) == vpp for stage in layout.chunks)
    assert len(layout.chunks) == pp
    for block in BLOCKS:
        assert sum(chunk.count(block) for chunk in chunks) == total_blocks(model)[block]
    assert sum(chunk.layers for chunk in chunks) == model.num_layers
    assert sum(chunk.mtp for chunk in chunks) == model.mtp_layers
    assert [chunk.embedding for chunk in chunks] == [True] + [False] * (pp * vpp - 1)
    assert [chunk.loss for chunk in chunks] == [False] * (pp * vpp - 1) + [True]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (4, 2), (7, 3)])
def test_the_printed_text_gives_the_layout_back(name, pp, vpp):
    model = load_model(name)
    layout = plan_layout(model, pp, vpp)
    assert plan_layout(model, pp, vpp, text=layout.text) == layout


def test_deepseek_v3_has_dense_layers_first_and_a_head_last():
    layout = plan_layout(DEEPSEEK, 16, 1, text="Et*4|(t*4|)*14tmL")
    assert [layout.stage_layers(stage) for stage in range(16)] == [4] * 15 + [1]
    assert layout.stage_count(0, "mlp") == 3
    assert layout.stage_count(0, "experts") == 1
    assert layout.stage_count(15, "experts") == 2  # its layer, and the layer of the MTP head


@given(weights, st.integers(1, 8), st.sampled_from([1, 2, 3]))
def test_the_balancer_places_all_parts_in_order(parts, pp, vpp):
    sizes = balance(parts, pp * vpp, pp)
    assert len(sizes) == pp * vpp
    assert sum(sizes) == len(parts)
    assert min(sizes) >= 0


@given(weights, st.integers(1, 8))
def test_the_balancer_is_never_worse_than_the_even_split(parts, pp):
    """Naive: as many parts on each stage, the first ones taking what is over."""
    each, over = divmod(len(parts), pp)
    naive = [each + (stage < over) for stage in range(pp)]
    assert _heaviest(parts, balance(parts, pp, pp)) <= _heaviest(parts, naive) * (1 + 1e-6)


def test_the_balancer_is_never_worse_than_the_even_split_of_chunks():
    """Four parts on two stages of two chunks: one part each is 3, balance puts both heavy ones on one stage."""
    parts = [2.0, 2.0, 1.0, 1.0]
    assert _heaviest_stage(parts, balance(parts, 4, 2), 2) <= _heaviest_stage(parts, [1, 1, 1, 1], 2)


@settings(max_examples=100)
@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=9), st.integers(1, 4))
def test_without_interleaving_the_balancer_is_optimal(parts, pp):
    """Against every contiguous split."""
    best = min(_heaviest(parts, sizes) for sizes in _splits(len(parts), pp))
    assert _heaviest(parts, balance(parts, pp, pp)) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "pp", "vpp"),
    [("gpt-oss-120b", 16, 1), ("gpt-oss-120b", 16, 2), ("qwen3-30b-a3b", 32, 1), ("llama4-maverick", 32, 1)],
)
def test_no_stage_stays_empty_beside_a_heavy_loss(name, pp, vpp):
    """Weighed by FLOPs the loss of these has more than four layers: stages were filled up to it, the others empty."""
    model = load_model(name)
    layout = plan_layout(model, pp, vpp, text=BALANCED)
    layers = [layout.stage_layers(stage) for stage in range(pp)]
    assert min(layers[:-1]) >= 1
    assert max(layers) == math.ceil(model.num_layers / (pp - 1))


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 4))
def test_of_splits_as_light_the_most_even_is_taken(parts, pp):
    """Against every contiguous split, by the sum of the squares."""
    loads = [_loads(parts, sizes) for sizes in _splits(len(parts), pp)]
    least = min(map(max, loads))
    evenest = min(sum(load**2 for load in each) for each in loads)
    found = _loads(parts, balance([float(part) for part in parts], pp, pp))
    lightest = [each for each in loads if max(each) == least]
    if evenest in [sum(load**2 for load in each) for each in lightest]:
        assert sum(load**2 for load in found) == evenest


@given(st.integers(1, 128), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_even_chunks_are_even_or_none(layers, pp, vpp):
    for embedding, loss in ((False, False), (True, False), (True, True)):
        sizes = even_chunks(layers, pp, vpp, embedding, loss)
        if sizes is None:
            assert (layers + embedding + loss) % (pp * vpp) or min(layers, pp * vpp) < 2
        elif pp * vpp > 1:
            assert sum(sizes) == layers
            with_ends = [*sizes]
            with_ends[0] += embedding
            with_ends[-1] += loss
            assert len(set(with_ends)) == 1


@given(st.integers(1, 100), st.integers(1, 8), st.integers(0, 20), st.integers(0, 20))
def test_edge_stages_have_the_layers_that_were_asked_for(layers, pp, first, last):
    sizes = edge_chunks(layers, pp, 1, first, last)
    if sizes is None or pp == 1:
        return
    assert sum(sizes) == layers
    assert sizes[0] == (first or sizes[0])
    assert sizes[-1] == (last or sizes[-1])
    assert len(set(sizes[1:-1])) <= 1


def _heaviest(parts, sizes):
    return max(_loads(parts, sizes))


def _loads(parts, sizes):
    loads, start = [], 0
    for size in sizes:
        loads.append(sum(parts[start : start + size]))
        start += size
    return loads


def _heaviest_stage(parts, sizes, pp):
    """Chunk c x pp + s stands on stage s."""
    loads, start = [0.0] * pp, 0
    for index, size in enumerate(sizes):
        loads[index % pp] += sum(parts[start : start + size])
        start += size
    return max(loads)


def _splits(parts, bins):
    if bins == 1:
        yield [parts]
        return
    for size in range(parts + 1):
        for rest in _splits(parts - size, bins - 1):
            yield [size, *rest]
