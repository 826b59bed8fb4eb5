"""Amounts of one rank: equal to numbers of real dry runs, and to the sums that the cost model is made of."""

from __future__ import annotations

from fractions import Fraction

import pytest
from family_cases import FAMILIES, FEW, sizes
from hypothesis import given
from hypothesis import strategies as st

from costmodel.amounts import amount_inputs, rank_amounts
from costmodel.layer import block_work
from costmodel.model_registry import load_model
from costmodel.model_work import model_flops
from costmodel.plan import Plan
from costmodel.rank_amounts import RankAmounts
from costmodel.symbols import BLOCKS
from costmodel.tensors import Tensor, block_tensors, make_buffer
from costmodel.workload import Workload

LLAMA = load_model("llama3-70b")
# As traced with Megatron-Core 0.16.1 and fused operators: one rank of 64, sequence 8192, one micro-batch.
TRACED = Plan(tp=4, pp=8, dp=2, sequence_parallel=True)
WORK = Workload(8192, 32)


def products(amounts: RankAmounts) -> int:
    return sum(sum(size.values()) for name, size in amounts.flops.items() if name not in ("core", "output"))


def total(amounts: RankAmounts, group: str, operation: str, phase: str) -> tuple[int, int]:
    """Bytes of one message and number of them, where all are of one size."""
    (one,) = [m for m in amounts.messages if (m.group, m.operation, m.phase) == (group, operation, phase)]
    return one.bytes, one.count


@pytest.mark.parametrize("stage", range(8))
def test_products_of_ten_llama_layers_as_traced(stage):
    amounts = rank_amounts(TRACED, WORK, LLAMA, stage, 1)
    assert products(amounts) == 105_140_799_406_080
    assert amounts.flops["core"]["forward"] == 2_748_779_069_440
    assert amounts.flops["core"]["backward"] == 2.5 * 2_748_779_069_440
    assert ("output" in amounts.flops) == (stage == 7)


def test_messages_of_ten_llama_layers_as_traced():
    amounts = rank_amounts(TRACED, WORK, LLAMA, 3, 1)
    whole = 8192 * 8192 * 2
    assert total(amounts, "tp", "all_gather", "forward") == (whole, 20)
    assert total(amounts, "tp", "reduce_scatter", "forward") == (whole, 20)
    assert total(amounts, "tp", "all_gather", "backward") == (whole, 40)
    assert total(amounts, "tp", "reduce_scatter", "backward") == (whole, 20)
    assert total(amounts, "pp", "send", "forward") == (whole // 4, 1)


def test_saved_activations_of_ten_llama_layers_as_traced():
    saved = rank_amounts(TRACED, WORK, LLAMA, 3, 1).saved
    assert sum(saved.values()) == pytest.approx(6_003_261_440, rel=1e-4)


def test_buckets_of_the_first_stage_as_traced():
    amounts = rank_amounts(TRACED, WORK, LLAMA, 0, 1)
    reduced = [m for m in amounts.messages if m.group == "dp" and m.phase == "gradients"]
    assert sum(m.count for m in reduced) == 21
    later = rank_amounts(TRACED, WORK, LLAMA, 1, 1)
    assert sum(m.count for m in later.messages if m.group == "dp" and m.phase == "gradients") == 1


def test_interleaved_stage_sends_every_chunk_as_traced():
    plan = Plan(tp=4, pp=8, vpp=5, dp=2, sequence_parallel=True)
    amounts = rank_amounts(plan, WORK, LLAMA, 0, 16)
    assert total(amounts, "pp", "send", "forward")[1] == 80
    assert total(amounts, "pp", "send", "backward")[1] == 64


def test_experts_of_deepseek_as_traced():
    # Two layers with experts, 16,384 routed rows on a rank: 2,048 tokens after sequence parallelism, eight copies.
    plan, deepseek = Plan(tp=2, pp=1, dp=64, ep=64, sequence_parallel=True), load_model("deepseek-v3")
    amounts = rank_amounts(plan, Workload(4096, 64), deepseek, 0, 1)
    layers = 58 + 1  # one more in the MTP head
    experts = sum(sum(amounts.flops[name].values()) for name in ("experts_fc1", "experts_fc2"))
    assert experts * 2 == 8_658_654_068_736 * layers


def test_selective_recompute_of_gpt3_keeps_what_korthikanti_counted():
    # 34 bytes an element and layer at tp = 8; with dropout, flash attention and without the score matrix.
    plan = Plan(tp=8, pp=8, sequence_parallel=True, dropout=True)
    amounts = rank_amounts(plan, Workload(2048, 8), load_model("gpt3-175b"), 3, 1)
    layers, element = 12, 2048 * 12288 / 8
    log_sum = 4 * 2048 * 96 / 8 * layers
    assert sum(amounts.saved.values()) - log_sum == pytest.approx(34 * element * layers, rel=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
@FEW
@given(data=st.data())
def test_tensors_sum_to_the_parameters_of_a_block(name, data):
    model = load_model(name)
    plan = Plan(**data.draw(sizes(model)))
    x, features = amount_inputs(plan, Workload(4096, plan.dp * plan.pp), model)
    for block in [each for each in BLOCKS if each in features]:
        work = block_work(x, block, features)
        tensors = block_tensors(x, work)
        # The balancing bias of a router is no trained parameter.
        untrained = x.expert_bias * x.E if block == "experts" else 0
        dense = sum(tensor.elements for tensor in tensors if not tensor.expert)
        assert dense == work.weights(grouped=False) + work.vectors - untrained
        assert (
            sum(t.elements for t in tensors if t.expert) == work.weights(grouped=True) + work.expert_vectors
        )


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "nemotronh-56b"])
def test_products_of_all_stages_are_the_model_flops(name):
    model = load_model(name)
    workload = Workload(4096, 8)
    plan = Plan(pp=4, vpp=1, sequence_parallel=False, dp=1)
    stages = [rank_amounts(plan, workload, model, stage, 8) for stage in range(4)]
    linear = sum(
        sum(size.values())
        for amounts in stages
        for name, size in amounts.flops.items()
        if name not in ("core", "scan")
    )
    cores = sum(
        size["forward"]
        for amounts in stages
        for name, size in amounts.flops.items()
        if name in ("core", "scan")
    )
    x, features = amount_inputs(plan, workload, model)
    padding = model.padded_vocab(1) - x.V
    x.V += padding
    wanted = model_flops(x, [block for block in BLOCKS if block in features], features)
    assert linear + 3 * cores == pytest.approx(float(wanted), rel=1e-12)


@FEW
@given(data=st.data())
def test_recompute_repeats_the_forward_pass_and_keeps_inputs(data):
    name = data.draw(st.sampled_from(["llama3-70b", "mixtral-8x7b", "nemotronh-56b"]))
    model = load_model(name)
    knobs = data.draw(sizes(model, stages=(1, 2)))
    plain = rank_amounts(Plan(**knobs), Workload(4096, knobs["dp"] * 8), model, 0, 2)
    again = rank_amounts(Plan(**knobs, recompute="full"), Workload(4096, knobs["dp"] * 8), model, 0, 2)
    for product, size in plain.flops.items():
        repeated = 0 if product == "output" else size["forward"]
        assert again.flops[product]["forward"] == size["forward"]
        assert again.flops[product]["backward"] == size["backward"] + repeated
    assert sum(again.saved.values()) < sum(plain.saved.values())
    assert again.parameters == plain.parameters


@pytest.mark.parametrize("name", FAMILIES)
@FEW
@given(data=st.data())
def test_one_rank_sends_nothing(name, data):
    amounts = rank_amounts(
        Plan(micro_batch=data.draw(st.sampled_from([1, 2]))), Workload(2048, 4), load_model(name), 0
    )
    assert not amounts.messages
    assert RankAmounts.from_dict(amounts.to_dict()) == amounts


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    ranks=st.sampled_from([1, 2, 3, 8]),
    bucket=st.sampled_from([0, 1000, 6000]),
)
def test_shards_of_a_buffer_hold_every_element_once(lengths, ranks, bucket):
    tensors = [Tensor(f"t{index}", size, shared=index == 3) for index, size in enumerate(lengths)]
    parts = [
        make_buffer(tensors, sharded=True, bucket_size=bucket, ranks=ranks, rank=r) for r in range(ranks)
    ]
    assert sum(part.in_shard for part in parts) == sum(lengths)
    assert all(size % ranks == 0 and size % 128 == 0 for size in parts[0].buckets)
    assert parts[0].elements >= sum(lengths)
    whole = make_buffer(tensors, sharded=False, bucket_size=bucket, ranks=ranks)
    assert whole.elements == whole.in_shard == sum(lengths)


def test_numbers_are_exact_where_doubles_are_not():
    plan = Plan(tp=2, sequence_parallel=True)
    amounts = rank_amounts(plan, Workload(2**17 - 2, 4), LLAMA, 0, 3)
    rows = Fraction(2**17 - 2)
    assert amounts.flops["fc1"]["forward"] == 3 * 80 * 2 * rows * 8192 * 28672
    assert isinstance(amounts.flops["core"]["backward"], int)


@pytest.mark.parametrize(
    ("knobs", "task", "words"),
    [
        ({"fsdp": True, "zero_stage": 3}, "pretrain", "--zero-stage 1"),
        ({}, "lora", "--task sft"),
    ],
)
def test_what_has_no_dry_run_is_said_in_one_line(knobs, task, words):
    with pytest.raises(ValueError, match=words) as error:
        rank_amounts(Plan(**knobs), Workload(4096, 8, task), LLAMA, 0)
    assert "\n" not in str(error.value)


def test_a_stage_that_is_not_there():
    with pytest.raises(ValueError, match="--stage 8 is not a stage of --pp 8"):
        rank_amounts(TRACED, WORK, LLAMA, 8)
