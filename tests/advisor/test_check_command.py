"""advisor check: all violations at once, with the way out; exit code 1 when one is an error."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.request import make_request
from advisor.search import search

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


def run(*arguments: str, text: str | None = None):
    return CliRunner().invoke(advisor, ["check", *arguments], input=text, catch_exceptions=False)


def test_a_good_plan_holds():
    done = run(*SETTING, "--tp", "2", "--sequence-parallel")
    assert done.exit_code == 0
    assert ": holds" in done.output.splitlines()[0]


def test_all_errors_are_told_at_once_with_the_way_out():
    done = run(*SETTING, "--tp", "8", "--vpp", "2", "--recompute-num-layers", "99", "--recompute", "full")
    assert done.exit_code == 1
    assert "does not hold" in done.output
    record = json.loads(run(*SETTING, "--tp", "8", "--vpp", "3", "--json").output)
    assert record["holds"] is False
    errors = [violation for violation in record["violations"] if violation["severity"] == "ERROR"]
    assert errors
    assert all(violation["way_out"] and violation["text"] for violation in record["violations"])


def test_memory_is_one_of_the_rules():
    done = run("--model", "llama3-70b", "--gpus", "8", "--gpu", "h100", "--tp", "8", "--sequence-parallel")
    assert done.exit_code == 1
    assert "DOES NOT FIT" in done.output
    assert "1 error" in done.output


def test_gpus_of_the_file_are_compared_with_the_plan(tmp_path):
    path = tmp_path / "plan.toml"
    CliRunner().invoke(advisor, ["predict", *SETTING, "--save", str(path)])
    path.write_text(path.read_text().replace("gpus = 8", "gpus = 16"))
    done = run(str(path))
    assert done.exit_code == 1
    assert "but there are 16" in done.output


def test_a_plan_that_cannot_be_predicted_still_gets_its_rules():
    record = json.loads(run(*SETTING, "--micro-batch", "3", "--json").output)
    assert record["memory"] is None
    assert "multiple of micro_batch x dp" in record["not_predicted"]
    assert record["holds"] is False


def test_sizes_that_do_not_fit_the_gpus_are_bad_input(tmp_path):
    path = str(tmp_path / "plan.toml")
    CliRunner().invoke(advisor, ["predict", *SETTING, "--save", path])
    with pytest.raises(ValueError, match="does not fit tp=3"):
        run(path, "--tp", "3")


MOE = [
    "--model",
    "deepseek-v3",
    "--gpus",
    "128",
    "--gpu",
    "h100",
    "--seq-len",
    "4096",
    "--global-batch",
    "512",
    "--tp",
    "2",
    "--pp",
    "4",
    "--vpp",
    "4",
]


def test_rules_of_experts_are_told_errors_first_each_with_its_way_out():
    done = run(
        *MOE, "--ep", "96", "--overlap-moe-comm", "--shared-expert-overlap", "--delay-wgrad", "--nccl-ub"
    )
    assert done.exit_code == 1
    kinds = [line.split()[0] for line in done.output.splitlines() if re.match(r"  [A-Z]+ \(", line)]
    order = ["ERROR", "AUTOFIX", "SILENT", "PERF", "ENV", "NOTE"]
    assert kinds == sorted(kinds, key=order.index)
    assert {"ERROR", "AUTOFIX", "NOTE"} <= set(kinds)
    for name in ("experts_over_ep", "expert_mesh", "moe_needs_sp", "ep_overlap_shared"):
        assert f"[{name}]" in done.output
    assert "Try --pipeline-layout balanced" in done.output


def test_a_layout_switches_the_even_split_off():
    done = run(*MOE, "--sequence-parallel", "--ep", "32", "--pipeline-layout", "balanced", "--json")
    found = json.loads(done.output)["violations"]
    assert not [violation["id"] for violation in found if violation["severity"] == "ERROR"]


def test_a_setting_is_seen_by_the_rules():
    ids = [
        [
            each["id"]
            for each in json.loads(run(*SETTING, "--cuda-graph", *more, "--json").output)["violations"]
        ]
        for more in ([], ["--set", "NCCL_GRAPH_REGISTER=0"])
    ]
    assert "graph_registration" in ids[0]
    assert "graph_registration" not in ids[1]


QWEN = [
    *("--model", "qwen3-30b-a3b", "--cluster", "dgx-h100", "--gpus", "16", "--dp", "16", "--ep", "4"),
    *("--seq-len", "4096", "--global-batch", "1024"),
]


def test_a_plan_that_does_not_fit_gets_a_first_change_that_does():
    told = run(*QWEN).output
    assert "DOES NOT FIT" in told
    first = json.loads(run(*QWEN, "--json").output)["first_cure"]
    assert f"Try {first['options']}:" in told
    assert list(first["changes"]) == ["ep"]
    cured = json.loads(run(*QWEN, *first["options"].split(), "--json").output)
    assert cured["memory"]["fits"] is True
    assert cured["memory"]["worst_rank_gib"] == pytest.approx(first["worst_rank_gib"])
    assert cured["first_cure"] is None


LLAMA = [
    *("--model", "llama3-8b", "--gpus", "8", "--gpu", "h100"),
    *("--global-batch", "32", "--precision", "bf16"),
]
SHORT = [*("--task", "sft", "--seq-len", "4096", "--no-packed", "--mean-length", "600", "--length-cv", "0.5")]


@pytest.mark.parametrize(
    ("plan", "cure"),
    [
        (SHORT, {"precision_aware_optimizer": True}),
        (
            [*SHORT, "--precision-aware-optimizer", "--no-avoid-record-streams"],
            {"avoid_record_streams": True},
        ),
    ],
)
def test_what_costs_nothing_cures_first(plan, cure):
    """The guides' settings that free memory without time, before any recompute."""
    assert json.loads(run(*LLAMA, *plan, "--json").output)["first_cure"]["changes"] == cure


def test_cures_are_what_the_stack_has():
    """Llama 3 8B on 64 GPUs: ops, which torchtitan has alone, was the first change told; torchtitan has to shard."""
    large = ["--model", "llama3-8b", "--gpus", "64", "--gpu", "h100", "--global-batch", "256"]
    large += ["--precision", "bf16", "--seq-len", "8192"]
    megatron, torchtitan = (
        json.loads(run(*large, *stack, "--json").output)["first_cure"]["changes"]
        for stack in ([], ["--stack", "torchtitan"])
    )
    assert megatron["recompute_modules"] == ["mlp"]
    assert torchtitan["fsdp"]


def test_a_cure_is_told_as_options_that_make_it():
    large = [
        *("--model", "llama3-70b", "--gpus", "64", "--gpu", "h100", "--tp", "4", "--pp", "4", "--vpp", "5"),
        *("--sequence-parallel", "--seq-len", "8192", "--global-batch", "128"),
    ]
    done = run(*large)
    assert done.exit_code == 1
    options = re.search(r"Try (--.*?):", " ".join(done.output.split()))[1].split()
    assert "DOES NOT FIT" not in run(*large, *options).output


@pytest.mark.parametrize("command", ["check", "predict"])
@pytest.mark.parametrize(
    ("setting", "sizes", "says"),
    [
        (
            ("llama3.1-405b", 8),
            {"tp": 8},
            "Nor does any plan fit that `advisor explain` searches for 8 GPUs; it then",
        ),
        (("llama3-70b", 64), {"tp": 2, "dp": 32}, "`advisor explain` finds plans for 64 GPUs that fit."),
    ],
)
def test_where_no_change_alone_mends_it_what_a_search_finds_is_told(command, setting, sizes, says):
    """`predict` sent to `check` for a way out that it did not have, and `check` to `explain`, which had none either."""
    model, gpus = setting
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    options += ["--model", model, "--gpus", str(gpus), "--gpu", "h100"]
    done = CliRunner().invoke(advisor, [command, *options], catch_exceptions=False)
    text = " ".join(done.output.split())
    assert f"No usual change mends it alone. {says}" in text
    assert "in place of `advisor predict`" not in text
    assert bool(search(make_request(model, gpus, "h100")).plans) == ("finds plans" in says)


def test_predict_tells_the_first_cure_that_check_tells():
    large = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--dp", "8", "--seq-len", "8192"]
    large += ["--global-batch", "128"]
    cure = json.loads(run(*large, "--json").output)["first_cure"]["options"]
    done = CliRunner().invoke(advisor, ["predict", *large], catch_exceptions=False)
    assert f"way out Try {cure}:" in " ".join(done.output.split())
    fitting = CliRunner().invoke(advisor, ["predict", *large, *cure.split()], catch_exceptions=False)
    assert fitting.exit_code == 0
    assert "way out" not in fitting.output


def test_a_stack_that_cannot_train_the_model_is_told_in_place_of_a_search():
    done = run(
        "--model", "deepseek-v3", "--gpus", "64", "--gpu", "h100", "--ep", "64", "--stack", "nemo-24.07"
    )
    assert "No usual change mends it alone. nemo-24.07 has no" in " ".join(done.output.split())


def test_fixed_segments_are_told_only_where_memory_is_short():
    def ids(*more: str) -> list[str]:
        return [each["id"] for each in json.loads(run(*more, "--json").output)["violations"]]

    small = [*SETTING, "--tp", "8", "--sequence-parallel", "--no-expandable-segments"]
    assert "segments_fixed" not in ids(*small)
    assert "segments_fixed" in ids(*QWEN, "--no-expandable-segments")


@pytest.mark.parametrize("command", ["check", "predict"])
def test_settings_are_shown_where_there_are_any(command):
    def text(*more: str) -> str:
        return CliRunner().invoke(advisor, [command, *SETTING, *more], catch_exceptions=False).output

    assert "settings   nccl_debug=INFO" in text("--set", "NCCL_DEBUG=INFO")
    assert "settings  " not in text()


@pytest.mark.parametrize(("gpu", "said"), [("h200", True), ("h100", False)])
def test_recompute_is_remarked_where_memory_has_room_without_it(gpu, said):
    """What is told to add must fit: no remark where it would not."""
    plan = [
        "--model",
        "llama3-70b",
        "--gpus",
        "64",
        "--gpu",
        gpu,
        "--tp",
        "4",
        "--pp",
        "4",
        "--sequence-parallel",
    ]
    plan += ["--recompute", "full", "--global-batch", "128"]
    found = {each["id"]: each for each in json.loads(run(*plan, "--json").output)["violations"]}
    assert ("recompute_with_room" in found) == said
    without = run(*plan, "--recompute", "none", "--json")
    assert json.loads(without.output)["memory"]["fits"] == said


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "nemo"])
def test_an_empty_configuration_is_told_as_what_it_is(tmp_path, target):
    """A text of no characters was "no file. Name one, or leave it out", an empty file no YAML or without arguments."""
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    for given, said in (
        ("", "given ''"),
        ("  ", "given '  '"),
        (str(empty), f"{empty} is empty"),
        ("-", "input is empty"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)) as refusal:
            run("--from", target, given, "--gpu", "h100", text="")
        assert target in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "nemo", "torchtitan"])
def test_a_binary_is_no_configuration(tmp_path, target):
    """It was told to close a quotation, or that a key needs its value."""
    (tmp_path / "model.bin").write_bytes(b"'\0\1\xff--tp 8")
    with pytest.raises(ValueError, match=r"model\.bin is binary, no text of a configuration"):
        run("--from", target, str(tmp_path / "model.bin"), "--gpu", "h100")


def test_an_empty_plan_is_told_as_what_it_is(tmp_path):
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    for given, said in (("", "PLAN is ''"), (str(empty), f"{empty} is empty")):
        with pytest.raises(ValueError, match=re.escape(said)) as refusal:
            run(given)
        assert "--" in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("target", ["nemo", "megatron-lm", "megatron-bridge"])
def test_a_folder_is_no_configuration(tmp_path, target):
    """It was "no file, and no arguments either"."""
    with pytest.raises(
        ValueError, match=re.escape(f"{tmp_path} is a folder. Name the file in it")
    ) as refusal:
        run("--from", target, str(tmp_path), "--gpu", "h100")
    assert "\n" not in str(refusal.value)


def test_fusions_that_are_off_are_named_as_options_to_add():
    """A script of Megatron-LM without a flag was told to leave on what it had never switched on."""
    done = run(*SETTING, "--no-rope-fusion", "--no-fused-cross-entropy")
    assert "Add --fused-cross-entropy --rope-fusion. [fusions_off]" in " ".join(done.output.split())
    again = run(*SETTING, "--rope-fusion", "--fused-cross-entropy")
    assert "fusions_off" not in again.output


def test_what_is_not_predicted_leaves_the_way_out_to_the_rule():
    """Two ways out stood side by side: the nearest batch below, and the next above."""
    done = " ".join(run(*SETTING, "--micro-batch", "3").output.split())
    assert "not predicted: --global-batch 32 is not a multiple of micro_batch x dp = 3 x 8. Rules" in done
    assert done.count("Try --global-batch") == 1


@pytest.mark.parametrize(
    ("hidden", "ffn", "tp", "told"),
    [
        (4095, 11008, 1, "multiples of 16, not hidden 4095. Try --precision bf16."),
        (4096, 11072, 8, "multiples of 16, not ffn / tp 1384. Try a smaller --tp, or --precision bf16."),
        (4096, 11000, 1, "multiples of 16, not ffn / tp 11000. Try --precision bf16."),
    ],
)
def test_sizes_that_a_format_cannot_take_are_told_alone_with_a_way_out_that_helps(
    hidden, ffn, tp, told, tmp_path
):
    """A dense model was told of its experts, and to try a smaller tp where its hidden size was the matter."""
    file = tmp_path / "mine.toml"
    sizes = f"num_layers = 8\nhidden = {hidden}\nffn_hidden = {ffn}\nnum_heads = 32\nhead_dim = 128\nvocab = 64000"
    file.write_text(sizes + "\nseq_len = 4096\n")
    setting = ["--model", str(file), "--gpus", "8", "--gpu", "h100", "--precision", "fp8-cs", "--tp", str(tp)]
    assert told in " ".join(run(*setting, *(["--sequence-parallel"] if tp > 1 else [])).output.split())


def test_what_was_read_is_told_with_its_task_and_its_documents():
    """An export for LoRA of packs of 900 tokens read back as if it were a step of full ones, without a word."""
    text = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu --bf16 "
        "--group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 4096 --global-batch-size 1024 "
        "--disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights --sft "
    )
    told = " ".join(run("--from", "megatron-lm", text, "--gpu", "h100", "--gpus", "1").output.split())
    assert "sft, 1 GPU, 1,024 sequences of 4,096 tokens" in told
    assert "Every sequence is taken as one full document" in told
    short = run("--from", "megatron-lm", text, "--gpu", "h100", "--mean-length", "900").output
    assert "one full document" not in " ".join(short.split())


def test_a_cure_by_whole_layers_does_not_empty_the_list_of_modules():
    """They are forgotten beside recompute of layers; the line once said --recompute-modules ''."""
    plan = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--dp", "8", "--seq-len", "32768"]
    plan += ["--global-batch", "8", "--recompute", "selective", "--recompute-modules", "layernorm,mlp"]
    cure = json.loads(run(*plan, "--json").output)["first_cure"]
    assert cure["changes"]["recompute"] == "full"
    assert cure["options"] == "--recompute full"
