"""--price: what a GPU-hour costs whoever asks, where no price is on file or another one holds."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.prices import priced
from hardware_db import load_cluster

ASKED = ["explain", "--model", "8b", "--gpus", "8", "--precision", "bf16", "--tokens", "1T"]


def told(*more: str) -> str:
    return " ".join(CliRunner().invoke(advisor, [*ASKED, *more]).output.split())


@pytest.mark.parametrize("gpu", ["gb300", "mi355x"])
def test_without_a_price_on_file_the_option_that_gives_one_is_told(gpu):
    """It said that no price is known, and no way to give one."""
    page = told("--gpu", gpu)
    assert "no price known: --price 3.5 gives one, in USD a GPU-hour" in page
    assert "($3.50 a GPU-hour)" in told("--gpu", gpu, "--price", "3.5")


def test_a_price_is_of_every_hour_and_stands_before_that_on_file():
    record = json.loads(
        CliRunner().invoke(advisor, [*ASKED, "--gpu", "h100", "--price", "2", "--json"]).output
    )
    cost = record["cost"]
    assert cost["usd"] == 2 * cost["gpu_hours"]
    assert cost["usd_per_gpu_hour"] == 2 != load_cluster("dgx-h100").price_per_gpu_hour


def test_without_one_the_cluster_stays():
    cluster = load_cluster("dgx-h100")
    assert priced(cluster, None) is cluster


@pytest.mark.parametrize("price", ["0", "-1", "inf", "nan"])
def test_a_price_is_above_nothing(price):
    said = str(CliRunner().invoke(advisor, [*ASKED, "--gpu", "h100", "--price", price]).exception)
    assert "is not a price above 0, in USD a GPU-hour. Try --price 3.5." in said


def test_a_price_without_tokens_is_told_to_do_nothing():
    given = ["explain", "--model", "8b", "--gpus", "8", "--gpu", "h100", "--price", "2"]
    assert "Add --tokens" in str(CliRunner().invoke(advisor, given).exception)


def test_a_page_has_the_price_too(tmp_path):
    path = tmp_path / "plan.html"
    given = ["report", "--model", "8b", "--gpus", "8", "--gpu", "gb300", "--dp", "8", "--tokens", "1T"]
    assert CliRunner().invoke(advisor, [*given, "--price", "6", "-o", str(path)]).exit_code in (0, 1)
    assert "$6.00 a GPU-hour" in path.read_text(encoding="utf-8")
