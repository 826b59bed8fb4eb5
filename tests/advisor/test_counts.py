"""Other numbers of GPUs: rounder ones that do more work, and those that a deadline takes."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import advisor
from advisor.counts import QUICKER, Count, fewer_gpus, in_time, least, on, rounder
from advisor.request import make_request
from advisor.search import search


@given(st.integers(1, 1 << 20))
def test_a_rounder_number_idles_an_eighth_at_most_and_divides_better(gpus):
    found = rounder(gpus)
    assert found == 0 or (gpus * 7 / 8 <= found < gpus and found & -found > gpus & -gpus)


@pytest.mark.parametrize(
    ("gpus", "found"), [(8, 0), (24, 0), (72, 0), (768, 0), (97, 96), (100, 96), (1000, 960)]
)
def test_numbers_of_whole_nodes_and_racks_are_round(gpus, found):
    assert rounder(gpus) == found


def test_a_prime_number_of_gpus_is_told_of_a_rounder_one():
    """97 H100 run 70B with data parallelism alone; 96 of them do more, and nothing said so."""
    request = make_request(model="llama3-70b", gpus=97, gpu="h100", top=1)
    best = search(request).best
    assert best is not None
    found = fewer_gpus(request, best)
    assert found is not None
    assert found.gpus == 96
    assert found.rate > QUICKER * Count(best).rate


def test_where_nothing_fits_a_rounder_number_may():
    request = make_request(model="llama3-70b", gpus=17, gpu="h100", top=1)
    assert search(request).best is None
    found = fewer_gpus(request, None)
    asked = ["explain", "--model", "llama3-70b", "--gpus", "17", "--gpu", "h100", "--json"]
    told = json.loads(CliRunner().invoke(advisor, asked, catch_exceptions=False).output)["fewer_gpus"]
    assert found is not None
    assert told["gpus"] == found.gpus == 16


@pytest.mark.parametrize("batch", [None, 256])
def test_a_deadline_is_kept_and_by_few_gpus(batch):
    """On an eighth less than the answer the time does not suffice, or little less would."""
    request = make_request(
        model="llama3-8b", gpus=8, gpu="h100", top=1, tokens=1e12, precision="bf16", global_batch=batch
    )
    best = search(request).best
    assert best is not None
    found = in_time(request, best, 60)
    assert found is not None
    needed = 1e12 / (60 * 86400)
    assert found.rate >= needed
    assert found.rate < 1.3 * needed + 8 * found.rate / found.gpus  # whole nodes
    batch_there = found.best.prediction.workload.global_batch
    assert batch_there == 256 if batch else batch_there > 128


def test_a_deadline_is_not_told_by_the_rate_of_a_bad_plan():
    """50 H200 hold a mixture of experts only just, and their rate asks for more GPUs than the deadline takes."""
    request = make_request(model="qwen3-235b-a22b", gpus=50, gpu="h200", top=1, tokens=1e12)
    best = search(request).best
    assert best is not None
    found = in_time(request, best, 30)
    assert found is not None
    assert found.rate < 1.3 * 1e12 / (30 * 86400)


def test_what_the_text_says_to_ask_gives_the_plan_it_says():
    asked = ["explain", "--model", "llama3-8b", "--gpu", "h100", "--top", "1", "--tokens", "1T", "--json"]
    run = CliRunner()
    told = json.loads(
        run.invoke(advisor, [*asked, "--gpus", "8", "--days", "60"], catch_exceptions=False).output
    )
    found = told["in_time"]
    sizes = ["--gpus", str(found["gpus"]), "--global-batch", str(found["global_batch"])]
    again = json.loads(run.invoke(advisor, [*asked, *sizes], catch_exceptions=False).output)
    assert again["plans"][0]["knobs"] == found["knobs"]
    assert again["cost"]["hours"] <= 60 * 24


def test_a_deadline_needs_tokens():
    asked = ["explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--days"]
    for days, said in (
        ("60", "Add --tokens"),
        ("0", "not a positive number"),
        ("nan", "not a positive number"),
    ):
        with pytest.raises(ValueError, match=said):
            CliRunner().invoke(advisor, [*asked, days], catch_exceptions=False)


def test_a_pinned_dp_does_not_hold_elsewhere():
    request = make_request(model="llama3-8b", gpus=8, gpu="h100", top=1, pins={"dp": 8})
    assert on(request, 16) is not None


@pytest.mark.parametrize(("gpu", "node"), [("h100", 8), ("gb200", 4)])
def test_a_deadline_takes_whole_nodes(gpu, node):
    request = make_request(model="llama3-8b", gpus=12, gpu=gpu, top=1, tokens=1e12, precision="bf16")
    best = search(request).best
    assert best is not None
    found = in_time(request, best, 30)
    assert found is not None
    assert found.gpus > node
    assert found.gpus % node == 0


def test_the_page_tells_the_deadline_as_the_text_does(tmp_path):
    page = tmp_path / "page.html"
    asked = "explain --model 8b --gpus 8 --gpu h100 --precision bf16 --tokens 1T --days 30 --html"
    told = CliRunner().invoke(advisor, [*asked.split(), str(page)], catch_exceptions=False).output
    sentence = re.search(r"deadline +(30 days take .*?)\n\n", told, re.DOTALL)
    assert sentence
    assert f"Deadline: {' '.join(sentence[1].split())}." in page.read_text()


@pytest.mark.parametrize(("tokens", "days"), [(1e12, 60), (1e10, 60)], ids=["time decides", "memory decides"])
def test_where_nothing_fits_a_deadline_still_gives_a_number(tokens, days):
    """405B on 16 H100 told nothing of the deadline: neither how many GPUs, nor why not these."""
    request = make_request(
        model="405b", gpus=16, gpu="h100", top=1, tokens=tokens, precision="fp8-cs", pins={"cp": 1}
    )
    assert search(request).best is None
    found = in_time(request, None, days)
    assert found is not None
    needed = tokens / (days * 86400)
    assert found.rate >= needed
    few = least(request)
    assert few is not None
    assert on(request, few.gpus // 2) is None
    assert found.rate < 1.3 * needed if tokens > 1e11 else found.gpus == few.gpus


def test_the_text_tells_why_these_gpus_hold_nothing_and_how_many_do():
    asked = "explain --model 405b --gpus 16 --gpu h100 --precision fp8-cs --pin cp=1 --tokens 10B --days 60"
    run = CliRunner()
    done = run.invoke(advisor, asked.split(), catch_exceptions=False)
    told = " ".join(done.output.split())
    number = json.loads(run.invoke(advisor, [*asked.split(), "--json"]).output)["in_time"]["gpus"]
    assert done.exit_code == 1
    assert re.search(r"On 16 GPUs nothing fits: [\d.]+ GiB a GPU are missing", told)
    assert f"{number} GPUs are the fewest that hold a plan and keep to 60 days" in told


def test_a_deadline_that_no_number_keeps_is_told():
    asked = "explain --model 405b --gpus 1 --gpu h100 --precision bf16 --pin tp=1 --pin pp=1 --pin cp=1"
    asked += " --pin fsdp=false --tokens 1T --days 60"
    told = CliRunner().invoke(advisor, asked.split(), catch_exceptions=False).output
    assert "o number of GPUs that was tried trains 1.00 T tokens in 60 days" in " ".join(told.split())
