"""Constants planted in run records are learned back, with noise and outliers; few runs do not overfit."""

from __future__ import annotations

import dataclasses
import json
import os
import random

import numpy as np
import pytest
import tomli_w
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from planted_machine import planted

import hardware_db
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor.calibrate import (
    base_document,
    calibrate_from,
    calibrate_here,
    taught,
)
from executor.calibrate_fit import CONSTANTS, learn, tell_apart
from executor.calibrate_probes import probes, small
from executor.calibrate_records import Modelled, Observed, observed, part_of, read_all, read_observed
from executor.local_profile import profile, write_profile

NAMES = {constant.name: constant for constant in CONSTANTS}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A made-up processor that four ranks share."""
    path = tmp_path_factory.mktemp("machine") / "local.toml"
    path.write_text(tomli_w.dumps(profile(planted(4), 4)))
    return hardware_db.load_cluster(str(path))


@pytest.fixture(scope="module")
def modelled(cluster):
    """The probes of a calibration, as the cost model sees them."""
    found = []
    for probe in probes():
        assert probe.fits(4) or probe.shared == "tp"
        if not probe.fits(4):
            continue
        plan = dataclasses.replace(probe.plan(4, "fp32"), zero_stage=1)
        run = Observed(probe.model.name, probe.model, probe.workload(4), plan, {"step": 1.0})
        found.append(Modelled(run, cluster))
    return found


def planted_in(each, constants: dict[str, float]) -> dict[str, float]:
    """Inputs of a run on a machine with these constants."""
    return {
        symbol: value * float(each.inputs[symbol]) if NAMES[name].factor else value
        for name, value in constants.items()
        for symbol in NAMES[name].symbols
        if symbol in each.inputs
    }


def runs_of(modelled, constants: dict[str, float], noise: float = 0.0, seed: int = 0, outlier: int = -1):
    """Runs of a machine with these constants. outlier: one run that took three times as long."""
    draw = random.Random(seed)
    found = []
    for index, each in enumerate(modelled):
        changed = planted_in(each, constants)
        longer = 3.0 if index == outlier else 1.0
        seconds = {
            part: float(value) * longer * (1 + noise * draw.uniform(-1, 1))
            for part, value in each.seconds(changed).items()
            if value > 0
        }
        found.append(Observed(each.run.name, each.run.model, each.run.workload, each.run.plan, seconds))
    return found


@given(
    gemm_rate=st.floats(0.7, 1.2),
    kernel_launch=st.floats(5e-6, 6e-5),
    layer_update=st.floats(1e-4, 2e-3),
    stream=st.floats(0.3, 1.0),
    message_time=st.floats(0.5, 6.0),
    seed=st.integers(0, 99),
)
@settings(max_examples=6, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_planted_constants_are_learned_back(
    cluster, modelled, gemm_rate, kernel_launch, layer_update, stream, message_time, seed
):
    wanted = {
        "gemm_rate": gemm_rate,
        "kernel_launch": kernel_launch,
        "layer_update": layer_update,
        "stream": stream,
        "message_time": message_time,
        "pass": 4e-4,
    }
    outcome = learn(runs_of(modelled, wanted, noise=0.02, seed=seed), cluster)
    found = {each.constant.name: each for each in outcome.learned}
    for name, value in wanted.items():
        # Within what the fit itself leaves open, and never farther than that is useful.
        open_ = 2.5 * found[name].error + 0.05
        assert abs(np.log(found[name].after / value)) < open_, (name, value, found[name])
    assert outcome.median(outcome.after) < 0.04


def test_one_bad_run_does_not_bend_the_rest(cluster, modelled):
    wanted = {"gemm_rate": 0.9, "kernel_launch": 5e-5, "layer_update": 1e-3, "pass": 5e-4}
    outcome = learn(runs_of(modelled, wanted, noise=0.02, outlier=2), cluster)
    sizes = sorted(abs(error) for error in outcome.after.values())
    assert sizes[-1] > 0.8  # the bad one is told as it is
    assert sizes[-2] < 0.1


def test_a_machine_as_its_kernels_say_moves_nothing(cluster, modelled):
    outcome = learn(runs_of(modelled, {}), cluster)
    known = [each for each in outcome.learned if each.before]
    assert known
    for each in known:
        moved = abs(np.log(each.after / each.before))
        assert moved < max(0.1, each.error), each.constant.name


def test_one_run_moves_constants_less_than_seven(cluster, modelled):
    wanted = {"gemm_rate": 0.6, "elementwise_rate": 0.3}
    one = learn(runs_of(modelled[1:2], wanted), cluster)
    found = {each.constant.name: each.after for each in one.learned}
    # What one sum of terms cannot tell apart is shared between them, by their beliefs.
    assert 0.6 < found["gemm_rate"] < 1.0
    assert 0.3 < found["elementwise_rate"] < 1.0


def test_the_interval_covers_runs_told_without_themselves(tmp_path, cluster, modelled):
    few = modelled[:6]
    runs = runs_of(few, {"gemm_rate": 0.8}, noise=0.1, seed=3)
    outcome = tell_apart(learn(runs, cluster), runs, cluster)
    assert set(outcome.apart) == {each.run.name for each in few}
    told = np.median([abs(error) for error in outcome.apart.values()])
    assert 2.4 * told < outcome.half_width < 2.5 * told
    document = taught(base_document(cluster), outcome, runs)
    path = tmp_path / "mine.toml"
    write_profile(path, document)
    run = modelled[0].run
    found = predict(run.model, run.workload, hardware_db.load_cluster(str(path)), run.plan)
    half = np.log(found.interval_high / found.step_time_s)
    assert half == pytest.approx(outcome.half_width, rel=1e-3)
    assert "told without itself" in found.interval_basis
    alone = tell_apart(outcome, runs[:2], cluster)
    assert alone.half_width == 0
    assert "evidence" not in taught(base_document(cluster), alone, runs[:2])["calibration"]


def test_repeats_of_one_run_are_no_evidence_of_others(cluster, modelled):
    """Eight runs of one plan gave every prediction on their profile an interval of 9 %."""
    one, others = modelled[0], modelled[1:5]
    repeats = [
        dataclasses.replace(runs_of([one], {}, noise=0.03, seed=seed)[0], name=f"{seed}") for seed in range(8)
    ]
    assert tell_apart(learn(repeats, cluster), repeats, cluster).half_width == 0
    # Told without all its repeats, a run that takes twice as long stays about that far.
    slow = [
        dataclasses.replace(each, seconds={part: 2 * s for part, s in each.seconds.items()})
        for each in repeats[:3]
    ]
    runs = [*slow, *runs_of(others, {})]
    outcome = tell_apart(learn(runs, cluster), runs, cluster)
    assert set(outcome.apart) == {each.name for each in runs}
    assert all(outcome.apart[each.name] < -0.5 for each in slow)


def test_every_leaf_of_a_step_has_its_part(modelled):
    seen = {leaf: part_of(leaf) for leaf in modelled[0].leaves}
    assert seen["forward_linear"] == seen["vocabulary"] == "compute"
    assert seen["forward_tensor_parallel"] == seen["dp_gradients"] == "communication"
    assert seen["step_fixed"] == ""
    whole = modelled[0].seconds({})
    assert whole["compute"] + whole["optimizer"] + whole["communication"] <= whole["step"] * (1 + 1e-9)


def record(folder, modelled, seconds: dict[str, float], **extra) -> None:
    """A folder as `advisor run` writes it."""
    from costmodel.model_file import to_mapping

    run = modelled.run
    folder.mkdir(parents=True)
    job = {
        "plan": run.plan.to_dict(),
        "workload": run.workload.to_dict(),
        "model": to_mapping(run.model),
    }
    (folder / "job.json").write_text(json.dumps(job | extra))
    phases = {
        "forward": seconds["compute"] / 3,
        "backward": seconds["compute"] * 2 / 3,
        "optimizer": seconds["optimizer"],
        "communication": seconds["communication"],
    }
    steps = [
        {
            "step": index,
            "warmup": index < 2,
            "seconds": seconds["step"] * (9 if index < 2 else 1),
            "phases": phases,
        }
        for index in range(5)
    ]
    (folder / "steps.jsonl").write_text(
        "".join(json.dumps(step) + "\n" for step in steps) + '{"step": 5, "se'
    )


def test_a_profile_learned_from_records_predicts_them(tmp_path, cluster, modelled):
    wanted = {
        "gemm_rate": 0.8,
        "kernel_launch": 6e-5,
        "layer_update": 1e-3,
        "pass": 1e-3,
        "step_overhead": 2e-3,
        "message_time": 3.0,
    }
    folders = []
    for each in modelled[:5]:
        folders.append(tmp_path / each.run.name)
        seconds = each.seconds(planted_in(each, wanted))
        record(folders[-1], each, {part: float(value) for part, value in seconds.items()})
    before = cluster.gpu.path.read_text()
    found = calibrate_from(folders, cluster, tmp_path / "learned.toml")
    assert cluster.gpu.path.read_text() == before
    again = hardware_db.load_cluster(str(found.path))
    for folder in folders:
        run = read_observed(folder)
        told = Modelled(run, again).seconds({})["step"]
        assert told == pytest.approx(run.seconds["step"], rel=0.05)


def test_runs_on_shipped_gpus_make_an_overlay_with_sources(tmp_path):
    cluster = hardware_db.resolve("h200", None)[0]
    model = small("wide", num_layers=8, hidden=4096, ffn_hidden=14336, num_heads=32, vocab=32000)
    plan, workload = Plan(dp=8, zero_stage=1), Workload(4096, 64)
    each = Modelled(Observed(model.name, model, workload, plan, {"step": 1.0}), cluster)
    rate = float(each.inputs["linear_scale"])
    slower = each.seconds({"linear_scale": 0.8 * rate, "gemm_scale": 0.8 * rate})
    record(tmp_path / "run", each, {part: float(value) for part, value in slower.items()})
    found = calibrate_from([tmp_path / "run"], cluster, tmp_path / "mine.toml")
    own = hardware_db.load_cluster(str(found.path))
    assert own.gpu.name == cluster.gpu.name
    assert own.gpu.quantities["hbm_bandwidth"].source == cluster.gpu.quantities["hbm_bandwidth"].source
    assert "step" in own.gpu.own_calibration
    before, after = (
        abs(np.log(float(Modelled(each.run, one).seconds({})["step"] / slower["step"])))
        for one in (cluster, own)
    )
    assert after < before / 2
    # Kernel tables that no run taught are those shipped.
    assert hardware_db.load_calibration(own.gpu)["gemm"] == hardware_db.load_calibration(cluster.gpu)["gemm"]


@pytest.mark.parametrize(("number", "kept"), [(0, {"compute", "optimizer"}), (2, {"compute", "optimizer"})])
def test_where_ranks_queued_only_their_own_work_counts(modelled, number, kept):
    """A rank's own queueing is taken out by the clock; waiting for another that queued is not."""
    run = modelled[number].run
    phases = {"forward": 0.2, "backward": 0.4, "optimizer": 0.1, "communication": 0.2}
    steps = [{"seconds": 1.0, "phases": phases, "queued": 0.3}] * 3
    found = observed(run.name, run.model, run.workload, run.plan, steps, "quiet")
    assert set(found.seconds) == kept
    alone = observed(run.name, run.model, run.workload, run.plan, [step | {"queued": 0.0} for step in steps])
    assert alone.seconds["step"] == 1.0
    assert ("communication" in alone.seconds) == (run.plan.tp > 1)


def test_a_record_without_measured_steps_is_told(tmp_path, modelled):
    record(
        tmp_path / "run", modelled[0], {"step": 1.0, "compute": 0.5, "optimizer": 0.1, "communication": 0.1}
    )
    (tmp_path / "run" / "steps.jsonl").write_text('{"step": 0, "warmup": true, "seconds": 1}\n')
    with pytest.raises(ValueError, match="no measured step"):
        read_observed(tmp_path / "run")
    with pytest.raises(ValueError, match="no measured step"):
        read_all([tmp_path / "run"])


def test_runs_of_several_numbers_of_processes_are_warned_of(tmp_path, modelled, cluster):
    """A profile belongs to its number of processes: two that share a machine's memory are slower than one."""
    seconds = {"step": 1.0, "compute": 0.5, "optimizer": 0.1, "communication": 0.1}
    dense = next(each for each in modelled if each.run.model.moe is None)
    for processes in (2, 4):
        run = dataclasses.replace(dense.run, plan=Plan(dp=processes, precision="fp32"))
        record(tmp_path / str(processes), Modelled(run, cluster), seconds, device="cpu")
    found = calibrate_from([tmp_path / "2", tmp_path / "4"], cluster, tmp_path / "mine.toml")
    assert any(warning.startswith("runs of 2, 4 processes bend") for warning in found.warnings)
    found = calibrate_from([tmp_path / "2"], cluster, tmp_path / "mine.toml")
    assert not any("bend" in warning for warning in found.warnings)


def test_a_run_that_was_cut_in_its_warm_up_is_left_out_of_many(tmp_path, modelled):
    """`--from runs/*` names every folder, also that of a run that was interrupted."""
    seconds = {"step": 1.0, "compute": 0.5, "optimizer": 0.1, "communication": 0.1}
    for name in ("good", "cut"):
        record(tmp_path / name, modelled[0], seconds)
    (tmp_path / "cut" / "steps.jsonl").write_text("")
    runs, left_out = read_all([tmp_path / "cut", tmp_path / "good"])
    assert [run.name for run in runs] == ["good"]
    assert left_out == ["cut: left out, it holds no measured step"]


def test_folders_without_a_job_are_left_out_of_many(tmp_path, modelled):
    """`--from runs/2026*`, as the help has it, ended at the folder of a job that Slurm was given."""
    each = modelled[0]
    record(tmp_path / "whole", each, {part: float(value) for part, value in each.seconds({}).items()})
    (tmp_path / "slurm").mkdir()
    runs, left_out = read_all([tmp_path / "slurm", tmp_path / "whole"])
    assert ([run.name for run in runs], left_out) == (["whole"], ["slurm: left out, it has no job.json"])
    for missing in ("slurm", "mistyped"):
        with pytest.raises(ValueError, match=f"{missing} is no record of a run"):
            read_all([tmp_path / missing])
    with pytest.raises(ValueError, match="mistyped is no record of a run"):
        read_all([tmp_path / "whole", tmp_path / "mistyped"])


def test_a_run_whose_ranks_shared_a_gpu_teaches_nothing(tmp_path, modelled):
    seconds = {"step": 1.0, "compute": 0.5, "optimizer": 0.1, "communication": 0.1}
    for name, shared in (("good", 1), ("shared", 2)):
        record(tmp_path / name, modelled[0], seconds)
        ranks = [{"rank": rank, "ranks_on_device": shared} for rank in range(2)]
        (tmp_path / name / "ranks.json").write_text(json.dumps({"ranks": ranks}))
    runs, left_out = read_all([tmp_path / "good", tmp_path / "shared"])
    assert [run.name for run in runs] == ["good"]
    assert left_out == ["shared: left out, its ranks shared a GPU"]
    with pytest.raises(ValueError, match=r"shared a GPU, so its seconds teach nothing\. Give a record"):
        read_all([tmp_path / "shared"])


def test_a_run_on_a_processor_teaches_nothing_of_a_gpu(tmp_path, modelled):
    seconds = {"step": 1.0, "compute": 0.5, "optimizer": 0.1, "communication": 0.1}
    record(tmp_path / "run", modelled[0], seconds, device="cpu")
    with pytest.raises(ValueError, match="ran on a processor"):
        calibrate_from([tmp_path / "run"], hardware_db.resolve("h100", None)[0], tmp_path / "mine.toml")


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_profile_takes_the_place_of_a_file_only(tmp_path, monkeypatch, kind):
    """A pipe or device is kept, and told before minutes of measuring, not after."""
    monkeypatch.setattr("executor.calibrate.measure", lambda *_: pytest.fail("measured before it was told"))
    out = tmp_path / "mine.toml"
    os.mkfifo(out) if kind == "pipe" else out.mkdir()
    with pytest.raises(OSError, match="not a file"):
        calibrate_here(2, 5.0, out)
    with pytest.raises(OSError, match="not a file"):
        calibrate_from([], hardware_db.resolve("h100", None)[0], out)
    with pytest.raises(OSError, match="not a file"):
        write_profile(out, {})
    assert out.is_fifo() if kind == "pipe" else out.is_dir()


def test_a_profile_that_is_replaced_is_kept_and_told(tmp_path, cluster, modelled):
    """Measured in a quieter hour or of runs that are gone: it was overwritten without a word."""
    from advisor.calibrate_text import calibration_lines, to_json

    for each in modelled[:2]:
        record(tmp_path / each.run.name, each, {part: float(x) for part, x in each.seconds({}).items()})
    folders = [tmp_path / each.run.name for each in modelled[:2]]
    out = tmp_path / "mine.toml"
    assert calibrate_from(folders, cluster, out).older is None
    first = out.read_text()
    for name in ("mine.before.toml", "mine.before-2.toml"):
        out.write_text(first + f"# {name}\n")
        found = calibrate_from(folders, cluster, out)
        assert found.older == tmp_path / name
        assert found.older.read_text().endswith(f"# {name}\n")
        assert name in " ".join(calibration_lines(found)).replace("\n", "")
        assert to_json(found)["older"] == str(found.older)
    assert hardware_db.load_cluster(str(tmp_path / "mine.before.toml")).gpu.name == "local"


def test_an_overlay_of_a_users_file_begins_with_it(cluster):
    assert base_document(cluster)["gpu"]["name"] == "local"
