"""Keys that a query meets, against masks written out: full, window, chunk, packed documents."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.binding import bind
from costmodel.model_registry import load_model
from costmodel.work.attention import attended_keys
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]


def mean_keys(lengths: list[int], window: int = 0, chunk: int = 0) -> float:
    """Mean unmasked keys of a query in a pack of documents; the diagonal counts by half, as s / 2 does."""
    total = 0.0
    for length in lengths:
        query, key = np.arange(length)[:, None], np.arange(length)[None, :]
        mask = key <= query
        if window:
            mask &= query - key < window
        if chunk:
            mask &= query // chunk == key // chunk
        total += mask.sum() - length / 2
    return total / sum(lengths)


def numbers(**known: float) -> SimpleNamespace:
    zero = dict.fromkeys(("window", "window_share", "chunk", "chunk_share"), 0)
    return SimpleNamespace(**zero | known)


@given(st.integers(1, 300))
def test_full_causal_attention_meets_half_the_sequence(length):
    assert attended_keys(numbers(document=length)) == pytest.approx(mean_keys([length]))


@given(st.integers(1, 300), st.integers(1, 400))
def test_window(length, window):
    """w - w^2 / (2 s); the half key of the diagonal is the whole difference."""
    found = attended_keys(numbers(document=length, window=window, window_share=1))
    assert found == pytest.approx(mean_keys([length], window=window), abs=0.51)
    assert found <= length / 2 + 1e-9


@given(st.integers(1, 64), st.integers(1, 8))
def test_chunks_that_divide_the_sequence(chunk, chunks):
    found = attended_keys(numbers(document=chunk * chunks, chunk=chunk, chunk_share=1))
    assert found == pytest.approx(mean_keys([chunk * chunks], chunk=chunk))


@given(st.integers(1, 300), st.integers(1, 400))
def test_a_last_chunk_that_is_cut_short_meets_fewer_keys(length, chunk):
    found = attended_keys(numbers(document=length, chunk=chunk, chunk_share=1))
    assert found >= mean_keys([length], chunk=chunk) - 1e-9
    assert found <= length / 2 + 1e-9


@given(st.integers(2, 200), st.integers(1, 100), st.floats(0, 1))
def test_layers_of_two_kinds_are_averaged(length, window, share):
    found = attended_keys(numbers(document=length, window=window, window_share=share))
    whole, narrow = (
        attended_keys(numbers(document=length, window=window, window_share=one)) for one in (0, 1)
    )
    assert found == pytest.approx((1 - share) * whole + share * narrow)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_packed_documents_do_not_see_each_other(lengths):
    """What attention meets is E[l^2] / E[l], which binding computes as mean (1 + cv^2)."""
    mean, deviation = np.mean(lengths), np.std(lengths)
    met = mean * (1 + (deviation / mean) ** 2)
    assert attended_keys(numbers(document=met)) == pytest.approx(mean_keys(lengths))


@pytest.mark.parametrize(("mean", "cv", "packed", "met"), [(0, 0, True, 4096), (1024, 0, True, 1024)])
def test_binding_of_documents(mean, cv, packed, met):
    workload = Workload(4096, 1, mean_length=mean, length_cv=cv, packed=packed)
    assert bind(load_model("llama3-8b"), workload, H100, "bf16")["document"].value == met


def test_binding_of_documents_that_vary_or_are_padded():
    model = load_model("llama3-8b")
    varied = Workload(4096, 1, mean_length=1024, length_cv=0.5)
    assert bind(model, varied, H100, "bf16")["document"].value == 1024 * 1.25
    padded = bind(model, Workload(4096, 1, mean_length=1024, packed=False), H100, "bf16")
    assert padded["document"].value == 4096
    assert padded["fill"].value == 0.25
    long_tail = bind(model, Workload(4096, 1, mean_length=2048, length_cv=3.0), H100, "bf16")
    assert long_tail["document"].value == 4096


@pytest.mark.parametrize(
    ("name", "layers", "mean"),
    [
        ("gpt-oss-120b", 36, lambda s: (s / 2 + (128 - 128**2 / (2 * s))) / 2),
        ("llama4-maverick", 48, lambda s: s / 8 + 0.75 * 8192 / 2),
    ],
)
def test_patterns_of_published_models(name, layers, mean):
    """gpt-oss: every other layer a window of 128 (arXiv:2508.10925). Llama 4: 3 of 4 layers chunks of 8192."""
    model = load_model(name)
    assert model.num_layers == layers
    bound = bind(model, Workload(32768, 1), H100, "bf16")
    x = SimpleNamespace(**{key: entry.value for key, entry in bound.items()})
    assert attended_keys(x) == pytest.approx(mean(32768))
