"""What a model, its machine and its software leave to be searched: knobs that work there, as runs have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from space_cases import LLAMA, TINY, ask, cluster, plans

from advisor.request import make_request
from advisor.space import build_space
from costmodel.knobs import KNOBS
from costmodel.model_registry import load_model


def test_knobs_without_effect_keep_their_default():
    for plan in plans(ask(gpus=8, batch=16)):
        assert plan.cp > 1 or plan.cp_comm_type == "p2p"
        assert plan.tp > 1 or not plan.tp_comm_overlap
        assert plan.pp > 1 or not plan.account_loss


def test_gradients_of_many_ranks_are_reduced_in_fp32():
    space = build_space(ask(gpus=256, batch=1024), "bf16")
    shards = space.columns["dp"] * space.columns["cp"]
    assert np.array_equal(space.columns["grad_reduce_in_fp32"] == 1, shards >= 128)


def test_all_to_all_inside_the_domain_and_a_ring_outside_is_searched_where_context_spans_domains():
    space = build_space(ask(load_model("gpt3-175b"), 64, 2048, 16), "bf16")
    assert not np.any(space.columns["cp_comm_type"] == 3)
    long = build_space(ask(LLAMA, 64, 131072, 16), "bf16")
    mixed = long.columns["cp_comm_type"] == 3
    assert np.any(mixed)
    assert np.all((long.columns["cp"] * long.columns["tp"])[mixed] > 8)


def test_hybrids_have_even_stages_of_one_chunk_and_overlap_no_experts():
    space = build_space(ask(load_model("nemotron3-nano-30b-a3b"), 8, batch=16), "bf16")
    assert space.column("pp").max() > 1
    assert space.column("vpp").max() == 1
    assert not any(
        space.column(name).any()
        for name in (
            "pipeline_layout",
            "account_embedding",
            "account_loss",
            "overlap_moe_comm",
            "delay_wgrad",
        )
    )


@pytest.mark.parametrize("model", ["mixtral-8x7b", "gpt-oss-20b"])
def test_no_exchange_is_overlapped_beside_adapters(model):
    """Rules ep_overlap_adapters and delay_wgrad_adapters; graphs are searched all the same."""
    request = ask(load_model(model), 8, batch=16, pins={"tp": 1, "cp": 1, "micro_batch": 1})
    workload = replace(request.workload, task="lora")
    found = plans(replace(request, workload=workload))
    assert {plan.ep > 1 for plan in found} == {plan.cuda_graph for plan in found} == {False, True}
    assert not any(plan.overlap_moe_comm or plan.delay_wgrad for plan in found)


def test_ranks_of_models_with_sinks_exchange_heads():
    legal = plans(ask(load_model("gpt-oss-20b"), 8, batch=16))
    assert {plan.cp_comm_type for plan in legal if plan.cp > 1} == {"a2a"}


def test_a_processor_has_no_graphs_and_no_user_buffers():
    processor = cluster("cpu", link="shared-memory")
    processor.gpu.vendor = "local"
    found = plans(ask(cluster=processor))
    assert found
    assert not any(plan.cuda_graph or plan.tp_comm_overlap for plan in found)


def test_what_is_nvidias_is_searched_on_nvidias_gpus_alone():
    amd = cluster()
    amd.gpu.vendor = "AMD"
    switches = {(plan.cuda_graph, plan.tp_comm_overlap) for plan in plans(ask(cluster=amd))}
    assert switches == {(False, False)}
    assert {plan.cuda_graph for plan in plans(ask(cluster=amd, pins={"cuda_graph": True}))} == {True}
    assert {plan.cuda_graph for plan in plans(ask())} == {False, True}


def test_heads_without_a_fused_kernel_are_searched_unfused():
    odd = replace(TINY, head_dim=60)
    assert {plan.attention_backend for plan in plans(ask(model=odd))} == {"unfused"}
    assert {plan.attention_backend for plan in plans(ask())} == {"fused"}


@pytest.mark.parametrize(
    ("stack", "domain", "dispatcher"),
    [
        (None, 8, "hybridep"),
        ("nemo-25.11", 8, "deepep"),
        (None, 72, "hybridep"),
        ("nemo-25.11", 72, "hybridep"),
        ("nemo-24.05", 72, "alltoall"),
        ("nemo-25.09", 72, "alltoall"),  # as its twelve published runs on GB200
        ("nemo-25.07", 72, "alltoall"),
        ("mcore-26.01", 8, "deepep"),
        ("mcore-26.01", 72, "hybridep"),
        ("torchtitan", 72, "alltoall"),
        ("torchtitan", 8, "alltoall"),
    ],
)
def test_tokens_are_dispatched_as_runs_of_that_software_were_published(stack, domain, dispatcher):
    request = ask(model=load_model("mixtral-8x7b"), gpus=8, cluster=cluster(domain=domain), stack=stack)
    space = build_space(request, "bf16")
    sent = space.column("moe_dispatcher")[space.column("ep") > 1]
    assert {KNOBS["moe_dispatcher"].choices[int(number)] for number in np.unique(sent)} == {dispatcher}


@pytest.mark.parametrize(
    ("stack", "split", "alone"),
    [("nemo-24.05", True, True), ("nemo-25.02", False, True), ("nemo-26.08", False, False)],
)
def test_experts_are_split_over_tp_where_they_have_no_size_of_their_own(stack, split, alone):
    """Before Megatron-Core 0.10, without expert parallelism before 0.19; a size that is pinned is as it is pinned."""
    asked = {"model": load_model("mixtral-8x7b"), "gpus": 8, "stack": stack}
    found = build_space(ask(**asked), "bf16")
    whole = found.column("etp") == found.column("tp")
    for expected, spread in ((split, True), (alone, False)):
        wide = (found.column("tp") > 1) & ((found.column("ep") > 1) == spread)
        assert wide.any()
        assert np.all(whole[wide] == expected)
    pinned = build_space(ask(**asked, pins={"tp": 4, "etp": 4}), "bf16")
    assert set(pinned.column("etp")) == {4}


@pytest.mark.parametrize(
    ("domain", "gpus", "pins", "segments"),
    [
        (72, 144, {}, {0, 72}),
        (72, 72, {}, {0}),  # one domain holds them all
        (72, 128, {}, {0}),
        (8, 144, {}, {0}),
        (72, 144, {"nvl_segment": 36}, {36}),
    ],
)
def test_whole_domains_are_tried_where_they_tile_the_job(domain, gpus, pins, segments):
    request = ask(LLAMA, gpus, batch=gpus, cluster=cluster("blackwell", domain), pins={"pp": 1, **pins})
    assert {plan.nvl_segment for plan in plans(request)} == segments


@pytest.mark.parametrize(("model", "alone"), [("gpt-oss-20b", True), ("mixtral-8x7b", False)])
def test_dispatch_is_overlapped_without_delayed_gradients_where_graphs_refuse_those(model, alone):
    """Of linear layers with bias (rule delay_wgrad_graph); pinning the overlap leaves graphs too."""
    for pins in ({}, {"overlap_moe_comm": True}):
        found = plans(ask(load_model(model), 8, batch=16, pins={"cp": 1, "tp": 1, "micro_batch": 1, **pins}))
        ways = {(plan.delay_wgrad, plan.cuda_graph) for plan in found if plan.overlap_moe_comm}
        assert ((False, True) in ways) == alone
        assert ((True, True) in ways) == (not alone)
        assert (False, False) not in ways or pins


@pytest.mark.parametrize(
    ("gpu", "pins", "most"),
    [
        ("gb200", [], 64),
        ("gb200", ["ep=128"], 128),
        ("gb200", ["moe_dispatcher=alltoall"], 256),
        ("h100", [], 256),
    ],
)
def test_experts_stay_in_a_rack_unless_it_is_asked_for(gpu, pins, most):
    """EP128 over two racks was searched, which NVIDIA's scripts refuse: see the rule hybridep_domain."""
    asked = make_request("deepseek-v3", 256, gpu, precision="bf16", pins=["tp=1", "pp=1", "cp=1", *pins])
    assert build_space(asked, "bf16").column("ep").max() == most


@pytest.mark.parametrize(
    ("model", "pins", "on"),
    [
        ("nemotronh-8b", [], False),
        ("nemotronh-8b", ["bias_activation_fusion=on"], True),
        ("llama3-8b", [], True),
    ],
)
def test_a_plan_has_no_fused_activation_that_has_no_kernel(model, pins, on):
    """The answer for Nemotron-H told to add --pin bias_activation_fusion=off to the plan it had just given."""
    space = build_space(make_request(model, 8, "h100", precision="bf16", pins=pins), "bf16")
    assert (space.column("bias_activation_fusion") == on).all()


@pytest.mark.parametrize(
    ("precision", "stack", "on"),
    [
        ("mxfp8", None, True),
        ("mxfp8", "mcore-26.03", True),
        ("fp8-cs", None, False),
        ("bf16", None, False),
        ("mxfp8", "torchtitan", False),
    ],
)
def test_norms_of_mxfp8_are_cudnns_where_transformer_engine_has_them(precision, stack, on):
    request = make_request("llama3-8b", 8, "b200", stack=stack)
    assert np.all(build_space(request, precision).columns["cudnn_norms"] == on)


@pytest.mark.parametrize(
    ("task", "stack", "pins", "on"),
    [
        ("lora", None, [], True),
        ("sft", None, [], True),
        ("pretrain", None, [], False),
        ("lora", "torchtitan", [], False),
        ("lora", None, ["calculate_per_token_loss=off"], False),
    ],
)
def test_fine_tuning_with_context_parallelism_divides_the_loss_by_tokens(task, stack, pins, on):
    """The plan had it off, which the export for Megatron-Bridge then wrote on."""
    asked = make_request("llama3-8b", 8, "h100", task=task, seq_len=8192, stack=stack, pins=pins)
    space = build_space(asked, "bf16")
    split = space.column("cp") > 1
    assert split.any()
    assert np.array_equal(space.column("calculate_per_token_loss") == 1, split & on)
