"""Ways out of the tuning guides help: the plan that takes one runs, and waits less for what the rule is about."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from advisor.case import Case
from advisor.cli import advisor
from advisor.cures import first_cure
from advisor.rules import Violation, violations
from advisor.rules.predicted_words import all_words
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction, resource_shares
from costmodel.simulated_pipeline import with_schedule
from costmodel.workload import Workload
from hardware_db import load_cluster


def predicted(
    plan: Plan, workload: Workload, model: str = "llama3-8b", where: str = "dgx-h100"
) -> Prediction:
    return predict(load_model(model), workload, load_cluster(where), plan)


def told(found: Prediction) -> dict[str, Violation]:
    """What the rules say of a predicted plan, by id."""
    words = all_words(found, None)
    plan = found.plan
    return {
        each.id: each
        for each in violations(found.model, found.workload, found.cluster, plan, plan.world, words)
    }


def taking(found: Prediction, batch: int = 0, **knobs: Any) -> Prediction:
    """The plan with other knobs, and another global batch where one is said."""
    workload = replace(found.workload, global_batch=batch or found.workload.global_batch)
    return predict(found.model, workload, found.cluster, replace(found.plan, **knobs))


def waits(found: Prediction, resource: str) -> float:
    return resource_shares(found.time)[resource]


PIPELINE, HOST_LINK = "pipeline bubble and transfers", "host memory and its link"
SHARDED = Plan(dp=64, fsdp=True, zero_stage=3)


def test_fsdp_hides_under_larger_micro_batches_and_not_under_more_of_them():
    """It gathers for every micro-batch anew."""
    exposed, what = predicted(SHARDED, Workload(2048, 256)), "data-parallel communication"
    way_out = told(exposed)["dp_exposed"].way_out
    assert way_out.startswith("Try a larger --micro-batch, or --no-fsdp --zero-stage 1")
    assert "--global-batch" not in way_out
    assert waits(taking(exposed, batch=1024), what) > 0.95 * waits(exposed, what)
    assert waits(taking(exposed, micro_batch=4), what) < 0.5 * waits(exposed, what)
    assert taking(exposed, fsdp=False, zero_stage=1).step_time_s < exposed.step_time_s


def test_fsdp_with_one_micro_batch_is_told_that_both_batches_grow():
    way_out = told(predicted(SHARDED, Workload(2048, 64)))["dp_exposed"].way_out
    assert way_out.startswith("Try a larger --micro-batch and --global-batch")


def test_packed_documents_fill_longer_sequences_and_not_larger_micro_batches():
    """NeMo performance tuning guide, Sequence Packing: in place of the micro-batch the sequence grows."""
    packed = Workload(1024, 64, task="sft", mean_length=300)
    exposed = told(predicted(SHARDED, packed))["dp_exposed"]
    assert exposed.way_out.startswith("Try a longer --seq-len")
    waiting = told(predicted(Plan(dp=64), packed, "llama3.2-1b"))["host_bound"]
    assert waiting.way_out.startswith("Try a longer --seq-len")
    apart = told(predicted(Plan(dp=64), replace(packed, packed=False), "llama3.2-1b"))["host_bound"]
    assert apart.way_out.startswith("Try a larger --micro-batch")


@pytest.mark.parametrize(
    ("tp", "cp", "dp", "model", "seq_len", "size"),
    [
        (1, 64, 1, "llama3-8b", 65536, 8),
        (4, 8, 2, "llama3-70b", 4096, 2),
        (8, 8, 1, "llama3-70b", 8192, 0),
    ],
)
def test_a_ring_that_shows_is_told_an_exchange_that_runs(tp, cp, dp, model, seq_len, size):
    """a2a+p2p with the inner size that the key/value heads allow, or not at all."""
    plan = Plan(tp=tp, cp=cp, dp=dp, sequence_parallel=tp > 1, recompute="full")
    exposed = predicted(plan, Workload(seq_len, 32), model)
    way_out = told(exposed)["cp_exposed"].way_out
    assert "--cp-comm-type all_gather" in way_out
    assert ("--cp-comm-type a2a+p2p" in way_out) == (size > 0)
    ways = [{"cp_comm_type": "all_gather"}]
    if size:
        assert f"--cp-comm-type a2a+p2p --cp-a2a-size {size}" in way_out
        ways.append({"cp_comm_type": "a2a+p2p", "cp_a2a_size": size})
    for way in ways:
        other = taking(exposed, **way)
        assert other.step_time_s < exposed.step_time_s
        assert not {name for name, each in told(other).items() if each.severity == "ERROR"}


@pytest.mark.parametrize(
    ("model", "comm", "task", "rule"),
    [
        ("gemma3-12b", "all_gather", "pretrain", "cp_exposed"),
        ("gemma3-12b", "a2a", "sft", "packed_exchange"),
        ("gpt-oss-20b", "a2a", "sft", "packed_exchange"),
    ],
)
def test_windows_and_sinks_are_not_told_a_ring_that_refuses_them(model, comm, task, rule):
    """`--cp-comm-type p2p` was told, and cp_sliding_window or cp_sinks refused the plan that took it."""
    plan, work = (
        Plan(tp=2, cp=4, sequence_parallel=True, cp_comm_type=comm, dp=4),
        Workload(32768, 32, task=task),
    )
    assert "--cp-comm-type p2p" not in told(predicted(plan, work, model))[rule].way_out
    ring = told(predicted(replace(plan, cp_comm_type="p2p"), work, model))
    assert ring.keys() & {"cp_sliding_window", "cp_sinks"}


def test_graphs_are_told_only_where_recompute_leaves_them_room():
    """`--cuda-graph` was told beside full recompute, and recompute_full_graph refused the plan that took it."""
    waiting = predicted(Plan(tp=4, dp=2, sequence_parallel=True), Workload(2048, 64), "llama3.2-1b")
    assert "--cuda-graph" in told(waiting)["host_bound"].way_out
    assert "recompute_full_graph" not in told(taking(waiting, cuda_graph=True))
    full = taking(waiting, recompute="full")
    assert "--cuda-graph" not in told(full)["host_bound"].way_out
    assert "recompute_full_graph" in told(taking(full, cuda_graph=True))


@pytest.mark.parametrize(("dp", "gpus", "segment"), [(18, 288, 72), (16, 256, 0)])
def test_stages_that_straddle_are_told_the_part_of_the_domain_that_they_tile(dp, gpus, segment):
    """NeMo performance tuning guide, NVL72: tp x dp divides the whole domain, or 64 of its GPUs."""
    plan = Plan(tp=4, pp=4, dp=dp, sequence_parallel=True, nvl_segment=0 if segment else 72)
    straddled = predicted(plan, Workload(8192, 8 * dp), "llama3-70b", "gb200-nvl72")
    way_out = told(straddled)["domain_straddled"].way_out
    assert ("Try --nvl-segment 72" in way_out) == (segment == 72)
    assert ("leave out --nvl-segment" in way_out) == (segment == 0)
    assert "domain_straddled" not in told(taking(straddled, nvl_segment=segment))


def test_a_pipeline_without_virtual_stages_is_told_that_they_fill_it():
    """NeMo performance tuning guide, Pipeline Parallelism: VPP with PP. Sends alone were told, with overlap_p2p on."""
    plan = Plan(tp=4, pp=8, dp=2, sequence_parallel=True, recompute="full", overlap_p2p=False)
    waiting = predicted(plan, Workload(8192, 32), "llama3-70b")
    way_out = told(waiting)["pipeline_exposed"].way_out
    assert way_out.startswith(
        "Try --vpp 2, or a larger --global-batch, or a smaller --pp with more --tp or --cp"
    )
    ways = ({"vpp": 2, "overlap_p2p": True}, {"batch": 128}, {"pp": 4, "tp": 8})
    for way in ways:
        other = taking(waiting, **way)
        assert waits(other, PIPELINE) < 0.7 * waits(waiting, PIPELINE)
        assert not {name for name, each in told(other).items() if each.severity == "ERROR"}
    full = taking(waiting, batch=1024, vpp=5, overlap_p2p=True)
    assert "pipeline_exposed" not in told(full)


def test_virtual_stages_are_told_only_where_layers_and_micro_batches_divide():
    def way_out(model: str, batch: int, **knobs: Any) -> str:
        plan = Plan(tp=4, pp=8, dp=2, sequence_parallel=True, recompute="full", **knobs)
        return told(predicted(plan, Workload(8192, batch), model))["pipeline_exposed"].way_out

    assert "--vpp" in way_out("llama3-70b", 32)
    assert "--vpp" not in way_out("llama3-70b", 34)
    assert "--vpp" not in way_out("llama3-70b", 32, pipeline_layout="balanced")
    assert "--micro-batch 1" in way_out("llama3-70b", 32, micro_batch=2)


@pytest.mark.parametrize(
    ("model", "plan", "way"),
    [
        ("deepseek-v3", Plan(pp=16, dp=16, ep=16), ""),
        ("tiny-gpt", Plan(pp=4, dp=16), ", or --pp 1 --vpp 1 --dp 64"),
    ],
    ids=("full", "empty"),
)
def test_fewer_stages_are_told_where_memory_surely_holds_them(model, plan, way):
    """`--pp 1` of DeepSeek-V3 on 16 stages took 478 GiB of an H100's 80."""
    spec = load_model(model)
    odd = spec if spec.moe else replace(spec, num_layers=5)
    found = predict(odd, Workload(4096 if spec.moe else 256, 2048), load_cluster("dgx-h100"), plan)
    assert told(found)["pp_layers"].way_out == f"Try --pipeline-layout balanced{way}."


@pytest.mark.parametrize(
    ("model", "sizes", "gains"),
    [
        ("llama3-8b", (8, 4, 2), True),
        ("llama3-8b", (4, 1, 4), True),
        ("llama3-8b", (4, 4, 4), True),
        ("llama2-7b", (4, 4, 4), False),
    ],
)
def test_a_large_vocabulary_on_an_end_stage_is_told_where_fewer_layers_there_gain(model, sizes, gains):
    """NeMo performance tuning guide, Asymmetric Transformer layer allocation: 128k words on 32 layers, and 32k."""
    pp, vpp, dp = sizes
    plan = Plan(pp=pp, vpp=vpp, dp=dp, recompute="full")
    uneven = predicted(plan, Workload(8192, 64), model=model)
    found = told(uneven)
    assert ("stages_uneven" in found) == gains
    assert told(with_schedule(uneven)).keys() == found.keys()
    balanced = with_schedule(taking(uneven, pipeline_layout="balanced")).step_time_s
    saved = 100 * (1 - balanced / with_schedule(uneven).step_time_s)
    assert (saved > 1) == gains
    if gains:
        assert found["stages_uneven"].way_out == "Try --pipeline-layout balanced."
        assert f"would save {round(saved)} %" in found["stages_uneven"].text


def test_offloading_that_the_host_link_does_not_hide_is_told():
    """Over PCIe, not over C2C; fewer layers help, as the guides say."""
    plan = Plan(cp=2, dp=32, offload_layers=31)
    shown = predicted(plan, Workload(32768, 64))
    assert "Try fewer --offload-layers" in told(shown)["offload_exposed"].way_out
    assert waits(taking(shown, offload_layers=16), HOST_LINK) < 0.5 * waits(shown, HOST_LINK)
    assert taking(shown, offload_layers=0, recompute="full").step_time_s < shown.step_time_s
    fewer = replace(plan, offload_layers=16)
    assert "offload_exposed" in told(predicted(fewer, Workload(16384, 64)))
    assert "offload_exposed" not in told(predicted(fewer, Workload(16384, 64), where="gb200-nvl72"))


def test_tensor_parallelism_that_starves_the_gpu_is_told_that_fsdp_does_without():
    """NeMo performance tuning guide, FSDP: a host-bound baseline, and tensors that grow by eliminating TP."""
    plan = Plan(tp=8, dp=8, sequence_parallel=True)
    starved = predicted(plan, Workload(2048, 64))
    for rule in ("host_bound", "tp_exposed"):
        assert "--fsdp --zero-stage 3 --tp 1 --no-sequence-parallel --dp 64" in told(starved)[rule].way_out
    sharded = taking(starved, tp=1, dp=64, sequence_parallel=False, fsdp=True, zero_stage=3)
    assert sharded.step_time_s < 0.6 * starved.step_time_s
    # The host issues as many kernels: at 2,048 tokens it just keeps up.
    assert sharded.values["host_bound"] < 0.1 * starved.values["host_bound"]
    staged = told(predicted(replace(plan, dp=4, pp=2), Workload(2048, 64)))
    assert not any("--fsdp" in staged[rule].way_out for rule in ("host_bound", "tp_exposed"))


@pytest.mark.parametrize(
    ("where", "cure"), [("gb200-nvl72", "--offload-layers 20"), ("dgx-b200", "recompute")]
)
def test_what_does_not_fit_waits_in_host_memory_where_its_link_is_fast(where, cure):
    """NeMo performance tuning guide, FSDP: on GB200 activations are offloaded, at no time here."""
    plan = Plan(dp=64, fsdp=True, zero_stage=3, grad_reduce_in_fp32=False)
    found = predicted(plan, Workload(8192, 64), "llama3-70b", where)
    assert not found.fits
    case = Case(found.model, found.workload, found.cluster, 64, plan, None, (), None)  # type: ignore[arg-type]
    mended = first_cure(case)
    assert mended is not None
    assert cure in mended.options()
    slower = mended.prediction.step_time_s / found.step_time_s
    assert slower == pytest.approx(1, abs=1e-6) if where == "gb200-nvl72" else slower > 1.1


def test_predict_and_check_tell_the_same_bubble():
    """Both of the simulated pipeline."""
    plan = [
        "--model",
        "8b",
        "--gpus",
        "16",
        "--gpu",
        "h100",
        "--pp",
        "8",
        "--dp",
        "2",
        "--global-batch",
        "16",
        "--recompute",
        "full",
    ]
    found = {}
    for command in ("predict", "check"):
        done = CliRunner().invoke(advisor, [command, *plan, "--json"])
        record = json.loads(done.output)
        (found[command],) = (
            each["text"] for each in record["violations"] if each["id"] == "pipeline_exposed"
        )
    assert found["predict"] == found["check"]
