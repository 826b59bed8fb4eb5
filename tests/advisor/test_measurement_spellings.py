"""Rows of other people's tables: models, systems, precisions and tasks as they write them."""

from __future__ import annotations

import json

import pytest
from somebodys_row import case, refused, said

from advisor.measurements.habits import row_task
from advisor.measurements.rows import Row, column_name
from advisor.measurements.systems import row_cluster

SIZES = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("system", "cluster"),
    [
        ("Selene DGX A100", "dgx-a100"),
        ("A100-SXM4-80GB", "dgx-a100"),
        ("NVIDIA A100-SXM4-40GB", "dgx-a100-40"),
        ("DGX A100 40GB", "dgx-a100-40"),
        ("ml.p4d.24xlarge", "aws-p4d"),
        ("AWS p5.48xlarge", "aws-p5"),
        ("Standard_ND96isr_H100_v5", "azure-nd96isr-h100-v5"),
        ("8xH100", "dgx-h100"),
        (
            "16x A3 (h100-80gb-8)",
            "gcp-a3-highgpu-8g",
        ),  # MaxText's README: Google's name of the machine's GPUs
        ("h100-80gb-8", "dgx-h100"),  # eight of that GPU, of whatever machine
        ("h100-mega-80gb-8", "gcp-a3-megagpu-8g"),
        ("1x 4090", "rtx4090-8"),  # torchtune's README
        ("8x H100 SXM5 80GB", "dgx-h100"),
        ("H100 (InfiniBand 400G)", "dgx-h100"),
        ("DGX A100 (HDR 200Gb/s)", "dgx-a100"),
        ("8xB200 HGX", "dgx-b200"),
        ("HGX B200 8-GPU 192GB", "dgx-b200"),
        ("NVIDIA GB200 NVL72", "gb200-nvl72"),
        ("GB200 NVL36x2", "gb200-nvl72"),
        ("MI300X x8", "mi300x-8"),
        ("Standard_ND96asr_v4", "azure-nd96asr-v4"),
        ("ND96amsr_A100_v4", "azure-nd96amsr-a100-v4"),
        ("NDm A100 v4 80GB", "azure-nd96amsr-a100-v4"),
        ("Azure ND H100 v5", "azure-nd96isr-h100-v5"),
        ("GCP A3 Mega", "gcp-a3-megagpu-8g"),
        ("A3 Ultra", "gcp-a3-ultragpu-8g"),
        ("A3 High (H100)", "gcp-a3-highgpu-8g"),
        ("EC2 P5 instances", "aws-p5"),
        ("32x p5en", "aws-p5en"),
        ("P4d", "aws-p4d"),
        ("8 x A800 80GB", "hgx-a800"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000-8"),
    ],
)
def test_a_system_is_read_however_it_is_written(system, cluster):
    found, words = row_cluster(system)
    assert found.name == cluster
    assert system in words
    assert said(case(system=system), f"taken as {cluster}")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("bitsandbytes PagedAdamW8bit", True),
        ("AdamW8bit", True),
        ("adam-mini", True),
        ("sgd", True),
        ("", False),
        ("AdamW", False),
        ("adamw (fp32 states, FSDP2)", False),
        ("distributed_fused_adam", False),
        ("Muon", False),
    ],
)
def test_an_optimizer_that_is_not_modelled_is_told(written, told):
    assert said(case(optimizer=written), f"optimizer {written!r} is not modelled") == told


def test_muon_in_letters_of_either_case():
    assert case(optimizer="Muon").plan.optimizer == "muon"


@pytest.mark.parametrize(
    ("system", "says"),
    [
        ("H200 NVL 141GB", "another card"),
        ("H800 PCIe", "another card"),
        ("H100 PCIe 96GB", "no h100-pcie with 96 GB"),
        ("A100 PCIe / H100 NVL", "several GPUs: a100-pcie, h100-nvl"),
        ("H20 141GB", "no h20 with 141 GB"),
        ("HGX H20-3e", "no h20 with 141 GB"),
        ("A100/H100", "several GPUs: a100, h100"),
        ("DGX-2H V100", "system 'DGX-2H V100' is unknown"),
        ("TPU v5p", "system 'TPU v5p' is unknown"),
        ("Alps GH200 80GB", "no gh200 with 80 GB"),
        ("GB200 NVL4", "has 4 GPUs in a domain, and gb200-nvl72 72"),
        ("gb300-nvl36", "has 36 GPUs in a domain, and gb300-nvl72 72"),
    ],
)
def test_a_system_that_is_none_of_ours_is_refused(system, says):
    with pytest.raises(ValueError, match="system ") as error:
        row_cluster(system)
    assert says in str(error.value)
    assert "--gpu" not in str(error.value)


@pytest.mark.parametrize(
    ("system", "cluster"),
    [
        ("8x H100-80GB PCIe", "h100-pcie-8"),
        ("H100 NVL 94GB", "h100-nvl-8"),
        ("A100-PCIE-40GB", "a100-pcie-40gb-8"),
        ("8x A100-SXM4-40GB", "dgx-a100-40"),
        ("4x RTX 6000 Ada", "rtx6000-ada-8"),
        ("NVIDIA RTX A6000", "a6000-8"),
        ("Alps GH200 96GB", "alps"),
        ("GH200 144GB", "gh200-144gb-1"),
        ("8xL4", "l4-8"),
        ("L40S", "l40s-8"),
    ],
)
def test_cards_are_told_from_modules_of_their_name(system, cluster):
    assert row_cluster(system)[0].name == cluster


def test_our_own_names_need_no_word():
    assert row_cluster("dgx-h100")[1] == ""
    assert row_cluster("H100")[1] == ""
    assert row_cluster("aws-p5")[1] == ""
    # An alias that means a cluster of its own, here one of a lower power limit.
    assert "b200-700w" in row_cluster("b200-8gpu")[1]
    assert not said(case(), "taken as")


@pytest.mark.parametrize(
    ("written", "precision"),
    [
        ("BF16-mixed", "bf16"),
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("FP8 (current scaling)", "fp8-cs"),
        ("fp8 delayed scaling", "fp8-delayed"),
        ("fp8_blockwise", "fp8-sc"),
        ("bf16 + mxfp8", "mxfp8"),
        ("FP4", "nvfp4"),
    ],
)
def test_a_precision_is_read_by_its_words(written, precision):
    found = case(precision=written, system="dgx-b200")
    assert found.plan.precision == precision
    assert said(found, f"taken as {precision}")


@pytest.mark.parametrize("written", ["tf32", "int8", "mixed"])
def test_other_precisions_are_refused(written):
    assert "is not one of bf16" in refused(precision=written)


def test_a_model_is_built_from_its_sizes_in_anyones_words():
    known, built = case(), case(model="acme/big-llama", model_overrides=json.dumps(SIZES))
    assert built.model.num_kv_heads == known.model.num_kv_heads
    assert (built.plan, built.model.padded_vocab(4)) == (known.plan, known.model.padded_vocab(4))
    assert said(built, "is not known, so built from its sizes: dense, 70.6B parameters, gated MLP")
    whole = SIZES | {"architectures": ["LlamaForCausalLM"]}
    assert case(model="big", model_overrides=json.dumps(whole)).model.ffn_hidden == known.model.ffn_hidden


def test_sizes_of_a_gpt_make_a_gpt():
    sizes = {"n_layers": 24, "d_model": 2048, "n_heads": 16, "ffn_hidden": 8192, "vocab": 50304}
    model = case(model="gpt-1.3b", model_overrides=json.dumps(sizes)).model
    assert (model.gated, model.activation, model.norm, model.linear_bias) == (
        False,
        "gelu",
        "LayerNorm",
        True,
    )
    gated = case(model="gpt-1.3b", model_overrides=json.dumps(sizes | {"gated": True})).model
    assert (gated.gated, gated.norm) == (True, "RMSNorm")


def test_sizes_of_experts():
    sizes = SIZES | {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024}
    model = case(model="mixture", model_overrides=json.dumps(sizes), gpus="64", ep="16").model
    assert model.moe is not None
    assert (model.moe.num_experts, model.moe.topk, model.moe.expert_ffn) == (64, 8, 1024)


def test_sizes_that_are_not_all_there_are_named():
    reason = refused(model="acme", model_overrides='{"num_layers": 80, "hidden": 8192}')
    assert reason.startswith(
        "model 'acme' is not known, and of its sizes ffn_hidden, num_heads, vocab are missing"
    )
    assert refused(model="acme").startswith("model 'acme' is not a known model")
    assert "no table [moe]" in refused(model_overrides='{"moe.topk": 2}')


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({"fsdp": "0.0"}, {"fsdp": "0"}),
        ({"fsdp": "none"}, {"fsdp": "0"}),
        ({"fsdp": "zero1"}, {"fsdp": "0"}),
        ({"fsdp": "64.0", "tp": "1", "pp": "1", "vp": ""}, {"fsdp": "64", "tp": "1", "pp": "1", "vp": ""}),
        (
            {"fsdp": "full_shard", "tp": "1", "pp": "1", "vp": ""},
            {"fsdp": "1", "tp": "1", "pp": "1", "vp": ""},
        ),
        ({"cp": "-", "ep": "N/A", "etp": "nan"}, {}),
        ({"gbs": "1,024"}, {"gbs": "1024"}),
        ({"sequence_parallel": "0.0"}, {"sequence_parallel": "0"}),
        ({"seq_len": "4k"}, {"seq_len": "4096"}),
        ({"cp": "0", "vp": "0"}, {"cp": "1", "vp": "1"}),
        ({"pp_layout": "None", "model_overrides": "None", "other_flags": "[]"}, {}),
    ],
)
def test_cells_as_other_tools_write_them(changes, read):
    assert case(**changes).plan == case(**read).plan


def test_memory_with_its_unit():
    assert [case(peak_memory_gb=text).measured_memory_bytes for text in ("76", "76 GB", "76GiB")] == [
        76e9,
        76e9,
        76 * 2**30,
    ]


def test_software_that_shards_by_default_has_a_layout_without_a_word():
    bare = {"tp": "", "pp": "", "vp": "", "fsdp": "", "container": "", "model": "llama3-8b", "gpus": "8"}
    found = case(**bare, source="torchtitan 0.1 on our cluster")
    assert (found.plan.fsdp, found.plan.dp) == (True, 8)
    assert "fsdp not stated: on, as its software's default" in found.assumptions
    assert case(**bare, source="accelerate, FSDP2").plan.fsdp
    assert case(**bare | {"fsdp": "maybe", "source": "torchtitan"}).plan.fsdp
    assert not case(**bare | {"fsdp": "0", "source": "torchtitan"}).plan.fsdp
    assert "layout is not stated" in refused(**bare, source="Megatron-Core, our cluster")


def test_one_gpu_and_plain_replicas_are_a_layout():
    alone = {"tp": "", "pp": "", "vp": "", "fsdp": "", "gbs": "16", "model": "llama3-8b", "system": "gb200"}
    assert case(**alone, gpus="1").plan.world == 1
    assert case(**alone, gpus="8", dp="8").plan.dp == 8
    assert "layout is not stated" in refused(**alone, gpus="8")


@pytest.mark.parametrize(
    ("written", "task"),
    [
        ("", "pretrain"),
        ("Pre-training", "pretrain"),
        ("SFT (packed)", "sft"),
        ("full fine-tuning", "sft"),
        ("LoRA finetuning", "lora"),
        ("distil", "distil"),
    ],
)
def test_tasks(written, task):
    assert row_task(Row({"task": written})) == task


@pytest.mark.parametrize(
    ("system", "cluster"),
    [
        ("a100-80g-cluster", "vtrain-a100"),
        ("8x A100-SXM4-80GB", "vtrain-a100"),
        ("dgx-a100", "dgx-a100"),
        ("aws-p4de", "aws-p4de"),
        ("a100-40g", "dgx-a100-40"),
        ("h100", "dgx-h100"),
    ],
)
def test_a_source_runs_on_its_own_cluster_where_only_a_gpu_is_named(system, cluster):
    found, words = row_cluster(system, "vtrain-a100")
    assert found.name == cluster
    assert ("vtrain-a100" in words) == (cluster == "vtrain-a100")


def test_rows_of_vtrain_have_four_cards_a_node():
    here = case(source="vTrain ground truth", container="", system="a100-80g-cluster", precision="fp16")
    assert here.cluster.name == "vtrain-a100"
    assert not here.plan.gradient_accumulation_fusion
    assert not here.plan.grad_reduce_in_fp32


@pytest.mark.parametrize(
    "written",
    [
        {"recompute_granularity": " Full"},
        {"recompute_granularity": "SELECTIVE", "recompute_modules": "Core_Attn "},
        {"precision": "BF16"},
        {"cuda_graph": "Transformer_Engine:Attn"},
    ],
)
def test_words_mean_the_same_in_any_case_and_with_spaces_around(written):
    """`Full` was taken for no recompute, without a word."""
    plain = {name: text.strip().lower() for name, text in written.items()}
    assert case(**written).plan == case(**plain).plan


def test_experts_in_words_of_any_case():
    mixture = {"model": "qwen3-30b-a3b", "pp": "1", "tp": "1", "ep": "8", "vp": "1"}
    assert case(**mixture, moe_dispatcher="Flex-HybridEP").plan.moe_dispatcher == "hybridep"


@pytest.mark.parametrize(
    "name", ["recompute_granularity", "moe_dispatcher", "cuda_graph", "superseded", "nccl_ub"]
)
def test_headers_are_read_in_any_case(name):
    assert column_name(name.replace("_", " ").title()) == name


def test_experts_that_must_be_spread_are_spread_over_what_stages_leave():
    """64 ranks of experts beside two stages are 128 GPUs: the row was refused for a size that it did not give."""
    mixture = {"model": "qwen3-30b-a3b", "container": "nemo:26.06", "tp": "1", "pp": "2", "vp": "1"}
    assert case(**mixture).plan.ep == 32
