"""Laws of single terms of a step that travel: rings, units of FSDP, latents, shared embeddings, messages of stages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from step_cases import H100, leaf, llama, llama_of_four_stages

import hardware_db
from costmodel.amounts import rank_amounts
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.timing.network import HOP_INSIDE, all_gather_time, domain_time
from costmodel.workload import Workload


def test_every_pass_of_a_virtual_stage_has_a_start():
    whole, halves = (llama_of_four_stages(vpp) for vpp in (2, 4))
    passes = [2 * (64 * each.plan.vpp + 3) for each in (whole, halves)]
    started = [leaf(each, "pipeline_starts") for each in (whole, halves)]
    assert started[1] / started[0] == pytest.approx(passes[1] / passes[0])
    assert leaf(llama(), "pipeline_starts") == 0


def test_messages_between_nodes_take_two_of_a_ring_s_sms_from_the_compute_they_overlap():
    for dp, share in ((2, 1), (4, 2 / 16)):
        stages = llama_of_four_stages(2, dp)
        hop, slowdown = stages.values["pp_send_recv"], stages.values["overlap_slowdown"]
        steady, filling = 2 * 64 * 2 * slowdown * share, 2 * 3
        assert leaf(stages, "pipeline_send_recv") == pytest.approx((steady + filling) * hop)


def test_interleaved_stages_hide_data_parallel_communication_under_several_micro_batches():
    """Guide 002: with PP and VPP "DP communications overlap with multiple micro-batches"."""
    plain, quarters, eighths = (llama_of_four_stages(vpp, 64).values for vpp in (1, 4, 8))
    for direction in ("forward", "backward"):
        room = [found[f"dp_under_{direction}"] for found in (plain, quarters, eighths)]
        whole = room[0] / (1 - 1 / 8)  # of eight layers the last has nothing behind it
        expected = [
            whole * 4 * (1 - 1 / vpp) for vpp in (4, 8)
        ]  # four pass each chunk but the one that is alone
        assert room[1:] == pytest.approx(expected)


def test_a_chunk_s_parameters_are_gathered_before_anything_is_computed():
    for vpp in (4, 8):
        found = llama_of_four_stages(vpp, 64)
        gathered = found.values["dp_all_gather"]
        assert found.values["dp_under_forward"] > gathered
        assert leaf(found, "dp_gather") >= gathered / vpp


def test_a_unit_of_fsdp_pays_a_hop_for_every_rank_of_its_ring():
    few, many = (
        predict(
            load_model("llama3-8b"), Workload(8192, dp), H100, Plan(dp=dp, fsdp=True, zero_stage=3)
        ).values
        for dp in (256, 512)
    )
    for direction, operation in (("gather", "all_gather"), ("scatter", "reduce_scatter")):
        more = many[f"dp_fsdp_{direction}"] - few[f"dp_fsdp_{direction}"]
        assert more > 256 * many[f"{operation}_low_latency_per_rank"] > 0


def test_hops_belong_to_rings_that_leave_a_domain():
    """64 ranks on eight nodes: 56 hops inside nodes and 7 between; eight ranks of one node have none of them."""
    plan = Plan(dp=64, fsdp=True, zero_stage=3)
    values = predict(load_model("llama3-8b"), Workload(8192, 64), H100, plan).values

    def seconds(hop: float, ranks: int) -> float:
        return all_gather_time(SimpleNamespace(**values | {"ring_hop": hop}), 1e9, ranks, 8)

    # So many that the network counts, not the transfers inside nodes which run beside it.
    assert seconds(4e-4, 64) - seconds(1e-4, 64) == pytest.approx(3e-4 * (56 * HOP_INSIDE + 7))
    assert seconds(4e-4, 8) == seconds(1e-4, 8) > 0


@pytest.mark.parametrize(("inside", "one_card"), [(1, True), (2, False), (8, False)])
def test_groups_that_share_a_node_s_cards_do_not_know_the_rate_of_one(inside, one_card):
    values = predict(load_model("llama3-8b"), Workload(8192, 64), H100, Plan(dp=16)).values

    def seconds(**scales: float) -> float:
        return all_gather_time(SimpleNamespace(**values | scales), 1e9, 8 * inside, inside)

    assert (seconds(one_card_scale=0.1) > 2 * seconds(one_card_scale=0.5)) == one_card
    assert (seconds(inter_scale=0.1) > 2 * seconds(inter_scale=0.5)) == (not one_card)
    fixed = seconds(inter_scale=0.1) if one_card else seconds(one_card_scale=0.1)
    assert fixed == seconds()


def test_dispatch_between_nodes_does_not_go_at_the_rate_of_rings():
    cluster = hardware_db.load_cluster("dgx-b200")
    found = predict(load_model("qwen3-30b-a3b"), Workload(4096, 512), cluster, Plan(dp=16, ep=16)).values
    sending = found["dispatch_bytes_outside"] / (found["network_bandwidth"] * found["dispatch_network"])
    assert found["dispatch_network"] != pytest.approx(found["one_card_scale"], rel=0.02)
    assert found["dispatch_time"] == pytest.approx(sending + found["network_latency"])


def test_a_network_counts_as_what_runs_were_seen_to_move_on_it():
    fast, slow = (hardware_db.load_cluster(name) for name in ("dgx-b300", "dgx-b200"))
    assert fast.inter.bandwidth == 2 * slow.inter.bandwidth
    model, work, plan = load_model("llama3-8b"), Workload(8192, 64), Plan(dp=16)
    on_fast, on_slow = (predict(model, work, cluster, plan) for cluster in (fast, slow))
    share = fast.inter.quantities["reached"].si
    assert on_fast.values["network_bandwidth"] == pytest.approx(
        2 * share * on_slow.values["network_bandwidth"]
    )
    assert any("all that published runs move" in note for note in on_fast.assumptions)


@pytest.mark.parametrize("precision", ["bf16", "fp8-cs"])
def test_latents_are_gathered_and_their_gradients_scattered(precision):
    """Backward, latent attention gathers its output's gradient, hidden states as an MLP does, and scatters latents'."""
    plan = Plan(tp=2, pp=4, ep=8, dp=32, precision=precision, sequence_parallel=True)
    found = predict(load_model("deepseek-v3"), Workload(4096, 512), H100, plan).values
    hidden, latents = 7168, 1536 + 512 + 64
    assert found["mla_tp_gathered"] == pytest.approx(found["mlp_tp_gathered"] * latents / hidden)
    assert found["mla_all_gather_backward"] == pytest.approx(found["mlp_all_gather"])
    assert found["mla_all_gather"] < found["mla_all_gather_backward"]
    assert found["mla_reduce_scatter_backward"] < found["mla_reduce_scatter"] == found["mlp_reduce_scatter"]
    assert found["mlp_reduce_scatter_backward"] == pytest.approx(found["mlp_reduce_scatter"])


def test_zero3_of_2021_moves_units_through_one_card_of_a_node_whatever_the_ranks():
    """Twice the GPUs with half the micro-batch gain only what they compute; today's FSDP uses every card."""

    def units(stack: str, gpus: int) -> tuple[float, float]:
        cluster = hardware_db.resolve("a100", None)[0]
        plan = Plan(dp=gpus, fsdp=True, zero_stage=3, precision="fp16", micro_batch=1536 // gpus)
        prediction = predict(load_model("gpt3-175b"), Workload(2048, 1536), cluster, plan, stack)
        return prediction.values["dp_fsdp_gather"], prediction.values["dp_fsdp_scatter"]

    few, many = (units("deepspeed-21.04", gpus) for gpus in (768, 1536))
    assert many == pytest.approx(few, rel=0.01)
    now = units("deepspeed-23.06", 768)
    assert all(one > 3 * other for one, other in zip(few, now, strict=True))
    assert units("deepspeed-21.04", 8) == units("deepspeed-23.06", 8) > (0, 0)


@pytest.mark.parametrize(("tp", "slow"), [(1, 1), (2, 4), (4, 2), (8, 1)])
def test_rings_over_some_of_a_nodes_gpus_leave_it_by_one_share_where_the_stack_is_so(tp, slow):
    """vTrain's Megatron-DeepSpeed: groups of two and four GPUs a node; those of one and of all eight are as ever.

    The share is told at the rate of one card.
    """
    plan = Plan(tp=tp, pp=8, dp=64 // tp, precision="fp16", zero_stage=0, recompute="full")
    cluster = hardware_db.resolve("a100", None)[0]

    def told(stack: str) -> dict[str, float]:
        return predict(load_model("gpt-h8192-l48-a64"), Workload(2048, 1536), cluster, plan, stack).values

    shared, apart = told("megatron-22.05"), told("deepspeed-23.06")
    slower = slow * shared["inter_scale"] / shared["one_card_scale"] if slow > 1 else 1
    assert apart["dp_all_reduce"] == pytest.approx(slower * shared["dp_all_reduce"], rel=0.05)


@pytest.mark.parametrize(
    ("name", "plan", "near"),
    [
        ("gpt3-175b", Plan(tp=2, pp=4), True),
        ("gpt3-175b", Plan(tp=4, pp=8), False),
        ("deepseek-v3", Plan(pp=4, dp=16, ep=16, grad_reduce_in_fp32=False), False),
    ],
)
def test_an_embedding_on_two_stages_is_summed_as_a_dry_run_sends_it(name, plan, near):
    model, work = load_model(name), Workload(4096, 16 * plan.dp)
    (sent,) = [one for one in rank_amounts(plan, work, model, 0, 1).messages if one.group == "embedding"]
    told = predict(model, work, H100, plan)
    x = SimpleNamespace(**told.values)
    wire = sent.bytes * sent.count  # two ranks: 2 (n - 1) / n of the message
    card = x.network_latency + wire / (x.network_bandwidth * x.one_card_scale)
    expected = domain_time(x, "all_reduce", wire, 2) if near else card
    assert (told.values["world"] <= x.domain) == near
    assert leaf(told, "shared_embedding") == pytest.approx(expected)


def test_an_embedding_on_one_stage_is_not_summed_over_two():
    """GPT-3 ties its embedding to the output layer; Llama 3 8B has two matrices."""
    gpt, work = load_model("gpt3-5b"), Workload(2048, 64)
    assert leaf(predict(gpt, work, H100, Plan(tp=8)), "shared_embedding") == 0
    assert leaf(predict(gpt, work, H100, Plan(tp=2, pp=4)), "shared_embedding") > 0
    assert leaf(llama_of_four_stages(1), "shared_embedding") == 0


def test_a_mixed_exchange_sends_the_output_once_more_backward():
    """Groups of all-to-all as large as cp, with no ring between: Transformer Engine exchanges output and gradient."""
    alone, mixed = (
        predict(
            load_model("llama3-8b"),
            Workload(131072, 4),
            H100,
            Plan(cp=8, dp=1, cp_comm_type=kind, cp_a2a_size=8),
        ).values
        for kind in ("a2a", "a2a+p2p")
    )
    assert mixed["attention_cp_exposed_forward"] == pytest.approx(alone["attention_cp_exposed_forward"])
    more = mixed["attention_cp_exposed_backward"] - alone["attention_cp_exposed_backward"]
    assert more == pytest.approx(mixed["attention_cp_output_exchange"])
    assert 0 < more < alone["attention_cp_exposed_backward"]
