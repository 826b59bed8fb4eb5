"""--price: what a GPU-hour costs whoever asks, where no price is on file or another one holds."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from advisor.case import read_case
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


def test_a_plan_keeps_the_price_that_it_was_asked_with(tmp_path):
    """A page made of the saved plan told another price, or none, than the answer that it was saved from."""
    saved, page = tmp_path / "plan.toml", tmp_path / "plan.html"
    told("--gpu", "gb300", "--price", "6.25", "--save", str(saved))
    assert read_case(str(saved), {}).cluster.price_per_gpu_hour == 6.25
    again = ["report", str(saved), "--tokens", "1T", "-o", str(page)]
    assert CliRunner().invoke(advisor, again).exit_code == 0
    assert "$6.25 a GPU-hour" in page.read_text(encoding="utf-8")
    assert CliRunner().invoke(advisor, [*again, "--price", "7"]).exit_code == 0
    assert "$7.00 a GPU-hour" in page.read_text(encoding="utf-8")
    other = {"gpu": "h100"}
    assert (
        read_case(str(saved), other).cluster.price_per_gpu_hour == load_cluster("dgx-h100").price_per_gpu_hour
    )


def test_a_plan_without_a_price_of_its_own_has_that_on_file(tmp_path):
    saved = tmp_path / "plan.toml"
    told("--gpu", "h100", "--save", str(saved))
    assert "price_per_gpu_hour" not in saved.read_text(encoding="utf-8")
    assert read_case(str(saved), {}).cluster.price_per_gpu_hour == load_cluster("dgx-h100").price_per_gpu_hour


@pytest.mark.parametrize("price", ["0", "-2.5", "nan", "inf", '"3"'])
def test_a_price_in_a_plan_is_a_number_above_nothing(tmp_path, price):
    saved = tmp_path / "plan.toml"
    told("--gpu", "h100", "--price", "3", "--save", str(saved))
    text = saved.read_text(encoding="utf-8")
    saved.write_text(
        text.replace("price_per_gpu_hour = 3.0", f"price_per_gpu_hour = {price}"), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"cluster\.price_per_gpu_hour = ") as error:
        read_case(str(saved), {})
    assert "\n" not in str(error.value)


def test_a_price_on_file_is_told_with_its_source():
    """`$2.95 a GPU-hour` stood without a word of where it comes from; a price that is given needs none."""
    price = load_cluster("dgx-h100").quantities["price_per_gpu_hour"]
    source = f"${price.value:.2f} a GPU-hour: {price.source}; --price says what it costs you"
    assert source in told("--gpu", "h100")
    assert "--price says what it costs you" not in told("--gpu", "h100", "--price", "2")
