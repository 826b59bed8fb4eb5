"""Other numbers of GPUs: rounder ones that do more work, and those that a deadline takes."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import advisor
from advisor.counts import MOST_SEARCHES, QUICKER, Count, fewer_gpus, in_time, least, on, rounder
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


@pytest.mark.parametrize("days", ["58", "62", "75"])
def test_a_deadline_that_the_slow_end_of_the_interval_misses_is_told(days):
    asked = [
        "explain",
        "--model",
        "llama3-8b",
        "--gpu",
        "h100",
        "--top",
        "1",
        "--tokens",
        "1T",
        "--gpus",
        "40",
    ]
    text = CliRunner().invoke(advisor, [*asked, "--days", days], catch_exceptions=False).output
    found = re.search(
        r"need ([\d.]+) days \(([\d.]+) to ([\d.]+)(, the slow end too late)?\)", " ".join(text.split())
    )
    assert found is not None
    assert float(found[1]) <= float(days)
    assert bool(found[4]) == (float(found[3]) > float(days))


def test_a_deadline_that_no_number_of_gpus_keeps_is_told_with_what_the_most_would_need():
    asked = ["explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--top", "1"]
    done = CliRunner().invoke(
        advisor, [*asked, "--tokens", "15T", "--days", "0.0001"], catch_exceptions=False
    )
    text = " ".join(done.output.split())
    assert "in 0.0001 days: at the pace of these 8 GPUs even 1,048,576 would need 0.0" in text


def test_a_deadline_needs_tokens():
    asked = ["explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--days"]
    for days, said in (
        ("60", "Add --tokens"),
        ("0", "not above 0"),
        ("nan", "not above 0"),
        ("1e9", "below 1,000,000 days"),
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


@pytest.mark.parametrize(
    ("model", "gpus", "tokens", "days", "most"),
    [
        ("70b", 64, 1e11, 365, 16),
        ("8b", 8, 1e12, 3000, 2),
        ("70b", 20, 1e11, 45, 20),
        ("70b", 97, 1e12, 90, 97),
    ],
    ids=["memory decides", "within a node", "no whole nodes", "prime"],
)
def test_gpus_that_keep_to_the_deadline_are_enough(model, gpus, tokens, days, most):
    """Fewer that hold no plan, or more that divide better, stood in for GPUs that do it: none, or 24 for 20."""
    request = make_request(model=model, gpus=gpus, gpu="h100", top=1, tokens=tokens)
    best = search(request).best
    assert best is not None
    needed = tokens / (days * 86400)
    assert Count(best).rate >= needed
    found = in_time(request, best, days)
    assert found is not None
    assert found.gpus <= most
    assert found.rate >= needed


@pytest.mark.parametrize(("gpus", "least_that_holds"), [(256, 168), (1024, 250), (8, 8), (3, 1), (1, 1)])
@pytest.mark.parametrize("tokens", [2e7, 1e11])
def test_few_numbers_are_tried_and_each_once(monkeypatch, gpus, least_that_holds, tokens):
    """Of a long deadline memory decides; the answer is within an eighth of it, or a node."""
    request = make_request(model="8b", gpus=gpus, gpu="h100", top=1, tokens=tokens, pins={"tp": 1})
    tried = []

    def there(_, number):
        tried.append(number)
        return SimpleNamespace(gpus=number, rate=1e4 * number) if number >= least_that_holds else None

    monkeypatch.setattr("advisor.counts.on", there)
    monkeypatch.setattr("advisor.counts.Count", lambda best: best)
    found = in_time(request, SimpleNamespace(gpus=gpus, rate=1e4 * gpus), 500)
    assert found is not None
    assert len(tried) == len(set(tried)) <= MOST_SEARCHES
    assert min([gpus, *tried]) >= 1
    assert least_that_holds <= found.gpus <= min(gpus, max(9 / 8 * least_that_holds, least_that_holds + 7))


@pytest.mark.parametrize(
    ("gpus", "tokens", "days", "said"),
    [
        (
            8,
            "1T",
            "3000",
            r"these 8 GPUs keep to 3000 days, and the least number tried that does is 2 GPUs: [TP]P2",
        ),
        (8, "1T", "110", r"these 8 GPUs keep to 110 days, and no fewer were found that do. They need 10"),
        (2, "4B", "1", r"1 day takes [48] GPUs, the least number tried that is quick enough: "),
    ],
)
def test_the_text_says_whether_these_gpus_keep_to_the_deadline(gpus, tokens, days, said):
    asked = f"explain --model 8b --gpus {gpus} --gpu h100 --tokens {tokens} --days {days}"
    told = CliRunner().invoke(advisor, asked.split(), catch_exceptions=False).output
    assert re.search(f"deadline {said}", " ".join(told.split()))


def test_one_gpu_is_said_in_the_singular():
    asked = "explain --model 8b --gpus 1 --seq-len 1024 --task lora --gpu h100 --tokens 10M --days 1"
    told = CliRunner().invoke(advisor, asked.split(), catch_exceptions=False).output
    assert "deadline this GPU keeps to 1 day. It needs 0." in " ".join(told.split())


def test_a_deadline_that_no_number_keeps_is_told():
    asked = "explain --model 405b --gpus 1 --gpu h100 --precision bf16 --pin tp=1 --pin pp=1 --pin cp=1"
    asked += " --pin fsdp=false --tokens 1T --days 60"
    told = CliRunner().invoke(advisor, asked.split(), catch_exceptions=False).output
    assert "o number of GPUs that was tried trains 1.00 T tokens in 60 days" in " ".join(told.split())


def test_the_page_of_a_deadline_s_answer_knows_no_fewer_gpus_that_do_more():
    """248 H100 were the fewest for 30 days of 70B, of which their own page said that 240 do 1.03 times the work."""
    request = make_request("llama3-70b", 64, "h100", top=1, tokens=1e12)
    found = in_time(request, search(request).best, 30)
    assert found is not None
    asked = make_request("llama3-70b", found.gpus, "h100", top=1)
    assert fewer_gpus(asked, found.best) is None
