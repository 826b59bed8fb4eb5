"""Fields of Megatron-Core's configuration classes read back as a plan: the way back of `executor.megatron_args`.

Which field is which knob stands in the catalogue (`costmodel/knobs`, names of mcore); here stand only those whose
values count otherwise, or that take several fields to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from costmodel.knobs import KNOBS, SETTINGS
from costmodel.model_registry import list_models, load_model
from executor.export.core_model import rare, unlike
from executor.export.exchange_read import exchange_of
from executor.export.field_values import with_kinds
from executor.megatron_args import RECIPES
from executor.megatron_model import model_fields
from executor.megatron_training import SHARDING

# Knobs that several fields say together, or in other values; each has a function below.
TOGETHER = (
    "vpp",
    "etp",
    "optimizer",
    "zero_stage",
    "fsdp",
    "optimizer_instances",
    "cp_comm_type",
    "cp_a2a_size",
    "overlap_p2p",
    "precision",
    "fp8_param_gather",
    "bf16_end_layers",
    "moe_dispatcher",
    "dispatcher_sms",
    "recompute_num_layers",
    "recompute_modules",
    "offload_layers",
    "offload_modules",
    "attention_backend",
    "dropout",
    "cuda_graph",
    "cuda_graph_scope",
    "optimizer_offload",
    "recompute",
    "moe_capacity_factor",
)
# Fields of the model classes, and some that follow from others.
FURTHER = (
    "seq_length",
    "vocab_size",
    "should_pad_vocab",
    "make_vocab_size_divisible_by",
    "share_embeddings_and_output_weights",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "rope_scaling",
    "rope_scaling_factor",
    "yarn_rotary_scaling_factor",
    "yarn_original_max_position_embeddings",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_mscale",
    "yarn_mscale_all_dim",
    "yarn_correction_range_round_to_int",
    "softmax_scale",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "batch_p2p_comm",
    "masked_softmax_fusion",
    "deallocate_pipeline_outputs",
    "recompute_method",
    "moe_enable_deepep",
    "use_te_rng_tracker",
    "bf16",
    "fp16",
    "params_dtype",
    "pipeline_dtype",
    "fp4_recipe",
    "init_model_with_meta_device",
    "average_in_collective",
    "enable_cuda_graph",
    "external_cuda_graph",
    "fine_grained_offloading_max_inflight_offloads",
    "megatron_fsdp_cuda_graph_mode",
    "fsdp_all_gather_in_start_param_sync",
    "use_layer_wise_distributed_optimizer",
)
# Models that have every field of `model_fields` together.
OF_EVERY_FIELD = (
    "gpt3-175b",
    "deepseek-v3",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
    "nemotronh-8b",
    "llama4-scout",
    "glm-5.2",
)
# Parts that a text with the sizes beside them leaves out only where the model has none.
APART = {"num_moe_experts": "moe_latent_size", "num_attention_heads": "experimental_attention_variant"}
FORMATS = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


@cache
def direct_fields() -> Mapping[str, str]:
    """Field -> knob where the value is the same."""
    direct = {
        KNOBS[name].mcore.rpartition(".")[2]: name
        for name in KNOBS
        if KNOBS[name].mcore and name not in TOGETHER and "," not in KNOBS[name].mcore
    }
    return MappingProxyType(direct)


def knobs_of(fields: Mapping[str, Any], world: int = 0) -> dict[str, Any]:
    """Values of Plan's knobs; those whose fields are missing are left out. ValueError for a value out of range.

    fields: of all configuration classes together, by bare name. world: GPUs, 0 unknown; gives dp where the other sizes
    divide it.
    """
    fields = with_kinds(fields)
    knobs: dict[str, Any] = {}
    for field, name in direct_fields().items():
        if field in fields:
            value = fields[field]
            knobs[name] = KNOBS[name].default if value is None else _parsed(name, value)
    for part in (_sizes, _sharding, _precision, _experts, _recompute, _kernels, _optimizer):
        knobs |= part(fields)
    ranks = knobs.get("tp", 1) * knobs.get("pp", 1) * knobs.get("cp", 1)
    if world and world % ranks == 0:
        knobs["dp"] = world // ranks
        knobs |= _shards(knobs)
    settings = dict(_settings(fields))
    return knobs | ({"settings": settings} if settings else {})


def _parsed(name: str, value: Any) -> Any:
    """A value in our words. ValueError in one line when it is none of the knob's."""
    if isinstance(value, str) and KNOBS[name].kind != "text":
        return KNOBS[name].parse(value)
    return value


def _sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "virtual_pipeline_model_parallel_size" in fields:
        found["vpp"] = fields["virtual_pipeline_model_parallel_size"] or 1
    if "expert_tensor_parallel_size" in fields:
        # Megatron-Core's default is the size of tensor parallelism; without experts it says nothing.
        size = fields["expert_tensor_parallel_size"]
        experts = fields.get("num_moe_experts", True)
        found["etp"] = size or (fields.get("tensor_model_parallel_size", 1) if experts else 1)
    if "cp_comm_type" in fields:
        found["cp_comm_type"] = exchange_of(fields)
    sizes = fields.get("hierarchical_context_parallel_sizes")
    if sizes:
        found["cp_a2a_size"] = sizes[0]
    if (
        fields.get("pipeline_model_parallel_size", 1) > 1
        and (fields.get("virtual_pipeline_model_parallel_size") or 1) > 1
    ):
        found["overlap_p2p"] = fields.get("overlap_p2p_comm", True) is not False
    layout = fields.get("pipeline_model_parallel_layout")
    if isinstance(layout, list):
        found["pipeline_layout"] = "|".join(_letters(stage) for stage in layout)
    return found


def _letters(stage: Sequence[str]) -> str:
    """A stage of a layout as a list of words, in letters."""
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    return "".join(letters.get(layer, "t") for layer in stage)


def _sharding(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Stage of sharding; Megatron names it only for its FSDP, else the distributed optimizer is stage 1."""
    found: dict[str, Any] = {}
    fsdp = fields.get("use_megatron_fsdp") or fields.get("use_custom_fsdp") or fields.get("use_torch_fsdp2")
    if fsdp:
        strategy = fields.get("data_parallel_sharding_strategy", "optim_grads_params")
        torch_one = bool(fields.get("use_torch_fsdp2"))
        stage = 3 if torch_one else SHARDING.index(strategy)
        found = {"fsdp": stage >= 2, "zero_stage": stage} | (
            {"fsdp_implementation": "torch"} if torch_one else {}
        )
        if "outer_dp_sharding_strategy" in fields:
            found["outer_dp_sharding_strategy"] = fields["outer_dp_sharding_strategy"]
    elif "use_distributed_optimizer" in fields:
        by_layer = fields.get("optimizer") == "dist_muon" or fields.get(
            "use_layer_wise_distributed_optimizer"
        )
        found = {"fsdp": False, "zero_stage": 1 if fields["use_distributed_optimizer"] or by_layer else 0}
    if "num_distributed_optimizer_instances" in fields:
        found["optimizer_instances"] = fields["num_distributed_optimizer_instances"] or 1
    return found


def _shards(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """With FSDP, several optimizer instances are a shard smaller than the group."""
    instances = knobs.get("optimizer_instances", 1)
    if not knobs.get("fsdp") or instances == 1:
        return {}
    return {"fsdp_shard_size": knobs["dp"] * knobs.get("cp", 1) // instances, "optimizer_instances": 1}


def _precision(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if fields.get("fp4"):
        found["precision"] = "nvfp4"
    elif fields.get("fp8"):
        recipe = fields.get("fp8_recipe", "delayed")
        found["precision"] = next(
            (name for name, said in RECIPES.items() if said.get("fp8_recipe") == recipe), ""
        )
        if not found["precision"]:
            raise ValueError(
                f"fp8_recipe {recipe!r} is not one of ours. Use delayed, tensorwise, blockwise or mxfp8."
            )
    elif {"bf16", "fp16", "params_dtype"} & set(fields):
        found["precision"] = "bf16" if fields.get("bf16") else "fp16" if fields.get("fp16") else "fp32"
    gathers = ("fp4_param", "fp4_param_gather") if fields.get("fp4") else ("fp8_param", "fp8_param_gather")
    if any(name in fields for name in gathers):
        quantised = bool(fields.get("fp8") or fields.get("fp4"))
        found["fp8_param_gather"] = quantised and any(fields.get(name) for name in gathers)
    if fields.get("first_last_layers_bf16"):
        found["bf16_end_layers"] = fields.get("num_layers_at_start_in_bf16", 1)
    return found


def _experts(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind = fields.get("moe_token_dispatcher_type")
    if kind == "flex" or fields.get("moe_enable_deepep"):
        backend = fields.get("moe_flex_dispatcher_backend") or "deepep"
        found["moe_dispatcher"] = _parsed("moe_dispatcher", backend)
        for name in (f"moe_{backend}_num_sms", "moe_flex_dispatcher_num_sms"):
            if fields.get(name):
                found["dispatcher_sms"] = fields[name]
    elif kind:
        found["moe_dispatcher"] = _parsed("moe_dispatcher", kind)
    if "moe_expert_capacity_factor" in fields:
        found["moe_capacity_factor"] = max(0.0, fields["moe_expert_capacity_factor"] or 0.0)
    if "moe_pad_expert_input_to_capacity" in fields:
        found["moe_pad_expert_input_to_capacity"] = bool(fields["moe_pad_expert_input_to_capacity"])
    return found


def _recompute(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Recompute and offloading; Megatron counts the layers of each virtual stage, plans those of the stage."""
    found: dict[str, Any] = {}
    granularity = fields.get("recompute_granularity")
    if "recompute_granularity" in fields:
        found["recompute"] = granularity or "none"
    if granularity == "full":
        chunks = fields.get("virtual_pipeline_model_parallel_size") or 1
        uniform = fields.get("recompute_method") == "uniform"
        # "uniform" recomputes every layer, in groups of that many.
        found["recompute_num_layers"] = 0 if uniform else (fields.get("recompute_num_layers") or 0) * chunks
    elif granularity == "selective":
        found["recompute_modules"] = tuple(fields.get("recompute_modules") or ("core_attn",))
    if fields.get("cpu_offloading"):
        found["offload_layers"] = fields.get("cpu_offloading_num_layers") or 0
    if fields.get("fine_grained_activation_offloading"):
        found["offload_modules"] = tuple(fields.get("offload_modules") or ())
    return found


def _kernels(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if fields.get("attention_backend"):
        found["attention_backend"] = _parsed("attention_backend", str(fields["attention_backend"]))
    if "hidden_dropout" in fields:
        found["dropout"] = bool(fields["hidden_dropout"])
    if implementation := _graphs(fields):
        found |= {"cuda_graph": True, "cuda_graph_scope": _scopes(fields, implementation)}
    elif "cuda_graph_impl" in fields or "enable_cuda_graph" in fields:
        found["cuda_graph"] = False
    return found


def _graphs(fields: Mapping[str, Any]) -> str:
    """What implements CUDA graphs, "" without; two switches say it before Megatron-Core 0.15."""
    implementation = fields.get("cuda_graph_impl")
    if implementation is None and fields.get("enable_cuda_graph"):
        implementation = "local"
    if implementation is None and fields.get("external_cuda_graph"):
        implementation = "transformer_engine"
    return "" if implementation in (None, "none") else str(implementation)


def _scopes(fields: Mapping[str, Any], implementation: str) -> tuple[str, ...]:
    if implementation == "full_iteration":
        return ("full_iteration",)
    said = fields.get("cuda_graph_modules") or fields.get("cuda_graph_scope") or ()
    words = re.split(r"[,\s]+", said) if isinstance(said, str) else [str(word) for word in said]
    words = [word.rpartition(".")[2] for word in words if word]
    return tuple(word for word in words if word != "full")


def optimizer_of(said: Any) -> str:
    """Our name of an optimizer, "" for one that is not modelled."""
    name = KNOBS["optimizer"].words.get(str(said), said)
    return name if name in KNOBS["optimizer"].choices else ""


def other_optimizer(said: Any) -> Iterator[str]:
    """A line about an optimizer that is not modelled."""
    if said and not optimizer_of(said):
        yield f"optimizer {said}: read as adam, no other than adam and muon is modelled"


def _optimizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "optimizer" in fields:
        found["optimizer"] = optimizer_of(fields["optimizer"]) or "adam"
    if fields.get("optimizer_cpu_offload"):
        found["optimizer_offload"] = round(100 * fields.get("optimizer_offload_fraction", 1.0))
    elif "optimizer_cpu_offload" in fields:
        found["optimizer_offload"] = 0
    if not fields.get("use_precision_aware_optimizer"):
        # Formats have no effect then, and every dump holds them.
        found |= {name: KNOBS[name].default for name in FORMATS if name in fields}
    return found


def _settings(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings the plan carries, where their value is not the default."""
    for name, record in SETTINGS.items():
        for field in (part.strip().rpartition(".")[2] for part in record.mcore.split(",") if "." in part):
            value = fields.get(field)
            if value is None or value == record.default or record.error(value):
                continue
            if name == "te_rng_tracker" and _graphs(fields):
                continue  # graphs need it
            yield name, value


def model_of(fields: Mapping[str, Any]) -> str:
    """The name of our model that has these sizes, "" when none has; of several the likeliest, with its vocabulary."""
    known = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
    known += (
        "num_moe_experts",
        "moe_ffn_hidden_size",
        "kv_lora_rank",
        "mamba_state_dim",
        "dsa_indexer_topk_freq",
    )
    if "num_layers" not in fields or "hidden_size" not in fields:
        return ""
    said = {name: fields[name] for name in known if fields.get(name) is not None}
    if fields.get("experimental_attention_variant") != "dsa":
        said.pop("dsa_indexer_topk_freq", None)  # the parser's default
    said |= {part: fields.get(part) for beside, part in APART.items() if fields.get(beside) is not None}
    vocab = fields.get("vocab_size")
    found = []
    for name in list_models():
        model = load_model(name)
        ours = model_fields(model)
        if all(ours.get(field) == value for field, value in said.items()):
            wrong = vocab not in (model.vocab, model.vocab_padded)
            found.append((wrong, unlike(fields, model), rare(model), name))
    alike = [name for wrong, *_, name in sorted(found) if wrong == min(found)[0]]
    return alike[0] if len(alike) == 1 or (alike and not min(found)[0]) else ""


@cache
def said_fields() -> frozenset[str]:
    """Fields that a plan or a model of ours says, alone or together with others."""
    named = {
        part.strip().rpartition(".")[2]
        for record in [*KNOBS.values(), *SETTINGS.values()]
        for part in record.mcore.split(",")
        if "." in part
    }
    for name in OF_EVERY_FIELD:
        named |= set(model_fields(load_model(name)))
    return frozenset(named | set(FURTHER))
