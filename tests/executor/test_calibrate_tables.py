"""Constants planted in timings are found again, with noise and with outliers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_machine import SIZES, planted

from executor.calibrate_tables import Leaf, collective_tables, copy_bandwidth, fit_messages, peaks, tables

seeds = st.integers(0, 1000)


def fitted(measured: dict) -> dict:
    """Tables of a measurement, with the peak and the bandwidth that it shows."""
    return tables(measured, peaks(measured), copy_bandwidth(measured), 1, Leaf("planted"))


@given(st.floats(1e-6, 1e-3), st.floats(1e8, 1e11))
def test_a_planted_line_is_recovered(latency, bandwidth):
    # From 64 byte to 64 latencies' worth: what lies between is seen on both ends.
    sizes = [latency * bandwidth * factor for factor in (1e-4, 1e-2, 1, 64, 256)]
    found = fit_messages([(size, 2, latency + size / bandwidth) for size in sizes]).values[:2]
    assert found == pytest.approx((latency, bandwidth), rel=1e-2)


def test_one_slow_repeat_does_not_make_the_latency():
    points = [(size, 2, 1e-4 + size / 2e9) for size in SIZES]
    slow = [(points[0][0], 2, 1e-2), *points[1:]]
    assert fit_messages(slow).values[0] == pytest.approx(1e-4, rel=0.3)


@given(st.floats(1e9, 1e12), st.floats(0.3, 20), seeds)
def test_planted_rates_are_recovered_with_noise(rate, ratio, seed):
    copy = rate / ratio  # byte/s: products of these shapes have 27 to 180 FLOP a byte
    measured = planted(rate=rate, copy=copy, op=1e-9, noise=0.03, seed=seed)
    made = fitted(measured)
    peak, bandwidth = peaks(measured)["fp32"], copy_bandwidth(measured)
    assert peak * made["gemm"]["fp32"]["fraction"]["value"] == pytest.approx(rate, rel=0.05)
    for name in ("stream", "norm", "elementwise"):
        assert made["memory"][name]["value"] * bandwidth == pytest.approx(copy, rel=0.1)


@given(seeds)
def test_outliers_do_not_move_the_rate(seed):
    measured = planted(noise=0.02, seed=seed)
    # One timing of seven is three times too long.
    for entry in measured["gemm"][seed % 7 :: 7]:
        entry["seconds"] *= 3
    made = fitted(measured)
    assert peaks(measured)["fp32"] * made["gemm"]["fp32"]["fraction"]["value"] == pytest.approx(50e9, rel=0.1)


@given(st.floats(1e-5, 1e-3), st.floats(3e8, 3e10), seeds)
def test_planted_messages_are_recovered_with_noise(latency, bandwidth, seed):
    made = fitted(planted(latency=latency, bandwidth=bandwidth, noise=0.05, seed=seed))["collective"]
    worth = latency * bandwidth  # bytes that take as long as the latency
    for kind, table in made.items():
        if SIZES[0] < worth / 4:
            assert table["latency"]["value"] * 1e-6 == pytest.approx(latency, rel=0.15), kind
        if SIZES[-1] > 8 * worth:
            assert table["bandwidth"]["value"] * 1e9 == pytest.approx(bandwidth, rel=0.15), kind


def test_groups_of_several_sizes_give_the_time_of_a_further_rank():
    entries = planted(2)["collectives"] + planted(4, latency=1.6e-4)["collectives"]
    made = fitted(planted(4) | {"collectives": entries})["collective"]["all_gather"]
    two, four = (
        made["latency"]["value"] + (ranks - 1) * made["latency_per_rank"]["value"] for ranks in (2, 4)
    )
    assert (two, four) == pytest.approx((100, 160), rel=0.15)


def test_a_mesh_is_found_behind_groups_of_every_size():
    """Each group reaches the links among its members; the table is of the whole mesh, and of one link for a message."""
    entries = [
        entry | dict.fromkeys(("seconds", "quick"), entry["quick"] / share)
        for ranks, share in ((2, 1 / 7), (4, 3 / 7), (8, 1.0))
        for entry in planted(ranks, latency=1e-9, bandwidth=3e11)["collectives"]
        if entry["kind"] != "send_recv"
    ]
    made = collective_tables(entries, Leaf("planted"), peer_links=7)
    for kind, table in made.items():
        assert table["bandwidth"]["value"] == pytest.approx(300, rel=0.05), kind
    messages = [entry for entry in planted(2, bandwidth=5e10)["collectives"] if entry["kind"] == "send_recv"]
    alone, meshed = (collective_tables(messages, Leaf("planted"), links)["send_recv"] for links in (1, 7))
    assert alone == meshed


# Smaller ones change no timing by more than the fit's beliefs allow.
@given(st.floats(30, 300), st.floats(12, 100))
def test_planted_attention_is_recovered(half_seq, half_dim):
    table = fitted(planted(half_seq=half_seq, half_dim=half_dim))["attention"]["fp32"]
    assert table["half_dim"]["value"] == pytest.approx(half_dim, rel=0.25)
    assert table["forward"]["half_seq"]["value"] == pytest.approx(half_seq, rel=0.1)
    assert table["backward"]["half_seq"]["value"] == pytest.approx(half_seq, rel=0.1)
