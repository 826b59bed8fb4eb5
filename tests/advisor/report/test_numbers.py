"""The page's numbers are those of `--json`, and files are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from base64 import b64decode

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from advisor.cli import advisor
from advisor.explain_text import PRICE
from advisor.render import gib, percent, seconds
from advisor.report.cloud import SAMPLE, pareto_front
from advisor.report.formulas import formulas_of, kind_of_source, link_of_source
from advisor.report.markup import Markup, data_script, plain, table, tag, text
from advisor.report.page import LIBRARY, POLICY, asset
from advisor.report.roofline import roofline
from advisor.report.schedule import MOST_SPANS, schedule
from advisor.report.subject import next_commands, without_page
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.simulated_pipeline import with_schedule
from costmodel.workload import Workload
from hardware_db import resolve

MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def step():
    """A small pipelined step."""
    plan = Plan(tp=2, pp=2, dp=2, sequence_parallel=True)
    cluster = resolve("h100", None)[0]
    return with_schedule(predict(load_model("llama3-8b"), Workload(8192, 16), cluster, plan))


def without_time(said):
    """Everything but how long the search took here."""
    return said | {"space": said["space"] | {"seconds": None}}


def test_the_page_holds_what_explain_json_says_to_the_last_digit(large):
    assert without_time(large.data["explain"]) == without_time(large.said)
    chosen = large.said["plans"][0]["prediction"]
    assert large.data["prediction"] == chosen | {"gpus_of_sizes": chosen["gpus"]}


def test_the_page_of_a_plan_file_holds_what_predict_json_says(hostile):
    said = {name: value for name, value in hostile.said.items() if name not in ("assumptions", "violations")}
    assert {name: hostile.data["prediction"][name] for name in said} == said


def test_perf_rules_of_a_searched_plan_stand_as_what_it_costs(large, hostile):
    """ "Try a smaller --cp" stood on the page alone, as if the search had not weighed that."""
    assert "PERF (runs, but costs)" in large.path.read_text(encoding="utf-8")
    assert PRICE in large.path.read_text(encoding="utf-8")
    assert PRICE not in hostile.path.read_text(encoding="utf-8")  # of a plan that nobody searched for


def test_tables_show_the_numbers_of_the_payload(large):
    def leaves(term):
        return [term] + [leaf for part in term["parts"] for leaf in leaves(part)]

    body = large.html[: large.html.index('id="data"')]
    rows = dict(
        re.findall(r'data-term="([^"]+)"[^>]*>[^<]*</button></th><td class="right">([^<]+)</td>', body)
    )
    known = large.data["prediction"]
    told = {term["name"]: seconds(term["seconds"]) for term in leaves(known["terms"]) if term["seconds"]}
    told |= {term["name"]: gib(term["bytes"]) for term in leaves(known["memory_terms"]) if term["bytes"]}
    assert rows == told
    assert f'<dd class="value">{percent(known["mfu"])}</dd>' in body
    for each in large.said["why"]:
        assert text(each["text"]) in body


def test_a_page_of_405b_is_small_and_asks_the_network_for_nothing(large, hostile):
    for made in (large, hostile):
        assert made.path.stat().st_size < MOST_BYTES
        assert not re.search(r'(?:src|srcset|action|poster|data)="?https?:', made.html)
        assert "@import" not in made.html
        assert f'content="{text(POLICY)}"' in made.html
    assert POLICY.startswith("default-src 'none'")


def test_the_library_is_the_one_that_was_vendored(large):
    told = re.search(r"`([0-9a-f]{64})`", asset("vendor/README.md"))
    assert hashlib.sha256(asset(LIBRARY).encode()).hexdigest() == told[1]
    packed = re.search(r'id="library">([^<]+)</script>', large.html)[1]
    assert zlib.decompress(b64decode(packed)).decode() == asset(LIBRARY)


def test_formulas_give_their_values_from_what_they_use(step):
    told = formulas_of(step)
    names = set(told["entries"]) | set(told["inputs"])
    for name, entry in told["entries"].items():
        assert set(entry["uses"]) <= names, name
        assert entry["value"] == step.values[name]
        assert set(re.findall(r"<mi>([^<]+)</mi>", told["mathml"][name])) <= {*entry["uses"], "log"}
    assert {leaf.name for leaf in step.time.leaves()} - set(told["entries"]) == {"schedule_correction"}
    assert all(entry["source"] for entry in told["inputs"].values())


def test_a_source_says_how_a_number_is_known():
    assert (
        kind_of_source("gpu h100-sxm, hbm_bandwidth: 3.35 TB/s, datasheet, NVIDIA H100 datasheet")
        == "data sheet"
    )
    assert kind_of_source("b200, memory.norm: 0.75 1, assumed, notes") == "assumed"
    assert (
        kind_of_source("hardware_db/calibrated/step.toml, straggler.nemo: fitted by tools/fit_step.py")
        == "fitted"
    )
    assert link_of_source("NVIDIA page, https://example.org/a?b=1, read 2026") == "https://example.org/a?b=1"
    assert link_of_source("javascript:alert(1)") == ""


def test_the_drawn_step_ends_with_the_step(step):
    line = schedule(step)
    ends = [start + duration for _, _, _, start, duration, _, _ in line["spans"]]
    assert max(ends) == pytest.approx(step.step_time_s, rel=1e-9)
    assert len(line["spans"]) <= MOST_SPANS
    for row in line["rows"]:
        parts = row["compute_s"] + row["exposed_s"] + row["idle_s"]
        assert parts == pytest.approx(step.step_time_s, rel=1e-6)
        assert 0 <= row["warm_up_s"] <= row["steady_s"] <= row["flush_s"] <= step.step_time_s
    assert max(size for _, size in line["memory"]) == pytest.approx(step.peak_memory_bytes)


def test_matrix_products_lie_under_the_roof_and_make_up_the_linear_layers(step):
    told = roofline(step)
    for gemm in told["gemms"]:
        roof = min(told["roofs"][0]["rate"], gemm["intensity"] * told["bandwidth"])
        assert gemm["rate"] < roof
        assert gemm["flops"] == pytest.approx(2 * math.prod(gemm["shape"]))
    forward = sum(gemm["seconds"] for gemm in told["gemms"] if gemm["pass"] == "forward")
    layers = step.model.num_layers / step.plan.pp
    microbatches = step.plan.num_microbatches(step.workload.global_batch)
    leaf = next(leaf for leaf in step.time.leaves() if leaf.name == "forward_linear")
    assert forward * layers * microbatches == pytest.approx(leaf.value)


@given(arrays.arrays(np.float64, st.integers(1, 40), elements=st.integers(0, 9).map(float)), st.randoms())
def test_no_point_beats_one_of_the_front_and_every_other_is_beaten(cost, random):
    memory = np.array([float(random.randint(0, 9)) for _ in cost])
    front = pareto_front(cost, memory)
    for index in range(len(cost)):
        beaten = any(
            cost[other] <= cost[index]
            and memory[other] <= memory[index]
            and (cost[other], memory[other]) != (cost[index], memory[index])
            for other in range(len(cost))
        )
        same = any((cost[index], memory[index]) == (cost[one], memory[one]) for one in front)
        assert same != beaten
    assert list(cost[front]) == sorted(cost[front])


def test_the_cloud_is_thinned_and_says_so(large):
    cloud = large.data["cloud"]
    drawn = len(cloud["points"]["plan"])
    assert drawn == min(cloud["feasible"], drawn)
    assert drawn <= SAMPLE + cloud["front"]
    assert cloud["feasible"] == large.said["space"]["feasible"]
    assert f"{drawn:,} of {cloud['feasible']:,} plans that fit are drawn" in large.html
    assert all(len(column) == drawn for column in cloud["points"].values())


def test_scaling_holds_the_plan_itself_and_its_cost(large):
    rows = {row["gpus"]: row for row in large.data["scaling"]["rows"]}
    assert sorted(rows) == [128, 256, 512, 1024, 2048]
    here, best = rows[512], large.said["plans"][0]["prediction"]
    assert here["step_time_s"] == best["step_time_s"]
    assert here["efficiency"] == 1.0
    tokens = large.data["scaling"]["tokens"]
    hours = tokens / (best["tokens_per_second_per_gpu"] * 512) / 3600
    assert here["cost"]["gpu_hours"] == pytest.approx(512 * hours)


@given(st.text())
def test_text_and_attributes_cannot_leave_their_place(value):
    made = tag("p", value, title=value)
    assert made.count("<") == 2
    assert made.count('"') == 2
    held = data_script("d", {value: [value]})
    assert held.count("<") == 2
    told = held[held.index(">") + 1 : held.rindex("<")]
    clean = value.encode("utf-8", "replace").decode("utf-8")
    assert json.loads(told) == {clean: [clean]}


def test_what_is_not_finite_is_null():
    assert plain({"a": [math.inf, 1.0, (math.nan,)]}) == {"a": [None, 1.0, [None]]}


def test_tables_escape_every_cell():
    made = table(["<h>"], [["<c>"]], "<caption>")
    assert "<h>" not in made
    assert "<c>" not in made
    assert isinstance(made, Markup)


@pytest.mark.parametrize(
    ("stack", "target"),
    [
        (None, "megatron-bridge"),
        ("nemo-24.12", "nemo"),
        ("mcore-26.05", "megatron-lm"),
        ("torchtitan", "megatron-bridge"),
    ],
)
def test_the_export_offered_is_that_of_the_plans_software(stack, target):
    """A plan for Megatron-Bridge was offered for Megatron-LM, which refuses some of its models."""
    words = [command for command, _ in next_commands("plan.toml", stack=stack)]
    assert f"advisor export plan.toml --to {target} --slurm -o run" in words


def test_the_export_offered_on_gpus_of_amd_is_what_trains_there():
    words = [command for command, _ in next_commands("plan.toml", vendor="AMD")]
    assert "advisor export plan.toml --to megatron-lm --slurm -o run" in words


def test_commands_are_quoted_for_a_shell():
    words = [command for command, _ in next_commands("/tmp/my plan's.toml")]
    assert words[0] == """advisor run '/tmp/my plan'"'"'s.toml'"""
    first, second = [command for command, _ in next_commands(None, ["explain", "--model", "a b"])][:2]
    assert first == "advisor explain --model 'a b' --save plan.toml"
    assert second == "advisor run plan.toml"
    assert without_page(["a", "-o", "f.html", "--output=g", "b"], ["-o", "--output"]) == ["a", "b"]
    leading = [command.split()[1] for command, _ in next_commands("plan.toml", holds=False)]
    assert leading == ["check", "whatif"]


ASKED = ("report", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "2", "--sequence-parallel")


def test_a_page_cannot_be_written_where_there_is_no_place_and_nothing_is_lost(tmp_path, hostile):
    kept = tmp_path / "kept.html"
    kept.write_text("<!doctype html>mine")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for where in (tmp_path, tmp_path / "no" / "plan.html", pipe, kept / "plan.html"):
        with pytest.raises(OSError):
            CliRunner().invoke(advisor, [*ASKED, "-o", str(where)], catch_exceptions=False)
        explained = ["explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--html", str(where)]
        with pytest.raises(OSError):
            CliRunner().invoke(advisor, explained, catch_exceptions=False)
    with pytest.raises(ValueError, match="is not a"):
        CliRunner().invoke(advisor, [*ASKED, "--tokens", "-1", "-o", str(kept)], catch_exceptions=False)
    with pytest.raises(ValueError, match="run record"):
        CliRunner().invoke(
            advisor, [*ASKED, "--record", str(tmp_path), "-o", str(kept)], catch_exceptions=False
        )
    gone = [*ASKED, "--record", str(tmp_path / "gone"), "-o", str(kept)]
    with pytest.raises(ValueError, match=r"gone is neither a folder nor a file\. Name the folder of a run"):
        CliRunner().invoke(advisor, gone, catch_exceptions=False)  # it was told how to write a plan
    with pytest.raises(ValueError, match=r"is a plan, not a run|is a run of"):
        CliRunner().invoke(
            advisor,
            [*ASKED, "--record", str(hostile.path.parent / "plan.toml"), "-o", str(kept)],
            catch_exceptions=False,
        )
    assert kept.read_text() == "<!doctype html>mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.html", "pipe"]


def test_a_file_that_is_there_is_replaced_whole(large, hostile):
    # Both pages were written where nothing was left beside them.
    for made in (large, hostile):
        assert made.html.startswith("<!doctype html>")
        assert made.html.rstrip().endswith("</html>")
        assert not list(made.path.parent.glob(".*"))


def test_a_plan_that_fits_by_what_no_search_tries_has_a_page(tmp_path):
    """8B on one GPU fits with its optimizer on the host alone, which is searched only when pinned."""
    asked = "--model 8b --gpus 1 --gpu h100 --optimizer-offload 100 --recompute full --global-batch 1"
    asked += " --no-grad-reduce-in-fp32 --seq-len 1024"
    page = tmp_path / "page.html"
    done = CliRunner().invoke(advisor, ["report", *asked.split(), "-o", str(page)])
    assert done.exit_code == 0, done.exception
    shown = page.read_text(encoding="utf-8")
    assert "Fits; no plan that a search tries does" in shown
    assert "No plan that a search tries fits in this setting." in shown
