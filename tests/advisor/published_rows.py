"""Rows as published tables of NeMo, vTrain and llm-foundry have them, and the case that one becomes."""

from __future__ import annotations

from advisor.measurements import Case, Row, row_case

NEMO = {
    "id": "bridge-70b",
    "source": "Megatron-Bridge perf summary 25.09",
    "container": "nemo:25.09",
    "task": "pretrain",
    "model": "llama3-70b",
    "system": "dgx-h100",
    "gpus": "64",
    "precision": "fp8-cs",
    "gbs": "128",
    "mbs": "1",
    "seq_len": "8192",
    "fsdp": "0",
    "tp": "4",
    "pp": "8",
    "cp": "1",
    "vp": "5",
    "tokens_per_sec_per_gpu": "1619",
    "tp_comm_overlap": "1",
    "sequence_parallel": "1",
    "fp8_param_gather": "1",
    "grad_reduce_in_fp32": "0",
}
MIXTURE = {"model": "qwen3-30b-a3b", "gpus": "8", "tp": "1", "pp": "1", "ep": "8", "vp": "1"}
VTRAIN = {
    "id": "vtrain",
    "source": "vTrain ground truth (multi)",
    "container": "Megatron-DeepSpeed (2023)",
    "model": "gpt-h8192-l48-a64",
    "system": "a100-80g-cluster",
    "gpus": "512",
    "precision": "fp16",
    "gbs": "1536",
    "mbs": "4",
    "seq_len": "2048",
    "fsdp": "0",
    "tp": "8",
    "pp": "8",
    "step_time_s": "20.0",
}
MPT = {
    "id": "mpt",
    "source": "llm-foundry MPT benchmarks",
    "container": "MosaicML llm-foundry (FSDP1, flash-attn 2)",
    "model": "mpt-7b",
    "system": "a100-40g (MosaicML)",
    "gpus": "8",
    "precision": "bf16",
    "gbs": "64",
    "mbs": "8",
    "seq_len": "2048",
    "fsdp": "1",
    "tp": "1",
    "pp": "1",
    "recompute_granularity": "full",
    "recompute_num_layers": "all",
    "step_time_s": "10",
}


def case(values, **changes) -> Case:
    found = row_case(Row(values | changes))
    assert isinstance(found, Case), found
    return found
