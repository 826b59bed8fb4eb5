"""The advisor on models with experts, hybrids and encoders: search, placement, workloads, the path it tells."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from advisor.commands.explain import command as explain
from advisor.commands.predict import command as predict_command
from advisor.placement import placement, placement_lines, shares
from advisor.request import Request, make_request
from advisor.search import search
from advisor.space import build_space
from advisor.space.options import pipelines, recompute_choices
from advisor.variants import Variants
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster

MIXTRAL = make_request("mixtral-8x7b", 16, "h100", precision="bf16")
NVL72 = load_cluster("gb200-nvl72")
VLM = """
name = "vlm"
num_layers = 4
hidden = 512
ffn_hidden = 2048
num_heads = 8
num_kv_heads = 8
head_dim = 64
vocab = 32000
[encoder]
num_layers = 4
hidden = 512
ffn_hidden = 2048
num_heads = 8
tokens = 1024
"""


@pytest.fixture(scope="module")
def found():
    return search(MIXTRAL)


def test_experts_have_a_mesh_of_their_own(found):
    assert any(each.plan.ep > 1 for each in found.plans)
    for each in found.plans:
        plan = each.plan
        ranks = plan.tp * plan.cp * plan.dp
        assert 8 % plan.ep == 0
        assert ranks % (plan.ep * plan.etp) == 0
        assert plan.world == 16 >= plan.pp * max(plan.tp * plan.cp, plan.ep * plan.etp)


def test_plans_with_and_without_expert_parallelism_are_searched():
    columns = build_space(MIXTRAL, "bf16").columns
    assert set(np.unique(columns["ep"])) >= {1.0, 2.0, 4.0, 8.0}
    assert {0.0, 1.0} == set(np.unique(columns["overlap_moe_comm"]))
    alone = columns["ep"] == 1
    assert not columns["overlap_moe_comm"][alone].any()


def test_the_best_is_the_best_of_the_space(found):
    times = [each.step_time for each in found.plans]
    assert times == sorted(times)
    assert all(each.prediction.fits for each in found.plans)


def test_pins_of_experts_hold():
    pinned = make_request(
        "mixtral-8x7b", 16, "h100", precision="bf16", pins=["ep=4", "moe_dispatcher=alltoall"]
    )
    columns = build_space(pinned, "bf16").columns
    assert set(np.unique(columns["ep"])) == {4.0}
    assert all(each.plan.moe_dispatcher == "alltoall" for each in search(pinned).plans)


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("llama3-8b", {"layernorm", "mlp"}),
        ("mixtral-8x7b", {"layernorm", "moe_act", "moe"}),
        ("deepseek-v3", {"layernorm", "moe_act", "mla_up_proj", "mlp", "moe"}),
        ("nemotronh-56b", {"layernorm", "mlp"}),
        ("deepseek-v4-flash", {"layernorm", "moe_act", "mla_up_proj", "mhc", "moe"}),
    ],
)
def test_recompute_has_the_modules_that_a_model_has(name, modules):
    chosen = recompute_choices(load_model(name))
    assert {module for one in chosen for module in one} == modules
    assert len(chosen) == len(set(chosen))


def test_streams_are_recomputed_with_the_other_modules_or_left():
    """All cheap modules without the streams were 2 % faster than the best plan found, and fitted."""
    chosen = recompute_choices(load_model("deepseek-v4-flash"))
    assert ("layernorm", "moe_act", "mla_up_proj") in chosen
    assert ("layernorm", "moe_act", "mla_up_proj", "mhc") in chosen


def test_layers_that_do_not_divide_are_balanced():
    rows = pipelines(load_model("deepseek-v3"), [16], {})
    balanced = [row for row in rows if row["pipeline_layout"] > 0]
    assert {row["vpp"] for row in balanced} >= {1.0, 2.0}
    assert all(
        (61 + row["account_embedding"] + row["account_loss"]) % 16 == 0 for row in rows if row not in balanced
    )


def straddled(segment):
    plan = Plan(tp=4, pp=4, dp=16, sequence_parallel=True, nvl_segment=segment)
    return predict(load_model("llama3-70b"), Workload(8192, 1024), NVL72, plan)


def test_straddling_groups_are_named():
    """256 GPUs at TP4 DP16 PP4 on all 72 of a domain: ranks 64 to 124 of stage 1 lie 2 + 14; TP never straddles."""
    groups = {placed.name: placed for placed in placement(straddled(72))}
    group = groups["data parallel"].straddles
    assert group.stage == 1
    assert group.ranks[0] == 64
    assert group.per_domain == (2, 14)
    assert groups["tensor parallel"].straddles is None
    assert "straddle domains" in "\n".join(placement_lines(straddled(72)))


def test_ranks_that_share_sequences_are_told_as_part_of_data_parallelism():
    """`DP16` above `data parallel: 64 ranks` read as a contradiction."""
    told = predict(load_model("llama3-8b"), Workload(8192, 128), load_cluster("dgx-h100"), Plan(cp=4, dp=16))
    assert placement_lines(told)[1] == "data parallel: dp 16 x cp 4 = 64 ranks over 8 domains, 8 in each"


def test_a_group_over_many_domains_says_how_many_are_alike():
    """126 numbers and their pluses filled seven lines of `explain --gpus 1001`."""
    plan = Plan(dp=1001, zero_stage=3, fsdp=True)
    spread = predict(load_model("llama3-8b"), Workload(8192, 2002), load_cluster("dgx-h100"), plan)
    assert "lie 125 x 8 + 1, and" in placement_lines(spread)[0]
    assert shares((2, 14)) == "2 + 14"
    assert shares((4, 8, 8, 8, 8, 4)) == "4 + 4 x 8 + 4"


def test_64_of_72_do_not_straddle_and_are_faster():
    aligned = straddled(0)
    assert not any(placed.straddles for placed in placement(aligned))
    assert "64 of the 72 GPUs" in placement_lines(aligned)[0]
    full = straddled(72)
    assert full.values["dp_reduce_scatter"] > 5 * aligned.values["dp_reduce_scatter"]
    assert full.step_time_s > aligned.step_time_s


def run(command, *arguments):
    done = CliRunner().invoke(command, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def test_explain_walks_the_experts():
    code, text = run(explain, "--model", "mixtral-8x7b", "--gpus", 16, "--gpu", "h100", "--precision", "bf16")
    assert code == 0
    assert "expert parallel: Spreads 8 experts, of which a token visits 2" in " ".join(text.split())
    assert "Where groups stand" in text
    assert "expert loads are taken as balanced" in " ".join(text.split()).lower()


def test_imbalance_costs_and_is_said():
    arguments = [
        "--model",
        "mixtral-8x7b",
        "--gpu",
        "h100",
        "--gpus",
        16,
        "--ep",
        8,
        "--global-batch",
        128,
        "--json",
    ]
    plain = json.loads(run(predict_command, *arguments)[1])
    loaded = json.loads(run(predict_command, *arguments, "--moe-imbalance", 1.5)[1])
    assert loaded["step_time_s"] > 1.05 * plain["step_time_s"]
    assert any("1.5 times the mean" in note for note in loaded["assumptions"])


def test_short_documents_and_adapters_cost_less():
    arguments = [
        "--model",
        "llama3-8b",
        "--gpu",
        "h100",
        "--gpus",
        8,
        "--global-batch",
        32,
        "--seq-len",
        8192,
        "--json",
    ]

    def of(*more):
        return json.loads(run(predict_command, *arguments, *more)[1])

    full, packed = of("--task", "sft"), of("--task", "sft", "--mean-length", 500)
    assert packed["step_time_s"] < full["step_time_s"]
    padded = of("--task", "sft", "--mean-length", 500, "--no-packed")
    assert padded["step_time_s"] == pytest.approx(full["step_time_s"])
    assert padded["model_tflops_per_gpu"] == pytest.approx(full["model_tflops_per_gpu"] * 500 / 8192)
    lora = of("--task", "lora", "--lora-rank", 8)
    assert lora["step_time_s"] < full["step_time_s"]
    assert lora["memory"]["worst_rank_gib"] < full["memory"]["worst_rank_gib"] / 1.5
    assert of("--task", "lora", "--lora-rank", 256)["step_time_s"] > lora["step_time_s"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--moe-imbalance", 0.5, "not a number from 1 to 64"),
        ("--mean-length", 9000, "not a whole number from 0 to 8192"),
        ("--lora-targets", "norms", "not one of qkv, attention, all"),
    ],
)
def test_workloads_that_cannot_be_meant(option, value, words):
    done = CliRunner().invoke(
        predict_command,
        ["--model", "llama3-8b", "--gpu", "h100", "--gpus", "8", "--seq-len", "8192", option, str(value)],
    )
    assert isinstance(done.exception, ValueError)
    assert words in str(done.exception)


@pytest.fixture
def vlm(tmp_path):
    path = tmp_path / "vlm.toml"
    path.write_text(VLM)
    return load_model(str(path))


def test_an_encoder_has_gpus_of_its_own(vlm):
    """GPUs = dp x cp x (enc_tp x enc_pp + tp x pp)."""
    plan = Plan(tp=2, pp=2, cp=1, dp=3, encoder_tp=1, encoder_pp=2, sequence_parallel=True)
    assert plan.world == 3 * (2 * 2 + 1 * 2)
    prediction = predict(vlm, Workload(4096, 24), load_cluster("dgx-h100"), plan)
    assert prediction.values["world"] == plan.world


def test_an_encoder_shares_the_first_stage_or_adds_one(vlm):
    cluster, load = load_cluster("dgx-h100"), Workload(4096, 64)
    without = predict(load_model("llama3-8b"), load, cluster, Plan(tp=1, pp=2, dp=2))
    shared = predict(vlm, load, cluster, Plan(pp=2, dp=2))
    apart = predict(vlm, load, cluster, Plan(pp=2, dp=2, encoder_tp=1, encoder_pp=1))
    assert "encoder_time" not in without.values
    assert shared.values["slowest_with_encoder"] == pytest.approx(
        max(
            shared.values["first_stage_time"] + shared.values["encoder_time"],
            shared.values["last_stage_time"],
        )
    )
    assert apart.values["slowest_with_encoder"] <= shared.values["slowest_with_encoder"]
    assert math.isclose(apart.values["model_flops"], shared.values["model_flops"])


def test_an_encoder_with_gpus_of_its_own_is_planned(vlm):
    """48 GPUs were given to the decoder alone, and the encoder's 48 on top were refused."""
    request = Request(
        model=vlm,
        gpus=48,
        cluster=load_cluster("dgx-h100"),
        workload=Workload(4096, 96),
        pins={"encoder_tp": 1, "encoder_pp": 1},
    )
    found = search(request).plans
    assert {each.plan.world for each in found} == {48}
    assert {each.plan.encoder_pp for each in found} == {1}
    assert any(each.plan.tp == 2 and each.plan.dp == 16 for each in found)
    assert not any(each.plan.fsdp for each in found)
    chosen = found[0].prediction
    assert {each.plan.world for each in Variants(chosen).sizes("tp", [1, 2]) if each.prediction} == {48}
    with pytest.raises(ValueError, match="not a multiple of dp = 7"):
        replace(request, pins={"encoder_pp": 1, "dp": 7})
    assert replace(request, pins={"encoder_pp": 1, "tp": 2, "dp": 16})
