"""advisor export and advisor check --from: what is printed, written, refused and read."""

from __future__ import annotations

import json
import os
import re

import pytest
from click.testing import CliRunner

from advisor.cli import main
from advisor.commands.check import command as check
from advisor.commands.export import command as export
from advisor.commands.predict import command as predict
from advisor.target_release import version_of_stack

PLAN = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "2", "--sequence-parallel"]
ARGUMENTS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --vocab-size 128256 "
    "--untie-embeddings-and-output-weights --seq-length 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 "
    "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
)


def run(command, *arguments):
    """What the command gives."""
    return CliRunner().invoke(command, list(arguments))


def test_the_complete_script_is_printed():
    found = run(export, *PLAN, "--to", "megatron-lm")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("#!/usr/bin/env bash")
    for text in (
        "--tensor-model-parallel-size 2",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        "torchrun",
        "numactl",
    ):
        assert text in found.stdout
    assert "--mock-data" not in found.stdout


def test_files_are_written_and_never_overwritten_unasked(tmp_path):
    folder = tmp_path / "run"
    found = run(export, *PLAN, "--to", "megatron-lm", "--slurm", "-o", str(folder))
    assert found.exit_code == 0, found.output
    assert sorted(path.name for path in folder.iterdir()) == ["job.sbatch", "train.sh"]
    assert os.access(folder / "train.sh", os.X_OK)
    assert "sbatch job.sbatch" in found.stdout
    (folder / "train.sh").write_text("mine")
    again = run(export, *PLAN, "--to", "megatron-lm", "-o", str(folder))
    assert isinstance(again.exception, ValueError)
    assert "--force" in str(again.exception)
    assert (folder / "train.sh").read_text() == "mine"
    run(export, *PLAN, "--to", "megatron-lm", "-o", str(folder), "--force")
    assert (folder / "train.sh").read_text() != "mine"


def test_json_has_settings_environment_files_and_notes():
    record = json.loads(run(export, *PLAN, "--to", "megatron-lm", "--json").stdout)
    assert record["settings"]["--tensor-model-parallel-size"] == 2
    assert record["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert list(record["files"]) == ["train.sh"]
    assert record["plan"]["tp"] == 2


def test_a_plan_that_breaks_a_rule_is_refused():
    found = run(
        export, "--model", "llama3-8b", "--gpus", "48", "--gpu", "h100", "--tp", "3", "--to", "megatron-lm"
    )
    assert found.exit_code == 1
    assert "heads do not divide" in found.stderr
    assert not found.stdout


def test_packs_take_one_a_micro_batch_also_where_nobody_says_how_long_documents_are():
    sizes = ["--task", "sft", "--micro-batch", "2", "--seq-len", "4096"]
    for target in ("megatron-lm", "megatron-bridge"):
        found = run(export, *PLAN, *sizes, "--to", target)
        assert found.exit_code == 1
        assert "Try --micro-batch 1 with --seq-len 8192 --mean-length 4096." in found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "megatronlm"],
        ["--to", "megatron-lm", "--target-version", "x"],
        ["--to", "megatron-lm", "--task", "lora"],
        ["--to", "megatron-lm", "--task", "sft", "--no-packed", "--mean-length", "800"],
    ],
)
def test_bad_input_is_one_line(arguments, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["advisor", "export", *PLAN, *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.strip().splitlines()[-1].startswith("Error: ")


def test_an_export_checked_from_its_file_is_the_plan(tmp_path):
    run(
        export,
        *PLAN,
        "--seq-len",
        "8192",
        "--global-batch",
        "128",
        "--to",
        "megatron-lm",
        "-o",
        str(tmp_path),
    )
    found = run(check, "--from", "megatron-lm", str(tmp_path / "train.sh"), "--gpu", "h100", "--json")
    record = json.loads(found.stdout)
    asked = [*PLAN, "--seq-len", "8192", "--global-batch", "128", "--stack", "mcore-26.05"]
    straight = json.loads(run(check, *asked, "--json").stdout)
    assert record["model"] == "llama3-8b"
    # Said by the environment of the script rather than left to it; and whose loss Megatron-LM takes unsaid.
    assert record["plan"] == straight["plan"] | {
        "max_connections": 1,
        "cross_entropy_fusion_impl": "native",
    }
    assert record["memory"] == straight["memory"]


def test_an_exported_pipeline_is_predicted_as_the_plan_is(tmp_path):
    """Its pipeline simulated, not from the closed form: uneven chunks differ between the two."""
    plan = [
        "--model",
        "deepseek-v3",
        "--gpus",
        "256",
        "--gpu",
        "h100",
        "--pp",
        "8",
        "--vpp",
        "2",
        "--ep",
        "32",
    ]
    plan += ["--recompute", "selective", "--recompute-modules", "moe", "--pipeline-layout", "balanced"]
    run(export, *plan, "--to", "megatron-lm", "-o", str(tmp_path))
    script = str(tmp_path / "train.sh")
    found = run(check, "--from", "megatron-lm", script, "--gpu", "h100", "--gpus", "256", "--json")
    straight = json.loads(run(predict, *plan, "--stack", "mcore-26.05", "--json").stdout)
    read = json.loads(found.stdout)["prediction"]
    assert any(part["name"] == "schedule_correction" for part in straight["terms"]["parts"])
    assert read["step_time_s"] == pytest.approx(straight["step_time_s"], rel=1e-9)


def test_arguments_are_checked_and_predicted():
    found = run(check, "--from", "megatron-lm", ARGUMENTS, "--gpu", "h100", "--gpus", "8")
    assert found.exit_code == 0, found.output
    for text in ("TP2 DP4", "llama3-8b", "tokens/s/GPU", "fits", "max_connections_one"):
        assert text in found.stdout
    worse = run(check, "--from", "megatron-lm", ARGUMENTS, "--gpu", "h100", "--gpus", "8", "--tp", "64")
    assert worse.exit_code != 0


@pytest.mark.parametrize(
    "arguments", [["nofile"], [], [ARGUMENTS], ["--num-layers $N --hidden-size 8", "--gpu", "h100"]]
)
def test_what_cannot_be_read_is_one_line(arguments):
    found = run(check, "--from", "megatron-lm", *arguments)
    assert isinstance(found.exception, ValueError)
    assert "\n" not in str(found.exception)


# Fits by 3 % of the device with Transformer Engine's fused loss, and not with Megatron-LM's own.
TIGHT = [
    "--model",
    "llama3-8b",
    "--gpus",
    "16",
    "--gpu",
    "h100",
    "--seq-len",
    "8192",
    "--global-batch",
    "128",
]
TIGHT += ["--precision", "fp8-cs", "--fp8-param-gather", "--no-grad-reduce-in-fp32"]


def test_a_plan_that_does_not_fit_with_the_targets_loss_is_refused(tmp_path):
    found = run(export, *TIGHT, "--to", "megatron-lm", "-o", str(tmp_path / "run"))
    assert found.exit_code == 1
    assert not (tmp_path / "run").exists()
    (line,) = found.stderr.splitlines()
    assert "72.3 -> 80.3 GiB of 79.6 GiB, which does not fit" in line
    assert "--target-version 0.17" in line
    cure = line.partition("Try ")[2].partition(", or")[0].split()
    assert run(export, *TIGHT, *cure, "--to", "megatron-lm").exit_code == 0


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "nemo"])
def test_a_plan_that_does_not_fit_is_written_and_ends_with_1(target, tmp_path):
    """A script of CI took exit code 0 for a plan that holds; `check` ended with 1 for the same plan."""
    large = ["--model", "70b", "--gpus", "8", "--gpu", "h100", "--tp", "8", "--sequence-parallel"]
    found = run(export, *large, "--to", target, "-o", str(tmp_path / "run"))
    assert found.exit_code == 1
    assert any((tmp_path / "run").iterdir())
    line = found.stderr.splitlines()[0]
    told = re.match(
        r"The plan does not fit: ([\d.]+) GiB of 79\.6 GiB on the worst rank, ([\d.]+) GiB over the ", line
    )
    assert told, line
    straight = json.loads(run(check, *large, "--json").stdout)["memory"]
    assert float(told[1]) == pytest.approx(straight["worst_rank_gib"], abs=0.06)
    printed = run(export, *large, "--to", target, "--json")
    assert printed.exit_code == 1
    assert json.loads(printed.stdout)["warnings"][0] == line


def test_the_memory_of_the_targets_loss_is_noted():
    found = run(export, *TIGHT, "--recompute", "full", "--to", "megatron-lm")
    assert found.exit_code == 0
    assert re.search(r"# Note: .* keeps FP32 logits: memory [\d.]+ -> [\d.]+ GiB of 79\.6 GiB", found.stdout)


def test_memory_that_the_targets_loss_leaves_as_it_is_is_not_noted():
    """The first of four stages is the fullest, and it holds no logits."""
    stages = ["--model", "llama3-8b", "--gpus", "16", "--gpu", "h100", "--pp", "4", "--seq-len", "8192"]
    found = run(export, *stages, "--to", "megatron-lm")
    assert found.exit_code == 0
    assert "--cross-entropy-loss-fusion" in found.stdout
    assert "FP32 logits" not in found.stdout


def test_what_must_be_set_before_the_start_is_named(tmp_path):
    said = {}
    for name, more in (("one", ["--slurm"]), ("two", [])):
        gpus = ["--gpus", "16", "--dp", "8"]
        found = run(export, *PLAN, *gpus, "--to", "megatron-lm", *more, "-o", str(tmp_path / name))
        said[name] = " ".join(found.stdout.split())
    assert "set DATA_PATH, TOKENIZER_MODEL, CONTAINER_IMAGE, then sbatch job.sbatch" in said["one"]
    assert "set DATA_PATH, TOKENIZER_MODEL, NODE_RANK, MASTER_ADDR, then bash train.sh" in said["two"]


def test_a_plan_made_for_other_software_is_told_its_time_as_megatron_lm(tmp_path):
    """The time beside which a reader lays his log: that of the stack that the script is read back with."""
    found = run(export, *PLAN, "--to", "megatron-lm", "-o", str(tmp_path / "a"))
    note = re.search(r"As (\S+), the newest .* expects ([\d.]+ s) \(", " ".join(found.stdout.split()))
    assert note, found.stdout
    back = run(check, "--from", "megatron-lm", str(tmp_path / "a" / "train.sh"), "--gpu", "h100").stdout
    assert f"step       {note[2]} (" in back
    assert f"{note[1]}: the newest Megatron-LM on file" in " ".join(back.split())
    for more in (("--to", "megatron-lm", "--stack", note[1]), ("--to", "megatron-bridge")):
        other = run(export, *PLAN, *more, "-o", str(tmp_path / more[-1]))
        assert "The plan was made for" not in other.stdout


@pytest.mark.parametrize(
    ("stack", "target", "release"),
    [
        ("26.04", "nemo", "2.6.0"),
        ("25.02", "megatron-bridge", "0.6.2"),
    ],
)
def test_a_plan_of_a_stack_without_the_target_is_told_whose_names_it_gets(stack, target, release):
    """The newest release was written for a plan of a container two years older, without a word."""
    old = json.loads(run(export, *PLAN, "--stack", stack, "--to", target, "--json").stdout)
    (note,) = [each for each in old["assumptions"] if f"was made for nemo-{stack}" in each]
    assert f" {release} (Megatron-Core " in note
    assert "--target-version" in note
    new = json.loads(run(export, *PLAN, "--to", target, "--json").stdout)
    assert not any("was made for" in each for each in new["assumptions"])


@pytest.mark.parametrize(
    ("stack", "target", "release", "version"),
    [
        ("25.09", "nemo", "2.5.0", "2.5"),
        ("26.04.01", "megatron-bridge", "0.4.2", "0.4"),
        ("nemo-26.06", "megatron-bridge", "0.5.1", "0.5"),
        ("mcore-26.03", "megatron-lm", "0.17", "0.17"),
        ("mcore-26.05", "megatron-lm", "0.18", "0.18"),
    ],
)
def test_an_export_is_of_the_release_that_the_stack_stands_for(stack, target, release, version):
    """A plan of nemo-25.09 was written in the names of NeMo 2.6; who had not seen the note ran it on 2.5."""
    made = json.loads(run(export, *PLAN, "--stack", stack, "--to", target, "--json").stdout)
    assert made["version"] == release
    (note,) = [each for each in made["notes"] if "--target-version names another" in each]
    assert f" {version} is that of " in note
    assert note in run(export, *PLAN, "--stack", stack, "--to", target).stdout
    assert not any("was made for" in each for each in made["assumptions"])
    newest = json.loads(run(export, *PLAN, "--to", target, "--json").stdout)["version"]
    named = [*PLAN, "--stack", stack, "--to", target, "--target-version", newest, "--json"]
    other = json.loads(run(export, *named).stdout)
    assert other["version"] == newest
    assert not any("names another" in each for each in other["notes"])


def test_a_stack_stands_for_no_release_of_what_it_has_not():
    assert version_of_stack("nemo-24.05", "nemo") == version_of_stack("nemo-26.04", "nemo") == ""
    assert version_of_stack("nemo-25.07", "megatron-bridge") == version_of_stack("mcore-26.03", "nemo") == ""
    assert version_of_stack("torchtitan", "megatron-lm") == version_of_stack("local", "megatron-lm") == ""
    assert version_of_stack("megatron-21.04", "megatron-lm") == ""


def test_an_unknown_version_is_told_with_what_it_refuses():
    found = run(export, *TIGHT, "--to", "megatron-lm", "--target-version", "9")
    assert "Megatron-LM 0.19, the nearest to 9 that is known, refuses" in found.stderr


@pytest.mark.parametrize("target", ["megatron-bridge", "nemo"])
def test_the_loss_that_was_priced_is_written_and_read(target, tmp_path):
    """Transformer Engine's was written for a plan of mcore-26.05, without a word."""
    for stack, word in (("mcore-26.05", "native"), ("nemo-26.06", "te")):
        folder = str(tmp_path / stack)
        written = run(export, *TIGHT, "--recompute", "full", "--stack", stack, "--to", target, "-o", folder)
        assert written.exit_code == 0
        (text,) = (tmp_path / stack).glob("*.py")
        assert f'cross_entropy_fusion_impl = "{word}"' in text.read_text()
        told = run(check, "--from", target, str(text), "--gpu", "h100", "--json").stdout
        assert json.loads(told)["model"] == "llama3-8b"
        assert json.loads(told)["plan"]["cross_entropy_fusion_impl"] == word


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        (["--target-version", "0.17"], "--cross-entropy-fusion-impl te"),
        (["--no-fused-cross-entropy"], ""),
        (["--stack", "mcore-26.05"], "--cross-entropy-loss-fusion"),
    ],
    ids=str,
)
def test_what_has_the_loss_that_was_priced_is_written_without_a_word(more, flag):
    found = run(export, *TIGHT, *more, "--to", "megatron-lm")
    assert found.exit_code == ("mcore-26.05" in more)  # its loss was priced, and does not fit
    assert flag in found.stdout
    assert "fused loss" not in found.stdout
    assert "refuses Transformer Engine" not in found.stderr
    assert ("-impl te" in found.stdout) == ("te" in flag.split())


@pytest.mark.parametrize(
    ("version", "stack", "memory"), [("0.17", "mcore-26.03", "72.3 GiB"), ("0.19", "mcore-26.05", "80.3 GiB")]
)
def test_a_script_is_priced_with_the_loss_of_the_megatron_lm_that_runs_it(version, stack, memory):
    """An export read back said "fits" of what runs out of memory."""
    priced = ["--stack", stack, "--to", "megatron-lm", "--target-version", version]
    script = run(export, *TIGHT, *priced)
    found = run(check, "--from", "megatron-lm", script.stdout, "--gpu", "h100")
    told = " ".join(found.stdout.split())
    assert memory in told
    assert f"{stack}: the newest Megatron-LM on file" in told
    assert found.exit_code == (version == "0.19")
    named = run(check, "--from", "megatron-lm", script.stdout, "--gpu", "h100", "--stack", "nemo-26.06")
    assert memory in named.stdout
    assert "mcore" not in named.stdout


def test_a_script_that_packs_takes_one_pack_a_micro_batch():
    words = ARGUMENTS.replace("--micro-batch-size 1", "--micro-batch-size 4")
    found = run(check, "--from", "megatron-lm", f"{words} --sft", "--gpu", "h100", "--gpus", "8")
    assert found.exit_code == 1
    assert "packed_micro_batch" in found.stdout
    for other in ("", " --finetune"):
        found = run(check, "--from", "megatron-lm", words + other, "--gpu", "h100", "--gpus", "8")
        assert "packed_micro_batch" not in found.stdout
    shorter = run(check, "--from", "megatron-lm", f"{words} --sft", "--gpu", "h100", "--seq-len", "4096")
    assert "packed_micro_batch" in shorter.stdout


def test_what_is_read_is_not_told_as_unread():
    words = f"{ARGUMENTS} --recompute-activations"
    found = run(check, "--from", "megatron-lm", words, "--gpu", "h100", "--gpus", "8")
    assert "recompute core_attn" in found.stdout
    assert "Not read" not in found.stdout


SIZES = ["--gpus", "8", "--gpu", "h100"]


def test_a_vision_model_is_told_to_lose_its_encoder_and_what_that_saves(tmp_path):
    path = tmp_path / "vision.toml"
    tower = "[encoder]\nnum_layers = 32\nhidden = 1280\nffn_hidden = 5120\nnum_heads = 16\ntokens = 2048\n"
    sizes = "num_layers = 8\nhidden = 1024\nffn_hidden = 4096\nnum_heads = 8\nvocab = 32000\n"
    path.write_text(f'name = "vision"\n{sizes}{tower}')
    given = ["--model", str(path), *SIZES, "--seq-len", "4096", "--global-batch", "64"]
    found = run(export, *given, "--to", "nemo", "--json")
    assert found.exit_code == 0, found.output
    first = json.loads(found.stdout)["notes"][0]
    times = re.fullmatch(
        r"this trains the decoder of vision alone: the encoder in front of it is left out, "
        r"predicted ([\d.]+) (m?s) a step instead of ([\d.]+) \2",
        first,
    )
    assert times, first
    assert float(times[1]) < float(times[3])
