"""Recompute, dispatchers and token drop in the words of other tables: read as meant, or named."""

from __future__ import annotations

import json

import pytest
from somebodys_row import case, said

FULL, CORE, NONE = ("full", ()), ("selective", ("core_attn",)), ("none", ())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((text, FULL) for text in ("block", "uniform", "full (block)", "full/uniform", "full_block")),
        *((text, FULL) for text in ("yes", "true", "1", "activation checkpointing", "all layers")),
        *(
            (text, CORE)
            for text in (
                "core_attn",
                "core attention",
                "selective (core_attn)",
                "selective",
                "selective activation checkpointing",
            )
        ),
        *(
            (text, NONE)
            for text in ("0", "no recompute", "off", "without", "none", "not recomputed", "none (0 layers)")
        ),
        ("mlp", ("selective", ("mlp",))),
        ("selective: mlp + layernorm", ("selective", ("layernorm", "mlp"))),
    ],
)
def test_recompute_in_other_words(written, read):
    """All but three words were taken for none, without a note."""
    found = case(recompute_granularity=written)
    assert (found.plan.recompute, set(found.plan.recompute_modules)) == (read[0], set(read[1]))
    assert said(found, f"recompute_granularity {written!r} taken as {read[0]}") == (
        written not in ("none", "selective")
    )


def test_recompute_that_no_word_tells_counts_as_not_said():
    found = case(recompute_granularity="some of it")
    assert found.plan == case(recompute_granularity="").plan
    assert said(
        found, "recompute_granularity 'some of it' is none of none, selective, full: taken as not said"
    )


@pytest.mark.parametrize(
    ("columns", "recompute", "layers"),
    [
        ({"recompute_modules": "mlp"}, "selective", 0),
        ({"recompute_num_layers": "2"}, "full", 10),
        ({"recompute_num_layers": "all"}, "full", 0),
        ({"recompute_num_layers": "0"}, "none", 0),
        ({"recompute_granularity": "block", "recompute_num_layers": "2"}, "full", 10),
        ({"recompute_granularity": "full, 2 layers of each chunk"}, "full", 10),
        ({"recompute_granularity": "not stated"}, "none", 0),
        ({"recompute_granularity": "uniform", "recompute_num_layers": "2"}, "full", 0),
        ({"recompute_granularity": "none", "recompute_modules": "mlp"}, "none", 0),
    ],
)
def test_recompute_is_told_by_what_stands_beside_it(columns, recompute, layers):
    plan = case(**columns).plan
    assert (plan.recompute, plan.recompute_num_layers) == (recompute, layers)


MIXTURE = {"model": "qwen3-30b-a3b", "pp": "1", "tp": "1", "ep": "8", "vp": "1", "container": "Megatron-LM"}


@pytest.mark.parametrize(
    ("written", "flags", "kind"),
    [
        ("flex", {}, "deepep"),
        ("flex", {"moe_flex_dispatcher_backend": "hybridep"}, "hybridep"),
        ("hybrid-ep", {}, "hybridep"),
        ("flex (Hybrid EP)", {}, "hybridep"),
        ("Deep-EP", {}, "deepep"),
        ("all-gather", {}, "allgather"),
        ("all-to-all", {}, "alltoall"),
        ("NCCL A2A", {}, "alltoall"),
        ("MoE-parallel folding", {}, ""),
    ],
)
def test_dispatchers_in_other_words(written, flags, kind):
    """All were read as all-to-all."""
    found = case(**MIXTURE, moe_dispatcher=written, other_flags=json.dumps(flags))
    assert found.plan.moe_dispatcher == (kind or "alltoall")
    assert said(found, f"moe_dispatcher {written.lower()!r} is not read: taken as not said") == (not kind)
    assert said(found, "dispatcher of experts not stated") == (not kind)
    assert not said(case(moe_dispatcher="none"), "moe_dispatcher")  # as dense rows have it


@pytest.mark.parametrize(
    ("written", "capacity", "word"),
    [
        *((text, 1.0, "") for text in ("1.0", "1", "token drop (cf 1.0)", "cf=1 pad-to-capacity")),
        *((text, 1.5, "") for text in ("capacity_factor=1.5", "cf: 1.5", "drop, top-8, capacity 1.5")),
        *(
            (text, 1.0, "the capacity factor is not stated: 1")
            for text in ("drop", "yes", "padded to capacity")
        ),
        *((text, 0.0, "") for text in ("dropless", "no", "none", "no token drop", "0", "-1", "")),
        ("maybe", 0.0, "moe_token_drop 'maybe' is neither dropless nor a capacity factor: taken as not said"),
    ],
)
def test_token_drop_in_other_words(written, capacity, word):
    """All but cf=N were read as dropless."""
    found = case(**MIXTURE, moe_token_drop=written)
    assert found.plan.moe_capacity_factor == capacity
    assert said(found, "capacity factor") == bool(word)
    assert said(found, word)


def test_a_recipe_that_drops_tokens_stays_where_the_row_says_that_it_does_not_say():
    row = {"model": "mixtral-8x7b", "tp": "1", "pp": "1", "vp": "1", "ep": "8", "container": "nemo:25.02"}
    row |= {"source": "DGXC benchmarking recipes 25.02"}
    assert case(**row, moe_token_drop="not stated").plan.moe_capacity_factor == 1.0
    assert case(**row, moe_token_drop="not dropped").plan.moe_capacity_factor == 0.0
