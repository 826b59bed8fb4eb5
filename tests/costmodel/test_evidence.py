"""Distance to published runs, and intervals from their errors: laws, and coverage on tables of known error."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware_db
from costmodel.evidence import (
    NO_EVIDENCE,
    WIDE,
    Interval,
    evidence_table,
    interval,
    nearest,
    untuned_interval,
)
from costmodel.evidence.coverage import coverage_by, held, learn, with_shared
from costmodel.evidence.quantile import local_quantile
from costmodel.evidence.runs import LARGEST, SIZES, Table
from costmodel.evidence.setting import bits, setting_of, traits, year
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db.evidence import Evidence, Setting, load_evidence, save_evidence

PLAIN = setting_of(
    load_model("llama3-8b"),
    Workload(8192, 128),
    hardware_db.load_cluster("dgx-h100"),
    Plan(dp=8),
    "nemo-26.06",
)
shipped = st.sampled_from(evidence_table().runs)


def published(number: int = 0, error: float = 0.05, held_error: float = 0.08, **changed) -> Evidence:
    fixed = {"id": f"run-{number}", "source": "tests", "date": "2026-01-31", "measured_step_time_s": 1.0}
    return Evidence(**asdict(PLAIN) | fixed | changed, error=error, held_error=held_error)


def planted(number: int, seed: int = 0) -> Table:
    """Runs whose error has a spread of 0.05 on Hopper and 0.15 on Blackwell; 20 models, 8 sources."""
    random = np.random.default_rng(seed)
    runs = []
    for index in range(number):
        hopper = random.random() < 0.5
        error = float(random.normal(0, 0.05 if hopper else 0.15))
        where = {"gpu": "h100-sxm", "cluster": "dgx-h100", "generation": "hopper"}
        if not hopper:
            where = {"gpu": "b200", "cluster": "dgx-b200", "generation": "blackwell"}
        runs.append(
            published(
                index,
                error,
                error,
                model=f"model-{random.integers(20)}",
                source=f"source-{random.integers(8)}",
                gpus=int(2 ** random.integers(3, 10)),
                **where,
            )
        )
    return with_shared(runs)


def wide(found: Interval) -> float:
    """Whole width. [log]"""
    return found.high - found.low


@given(run=shipped)
def test_a_run_is_at_distance_zero_from_itself(run):
    table = evidence_table()
    assert table.distances(run)[table.runs.index(run)] == 0


@given(one=shipped, other=shipped)
def test_distance_is_symmetric(one, other):
    there, back = Table((one,)).distances(other)[0], Table((other,)).distances(one)[0]
    assert there == pytest.approx(back)
    assert there >= 0


@given(run=shipped, factor=st.sampled_from([2, 4, 8]), again=st.sampled_from([2, 4]))
def test_more_gpus_are_further_away(run, factor, again):
    once = Table((run,)).distances(replace(run, gpus=run.gpus * factor))[0]
    assert Table((run,)).distances(replace(run, gpus=run.gpus * factor * again))[0] > once > 0


@given(
    distances=st.lists(st.floats(0, 5), min_size=6, max_size=60),
    further=st.floats(0, 10),
    known=st.booleans(),
    spread=st.floats(0, 0.3),
)
def test_the_interval_is_never_narrower_further_away(distances, further, known, spread):
    random = np.random.default_rng(len(distances))
    table = Table(tuple(published(index, *random.normal(0, 0.1, 2)) for index in range(len(distances))))
    near, _ = table.half_width(np.array(distances), known, spread)
    far, parts = table.half_width(np.array(distances) + further, known, spread)
    assert far >= near * (1 - 1e-9)
    assert far == pytest.approx(math.sqrt(sum(part**2 for part in parts.values())))


@given(run=shipped, less=st.floats(0, 0.5), more=st.floats(0, 0.5))
def test_uncertain_constants_widen_the_interval(run, less, more):
    one = interval(run, parameter_spread=less)
    other = interval(run, parameter_spread=less + more)
    assert other.low <= one.low < 0 < one.high <= other.high


@given(
    errors=st.lists(st.floats(0, 1), min_size=1, max_size=80),
    distance=st.floats(0, 3),
    scale=st.floats(0.1, 10),
)
def test_the_quantile_is_one_of_the_errors_and_scales_with_them(errors, distance, scale):
    distances = np.linspace(0, distance, len(errors))
    found = local_quantile(distances, np.array(errors), np.ones(len(errors)))
    assert found in errors
    scaled = local_quantile(distances, scale * np.array(errors), np.ones(len(errors)))
    assert scaled == pytest.approx(scale * found)


def test_a_published_run_is_no_evidence_for_itself():
    table = Table((published(0, 0.4, 0.4, gpus=16), *(published(each, gpus=64) for each in range(1, 4))))
    query = table.runs[0]
    assert nearest(query, table=table)[0].run.id == "run-0"
    assert "run-0" not in {near.run.id for near in nearest(query, "run-0", table=table)}
    assert wide(interval(query, "run-0", table=table)) < wide(interval(query, table=table))
    alone = Table((query,))
    assert nearest(query, "run-0", table=alone) == ()
    assert interval(query, "run-0", table=alone).basis == NO_EVIDENCE


def test_the_four_biggest_differences_are_named_and_the_others_counted():
    other = replace(
        PLAIN,
        model="llama3-70b",
        parameters=8 * PLAIN.parameters,
        gpu="gb200",
        cluster="gb200-nvl72",
        generation="blackwell",
        gpus=16,
        precision="mxfp8",
        micro_batch=2,
        tp=2,
        dp=8,
    )
    table = Table(
        (published(), published(1, generation="blackwell", gpu="b200", cluster="dgx-b200", gpus=512))
    )
    (first, second) = nearest(other, table=table)
    assert first.run.id == "run-1"
    assert first.differences == (
        "mxfp8 instead of bf16",
        "llama3-70b instead of llama3-8b",
        "16 instead of 512 GPUs",
        "GB200 instead of B200",
        "2 smaller differences",
    )
    assert "GB200 instead of H100-SXM" in second.differences
    assert nearest(PLAIN, table=table)[0].differences == ()


def test_nearest_runs_are_of_different_settings():
    table = Table(tuple(published(index, gpus=8 if index < 5 else 64) for index in range(9)))
    assert [near.run.id for near in nearest(PLAIN, table=table)] == ["run-0", "run-5"]


def test_of_runs_equally_near_those_of_the_same_sizes_come_first_and_sizes_are_named():
    run = {"gpus": 16, "tp": 4, "pp": 4, "global_batch": 512}
    table = Table((published(0, **run), published(1, **run | {"tp": 2, "pp": 8})))
    query = replace(PLAIN, **run)
    assert [nearest(replace(query, tp=tp, pp=16 // tp), table=table)[0].run.id for tp in (2, 4)] == [
        "run-1",
        "run-0",
    ]
    (near,) = nearest(replace(query, pp=8, dp=1, global_batch=1024), table=table)
    assert near.run.id == "run-0"
    assert near.differences == ("pp 8 instead of 4", "global batch 1,024 instead of 512")


@given(run=shipped)
def test_the_nearest_run_of_a_published_one_has_its_sizes(run):
    (near, *_) = nearest(run)
    same = [getattr(near.run, name) == getattr(run, name) for name in SIZES]
    assert near.distance == pytest.approx(0, abs=1e-9)
    assert all(same)
    assert not near.differences


@pytest.mark.parametrize("word", ["generation", "stack", "precision", "model"])
def test_what_nobody_published_is_said(word):
    table = planted(100)
    unknown = {"generation": "cdna4", "stack": "own-1.0", "precision": "fp32", "model": "mine"}[word]
    known, found = (
        interval(each, table=table)
        for each in (replace(PLAIN, model="model-1"), replace(PLAIN, **{word: unknown}))
    )
    assert unknown.partition("-")[0] in found.basis
    assert "so it is wider" in found.basis
    assert found.parts["distance of the nearest runs"] > known.parts["distance of the nearest runs"]


def test_a_machine_that_nobody_measured_is_wide():
    other = replace(PLAIN, model="llama3-70b", generation="cpu", gpu="local", cluster="local", stack="local")
    found = interval(other)
    assert found.high > 0.35
    assert "none of them on processors, none with the stack local, so it is wider" in found.basis


def test_without_a_table_the_interval_is_wide_and_says_so(tmp_path):
    empty = evidence_table(tmp_path / "none.csv")
    found = interval(PLAIN, table=empty)
    assert (found.low, found.high, found.basis) == (-WIDE, WIDE, NO_EVIDENCE)
    assert nearest(PLAIN, table=empty) == ()


def test_one_absurd_run_does_not_make_an_absurd_interval():
    table = Table(tuple(published(index, 3.0, 4.0) for index in range(50)))
    assert wide(interval(PLAIN, table=table)) < 2.2 * LARGEST
    # Each says that we predict too long a step, as its neighbours do: the step will be shorter.
    assert -interval(PLAIN, table=table).low > interval(PLAIN, table=table).high > 0


def test_the_middle_is_where_near_runs_were():
    table = with_shared([published(index, 0.2, 0.2, gpus=8) for index in range(40)])
    near, far = (interval(replace(PLAIN, gpus=gpus), table=table) for gpus in (8, 8 * 2**20))
    assert (near.low + near.high) / 2 < -0.05
    assert abs(far.low + far.high) / 2 < 0.01


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_errors_are_covered_and_widths_follow_them(seed):
    table = planted(400, seed)
    table = replace(table, spread=learn(table))
    for group in ("run", "model", "source"):
        found = coverage_by(table, group, [run.generation for run in table.runs])
        assert 0.88 <= found["all"][1] <= 0.92
        # The kernel sees some runs of the other generation too.
        assert 0.83 <= found["blackwell"][1] <= found["hopper"][1] <= 0.97
        # 1.645 standard deviations, more where a table this small is all there is
        assert found["hopper"][2] == pytest.approx(0.083, rel=0.35)
        assert found["blackwell"][2] == pytest.approx(0.247, rel=0.35)


def test_new_runs_of_the_planted_table_are_covered():
    table = planted(400)
    table = replace(table, spread=learn(table))
    fresh = planted(400, seed=9).runs
    inside = [
        found.low <= -run.error <= found.high
        for run in fresh
        for found in [interval(run, "another", table=table)]
    ]
    assert 0.85 <= np.mean(inside) <= 0.95


@pytest.mark.parametrize("group", ["model", "source", "run"])
def test_shipped_intervals_hold_for_nine_of_ten_runs(group):
    cases = held(evidence_table(), group)
    spread = evidence_table().spread
    assert 0.87 <= cases.coverage(spread["scale"], spread["growth"]).mean() <= 0.94


def test_a_table_survives_its_file(tmp_path):
    runs = (published(parameters=8e9), published(1, source='a, "quoted" source', parameters=1.5e11))
    save_evidence(runs, tmp_path / "some.csv", "One line.\nAnother.")
    assert load_evidence(tmp_path / "some.csv") == runs


@pytest.mark.parametrize(
    ("stack", "when"),
    [("nemo-26.06", 2026.5), ("mcore-2024", 2024.5), ("nemo-25.0x", 2025.5), ("nemo-NeMo2", math.nan)],
)
def test_releases_are_dated_by_their_names(stack, when):
    assert year(stack) == pytest.approx(when, nan_ok=True)


def test_families_and_formats_are_told_apart():
    assert traits("dense") == frozenset()
    assert traits("mla-moe") == {"mla", "moe"}
    assert traits("gated-delta-moe") == {"gated-delta", "moe"}
    assert [bits(name) for name in ("bf16", "fp8-cs", "mxfp8", "nvfp4", "fp32")] == [16, 8, 8, 4, 32]


def test_predictions_carry_their_evidence():
    found = predict(
        load_model("llama3-8b"), Workload(8192, 128), hardware_db.load_cluster("dgx-h100"), Plan(cp=2, dp=4)
    )
    assert found.interval_low < found.step_time_s < found.interval_high
    assert 2 <= len(found.evidence) <= 3
    record = found.to_dict()
    assert record["interval"]["basis"]
    assert record["evidence"][0]["id"] == found.evidence[0].run.id
    again = predict(
        found.model, found.workload, found.cluster, found.plan, published_id=found.evidence[0].run.id
    )
    assert found.evidence[0].run.id not in {near.run.id for near in again.evidence}


def test_settings_are_plain_values():
    assert isinstance(PLAIN, Setting)
    assert (PLAIN.family, PLAIN.generation, PLAIN.gpus, PLAIN.fsdp) == ("dense", "hopper", 8, 0)


def test_techniques_that_differ_are_named():
    """A step that is quicker for its graphs is not said to differ by its release alone."""
    model, workload = load_model("deepseek-v3"), Workload(4096, 2048)
    cluster = hardware_db.load_cluster("gb200-nvl72")
    layout = {"pp": 4, "vpp": 4, "ep": 64, "dp": 64}
    plain = setting_of(model, workload, cluster, Plan(**layout), "nemo-26.06")
    tuned = setting_of(
        model,
        workload,
        cluster,
        Plan(**layout, moe_dispatcher="hybridep", overlap_moe_comm=True, cuda_graph=True),
        "nemo-26.06",
    )
    assert plain.techniques == "alltoall"
    table = Table(
        (
            Evidence(
                **asdict(plain), id="a", source="s", date="", measured_step_time_s=1, error=0, held_error=0
            ),
        )
    )
    assert table.distances(plain)[0] == 0
    (near,) = nearest(tuned, table=table)
    assert near.differences == ("hybridep instead of alltoall, with CUDA graphs and overlapped dispatch",)
    assert near.distance > 0


UNTUNED = {"quicker": 0.5, "slower": 8.0, "runs": 17}


def test_fine_tuning_of_experts_says_that_nobody_tuned_such_runs():
    table = Table((published(), published(1, family="moe", task="pretrain")), untuned=UNTUNED)
    lora = replace(PLAIN, task="lora")
    assert "17 runs on real data" in interval(replace(lora, family="moe"), table=table).basis
    assert "0.5 to 8 times" in interval(replace(lora, family="mla-moe"), table=table).basis
    for query in (lora, replace(PLAIN, family="moe")):
        assert "on real data" not in interval(query, table=table).basis
    tuned = Table((*table.runs, published(2, family="moe", task="lora")), untuned=UNTUNED)
    assert "on real data" not in interval(replace(lora, family="moe"), table=tuned).basis


def test_runs_that_nobody_tuned_have_the_interval_of_such_runs():
    record = evidence_table().untuned
    found = untuned_interval(Interval(-0.1, 0.1, "near runs"))
    assert found.low == pytest.approx(math.log(record["quicker"]))
    assert found.high == pytest.approx(math.log(record["slower"]))
    assert str(record["runs"]) in found.basis
    assert untuned_interval(Interval(-9.0, 9.0, "near runs")).high == 9.0


def test_a_graph_of_the_whole_step_is_told_from_graphs_of_layers():
    def words(model: str, *scope: str) -> str:
        plan = Plan(dp=8, ep=8 if model.startswith("qwen") else 1, cuda_graph=True, cuda_graph_scope=scope)
        cluster = hardware_db.load_cluster("dgx-h100")
        return setting_of(load_model(model), Workload(4096, 64), cluster, plan, "nemo-26.06").techniques

    assert "whole-step-graph" in words("qwen3-30b-a3b", "full_iteration").split()
    assert "whole-step-graph" not in words("qwen3-30b-a3b", "attn")
    assert words("llama3-8b", "full_iteration") == words("llama3-8b") == "graphs"


def test_a_block_that_hardly_any_run_has_is_as_unknown_as_a_machine():
    """Wider with compressed attention, of which no run is published, than with latent attention; and it is said."""
    known, unknown = (
        interval(replace(PLAIN, family=family, model="mine")) for family in ("mla-moe", "csa-moe")
    )
    assert unknown.high > known.high + 0.1
    assert "hardly any with compressed attention, so it is wider" in unknown.basis
    assert "latent" not in known.basis
