"""What diagnosis finds in the lines of a log: faults, lost steps, stalls, checkpoints, memory, queues."""

from __future__ import annotations

import json
import random

import pytest
from log_cases import DUMP
from written import bridge_lines, megatron_line, megatron_log, memory_line, nemo_line, timers


def test_queues_are_blamed_only_where_something_tells_them(ask, tmp_path):
    """0 is what the plan needs, which exports set; a log of the environment tells what was."""
    plan, log = tmp_path / "plan.toml", tmp_path / "train.log"
    ask(
        *(
            "explain",
            "--model",
            "llama3-8b",
            "--gpus",
            "16",
            "--gpu",
            "h100",
            "--pin",
            "tp=2",
            "--global-batch",
        ),
        *("32", "--pin", "tp_comm_overlap=true", "--pin", "sequence_parallel=true", "--save", str(plan)),
    )

    def findings(text=""):
        log.write_text(text + megatron_log([(step, 1.1) for step in range(1, 30)]))
        _, told = ask("diagnose", str(log), "--plan", str(plan), "--json")
        return {each["id"]: each for each in json.loads(told)["findings"]}

    assert "tp_overlap_failed" not in findings()
    assert "= 8; 1 is needed" in findings("CUDA_DEVICE_MAX_CONNECTIONS=8\n")["tp_overlap_failed"]["evidence"]
    assert "tp_overlap_failed" not in findings("CUDA_DEVICE_MAX_CONNECTIONS=1\n")


def test_a_lost_loss_is_a_fault_and_no_share_of_the_step(ask, tmp_path):
    """What a NaN costs is the training, not 10 % of a step's time."""
    path = tmp_path / "nan.log"
    path.write_text(
        "\n".join(
            megatron_line(step, 2.0, nan=int(step > 27), skipped=int(step > 27)) for step in range(1, 31)
        )
    )
    code, text = ask("diagnose", str(path))
    assert code == 1
    assert text.splitlines()[0] == "The loss is NaN or infinite, or updates are skipped."
    assert "updates are skipped (fault)" in text
    assert "10.0 % of the steps have a loss that is NaN or infinite" in " ".join(text.split())


def test_one_lost_step_is_one_step(ask, tmp_path):
    """Of any framework: the share of steps, the first of them, and the line that tells of a counted kind."""
    lines = [nemo_line(step, 3.2) for step in range(1, 101)]
    lines[60] = lines[60].replace("reduced_train_loss: 11.03", "reduced_train_loss: nan")
    log = tmp_path / "nemo.log"
    log.write_text("\n".join([*lines, "Setting tp_comm_overlap to False: tp is 1"]) + "\n")
    _, text = ask("diagnose", str(log), "--json")
    found = {each["id"]: each for each in json.loads(text)["findings"]}
    assert "1.0 % of the steps" in found["loss_lost"]["evidence"]
    assert found["loss_lost"]["evidence"].endswith("the first is told at step 61.")
    assert found["overlap_switched_off"]["evidence"] == "The log has 1 line of it."
    assert found["overlap_switched_off"]["lines"] == ["Setting tp_comm_overlap to False: tp is 1"]


def test_checkpoints_cost_what_the_lines_after_them_take(ask, tmp_path):
    """Lines that are left out of the step time are not left out of the diagnosis."""
    lines = []
    for step in range(1, 61):
        lines.append(megatron_line(step, 11.2 if step % 10 == 1 and step > 1 else 3.2))
        lines += [f"  successfully saved checkpoint from iteration {step:7d} to /x"] * (step % 10 == 0)
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    _, text = ask("diagnose", str(log), "--json")
    record = json.loads(text)
    found = {each["id"]: each for each in record["findings"]}
    assert record["step_time_s"] == 3.2
    extra = 5 * 8.0 / 60
    assert found["checkpoints"]["ceiling_share"] == pytest.approx(extra / (3.2 + extra), rel=1e-3)


def test_a_loss_scale_that_is_searched_at_the_start_is_no_fault(ask, tmp_path):
    def findings(skipped):
        log = tmp_path / "train.log"
        steps = range(1, 61)
        log.write_text("\n".join(megatron_line(step, 3.2, skipped=int(step in skipped)) for step in steps))
        _, text = ask("diagnose", str(log), "--json")
        return {each["id"]: each["evidence"] for each in json.loads(text)["findings"]}

    assert "loss_lost" not in findings(range(1, 9))
    assert "the first is told at step 30" in findings([*range(1, 9), 30])["loss_lost"]
    assert "100.0 % were skipped" in findings(range(1, 61))["loss_lost"]


def test_a_single_line_is_no_steady_step(ask, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(megatron_log([(1, 30.0)], dump=DUMP))
    _, text = ask("diagnose", str(log), "--gpu", "h100")
    told = " ".join(text.split())
    # "Nothing stands out" was said of a step that took twice what is predicted.
    assert told.startswith("Too early to tell: the only line holds the start of the run too. Ask again after")
    assert "the only line holds the start of the run too: a steady step takes less" in told
    assert "But the only line holds the start" in " ".join(
        ask("compare", str(log), "--gpu", "h100")[1].split()
    )


def test_diagnosis_without_a_plan_uses_the_log_alone(ask, tmp_path):
    path, dice = tmp_path / "bridge.log", random.Random(2)
    lines = [
        line
        for step in range(1, 101)
        for line in bridge_lines(step, dice.gauss(2, 0.004) * (1.5 if step % 10 == 0 else 1), 400.0)
    ]
    path.write_text("\n".join(lines))
    code, text = ask("diagnose", str(path))
    assert code == 0
    assert text.startswith("Regular spikes: garbage collection")
    assert "one every 10 steps" in " ".join(text.split())
    assert "name it with --plan. `advisor check --from megatron-bridge config.yaml" in " ".join(text.split())


@pytest.mark.parametrize(
    ("line", "source"), [(megatron_line, "megatron-lm train.sh"), (nemo_line, "nemo recipe.yaml")]
)
def test_the_way_to_a_plan_is_that_of_the_framework(ask, tmp_path, line, source):
    """Of every log it was Megatron-LM's launch script."""
    path = tmp_path / "train.log"
    path.write_text("\n".join(line(step, 3.2) for step in range(1, 31)) + "\n")
    assert f"`advisor check --from {source} --gpu h100" in " ".join(ask("diagnose", str(path))[1].split())


@pytest.mark.parametrize("every", [8, 0], ids=["regular", "irregular"])
def test_spikes_that_the_data_timer_tells_are_stalls_of_data(ask, tmp_path, every):
    """Workers that fall behind stall every so many steps; without the timer that may be garbage collection."""
    path, dice = tmp_path / "train.log", random.Random(3)
    slow = [step for step in range(2, 100) if (step % every == 0 if every else step in (9, 14, 40, 61, 87))]
    plain, timed = [], []
    for step in range(1, 100):
        stall = 5.0 if step in slow else 0.0
        plain.append(megatron_line(step, dice.gauss(10, 0.03) + stall))
        timed += [plain[-1], *timers({"batch-generator": (0.01 + stall, 0.02 + stall)})]
    path.write_text("\n".join(timed))
    code, text = ask("diagnose", str(path))
    assert code == 0
    assert text.startswith("Steps wait for data: at most")
    assert "Regular spikes" not in text
    assert "Irregular slow steps" not in text
    path.write_text("\n".join(plain))
    _, text = ask("diagnose", str(path))
    assert text.startswith("Regular spikes" if every else "Irregular slow steps")


def test_faults_are_told_by_the_exit_code(ask, tmp_path):
    path = tmp_path / "bad.log"
    lines = ["n1:1:2 [0] NCCL INFO NET/IB : No device found."]
    lines += ["n1:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0"] * 4
    lines += [megatron_line(step, 2.0) for step in range(1, 20)]
    path.write_text("\n".join(lines))
    code, text = ask("diagnose", str(path))
    assert code == 1
    assert text.startswith("NCCL fell back to TCP")
    assert "FI_PROVIDER=efa" in text


def test_memory_at_the_edge(ask, tmp_path):
    path = tmp_path / "edge.log"
    path.write_text(
        megatron_log([(step, 1.0) for step in range(1, 30)], dump=DUMP)
        + memory_line(1, 30, 6e4, 7.6e4, 7.9e4)
    )
    _, text = ask("diagnose", str(path), "--gpu", "h100", "--json")
    assert "memory_edge" in {each["id"] for each in json.loads(text)["findings"]}


def test_a_run_that_was_killed_says_so(ask, tmp_path):
    path = tmp_path / "train.log"
    end = "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    path.write_text(megatron_log([(step, 1.0) for step in range(1, 41)], total=500) + end)
    code, text = ask("diagnose", str(path), "--json")
    faults = [each["id"] for each in json.loads(text)["findings"] if each["severity"] == "fault"]
    assert code == 1
    assert set(faults) == {"ended_early", "out_of_memory"}
    path.write_text(megatron_log([(step, 1.0) for step in range(1, 501)], total=500))
    assert ask("diagnose", str(path))[0] == 0


def test_a_run_that_a_signal_ended_says_so_where_its_last_step_is_unknown(ask, tmp_path):
    """Slurm's oom-kill is the host's memory, and was told as the GPU's, with ways out for that."""
    path = tmp_path / "nemo.log"
    end = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0. Some were killed by the cgroup handler.\n"
    lines = [
        nemo_line(step, 3.2).partition("/99")[0] + nemo_line(step, 3.2).partition("/99")[2]
        for step in range(1, 41)
    ]
    path.write_text("\n".join(lines) + f"\n{end}")
    code, text = ask("diagnose", str(path), "--json")
    (fault,) = [each for each in json.loads(text)["findings"] if each["severity"] == "fault"]
    assert code == 1
    assert fault["id"] == "ended_early"
    assert "step 40 is the last; how many were planned is not said" in fault["evidence"]
    assert fault["lines"] == [end.strip()]


def test_a_kernel_that_failed_is_named_without_a_traceback(ask, tmp_path):
    """Nothing stood out where only C++ or NCCL's watchdog told it."""
    path = tmp_path / "train.log"
    end = "  what():  CUDA error: an illegal memory access was encountered\n"
    path.write_text(megatron_log([(step, 1.0) for step in range(1, 41)], total=500) + end)
    code, text = ask("diagnose", str(path), "--json")
    (fault,) = [each for each in json.loads(text)["findings"] if each["severity"] == "fault"]
    assert code == 1
    assert fault["id"] == "kernel_fault"
    assert "step 40 is the last" in fault["evidence"]
    assert "CUDA_LAUNCH_BLOCKING=1" in fault["do"]
    assert fault["lines"] == [end.strip()]
    path.write_text(end)
    assert "ends before the first iteration: kernel fault" in ask("diagnose", str(path))[1]


def test_memory_that_ran_out_is_not_cured_by_what_takes_more(ask, tmp_path):
    """A micro-batch of 2 was expected to be quicker, and told as the cure."""
    plan, log = tmp_path / "plan.toml", tmp_path / "train.log"
    asked = (
        "--model",
        "llama3-8b",
        "--gpus",
        "8",
        "--gpu",
        "h100",
        "--global-batch",
        "64",
        "--seq-len",
        "4096",
    )
    ask("predict", *asked, "--tp", "4", "--sequence-parallel", "--save", str(plan))
    log.write_text(
        megatron_log([(step, 2.0) for step in range(1, 30)]) + "torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    _, text = ask("diagnose", str(log), "--plan", str(plan), "--json")
    (fault,) = [each for each in json.loads(text)["findings"] if each["id"] == "out_of_memory"]
    assert "micro_batch" in fault["knobs"]
    assert fault["expected"] is None or fault["expected"]["delta_memory_gib"] < 0
