"""advisor compare: terms sum to the difference, the verdict is honest, runs stand beside plans."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.comparison import TERM_ERROR, Comparison
from advisor.comparison.record import Side
from advisor.comparison.sides import read_side
from advisor.comparison.text import answer, certainty, comparison_lines
from hardware_db.order import order_held

SMALL = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "2", "--sequence-parallel"]
LARGE = [
    *["--model", "llama3-70b", "--gpus", "64", "--gpu", "b200", "--tp", "4", "--pp", "4", "--vpp", "5"],
    "--sequence-parallel",
]
PLANS = {
    "small": SMALL,
    "small_recompute": [*SMALL, "--recompute", "full"],
    "small_same": SMALL,
    "large": LARGE,
    "large_overlap": [*LARGE, "--tp-comm-overlap", "--cuda-graph"],
    "too_large": ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--global-batch", "128"],
}
PAIRS = [
    ("small", "small_recompute"),
    ("large", "large_overlap"),
    ("small", "large"),
    ("large_overlap", "small"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with every plan, and with runs of the small one."""
    path = tmp_path_factory.mktemp("compare")
    for name, options in PLANS.items():
        CliRunner().invoke(
            advisor, ["predict", *options, "--save", str(path / f"{name}.toml")], catch_exceptions=False
        )
    make_run(path / "run", read_side(str(path / "small.toml")).predicted, 1.3)
    make_run(path / "close_run", read_side(str(path / "small.toml")).predicted, 1.05)
    make_run(path / "killed", read_side(str(path / "small.toml")).predicted, 1.3, ended=False)
    return path


def make_run(path, predicted, factor, ended=True):
    """A record as `advisor run` writes it: five measured steps, slower than predicted by `factor`."""
    path.mkdir()
    (path / "prediction.json").write_text(json.dumps(predicted))
    seconds = predicted["step_time_s"] * factor
    phases = {"forward": 0.3 * seconds, "backward": 0.6 * seconds, "communication": 0.05 * seconds}
    phases["optimizer"] = 0.01 * seconds
    step = {"loss": 2.0, "seconds": seconds, "phases": phases, "warmup": False}
    with (path / "steps.jsonl").open("w") as file:
        for number in range(5):
            file.write(json.dumps({"step": number, **step}) + "\n")
        file.write('{"step": 5, "lo')
    (path / "memory-0.json").write_text(json.dumps({"peak_bytes": 50 * 2**30, "base_bytes": 0}))
    if ended:
        from costmodel.workload import Workload
        from executor.run import summarise

        measured, warnings = summarise(path, Workload(**predicted["workload"]), predicted["gpus"])
        record = {"measured": measured, "rows": [], "warnings": warnings}
        (path / "comparison.json").write_text(json.dumps(record))


def compared(folder, one, other) -> Comparison:
    paths = [str(folder / (name if (folder / name).is_dir() else f"{name}.toml")) for name in (one, other)]
    return Comparison(*map(read_side, paths))


@pytest.mark.parametrize("pair", PAIRS)
def test_terms_sum_to_the_difference_and_are_sorted(folder, pair):
    found = compared(folder, *pair)
    for name, side in (("a", found.a), ("b", found.b)):
        whole = sum(getattr(line, name) for line in found.terms)
        assert whole == pytest.approx(found.time(side), rel=1e-9)
    sizes = [abs(line.delta) for line in found.terms]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("pair", PAIRS)
def test_memory_parts_sum_to_the_difference(folder, pair):
    found = compared(folder, *pair)
    peak = next(line for line in found.numbers if line.name == "memory of the worst rank")
    assert sum(line.delta for line in found.memory) == pytest.approx(peak.delta, abs=1e-6)


@pytest.mark.parametrize("pair", PAIRS)
def test_sides_can_be_swapped(folder, pair):
    found, swapped = compared(folder, *pair), compared(folder, *reversed(pair))
    assert {found.verdict.faster, swapped.verdict.faster} == {"a", "b"}
    assert found.verdict.by == pytest.approx(swapped.verdict.by)
    assert found.verdict.close == swapped.verdict.close
    assert found.verdict.deciding.name == swapped.verdict.deciding.name


def test_a_plan_equals_itself(folder):
    found = compared(folder, "small", "small_same")
    assert found.verdict.faster is None
    assert not found.knobs
    assert not found.setting
    assert answer(found).startswith("A and B take the same time, as one plan: ")


def test_the_same_work_is_compared_by_the_step(folder):
    found = compared(folder, "large", "large_overlap")
    assert found.same_work
    assert found.verdict.shared_errors
    assert set(found.knobs) == {"tp_comm_overlap", "cuda_graph"}
    ratio = found.a.predicted["step_time_s"] / found.b.predicted["step_time_s"]
    assert found.verdict.by == pytest.approx(ratio - 1)
    assert f"B is {100 * (ratio - 1):.1f} % faster than A" in answer(found)
    told, order = " ".join(certainty(found)), order_held(found.verdict.by)
    assert "share most errors" in told
    assert f"Of {order.pairs} pairs of published plans" in told
    assert f"{order.share:.0%}".replace("%", " %") in told
    assert found.to_dict()["verdict"]["order_held"] == order.to_dict()


def test_other_models_are_compared_by_the_token(folder):
    found = compared(folder, "small", "large")
    assert not found.same_work
    assert not found.verdict.shared_errors
    rates = [side.predicted["tokens_per_second_per_gpu"] for side in (found.a, found.b)]
    assert found.time(found.b) / found.time(found.a) == pytest.approx(rates[0] / rates[1])
    assert "tokens/s/GPU" in answer(found)
    assert {"model", "cluster", "gpus"} <= found.setting.keys()
    hours = next(line for line in found.numbers if line.name == "GPU-hours per billion tokens")
    assert hours.a == pytest.approx(1e9 / rates[0] / 3600)


def test_different_work_is_named_before_it_is_compared(folder):
    """Tokens a second of an 8B and a 70B model say nothing about which to train."""
    text = " ".join("\n".join(comparison_lines(compared(folder, "small", "large"))).split())
    assert "They differ in model and number of GPUs, so that tokens a second and GPU are compared" in text
    assert "this says which trains more of them, not which is better" in text
    assert "GPU-s per million tokens. A is the faster one without it too" in text
    alike = " ".join("\n".join(comparison_lines(compared(folder, "small", "small_recompute"))).split())
    assert "They differ in" not in alike


def test_the_deciding_term_goes_the_way_of_the_verdict(folder):
    found = compared(folder, "small", "small_recompute")
    verdict = found.verdict
    assert verdict.faster == "a"
    assert "recompute" in verdict.deciding.name
    difference = found.time(found.b) - found.time(found.a)
    assert verdict.turns_at == pytest.approx(difference / verdict.deciding.delta)
    assert verdict.close == (verdict.turns_at < TERM_ERROR)


def test_a_run_is_measured_beside_the_plan(folder):
    found = compared(folder, "small", "run")
    assert found.b.kind == "run"
    assert found.verdict.faster == "a"
    assert found.verdict.by == pytest.approx(0.3)
    assert not found.verdict.close
    rows = {row.name: row for row in found.measured}
    assert rows["step time"].ratio == pytest.approx(1.3)
    assert rows["step time"].verdict == "slower than the interval"
    assert "\nPredicted A beside measured B\n" in "\n".join(comparison_lines(found))


def test_a_run_lies_within_one_standard_deviation_of_its_steps():
    run = Side("run", {}, measured={"step_time_s": 2.0, "spread": 0.1})
    assert run.interval == pytest.approx((1.8, 2.2))


def test_a_run_inside_the_interval_is_within_the_uncertainty(folder):
    found = compared(folder, "close_run", "small")
    assert found.verdict.faster == "b"
    assert found.verdict.close
    assert "within the uncertainty" in answer(found)


def test_two_runs_are_compared_by_what_was_measured(folder):
    found = compared(folder, "run", "close_run")
    assert found.verdict.by == pytest.approx(1.3 / 1.05 - 1)
    assert "measured" in answer(found)
    text = "\n".join(comparison_lines(found))
    assert "Both are predicted alike, term by term" in " ".join(text.split())
    assert "Time of one step" not in text


def test_side_by_side_says_what_was_measured_and_what_predicted(folder):
    """Throughput under a verdict of measured runs is the measured one; no row of a run is without its kind."""
    for pair in (("run", "close_run"), ("small", "run")):
        found = compared(folder, *pair)
        lines = {line.name: line for line in found.numbers}
        assert lines["tokens/s/GPU, measured"].b == pytest.approx(found.b.tokens_per_second_per_gpu)
        assert lines["tokens/s/GPU, predicted"].b == found.b.predicted["tokens_per_second_per_gpu"]
        slower = found.b.step_time / found.b.predicted["step_time_s"]
        assert lines["MFU, measured"].b == pytest.approx(found.b.predicted["mfu"] / slower)
        assert all(
            "predicted" in name or "measured" in name for name in lines if name != "memory of the device"
        )
    assert lines["tokens/s/GPU, measured"].a is None
    plans = compared(folder, "small", "small_recompute").numbers
    assert not any("measured" in line.name or "predicted" in line.name for line in plans)


def test_one_measured_step_has_no_scatter(folder):
    """It said that the scatters did not overlap, of 855.5 ms to 855.5 ms."""
    found = compared(folder, "run", "close_run")
    assert certainty(found)[0].startswith("The scatters of the measured steps")
    single = replace(found, a=replace(found.a, measured=found.a.measured | {"num_steps": 1, "spread": 0.0}))
    assert certainty(single)[0].startswith("A measured one step, of which no scatter is known")


def test_a_killed_run_still_reads(folder):
    found = compared(folder, "small", "killed")
    assert found.b.measured["num_steps"] == 5
    assert any("did not end" in text for text in found.b.warnings)


@pytest.mark.parametrize("pair", [*PAIRS, ("small", "run"), ("small", "too_large"), ("run", "close_run")])
def test_text_fits_the_page_and_starts_with_the_verdict(folder, pair):
    found = compared(folder, *pair)
    lines = comparison_lines(found)
    assert lines[0].startswith(("A is ", "B is "))
    paths = (found.a.path, found.b.path)
    assert all(
        len(line) <= 100 for text in lines for line in text.split("\n") if not any(map(line.count, paths))
    )


def run(*arguments):
    return CliRunner().invoke(advisor, ["compare", *map(str, arguments)])


def test_command_prints_text_and_json(folder):
    done = run(folder / "small.toml", folder / "small_recompute.toml")
    assert done.exit_code == 0
    assert done.output.startswith("A is ")
    record = json.loads(run(folder / "small.toml", folder / "run", "--json").output)
    assert {
        "verdict",
        "numbers",
        "terms",
        "memory",
        "knobs",
        "setting",
        "measured",
        "a",
        "b",
    } <= record.keys()
    assert record["b"]["kind"] == "run"
    assert record["a"]["prediction"]["interval"].keys() == {"low", "high", "level", "basis"}


def test_a_plan_that_does_not_fit_is_told_and_exits_1(folder):
    done = run(folder / "small.toml", folder / "too_large.toml")
    assert done.exit_code == 1
    assert "B DOES NOT FIT" in done.output


def test_a_plan_that_its_host_cannot_hold_is_told_and_exits_1(tmp_path):
    """Rules about what is predicted count here as in predict and check."""
    cluster = tmp_path / "small-host.toml"
    lines = [
        'gpu = "h100-sxm"',
        "gpus_per_node = 8",
        "domain_size = 8",
        'intra = "nvlink4"',
        'inter = "ib-ndr-400"',
    ]
    lines += ['name = "small-host"', 'title = "64 GB a node"', 'host_link = "pcie5-x16"', "[host_memory]"]
    lines += ["value = 0.064", 'unit = "TB"', 'kind = "assumed"', 'source = "a test"', "read_on = 2026-11-21"]
    cluster.write_text("\n".join(lines))
    plan = tmp_path / "plan.toml"
    asked = [
        "--model",
        "llama3-8b",
        "--gpus",
        "8",
        "--cluster",
        str(cluster),
        "--tp",
        "8",
        "--sequence-parallel",
    ]
    asked += ["--optimizer-offload", "100", "--save", str(plan)]
    assert CliRunner().invoke(advisor, ["predict", *asked]).exit_code == 1
    done = run(plan, plan, "--json")
    assert done.exit_code == 1
    side = json.loads(done.output)["a"]
    assert side["prediction"]["memory"]["fits"]
    assert not side["holds"]
    assert "host memory" in side["errors"][0]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nothing", None, "cannot be read"),
        ("empty", {}, "is no run record"),
        ("broken", {"prediction.json": "{"}, "is not JSON"),
        ("list", {"prediction.json": "[]"}, "holds no record"),
        ("other", {"prediction.json": "{}"}, "of another form"),
        ("half", {"prediction.json": "{}", "comparison.json": '{"measured": 3}'}, "of another form"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(folder, tmp_path, monkeypatch, capsys, name, content, says):
    from advisor.cli import main

    path = tmp_path / name
    if content is not None:
        path.mkdir()
        for file, text in content.items():
            (path / file).write_text(text)
    monkeypatch.setattr("sys.argv", ["advisor", "compare", str(folder / "small.toml"), str(path)])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert says in printed.err
    assert printed.err.count("\n") == 1
