"""Explanations: the answer comes first, every section is there, the numbers agree with each other."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from advisor.alternatives import WHOLE_STEP
from advisor.cli import advisor
from advisor.explain import Explanation, explain
from advisor.explain_text import explanation_lines
from advisor.request import make_request
from advisor.why import GuidePath
from costmodel.plan import Plan
from costmodel.plan_file import last_plan_path, load_plan_file
from costmodel.predict import predict
from costmodel.simulated_pipeline import with_schedule
from hardware_db.order import order_held

SECTIONS = (
    "Set these",
    "Time of one step",
    "Memory of the worst rank",
    "What binds",
    "Runners-up",
    "Why: the path",
    "Space searched",
    "Assumed",
)
TOPICS = [
    "data parallel",
    "distributed optimizer",
    "FSDP",
    "tensor parallel",
    "context parallel",
    "pipeline parallel",
    "micro-batch",
    "recompute",
    "precision",
]


def run(*arguments: str):
    return CliRunner().invoke(advisor, ["explain", *arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def small() -> Explanation:
    request = make_request("llama3-8b", 8, "h100", precision="bf16", global_batch=32, top=3, tokens=1e9)
    return explain(request, ["tp=4", "tp=3"])


@pytest.fixture(scope="module")
def nothing() -> Explanation:
    return explain(make_request("llama3-70b", 1, "h100", precision="bf16", global_batch=8))


def test_the_answer_comes_first_and_every_section_follows_in_order(small):
    lines = explanation_lines(small)
    assert lines[0] == small.shown.plan.describe()
    text = "\n".join(lines)
    places = [text.index(f"\n{section}") for section in SECTIONS]
    assert places == sorted(places)
    assert "step time" in text[: places[0]]
    assert "GPU-hours" in text[: places[0]]


def test_no_line_is_wider_than_the_page(small, nothing):
    for explanation in (small, nothing):
        lines = "\n".join(explanation_lines(explanation)).splitlines()
        assert max(map(len, lines)) <= 100


def test_the_prediction_told_is_the_one_of_the_plan(small):
    best, request = small.shown, small.request
    again = with_schedule(predict(request.model, request.workload, request.cluster, best.plan))
    assert again.step_time_s == best.prediction.step_time_s
    assert best.prediction.time.value == best.prediction.step_time_s


def test_the_path_asks_every_question_of_the_guides(small):
    assert [step.topic for step in small.steps] == TOPICS


def test_the_path_holds_the_chosen_plan_and_nothing_faster_that_it_could_have_been(small):
    best = small.shown
    shown = {variant.plan for step in small.steps for variant in step.evidence}
    assert best.plan in shown
    for step in small.steps:
        for variant in step.evidence:
            if variant.fits and not variant.prediction.tight:
                assert variant.prediction.step_time_s >= 0.98 * best.step_time


@pytest.mark.parametrize(
    ("chosen", "others"), [(False, {1: True, 2: True, 4: False}), (True, dict.fromkeys((1, 2, 4), True))]
)
def test_other_sizes_sum_gradients_as_the_search_takes_it_of_their_ranks(chosen, others):
    """PP1 with DP288 was told 6 % faster than the chosen PP3: with gradients in BF16, as only fewer ranks have them."""
    asked = make_request("llama3-8b", 256, "h100", precision="bf16")
    plan = Plan(pp=4, dp=64, grad_reduce_in_fp32=chosen)
    steps = GuidePath(predict(asked.model, asked.workload, asked.cluster, plan), asked.precisions).steps()
    assert all(each.plan.grad_reduce_in_fp32 for step in steps[:3] for each in step.evidence)
    (step,) = (step for step in steps if step.topic == "pipeline parallel")
    found = {each.plan.pp: each.plan.grad_reduce_in_fp32 for each in step.evidence if each.plan.pp in others}
    assert found == others


def test_variants_keep_the_gpus_and_the_batch(small):
    variants = [variant for step in small.steps[2:] for variant in step.evidence]
    assert variants
    for variant in variants:
        if variant.rule == "world":  # sizes that leave no GPUs for the rest
            assert variant.prediction is None
            continue
        assert variant.plan.world == 8
        assert variant.plan.num_microbatches(32) >= 1


def test_what_the_search_has_tried_is_not_told_as_if_it_had_not():
    """ "Try --no-fsdp" stood beside a plan that the search had chosen over all plans without it."""
    asked = ["--model", "llama3-8b", "--gpus", "512", "--gpu", "h100", "--top", "1", "--global-batch", "512"]
    text = " ".join(run(*asked).output.split())
    assert "PERF (runs, but costs)" in text
    assert "PERF is the price of the fastest plan found" in text
    assert "PERF is the price" not in run(*asked, "--objective", "memory").output


def test_forbidden_and_legal_questions_are_both_answered(small):
    legal, forbidden = small.alternatives
    assert legal.candidate is not None
    assert legal.candidate.plan.tp == 4
    assert forbidden.candidate is None
    assert forbidden.reason


def test_cost_is_the_time_of_the_tokens(small):
    cost = small.cost
    steps = 1e9 / small.request.workload.tokens_per_step
    assert cost["gpu_hours"] == pytest.approx(steps * small.shown.step_time * 8 / 3600)
    assert cost["usd"] == pytest.approx(cost["gpu_hours"] * cost["usd_per_gpu_hour"])
    assert cost["kwh"] == pytest.approx(cost["gpu_hours"] * cost["watt_per_gpu"] / 1000)


def test_too_few_sequences_for_the_gpus_are_told():
    request = make_request("llama3-8b", 64, "h100", precision="bf16", global_batch=8)
    plan = Plan(tp=8, dp=8, sequence_parallel=True)
    chosen = predict(request.model, request.workload, request.cluster, plan)
    text = GuidePath(chosen, ("bf16",)).data_parallel().text
    assert "8 sequences feed at most DP8 of 64 GPUs" in text


@pytest.mark.parametrize(
    ("optimizer", "stack", "costs"),
    [
        ("adam", "nemo-26.06", "costs no more traffic"),
        ("muon", "nemo-26.06", "costs a gather of the parameters"),
        ("muon", "mcore-26.06", "costs a gather of the parameters"),
    ],
)
def test_what_sharing_the_optimizers_state_costs_depends_on_the_optimizer(optimizer, stack, costs):
    request = make_request("llama3-8b", 8, "h100", precision="bf16", global_batch=64)
    plan = Plan(tp=2, dp=4, sequence_parallel=True, optimizer=optimizer)
    chosen = predict(request.model, request.workload, request.cluster, plan, stack)
    assert costs in GuidePath(chosen, ("bf16",), stack).distributed_optimizer().text


def test_a_faster_plan_that_fits_tightly_is_called_so():
    """CP1 of an 8B takes 75.0 of 79.6 GiB beside a chosen CP2 with room to spare."""
    request = make_request("llama3-8b", 64, "h100", precision="fp8-cs", seq_len=8192, global_batch=128)
    common = {
        "optimizer": "muon",
        "precision": "fp8-cs",
        "fp8_param_gather": True,
        "grad_reduce_in_fp32": False,
        "avoid_record_streams": False,
    }
    plan = Plan(cp=2, dp=32, micro_batch=2, cp_comm_type="a2a", **common)
    chosen = predict(request.model, request.workload, request.cluster, plan)
    step = GuidePath(chosen, ("fp8-cs",)).distributed_optimizer()
    assert step.evidence[0].prediction.tight
    assert "fits, but tightly" in step.text


def test_steps_without_the_chosen_cp_tell_memory_not_its_exchange():
    request = make_request("llama3-8b", 64, "h100", precision="bf16", seq_len=131072, global_batch=64)
    exchange = {"cp_comm_type": "a2a+p2p", "cp_a2a_size": 8}
    plan = Plan(cp=16, dp=4, zero_stage=3, fsdp=True, **exchange)
    path = GuidePath(predict(request.model, request.workload, request.cluster, plan), ("bf16",))
    for step in (path.data_parallel(), path.distributed_optimizer()):
        assert " a plan may use 77.2 GiB" in step.text
        assert "cp_comm_type" not in step.text
    assert "); a plan may use 77.2 GiB, 97 % of the device: it does" in path.data_parallel().text
    assert "ranks costs no more traffic. Each GPU then needs" in path.distributed_optimizer().text
    assert [each.label for each in path.context_parallel().evidence] == [
        "CP1",
        "CP2 p2p",
        "CP4 p2p",
        "CP8",
        "CP16",
    ]


@pytest.mark.parametrize(("ep", "others"), [(2, {1: "alltoall", 8: "hybridep"}), (1, {8: "hybridep"})])
def test_other_numbers_of_expert_ranks_have_the_dispatcher_that_the_search_takes(ep, others):
    """HybridEP with ep 1 sends nothing, and was told as faster than the chosen ep 2; see the rule hybridep_alone."""
    asked = make_request("qwen3-30b-a3b", 8, "h200", pins=[f"ep={ep}", "fsdp=on", "recompute=full"])
    (step,) = (step for step in explain(asked, []).steps if step.topic == "expert parallel")
    found = {variant.plan.ep: variant.plan.moe_dispatcher for variant in step.evidence}
    assert {size: found[size] for size in others} == others


@pytest.mark.parametrize(("objective", "told"), [("memory", False), ("throughput", True)])
def test_recompute_that_the_least_memory_asks_for_is_not_called_in_vain(objective, told):
    """`--objective memory` chose full recompute, and was told to add --pin recompute=none."""
    pins = ["recompute=full", "tp=8", "pp=1"]
    asked = make_request("llama3-8b", 8, "h100", precision="bf16", objective=objective, pins=pins)
    assert ("recompute_with_room" in {each.id for each in explain(asked, []).found}) == told


def test_pipelines_are_explained_with_their_bubble():
    request = make_request("llama3-70b", 64, "h100", precision="bf16", global_batch=128)
    plan = Plan(tp=4, pp=4, vpp=5, dp=4, sequence_parallel=True)
    chosen = predict(request.model, request.workload, request.cluster, plan)
    step = GuidePath(chosen, ("bf16",)).pipeline()
    assert re.search(r"Its bubble is [\d.]+ % of the step with VPP5; VPP1", step.text)
    assert {variant.plan.pp for variant in step.evidence} >= {1, 2, 4, 8}


def test_the_bubble_of_the_path_is_the_one_that_binds():
    """37.7 % of the closed form stood beside 30.9 % of the simulation."""
    pins = {"pins": ["pp=4", "cp=16", "ep=8", "recompute=full"], "precision": "bf16", "seq_len": 2**20}
    asked = make_request("qwen3-next-80b-a3b", 64, "h100", stack="nemo-26.08", **pins)
    text = " ".join("\n".join(explanation_lines(explain(asked, []))).split())
    binds, path = map(float, re.findall(r"(?:bubble and transfers|Its bubble is) ([\d.]+) %", text))
    assert path == pytest.approx(binds, abs=1)


def test_when_nothing_fits_the_answer_says_by_how_much_and_what_would(nothing):
    text = "\n".join(explanation_lines(nothing))
    assert text.startswith("Nothing fits: the leanest plan misses by ")
    assert "What would make it fit" in text
    assert any("--gpus" in remedy for remedy in nothing.remedies)
    assert not nothing.steps


def test_a_length_that_nothing_divides_is_told_with_the_nearest_that_divides():
    """--seq-len 200000 was advised: the odd token keeps cp and tp from splitting the sequence, not its length."""
    given = {"precision": "bf16", "global_batch": 8, "pins": {"recompute": "full"}}
    asked = explain(make_request("llama3-8b", 8, "h100", seq_len=400_001, **given))
    assert asked.best is None
    (way,) = [each for each in asked.remedies if "--seq-len" in each]
    assert way == asked.remedies[0]
    assert way.startswith("--seq-len 400000, which divides over more GPUs: 400,001 is odd, while cp")
    even = explain(make_request("llama3-8b", 8, "h100", seq_len=400_000, **given))
    assert even.best is not None
    assert even.best.plan.describe() in way


def test_what_a_recipe_gains_is_told_with_the_share_that_can_gain():
    """Of Mixtral 1.32x was told to come from 8.8 % of the step: products of experts were not counted."""
    asked = make_request("mixtral-8x7b", 64, "h100", seq_len=4096, global_batch=512)
    plan = Plan(dp=64, ep=8, precision="fp8-cs", recompute="selective", recompute_modules=("moe_act",))
    chosen = predict(asked.model, asked.workload, asked.cluster, plan)
    text = GuidePath(chosen, ("bf16", "fp8-cs")).precision().text
    ((gain, share),) = re.findall(
        r"gains ([\d.]+)x over bf16: .* and experts run faster, ([\d.]+) % of", text
    )
    assert "and what recompute repeats of them; quantisation costs" in text
    # At twice the rate, the share leaves half of itself.
    assert 1 < float(gain) < 1 / (1 - float(share) / 200)


def test_nothing_fits_is_exit_code_1():
    done = run("--model", "llama3-70b", "--gpus", "1", "--gpu", "h100", "--precision", "bf16")
    assert done.exit_code == 1
    assert done.output.startswith("Nothing fits")


def test_json_keeps_the_contract(tmp_path):
    path = tmp_path / "plan.toml"
    options = [
        "--precision",
        "bf16",
        "--global-batch",
        "16",
        "--why-not",
        "pp=2",
        "--save",
        str(path),
        "--json",
    ]
    done = run("--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", *options)
    assert done.exit_code == 0
    record = json.loads(done.output)
    assert {"plans", "rejected", "space", "why"} <= record.keys()
    assert {"enumerated", "legal", "feasible", "tight", "slowest", "seconds"} == record["space"].keys()
    first = record["plans"][0]
    assert {"knobs", "prediction", "rank", "lost_by", "lost_to_term"} <= first.keys()
    assert first["order_held"] is None
    for other in record["plans"][1:]:
        assert other["order_held"] == order_held(abs(other["lost_by"])).to_dict()
    assert [plan["rank"] for plan in record["plans"]] == list(range(1, len(record["plans"]) + 1))
    assert Plan(**first["knobs"]) == load_plan_file(path).plan == load_plan_file(last_plan_path()).plan
    assert load_plan_file(path).prediction["step_time_s"] == first["prediction"]["step_time_s"]
    assert record["why_not"][0]["pins"] == {"pp": 2}


def test_sizes_that_cannot_be_are_told_in_the_guides_path():
    """Of 1,000 GPUs TP8 was missing without a word, then with numbers alone; sizes with one reason share it."""
    answer = explain(make_request("llama3-70b", 1000, "h100", precision="bf16", pins={"pp": 2, "tp": 4}))
    steps = {step.topic: step for step in answer.steps}
    told = "TP8 cannot be (1,000 GPUs leave 500 for tp x dp, which tp must divide)"
    assert told in steps["tensor parallel"].text
    told = "CP2, CP4 and CP8 cannot be (1,000 GPUs leave 125 for cp x dp, which cp must divide)"
    assert told in steps["context parallel"].text
    labels = [variant.label for variant in steps["tensor parallel"].evidence]
    assert labels == ["TP1", "TP2", "TP4", "TP8"]


def test_pins_are_honoured_and_bad_ones_refused():
    setting = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--precision", "bf16"]
    done = run(*setting, "--pin", "tp=2", "--pin", "pp=2")
    assert done.output.startswith("TP2 PP2")
    for pin, says in (("tp", "NAME=VALUE"), ("tpp=2", "not a knob"), ("tp=0", "whole number")):
        with pytest.raises(ValueError, match=says):
            run(*setting, "--pin", pin)
        with pytest.raises(ValueError, match=says):
            run(*setting, "--why-not", pin)


def qwen(stack: str = "nemo-26.06", gpu: str = "gb200", **pins) -> Explanation:
    return explain(
        make_request(
            "qwen3-30b-a3b", 8, gpu, seq_len=4096, global_batch=512, precision="mxfp8", stack=stack, pins=pins
        )
    )


def test_the_gain_of_a_graph_of_the_whole_step_is_told_where_releases_run_it():
    told = qwen()
    (whole,) = told.alternatives
    assert whole.candidate is not None
    assert whole.candidate.step_time < 0.98 * told.shown.step_time
    assert "--pin cuda_graph_scope=full_iteration" in whole.reason
    # Part of its gain is that of the checks: the whole graph runs without them.
    assert "without checks of gradients for NaN" in whole.reason
    assert not whole.candidate.plan.check_for_nan_in_grad
    assert not qwen(check_for_nan_in_grad=True).alternatives
    assert not qwen(stack="nemo-26.04").alternatives
    # What it says to pin gives that plan, its settings on the list.
    pinned = qwen(**WHOLE_STEP)
    assert not pinned.alternatives
    assert pinned.shown.step_time <= whole.candidate.step_time * 1.001
    assert not pinned.shown.plan.fsdp
    text = "\n".join(explanation_lines(pinned))
    assert "model.moe_expert_rank_capacity_factor" in text
    assert "Why not" not in text


def test_pinned_graphs_leave_out_fsdp_which_switches_them_off():
    small = make_request("llama3-8b", 8, "h100", precision="bf16", global_batch=32, pins={"cuda_graph": True})
    assert not any(each.plan.fsdp for each in explain(small).result.plans)


@pytest.mark.parametrize(
    ("gpu", "stack", "precision", "said"),
    [
        ("h100", None, "bf16,nvfp4", ["Without nvfp4: it needs arithmetic that H100 SXM5 80GB lacks"]),
        ("b200", "nemo-25.09", "bf16,nvfp4", ["Without nvfp4: nemo-25.09 has no NVFP4, which came with nemo-25.11."]),
        ("h100", None, "bf16,fp8-cs", []),
    ],
)  # fmt: skip
def test_a_recipe_asked_for_that_is_not_there_is_told_first(gpu, stack, precision, said):
    found = explain(make_request("llama3-8b", 8, gpu, precision=precision, stack=stack))
    assert len(found.not_there) == len(said)
    assert all(line.startswith(told) for line, told in zip(found.not_there, said, strict=True))
    first = " ".join(explanation_lines(found)[1:3]).replace("\n", " ")
    assert all(told in first for told in said)
    assert found.to_dict()["not_there"] == found.not_there


def test_pins_in_vain_are_told_first():
    found = explain(make_request("llama3-8b", 8, "h100", pins=["recompute_modules=layernorm+moe", "tp=2"]))
    assert any(line.startswith("Pinned in vain: recompute modules moe") for line in found.not_there)
    assert not any("tp = 2" in line for line in found.not_there)


def test_the_page_tells_what_was_asked_for_in_vain(tmp_path):
    page = tmp_path / "page.html"
    asked = "explain --model 8b --gpus 8 --gpu h100 --precision bf16,nvfp4 --pin tp_comm_overlap=true --html"
    assert CliRunner().invoke(advisor, [*asked.split(), str(page)]).exit_code == 0
    told = page.read_text().split('id="why"')[0]
    assert "<p>Without nvfp4: it needs arithmetic that H100 SXM5 80GB lacks" in told
    assert "<p>Pinned in vain: tp_comm_overlap" in told
