"""A way out that is taken breaks nothing else: sizes that do not divide, on GPUs that stay as many as they are."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from advisor.rules import violations
from costmodel.knobs import KNOBS, SETTINGS
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from hardware_db import load_cluster

MACHINE = load_cluster("dgx-h100")
OPTION = re.compile(r"--(no-)?([a-z][a-z0-9-]*)(?: (\w(?:[\w+-]*\w)?))?")
SETTING = re.compile(r"--set (\w+)=(\w+)")
MODELS = (
    *("llama3-8b", "llama3-70b", "llama2-13b", "gpt3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"),
    *("gpt-oss-20b", "nemotronh-8b", "qwen3-next-80b-a3b", "tiny-gpt"),
)


# Rules below ERROR whose ways are sizes: what they say must hold too.
ALSO = {
    "cp_narrow", "kv_heads_replicated", "max_connections_experts", "tp_overlap_mla", "p2p_overlap_without_vpp",
    "etp_exposed", "csa_gathers",
}  # fmt: skip


def errors(model: str, workload: Workload, plan: Plan, gpus: int) -> dict[str, str]:
    found = violations(load_model(model), workload, MACHINE, plan, gpus)
    return {each.id: each.way_out for each in found if each.severity == "ERROR" or each.id in ALSO}


def options(way_out: str) -> Iterator[str]:
    """Ways that are options of a plan alone: "with tp x cp a divisor" needs more, --stack other software."""
    for way in way_out.rstrip(".").split(", or "):
        if re.match(r"((try|add|use) )?--", way, re.IGNORECASE) and not re.search(", with|--stack", way):
            yield way.partition(";")[0]


def taken(way: str, workload: Workload, plan: Plan, gpus: int) -> tuple[Workload, Plan]:
    """The setting that takes a way and nothing else."""
    sizes: dict[str, int] = {}
    knobs: dict[str, Any] = {}
    settings = dict(plan.settings) | {
        name: SETTINGS[name].parse(value) for name, value in SETTING.findall(way)
    }
    for off, dashed, value in OPTION.findall(SETTING.sub("", way)):
        name = dashed.replace("-", "_")
        if name in ("global_batch", "seq_len"):
            sizes[name] = int(value)
        else:
            knobs[name] = KNOBS[name].parse(value) if KNOBS[name].kind != "bool" else not off
    other = replace(plan, **knobs)
    assert gpus % other.replica == 0, f"{way}: {gpus} GPUs are no multiple of {other.replica}"
    assert other.world == gpus, f"{way}: {other.world} of {gpus} GPUs with the data-parallel ranks given"
    return replace(workload, **sizes), replace(other, settings=settings)


def broken_ways(model: str, workload: Workload, plan: Plan) -> tuple[int, list[str]]:
    """How many ways are told, and those that leave their rule broken or break another."""
    before, told, wrong = errors(model, workload, plan, plan.world), 0, []
    for rule, way_out in before.items():
        for way in options(way_out):
            told += 1
            try:
                after = errors(model, *taken(way, workload, plan, plan.world), plan.world)
            except AssertionError as error:
                wrong.append(f"{rule}: {error}")
                continue
            if new := sorted((after.keys() - before.keys() - ALSO) | (after.keys() & {rule})):
                wrong.append(f"{rule}: {way}: {', '.join(new)} for {plan.describe()} of {model}")
    return told, wrong


@pytest.mark.parametrize(
    ("model", "batch", "plan"),
    [
        ("llama3-70b", 7, Plan(tp=6, pp=5, vpp=3)),  # heads said --tp 4, the feed-forward size --tp 7
        ("llama3-8b", 128, Plan(tp=3, dp=8)),  # --tp 2 left 128 sequences for 12 ranks
        ("llama3-8b", 32, Plan(tp=2, pp=5, dp=2)),  # --pp 4 of 20 GPUs
        ("llama3-70b", 100, Plan(tp=8, pp=3, cp=2, vpp=5, micro_batch=3)),  # 102 and 108 sequences
        ("llama2-13b", 32, Plan(tp=6, dp=5, sequence_parallel=True)),  # 5 divides heads, not the rest
        ("mixtral-8x7b", 128, Plan(tp=2, dp=3, ep=3, etp=2, sequence_parallel=True)),
        ("deepseek-v3", 500, Plan(tp=3, pp=4, dp=8, ep=24)),
        ("deepseek-v3", 128, Plan(tp=6, pp=2, dp=4, ep=16)),  # --ep 12 of 256 experts
        ("qwen3-next-80b-a3b", 128, Plan(tp=8, pp=5, etp=3)),  # --ep 1 mended nothing
        ("gpt-oss-20b", 100, Plan(cp=4, dp=2, vpp=3, micro_batch=2)),
        ("nemotronh-8b", 128, Plan(tp=7, dp=8, pp=3, cp=3)),
        # --account-loss, which the plan had, for 33 of 34
        ("llama3-8b", 128, Plan(pp=3, account_embedding=True, account_loss=True)),
        ("deepseek-v4-flash", 128, Plan(pp=2, vpp=2, account_embedding=True, account_loss=True)),
        # --vpp 2 of 4 micro-batches on 5 stages, of an odd number of layers, or of two stages without overlap_p2p
        ("mixtral-8x7b", 4, Plan(pp=4, dp=2, ep=2, overlap_moe_comm=True)),
        ("deepseek-v3", 128, Plan(pp=2, dp=4, ep=4, overlap_moe_comm=True, overlap_p2p=False)),
        # --vpp 1, which the overlapped exchange cannot take, and groups that the micro-batches do not fill
        (
            "mixtral-8x7b",
            6,
            Plan(pp=4, vpp=2, ep=1, overlap_moe_comm=True, delay_wgrad=True, recompute="selective"),
        ),
        ("llama3-70b", 100, Plan(pp=8, vpp=5, dp=4, vpp_group_size=4)),
        # --overlap-moe-comm of a model without experts, or beside full recompute
        ("llama3-8b", 128, Plan(dp=8, delay_wgrad=True)),
        ("mixtral-8x7b", 128, Plan(dp=8, ep=8, delay_wgrad=True, recompute="full")),
        # a layout beside the counts of the end stages; an inner size of one rank; two stages of 7 GPUs
        ("llama3-8b", 128, Plan(pp=4, vpp=2, first_stage_layers=7, account_loss=True)),
        ("llama3-8b", 128, Plan(tp=8, cp=2, cp_comm_type="a2a+p2p", sequence_parallel=True)),
        ("llama3-8b", 128, Plan(dp=7, defer_embedding_wgrad=True)),
        # one chunk a stage, beside settings that need several
        ("llama3-8b", 100, Plan(tp=2, pp=3, vpp=2, dp=2, settings={"overlap_p2p_comm_warmup_flush": True})),
        (
            "llama3-8b",
            100,
            Plan(pp=5, vpp=3, dp=2, settings={"overlap_param_gather_with_optimizer_step": True}),
        ),
        # --vpp 2 of 5 recomputed layers on stages of 10
        ("llama3-70b", 128, Plan(pp=8, recompute="full", recompute_num_layers=5)),
        # --cp 1 with --tp 8 of 60 GPUs, --tp 1 --cp 1 with sequence_parallel, --tp 4 and more dp than the batch
        ("gpt3-175b", 128, Plan(tp=3, cp=4, dp=5)),
        ("gpt3-175b", 128, Plan(tp=6, cp=4, dp=5, sequence_parallel=True, cp_comm_type="a2a+p2p")),
        ("mixtral-8x7b", 128, Plan(tp=2, dp=4, ep=4, sequence_parallel=True, overlap_moe_comm=True)),
        ("deepseek-v3", 128, Plan(tp=8, ep=8, dp=2, sequence_parallel=True, tp_comm_overlap=True)),
        ("qwen3-30b-a3b", 32, Plan(tp=8, ep=4, dp=1, sequence_parallel=True)),
    ],
    ids=lambda value: value.describe() if isinstance(value, Plan) else str(value),
)
def test_each_way_out_holds_by_itself(model, batch, plan):
    told, wrong = broken_ways(model, Workload(4096, batch), plan)
    assert told
    assert not wrong


def test_chunks_over_which_recomputed_layers_do_not_divide_are_not_told():
    """Of the 11 layers of a stage 8 were recomputed, and --vpp 11 told."""
    plan = Plan(pp=3, ep=4, dp=4, account_loss=True, recompute="full", recompute_num_layers=8)
    found = errors("mixtral-8x7b", Workload(4096, 576), plan, 12)
    assert found == {
        "p2p_overlap_without_vpp": "Try --vpp 2 --pipeline-layout balanced --no-account-loss, or accept it."
    }
    assert not errors(
        "mixtral-8x7b",
        Workload(4096, 576),
        replace(plan, vpp=2, pipeline_layout="balanced", account_loss=False),
        12,
    )


def test_where_layers_divide_into_many_chunks_alone_two_of_a_balanced_layout_are_told():
    """62 layers of DeepSeek-V3 on two stages were answered with --vpp 31."""
    plan = Plan(pp=2, ep=64, dp=64, overlap_moe_comm=True, account_embedding=True)
    balanced = "--vpp 2 --pipeline-layout balanced --no-account-embedding"
    found = errors("deepseek-v3", Workload(4096, 2048), plan, 128)
    assert found["ep_overlap_needs_vpp"] == f"Try {balanced}, or --no-overlap-moe-comm."
    assert found["p2p_overlap_without_vpp"] == f"Try {balanced}, or accept it."
    # Of 62 layers and one for the loss on three stages, 21 each, three.
    three = replace(plan, pp=3, account_embedding=True, account_loss=True)
    found = errors("deepseek-v3", Workload(4096, 64 * 33), three, 192)
    assert found["ep_overlap_needs_vpp"] == "Try --vpp 3, or --no-overlap-moe-comm."


def test_many_chunks_are_told_beside_account_flags_alone():
    """An uneven split of vpp = 3 was told --vpp 1 or 31 beside the balanced layout."""
    plan = Plan(pp=2, vpp=3, dp=4, ep=4, account_embedding=True)
    ways = errors("deepseek-v3", Workload(4096, 2048), plan, 8)
    assert "--vpp 1 or 31" in " ".join(ways.values())
    plain = errors("gpt-oss-20b", Workload(4096, 2048), Plan(pp=2, vpp=5, dp=4, ep=4), 8)
    assert "--vpp 1 or 2, 3, 4, 6, or --pipeline-layout balanced" in " ".join(plain.values())


def test_ranks_of_a_plan_for_other_gpus_are_told_by_the_rule_about_gpus_alone():
    found = errors("llama3-8b", Workload(8192, 128), Plan(tp=16, dp=4), 8)
    assert found["kv_heads_replicated"] == "Try --tp 8."
    assert "dp = " in found["world"] or "--gpus 64" in found["world"]


def test_batch_of_a_way_out_is_that_of_the_gpus_there_are():
    """--global-batch 1120 was told, for dp = 40 of the 640 GPUs of the sizes: the next rule refused it on 512."""
    chunks = Plan(tp=5, pp=4, vpp=5, dp=32)
    assert errors("llama3-70b", Workload(8192, 1024), chunks, 512)["heads_over_tp"] == "Try --tp 4."
    assert not errors("llama3-70b", Workload(8192, 1024), replace(chunks, tp=4), 512)
    told = errors("llama3-70b", Workload(8192, 1008), chunks, 512)["heads_over_tp"]
    assert told == "Try --tp 4 --global-batch 1024."
    assert errors("llama3-70b", Workload(8192, 1024), chunks, 510)["heads_over_tp"] == "Try --tp 4."


def test_ranks_that_take_up_the_gpus_share_the_batch():
    """dp = 12 was told of 128 sequences, and of experts that 24 GPUs do not fold."""
    plan = Plan(tp=2, dp=8)
    assert errors("llama3-8b", Workload(8192, 128), plan, 32)["world"] == "Set dp = 16, or --gpus 16."
    told = "Set dp = 12 with --global-batch 132, or --gpus 16."
    assert errors("llama3-8b", Workload(8192, 128), plan, 24)["world"] == told
    assert "world" not in errors("llama3-8b", Workload(8192, 132), replace(plan, dp=12), 24)
    chunks = Plan(pp=4, vpp=2, dp=2, micro_batch=2)
    told = "Set dp = 3 with --global-batch 144, or --gpus 8."
    assert errors("llama3-8b", Workload(8192, 128), chunks, 12)["world"] == told
    experts = Plan(dp=8, ep=8)
    assert errors("mixtral-8x7b", Workload(4096, 128), experts, 12)["world"] == "Set --gpus 8."
    shards = Plan(dp=8, fsdp=True, zero_stage=3, fsdp_shard_size=4)
    assert errors("llama3-8b", Workload(8192, 128), shards, 10)["world"] == "Set --gpus 8."
    instances = Plan(dp=8, optimizer_instances=4)
    assert errors("llama3-8b", Workload(8192, 128), instances, 10)["world"] == "Set --gpus 8."


def test_a_sequence_that_does_not_divide_is_not_told_to_be_split():
    """--sequence-parallel, and --tp 4 of a plan that has it, were told of 2,050 and 4,100 tokens."""
    ranks = Plan(tp=4, dp=2, tp_comm_overlap=True)
    assert (
        errors("llama3-8b", Workload(4098, 128), ranks, 8)["tp_overlap_needs_sp"]
        == "Try --no-tp-comm-overlap."
    )
    assert "--sequence-parallel" in errors("llama3-8b", Workload(4096, 128), ranks, 8)["tp_overlap_needs_sp"]
    told, wrong = broken_ways("tiny-gpt", Workload(2050, 260), Plan(tp=5, dp=4, sequence_parallel=True))
    assert told
    assert not wrong


SWITCHES = {
    "sequence_parallel": 0.6, "tp_comm_overlap": 0.3, "overlap_moe_comm": 0.3, "delay_wgrad": 0.2, "overlap_p2p": 0.8,
    "defer_embedding_wgrad": 0.2, "account_embedding": 0.15, "account_loss": 0.15, "shared_expert_overlap": 0.15,
}  # fmt: skip


BETWEEN_CHUNKS = ("overlap_p2p_comm_warmup_flush", "overlap_param_gather_with_optimizer_step")


def test_ways_out_of_many_switches_hold():
    """540 of 3,558 did not: chunks, stages and splits that other rules forbid, switches that need one another."""
    draw, told, wrong = random.Random(7), 0, []
    for _ in range(150):
        model = draw.choice(MODELS)
        sizes = {name: draw.choice((1, 2, 3, 4, 5, 6, 8)) for name in ("tp", "pp", "dp")}
        sizes |= {"cp": draw.choice((1, 1, 1, 2, 4)), "vpp": draw.choice((1, 1, 2, 3, 4))}
        if load_model(model).moe is not None:
            sizes |= {"ep": draw.choice((1, 2, 4, 8)), "etp": draw.choice((1, 1, 1, 2))}
        if sizes["vpp"] > 1:
            sizes["vpp_group_size"] = draw.choice((0, 0, 2, 4, 8))
        if draw.random() < 0.2:
            sizes["first_stage_layers"] = 3
        plan = Plan(
            **sizes,
            **{name: draw.random() < share for name, share in SWITCHES.items()},
            micro_batch=draw.choice((1, 1, 2)),
            cp_comm_type=draw.choice(("p2p", "a2a", "a2a+p2p")),
            moe_dispatcher=draw.choice(("alltoall", "alltoall", "allgather", "deepep")),
            recompute=draw.choice(("none", "selective", "full")),
            settings={name: True for name in BETWEEN_CHUNKS if draw.random() < 0.2},
        )
        workload = Workload(draw.choice((4096, 4100, 2050)), draw.choice((7, 32, 100, 256)))
        number, found = broken_ways(model, workload, plan)
        told, wrong = told + number, wrong + found
    assert told > 800
    assert not wrong


def test_ways_out_of_many_sizes_hold():
    """A third of them did not: other rules about the same size, GPUs, or the batch over other ranks."""
    draw, told, wrong = random.Random(5), 0, []
    for _ in range(300):
        model = draw.choice(MODELS)
        sizes = {name: draw.choice((1, 2, 3, 4, 5, 6, 7, 8)) for name in ("tp", "pp", "dp")}
        sizes |= {"cp": draw.choice((1, 1, 1, 2, 3, 4)), "vpp": draw.choice((1, 1, 2, 3, 4, 5))}
        if load_model(model).moe is not None:
            sizes |= {"ep": draw.choice((1, 2, 3, 4, 5, 6, 8, 16)), "etp": draw.choice((1, 1, 1, 2, 3))}
        plan = Plan(
            **sizes,
            micro_batch=draw.choice((1, 1, 2, 3)),
            sequence_parallel=draw.random() < 0.6,
            cp_comm_type=draw.choice(("p2p", "p2p", "a2a", "all_gather")),
        )
        number, found = broken_ways(model, Workload(4096, draw.choice((7, 32, 100, 128, 256))), plan)
        told, wrong = told + number, wrong + found
    assert told > 1000
    assert not wrong


@pytest.mark.parametrize(
    ("batch", "plan"),
    [
        (256, Plan(pp=4, dp=2, ep=8)),
        (96, Plan(tp=2, dp=3, ep=8, sequence_parallel=True)),
        (7, Plan(dp=1, ep=8)),
    ],
)
def test_experts_over_too_few_gpus_are_told_how_many_they_fold_over(batch, plan):
    """Mixtral's example script starts 8 GPUs with PP4 EP8: `--ep 2`, which does not fit, was all that was known."""
    workload = Workload(4096, batch)
    way_out = errors("mixtral-8x7b", workload, plan, plan.world)["expert_mesh"]
    found = re.search(r"[Ss]et --gpus (\d+) --dp (\d+)", way_out)
    if batch == 7:
        assert found is None
        return
    gpus, dp = int(found[1]), int(found[2])
    assert "expert_mesh" not in errors("mixtral-8x7b", workload, replace(plan, dp=dp), gpus)
    assert batch % dp == 0


@pytest.mark.parametrize(
    ("connections", "says"), [(0, "Keep 32"), (32, "Keep 32"), (1, "Try --max-connections 32")]
)
def test_queues_for_experts_are_told_as_they_are_predicted(connections, says):
    """ "Set it for the larger of the two exposed times" left open what is set, though the prediction prices both."""
    plan = Plan(tp=2, pp=4, vpp=4, dp=8, ep=8, sequence_parallel=True, overlap_moe_comm=True)
    plan = replace(plan, max_connections=connections)
    found = violations(load_model("qwen3-30b-a3b"), Workload(4096, 512), load_cluster("dgx-h100"), plan, 64)
    assert next(each.way_out for each in found if each.id == "max_connections_experts").startswith(says)
