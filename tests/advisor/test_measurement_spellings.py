"""Rows of other people's tables: models, systems, precisions, dates and software as they write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hardware_db
from advisor.measurement_habits import habit_of, row_release, row_task
from advisor.measurement_release import row_date
from advisor.measurement_rows import Row, column_name
from advisor.measurement_systems import row_cluster
from advisor.measurements import Case, Skip, read_rows, row_case, stack_of

ROW = {
    "id": "run",
    "source": "somebody's benchmark",
    "container": "nemo:26.04",
    "date": "2026-04",
    "model": "llama3-70b",
    "system": "dgx-h100",
    "gpus": "64",
    "precision": "bf16",
    "gbs": "128",
    "mbs": "1",
    "seq_len": "8192",
    "fsdp": "0",
    "tp": "4",
    "pp": "4",
    "vp": "5",
    "step_time_s": "10",
}
SIZES = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def case(**changes: str) -> Case:
    found = row_case(Row(ROW | changes))
    assert isinstance(found, Case), found
    return found


def refused(**changes: str) -> str:
    found = row_case(Row(ROW | changes))
    assert isinstance(found, Skip)
    assert "\n" not in found.reason
    return found.reason


def said(found: Case, words: str) -> bool:
    return any(words in each for each in found.assumptions)


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
        ("H100 PCIe 80GB", "another card"),
        ("H100 NVL 94GB", "another card"),
        ("H20 141GB", "no h20 with 141 GB"),
        ("A100/H100", "several GPUs: a100, h100"),
        ("DGX-2H V100", "system 'DGX-2H V100' is unknown"),
        ("TPU v5p", "system 'TPU v5p' is unknown"),
        ("Alps GH200 96GB", "is unknown"),
    ],
)
def test_a_system_that_is_none_of_ours_is_refused(system, says):
    with pytest.raises(ValueError, match="system ") as error:
        row_cluster(system)
    assert says in str(error.value)
    assert "--gpu" not in str(error.value)


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


@pytest.mark.parametrize(
    ("container", "date", "precision"),
    [
        ("nemo:26.04", "", "fp8-cs"),
        ("nemo:24.12", "", "fp8-delayed"),
        ("torchtitan", "2025-06", "fp8-cs"),
        ("Megatron-Core 0.15", "2025-12", "fp8-delayed"),
        ("HAI-LLM", "2024-12", "fp8-sc"),
    ],
)
def test_fp8_without_a_scaling_is_what_its_software_does(container, date, precision):
    found = case(precision="FP8", container=container, date=date)
    assert found.plan.precision == precision
    assert said(found, "names no scaling")


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
    ],
)
def test_cells_as_other_tools_write_them(changes, read):
    assert case(**changes).plan == case(**read).plan


def test_one_gpu_and_plain_replicas_are_a_layout():
    alone = {"tp": "", "pp": "", "vp": "", "fsdp": "", "gbs": "16", "model": "llama3-8b", "system": "gb200"}
    assert case(**alone, gpus="1").plan.world == 1
    assert case(**alone, gpus="8", dp="8").plan.dp == 8
    assert "layout is not stated" in refused(**alone, gpus="8")


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("GPUs", "gpus"),
        ("Num GPUs", "gpus"),
        ("global_batch_size", "gbs"),
        ("Sequence Length", "seq_len"),
        ("TP", "tp"),
        ("tokens/s/GPU", "tokens_per_sec_per_gpu"),
        ("Step time (s)", "step_time_s"),
        ("cuda_graph", "cuda_graph"),
    ],
)
def test_columns_by_other_names(header, column):
    assert column_name(header) == column


def test_a_table_with_other_names_of_columns(tmp_path):
    path = tmp_path / "rows.csv"
    names = {
        "gpus": "Num GPUs",
        "gbs": "global_batch_size",
        "seq_len": "Seq Len",
        "step_time_s": "Step time (s)",
    }
    path.write_text(",".join(names.get(name, name) for name in ROW) + "\n" + ",".join(ROW.values()) + "\n")
    (row,) = read_rows(path)
    assert row.values == ROW


def test_a_column_under_its_own_name_comes_first(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("GPU," + ",".join(ROW) + "\nH100 PCIe," + ",".join(ROW.values()) + "\n")
    (row,) = read_rows(path)
    assert row.text("system") == "dgx-h100"


@pytest.mark.parametrize(
    ("date", "container", "source", "month"),
    [
        ("2025-10-03", "", "", "25.10"),
        ("2025/3/1", "", "", "25.03"),
        ("20251001", "", "", "25.10"),
        ("3 October 2025", "", "", "25.10"),
        ("10/2025", "", "", "25.10"),
        ("2025", "", "", "25.06"),
        ("", "torch 2.9.0.dev20250815", "", "25.08"),
        ("", "", "a report (arXiv:2405.04434v2)", "24.05"),
        ("", "", "a blog of March 2024", "24.03"),
        ("", "", "a blog", ""),
    ],
)
def test_months(date, container, source, month):
    assert row_date(Row({"date": date, "container": container, "source": source})) == month


@pytest.mark.parametrize(
    ("container", "source", "date", "stack"),
    [
        ("nvcr.io/nvidia/nemo:25.07", "", "2026-01", "nemo-25.07"),
        ("nvcr.io/nvidia/nemo:26.02.alpha", "", "", "nemo-26.02"),
        ("nvcr.io/nvidia/nemo:26.02.01", "", "", "nemo-26.02.01"),
        ("nemo:26.06.01", "", "", "nemo-26.06"),
        ("nemo:25.04.00", "", "", "nemo-25.04"),
        ("", "Megatron-Bridge performance summary 26.10", "", "nemo-26.10"),
        ("", "Megatron-Bridge performance summary", "2025-12", "nemo-25.12"),
        ("Megatron-Bridge v0.3.1", "", "", "nemo-26.02"),
        ("NeMo 2.3.0", "", "2025-09", "nemo-25.04"),
        ("NeMo Framework", "somebody's blog", "2025-03", "nemo-25.03"),
        ("MLPerf v5.0", "", "2025-06", "nemo-25.06"),
        ("megatron-core 0.16", "", "", "mcore-26.02"),
        ("megatron-core 0.20", "", "", "mcore-26.08"),
        ("Megatron-LM core_v0.12.1", "", "2026-01", "mcore-25.04"),
        ("Megatron-Core with Megatron-FSDP", "", "2025-10", "mcore-25.10"),
        ("NGC PyTorch 24.10", "", "", "mcore-24.10"),
        ("torchtitan v0.1.0", "", "", "torchtitan-25.06"),
        ("PyTorch 2.5, DeepSpeed ZeRO-3", "", "2024-11", "torchtitan-24.11"),
        ("OLMo-core", "", "2024-12", "torchtitan-24.12"),
        ("", "modalities 0.5.0", "2024-07", "torchtitan-24.07"),
    ],
)
def test_software(container, source, date, stack):
    assert stack_of(Row({"container": container, "source": source, "date": date})) == stack


def test_software_without_a_date_is_not_taken_for_the_first_of_its_kind():
    """Megatron-LM and DeepSpeed's ZeRO-3 of a row without a date were those of 2021."""
    for container in ("Megatron-LM", "DeepSpeed ZeRO-3"):
        habit = habit_of(Row({"container": container}))
        assert habit["modern"]
        assert row_release(Row({"container": container}), habit) == ""
    assert case(container="Megatron-LM", date="").plan.attention_backend == "fused"
    early = case(container="DeepSpeed ZeRO-3", date="2021-04", fsdp="1", tp="1", pp="1", vp="")
    assert early.plan.attention_backend == "unfused"


def test_attention_before_flash_attention_writes_its_scores():
    early = {"container": "in-house trainer", "date": "2022-05"}
    assert case(**early).plan.attention_backend == "unfused"
    assert said(case(**early), "before FlashAttention")
    assert case(**early | {"source": "FlashAttention, Table 2"}).plan.attention_backend == "fused"
    assert case(**early | {"date": "2023-05"}).plan.attention_backend == "fused"


def test_gpt_neox_has_fused_attention_since_2023():
    for date, backend in (("2022-04", "unfused"), ("2023-04", "fused")):
        plan = case(container="GPT-NeoX", date=date, fsdp="", vp="").plan
        assert (plan.attention_backend, plan.recompute, plan.sequence_parallel) == (backend, "full", False)


def test_a_release_that_nobody_published_runs_of_is_told():
    assert said(
        case(container="nemo:26.10"), "no run of nemo-26.10 is known: what is fitted to nemo-26.08 counts"
    )
    assert not said(case(), "no run of")


def test_software_that_is_not_known_is_told():
    assert said(case(container="in-house trainer", date="2025-03"), "software not recognised")
    assert not said(case(container="Megatron-LM", date="2025-03"), "software not recognised")


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


def test_deepspeed_sums_gradients_of_bf16_in_fp32():
    here = case(source="a paper", container="Megatron-DeepSpeed (2022)", precision="bf16", date="2022")
    assert here.plan.grad_reduce_in_fp32


def test_a_cluster_file_is_found_beside_the_table(tmp_path):
    shipped = Path(hardware_db.__file__).parent / "clusters" / "dgx-h100.toml"
    (tmp_path / "mine.toml").write_text(shipped.read_text())
    table = tmp_path / "runs.csv"
    table.write_text(",".join(ROW) + "\n" + ",".join((ROW | {"system": "mine.toml"}).values()) + "\n")
    found = row_case(read_rows(table)[0])
    assert isinstance(found, Case), found
    assert found.cluster.name == "dgx-h100"
