"""advisor whatif: every knob is tried, deltas are differences of predictions, the best change leads."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from advisor.case import read_case
from advisor.cli import advisor
from advisor.rules import violations
from advisor.whatif import HELPS_ABOVE, WhatIf, chosen_knobs, what_if
from advisor.whatif.neighbours import Neighbour, label
from advisor.whatif.text import answer, what_if_lines
from costmodel.knobs import KNOBS
from costmodel.knobs.names import meant
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.simulated_pipeline import with_schedule

SMALL = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "2", "--sequence-parallel"]
LARGE = [
    *["--model", "llama3-70b", "--gpus", "64", "--gpu", "b200", "--tp", "4", "--pp", "4", "--vpp", "5"],
    "--sequence-parallel",
]
TOO_LARGE = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--global-batch", "128"]
PLANS = {"small": SMALL, "large": LARGE, "too large": TOO_LARGE}


def run(*arguments: str):
    return CliRunner().invoke(advisor, ["whatif", *arguments])


def case_of(tmp_path, arguments):
    path = str(tmp_path / "plan.toml")
    CliRunner().invoke(advisor, ["predict", *arguments, "--save", path], catch_exceptions=False)
    return read_case(path, {})


@pytest.fixture(params=PLANS, scope="module")
def tried(request, tmp_path_factory):
    case = case_of(tmp_path_factory.mktemp("whatif"), PLANS[request.param])
    return case, what_if(case, KNOBS)


def test_deltas_are_differences_of_predictions(tried):
    case, result = tried

    def fresh(plan: Plan):
        return with_schedule(predict(case.model, case.workload, case.cluster, plan, case.stack, judged=False))

    base = fresh(case.plan)
    assert result.changes
    for change in result.changes:
        other = fresh(change.neighbour.plan)
        assert change.delta_time == pytest.approx(other.step_time_s - base.step_time_s, abs=1e-9)
        assert change.delta_memory == pytest.approx(other.peak_memory_bytes - base.peak_memory_bytes, abs=1)
        assert change.fits == other.fits


def test_fastest_first_and_those_that_do_not_fit_last(tried):
    _, result = tried
    keys = [(not change.fits, change.delta_time) for change in result.changes]
    assert keys == sorted(keys)


def test_every_knob_is_tried_or_named_as_stuck(tried):
    _, result = tried
    legal = {change.neighbour.knob for change in result.changes}
    assert legal | set(result.stuck) == set(KNOBS)
    assert not legal & set(result.stuck)
    moving = {change.neighbour.knob for change in result.movers}
    assert moving | set(result.still) == legal
    assert not moving & set(result.still)


def test_neighbours_are_legal_and_keep_the_gpus(tried):
    case, result = tried
    for change in result.changes:
        plan = change.neighbour.plan
        assert plan.world == case.plan.world
        found = violations(case.model, case.workload, case.cluster, plan, case.gpus)
        assert all(violation.severity != "ERROR" for violation in found)


def test_a_neighbour_differs_by_its_knob_and_what_it_says_follows(tried):
    case, result = tried
    for change in result.changes:
        each = change.neighbour
        differing = {name for name in KNOBS if getattr(each.plan, name) != getattr(case.plan, name)}
        assert differing == {each.knob, *each.follows}


def test_forbidden_neighbours_say_why(tried):
    _, result = tried
    assert result.forbidden
    assert all(each.reason for each in result.forbidden)


def test_the_best_change_is_the_fastest_that_fits(tried):
    _, result = tried
    best = result.best()
    fitting = [change for change in result.movers if change.fits]
    if result.base.fits:
        roomy = [change for change in fitting if not change.prediction.tight or result.base.tight]
        helping = [change for change in roomy if change.share < -HELPS_ABOVE and not change.doubt]
        assert best == (helping[0] if helping else None)
    else:
        assert best == next(change for change in fitting if not change.doubt)


def test_the_term_that_moved_is_the_largest_difference(tried):
    _, result = tried
    before = {leaf.name: leaf.value for leaf in result.base.time.leaves()}
    for change in result.movers:
        after = {leaf.name: leaf.value for leaf in change.prediction.time.leaves()}
        largest = max(abs(after.get(name, 0) - before.get(name, 0)) for name in {**before, **after})
        assert change.moved is not None
        if change.moved.unit == "s":
            assert abs(change.moved.delta) == pytest.approx(largest, abs=1e-12)
        else:
            assert abs(change.delta_time) <= 1e-9 * result.base.step_time_s


def test_sizes_are_halved_and_doubled_while_dp_follows():
    document = json.loads(run(*LARGE, "--knob", "tp", "--json").output)
    moves = {change["to"]: change["follows"] for change in document["changes"]}
    assert moves == {2: {"dp": 8}, 8: {"dp": 2}}


def test_the_exchange_that_sinks_take_follows_cp():
    sinks = ["--model", "gpt-oss-20b", "--gpus", "8", "--gpu", "h100", "--ep", "8", "--seq-len", "8192"]
    document = json.loads(run(*sinks, "--global-batch", "32", "--knob", "cp", "--json").output)
    assert document["changes"][0]["follows"] == {"dp": 4, "cp_comm_type": "a2a"}


def test_the_loss_by_tokens_follows_context_parallelism_of_fine_tuning():
    tuned = [*SMALL, "--task", "sft", "--seq-len", "8192"]
    changes = {
        each["to"]: each for each in json.loads(run(*tuned, "--knob", "cp", "--json").output)["changes"]
    }
    assert changes[2]["follows"]["calculate_per_token_loss"] is True
    assert "finetune_cp_loss" not in {note["id"] for note in changes[2]["notes"]}


def test_what_a_knob_needs_follows_it():
    document = json.loads(run(*SMALL, "--knob", "fsdp", "--knob", "recompute-modules", "--json").output)
    changes = {change["knob"]: change for change in document["changes"]}
    assert changes["fsdp"]["follows"] == {"zero_stage": 3, "gradient_accumulation_fusion": False}
    assert changes["recompute_modules"]["follows"] == {"recompute": "selective"}
    assert {change["knob"] for change in document["changes"]} == {"fsdp", "recompute_modules"}


def test_layers_that_divide_only_with_both_ends_counted_take_both():
    uneven = ["--model", "qwen3-30b-a3b", "--gpus", "40", "--gpu", "h100", "--pp", "5", "--ep", "8"]
    done = run(*uneven, "--knob", "account_loss", "--knob", "tp", "--json")
    assert done.exit_code == 1  # 48 layers do not divide over 5 stages
    document = json.loads(done.output)
    assert [violation["id"] for violation in document["base"]["violations"]] == ["pp_layers"]
    assert document["best"]["follows"] == {"account_embedding": True}
    assert document["no_legal_neighbour"] == ["tp"]


@pytest.mark.parametrize(
    ("knob", "before", "after", "said"),
    [
        ("cuda_graph_scope", (), ("attn",), "cuda_graph_scope all -> attn"),
        ("cuda_graph_scope", ("attn",), (), "cuda_graph_scope attn -> all"),
        ("cuda_graph_scope", ("attn",), ("attn", "mlp"), "cuda_graph_scope +mlp"),
        ("recompute_modules", (), ("mlp",), "recompute_modules +mlp"),
    ],
)
def test_an_empty_list_that_means_everything_is_said_so(knob, before, after, said):
    assert label(Neighbour(knob, before, after, Plan())) == said


def test_modules_that_take_the_place_of_full_recompute_are_those_that_the_model_has():
    """`+moe` of a dense model stood among the best changes: what it gained was that of no recompute at all."""
    full = run(*SMALL, "--recompute", "full", "--knob", "recompute_modules")
    assert "recompute full -> mlp " in full.output
    for module in ("moe", "moe_act", "shared_experts", "layernorm"):
        assert f"-> {module} " not in full.output
        assert f"+{module}" not in full.output


def test_text_answers_first_and_tells_what_does_not_move():
    done = run(*SMALL)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].startswith("Best single change: ") or lines[0].startswith("No single change")
    assert "\nNo effect on this plan: " in done.output
    assert not re.search(r"[+-]0\.0 %", done.output)
    assert max(map(len, lines)) <= 100
    assert "Cannot be" not in done.output
    assert "\nCannot be\n" in run(*SMALL, "--all").output


def test_a_plan_that_does_not_fit_is_mended():
    done = run(*TOO_LARGE)
    assert done.exit_code == 1
    assert done.output.startswith("This plan does not fit; the fastest single change that mends it is ")


@pytest.mark.parametrize(("gpus", "way"), [("16", "Set dp = 8, or --gpus 8."), ("9", "Set --gpus 8.")])
def test_sizes_for_other_gpus_than_there_are_are_told_the_rules_way_out(tmp_path, gpus, way):
    """It said that nothing mends the plan, counted the GPUs of its sizes, and listed every knob as stuck."""
    path = tmp_path / "plan.toml"
    CliRunner().invoke(advisor, ["predict", *SMALL, "--save", str(path)], catch_exceptions=False)
    path.write_text(path.read_text().replace("gpus = 8", f"gpus = {gpus}"))
    done = run(str(path), "--knob", "tp", "--knob", "recompute")
    text = " ".join(done.output.split())
    assert text.startswith(f"This plan cannot run. {way}")
    assert f"{gpus} x H100 SXM5 80GB (dgx-h100), of which its sizes take 8" in text
    assert "no single change" not in text
    assert "Until then no value of another knob is legal." in text
    assert done.exit_code == 1
    base = json.loads(run(str(path), "--knob", "tp", "--json").output)["base"]
    assert (base["gpus"], base["gpus_of_sizes"]) == (int(gpus), 8)


def test_json_holds_everything():
    document = json.loads(run(*SMALL, "--json").output)
    assert {"base", "best", "changes", "forbidden", "move_nothing", "no_legal_neighbour"} <= document.keys()
    for change in document["changes"]:
        expected = document["base"]["step_time_s"] + change["delta_step_time_s"]
        assert change["step_time_s"] == pytest.approx(expected, abs=1e-9)
    named = {change["knob"] for change in document["changes"]} | set(document["no_legal_neighbour"])
    assert named == set(KNOBS)


@pytest.mark.parametrize(
    "arguments",
    [
        [*SMALL, "--knob", "tq"],
        [*SMALL, "--knob", "NCCL_DEBUG"],
        [*SMALL, "--knob", "seq_length"],
        [*SMALL, "--knob", ""],
        ["/nowhere/plan.toml"],
        ["--model", "llama3-8b", "--gpus", "8"],
        [*SMALL, "--micro-batch", "0"],
        ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "3"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, monkeypatch, capsys):
    from advisor.cli import main

    monkeypatch.setattr("sys.argv", ["advisor", "whatif", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "knob"),
    [
        ("tensor_model_parallel_size", "tp"),
        ("--moe-token-dispatcher-type", "moe_dispatcher"),
        ("--micro-batch", "micro_batch"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "max_connections"),
    ],
)
def test_a_knob_is_found_by_every_name_that_a_pin_has(name, knob):
    assert chosen_knobs([name, knob]) == (knob,)
    assert meant(name, "--pin").name == knob


def test_a_result_without_movers_says_that_none_helps(tmp_path):

    case = case_of(tmp_path, SMALL)
    result = what_if(case, ["moe_grouped_gemm"])
    assert isinstance(result, WhatIf)
    assert answer(result) == "No single change that fits makes this plan faster."


def test_registered_buffers_come_with_what_they_need(tmp_path):
    """The switch inside a domain, and fixed segments: priced and told, with nothing left that its rules call vain."""
    case = case_of(tmp_path, [*SMALL[:6], "--global-batch", "128", "--fsdp", "--zero-stage", "3"])
    (change,) = what_if(case, ["nccl_ub"]).changes
    assert change.neighbour.follows == {"nvls": True, "expandable_segments": False}
    assert change.delta_time < 0 < change.delta_memory
    assert not {note.id for note in change.notes} & {"user_buffers_switch", "user_buffers_segments"}


def test_segments_that_tile_domain_and_job_are_tried():
    """Of 144 GPUs of NVL72 racks, 8 to 72 were tried, and 48 of each rack is quicker than 64."""
    racks = ["--model", "gpt-oss-120b", "--gpus", "144", "--gpu", "gb300", "--ep", "16", "--micro-batch", "1"]
    document = json.loads(run(*racks, "--global-batch", "288", "--knob", "nvl_segment", "--json").output)
    tried = {change["to"] for change in document["changes"]} | {
        each["to"] for each in document["move_nothing"] if isinstance(each, dict)
    }
    assert {36, 48, 72} <= tried


def test_overlapped_dispatch_and_delayed_gradients_follow_each_other():
    model = ["--model", "qwen3-30b-a3b", "--gpus", "8", "--gpu", "h100", "--ep", "8"]
    on = json.loads(run(*model, "--knob", "delay_wgrad", "--json").output)
    assert [change["follows"] for change in on["changes"]] == [{"overlap_moe_comm": True}]
    model += ["--overlap-moe-comm", "--delay-wgrad"]
    off = json.loads(run(*model, "--knob", "overlap_moe_comm", "--json").output)
    assert [change["follows"] for change in off["changes"]] == [{"delay_wgrad": False}]


def test_experts_on_every_rank_leave_the_dispatchers_that_need_partners(tmp_path):
    """Megatron-Core refuses DeepEP and HybridEP with one rank; priced with them, ep 1 looked like a gain."""
    model = ["--model", "qwen3-30b-a3b", "--gpus", "8", "--gpu", "h200", "--ep", "2", "--global-batch", "64"]
    overlapped = ["--moe-dispatcher", "hybridep", "--overlap-moe-comm", "--delay-wgrad"]
    result = what_if(case_of(tmp_path, [*model, *overlapped]), ["ep"])
    follows = {change.neighbour.after: change.neighbour.follows for change in result.changes}
    assert follows[1] == {"moe_dispatcher": "alltoall", "overlap_moe_comm": False, "delay_wgrad": False}
    assert follows[4] == {}


def test_a_gain_by_checks_switched_off_is_told_with_what_it_gives_up(tried):
    _, result = tried
    off = next(each for each in result.changes if each.neighbour.knob == "check_for_nan_in_grad")
    assert off.delta_time < 0
    assert [note.id for note in off.notes] == ["nan_checks_off"]


def test_scopes_of_graphs_that_the_model_has_no_blocks_for_are_not_offered():
    """Mamba layers of a dense model stood among its changes, as graphs that capture nothing."""
    graphs = json.loads(run(*SMALL, "--cuda-graph", "--knob", "cuda_graph_scope", "--json").output)
    offered = {"+".join(each["to"]) for each in graphs["changes"] + graphs["forbidden"]}
    assert offered == {"full_iteration", "attn", "mlp"}
    given = [
        *SMALL,
        "--cuda-graph",
        "--cuda-graph-scope",
        "attn,mamba",
        "--knob",
        "cuda_graph_scope",
        "--json",
    ]
    assert ["attn"] in [each["to"] for each in json.loads(run(*given).output)["changes"]]


def test_one_graph_of_the_step_switches_the_checks_off_and_says_so():
    """Its gain stood beside that of the checks, as if each came without the other."""
    graphs = [*LARGE, "--cuda-graph"]
    document = json.loads(run(*graphs, "--knob", "cuda_graph_scope", "--json").output)
    whole = next(change for change in document["changes"] if change["to"] == ["full_iteration"])
    assert whole["follows"] == {"check_for_nan_in_grad": False}
    assert "nan_checks_off" in {note["id"] for note in whole["notes"]}
    scope = [*LARGE, "--cuda-graph-scope", "full_iteration"]
    (on,) = json.loads(run(*scope, "--knob", "cuda_graph", "--json").output)["changes"]
    assert on["follows"] == {"check_for_nan_in_grad": False}


def test_a_gain_that_the_search_does_not_believe_is_never_the_best(tmp_path):
    """A gradient bucket without a price, graphs that nobody has shown, and memory in which the allocator stalls."""
    sharded = ["--model", "llama3.2-1b", "--gpus", "8", "--gpu", "h100", "--fsdp", "--zero-stage", "3"]
    result = what_if(case_of(tmp_path, sharded), ["zero_stage", "cuda_graph"])
    doubts = {
        (change.neighbour.knob, change.neighbour.after): change.doubt
        for change in result.changes
        if change.share < -HELPS_ABOVE
    }
    assert doubts["zero_stage", 2] == "a bucket of unsharded gradients is not priced"
    assert doubts["cuda_graph", True].startswith("CUDA graphs of 16 layers beside FSDP: no published run")
    assert all(doubts.values())
    assert result.best() is None
    assert answer(result).startswith("No single change makes this plan faster whose time is to be believed")
    assert "its time is not to be believed: a bucket of unsharded" in " ".join(what_if_lines(result)[-9:])
    full = ["--model", "8b", "--gpus", "8", "--gpu", "h100", "--fsdp", "--zero-stage", "3"]
    tight = what_if(case_of(tmp_path, [*full, "--seq-len", "5504"]), ["micro_batch"])
    assert not tight.base.tight
    (filling,) = [change for change in tight.changes if change.fits]
    assert filling.prediction.tight
    assert filling.share < -HELPS_ABOVE
    assert tight.best() is None


def test_a_plan_with_graphs_is_sharded_without_them():
    """Graphs go where FSDP comes: the gain that was told for fsdp was one of a plan that nobody has run."""
    graphs = ["--model", "llama3.2-1b", "--gpus", "8", "--gpu", "h100", "--cuda-graph"]
    document = json.loads(run(*graphs, "--knob", "fsdp", "--json").output)
    (change,) = document["changes"]
    assert change["follows"] == {
        "zero_stage": 3,
        "cuda_graph": False,
        "gradient_accumulation_fusion": False,
    }
    assert change["doubt"] is None
    assert "fsdp_cuda_graph" not in {note["id"] for note in change["notes"]}


def test_a_gain_from_more_ranks_that_reduce_in_bf16_is_told_with_its_price():
    """The search has FP32 from 128 ranks on: a change beside its plan was faster without a word of that."""
    plan = "--model 70b --gpus 1024 --gpu h200 --tp 4 --pp 4 --dp 64 --sequence-parallel --global-batch 256"
    best, then = run(*plan.split(), "--no-grad-reduce-in-fp32").output.split(".\n", 2)[:2]
    assert "pp 4 -> 2 (with dp 128" in best
    assert then.startswith("Then gradients of 128 data-parallel ranks are summed in BF16")
    assert "Then gradients" not in run(*plan.split(), "--grad-reduce-in-fp32").output
