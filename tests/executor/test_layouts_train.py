"""Every layout trains the same model on the same text: losses equal those of one process.

All of them train in one launch, each in a fork that has seen no other (`trained_in_turn`); `execute` and `resume`
launch their own.
"""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from training_runs import train_all

import hardware_db
from costmodel.model_registry import load_model
from costmodel.model_tables import Mla, Moe
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor import state
from executor.job_file import plan_of
from executor.record import read_ranks, read_steps
from executor.run import execute, make_job, missing_software, resume

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]

SHORT = Workload(64, 4)
TINY = load_model("tiny-gpt")
# LayerNorm, biases, learned positions, GELU, and an output matrix tied to the embedding.
GPT = dataclasses.replace(
    load_model("gpt3-126m"),
    num_layers=4,
    hidden=128,
    ffn_hidden=512,
    num_heads=4,
    num_kv_heads=4,
    head_dim=32,
    vocab=8000,
)
# Two layers, dense and sparse ones among them where there are experts.
SMALL = dataclasses.replace(
    TINY, name="small", num_layers=2, hidden=128, ffn_hidden=256, num_heads=4, num_kv_heads=2, vocab=1000
)
EXPERTS = Moe(num_experts=4, topk=2, expert_ffn=192, aux_loss_coeff=0.01)
MOE = dataclasses.replace(SMALL, name="small-moe", family="", moe=EXPERTS)
# Latent attention, a shared expert behind a sigmoid router with a bias, one dense layer first, and an MTP head.
DEEP = dataclasses.replace(
    SMALL,
    name="small-deep",
    family="",
    num_layers=3,
    num_kv_heads=4,
    qk_norm=True,
    mtp_layers=1,
    mla=Mla(q_lora_rank=48, kv_lora_rank=32, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32),
    moe=Moe(
        num_experts=4,
        topk=2,
        expert_ffn=192,
        shared_expert_ffn=128,
        dense_first_layers=1,
        router_score="sigmoid",
        router_dtype="fp32",
        expert_bias=True,
    ),
)


ALONE = Plan(precision="fp32")
LAYOUTS = [
    Plan(tp=2, sequence_parallel=True, precision="fp32"),
    Plan(dp=2, precision="fp32"),
    Plan(pp=2, recompute="full", recompute_num_layers=1, precision="fp32"),
]
SELECTIVE = Plan(recompute="selective", recompute_modules=("core_attn", "mlp"), precision="fp32")
BF16 = Plan()
FAMILIES = [
    (MOE, Plan(tp=2, etp=2, sequence_parallel=True, precision="fp32")),
    (MOE, Plan(dp=2, ep=2, precision="fp32")),
    (SMALL, Plan(cp=2, precision="fp32")),
    (DEEP, Plan(tp=2, ep=2, sequence_parallel=True, moe_dispatcher="allgather", precision="fp32")),
    (DEEP, Plan(pp=2, precision="fp32")),
]
TIED = (GPT, Plan(pp=2, precision="fp32"))
CASES = [
    *((model, ALONE) for model in (TINY, SMALL, MOE, DEEP, GPT)),
    *((TINY, plan) for plan in (*LAYOUTS, SELECTIVE)),
    *((SMALL, BF16), *FAMILIES, TIED),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Records of three steps of every case, by model's name and plan."""
    top = tmp_path_factory.mktemp("layouts")
    found = {(model.name, plan): top / str(index) for index, (model, plan) in enumerate(CASES)}
    jobs = {
        found[model.name, plan]: make_job(plan, SHORT, model, steps=3, warmup=0, cuda=False)
        for model, plan in CASES
    }
    train_all(jobs, top / "launch")
    return found


@pytest.fixture
def trained(folders):
    """A function that gives the steps of a case."""

    def steps(model, plan: Plan) -> list[dict]:
        folder = folders[model.name, plan]
        job = json.loads((folder / "job.json").read_text())
        # Whatever the layout: every rank holds the bytes that the cost model counts.
        held = state.compare(plan_of(job), SHORT, model, read_ranks(folder))
        assert {each.rank for each in held} == set(range(plan.world))
        assert [each for each in held if not each.equal] == []
        found = read_steps(folder)
        assert len(found) == 3
        return found

    return steps


@pytest.fixture
def alone(trained):
    """A function that gives the steps of one process."""
    return lambda model: trained(model, ALONE)


def same(first: list[dict], second: list[dict], within: float) -> None:
    """Losses and gradient norms agree. Tolerance: sums in another order, in float32."""
    for name in ("loss", "grad_norm"):
        assert [step[name] for step in first] == pytest.approx([step[name] for step in second], rel=within)


def test_one_process_starts_at_chance_and_learns(alone):
    losses = [step["loss"] for step in alone(TINY)]
    # Weights are small at first, so that every token is about as likely as another.
    assert losses[0] == pytest.approx(math.log(TINY.padded_vocab(1)), rel=0.03)
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("plan", LAYOUTS, ids=Plan.describe)
def test_a_layout_trains_as_one_process_does(trained, alone, plan):
    same(trained(TINY, plan), alone(TINY), 1e-3)


def test_selective_recompute_changes_no_number(trained, alone):
    same(trained(TINY, SELECTIVE), alone(TINY), 1e-6)


def test_bf16_stays_near(trained, alone):
    losses = [step["loss"] for step in trained(SMALL, BF16)]
    assert losses == pytest.approx([step["loss"] for step in alone(SMALL)], rel=1e-2)
    assert losses != [step["loss"] for step in alone(SMALL)]


@pytest.mark.parametrize(
    ("model", "plan"),
    FAMILIES,
    ids=lambda value: value.describe() if isinstance(value, Plan) else value.name,
)
def test_layouts_of_other_families(trained, alone, model, plan):
    same(trained(model, plan), alone(model), 1e-3)


def test_a_tied_embedding_is_one_matrix_on_two_stages(trained, alone):
    assert GPT.tied_embeddings
    same(trained(*TIED), alone(GPT), 1e-3)


def test_execute_keeps_a_whole_record(tmp_path, alone):
    plan = Plan(pp=2, vpp=2, precision="fp32")
    cluster = hardware_db.load_cluster("dgx-h100")
    # Any prediction serves: what is tested is the record, not the seconds.
    predicted = predict(TINY, SHORT, cluster, dataclasses.replace(plan, precision="bf16")).to_dict()
    told: list[str] = []
    result = execute(
        plan, SHORT, TINY, predicted=predicted, steps=2, warmup=1, out=tmp_path, progress=told.append
    )
    same(read_steps(tmp_path), alone(TINY), 1e-3)
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"job.json", "prediction.json", "environment.json", "steps.jsonl", "comparison.json"}
    assert {"memory-0.json", "memory-1.json", "worker.log"} <= names
    assert not [name for name in names if name.endswith(".tmp") or name.startswith("failure")]
    assert [line.split()[1] for line in told if line.startswith("step ")] == ["1/3", "2/3", "3/3"]
    assert told[-1].endswith("0 s left")
    assert all(each.equal for each in result.states)
    assert {each.rank for each in result.states} == {0, 1}
    for step in read_steps(tmp_path):
        assert len(step["memory"]["resident"]) == 2
        assert sum(step["exposed"].values()) == pytest.approx(step["phases"]["communication"])
    features = {feature.name: feature for feature in result.features}
    assert "one by one" in features["overlap_p2p"].observed
    assert "float32" in features["precision"].observed
    assert (features["rope_fusion"].requested, features["rope_fusion"].resolved) == (True, False)
    kept = json.loads((tmp_path / "comparison.json").read_text())
    assert kept["measured"]["last_loss"] < kept["measured"]["first_loss"]
    assert kept["rows"] == [row.to_dict() for row in result.rows]
    phases = result.measured["phases"]
    # Seconds of phases are apart from one another, so together they fit into the step.
    parts = sum(phases[name] for name in ("forward", "backward", "optimizer", "communication"))
    assert 0 < parts < 1.01 * max(step["seconds"] for step in read_steps(tmp_path))
    # Waits of a pipeline, which every step has, count as communication: little is left over of a step in which the
    # machine did nothing else.
    shares = [
        sum(step["phases"][name] for name in ("forward", "backward", "optimizer", "communication"))
        / step["seconds"]
        for step in read_steps(tmp_path)
    ]
    assert 0.8 < max(shares) < 1.01
    assert min(phases[name] for name in ("forward", "backward", "optimizer", "communication")) > 0


def test_a_run_that_was_cut_goes_on(tmp_path):
    """As a kill leaves it: some steps, of the last one a part."""
    plan = Plan(precision="fp32")
    cluster = hardware_db.load_cluster("dgx-h100")
    predicted = predict(TINY, SHORT, cluster, Plan()).to_dict()
    whole = execute(plan, SHORT, TINY, predicted=predicted, steps=3, warmup=1, out=tmp_path, progress=print)
    with pytest.raises(ValueError, match="complete"):
        resume(tmp_path, print)
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    (tmp_path / "steps.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:40])
    (tmp_path / "comparison.json").unlink()
    told: list[str] = []
    result = resume(tmp_path, told.append)
    steps = read_steps(tmp_path)
    assert [step["step"] for step in steps] == [0, 1, 2, 3, 4]
    assert [step["session"] for step in steps] == [0, 0, 1, 1, 1]
    assert [step["warmup"] for step in steps] == [True, False, True, False, False]
    assert result.measured["num_steps"] == whole.measured["num_steps"] == 3
    assert [line.split()[1] for line in told if line.startswith("step ")] == ["3/5", "4/5", "5/5"]
    assert (tmp_path / "comparison.json").exists()
