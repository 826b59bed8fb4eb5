"""advisor whatif and explain: a gain that the framework takes back is marked as such, and is no advice."""

from __future__ import annotations

import json

from click.testing import CliRunner

from advisor.cli import advisor

# Experts beside a shared one, whose tokens travel by HybridEP: with it Megatron-Bridge takes the overlap back.
SHARED = [
    "--model",
    "deepseek-v3",
    "--gpus",
    "256",
    "--gpu",
    "h200",
    "--tp",
    "2",
    "--sequence-parallel",
    "--pp",
    "8",
    "--ep",
    "16",
    "--dp",
    "16",
    "--global-batch",
    "2048",
    "--pipeline-layout",
    "balanced",
    "--moe-dispatcher",
]


def whatif(*given: str) -> str:
    return CliRunner().invoke(advisor, ["whatif", *given], catch_exceptions=False).output


def test_an_overlap_that_the_framework_takes_back_is_not_advised():
    """The best change that keeps the arithmetic was one of which a note below said that it is switched off."""
    asked = ("--knob", "shared_expert_overlap", "--json")
    by_flex, by_alltoall = (
        json.loads(whatif(*SHARED, dispatcher, *asked)) for dispatcher in ("hybridep", "alltoall")
    )
    assert by_flex["changes"][0]["delta_share"] < -0.001
    assert by_flex["changes"][0]["doubt"].startswith("Megatron-Bridge switches shared_expert_overlap off")
    assert by_flex["best"] is None
    assert by_alltoall["best"]["knob"] == "shared_expert_overlap"


def test_a_doubted_gain_is_marked_where_it_stands():
    """It led the table without a mark, and its reason stood a hundred lines below."""
    rows = whatif(*SHARED, "hybridep", "--knob", "shared_expert_overlap", "--knob", "vboost").splitlines()
    (doubted,) = (line for line in rows if line.startswith("  shared_expert_overlap on "))
    (other,) = (line for line in rows if line.startswith("  vboost on "))
    assert "%?" in doubted
    assert "?" not in other
    assert "  ? not to be believed: Worth knowing says why" in rows


def test_the_search_does_not_tell_of_it_either():
    sizes = "--pin tp=2 --pin pp=8 --pin ep=16 --pin overlap_moe_comm=off"
    given = f"--model deepseek-v3 --gpus 256 --gpu h200 {sizes} --json"
    document = json.loads(CliRunner().invoke(advisor, ["explain", *given.split()]).output)
    assert document["plans"][0]["knobs"]["moe_dispatcher"] == "hybridep"
    assert "shared_expert_overlap" not in {gain["knob"] for gain in document["not_searched"]}
