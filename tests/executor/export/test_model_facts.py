"""What a model is trained with beside its sizes: norms, rotary positions, routers' weights, exported and read back."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hardware_db
from costmodel.model_file import from_mapping
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.model_tables import AttentionTemperature
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import megatron_bridge_read, megatron_lm_read, nemo_read
from executor.export.bundle import bundle, target_module
from executor.export.exported import TARGETS, Job

MODELS = ("qwen3-next-80b-a3b", "nemotron4-15b", "deepseek-v2", "deepseek-v3", "qwen2-57b-a14b", "llama3-8b")
# Field of ModelSpec -> Megatron-Core's.
FACTS = {
    "norm_epsilon": "layernorm_epsilon",
    "zero_centered_norm": "layernorm_zero_centered_gamma",
    "rotary_base": "rotary_base",
    "rotary_percent": "rotary_percent",
}
ROUTER = {
    "router_score": "moe_router_score_function",
    "router_pre_softmax": "moe_router_pre_softmax",
    "router_scaling_factor": "moe_router_topk_scaling_factor",
}
FLAGS = {
    "layernorm_epsilon": "--norm-epsilon",
    "layernorm_zero_centered_gamma": "--apply-layernorm-1p",
}
# Megatron-Core's defaults, which may be left out.
USUAL = {"rotary_percent": 1.0, "moe_router_topk_scaling_factor": 1.0, "layernorm_zero_centered_gamma": False}
PREFIX = {"megatron-bridge": "model.", "nemo": "model.config."}


def job_of(model: ModelSpec | str, version: str = "") -> Job:
    model = load_model(model) if isinstance(model, str) else model
    plan = Plan(dp=8, ep=8 if model.moe else 1)
    return Job(plan, Workload(4096, 64), model, hardware_db.load_cluster("dgx-h100"), version=version)


def facts(model: ModelSpec) -> dict[str, object]:
    """Megatron-Core's fields of the facts."""
    said = {theirs: getattr(model, ours) for ours, theirs in FACTS.items()}
    router = {theirs: getattr(model.moe, ours) for ours, theirs in ROUTER.items()} if model.moe else {}
    return {name: value for name, value in (said | router).items() if value is not None}


def unknown(name: str) -> ModelSpec:
    """The model under a name that no target has a recipe for."""
    return replace(load_model(name), name="our own")


@pytest.mark.parametrize("version", ["0.17", "0.18", "0.19"])
def test_megatrons_parser_trains_the_model(parser, version):
    from export_sweep import parser_job

    jobs = [parser_job(job_of(name, version)) for name in MODELS]
    for name, answer in zip(MODELS, parser.parse_all(jobs, parser.WHEELS[version]), strict=True):
        assert not answer["refused"], (name, answer["refused"])
        held = answer["values"] | {key: value for key, value in answer["config"].items() if key in FLAGS}
        for field, value in facts(load_model(name)).items():
            assert (held[field] or USUAL.get(field, held[field])) == value, (name, field)


@pytest.mark.parametrize("target", ["megatron-bridge", "nemo"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_a_recipe_is_said_whole(target, name):
    version = "2.6.0" if target == "nemo" else "0.3.1"
    if target == "nemo" and name.startswith(("qwen3-next", "qwen2-57b")):
        pytest.skip("NeMo has no gated delta nets and no gates of shared experts")
    settings = target_module(target).export(job_of(unknown(name), version)).settings
    for field, value in facts(unknown(name)).items():
        assert settings.get(PREFIX[target] + field, USUAL.get(field)) == value, field


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "nemotron4-15b", "deepseek-v2"])
def test_a_recipe_keeps_its_own_facts_and_takes_another_models(name):
    own = target_module("megatron-bridge").export(job_of(name, "0.3.1"))
    other = replace(load_model(name), norm_epsilon=1e-4, zero_centered_norm=False)
    changed = target_module("megatron-bridge").export(job_of(other, "0.3.1")).settings
    assert changed["model.layernorm_epsilon"] == 1e-4
    if "model.vocab_size" not in own.settings:  # there is a recipe
        assert not [field for field in facts(load_model(name)) if f"model.{field}" in own.settings]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*MODELS, "mixtral-8x7b", "nemotron3-nano-30b-a3b", "gpt-oss-20b"])
def test_a_model_of_ones_own_is_read_back_whole(target, name, monkeypatch):
    if target == "nemo" and name.startswith(("qwen3-next", "qwen2-57b", "nemotron3", "gpt-oss")):
        pytest.skip("NeMo refuses its layers")
    monkeypatch.setattr(megatron_lm_read, "same_models", lambda _: [])
    monkeypatch.setattr(megatron_bridge_read, "model_of", lambda _: "")
    monkeypatch.setattr(nemo_read, "model_of", lambda _: "")
    model = unknown(name)
    made = bundle(job_of(model), target, slurm=False)
    file = next(
        name for name in made.files if name.endswith("train.sh" if target == "megatron-lm" else ".py")
    )
    found = target_module(target).read(made.files[file])
    assert not found.model
    assert not found.unread
    read = from_mapping({"name": "read", **found.architecture})
    assert facts(read) == facts(read) | facts(
        model
    )  # what the model's file leaves open is Megatron's default
    assert (read.family, read.layer_kinds(), read.mla) == (model.family, model.layer_kinds(), model.mla)


def test_defaults_of_megatron_lm_are_its_models():
    text = "--num-layers 7 --hidden-size 64 --num-attention-heads 4 --position-embedding-type rope --num-experts 4"
    read = from_mapping(
        {"name": "read", "vocab": 128, **target_module("megatron-lm").read(text).architecture}
    )
    assert (read.norm_epsilon, read.zero_centered_norm, read.rotary_base, read.rotary_percent) == (
        1e-5,
        False,
        10_000,
        1.0,
    )
    assert (read.moe.router_pre_softmax, read.moe.router_scaling_factor) == (False, 1.0)


@pytest.mark.parametrize(
    ("said", "base"), [("500000.0", 500_000), ("1e6", 1_000_000), ("50000", 50_000), ("10000.5", None)]
)
def test_a_rotary_base_with_a_point_is_read(said, base):
    """Megatron-Bridge takes rope_theta as it stands in a config.json, a float: such texts were refused."""
    text = (
        "model.num_layers=7\nmodel.hidden_size=64\nmodel.num_attention_heads=4\nmodel.ffn_hidden_size=256\n"
    )
    text += f"model.vocab_size=128\nmodel.position_embedding_type=rope\nmodel.rotary_base={said}\n"
    found = target_module("megatron-bridge").read(text)
    assert from_mapping({"name": "read", **found.architecture}).rotary_base == base


OVERRIDES = """
model.num_layers=7 model.hidden_size=64 model.num_attention_heads=4 model.ffn_hidden_size=256 model.vocab_size=128
model.num_moe_experts=8 model.moe_ffn_hidden_size=64 model.moe_router_topk=2
"""


@pytest.mark.parametrize("said", ["[0,0,0,1,1,1,1]", "[0]*3+[1]*4", "([0]*3+[1]*4)"])
def test_layers_of_experts_are_read_however_they_are_written(said):
    """A pattern in an override was read as experts in every layer."""
    found = target_module("megatron-bridge").read(f"{OVERRIDES} model.moe_layer_freq={said}")
    kinds = from_mapping({"name": "read", **found.architecture}).layer_kinds()
    assert kinds == ("attention + mlp",) * 3 + ("attention + experts",) * 4


@pytest.mark.parametrize(
    "said",
    [
        "moe_layer_freq=each",
        "window_size=127",
        "window_size=wide",
        "hybrid_layer_pattern=5",
        "hybrid_layer_pattern=M*M*M*M model.mamba_head_dim=wide",
        "hybrid_layer_pattern=M*M*M*M model.hidden_size=wide",
    ],
)
def test_a_shape_that_cannot_be_is_one_line(said):
    def shape() -> ModelSpec:
        found = target_module("megatron-bridge").read(f"{OVERRIDES} model.{said}")
        return from_mapping({"name": "read", **found.architecture})

    with pytest.raises(ValueError, match=r"^[^\n]+\.$"):
        shape()


def test_a_window_written_as_a_tuple_is_read():
    found = target_module("megatron-bridge").read(f"{OVERRIDES} model.window_size='(127, 0)'")
    assert from_mapping({"name": "read", **found.architecture}).sliding_window.window == 128


@pytest.mark.parametrize("target", TARGETS)
def test_what_no_file_holds_is_asked_for(target):
    def asked(model: ModelSpec) -> list[str]:
        notes = target_module(target).export(job_of(model)).notes
        return [note for note in notes if note.startswith("not in our file of")]

    whole = unknown("deepseek-v3")
    assert not asked(whole)
    assert not asked(unknown("mixtral-8x7b"))
    bare = replace(whole, rotary_base=None, norm_epsilon=None)
    bare = replace(bare, moe=replace(whole.moe, router_scaling_factor=None))
    unscaled = replace(whole, rotary_scaling=None)
    notes = " ".join(target_module(target).export(job_of(unscaled)).notes)
    assert f"a factor of {1 if target == 'megatron-lm' else 40}" in notes
    (note,) = asked(bare)
    for field in ("rotary_base", "layernorm_epsilon", "moe_router_topk_scaling_factor"):
        own = FLAGS.get(field, "--" + field.replace("_", "-"))
        assert (own if target == "megatron-lm" else PREFIX[target] + field) in note


# Model -> Megatron-Core's fields of its rotary scaling and norms, as the published config.json means them.
SCALED = {
    "deepseek-v3": {
        "rotary_scaling_factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "deepseek-v2": {"rotary_scaling_factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707},
    "kimi-k2": {"rotary_scaling_factor": 32.0, "beta_fast": 1.0},
    "moonlight-16b-a3b": {"rotary_scaling_factor": 1.0},
    "llama3.1-405b": {"rope_scaling": True, "rope_scaling_factor": 8.0},
    "llama4-scout": {"qk_l2_norm": True, "no_rope_freq": 4},
}
# Megatron-LM has no argument for these; its value is then Megatron-Core's default.
WITHOUT_FLAG = {"original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}


def shaped(name: str, version: str) -> Job:
    """The model without a recipe, on a plan that fits its layers."""
    model = unknown(name)
    return replace(job_of(model, version), plan=Plan(dp=8, ep=8 if model.moe else 1))


@pytest.mark.parametrize("version", ["0.17", "0.19"])
def test_megatrons_parser_is_told_how_positions_are_scaled(parser, version):
    from export_sweep import parser_job

    jobs = [shaped(name, version) for name in SCALED]
    answers = parser.parse_all([parser_job(job) for job in jobs], parser.WHEELS[version])
    for (name, fields), job, answer in zip(SCALED.items(), jobs, answers, strict=True):
        assert not answer["refused"], (name, answer["refused"])
        notes = " ".join(target_module("megatron-lm").export(job).notes)
        for field, value in fields.items():
            if field in WITHOUT_FLAG:
                assert (f"{field} = {value}: Megatron-LM has no argument" in notes) == (
                    value != WITHOUT_FLAG[field]
                )
                continue
            held = answer["values"] | answer["config"]
            own = {"rope_scaling": "use_rope_scaling"}.get(field, field)
            if field == "no_rope_freq":
                continue  # a pattern by then
            assert held[own] == value, (name, field)


@pytest.mark.parametrize("name", SCALED)
def test_megatron_bridge_is_told_how_positions_are_scaled(name):
    settings = target_module("megatron-bridge").export(shaped(name, "0.6.2")).settings
    for field, value in SCALED[name].items():
        assert settings[f"model.{field}"] == value, field


def test_yarn_without_latents_is_said_where_it_can_be_and_noted_elsewhere():
    job = shaped("gpt-oss-20b", "0.6.2")
    settings = target_module("megatron-bridge").export(job).settings
    assert settings["model.position_embedding_type"] == "yarn"
    assert settings["model.yarn_rotary_scaling_factor"] == 32.0
    assert settings["model.yarn_correction_range_round_to_int"] is False
    (note,) = [
        each
        for each in target_module("megatron-lm").export(shaped("gpt-oss-20b", "0.19")).notes
        if "yarn" in each
    ]
    assert "factor 32, original_positions 4096, beta_fast 32, beta_slow 1" in note


def test_what_megatron_core_lacks_of_a_model_is_noted():
    other = {"rotary_local_base": 10_000, "score_cap": 50.0, "logit_cap": 30.0, "embedding_scale": 64.0}
    heat = AttentionTemperature(floor=8192, scale=0.1)
    model = replace(unknown("llama3-8b"), **other, attention_temperature=heat)
    for target in TARGETS:
        notes = " ".join(target_module(target).export(job_of(model)).notes)
        for said in (
            "base 10000",
            "bounded at 50",
            "bounded at 30",
            "multiplied by 64",
            "floor 8192, scale 0.1",
        ):
            assert said in notes, target
        assert "bounded" not in " ".join(target_module(target).export(job_of(unknown("llama3-8b"))).notes)


@pytest.mark.parametrize("name", ["llama3.1-405b", "deepseek-v3", "moonlight-16b-a3b", "gpt-oss-20b"])
def test_scaling_of_a_model_of_ones_own_is_read_back(name, monkeypatch):
    monkeypatch.setattr(megatron_bridge_read, "model_of", lambda _: "")
    job = shaped(name, "0.6.2")
    made = bundle(job, "megatron-bridge", slurm=False)
    file = next(each for each in made.files if each.endswith(".py"))
    found = target_module("megatron-bridge").read(made.files[file])
    read = from_mapping({"name": "read", **found.architecture})
    assert read.rotary_scaling == job.model.rotary_scaling
    assert not found.unread


@pytest.mark.parametrize("name", ["nemotron3-super-120b-a12b", "nemotron3-ultra-550b-a55b"])
def test_routers_of_nemotron_3_scale_their_weights(name):
    """routed_scaling_factor and norm_eps of their config.json; Nano's factor is half of it."""
    spec = load_model(name)
    assert (spec.moe.router_scaling_factor, spec.norm_epsilon) == (5.0, 1e-5)
    assert load_model("nemotron3-nano-30b-a3b").moe.router_scaling_factor == 2.5


@pytest.mark.parametrize("target", TARGETS)
def test_a_fused_activation_without_a_kernel_is_read_as_off(target):
    """Of exports of searched plans with squared ReLU, `check --from` told to switch off what they have off."""
    job = job_of("nemotronh-8b")
    off = replace(job, plan=replace(job.plan, bias_activation_fusion=False))
    made = bundle(off, target, slurm=False).files
    text = next(
        text for name, text in made.items() if name.endswith(".py" if target != "megatron-lm" else ".sh")
    )
    assert target_module(target).read(text).knobs["bias_activation_fusion"] is False
