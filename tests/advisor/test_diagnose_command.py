"""advisor diagnose and compare on logs: the whole way from a written log to the answer."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from executor.diagnose import table

sys.path.insert(0, str(Path(__file__).parents[1] / "executor" / "logs"))
from written import bridge_lines, megatron_line, megatron_log, memory_line, nemo_line, timers

DUMP = "llama3-8b-tp2-pp2-vpp2-dp4"


@pytest.fixture
def ask():
    """Runs a command; gives its exit code and what it printed, or the error."""

    def _ask(*words):
        result = CliRunner().invoke(advisor, list(words))
        if isinstance(result.exception, ValueError):
            return 2, str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result.exit_code, result.output

    return _ask


@pytest.fixture
def predicted(ask, tmp_path):
    """The prediction of the dump's plan on H100s: step and leaves of the time tree. [s]"""
    path = tmp_path / "probe.log"
    path.write_text(megatron_log([(step, 1.0) for step in range(1, 12)], dump=DUMP))
    _, text = ask("compare", str(path), "--gpu", "h100", "--json")
    return json.loads(text)["prediction"]


def leaves(term):
    """Name -> seconds."""
    if not term["parts"]:
        return {term["name"]: term["seconds"]}
    return {name: value for part in term["parts"] for name, value in leaves(part).items()}


def log_as_predicted(predicted, tmp_path, *, name="train.log", extra=None, times=None):
    """A log whose steps take what is predicted, with timers as predicted, but for `extra` seconds of some timers."""
    told, dice = leaves(predicted["terms"]), random.Random(4)
    extra = extra or {}
    forward = sum(value for key, value in told.items() if key.startswith("forward_")) + told["vocabulary"] / 3
    backward = (
        sum(value for key, value in told.items() if key.startswith("backward_")) + told["vocabulary"] * 2 / 3
    )
    forward += (
        told["launch_gaps"] * 13.5 / 30.5 + told["dp_gather"]
    )  # which overlaps, and is waited for there
    backward += told["launch_gaps"] * 17 / 30.5
    pipeline = sum(
        told[name]
        for name in ("pipeline_bubble", "pipeline_send_recv", "pipeline_starts", "schedule_correction")
    )
    seconds = {
        "forward-compute": forward + extra.get("forward-compute", 0),
        "backward-compute": backward,
        "all-grads-sync": told["dp_gradients"] + extra.get("all-grads-sync", 0),
        "optimizer": told["optimizer_step"] + extra.get("optimizer", 0),
    }
    whole = sum(seconds.values()) - seconds["optimizer"] + pipeline
    seconds["forward-backward"] = whole
    step = predicted["step_time_s"] + sum(extra.values())
    lines = [megatron_log([(1, 20.0)], dump=DUMP)]
    for number in range(2, 60):
        lines.append(megatron_line(number, step * dice.gauss(1, 0.002)))
        lines += timers({key: (0.98 * value, value) for key, value in seconds.items()})
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_as_predicted_has_no_gap_and_no_findings(ask, predicted, tmp_path):
    path = log_as_predicted(predicted, tmp_path)
    code, text = ask("compare", str(path), "--gpu", "h100", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["verdict"] == "inside the interval"
    for row in found["rows"]:
        assert row["verdict"] in ("as predicted", "inside the interval"), row
    code, text = ask("diagnose", str(path), "--gpu", "h100", "--json")
    assert code == 0
    assert not [each for each in json.loads(text)["findings"] if each["measured"]]
    assert ask("diagnose", str(path), "--gpu", "h100")[1].startswith("Nothing measured stands out")


@pytest.mark.parametrize(
    ("timer", "row", "rule"),
    [
        ("all-grads-sync", "gradient reduction, exposed", "dp_overlap_failed"),
        ("optimizer", "optimizer", "optimizer_slow"),
        ("forward-compute", "forward compute", "compute_slow"),
    ],
)
def test_a_planted_loss_is_blamed(ask, predicted, tmp_path, timer, row, rule):
    """Half a step more in one timer: that term is to blame, for all of the gap, and diagnosis says why."""
    more = 0.5 * predicted["step_time_s"]
    path = log_as_predicted(predicted, tmp_path, extra={timer: more})
    _, text = ask("compare", str(path), "--gpu", "h100", "--json")
    found = json.loads(text)
    assert found["verdict"] == "slower than the interval"
    assert found["blame"]["term"] == row
    assert found["blame"]["excess_s"] == pytest.approx(more, rel=0.02)
    assert found["blame"]["share_of_gap"] == pytest.approx(1, abs=0.05)
    assert found["blame"]["ceiling_share"] == pytest.approx(more / (1.5 * predicted["step_time_s"]), rel=0.05)
    _, text = ask("diagnose", str(path), "--gpu", "h100", "--json")
    findings = json.loads(text)["findings"]
    assert findings[0]["id"] == rule
    assert findings[0]["ceiling_share"] >= 0.9 * found["blame"]["ceiling_share"]


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_gather_stands_in_the_timer_that_waits_for_it(predicted, overlaps):
    """Overlapped it is waited for in the next forward pass, else inside the optimizer's timer."""
    from executor.logs.compare import timer_rows
    from executor.logs.record import Iteration, Log, Timer
    from executor.logs.summary import steady

    told, slow = (
        leaves(predicted["terms"]),
        ("forward-backward", "forward-compute", "backward-compute", "optimizer"),
    )
    log = Log("x", iterations=[Iteration(step, 1.0) for step in range(1, 12)])
    log.timers = {name: [Timer(step, None, 0.1) for step in range(1, 12)] for name in slow}
    asked = predicted | {"knobs": predicted["knobs"] | {"overlap_param_gather": overlaps}}
    rows = {row.name: row.predicted for row in timer_rows(asked, log, steady(log))}
    other = {row.name: row.predicted for row in timer_rows(predicted, log, steady(log))}
    name = "optimizer" if overlaps else "optimizer and parameter gather"
    assert rows[name] == pytest.approx(told["optimizer_step"] + (0 if overlaps else told["dp_gather"]))
    moved = 0 if overlaps else told["dp_gather"]
    assert other["forward compute"] - rows["forward compute"] == pytest.approx(moved)
    assert sum(rows.values()) == pytest.approx(predicted["step_time_s"])


def test_the_terms_sum_to_the_step_on_both_sides(ask, predicted, tmp_path):
    path = log_as_predicted(predicted, tmp_path, extra={"optimizer": 0.1})
    _, text = ask("compare", str(path), "--gpu", "h100", "--json")
    rows = json.loads(text)["rows"]
    terms = [row for row in rows[2:] if row["unit"] == "s"]
    for side in ("predicted", "measured"):
        assert sum(row[side] for row in terms) == pytest.approx(rows[0][side], rel=1e-3)


def test_a_log_with_a_plan_file_in_either_order(ask, tmp_path):
    plan, log = tmp_path / "plan.toml", tmp_path / "nemo.log"
    code, _ = ask(
        *("explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--global-batch", "512"),
        *("--save", str(plan)),
    )
    assert code == 0
    log.write_text("\n".join(nemo_line(step, 12.34) for step in range(1, 40)))
    one, other = ask("compare", str(plan), str(log)), ask("compare", str(log), str(plan))
    assert one == other
    assert "12.34 s a step measured" in one[1]
    assert "No term can be blamed" in one[1]


def test_a_batch_that_ramps_up_is_predicted_as_its_last_steps_train(ask, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(megatron_log([(step, 1.0) for step in range(1, 30)], dump=DUMP, batch=64))
    _, text = ask("compare", str(log), "--gpu", "h100", "--json")
    found = json.loads(text)
    assert found["prediction"]["workload"]["global_batch"] == 64
    assert not found["another_run"]
    assert any("its arguments say 32" in note for note in found["notes"])


def test_options_leave_batch_and_ranks_to_the_log(ask, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(megatron_log([(step, 2.0) for step in range(1, 30)], batch=64))
    _, text = ask("compare", str(log), "--model", "8b", "--gpu", "h100", "--json")
    found = json.loads(text)
    assert found["prediction"]["workload"]["global_batch"] == 64
    assert found["prediction"]["gpus"] == 16
    assert not found["another_run"]
    assert "By the log: 64 sequences a step, 16 ranks." in found["notes"]
    _, text = ask("compare", str(log), "--model", "8b", "--gpu", "h100", "--gpus", "8", "--json")
    assert json.loads(text)["another_run"] == ["16 ranks (plan: 8)"]


def test_another_batch_is_another_run(ask, tmp_path):
    """Its times do not compare, which comes first; its tokens are those of its own batch."""
    log = tmp_path / "train.log"
    log.write_text(megatron_log([(step, 1.0) for step in range(1, 30)], dump=DUMP, batch=64))
    words = ("compare", str(log), "--gpu", "h100", "--global-batch", "32")
    _, text = ask(*words)
    told = " ".join(text.split())
    assert told.startswith("The log is of another run than the plan: 64 sequences a step (plan: 32).")
    assert "the prediction is of another step" in told
    assert "To blame" not in told
    _, text = ask("diagnose", *words[1:])
    assert " ".join(text.split()).startswith("The log is of another run than the plan: 64 sequences")
    _, text = ask(*words, "--json")
    rows = {row["name"]: row for row in json.loads(text)["rows"]}
    assert rows["tokens/s/GPU"]["measured"] == pytest.approx(64 * 4096 / 16)


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
    assert told.startswith("Nothing stands out")
    assert "the only line holds the start of the run too: a steady step takes less" in told
    assert "But the only line holds the start" in " ".join(
        ask("compare", str(log), "--gpu", "h100")[1].split()
    )


def test_a_log_of_another_plan_is_told(ask, tmp_path):
    plan, log = tmp_path / "plan.toml", tmp_path / "train.log"
    ask(
        *("explain", "--model", "llama3-8b", "--gpus", "16", "--gpu", "h100", "--global-batch", "32"),
        *("--pin", "tp=4", "--save", str(plan)),
    )
    log.write_text(megatron_log([(step, 1.0) for step in range(1, 30)], dump=DUMP))
    _, text = ask("compare", str(plan), str(log))
    told = " ".join(text.split())
    assert "the log shows another plan: tp 2 (plan: 4)" in told
    assert told.startswith("The log is of another run than the plan:")
    assert "tp 2 (plan: 4)" in told.partition(" do not compare")[0]


def test_two_logs_are_compared_as_runs(ask, tmp_path):
    paths = []
    for name, seconds in (("a.log", 2.0), ("b.log", 1.6)):
        paths.append(tmp_path / name)
        paths[-1].write_text(megatron_log([(step, seconds) for step in range(1, 30)], dump=DUMP))
    code, text = ask("compare", *map(str, paths), "--gpu", "h100")
    assert code == 0
    assert text.startswith(
        "B is 25.0 % faster than A: 1.600 s a step measured against 2.000 s a step measured"
    )


def test_two_logs_of_an_unknown_machine_are_compared_by_what_was_measured(ask, tmp_path):
    """Their arguments show the plan; only --gpu is missing, which is what to give."""
    paths = []
    for name, seconds in (("a.log", 2.0), ("b.log", 1.6)):
        paths.append(str(tmp_path / name))
        (tmp_path / name).write_text(megatron_log([(step, seconds) for step in range(1, 30)], dump=DUMP))
    code, text = ask("compare", *paths)
    assert code == 0
    told = " ".join(text.split())
    assert told.startswith("B is 25.0 % faster than A: 1.600 s a step measured against 2.000 s")
    assert "No machine is named (--gpu or --cluster), so no term is compared" in told
    plain = tmp_path / "plain.log"
    plain.write_text(megatron_log([(step, 2.0) for step in range(1, 30)]))
    told = " ".join(ask("compare", paths[0], str(plain))[1].split())
    assert "B does not show the plan that ran" in told


def test_two_logs_without_plans_are_compared_by_what_was_measured(ask, tmp_path):
    """NeMo prints no plan; before and after a change are worth comparing all the same."""
    paths, dice = [], random.Random(5)
    for name, seconds in (("before.log", 10.0), ("after.log", 9.0)):
        paths.append(str(tmp_path / name))
        lines = [nemo_line(step, dice.gauss(seconds, 0.01)) for step in range(1, 31)]
        (tmp_path / name).write_text("\n".join(lines))
    code, text = ask("compare", *paths)
    assert code == 0
    told = " ".join(text.split())
    assert told.startswith("B is 11.")
    assert "more than the scatter of their steps" in told
    assert "Neither log shows the plan that ran" in told
    record = json.loads(ask("compare", *paths, "--json")[1])
    assert record["a"]["step_time_s"] == pytest.approx(10.0, rel=0.01)
    assert "far above" not in told
    slow = tmp_path / "slow.log"
    slow.write_text("\n".join(nemo_line(step, 9.0 if step % 7 else 18.0) for step in range(1, 60)))
    told = " ".join(ask("compare", paths[0], str(slow))[1].split())
    assert "B has 8 steps far above that, which add 1" in told  # the median alone would hide them
    half = tmp_path / "half.log"
    half.write_text("\n".join(nemo_line(step, 9.0, global_batch_size=256.0) for step in range(1, 31)))
    assert "a sequence measured against" in ask("compare", paths[0], str(half))[1]
    dumped = tmp_path / "dumped.log"
    dumped.write_text(megatron_log([(step, 1.0) for step in range(1, 30)], dump=DUMP))
    assert "B does not show" in " ".join(ask("compare", str(dumped), paths[0], "--gpu", "h100")[1].split())


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
    assert "name it with --plan. `advisor check --from" in " ".join(text.split())


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


def test_a_bridge_log_without_ranks_is_predicted_on_the_gpus_that_its_work_tells(ask, tmp_path):
    """Megatron-Bridge prints no world size: micro-batches tell the replicas, else the FLOP/s of a GPU do."""
    pytest.importorskip("yaml")
    path = tmp_path / "bridge.log"
    path.write_text(YAML + "\n".join(line for step in range(1, 20) for line in bridge_lines(step, 9.9, 1.0)))
    probe = json.loads(ask("compare", str(path), "--gpu", "h100", "--gpus", "16", "--json")[1])["prediction"]
    seconds, rate = probe["step_time_s"], probe["model_tflops_per_gpu"]

    def asked(lines, rate):
        lines += [line for step in range(1, 20) for line in bridge_lines(step, seconds, rate, batch=128)]
        path.write_text(YAML + "\n".join(lines))
        return json.loads(ask("compare", str(path), "--gpu", "h100", "--json")[1])

    by_rate = asked([], 1.04 * rate)  # another convention of counting
    assert by_rate["prediction"]["gpus"] == 16
    assert any("FLOP/s of a GPU that it prints make 16" in note for note in by_rate["notes"])
    counted = asked(["setting number of microbatches to constant 32"], 3.3 * rate)
    assert counted["prediction"]["gpus"] == 2 * 128 // 32
    assert (
        asked([], 2.6 * rate)["prediction"]["gpus"] == 2
    )  # 6.2 GPUs are no number of replicas: nothing is guessed


def test_a_configuration_that_cannot_be_read_costs_the_prediction_and_not_the_diagnosis(ask, tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "torn.log"
    lines = [line for step in range(1, 20) for line in bridge_lines(step, 9.9, 500.0, batch=128)]
    path.write_text(YAML.replace("num_layers: 32", "num_layers: [32") + "\n".join(lines))
    code, text = ask("diagnose", str(path), "--gpu", "h100")
    assert code == 0
    assert "configuration cannot be read, so nothing is predicted" in " ".join(text.split())
    code, text = ask("compare", str(path), "--gpu", "h100")
    assert code == 2
    assert f"Name the plan that ran: `advisor compare PLAN {path}`." in text


def test_a_log_that_contradicts_its_own_dump_names_no_plan_and_infers_nothing(ask, tmp_path):
    path = tmp_path / "train.log"
    text = megatron_log([(step, 30.0) for step in range(1, 30)], dump=DUMP)
    path.write_text(text)
    assert "slower than the prediction" in ask("diagnose", str(path), "--gpu", "h100")[1]
    path.write_text(text.replace("(0, 0, 0): ", "(0, 0, 0): 1"))
    told = " ".join(ask("diagnose", str(path), "--gpu", "h100")[1].split())
    assert told.startswith("The plan read from the log does not agree with the log's other lines: ")
    assert "name the model (--model) or the plan that ran" in told
    assert "slower than the prediction" not in told


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


def test_a_trace_alone_and_beside_a_log(ask, tmp_path, predicted):
    trace = tmp_path / "trace.json"
    step = predicted["step_time_s"] * 1e6
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "ts": 0, "dur": step, "args": {}}
    ]
    for name, at, dur, stream, group in (
        ("nvjet_tst_1", 0.0, 0.6, 7, ""),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING", 0.55, 0.3, 20, "DATA_PARALLEL_GROUP_WITH_CP"),
        ("void layer_norm_kernel", 0.85, 0.1, 7, ""),
    ):
        args = {"device": 0, "stream": stream} | ({"Process Group Description": group} if group else {})
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "ts": at * step, "dur": dur * step, "args": args}
        )
    trace.write_text(json.dumps({"traceEvents": events}))
    code, text = ask("diagnose", str(trace))
    assert code == 0
    assert "exposed communication 25.0 %" in " ".join(text.split())
    log = log_as_predicted(predicted, tmp_path)
    _, text = ask("diagnose", str(log), "--gpu", "h100", "--trace", str(trace), "--json")
    first = json.loads(text)["findings"][0]
    assert first["id"] == "dp_overlap_failed"
    assert first["ceiling_share"] == pytest.approx(0.25, abs=0.01)


def test_a_trace_without_marks_is_counted_by_its_log(ask, tmp_path, predicted):
    """Alone its window is taken as one step, which is said; beside a log its steps are known."""
    step = predicted["step_time_s"]
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at * step * 1e6, "dur": step * 9e5, "args": {}}
        for at in range(3)
    ]
    trace, plan = tmp_path / "trace.json", tmp_path / "plan.toml"
    trace.write_text(json.dumps({"traceEvents": events}))
    ask(
        *("explain", "--model", "llama3-8b", "--gpus", "16", "--gpu", "h100", "--global-batch", "32"),
        *("--save", str(plan)),
    )
    alone = json.loads(ask("compare", str(plan), str(trace), "--json")[1])
    assert "But the trace marks no steps" in alone["text"]
    assert alone["blame"] is None
    words = ("compare", str(log_as_predicted(predicted, tmp_path)), "--gpu", "h100", "--trace", str(trace))
    beside = json.loads(ask(*words, "--json")[1])
    kernels = {row["name"]: row["measured"] for row in beside["trace_rows"]}
    assert kernels["linear kernels"] == pytest.approx(0.9 * step)
    assert any("its window holds 3" in note for note in beside["notes"])
    assert not any("not the same run" in text for text in beside["warnings"])
    trace.write_text(json.dumps({"traceEvents": [events[2] | {"dur": step * 3e5}]}))
    found = json.loads(ask(*words, "--json")[1])
    assert any("likely not the same run" in text for text in found["warnings"])


def test_the_record_of_a_run(ask, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    steps = [
        {
            "step": step,
            "seconds": 0.5 + (0.4 if step < 3 else 0.0),
            "loss": 6.0,
            "warmup": step < 3,
            "phases": {},
        }
        for step in range(20)
    ]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)) + '\n{"step": 20, "sec')
    code, text = ask("diagnose", str(folder), "--json")
    found = json.loads(text)
    assert code == 0
    assert found["framework"] == "advisor run"
    assert found["step_time_s"] == 0.5


def test_a_model_that_cannot_be_costs_the_prediction_and_not_the_diagnosis(ask, tmp_path):
    """Where the log is at fault, not the options: those are refused."""
    path = tmp_path / "torn.log"
    text = megatron_log([(step, 1.0 + 0.01 * (step % 3)) for step in range(1, 20)], dump=DUMP)
    torn = re.sub(r"(?m)^(\s+num_layers \.+ )\d+", r"\1lots", text)
    assert torn != text
    path.write_text(torn)
    code, said = ask("diagnose", str(path), "--gpu", "h100")
    assert code == 0
    assert "cannot be read, so nothing is predicted: num_layers 'lots'" in " ".join(said.split())
    code, said = ask("compare", str(path), "--gpu", "h100")
    assert code == 2
    assert "Name the plan that ran" in said
    path.write_text(text)
    code, said = ask("diagnose", str(path), "--gpu", "h100", "--gpus", "7")
    assert code == 2
    assert said.startswith("--gpus 7 does not fit")


def test_a_record_tells_what_its_ranks_waited_for(ask, predicted, tmp_path):
    """Waiting for cores and for other ranks are findings of their own; one step time and the record's warnings."""
    folder, seconds = tmp_path / "run", [1.5, 1.6, 1.7, 1.8]
    folder.mkdir()
    steps = [{"step": number, "warmup": False, "seconds": each} for number, each in enumerate(seconds)]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")
    (folder / "prediction.json").write_text(json.dumps(predicted))
    measured = {
        "step_time_s": 1.6,  # the lower of the two in the middle, whose phases are told
        "spread": 0.07,
        "num_steps": 4,
        "tokens_per_second_per_gpu": 5000.0,
        "phases": {"forward": 0.3, "backward": 0.5, "communication": 0.7, "optimizer": 0.02},
        "queued_s": 0.48,
        "peak_memory_bytes": [],
    }
    comparison = {"measured": measured, "warnings": ["ranks waited for a core 30% of a step"]}
    (folder / "comparison.json").write_text(json.dumps(comparison))
    _, text = ask("diagnose", str(folder), "--json")
    found = json.loads(text)
    ids = {each["id"]: each for each in found["findings"]}
    assert ids["cores_shared"]["ceiling_share"] == pytest.approx(0.3)
    assert "30.0 % of the step of 1.6 s" in ids["cores_shared"]["evidence"]
    assert "take 700 ms of a step of 1.6 s" in ids["ranks_wait"]["evidence"]
    assert "The step takes 1.6 s" in ids["slower_than_predicted"]["evidence"]
    assert "ranks waited for a core 30% of a step" in found["warnings"]
    assert "warning: ranks waited for a core 30%" in ask("compare", str(folder))[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("diagnose", "nowhere.log"), "is no file"),
        (("compare", "{plan}"), "name what to compare it with"),
        (("compare", "{dumped}"), "give --gpu"),
        (("compare", "{plain}"), "does not show the plan"),
        (("compare", "{plain}", "--gpu", "h100"), "does not show the plan"),
        (("compare", "{plan}", "{plan}", "--gpu", "h100"), "go with a log"),
        (("diagnose", "{plain}", "--trace", "{plain}"), "not the whole JSON"),
        (("compare", "{plan}", "{binary}"), "is binary"),
        (("compare", "{plan}", "{empty}"), "is empty"),
        (("diagnose", "{other}"), "no training log"),
        (("diagnose", "{plain}", "--gpu", "h100x"), "Did you mean h100"),
    ],
)
def test_errors_in_one_line(ask, tmp_path, words, said):
    files = {name: tmp_path / name for name in ("plan", "dumped", "plain", "binary", "empty", "other")}
    files["plan"] = tmp_path / "plan.toml"
    ask("explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--save", str(files["plan"]))
    files["dumped"].write_text(megatron_log([(step, 1.0) for step in range(1, 9)], dump=DUMP))
    files["plain"].write_text(megatron_log([(step, 1.0) for step in range(1, 9)]))
    files["binary"].write_bytes(bytes(range(256)) * 40)
    files["empty"].write_bytes(b"")
    files["other"].write_text("make: *** [all] Error 2\n")
    code, text = ask(*(word.format(**files) for word in words))
    assert code == 2
    assert said in text
    assert "\n" not in text.strip()


def test_no_rule_waits_for_a_fact_that_nothing_gives(tmp_path, predicted):
    """Facts of a rich log, of traces and of a prediction are all that the rules ask for."""
    from advisor.diagnosis import facts_of
    from advisor.measured import read_measured

    log = log_as_predicted(predicted, tmp_path)
    detector = "MnRtt/Rnk: 3021.11ms/4 | MxRtt/Rnk: 3444.20ms/11 | MnClk/Rnk: 1305.00MHz/11 | MxClk/Rnk: 1980.00MHz/0"
    names = ("batch-generator", "params-all-gather", "forward-recv", "save-checkpoint")
    memory = memory_line(0, 60, 1.0, 2.0, 3.0) + " | total device memory used: 4000.00"
    queues = "CUDA_DEVICE_MAX_CONNECTIONS=1"
    lines = [
        megatron_line(60, 1.0, nan=1),
        queues,
        *timers(dict.fromkeys(names, (0.1, 0.2))),
        detector,
        memory,
    ]
    text = log.read_text() + "\n".join([*lines, megatron_line(61, 1.0)])
    log.write_text(text)
    traces = []
    for rank in range(2):
        events = [
            {"ph": "X", "cat": "cuda_runtime", "name": "l", "ts": 0, "dur": 1, "args": {"correlation": 1}},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "ts": 0, "dur": 50, "args": {}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "ts": 2,
                "dur": 9 + rank,
                "args": {"correlation": 1},
            },
        ]
        traces.append(tmp_path / f"{rank}.json")
        traces[-1].write_text(json.dumps({"traceEvents": events}))
    found = read_measured(str(log), [str(each) for each in traces], None, {"gpu": "h100"})
    assert found.case is not None
    found.run = {"step_time_s": 1.0, "queued_s": 0.1, "phases": {"communication": 0.2}}
    missing = set(table()["facts"]) - {name for name, known in facts_of(found).items() if known is not None}
    assert not missing


YAML = """_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  context_parallel_size: 1
  sequence_parallel: true
  seq_length: 8192
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  kv_channels: 128
  gated_linear_unit: true
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [5]}
train:
  _target_: megatron.bridge.training.config.TrainingConfig
  global_batch_size: 128
  micro_batch_size: 1
ddp:
  overlap_grad_reduce: true
  use_distributed_optimizer: true
"""


def test_megatron_bridge_with_its_yaml(ask, tmp_path):
    """The dump of print_yaml, behind labels of ranks, is the plan."""
    pytest.importorskip("yaml")
    path = tmp_path / "bridge.log"
    lines = [*("0: " + line for line in YAML.splitlines()), "1: using world size: 8, data-parallel size: 4"]
    lines += [line for step in range(1, 20) for line in bridge_lines(step, 9.9, 500.0, batch=128)]
    path.write_text("\n".join(lines))
    code, text = ask("compare", str(path), "--gpu", "h100", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["framework"] == "Megatron-Bridge"
    assert found["prediction"]["model"] == "llama3-8b"
    knobs = found["prediction"]["knobs"]
    assert (knobs["tp"], knobs["pp"], knobs["dp"], knobs["overlap_grad_reduce"]) == (2, 1, 4, True)
    assert found["prediction"]["workload"]["global_batch"] == 128
    plan = tmp_path / "plan.toml"
    pins = [
        word for pin in ("tp=2", "pp=1", "cp=1", "precision=bf16", "micro_batch=1") for word in ("--pin", pin)
    ]
    ask(
        *("explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--global-batch", "128", *pins),
        *("--save", str(plan)),
    )
    _, text = ask("compare", str(plan), str(path), "--json")
    assert json.loads(text)["another_run"] == []  # the YAML names no data-parallel size


def test_parameters_of_ranks_are_checked_to_the_digit(ask, tmp_path):
    """llama3-8b by hand: 16 layers of 218,103,808 and the embedding of 128,256 x 4,096 over two ranks, and norms."""
    layer = 4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336
    first = (16 * layer + 128256 * 4096) // 2 + 16 * 2 * 4096
    path = tmp_path / "train.log"
    text = megatron_log([(step, 1.0) for step in range(1, 12)], dump=DUMP)
    assert f"(0, 0, 0): {first}" in text
    path.write_text(text)
    assert "equal the plan's to the digit" in " ".join(ask("compare", str(path), "--gpu", "h100")[1].split())
    path.write_text(text.replace(f"(0, 0, 0): {first}", f"(0, 0, 0): {first + 4096}"))
    told = " ".join(ask("compare", str(path), "--gpu", "h100")[1].split())
    assert f"holds {first + 4096:,} parameters in the log, {first:,} by the plan" in told


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


def test_a_run_quicker_than_predicted_is_of_another_plan(ask, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(megatron_log([(step, 1.0) for step in range(1, 40)]))
    size = ("--gpus", "16", "--global-batch", "32")
    code, text = ask("diagnose", str(path), "--model", "8b", "--gpu", "h100", *size)
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith(
        "The run is quicker than the prediction's interval: the plan assumed is likely not"
    )
    assert "at the lower end of the interval" in words


def test_a_run_slower_than_predicted_opens_with_that(ask, predicted, tmp_path):
    """Not with what the prediction infers of itself, nor that nothing measured stands out."""
    path = tmp_path / "train.log"
    slow = 1.5 * predicted["step_time_s"]
    path.write_text(megatron_log([(step, slow) for step in range(1, 40)], dump=DUMP))
    code, text = ask("diagnose", str(path), "--gpu", "h100")
    assert code == 0
    words = " ".join(text.split())
    assert words.startswith("The run is slower than the prediction's interval: at most 33.3 % of the step")
    assert "Inferred, not measured" in words
