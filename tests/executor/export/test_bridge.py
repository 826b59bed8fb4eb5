"""Exports to Megatron-Bridge: names of the release, real configuration classes, plans that come back the same."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import megatron_bridge
from executor.export.exported import Exported, Job
from executor.export.target_names import names_of, releases
from executor.megatron_args import core_fields
from executor.megatron_here import without_te
from tests.executor.export.any_plan import any_job, with_adam, with_even_stages
from tests.executor.export.aws_rows import job_of, rows, title
from tests.executor.export.round_trip import comparable, exported_or_none, same, undefined

RELEASES = releases("megatron_bridge")
ROWS = rows()
MODELS = (
    "llama3-8b",
    "llama3-70b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "nemotronh-8b",
    "gpt-oss-20b",
)


def a_job(plan: Plan | None = None, model: str = "llama3-70b", **more) -> Job:
    workload = more.pop("workload", Workload(8192, 128))
    plan = plan or Plan(tp=4, pp=4, vpp=5, dp=4, sequence_parallel=True)
    return Job(plan, workload, load_model(model), hardware_db.load_cluster("dgx-h100"), **more)


def text_of(exported: Exported) -> str:
    return exported.files[megatron_bridge.FILE]


def unknown_names(exported: Exported) -> list[str]:
    """Overrides that the release's own classes do not have, by the recorded names."""
    names, _ = names_of("megatron_bridge", exported.version)
    wrong = []
    for dotted in exported.settings:
        section, _, field = dotted.partition(".")
        first = field.partition(".")[0]
        sections = [section] + (["finetuning"] if section == "dataset" else [])
        if field and not any(names.has(each, first) for each in sections):
            wrong.append(dotted)
        if not names.has("container", section):
            wrong.append(section)
    return wrong


@pytest.mark.parametrize("row", ROWS, ids=title)
def test_recipes_on_aws(row):
    job = job_of(row)
    assert job.plan.num_microbatches(row["gbs"]) == row.get("ga", job.plan.num_microbatches(row["gbs"]))
    exported = megatron_bridge.export(job)
    ast.parse(text_of(exported))
    assert not unknown_names(exported)
    reading = megatron_bridge.read(text_of(exported))
    assert reading.model == row["model"]
    assert Workload(**reading.workload) == job.workload
    assert same(job, Plan(**reading.knobs))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", MODELS)
def test_names_are_those_of_the_release(release, model):
    chosen = random.Random(f"{release} {model}")
    for _ in range(2):
        job = with_even_stages(any_job(chosen.choice, [model], release))
        exported = exported_or_none(megatron_bridge, with_adam(job) if release.startswith("0.2") else job)
        if exported is None:
            continue
        assert exported.version == release
        assert not unknown_names(exported)
        tree = ast.parse(text_of(exported))
        assert not undefined(tree)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_what_is_exported_reads_back_as_the_same_plan(data):
    job = comparable(with_even_stages(any_job(lambda values: data.draw(st.sampled_from(list(values))))))
    if job.plan.optimizer == "muon":
        job = replace(job, plan=replace(job.plan, overlap_param_gather=False))
    exported = megatron_bridge.export(job)
    reading = megatron_bridge.read(text_of(exported))
    assert not reading.unread
    assert reading.model == job.model.name
    assert same(job, Plan(**reading.knobs))


@pytest.mark.parametrize(
    ("shard", "read"), [(0, 4), (8, 0), (4, 4)], ids=["instances", "all ranks", "half of them"]
)
def test_a_shard_size_of_fsdp_decides_over_instances(shard, read):
    plan = Plan(tp=4, dp=8, fsdp=True, zero_stage=3, fsdp_shard_size=shard, optimizer_instances=2)
    exported = megatron_bridge.export(a_job(plan))
    back = Plan(**megatron_bridge.read(text_of(exported)).knobs)
    assert (back.fsdp_shard_size, back.optimizer_instances) == (read, 1)
    assert back.sharding_instances == plan.sharding_instances


def test_override_lines_read_as_the_file_does():
    job = a_job(Plan(tp=2, pp=2, dp=8, recompute="selective", recompute_modules=("mlp",)))
    exported = megatron_bridge.export(job)
    lines = " ".join(f"{name}={json.dumps(value)}" for name, value in exported.settings.items())
    from_file = megatron_bridge.read(text_of(exported)).knobs
    from_lines = megatron_bridge.read(lines.replace('"', "")).knobs
    around = {"dp", "max_connections"}  # no overrides: processes, and the environment
    assert from_lines == {name: value for name, value in from_file.items() if name not in around}


def test_a_dump_of_a_container_reads_back():
    pytest.importorskip("yaml")
    text = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider70B
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  vocab_size: 128256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 8
  virtual_pipeline_model_parallel_size: 5
  context_parallel_size: 1
  sequence_parallel: true
  pipeline_dtype: {_target_: torch.bfloat16, _call_: false}
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [5]}
  recompute_granularity: selective
  recompute_modules: [core_attn]
  cuda_graph_impl: transformer_engine
  cuda_graph_scope:
  - {_target_: megatron.core.transformer.enums.CudaGraphScope, _call_: true, _args_: [2]}
  seq_length: 8192
ddp: {_target_: x.DistributedDataParallelConfig, use_distributed_optimizer: true, grad_reduce_in_fp32: false}
optimizer:
  use_precision_aware_optimizer: false
  exp_avg_dtype: {_target_: torch.float32, _call_: false}
mixed_precision: bf16_with_fp8_current_scaling_mixed
comm_overlap: {_target_: x.CommOverlapConfig, tp_comm_overlap: true, overlap_grad_reduce: null}
train: {_target_: x.TrainingConfig, micro_batch_size: 1, global_batch_size: 128}
dataset: {_target_: megatron.bridge.training.config.GPTDatasetConfig, seq_length: 8192}
"""
    reading = megatron_bridge.read(text)
    plan = Plan(**reading.knobs)
    assert reading.model == "llama3-70b"
    assert (plan.tp, plan.pp, plan.vpp, plan.precision) == (4, 8, 5, "fp8-cs")
    assert plan.tp_comm_overlap
    assert plan.cuda_graph_scope == ("attn",)
    assert plan.recompute_modules == ("core_attn",)
    assert not plan.grad_reduce_in_fp32
    assert plan.bf16_end_layers == 1
    assert reading.workload == {"seq_len": 8192, "global_batch": 128}


@pytest.mark.parametrize("text", ["", "nothing here", "a: [1", "_target_: [", "x = 1"])
def test_what_is_no_configuration_is_one_line(text):
    with pytest.raises(ValueError) as raised:
        megatron_bridge.read(text)
    assert "\n" not in str(raised.value)


def test_only_benchmarks_have_settings_of_benchmarks():
    plan = Plan(tp=1, dp=8, ep=8, settings=(("moe_router_force_load_balancing", True),))
    usual = megatron_bridge.export(a_job(plan, "mixtral-8x7b"))
    assert "model.moe_router_force_load_balancing" not in usual.settings
    assert usual.settings["ddp.check_for_nan_in_grad"]
    assert "get_blend_from_list(inputs.data_path" in text_of(usual)
    measured = megatron_bridge.export(a_job(plan, "mixtral-8x7b", benchmark=True))
    assert measured.settings["model.moe_router_force_load_balancing"]
    assert measured.settings["dataset.blend"] is None
    assert "inputs.data_path" not in text_of(measured)


STAND_INS = [("", "0.6.2", False), ("0.3", "0.3.1", False), ("0.6.2", "0.6.2", False)]
STAND_INS += [("0.4.9", "0.4.2", True), ("9.0", "0.6.2", True), ("0.1", "0.2.0rc6", True)]


@pytest.mark.parametrize(("wanted", "release", "noted"), STAND_INS)
def test_the_nearest_release_stands_in_with_a_note(wanted, release, noted):
    exported = megatron_bridge.export(a_job(version=wanted))
    assert exported.version == release
    assert any("not recorded" in note for note in exported.notes) == noted


def test_what_is_no_release_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"no release of megatron-bridge. Known: .*leave it out"):
        megatron_bridge.export(a_job(version="newest"))


def test_muon_in_the_words_of_each_release():
    plan = Plan(dp=8, optimizer="muon")
    newest = megatron_bridge.export(a_job(plan)).settings
    assert newest["optimizer.optimizer"] == "dist_muon"
    assert newest["ddp.use_distributed_optimizer"] is newest["optimizer.use_distributed_optimizer"] is False
    assert newest["ddp.overlap_param_gather"] is newest["optimizer.overlap_param_gather"] is False
    older = megatron_bridge.export(a_job(plan, version="0.4.2"))
    assert (
        older.settings["ddp.overlap_param_gather"]
        is older.settings["optimizer.overlap_param_gather"]
        is False
    )
    assert any("after Muon's step" in note for note in older.notes)
    alone = megatron_bridge.export(a_job(replace(plan, zero_stage=0))).settings
    assert alone["optimizer.optimizer"] == "muon"
    assert megatron_bridge.export(a_job(Plan(dp=8))).settings["optimizer.optimizer"] == "adam"
    with pytest.raises(ValueError, match=r"Try --target-version 0\.3\.1 or later"):
        megatron_bridge.export(a_job(plan, version="0.2.0rc6"))


@pytest.mark.parametrize(
    "split", [{"vpp": 13}, {"pipeline_layout": "balanced"}, {"account_loss": True}], ids=str
)
def test_stages_of_a_hybrid_are_even_or_refused(split):
    with pytest.raises(ValueError, match=r"evenly over stages.*--to megatron-lm"):
        megatron_bridge.export(a_job(Plan(pp=4, dp=2, **split), "nemotronh-8b"))
    assert megatron_bridge.export(a_job(Plan(pp=4, dp=2), "nemotronh-8b"))


def test_graphs_of_experts_name_their_parts():
    plan = Plan(dp=8, ep=8, cuda_graph=True)
    parts = ["attn", "moe_router", "moe_preprocess"]
    exported = megatron_bridge.export(a_job(plan, "mixtral-8x7b"))
    assert exported.settings["model.cuda_graph_modules"] == parts
    assert Plan(**megatron_bridge.read(text_of(exported)).knobs).cuda_graph_scope == tuple(parts)
    one_word = megatron_bridge.export(a_job(plan, "mixtral-8x7b", version="0.2.0rc6"))
    assert one_word.settings["model.cuda_graph_scope"] == "attn"


def test_graphs_by_three_generations_of_names():
    plan = Plan(dp=8, cuda_graph=True, cuda_graph_scope=("attn", "mlp"))
    whole = replace(plan, cuda_graph_scope=("full_iteration",))
    one_word = megatron_bridge.export(a_job(plan, version="0.2.0rc6"))
    assert one_word.settings["model.cuda_graph_scope"] == "full"
    assert any("takes one word" in note for note in one_word.notes)
    assert megatron_bridge.export(a_job(plan, version="0.3.1")).settings["model.cuda_graph_scope"] == [
        "attn",
        "mlp",
    ]
    assert megatron_bridge.export(a_job(whole, version="0.3.1")).settings["model.cuda_graph_impl"] == "local"
    newest = megatron_bridge.export(a_job(whole)).settings
    assert newest["model.cuda_graph_impl"] == "full_iteration"
    assert newest["model.cuda_graph_scope"] is None
    assert not newest["rerun_state_machine.check_for_nan_in_loss"]
    bound = "model.fine_grained_offloading_max_inflight_offloads"
    assert bound not in newest
    offloaded = replace(whole, offload_modules=("core_attn",))
    for version, said in (("0.3.1", None), ("0.5.1", 1), ("0.6.2", 1)):
        exported = megatron_bridge.export(a_job(offloaded, version=version))
        assert exported.settings.get(bound) == said
        assert not any(bound in line for line in megatron_bridge.read(text_of(exported)).unread)


def test_megatron_core_constructs_what_is_exported():
    """Its real classes, in a process of their own; architecture and plan together, as a provider has them."""
    jobs = [job_of(row, version="0.3.1") for row in ROWS]
    more = Plan(
        tp=2, ep=4, dp=8, sequence_parallel=True, recompute="selective", recompute_modules=("moe_act",)
    )
    jobs += [a_job(more, model, version="0.3.1") for model in ("deepseek-v2", "gpt-oss-20b", "qwen3-30b-a3b")]
    jobs += [a_job(Plan(pp=4, dp=4, recompute="full"), "nemotronh-8b", version="0.3.1")]
    sets = []
    for job in jobs:
        core = core_fields(job.plan, job.model, job.workload)
        said = {}
        for name, value in megatron_bridge.export(job).settings.items():
            section, _, field = name.partition(".")
            if section in ("model", "comm_overlap"):
                said[field] = value
        kept = {name: value for name, value in (core | said | without_te()).items() if name not in BEYOND}
        sets.append([kept, job.model.mla is not None])
    done = subprocess.run(
        [sys.executable, "-c", CONSTRUCT], input=json.dumps(sets), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-1500:]
    assert done.stdout.split() == ["ok"] * len(sets), done.stdout


# Fields of Bridge's providers that Megatron-Core's configuration does not have, or that take objects.
BEYOND = {
    "seq_length",
    "vocab_size",
    "should_pad_vocab",
    "make_vocab_size_divisible_by",
    "share_embeddings_and_output_weights",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "init_model_with_meta_device",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "bucket_size",
    "activation_func",
    "attention_backend",
    "use_te_rng_tracker",
}
CONSTRUCT = """
import json, sys, torch
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig
from megatron.core.transformer.enums import AttnBackend
import megatron.core.utils as utils
from packaging.version import Version
utils._te_version = Version("2.9")  # what a run has; here only its versions are asked for
kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
acts = {True: torch.nn.functional.silu, False: torch.nn.functional.gelu}
for fields, latent in json.load(sys.stdin):
    for name in ("params_dtype", "pipeline_dtype"):
        fields[name] = kinds[fields[name]]
    if fields.get("window_size"):
        fields["window_size"] = tuple(fields["window_size"])
    fields["activation_func"] = acts[fields["gated_linear_unit"]]
    fields["bias_activation_fusion"] = False
    # Transformer Engine is not here, and these ask for it.
    fields["use_te_rng_tracker"] = True
    for name in ("moe_permute_fusion", "moe_router_fusion", "fp8_dot_product_attention"):
        fields.pop(name, None)
    try:
        (MLATransformerConfig if latent else TransformerConfig)(**fields)
        print("ok")
    except Exception as error:
        print(str(error).replace(" ", "_"))
"""


@pytest.mark.parametrize("graph", [False, True])
def test_graphs_of_unpacked_sequences_pad_them_all_alike(graph):
    """Rule graph_padded: graphs hold tensors of one shape."""
    load = Workload(4096, 128, "sft", mean_length=512, packed=False)
    job = a_job(Plan(dp=8, cuda_graph=graph), "llama3-8b", workload=load)
    assert ("pad_to_max_length" in text_of(megatron_bridge.export(job))) == graph


def test_a_launch_script_names_the_file_that_has_the_configuration():
    """`train.sh` of an export starts the file that says it all."""
    script = 'set -euo pipefail\ntorchrun --nproc-per-node=8 train_megatron_bridge.py "$@"\n'
    with pytest.raises(ValueError, match=r"It starts train_megatron_bridge\.py: give that file"):
        megatron_bridge.read(script)


@pytest.mark.parametrize(
    ("model", "knobs", "why"),
    [
        (
            "qwen3-next-80b-a3b",
            {},
            "would train another model than qwen3-next-80b-a3b. Try --target-version 0.3.1.",
        ),
        ("nemotron3-nano-30b-a3b", {}, "layers of experts (E)"),
        (
            "deepseek-v3",
            {
                "cuda_graph": True,
                "cuda_graph_scope": ("attn",),
                "recompute": "selective",
                "recompute_modules": ("mla_up_proj",),
            },
            "--no-cuda-graph, or --target-version 0.3.1",
        ),
    ],
)
def test_the_first_release_refuses_what_it_would_train_otherwise(model, knobs, why):
    plan = Plan(dp=8, ep=8, **knobs)
    with pytest.raises(ValueError) as raised:
        megatron_bridge.export(a_job(plan, model, version="0.2"))
    assert why in str(raised.value)
    assert megatron_bridge.export(a_job(plan, model, version="0.3.1")).settings
