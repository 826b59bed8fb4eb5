"""Bad input to `advisor run` is one line and exit code 2, told before anything is measured."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from run_process import advisor_run, refused

from advisor.cli import advisor
from advisor.rules import everywhere
from advisor.run_plan import as_processor, check_processes, prepare
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile, load_plan_file, save_plan_file
from costmodel.workload import Workload
from executor import devices
from executor import run as executor_run
from executor.resolve import Here
from hardware_db import load_cluster


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--model", "tiny-gtp"], "tiny-gpt"),
        (["--model", "tiny-gpt", "--gpus", "0"], "--gpus 0"),
        (["--model", "tiny-gpt", "--gpus", "-1"], "--gpus -1"),
        (["--model", "tiny-gpt", "--gpus", "100000"], "--gpus 100000"),
        (["--model", "tiny-gpt", "--gpu", "h100"], "--gpu local"),
        (["--model", "tiny-gpt", "--seq-len", "0"], "--seq-len 0"),
        (["--model", "tiny-gpt", "--global-batch", "0"], "--global-batch 0"),
        (["--model", "tiny-gpt", "--pin", "tpp=2"], "tp"),
        (["--model", "tiny-gpt", "--steps", "0"], "--steps"),
        (["no-such-plan.toml"], "no-such-plan.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(tmp_path, arguments, part):
    assert part in refused(advisor_run(tmp_path, *arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["plan.toml", "--pin", "tp=2"], "--pin beside the plan plan.toml"),
        (["plan.toml", "--seq-len", "64", "--gpus", "4"], "--seq-len, --gpus beside the plan"),
        (["plan.toml", "--model", "tiny-gpt"], "--model beside the plan"),
        (["plan.toml", "--slurm", "--pin", "tp=2"], "--pin beside the plan"),
        (["plan.toml", "--slurm", "--nodes", "2", "--trace", "t.json"], "--nodes, --trace beside --slurm"),
        (["--slurm", "--print-only", "--gpu", "b200"], "--gpu beside --slurm"),
        (["--gpus", "4", "--pin", "tp=2"], "Try --model tiny-gpt"),
        (["--resume-measure", "x", "--steps", "50"], "--steps beside --resume-measure"),
        (["--resume-measure", "x", "--pin", "tp=2", "--data", "y"], "--pin, --data beside --resume-measure"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_that_would_be_left_aside_is_refused(tmp_path, arguments, part):
    assert part in refused(advisor_run(tmp_path, *arguments))


@pytest.mark.parametrize("given", ["abc", "nan", "-1", "0", "inf"])
@pytest.mark.skipif(executor_run.missing_software() is not None, reason="needs torch and megatron-core")
def test_a_patience_that_is_no_time_is_refused_before_anything_runs(tmp_path, monkeypatch, given):
    monkeypatch.setenv("ADVISOR_PATIENCE", given)
    text = refused(advisor_run(tmp_path, "--model", "tiny-gpt"))
    assert f"ADVISOR_PATIENCE={given} is not a number of seconds above 0. Try" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "calibrate"])
@pytest.mark.skipif(executor_run.missing_software() is not None, reason="needs torch and megatron-core")
def test_threads_that_are_no_number_are_refused_before_anything_is_written(tmp_path, monkeypatch, command):
    """An empty record or folder of a measurement was left."""
    from click.testing import CliRunner

    from advisor.cli import advisor

    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "abc")
    done = CliRunner().invoke(advisor, [command, *(["--model", "tiny-gpt"] if command == "run" else [])])
    assert "OMP_NUM_THREADS=abc is not a number of threads" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_plan_file_is_one_line(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("tp = [")
    assert "broken.toml" in refused(advisor_run(tmp_path, str(broken)))


def test_a_plan_for_a_cluster_is_not_run_here(tmp_path):
    plan = tmp_path / "plan.toml"
    wanted = ["explain", "--model", "8b", "--gpus", "64", "--gpu", "h100", "--save"]
    made = subprocess.run(
        [sys.executable, "-c", "from advisor.cli import main; main()", *wanted, str(plan)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    text = refused(advisor_run(tmp_path / "home", str(plan)))
    if (os.cpu_count() or 1) < 16:
        assert "64 processes" in text
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("knobs", "part"),
    [
        ({"micro_batch": 3}, "not a multiple of micro_batch x dp"),
        ({"vpp": 3}, "so it is not run: vpp = 3 with pp = 1"),
        ({"tp": 3, "dp": 1}, "--tp 3 does not divide"),
        ({"recompute": "full", "recompute_num_layers": 99}, "recompute_num_layers"),
    ],
    ids=str,
)
@pytest.mark.skipif(executor_run.missing_software() is not None, reason="needs torch and megatron-core")
def test_a_plan_that_breaks_a_rule_is_refused_before_anything_is_measured(tmp_path, knobs, part):
    """It measured the machine for 12 s and then told that the batch does not divide, or trained with 3 chunks as 1."""
    path, home = tmp_path / "plan.toml", tmp_path / "home"
    plan = Plan(**({"dp": 2} | knobs))
    save_plan_file(path, PlanFile("tiny-gpt", Workload(256, 8), "dgx-h100", plan.world, plan))
    done = advisor_run(home, str(path), "--steps", "1", "--warmup", "0")
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert part in line
    assert not home.exists()


@pytest.mark.parametrize(
    ("pin", "part"),
    [
        ("tp=3", "--gpus 2 does not fit tp=3"),
        ("micro_batch=3", "leaves no legal plan of tiny-gpt"),
        ("ep=2", "the model has no experts"),
        ("precision=fp8-cs", "--pin precision=fp8-cs needs Transformer Engine on a CUDA device"),
    ],
)
@pytest.mark.skipif(executor_run.missing_software() is not None, reason="needs torch and megatron-core")
@pytest.mark.skipif(executor_run.has_cuda(), reason="GPUs are known without being measured")
def test_a_request_without_a_legal_plan_is_refused_before_anything_is_measured(tmp_path, pin, part):
    """It measured the machine for 12 s first, and for minutes where others compute beside it."""
    home = tmp_path / "home"
    done = advisor_run(home, "--model", "tiny-gpt", "--gpus", "2", "--pin", pin)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert part in line
    assert "cuda_graph" not in line  # which the user did not pin
    assert not home.exists()


def test_rules_see_this_processor_as_its_profile_says_it_is(tmp_path):
    from planted_machine import planted

    import hardware_db
    from advisor.rules.model_words import machine_words
    from executor.local_profile import profile, write_profile

    path = tmp_path / "mine.toml"
    write_profile(path, profile(planted(), 2))
    measured = hardware_db.load_cluster(str(path))
    stands = machine_words(as_processor(load_cluster("dgx-h100")), 2)
    # How it is called, and its memory, which only measuring tells.
    own = {"gpu": measured.gpu.title, "device_gib": measured.gpu.get("hbm_capacity_usable") // 2**30}
    assert stands | own == machine_words(measured, 2)


def test_rules_of_every_machine_are_none_of_a_gpu_or_a_release():
    names = {rule.id for rule in everywhere(load_cluster("dgx-h100"))}
    assert {"batch_divides", "heads_over_tp", "vpp_needs_pp"} <= names
    assert not names & {"tp_overlap_beyond_domain", "fp8_generation", "dispatch_link", "world"}


@pytest.mark.parametrize("missing", ["torch", "megatron"])
def test_missing_software_is_one_line(tmp_path, missing):
    finder = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    text = refused(advisor_run(tmp_path, "--model", "tiny-gpt", before=finder))
    assert "pip install 'advisor[run]'" in text


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    done = advisor_run(occupied / "home", "--model", "tiny-gpt")
    assert done.returncode == 2
    error = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    assert len(error) == 1
    assert str(occupied) in error[0]
    assert "permissions" in error[0]


@pytest.mark.parametrize("processes", [-1, 0, 10**6])
def test_processes_have_bounds(processes):
    with pytest.raises(ValueError, match="Try --model tiny-gpt --gpus 2"):
        check_processes(processes, f"--gpus {processes}")


def test_calibrate_is_told_a_way_out_that_it_has(tmp_path):
    """It was told to try --model, an option of `run`."""
    from click.testing import CliRunner

    from advisor.cli import advisor

    asked = ["calibrate", "--gpus", "100000", "-o", str(tmp_path / "a.toml")]
    with pytest.raises(ValueError, match=r"runs 1 to .*Try --gpus 1,"):
        CliRunner().invoke(advisor, asked, catch_exceptions=False)


def test_more_ranks_than_gpus_take_are_told_as_ranks(monkeypatch):
    """Two GPUs that eight ranks each may share were told as 16 GPUs; ranks of several nodes share none."""
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    monkeypatch.setenv("ADVISOR_SHARE_GPUS", "1")
    machine = Here(cuda=True, te=False, apex=False)
    check_processes(16, "--gpus 16", {}, machine)
    with pytest.raises(ValueError, match=r"^--gpus 17 needs 17 processes, .* runs 1 to 16 on its GPUs\."):
        check_processes(17, "--gpus 17", {}, machine)
    with pytest.raises(ValueError, match=r"needs 3 processes, .* runs 1 to 2 on its GPUs\."):
        check_processes(6, "--gpus 6", {"nodes": 2}, machine)


def test_devices_are_asked_without_torch():
    assert isinstance(executor_run.has_cuda(), bool)
    code = "import sys; from executor.run import has_cuda; has_cuda(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_a_named_profile_tells_what_was_uncertain_when_it_was_measured(tmp_path):
    from planted_machine import planted

    from advisor.run_plan import machine
    from executor.local_profile import profile, write_profile
    from executor.resolve import Here

    path = tmp_path / "mine.toml"
    write_profile(path, profile(planted(), 2) | {"warnings": ["other work ran"]})
    _, warnings = machine(2, {"profile": str(path)}, Here(), print)
    assert warnings == ["other work ran (when the profile was measured; `advisor calibrate` measures again)"]


@pytest.mark.skipif(executor_run.missing_software() is not None, reason="needs torch and megatron-core")
@pytest.mark.skipif(executor_run.has_cuda(), reason="GPUs have FP8")
def test_a_plan_file_is_told_how_it_takes_an_option_that_run_has_not(tmp_path):
    """It said --precision fp32: an option of other commands, and a format of which the plan's GPUs have no rate."""
    path = tmp_path / "plan.toml"
    plan = Plan(dp=2, precision="fp8-cs", fp8_param_gather=True)
    save_plan_file(path, PlanFile("tiny-gpt", Workload(256, 8), "dgx-h100", 2, plan))
    (line,) = advisor_run(tmp_path / "home", str(path)).stderr.splitlines()
    way = "--precision bf16 --no-fp8-param-gather"
    assert f"Try {way}. `advisor predict {path} ... --save other.toml` writes" in line
    other = tmp_path / "other.toml"
    changed = CliRunner().invoke(advisor, ["predict", str(path), *way.split(), "--save", str(other)])
    assert changed.exit_code == 0  # with --precision alone, the plan broke a rule
    assert load_plan_file(other).plan.precision == "bf16"


@pytest.mark.parametrize(
    ("model", "seq_len", "gib", "part", "way"),
    [
        ("70b", 256, 4.0, "a process has 4.0 GiB, TP2 mbs1 fp32 needs least, 533.", "Try a smaller model"),
        (
            "tiny-gpt",
            16384,
            0.7,
            "a process has 0.7 GiB, TP2 mbs1 fp32 needs least, 1.0 GiB",
            "Try --pin recompute=full",
        ),
    ],
)
@pytest.mark.skipif(executor_run.missing_software() is not None, reason="needs torch and megatron-core")
def test_a_model_that_does_not_fit_is_told_in_numbers(tmp_path, model, seq_len, gib, part, way):
    """It said `does not fit this machine's memory`: neither what there is nor by how much it misses."""
    from planted_machine import planted

    from advisor.plan_faults import PlanError
    from executor.local_profile import profile, write_profile

    document = profile(planted(), 2)
    document["gpu"]["hbm_capacity_usable"]["value"] = gib
    write_profile(tmp_path / "mine.toml", document)
    options = {"model": model, "gpus": 2, "gpu": "local", "pin": (), "seq_len": seq_len, "global_batch": None}
    options |= {"profile": str(tmp_path / "mine.toml"), "nodes": None, "recalibrate": False}
    with pytest.raises(PlanError) as refusal:
        prepare(None, options, Here(), print)
    assert part in str(refusal.value)
    assert way in str(refusal.value)
    if "--pin" in way:  # the way out leads there
        prepare(None, options | {"pin": ("recompute=full",)}, Here(), print)


def test_an_empty_dataset_is_told_before_ranks_start(tmp_path):
    """It ended in a rank, whose line had no subject: `rank 0 failed: is not an indexed dataset that reads`."""
    for ending in ("bin", "idx"):
        (tmp_path / f"text.{ending}").touch()
    with pytest.raises(ValueError, match=r"--data .*: .*text\.bin is empty\. Write the dataset anew"):
        executor_run.check_data(str(tmp_path / "text"))
