"""What the search does not try: why, what it would gain, and that what is told to type gives it."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from advisor.alternatives import EVEN_WITHIN, why_not
from advisor.case import Case
from advisor.cli import advisor
from advisor.explain import Explanation, explain
from advisor.explain_text import explanation_lines
from advisor.outside import MOST_TOLD, Gain, apart, option, outside_lines, tried_in, untried
from advisor.render import seconds
from advisor.request import Request, make_request, parse_pins
from advisor.search import search
from advisor.space import build_space
from advisor.whatif import HELPS_ABOVE, what_if
from costmodel.knobs import KNOBS
from costmodel.plan_file import PlanFile

QUESTIONS = ("precision=fp8-delayed", "nccl_ub=true,nvls=true", "vboost=true", "zero_stage=2")
# Of FSDP's plans, on which switches gain.
FSDP = "fsdp=on"
SETTING = ["--model", "8b", "--gpus", "8", "--gpu", "h100", "--pin", FSDP]


def ask(*pins: str, model: str = "llama3-8b", gpus: int = 8, **more) -> Request:
    return make_request(model, gpus, "h100", pins=pins, **more)


@pytest.mark.parametrize(("cluster", "gains"), [("aws-p5", False), ("azure-nd96isr-h100-v5", True)])
def test_switches_that_reduce_are_told_where_the_network_has_them(cluster, gains):
    request = make_request("8b", 64, cluster=cluster)
    assert ("sharp" in {gain.knob for gain in explain(request).outside}) == gains


def test_a_dispatcher_that_the_software_lacks_is_not_told():
    found = explain(make_request("deepseek-v3", 144, "gb200", stack="nemo-25.07"))
    assert found.shown.plan.moe_dispatcher == "alltoall"
    assert all(gain.value != "hybridep" for gain in found.outside)


@pytest.fixture(scope="module")
def told() -> Explanation:
    return explain(ask(FSDP), QUESTIONS)


def test_what_is_faster_is_not_called_as_good(told):
    """The answer to all of these was 'is as good'."""
    for alternative, why, take in zip(
        told.alternatives,
        (
            "it tries bf16, fp8-cs, other recipes only when they are named",
            "of nccl_ub it tries off (what it hurts: memory cannot be in expandable segments); "
            "of nvls it tries off (what it hurts: multicast buffers take memory)",
            "of vboost it tries off (what it hurts: memory-bound ones; needs sudo nvidia-smi boost-slider)",
            "of zero_stage it tries 3 (a bucket of unsharded gradients is not priced)",
        ),
        (
            "--precision fp8-delayed",
            "--pin nccl_ub=on --pin nvls=on",
            "--pin vboost=on",
            "--pin zero_stage=2",
        ),
        strict=True,
    ):
        found = re.search(r"is (.*) % faster, (.*) s against (.*) s \(DP8", alternative.reason)
        share, its, ours = map(float, found.groups())
        assert share == pytest.approx(100 * (1 - its / ours), abs=0.1)
        assert share > 0.5
        assert f"The search does not take it: {why}. To have it: {take}" in alternative.reason
        assert (alternative.not_taken, alternative.to_take) == (why, take)


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_what_it_says_to_type_gives_that_plan(told, number):
    alternative = told.alternatives[number]
    flags, texts = (alternative.to_take.split()[start::2] for start in (0, 1))
    request = ask(FSDP, *texts) if set(flags) == {"--pin"} else ask(FSDP, precision=texts[0])
    assert search(request).plans[0].step_time == alternative.candidate.step_time


def test_json_has_the_gain_the_reason_and_what_to_type():
    asked = ["explain", *SETTING, "--json", "--why-not", "ddp.nccl_ub=true,nvls=1", "--why-not", "tp=2"]
    record = json.loads(CliRunner().invoke(advisor, asked, catch_exceptions=False).output)
    better, worse = record["why_not"]
    assert better["pins"] == {"nccl_ub": True, "nvls": True}
    assert better["plan"]["lost_by"] < -0.01
    assert "of nccl_ub it tries off" in better["not_taken"]
    assert better["to_take"] == "--pin nccl_ub=on --pin nvls=on"
    assert worse["plan"]["lost_by"] > 0
    assert (worse["not_taken"], worse["to_take"]) == (None, None)
    gains = {gain["knob"]: gain for gain in record["not_searched"]}
    assert gains["nccl_ub"]["delta_share"] < -0.01
    assert gains["nccl_ub"]["to_take"] == "--pin nccl_ub=on --pin expandable_segments=off --pin nvls=on"
    assert gains["precision"]["changes_numerics"]


def test_a_pin_of_the_users_own_is_why():
    request = ask("tp=2", precision="bf16")
    answer = why_not(request, {"tp": 1}, search(request).plans[0])
    assert "--pin tp=2 keeps it from that. To have it: --pin tp=1 instead of --pin tp=2" in answer.reason


def test_what_it_says_to_type_is_safe_to_paste():
    """A layout holds pipes and globs."""
    layout = "Et*19|t*21|t*20|t*20L"
    told = option("pipeline_layout", layout)
    assert told == f"--pin 'pipeline_layout={layout}'"
    assert shlex.split(told) == ["--pin", f"pipeline_layout={layout}"]
    assert option("recompute_modules", ("mlp", "moe")) == "--pin recompute_modules=mlp+moe"


def test_kinds_of_recompute_that_are_asked_for_are_no_pins():
    request = ask(precision="bf16")
    asked = {"recompute": "none", "recompute_num_layers": 3}
    reason = why_not(request, asked, search(request).plans[0]).reason
    assert reason.startswith("recompute=none contradicts recompute_num_layers=3, which is of recompute=full.")
    assert "--pin" not in reason


def test_what_moves_nothing_is_as_good(told):
    answer = why_not(told.request, parse_pins(["layernorm_sm_margin=17"]), told.best)
    assert abs(answer.candidate.lost_by) < EVEN_WITHIN
    assert "is as good" in answer.reason
    assert answer.to_take == ""


@pytest.mark.parametrize("pin", ["cp_comm_type=a2a", "nccl_debug=INFO"])
def test_what_changes_nothing_is_told_so(told, pin):
    """`sharp=on is as good` sounded like a choice, and is none where the model sees no difference."""
    answer = why_not(told.request, parse_pins([pin]), told.best)
    assert f"{pin} changes neither time nor memory as the model counts them" in answer.reason


def test_less_memory_is_leaner():
    request = ask(precision="bf16", objective="memory", global_batch=32)
    answer = why_not(request, {"optimizer_offload": 100}, search(request).plans[0])
    assert "% leaner" in answer.reason
    assert "GiB against" in answer.reason


@pytest.mark.parametrize("precision", ["bf16", "fp8-cs"])
def test_tried_is_what_plans_of_the_space_have(precision):
    space = build_space(ask(), precision)
    tried = tried_in([space])
    assert set(tried) == set(KNOBS)
    assert tried["precision"] == {precision}
    assert tried["micro_batch"] == {1, 2, 4, 8}
    assert tried["nccl_ub"] == {False}
    assert {(), ("mlp",), ("mlp", "layernorm")} <= tried["recompute_modules"]
    assert untried(tried, {"recompute_modules": ("layernorm", "mlp"), "tp": 4, "cuda_graph": True}) == []
    assert untried(tried, {"recompute_modules": ("core_attn",), "tp": 16, "moe_paged_stash": True}) == [
        "recompute_modules",
        "tp",
    ]


def test_gains_are_what_whatif_finds_beside_what_was_searched(told):
    """Derived, not listed: also where all but the simulation of a pipeline call a gain next to nothing."""
    pipelines = (
        explain(ask("pp=4", "vpp=1", model="llama3-70b", gpus=64)),
        explain(make_request("llama3-70b", 64, "b200", pins=("tp=2", "pp=2", "vpp=6"))),
    )
    assert "defer_embedding_wgrad" in {gain.knob for gain in pipelines[1].outside}
    for answer in (told, *pipelines):
        request, plan = answer.request, answer.best.plan
        file = PlanFile("", request.workload, "", request.gpus, plan)
        case = Case(request.model, request.workload, request.cluster, request.gpus, plan, None, (), file)
        tried = tried_in(build_space(request, each) for each in request.precisions)
        names = [name for name in KNOBS if name not in request.pins]
        expected: dict[str, float] = {}
        for change in what_if(case, names).movers:
            name, value = change.neighbour.knob, change.neighbour.after
            holds = (
                change.fits
                and not change.doubt
                and not change.prediction.tight
                and change.share < -HELPS_ABOVE
            )
            if holds and untried(tried, {name: value}):
                expected[name] = min(change.share, expected.get(name, 0.0))
        assert expected
        most = dict(sorted(expected.items(), key=lambda pair: pair[1])[:MOST_TOLD])
        assert {gain.knob: pytest.approx(gain.share) for gain in answer.outside} == most


def test_of_gains_that_hold_one_another_one_is_told():
    """A graph of the whole step gains what its checks took: both stood in the list, and do not add up."""
    checks = Gain("check_for_nan_in_grad", False, -0.04)
    follows = {"check_for_nan_in_grad": False}
    same, more = (Gain("cuda_graph_scope", ("full_iteration",), by, follows) for by in (-0.04, -0.07))
    other = Gain("vboost", True, -0.01)
    assert apart([same, checks, other]) == [checks, other]
    assert apart([more, checks, other]) == [more, other]


def test_gains_stand_with_the_space_in_one_line(told):
    (line,) = outside_lines(told.outside)
    own, other = line.removeprefix("not searched, and better on this plan when pinned: ").split(
        "; with other numerics "
    )
    shares = {gain.knob: f"({100 * gain.share:+.1f} %)" for gain in told.outside}
    buffers = f"nccl_ub=on with expandable_segments=off and nvls=on {shares['nccl_ub']}"
    # The larger gain first; the two are within a tenth of a per cent.
    assert set(own.split(", ")) == {buffers, f"vboost=on {shares['vboost']}"}
    by_tokens = f"calculate_per_token_loss=on {shares['calculate_per_token_loss']}"
    assert other == f"precision=fp8-delayed {shares['precision']}, {by_tokens}"
    text = " ".join("\n".join(explanation_lines(told)).split())
    assert f"- N{line[1:]}." in text
    assert list(outside_lines([])) == []


def test_what_is_pinned_is_no_gain_and_can_be_had():
    again = explain(ask(FSDP, "nccl_ub=on", "vboost=on"))
    assert not {"nccl_ub", "vboost"} & {gain.knob for gain in again.outside}


def test_a_question_about_the_scope_of_graphs_is_answered_once():
    request = make_request("qwen3-30b-a3b", 32, "h100")
    asked = ("cuda_graph_scope=full_iteration", "tp=2")
    assert [dict(each.pins) for each in explain(request, asked).alternatives] == [
        {"cuda_graph_scope": ("full_iteration",)},
        {"tp": 2},
    ]


def test_a_knob_that_follows_from_the_layout_is_told_where_another_value_gains():
    """From 128 ranks on gradients are reduced in FP32: other layouts of the same search reduce them in BF16."""
    request = make_request("llama3.2-1b", 128, "h100")
    answer = explain(request, ["grad_reduce_in_fp32=off"])
    assert answer.best.plan.dp == 128
    gains = {gain.knob: gain for gain in answer.outside}
    assert gains["grad_reduce_in_fp32"].value is False
    assert gains["grad_reduce_in_fp32"].numerics
    assert answer.alternatives[0].not_taken == "of grad_reduce_in_fp32 it tries on"


def test_what_follows_from_the_layout_is_asked_of_sharded_plans_too():
    """A plan of FSDP with the default of its stage is none, which the question built."""
    answer = explain(make_request("llama3.2-1b", 8, "h100", pins=["fsdp=on"]))
    assert answer.best.plan.zero_stage == 3


def test_less_memory_that_takes_too_long_is_told_as_slow():
    """It was said that the search tried these values, but not together."""
    request = make_request(
        "llama3-8b", 16, "h100", objective="memory", precision="fp8-cs", seq_len=8192, global_batch=128, top=1
    )
    found = search(request)
    answer = why_not(request, {"tp": 2}, found.plans[0], slowest=found.slowest)
    assert answer.candidate is not None
    assert answer.candidate.peak_memory < found.plans[0].peak_memory
    assert answer.candidate.step_time > found.slowest
    assert answer.not_taken.endswith(f"and --slowdown 1.5 allows {seconds(found.slowest)}")


def test_what_torchtitan_cannot_be_told_is_no_advice():
    """Chunks of user buffers and other ops to recompute gained, and no configuration of torchtitan says either."""
    answer = explain(
        make_request("llama3-70b", 64, "h100", stack="torchtitan", pins=("tp=2", "pp=1", "cp=1"))
    )
    assert answer.best.plan.tp_comm_overlap
    assert answer.best.plan.recompute_modules == ("layernorm", "activation", "ops")
    assert not {gain.knob for gain in answer.outside} & {
        "tp_overlap_splits",
        "tp_overlap_sms",
        "recompute_modules",
    }
    assert "vboost" in {gain.knob for gain in answer.outside}
