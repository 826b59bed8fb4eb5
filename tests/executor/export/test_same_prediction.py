"""A plan that was exported and read back has the same time and memory, for every model of the catalogue."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

import hardware_db
from advisor.case_from import read_foreign
from costmodel.fusions import activation_has_kernel
from costmodel.graph_parts import captured_parts
from costmodel.model_registry import list_models, load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload
from executor.export.bundle import bundle
from executor.export.exported import TARGETS, Exported, Job
from tests.executor.export.round_trip import OLDER_REFUSE

CLUSTER = hardware_db.load_cluster("dgx-h100")
GPUS = 16


def plans_of(name: str) -> dict[str, Plan]:
    """A plain plan, one with stages of the balancer's split and graphs, and one with experts over ranks."""
    staged = {"tp": 2, "pp": 2, "dp": 4, "sequence_parallel": True, "cuda_graph": True}
    model = load_model(name)
    found = {"plain": Plan(dp=GPUS)}
    if not model.layer_pattern:
        found["staged"] = Plan(**staged, pipeline_layout="balanced")
    if model.moe is not None:
        found["experts"] = Plan(dp=GPUS, ep=4, moe_dispatcher="deepep", recompute="full")
    return found


def read_back(job: Job, target: str) -> tuple[Exported, Prediction]:
    exported = bundle(job, target, slurm=False).exported
    text = next((text for name, text in exported.files.items() if name.endswith(".py")), "")
    options = {"gpus": GPUS, "cluster": CLUSTER.name}
    case = read_foreign(target, text or shlex.join(exported.command), options)
    return exported, predict(case.model, case.workload, case.cluster, case.plan)


def told_apart(job: Job, target: str, exported: Exported) -> bool:
    """Whether the target says something otherwise that a note of the export names, and time depends on."""
    said = " ".join(exported.notes)
    one_word = target == "nemo" and len(captured_parts(job.plan, job.model)) > 1 and job.plan.cuda_graph
    if one_word:
        assert "takes one word" in said
    return one_word


def stands_in(job: Job, exported: Exported) -> bool:
    """Whether a note says that an activation function with a fused kernel takes the place of one without."""
    return "--swiglu stands in" in " ".join(exported.notes) and not activation_has_kernel(job.model)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", list_models())
def test_what_is_read_back_takes_as_long_and_as_much(name, target):
    model, workload = load_model(name), Workload(2048, 64)
    for plan in plans_of(name).values():
        job = Job(plan, workload, model, CLUSTER)
        try:
            exported, back = read_back(job, target)
        except ValueError as refused:
            if not any(
                words in str(refused)
                for words in (
                    "does not build",
                    "no recipe that builds",
                    "has no fused kernels",
                    *OLDER_REFUSE,
                )
            ):
                raise
            continue
        if told_apart(job, target, exported):
            continue
        if target == "megatron-lm":
            assert (
                "--cross-entropy-fusion-impl" not in exported.command
            )  # the newest refuses another than its own
            plan = replace(plan, cross_entropy_fusion_impl="native")
            if model.learned_positions:  # a table as long as the sequences, which the text says
                model = replace(model, learned_positions=max(model.learned_positions, workload.seq_len))
        before = predict(model, workload, CLUSTER, plan)
        if stands_in(job, exported):
            assert back.step_time_s < before.step_time_s
            assert back.peak_memory_bytes <= before.peak_memory_bytes
            continue
        assert back.step_time_s == pytest.approx(before.step_time_s, rel=1e-9)
        assert back.peak_memory_bytes == pytest.approx(before.peak_memory_bytes, rel=1e-9)


@pytest.mark.parametrize("version", ["0.4.2", "0.6.2"])
def test_bridge_takes_heads_of_hybrids_in_its_pattern_or_from_the_recipe(version):
    """Megatron-Core 0.17 and later have them; they were noted as missing, and read back without."""
    model = load_model("nemotron3.5-lightning-30b-a3b")
    job = Job(Plan(dp=GPUS), Workload(2048, 64), model, CLUSTER, version=version)
    exported, back = read_back(job, "megatron-bridge")
    assert not [note for note in exported.notes if "multi-token" in note]
    assert back.model.name == model.name
    assert back.model.mtp_layers == 2


def test_older_hybrids_are_told_of_no_heads():
    job = Job(
        Plan(dp=GPUS), Workload(2048, 64), load_model("nemotron3-super-120b-a12b"), CLUSTER, version="0.16"
    )
    exported, _ = read_back(job, "megatron-lm")
    assert "--mtp-num-layers" not in exported.command
    assert [note for note in exported.notes if "multi-token" in note]


def test_a_gate_without_an_argument_stays_a_gate():
    """Grok's gated GELU was written as GELU without its gate: a third of the experts' weights fewer."""
    job = Job(Plan(dp=GPUS), Workload(2048, 64), load_model("grok1-314b"), CLUSTER)
    exported, back = read_back(job, "megatron-lm")
    assert "--swiglu" in exported.command
    assert back.model.gated
    assert any("--swiglu stands in" in note for note in exported.notes)


def test_nemo_before_implementations_reads_its_two_switches():
    plan = Plan(tp=2, dp=8, sequence_parallel=True, cuda_graph=True)
    job = Job(plan, Workload(2048, 64), load_model("llama3-8b"), CLUSTER, version="2.3.0")
    exported, back = read_back(job, "nemo")
    assert not [note for note in exported.notes if "cuda_graph_impl" in note]
    assert back.plan.cuda_graph
    assert dict(back.plan.settings) == {
        "nccl_graph_register": False
    }  # of the environment, no switch of graphs


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_by_tokens_of_fine_tuning_is_read_back(target):
    """It was taken for what Megatron-Bridge sets of itself, beside plans that had it off."""
    plan = Plan(cp=2, dp=GPUS // 2, calculate_per_token_loss=True)
    job = Job(plan, Workload(4096, 64, "sft"), load_model("llama3-8b"), CLUSTER)
    exported = bundle(job, target, slurm=False).exported
    text = next((text for name, text in exported.files.items() if name.endswith(".py")), "")
    case = read_foreign(target, text or shlex.join(exported.command), {"gpus": GPUS, "cluster": CLUSTER.name})
    assert case.plan.calculate_per_token_loss


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "heads"), [("deepseek-v3", 0), ("deepseek-v3", 1), ("qwen3-30b-a3b", 1)])
def test_heads_are_those_of_the_configuration_not_of_the_catalogue(name, heads, target):
    known = load_model(name)
    job = Job(Plan(dp=GPUS, ep=4), Workload(2048, 64), replace(known, mtp_layers=heads), CLUSTER)
    _, back = read_back(job, target)
    assert back.model.mtp_layers == heads


@pytest.mark.parametrize("said", ["-1", "x", "1.5"])
def test_a_number_of_heads_that_is_none_is_refused(said):
    job = Job(Plan(dp=GPUS, ep=4), Workload(2048, 64), load_model("deepseek-v3"), CLUSTER)
    words = bundle(job, "megatron-lm", slurm=False).exported.command
    place = words.index("--mtp-num-layers") + 1
    text = shlex.join((*words[:place], said, *words[place + 1 :]))
    with pytest.raises(ValueError, match=r"mtp.num.layers .* is not a whole number from 0 on"):
        read_foreign("megatron-lm", text, {"gpus": GPUS, "cluster": CLUSTER.name})
