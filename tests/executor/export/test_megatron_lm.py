"""Exports to Megatron-LM: its own parser takes them and derives the plan; read back, they are the plan."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import pytest
from any_plan import MODELS, any_job, is_legal
from guide_rows import plans
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import hardware_db
from costmodel.graph_parts import captured_parts
from costmodel.layout import expand, layout_of
from costmodel.model_registry import list_models, load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import megatron_lm
from executor.export.bundle import bundle
from executor.export.environment import environment, environment_knobs
from executor.export.exported import Job
from executor.export.megatron_lm_arguments import LEGACY_LAYOUT
from executor.export.megatron_lm_names import version_of, versions
from executor.megatron_args import FUSABLE, core_fields
from executor.megatron_training import checks_for_nan

H100 = hardware_db.load_cluster("dgx-h100")
RANDOM_PLANS = 40


def exportable(job: Job) -> bool:
    """Whether Megatron-LM can be told the plan at all; graphed attention with dropout is a gap of our rules."""
    graphed_dropout = job.plan.dropout and job.plan.cuda_graph and job.plan.recompute == "selective"
    # The balancer may leave multi-token prediction before the last chunk, which Megatron refuses.
    heads_moved = job.model.mtp_layers and job.plan.pipeline_layout and job.plan.vpp > 1
    try:
        megatron_lm.export(job)
    except ValueError:
        return False
    return not graphed_dropout and not heads_moved


def job_of(name: str, plan: Plan, **more: Any) -> Job:
    """A job on H100s."""
    return Job(plan, Workload(4096, 8 * plan.dp * plan.micro_batch), load_model(name), H100, **more)


def test_the_parser_takes_random_legal_plans_and_derives_them(parser):
    from export_sweep import differences, parser_job

    dice = random.Random(5)
    jobs = [job for job in (any_job(dice.choice) for _ in range(RANDOM_PLANS)) if exportable(job)]
    assert len(jobs) > RANDOM_PLANS / 2
    answers = parser.parse_all([parser_job(job) for job in jobs])
    for job, answer in zip(jobs, answers, strict=True):
        assert not answer["refused"], f"{job.model.name} {job.plan}: {answer['refused']}"
        assert not differences(job, answer), f"{job.model.name} {job.plan}"


def test_the_parser_takes_every_model_of_the_catalogue_and_the_guides_rows(parser):
    from export_sweep import differences, parser_job

    jobs = [job_of(name, Plan(dp=8, ep=2 if load_model(name).moe else 1)) for name in list_models()]
    jobs += [
        Job(plan, workload, load_model(model), hardware_db.load_cluster(machine))
        for model, machine, plan, workload in plans()
    ]
    ready = [job for job in jobs if job.model.compressed_attention is None and job.workload.task != "lora"]
    for job, answer in zip(ready, parser.parse_all([parser_job(job) for job in ready]), strict=True):
        assert not answer["refused"], f"{job.model.name} {job.plan}: {answer['refused']}"
        assert not differences(job, answer), f"{job.model.name} {job.plan}"
        values = answer["values"]
        assert values["hidden_size"] == job.model.hidden
        assert values["num_layers"] == job.model.num_layers
        assert answer["config"]["num_moe_experts"] == (job.model.moe.num_experts if job.model.moe else None)


@pytest.mark.parametrize("name", ["0.17", "0.18"])
def test_older_versions_have_the_names_too(parser, name):
    from export_sweep import parser_job

    release = parser.WHEELS[name]
    try:
        parser.wheel_folder(release)
    except parser.NoParser as reason:
        pytest.skip(str(reason))
    dice = random.Random(6)
    jobs = [any_job(dice.choice, version=name) for _ in range(12)]
    jobs = [job for job in jobs if exportable(job)]
    for job, answer in zip(jobs, parser.parse_all([parser_job(job) for job in jobs], release), strict=True):
        assert "unrecognized arguments" not in answer["refused"], job.plan


def test_flags_that_versions_lack_are_those_that_their_parsers_lack(parser):
    lacked = {flag for version in versions() for flag in version.lacks}
    for name, release in parser.WHEELS.items():
        try:
            known = parser.flags_of(release)
        except parser.NoParser as reason:
            pytest.skip(str(reason))
        assert set(version_of(name)[0].lacks) == lacked - known - {"--optimizer-cuda-graph"}


@pytest.mark.parametrize("version", [each for each in versions() if each.name != "0.16"], ids=str)
def test_transformer_engines_loss_is_written_where_the_parser_takes_it(parser, version):
    from export_sweep import parser_job

    release = parser.WHEELS[version.name]
    try:
        parser.wheel_folder(release)
    except parser.NoParser as reason:
        pytest.skip(str(reason))
    job = job_of("llama3-8b", Plan(dp=8), version=version.name)
    flags = megatron_lm.export(job).settings
    assert flags.get("--cross-entropy-fusion-impl") == ("te" if version.te_loss else None)
    assert flags["--cross-entropy-loss-fusion"]
    assert "--cross-entropy-fusion-impl" not in megatron_lm.export(replace(job, native_loss=True)).settings
    given = parser_job(job)
    told = given | {"arguments": [*given["arguments"], "--cross-entropy-fusion-impl", "te"]}
    taken, with_te = parser.parse_all([given, told], release)
    assert not taken["refused"]
    assert ("cross entropy" in with_te["refused"]) != version.te_loss


@pytest.mark.parametrize(
    ("plan", "workload", "way_out"),
    [
        (Plan(dp=8, micro_batch=4), {"packed": False, "mean_length": 800}, "--packed --micro-batch 1"),
        (Plan(dp=8), {"packed": False}, "--to megatron-bridge"),
        (
            Plan(dp=8, micro_batch=4),
            {"mean_length": 800},
            "--micro-batch 1 --seq-len 16384 --global-batch 16",
        ),
    ],
    ids=str,
)
def test_its_fine_tuning_packs_and_takes_one_pack(plan, workload, way_out):
    job = job_of("llama3-8b", plan)
    tuned = replace(job, workload=Workload(4096, 64, "sft", **workload))
    with pytest.raises(ValueError, match=way_out) as refused:
        megatron_lm.export(tuned)
    assert "\n" not in str(refused.value)
    megatron_lm.export(replace(tuned, workload=replace(tuned.workload, task="pretrain")))


def test_a_flag_that_the_version_lacks_is_noted_and_left_out():
    plan = Plan(dp=8, ep=8, settings={"flash_attention_version": "3"})
    old = megatron_lm.export(job_of("qwen3-30b-a3b", plan, version="0.17"))
    new = megatron_lm.export(job_of("qwen3-30b-a3b", plan))
    assert new.settings["--flash-attention-version"] == "3"
    assert "--flash-attention-version" not in old.settings
    assert any("--flash-attention-version" in note for note in old.notes)


MUON = Plan(dp=8, optimizer="muon", precision="fp8-cs", fp8_param_gather=True)
BY_LAYER = {
    "--optimizer": "muon",
    "--use-distributed-optimizer": True,
    LEGACY_LAYOUT: True,
    "--fp8-param-gather": True,
}
OVERLAP = "--overlap-param-gather"


@pytest.mark.parametrize(
    ("version", "flags", "noted"),
    [
        ("0.16", {"--optimizer": "dist_muon"}, ("--fp8-param-gather", OVERLAP)),
        ("0.17", {"--optimizer": "dist_muon", OVERLAP: True}, ("--fp8-param-gather",)),
        ("0.18", BY_LAYER | {OVERLAP: True}, ()),
        ("0.19", BY_LAYER | {OVERLAP: True}, ()),
    ],
)
def test_muon_in_the_words_of_each_version(version, flags, noted):
    """Tensors are dealt out one by one, as predicted; what a version refuses with that is left out, with a note."""
    exported = megatron_lm.export(job_of("llama3-8b", MUON, version=version))
    names = {*BY_LAYER, OVERLAP}
    assert {name: value for name, value in exported.settings.items() if name in names} == flags
    assert {note.split()[0] for note in exported.notes if note.startswith("--")} == set(noted)


@pytest.mark.parametrize(
    ("version", "refuses"), [("0.16", True), ("0.17", True), ("0.18", False), ("0.19", False)]
)
def test_muon_on_every_rank_overlaps_no_gradients_before_0_18(version, refuses):
    plan = replace(MUON, zero_stage=0, overlap_grad_reduce=True, fp8_param_gather=False)
    exported = megatron_lm.export(job_of("llama3-8b", plan, version=version))
    flag = "--overlap-grad-reduce"
    assert (flag in exported.settings) != refuses
    assert any(note.startswith(flag) for note in exported.notes) == refuses


@pytest.mark.parametrize("name", ["0.17", "0.18", "0.19"])
def test_the_parser_takes_muon(parser, name):
    from export_sweep import parser_job

    release = parser.WHEELS[name]
    try:
        parser.wheel_folder(release)
    except parser.NoParser as reason:
        pytest.skip(str(reason))
    plans = [MUON, replace(MUON, zero_stage=0, overlap_grad_reduce=True, fp8_param_gather=False)]
    jobs = [job_of("llama3-8b", plan, version=name) for plan in plans]
    for answer in parser.parse_all([parser_job(job) for job in jobs], release):
        assert not answer["refused"]


def test_what_is_not_modelled_of_an_optimizer_is_told():
    text = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 --optimizer "
    for dealt in ("muon --use-distributed-optimizer", "dist_muon"):
        assert any("pads buckets" in line for line in megatron_lm.read(text + dealt).otherwise)
    assert not megatron_lm.read(text + f"muon --use-distributed-optimizer {LEGACY_LAYOUT}").otherwise
    other = megatron_lm.read(text + "adaptive_muon")
    assert other.knobs.get("optimizer", "adam") == "adam"
    assert any("optimizer adaptive_muon" in line for line in other.otherwise)


@pytest.mark.parametrize(
    ("text", "name"), [("", "0.19"), ("0.17.1", "0.17"), ("0.25", "0.19"), ("0.2", "0.16")]
)
def test_the_nearest_version_is_taken(text, name):
    version, note = version_of(text)
    assert version.name == name
    assert bool(note) == (text in ("0.25", "0.2"))


def said(plan: Plan, job: Job) -> Plan:
    """The plan as Megatron-LM can be told it: what has no effect there, or no argument, at its default."""
    model, plain = job.model, Plan()
    around = environment_knobs({variable.name: variable.value for variable in environment(job)})
    settings = dict(plan.settings) | around.pop("settings")
    changes: dict[str, Any] = {**around, "settings": settings}
    default = lambda *names: changes.update({name: getattr(plain, name) for name in names})  # noqa: E731
    # No argument, or in a file of its own.
    default("offload_weights", "fp8_attention", "param_remainders", "nvl_segment", "encoder_tp")
    default("tp_overlap_splits", "tp_overlap_sms", "tp_overlap_cga", "fsdp_shard_size", "tp_only_amax_red")
    changes["check_for_nan_in_grad"] = checks_for_nan(plan)
    if plan.fsdp and 0 < plan.fsdp_shard_size < plan.dp * plan.cp and plan.fsdp_implementation == "megatron":
        changes["fsdp_shard_size"] = plan.fsdp_shard_size
    elif plan.fsdp and plan.sharding_instances > 1 and plan.fsdp_implementation == "megatron":
        # The same, said otherwise; a shard size that is the whole group decides over instances.
        changes["fsdp_shard_size"] = plan.dp * plan.cp // plan.sharding_instances
    if plan.fsdp:
        default("optimizer_instances")
    if not plan.vboost:
        default("vboost")
    if plan.tp == 1:
        default("tp_comm_overlap")
    if plan.pp == 1:
        default("first_stage_layers", "last_stage_layers")
    if plan.vpp == 1:
        default("overlap_p2p")
    if plan.pp == 2 and plan.vpp > 1:
        default("overlap_p2p")  # batched sends between two stages would mix
    if plan.cp == 1:
        default("cp_comm_type", "cp_a2a_size")
    # Whole layers of dropless experts are said by the parts that can be captured.
    parts = captured_parts(plan, model) if plan.cuda_graph else ()
    changes["cuda_graph_scope"] = parts
    if "moe" in parts and plan.moe_capacity_factor > 0:  # whole experts are captured padded to their capacity
        settings["moe_pad_expert_input_to_capacity"] = True
    if not plan.fsdp:
        default("fsdp_implementation")
    # Megatron gathers parameters early only beside an overlapped reduction of sharded state.
    if not (plan.overlap_grad_reduce and plan.zero_stage) or (
        plan.fsdp and plan.fsdp_implementation == "torch"
    ):
        changes["overlap_param_gather"] = False
    if plan.fsdp and plan.fsdp_implementation == "torch":
        changes |= {"gradient_accumulation_fusion": False, "fp8_param_gather": False}
        default("optimizer_instances")
    if plan.precision in ("fp32", "fp16"):
        changes["grad_reduce_in_fp32"] = plan.grad_reduce_in_fp32 or plan.precision == "fp32"
    if not plan.optimizer_offload:
        default("overlap_optimizer_offload")
    if not plan.precision_aware_optimizer:
        default("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    # A layout is written out; an even one needs none.
    written = core_fields(plan, model, job.workload).get("pipeline_model_parallel_layout", "")
    if model.layer_pattern:
        written = _pattern_stages(job)
    changes["pipeline_layout"] = written
    if written or model.layer_pattern:
        default("account_embedding", "account_loss")
    if written:
        default("first_stage_layers", "last_stage_layers")
    changes |= _recompute(plan, model) | _kernels(plan, model)
    if model.moe is None:
        default("moe_dispatcher", "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")
        default("expert_mlp_fusion")
        default(
            "moe_capacity_factor", "overlap_moe_comm", "delay_wgrad", "shared_expert_overlap", "etp", "ep"
        )
    if model.moe is None or plan.moe_dispatcher not in ("deepep", "hybridep"):
        default("dispatcher_sms")
    return replace(plan, **changes)


def _pattern_stages(job: Job) -> str:
    """The layout that the stages of a layer pattern are read as, "" where they are even or told by two numbers."""
    plan, model = job.plan, job.model
    told = (plan.first_stage_layers or plan.last_stage_layers) and not plan.pipeline_layout
    if plan.pp * plan.vpp == 1 or (told and plan.vpp == 1):
        return ""
    chunks = layout_of(plan, model, job.workload.seq_len).chunks
    sizes = [chunks[stage][chunk].layers for chunk in range(plan.vpp) for stage in range(plan.pp)]
    letters = "|".join("t" * size for size in sizes)
    return "E" + letters + "m" * model.mtp_layers + "L" if len(set(sizes)) > 1 else ""


def _recompute(plan: Plan, model: Any) -> dict[str, Any]:
    """Layers of full recompute as a multiple of the chunks, modules under Megatron's names."""
    if plan.recompute != "selective":
        layers = -(-model.num_layers // (plan.pp * plan.vpp))
        counted = plan.recompute_num_layers // plan.vpp * plan.vpp if plan.recompute == "full" else 0
        return {
            "recompute_modules": (),
            "recompute_num_layers": 0 if counted >= layers * plan.vpp else counted,
        }
    return {"recompute_modules": plan.recompute_modules or ("core_attn",)}


def _kernels(plan: Plan, model: Any) -> dict[str, Any]:
    """Fusions that the model has no kernel for are told neither way, or are off as the search takes them."""
    found = {}
    gelu_alone = model.activation == "gelu" and not model.gated and not model.linear_bias
    if model.activation not in FUSABLE or gelu_alone:
        found["bias_activation_fusion"] = model.activation in FUSABLE
    if model.moe is not None and model.linear_bias:
        found["bias_dropout_fusion"] = True
    return found


def unlike(one: Plan, other: Plan) -> dict[str, Any]:
    """Knobs in which two plans differ."""
    names = [field.name for field in fields(Plan)]
    return {
        name: (getattr(one, name), getattr(other, name))
        for name in names
        if getattr(one, name) != getattr(other, name)
    }


@pytest.mark.parametrize(
    "split",
    [
        {"vpp": 13},
        {"pipeline_layout": "balanced"},
        {"pipeline_layout": "balanced", "vpp": 2},
        {"first_stage_layers": 10},
    ],
    ids=str,
)
def test_stages_of_a_hybrid_are_those_that_are_priced(split):
    plan = Plan(pp=4, dp=2, **split)
    job = job_of("nemotronh-8b", plan)
    found = Plan(**megatron_lm.read("\n".join(bundle(job, "megatron-lm", slurm=False).files.values())).knobs)
    read, priced = (layout_of(each, job.model, job.workload.seq_len).chunks for each in (found, plan))
    assert [[chunk.blocks for chunk in stage] for stage in read] == [
        [chunk.blocks for chunk in stage] for stage in priced
    ]


@pytest.mark.parametrize("ends", [{"first_stage_layers": 24}, {"last_stage_layers": 2}])
def test_stages_in_a_hybrids_pattern_are_said_once(ends):
    """Megatron-Core refuses the layers of an end beside a pattern that is parted by |."""
    plan = Plan(pp=2, vpp=2, dp=4, ep=4, **ends)
    flags = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
    said = megatron_lm.export(job_of("nemotron3-nano-30b-a3b", plan)).settings
    assert "|" in said["--hybrid-layer-pattern"]
    assert not set(flags) & set(said)
    plain = megatron_lm.export(job_of("nemotron3-nano-30b-a3b", replace(plan, vpp=1))).settings
    assert "|" not in plain["--hybrid-layer-pattern"]
    assert set(flags) & set(plain)


def test_a_shard_size_of_the_whole_group_decides_over_instances():
    plan = Plan(dp=8, fsdp=True, zero_stage=3, fsdp_shard_size=8, optimizer_instances=2)
    made = bundle(job_of("llama3-8b", plan), "megatron-lm", slurm=False)
    back = Plan(**megatron_lm.read(made.files["train.sh"]).knobs)
    assert back.sharding_instances == plan.sharding_instances == 1


def test_only_newer_checkouts_take_stages_of_a_hybrid():
    with pytest.raises(ValueError, match=r"--vpp 13: .*--target-version 0\.17"):
        megatron_lm.export(job_of("nemotronh-8b", Plan(pp=4, vpp=13, dp=2), version="0.16"))


@settings(max_examples=30, derandomize=True, phases=[Phase.generate])
@given(st.data())
def test_an_export_read_back_is_the_plan(data):
    job = any_job(lambda values: data.draw(st.sampled_from(list(values))))
    try:
        made = bundle(job, "megatron-lm", slurm=True)
    except ValueError:
        return
    found = megatron_lm.read("\n".join(made.files.values()))
    assert not unlike(Plan(**found.knobs), said(job.plan, job)), job.plan
    assert found.model == job.model.name
    assert found.workload == {"seq_len": job.workload.seq_len, "global_batch": job.workload.global_batch}
    assert not found.unread


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_not_in_the_catalogue_is_read_as_a_shape(name, monkeypatch):
    from costmodel.model_file import from_mapping
    from executor.export import megatron_lm_read

    monkeypatch.setattr(megatron_lm_read, "same_models", lambda _: [])
    model = load_model(name)
    made = bundle(job_of(name, Plan(dp=8)), "megatron-lm", slurm=False)
    shape = megatron_lm.read(made.files["train.sh"]).architecture
    read = from_mapping({"name": "x", **shape})
    same = (
        "num_layers",
        "hidden",
        "ffn_hidden",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "vocab",
        "gated",
        "family",
    )
    assert {key: getattr(read, key) for key in same} == {key: getattr(model, key) for key in same}
    assert read.layer_kinds() == model.layer_kinds()
    for part in ("mla", "mamba", "gated_delta", "sliding_window"):
        assert getattr(read, part) == getattr(model, part), part


def test_adapters_are_refused_with_the_way_out():
    job = replace(job_of("llama3-70b", Plan(dp=8)), workload=Workload(4096, 32, "lora"))
    with pytest.raises(ValueError, match="megatron-bridge"):
        megatron_lm.export(job)


def test_settings_for_benchmarks_stay_out_unless_asked_for():
    plan = Plan(dp=8, ep=8, settings={"moe_router_force_load_balancing": True})
    usual = megatron_lm.export(job_of("qwen3-30b-a3b", plan))
    benchmark = megatron_lm.export(job_of("qwen3-30b-a3b", plan, benchmark=True))
    for flag in ("--moe-router-force-load-balancing", "--mock-data"):
        assert flag not in usual.command
        assert flag in benchmark.command
    assert "--no-check-for-nan-in-loss-and-grad" not in usual.command
    assert any("benchmarks" in note for note in usual.notes)


def test_what_the_guides_leave_to_recipes_is_written_out():
    rows = {(model, plan.pp): (plan, workload) for model, _, plan, workload in plans()}
    plan, workload = rows["deepseek-v3", 16]
    exported = megatron_lm.export(Job(plan, workload, load_model("deepseek-v3"), H100))
    layout = expand(exported.settings["--pipeline-model-parallel-layout"])
    assert len(layout) == 16
    assert sum(stage.count("t") for stage in layout) == 61
    plan, workload = rows["llama3.1-405b", 8]
    exported = megatron_lm.export(Job(plan, workload, load_model("llama3.1-405b"), H100))
    assert "--account-for-embedding-in-pipeline-split" in exported.command


@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        ("--bf16 --overlap-grad-reduce", {"zero_stage": 0}),
        ("--bf16 --use-distributed-optimizer", {"overlap_grad_reduce": False}),
        ("--fp16", {"precision": "fp16", "grad_reduce_in_fp32": False}),
        ("--bf16 --num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 4", {"vpp": 4}),
        ("--bf16 --optimizer muon --use-distributed-optimizer", {"optimizer": "muon", "zero_stage": None}),
        ("--bf16 --optimizer dist_muon", {"optimizer": "muon", "zero_stage": None}),
        ("--bf16 --optimizer muon", {"optimizer": "muon", "zero_stage": 0}),
        ("--bf16 --recompute-activations", {"recompute": "selective", "recompute_modules": ("core_attn",)}),
        ("--bf16 --num-experts 8 --tensor-model-parallel-size 4", {"etp": 4, "moe_dispatcher": "allgather"}),
    ],
)  # fmt: skip
def test_what_is_left_out_stands_at_megatrons_default(text, knobs):
    found = megatron_lm.read(f"--num-layers 32 --hidden-size 4096 --num-attention-heads 32 {text}").knobs
    assert {name: found.get(name) for name in knobs} == knobs


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
# --tensor-model-parallel-size 16 is a remark
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=8; LAYERS="80"
GPT_ARGS="
    --num-layers $LAYERS \\
    --hidden-size ${HIDDEN:-8192} --num-attention-heads 16
"
DIST=(--tensor-model-parallel-size ${TP} --sequence-parallel)
srun python pretrain_gpt.py $GPT_ARGS "${DIST[@]}" --bf16 --seq-length=4096
echo --done
"""


def test_a_script_with_variables_arrays_and_remarks_is_read():
    found = megatron_lm.read(SCRIPT)
    assert found.knobs["tp"] == 8
    assert found.knobs["sequence_parallel"]
    assert found.knobs["dp"] == 4
    assert found.knobs["max_connections"] == 1
    assert found.workload == {"seq_len": 4096}
    assert found.architecture["num_layers"] == 80
    assert found.architecture["hidden"] == 8192


def test_yaml_of_functional_tests_and_of_arguments_is_read():
    pytest.importorskip("yaml")
    tests = (
        "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n"
    )
    tests += "  --num-attention-heads: 8\n  --bf16: true\n  --tensor-model-parallel-size: 2\n"
    tests += "  --sequence-parallel: true\n"
    arguments = "language_model:\n  num_layers: 12\n  hidden_size: 512\n  num_attention_heads: 8\n"
    arguments += "model_parallel:\n  tensor_model_parallel_size: 2\n  sequence_parallel: True\nbf16: True\n"
    for text in (tests, arguments):
        found = megatron_lm.read(text)
        assert found.knobs["tp"] == 2, text
        assert found.knobs["sequence_parallel"]
        assert found.architecture["num_layers"] == 12


@pytest.mark.parametrize("text", ["", "hello", "--lr 1", "a: b"])
def test_other_text_is_refused_in_one_line(text):
    with pytest.raises(ValueError) as error:
        megatron_lm.read(text)
    assert "\n" not in str(error.value)


def test_the_generator_makes_legal_plans_of_many_kinds():
    dice = random.Random(1)
    jobs = [any_job(dice.choice) for _ in range(30)]
    assert all(is_legal(job.model, job.workload, job.cluster, job.plan) for job in jobs)
    assert len({job.model.family for job in jobs}) >= 4
    assert {job.plan.fsdp for job in jobs} == {True, False}
