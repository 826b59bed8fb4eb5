"""Which plan a log is held against: a file's, options', its own dump's or YAML's, and what if they disagree."""

from __future__ import annotations

import json
import re

import pytest
from log_cases import DUMP, YAML
from written import bridge_lines, megatron_log, nemo_line


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
