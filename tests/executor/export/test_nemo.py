"""Exports to NeMo 2: recipes and names of the release, plans that come back the same."""

from __future__ import annotations

import ast
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import nemo
from executor.export.core_read import model_of
from executor.export.exported import Exported, Job
from executor.export.nemo_settings import arguments_of, place_of
from executor.export.target_names import Names, names_of, releases
from executor.megatron_model import model_fields
from tests.executor.export.any_plan import any_job, with_adam, with_even_stages
from tests.executor.export.aws_rows import job_of, rows, title
from tests.executor.export.round_trip import comparable, exported_or_none, same, undefined

RELEASES = releases("nemo")
ROWS = rows()
MODELS = ("llama3-70b", "mixtral-8x7b", "deepseek-v3", "nemotronh-8b", "gpt-oss-20b")
FREE = ("trainer.num_nodes", "trainer.devices", "trainer.max_steps", "trainer.plugins")


def a_job(plan: Plan | None = None, model: str = "llama3-70b", **more) -> Job:
    workload = more.pop("workload", Workload(8192, 128))
    plan = plan or Plan(tp=4, pp=4, vpp=5, dp=4, sequence_parallel=True)
    return Job(plan, workload, load_model(model), hardware_db.load_cluster("dgx-h100"), **more)


def graphs(modules: tuple[str, ...], scope: str = "attn") -> Plan:
    return Plan(
        dp=8, cuda_graph=True, cuda_graph_scope=(scope,), recompute="selective", recompute_modules=modules
    )


def text_of(exported: Exported) -> str:
    return exported.files[nemo.FILE]


def names_in(release: str) -> Names:
    return names_of("nemo", release)[0]


def refused_calls(exported: Exported) -> list[str]:
    """Arguments of the recipe's function that it does not take in the release."""
    wrong = []
    for node in ast.walk(ast.parse(text_of(exported))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_recipe"):
            module, _, function = ast.unparse(node.func).partition(".")
            takes = arguments_of(names_in(exported.version), module, function)
            assert takes is not None, f"{exported.version} has no {module}.{function}"
            wrong += [str(each.arg) for each in node.keywords if each.arg not in takes]
    return wrong


@pytest.mark.parametrize("row", ROWS, ids=title)
def test_recipes_on_aws(row):
    """Each row through its own recipe of NeMo 2.5, the release that the table is of."""
    job = job_of(row, version="2.5.0")
    exported = nemo.export(job)
    assert "_recipe(" in text_of(exported)
    assert not refused_calls(exported)
    reading = nemo.read(text_of(exported))
    assert reading.model == row["model"]
    assert Workload(**reading.workload) == job.workload
    assert same(job, Plan(**reading.knobs))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", MODELS)
def test_names_are_those_of_the_release(release, model):
    chosen = random.Random(f"{release} {model}")
    for _ in range(2):
        job = with_even_stages(with_adam(any_job(chosen.choice, [model], release)))
        if job.plan.precision == "nvfp4" and release != "2.6.0":
            continue
        if (exported := exported_or_none(nemo, job)) is None:
            continue
        assert exported.version == release
        names = names_in(release)
        assert not [name for name in exported.settings if name not in FREE and not place_of(name, names)]
        plugin = exported.settings["trainer.plugins"]
        assert not plugin or names.has("precisions", plugin)
        assert not refused_calls(exported)
        assert not undefined(ast.parse(text_of(exported)))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_what_is_exported_reads_back_as_the_same_plan(data):
    drawn = any_job(lambda values: data.draw(st.sampled_from(list(values))), MODELS)
    job = comparable(with_even_stages(with_adam(drawn)))
    exported = exported_or_none(nemo, job)
    assume(exported is not None)
    lost = any("left out" in note or "is set" in note or "takes one word" in note for note in exported.notes)
    reading = nemo.read(text_of(exported))
    assert not reading.unread
    assert reading.model == job.model.name
    assert lost or job.plan.attention_backend == "unfused" or same(job, Plan(**reading.knobs))


def test_a_dump_of_a_recipe_reads_back():
    pytest.importorskip("yaml")
    text = """
_target_: nemo.collections.llm.api.pretrain
_partial_: true
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config:
    _target_: nemo.collections.llm.gpt.model.llama.Llama3Config70B
    recompute_granularity: full
    recompute_method: block
    recompute_num_layers: 2
data:
  _target_: nemo.collections.llm.gpt.data.mock.MockDataModule
  seq_length: 8192
  global_batch_size: 128
  micro_batch_size: 1
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  devices: 8
  num_nodes: 8
  callbacks:
  - {_target_: nemo.utils.exp_manager.TimingCallback}
  - _target_: nemo.lightning.pytorch.callbacks.megatron_comm_overlap.MegatronCommOverlapCallback
    tp_comm_overlap: true
  - {_target_: nemo.lightning.pytorch.callbacks.garbage_collection.GarbageCollectionCallback, gc_interval_train: 100}
  plugins:
    _target_: nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision
    precision: bf16-mixed
    params_dtype: {_target_: torch.bfloat16, _call_: false}
    fp8: hybrid
    fp8_recipe: mxfp8
    fp8_param_gather: true
    grad_reduce_in_fp32: false
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    tensor_model_parallel_size: 4
    pipeline_model_parallel_size: 8
    virtual_pipeline_model_parallel_size: 5
    context_parallel_size: 1
    sequence_parallel: true
    ddp:
      _target_: megatron.core.distributed.DistributedDataParallelConfig
      overlap_grad_reduce: true
      use_distributed_optimizer: true
"""
    reading = nemo.read(text)
    plan = Plan(**reading.knobs)
    assert reading.model == "llama3-70b"
    assert (plan.tp, plan.pp, plan.vpp, plan.dp) == (4, 8, 5, 2)
    assert (plan.precision, plan.fp8_param_gather, plan.grad_reduce_in_fp32) == ("mxfp8", True, False)
    assert (plan.recompute, plan.recompute_num_layers) == ("full", 0)  # all: 2 layers in each of 5 chunks
    assert plan.tp_comm_overlap
    assert plan.manual_gc
    assert reading.workload == {"seq_len": 8192, "global_batch": 128}


def test_only_benchmarks_have_settings_of_benchmarks():
    plan = Plan(dp=8, ep=8, settings=(("moe_router_force_load_balancing", True),))
    usual = nemo.export(a_job(plan, "mixtral-8x7b"))
    assert "model.config.moe_router_force_load_balancing" not in usual.settings
    assert "PreTrainingDataModule" in text_of(usual)
    measured = nemo.export(a_job(plan, "mixtral-8x7b", benchmark=True))
    assert measured.settings["model.config.moe_router_force_load_balancing"]
    assert "MockDataModule" in text_of(measured)
    assert not measured.settings["trainer.strategy.ddp.check_for_nan_in_grad"]


def test_fsdp_is_megatrons():
    plan = Plan(dp=8, fsdp=True, zero_stage=3, fsdp_implementation="torch")
    exported = nemo.export(a_job(plan))
    assert exported.settings["trainer.strategy.fsdp"] == "megatron"
    assert any("pytorch" in note for note in exported.notes)


def test_older_switches_of_graphs():
    plan = Plan(dp=8, cuda_graph=True)
    settings_ = nemo.export(a_job(plan, version="2.5")).settings
    assert settings_["model.config.external_cuda_graph"]
    newer = nemo.export(a_job(plan, version="2.6")).settings
    assert newer["model.config.cuda_graph_impl"] == "transformer_engine"
    assert "model.config.enable_cuda_graph" not in newer


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job(Plan(dp=8), "qwen3-next-80b-a3b"), "--to megatron-bridge"),
        (a_job(Plan(dp=8, precision="nvfp4"), version="2.5.0"), "--target-version 2.6.0"),
        (a_job(Plan(dp=8, optimizer="muon")), "--to megatron-bridge"),
        (a_job(version="x"), "no release of nemo"),
        (a_job(Plan(dp=8, ep=8), "nemotron3-super-120b-a12b"), "--to megatron-bridge"),
        (
            a_job(Plan(dp=8, ep=8), "qwen2-57b-a14b"),
            "moe_shared_expert_gate=True: NeMo 2.6.0 has no such name",
        ),
        (a_job(Plan(dp=8, ep=8), "gpt-oss-20b", version="2.5"), "and 1 more: NeMo 2.5.0"),
        (a_job(Plan(dp=8, ep=8), "gpt-oss-20b", version="2.4"), "Try --target-version 2.6.0."),
        (a_job(graphs(("mla_up_proj",)), "deepseek-v3"), "recompute of mla_up_proj: Megatron-Core 0.15.3"),
        (a_job(graphs(("mlp",), "full_iteration")), "(full_iteration) with selective recompute"),
    ],
    ids=["layers", "fp4", "muon", "release", "E", "gate", "gpt-oss", "newer", "graph", "whole-graph"],
)
def test_what_it_cannot_train_is_refused_in_one_line(job, why):
    with pytest.raises(ValueError) as raised:
        nemo.export(job)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "nothing", "_target_: [", "x = 1"])
def test_what_is_no_recipe_is_one_line(text):
    with pytest.raises(ValueError) as raised:
        nemo.read(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("graph", [False, True])
def test_graphs_of_unpacked_sequences_pad_them_all_alike(graph):
    """Rule graph_padded: graphs hold tensors of one shape."""
    load = Workload(4096, 128, "sft", mean_length=512, packed=False)
    job = a_job(Plan(dp=8, cuda_graph=graph), "llama3-8b", workload=load)
    assert ("pad_to_max_length" in text_of(nemo.export(job))) == graph


@pytest.mark.parametrize("release", RELEASES)
def test_profiling_is_callbacks_of_the_release(release):
    """NsysPlugin and MemoryProfilePlugin add these; they had been left out of the file."""
    asked = {
        "use_nsys_profiler": True,
        "profile_ranks": "0,3",
        "profile_step_start": 20,
        "profile_step_end": 22,
    }
    asked |= {"record_memory_history": True, "memory_snapshot_path": "/shared/snapshots/one.pickle"}
    plan = Plan(tp=4, pp=4, vpp=5, dp=4, sequence_parallel=True, settings=asked)
    exported = nemo.export(a_job(plan, version=release))
    names = names_in(release)
    for place, section in (
        ("callbacks.NsysCallback", "nsys"),
        ("callbacks.MemoryProfileCallback", "snapshot"),
    ):
        fields = {dotted.rpartition(".")[2] for dotted in exported.settings if dotted.startswith(place)}
        assert fields
        assert all(names.has(section, field) for field in fields)
    text = text_of(exported)
    assert "run.Config(NsysCallback, start_step=20, end_step=22, ranks=[0, 3])" in text
    assert 'run.Config(MemoryProfileCallback, dir="/shared/snapshots", ranks=[0, 3])' in text
    assert "overlap, garbage, trace, snapshot]" in text
    assert not undefined(ast.parse(text))
    assert not [
        note for note in exported.notes if "nsys" in note or "profile" in note or "record_memory" in note
    ]


def test_fine_tuning_says_where_base_weights_are_read():
    tuning = a_job(workload=Workload(4096, 32, "sft"))
    assert any("NEMO_HOME" in note for note in nemo.export(tuning).notes)
    assert not any("NEMO_HOME" in note for note in nemo.export(a_job()).notes)


def test_older_graphs_of_attention_and_recompute_beside_them_are_exported():
    """0.15 takes what is outside attention; up to 0.14 Transformer Engine's graphs took any."""
    assert nemo.export(a_job(graphs(("moe",)), "mixtral-8x7b")).settings
    assert nemo.export(a_job(graphs(("core_attn",)), version="2.5")).settings


def test_a_file_without_the_latent_size_is_another_model():
    """Nemotron 3 Super without it has 459 billion parameters, not 121."""
    fields = model_fields(load_model("nemotron3-super-120b-a12b"))
    assert model_of(fields) == "nemotron3-super-120b-a12b"
    fields.pop("moe_latent_size")
    assert model_of(fields) == ""


@pytest.mark.parametrize(("where", "named"), [("dgx-h100", "deepep"), ("gb200-nvl72", "alltoall")])
def test_where_deepep_does_not_run_all_to_all_stands_in_for_hybridep(where, named):
    plan = Plan(dp=64, ep=64, moe_dispatcher="hybridep")
    job = Job(plan, Workload(4096, 512), load_model("deepseek-v3"), hardware_db.load_cluster(where))
    made = nemo.export(job)
    assert made.settings["model.config.moe_enable_deepep"] == (named == "deepep")
    assert any(f"has none, {named} is set" in note for note in made.notes)
