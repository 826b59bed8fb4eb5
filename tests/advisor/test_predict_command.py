"""advisor predict: plan files and options mean the same; text, JSON and formulas tell one story."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.predict_text import term_lines
from costmodel.formulas import all_formulas, explain_entry
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.plan_file import load_plan_file
from costmodel.predict import predict
from costmodel.prediction import RESOURCES
from costmodel.simulated_pipeline import with_schedule
from costmodel.workload import Workload
from hardware_db import load_cluster

SETTING = [
    "--model",
    "llama3-8b",
    "--gpus",
    "8",
    "--gpu",
    "h100",
    "--seq-len",
    "4096",
    "--global-batch",
    "32",
]
KNOBS = ["--tp", "2", "--sequence-parallel"]


def run(*arguments: str):
    return CliRunner().invoke(advisor, ["predict", *arguments], catch_exceptions=False)


def document(*arguments: str):
    return json.loads(run(*arguments, "--json").output)


def test_json_keeps_the_contract():
    record = document(*SETTING, *KNOBS)
    assert {
        "step_time_s",
        "tokens_per_second_per_gpu",
        "model_tflops_per_gpu",
        "mfu",
        "interval",
        "memory",
        "terms",
        "bound_by",
        "assumptions",
    } <= record.keys()
    assert record["knobs"]["dp"] == 4
    assert {"low", "high", "level", "basis"} == record["interval"].keys()
    assert {"worst_rank_gib", "device_gib", "fits", "components"} <= record["memory"].keys()
    assert record["terms"]["seconds"] == record["step_time_s"]


def closes(term, key):
    if term["parts"]:
        assert sum(part[key] for part in term["parts"]) == pytest.approx(term[key], rel=1e-9)
        for part in term["parts"]:
            closes(part, key)


@pytest.mark.parametrize("sizes", [[], ["--tp", "2"], ["--pp", "4", "--vpp", "2"], ["--fsdp"], ["--cp", "2"]])
def test_parts_sum_to_the_whole(sizes):
    record = document(*SETTING, *sizes)
    closes(record["terms"], "seconds")
    closes(record["memory_terms"], "bytes")
    components = record["memory"]["components"].values()
    assert sum(components) == pytest.approx(record["memory"]["worst_rank_gib"])


def test_a_saved_plan_predicts_the_same(tmp_path):
    path = str(tmp_path / "plan.toml")
    before = document(*SETTING, *KNOBS, "--save", path)
    after = document(path)
    assert after["step_time_s"] == before["step_time_s"] == load_plan_file(path).prediction["step_time_s"]
    assert after["knobs"] == before["knobs"]


def test_options_win_over_the_file(tmp_path):
    path = str(tmp_path / "plan.toml")
    run(*SETTING, *KNOBS, "--save", path)
    assert document(path, "--micro-batch", "2")["knobs"]["micro_batch"] == 2
    assert document(path, "--seq-len", "8192")["workload"]["seq_len"] == 8192
    sizes = document(path, "--tp", "4")["knobs"]
    assert (sizes["tp"], sizes["dp"]) == (4, 2)


def test_text_tells_the_same_numbers(tmp_path):
    text = run(*SETTING, *KNOBS).output
    record = document(*SETTING, *KNOBS)
    assert text.splitlines()[0] == Plan(**record["knobs"]).describe()
    assert f"{record['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU" in text
    assert f"{record['memory']['worst_rank_gib']:.1f} GiB" in text
    for heading in ("Time of one step", "Memory of the worst rank", "What binds", "Assumed"):
        assert f"\n{heading}" in text


def test_rates_of_a_processor_are_no_zeros(tmp_path):
    """Whole TFLOP/s told 0 of 0 of what a machine without a GPU does."""
    machine = tmp_path / "cpu.toml"
    machine.write_text(
        'name = "cpu"\ncalibrated_like = "a100-sxm-80"\ngeneration = "ampere"\n'
        'sm_count = { value = 4, unit = "1" }\nhbm_capacity_usable = { value = 16, unit = "GiB" }\n'
        'hbm_bandwidth = { value = 20, unit = "GB/s" }\npeak_bf16 = { value = 90, unit = "GFLOP/s" }\n'
    )
    plan = ("--model", "tiny-gpt", "--gpus", "2", "--gpu", str(machine))
    text = run(*plan).output
    rate = 1e3 * document(*plan)["model_tflops_per_gpu"]
    assert 10 < rate < 90
    assert f"{rate:.0f} model GFLOP/s/GPU" in text
    assert "of 90 GFLOP/s dense bf16" in text
    assert document(*plan)["mfu_peak"] == "90 GFLOP/s dense bf16"


def test_exit_code_says_whether_the_plan_holds():
    assert run(*SETTING, *KNOBS).exit_code == 0
    too_large = ["--model", "llama3-70b", "--gpus", "8", "--gpu", "h100", "--tp", "2"]
    done = run(*too_large)
    assert done.exit_code == 1
    assert "DOES NOT FIT" in done.output
    assert "No usual change mends it alone. Nor does any plan fit" in " ".join(done.output.split())
    illegal = run("--model", "llama3-8b", "--gpus", "6", "--gpu", "h100", "--tp", "3", "--global-batch", "32")
    assert illegal.exit_code == 1
    assert "This plan cannot run" in illegal.output


def test_every_formula_is_printed_with_its_numbers():
    text = run(*SETTING, *KNOBS, "--formulas").output
    for entry in all_formulas():
        assert re.search(rf"^{entry['name']} \[", text, re.MULTILINE)
    record = document(*SETTING, *KNOBS, "--formulas")
    assert [entry["name"] for entry in record["formulas"]] == [entry["name"] for entry in all_formulas()]
    by_name = {entry["name"]: entry["value"] for entry in record["formulas"]}
    assert by_name["step_time"] == record["step_time_s"]


def test_formulas_of_a_pipeline_sum_to_its_step_as_json_too():
    """The step among the formulas was the closed form, another number than step_time_s, and nothing told the rest."""
    record = document(*SETTING, *KNOBS, "--pp", "4", "--vpp", "2", "--formulas")
    names = [entry["name"] for entry in record["formulas"]]
    assert names[names.index("step_time") + 1] == "schedule_correction"
    by_name = {entry["name"]: entry["value"] for entry in record["formulas"]}
    assert by_name["schedule_correction"] != 0
    step = by_name["step_time"] + by_name["schedule_correction"]
    assert step == pytest.approx(record["step_time_s"], rel=1e-12)


def test_formulas_stand_in_the_document_of_explain_too():
    """--formulas was ignored beside --json."""
    asked = ["--model", "tiny-gpt", "--gpus", "2", "--gpu", "h100", "--precision", "bf16", "--json"]
    with_formulas = CliRunner().invoke(advisor, ["explain", *asked, "--formulas"], catch_exceptions=False)
    record = json.loads(with_formulas.stdout)
    by_name = {entry["name"]: entry["value"] for entry in record["formulas"]}
    step = by_name["step_time"] + by_name.get("schedule_correction", 0)
    assert step == pytest.approx(record["plans"][0]["prediction"]["step_time_s"], rel=1e-12)
    without = CliRunner().invoke(advisor, ["explain", *asked], catch_exceptions=False)
    assert "formulas" not in json.loads(without.stdout)


def prediction():
    plan = Plan(tp=2, dp=4, sequence_parallel=True)
    return predict(load_model("llama3-8b"), Workload(4096, 32), load_cluster("dgx-h100"), plan)


def test_one_term_by_name_or_title():
    assert term_lines(prediction(), "forward_linear")[0].startswith("forward_linear [s]: linear layers")
    assert term_lines(prediction(), "optimizer step")[0].startswith("optimizer_step [s]")
    with pytest.raises(ValueError, match="Did you mean forward_linear"):
        term_lines(prediction(), "forwrd_linear")
    for part, meant in (("activations", "memory_first_activations"), ("bubble", "pipeline_bubble")):
        with pytest.raises(ValueError, match=f"Did you mean .*{meant}.*by its words or its name"):
            term_lines(prediction(), part)
    with pytest.raises(ValueError, match=r"not a term of the cost model\. Any line of the breakdown is one"):
        term_lines(prediction(), "stall")


def test_what_binds_is_told_as_the_terms_that_it_sums():
    """ "expert dispatch" and "GEMM rate", as answers write them, were unknown terms."""
    found = prediction()
    lines = term_lines(found, "GEMM rate")
    assert lines[0].startswith("GEMM rate: ")
    leaves = {leaf.name: leaf.value for leaf in found.time.leaves()}
    told = {line.split()[0] for line in lines[2:]}
    assert told == {name for name in RESOURCES["GEMM rate"] if leaves.get(name)}
    assert term_lines(found, "forward_linear")[0].startswith("forward_linear [s]")


def test_the_step_of_a_pipeline_is_told_as_answers_tell_it():
    """--term step told the closed form, 1.921 s, where the answer was 1.858 s; the correction was no term."""
    plan = Plan(tp=2, pp=4, vpp=2, account_loss=False, sequence_parallel=True)
    closed = predict(load_model("llama3-8b"), Workload(4096, 32), load_cluster("dgx-h100"), plan)
    found = with_schedule(closed)
    assert found.step_time_s != closed.step_time_s
    lines = term_lines(found, "step")
    assert lines[-1] == f"  so that the step is {found.step_time_s:.6g} s"
    correction = term_lines(found, "schedule_correction")
    assert correction[0] == "schedule_correction [s]: pipeline schedule, simulated less closed form"
    assert set(correction) < set(lines)
    with pytest.raises(ValueError, match=r"this plan has one\. Try --term step_time"):
        term_lines(prediction(), "schedule_correction")


def test_numbers_put_into_a_formula_give_its_value():
    found = prediction()
    checked = 0
    for entry in all_formulas():
        lines = explain_entry(found, entry["name"])
        numbers = lines[2].removeprefix("  = ")
        if not re.fullmatch(r"[\d.e+*/() -]+", numbers):
            continue  # ceilings, maxima: words, not arithmetic
        assert eval(numbers) == pytest.approx(found.values[entry["name"]], rel=1e-3, abs=1e-5)
        checked += 1
    assert checked > 50


def test_defaults_taken_are_told():
    text = run("--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", *KNOBS).output
    told = " ".join(text.split())
    assert "--seq-len 8192: the usual length of llama3-8b, as none was given" in told
    assert "a usual batch for this size" in told
    assert "h100 means dgx-h100" in told


def test_terms_say_the_formula_and_its_source():
    told = json.loads(
        CliRunner()
        .invoke(advisor, ["predict", "--model", "8b", "--gpus", "8", "--gpu", "h100", "--dp", "8", "--json"])
        .output
    )
    assert set(told["terms"]) == {"name", "title", "seconds", "share", "formula", "source", "parts"}
    parts = {part["name"]: part for part in told["terms"]["parts"]}
    assert "arXiv:2104.04473" in parts["pipeline_bubble"]["source"]
    leaves = {leaf["name"]: leaf for leaf in parts["forward"]["parts"]}
    assert "arXiv:2205.05198" in leaves["forward_tensor_parallel"]["source"]


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_a_loss_that_the_release_lacks_is_told(command):
    """Transformer Engine's fused loss asked for of a release that has only Megatron-Core's own: that one is priced."""
    asked = [*SETTING, "--stack", "mcore-26.05"]
    pin = {"predict": ["--cross-entropy-fusion-impl"], "explain": ["--pin"]}[command]

    unfused = {"predict": ["--no-fused-cross-entropy"], "explain": ["--pin", "fused_cross_entropy=false"]}

    def words(loss: str, *more: str) -> str:
        value = loss if command == "predict" else f"cross_entropy_fusion_impl={loss}"
        found = CliRunner().invoke(advisor, [command, *asked, *more, *pin, value], catch_exceptions=False)
        return " ".join(found.output.split())

    note = "has no fused loss but Megatron-Core's own: that is priced, not Transformer Engine's (te)."
    assert f"mcore-26.05 {note}" in words("te")
    assert note not in words("native")
    assert note not in words("te", "--stack", "mcore-26.03")
    assert note not in words("te", *unfused[command])


def test_sizes_for_other_gpus_than_there_are_show_both_numbers(tmp_path):
    """The head and `gpus` of the JSON were those of the sizes, as if nobody had said another number."""
    path = tmp_path / "plan.toml"
    run(*SETTING, *KNOBS, "--save", str(path))
    path.write_text(path.read_text().replace("gpus = 8", "gpus = 16"))
    text = " ".join(run(str(path)).output.split())
    assert "16 x H100 SXM5 80GB (dgx-h100), of which its sizes take 8 This plan cannot run" in text
    assert "= 8 GPUs, but there are 16. Set dp = 8, or --gpus 8." in text
    record = document(str(path))
    assert (record["gpus"], record["gpus_of_sizes"]) == (16, 8)
    assert record["violations"][0]["id"] == "world"
    whole = document(*SETTING, *KNOBS)
    assert whole["gpus"] == whole["gpus_of_sizes"] == 8
