"""The accuracy page's sections render from a small report, with reasons, ranking and gaps where there are any."""

from __future__ import annotations

import math
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advisor.measurements import Case, Row, row_case
from advisor.rules.features import load_features
from advisor.validation import validate

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = {
    "model": "llama3-8b",
    "system": "dgx-h100",
    "gpus": "8",
    "precision": "bf16",
    "gbs": "128",
    "mbs": "1",
    "seq_len": "8192",
    "source": "NeMo docs",
    "container": "nemo:25.02",
}
PLANS = (("1", "2", "10.0"), ("2", "1", "11.0"), ("4", "1", "10.5"))
GAP = {
    "id": "run-0",
    "model": "llama3-8b",
    "family": "dense",
    "cluster": "dgx-h100",
    "gpus": "8",
    "stack": "nemo-25.02",
    "recipe_fits": "1",
    "recipe_s": "12",
    "same_layout_s": "11",
    "measured_s": "12.5",
    "gap": "1.200",
    "knobs": "tp 2 -> 1",
    "terms": "tensor-parallel communication -15.0%",
}


@pytest.fixture(scope="module", autouse=True)
def _benchmarks_on_the_path():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def rows():
    return [
        Row(RUN | {"id": f"run-{index}", "tp": tp, "pp": pp, "step_time_s": seconds})
        for index, (tp, pp, seconds) in enumerate(PLANS)
    ]


@pytest.fixture(scope="module")
def report(rows):
    return validate(rows)


def test_the_summary_comes_first_and_absent_fits_are_no_error(report):
    from accuracy_sections import holdout_section, summary_section

    lines = summary_section({"rows.csv": report}, {"mape_leave_one_release_out": 0.12}, [GAP])
    assert lines[0].startswith("# Accuracy")
    text = "\n".join(lines)
    assert "3 published runs" in text
    assert "release 12.0%" in text
    assert "3 pairs of plans" in text
    assert "largest 1.20" in text
    assert "| leave one model out | – | – |" in holdout_section(report, {})


def test_groups_and_worst(report):
    from accuracy_sections import group_sections, worst_section
    from memory_accuracy import memory_section

    text = "\n".join(group_sections(report))
    assert "## By software release" in text
    assert "| nemo-25.02 | 3 |" in text
    worst = "\n".join(worst_section(report, {"run-1": {"reason": "planted"}}, 3))
    assert worst.count("not studied") == 2
    assert "planted" in worst
    memory = memory_section(report, ["Of 3 plans"])
    assert memory[0] == "## Memory"
    assert memory.index("Of 3 plans") > 3


def test_ranking_and_gaps(rows, report):
    from accuracy_pairs import gap_section, ranking_section

    cases = {case.id: case for row in rows if isinstance(case := row_case(row), Case)}
    text = "\n".join(ranking_section({"rows.csv": report}, cases))
    assert "| rows.csv | same work, precision and software: only the plan differs | 3 |" in text
    reasons = {"run-0": {"kind": "discovery", "reason": "planted"}}
    text = "\n".join(gap_section([GAP], reasons, 10))
    assert "**discovery**: planted" in text
    assert "| dense | 1 | 1.20 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "Not computed" in gap_section([], {}, 10)[-1]


def planted_runs(errors):
    """Runs of one work on 1, 2, 4 ... tensor ranks, predicted alike, measured as the errors say."""
    from advisor.ranking import Timed

    shared = {"source": "s", "subject": "m", "size": (8, 64), "precision": "bf16", "software": "25.02"}
    return [
        Timed(str(at), plan=at, measured=math.exp(error), predicted=1 + at * 1e-6, **shared)
        for at, error in enumerate(errors)
    ]


def test_a_regression_ranks_what_its_features_tell_and_nothing_else():
    pytest.importorskip("sklearn")
    from accuracy_regressions import REGRESSIONS, corrected

    from advisor.ranking import pairs, share_right

    draw = np.random.default_rng(3)
    features = np.column_stack([np.repeat(np.arange(6.0), 4), draw.normal(size=24), np.ones(24)])
    told = 0.2 * features[:, 0] + 0.01 * draw.normal(size=24)
    works = [at // 3 for at in range(24)]
    for fit in REGRESSIONS.values():
        assert share_right(pairs(corrected(planted_runs(told), features, fit, works)))["share"] > 0.85
        noise = corrected(planted_runs(0.2 * draw.normal(size=24)), features, fit, works)
        assert share_right(pairs(noise))["share"] < 0.75


def test_a_run_does_not_tell_its_own_error():
    from accuracy_regressions import left_out

    def mean(_x, y):
        return lambda at: np.full(len(at), y.mean())

    errors = np.array([3.0, 0.0, 0.0])
    assert left_out(np.zeros((3, 1)), errors, mean, "abc").tolist() == [0.0, 1.5, 1.5]
    assert left_out(np.zeros((3, 1)), errors, mean, "aab").tolist() == [0.0, 0.0, 1.5]


def test_sources_with_few_pairs_have_no_regressions(rows, report):
    from accuracy_regressions import regression_section

    cases = {case.id: case for row in rows if isinstance(case := row_case(row), Case)}
    assert regression_section(report, cases) == []


def test_plots_are_the_same_twice(report, tmp_path):
    pytest.importorskip("matplotlib")
    from accuracy_plot import write_plot

    for name in ("one.svg", "two.svg"):
        write_plot(report, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_recipes_are_one_a_work_and_their_search_has_what_its_release_had(rows):
    from recipe_gap import KEPT, compare, differing, recipes

    cases = [row_case(row) for row in rows]
    assert [case.id for case in recipes(cases)] == ["run-0"]
    assert recipes(cases, most_gpus=4) == []
    # What the release had is told by features.toml alone: nothing that a stack may lack is pinned here.
    features = {knob for feature in load_features() for knob in feature.knobs} - {"precision"}
    assert not features & set(KEPT) - {
        "grad_reduce_in_fp32",
        "moe_capacity_factor",
        "moe_pad_expert_input_to_capacity",
        "nccl_ub",
        "precision_aware_optimizer",
    }
    found = compare(replace(cases[0], stack="nemo-24.05"))
    assert "overlap_moe_comm" not in found["knobs"]
    assert differing(cases[0].plan, cases[2].plan)[0] == "tp 1 -> 4"


@pytest.mark.parametrize("name", ["worst_reasons.toml", "gap_reasons.toml"])
def test_reasons_are_told(name):
    entries = tomllib.loads((BENCHMARKS / name).read_text())
    assert all(entry["reason"].strip() for entry in entries.values())
    if name.startswith("gap"):
        assert {entry["kind"] for entry in entries.values()} <= {"discovery", "error of ours", "open"}
