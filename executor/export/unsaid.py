"""What a plan carries beside Megatron-Core's fields: its values for a target, and a note for what finds no place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from costmodel.graph_parts import captured_parts
from costmodel.knobs import SETTINGS
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.target_names import recipe_names
from executor.megatron_args import foreign_modules
from executor.megatron_model import LLAMA3_FREQUENCIES, heads_apart, model_fields

# Knobs of each overlapped tensor-parallel GEMM, which targets take in a file or table of their own.
OVERLAP_KNOBS = ("tp_overlap_splits", "tp_overlap_sms", "tp_overlap_cga")
OVERLAP_SETTING = "tp_overlap_fp8_buf"
# What a recipe of a model with heads of its own takes from its publisher's configuration.
OF_HEADS = (
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "v_head_dim",
    "value_scale",
    "sliding_window",
    "attention_head_gate",
    "values_are_keys",
    "norms",
    "local_layers",
)
# Settings for benchmarks only: they change what is trained, or hide what went wrong.
BENCHMARK_ONLY = ("moe_router_force_load_balancing", "fake_process_group")


def own_overlap(plan: Plan) -> dict[str, Any]:
    """Knobs of the overlapped GEMMs that are not at their usual value, by name; none without overlap."""
    if not plan.tp_comm_overlap:
        return {}
    usual = Plan()
    found = {
        name: getattr(plan, name) for name in OVERLAP_KNOBS if getattr(plan, name) != getattr(usual, name)
    }
    if dict(plan.settings).get(OVERLAP_SETTING):
        found[OVERLAP_SETTING] = True
    return found


def gather_note(plan: Plan) -> Iterator[str]:
    """A note where parameters are gathered after the step, since gradients are: Megatron-Core takes no other."""
    if plan.overlap_param_gather and not plan.overlap_grad_reduce and plan.zero_stage == 1 and not plan.fsdp:
        yield (
            "overlap_param_gather is off, as overlap_grad_reduce is, without which Megatron-LM refuses it; the plan is "
            "priced with it, --no-overlap-param-gather tells the other"
        )


def documents_note(workload: Workload) -> Iterator[str]:
    """A note on the lengths of documents that were priced, which no configuration says."""
    if workload.task != "pretrain" and workload.packed and 0 < workload.mean_length < workload.seq_len:
        yield (
            f"packs of documents of {workload.mean_length:,} tokens on average are priced; theirs are those of your "
            "data set"
        )


def pack_note(plan: Plan, workload: Workload, target: str) -> Iterator[str]:
    """A note where several packs were asked for, of which targets make one."""
    if workload.task != "pretrain" and workload.packed and plan.micro_batch > 1:
        yield f"micro_batch={plan.micro_batch} of packed sequences is one pack as long: {target} takes one"


def recompute_note(plan: Plan, model: ModelSpec) -> Iterator[str]:
    """A note on modules of selective recompute that Megatron-Core does not have."""
    lost = foreign_modules(plan.recompute_modules, model)
    if plan.recompute == "selective" and lost:
        yield f"recompute of {' and '.join(lost)}: Megatron-Core has no such module here, left out"


def graph_word(plan: Plan, model: ModelSpec) -> str:
    """What CUDA graphs capture, for releases that take one word: experts without fixed shapes stay out of full."""
    parts = captured_parts(plan, model)
    if len(parts) == 1:
        return parts[0]
    return "attn" if model.moe is not None and "moe" not in parts and "attn" in parts else "full"


def graph_word_note(plan: Plan, model: ModelSpec, release: str) -> Iterator[str]:
    """A note where one word cannot say the parts that CUDA graphs capture."""
    parts = captured_parts(plan, model)
    if plan.cuda_graph and len(parts) > 1:
        word = graph_word(plan, model)
        yield f"cuda_graph_scope {'+'.join(parts)}: {release} takes one word, so {word}"


def facts_not_on_file(
    model: ModelSpec, name: Callable[[str], str], latent_scaling: int = 40, yarn: bool = False
) -> Iterator[str]:
    """Notes on what is trained and our file of the model does not hold, or the target does not take.

    yarn: whether the target is told of YaRN without latent attention.

    name: the target's, of a field. latent_scaling: YaRN's factor that latent attention has by default [1]; 40 is that
    of MLATransformerConfig, Megatron-Core 0.17 to 0.19.
    """
    moe, rotary = model.moe, model.position_embedding == "rope"
    scaled = moe is not None and moe.topk > 1 and (moe.router_score == "sigmoid" or model.mla is not None)
    unknown = {
        "rotary_base": rotary and model.rotary_base is None,
        "layernorm_epsilon": model.norm == "RMSNorm" and model.norm_epsilon is None,
        "moe_router_topk_scaling_factor": moe is not None and scaled and moe.router_scaling_factor is None,
    }
    added = [name(field) for field, missing in unknown.items() if missing]
    if added:
        them = "them" if len(added) > 1 else "it"
        yield f"not in our file of {model.name}: add {' and '.join(added)} as the model has {them}"
    if rotary and model.rotary_scaling is None:
        kept = f"; latent attention keeps its default, a factor of {latent_scaling}" if model.mla else ""
        yield f"scaling of rotary positions (Llama 3.1, YaRN) is not in our file of {model.name}{kept}"
    elif rotary and not yarn:
        yield from _lost_scaling(model)
    yield from _lost_attention(model)
    if model.left_out:
        yield f"not in our file of {model.name}, so neither trained nor counted: {model.left_out}"


def _lost_scaling(model: ModelSpec) -> Iterator[str]:
    """A note on scaling of rotary positions that no argument says."""
    found = model.rotary_scaling
    assert found is not None
    numbers = (found.low_freq_factor, found.high_freq_factor, found.original_positions)
    own = found.kind == "llama3" and model.mla is None and numbers == LLAMA3_FREQUENCIES
    if found.kind == "none" or own or (found.kind == "yarn" and model.mla is not None):
        return
    said = ", ".join(
        f"{name} {value:g}"
        for name, value in asdict(found).items()
        if name != "kind" and value is not None and not isinstance(value, bool)
    )
    yield (
        f"rotary positions of {model.name} are scaled by {found.kind} ({said}), which this does not say: it trains "
        "with plain ones"
    )


def _lost_attention(model: ModelSpec) -> Iterator[str]:
    """Notes on factors and bounds of scores, logits and embeddings, and bases of layers, that Megatron-Core lacks."""
    heat = model.attention_temperature
    lost = {
        f"layers with windows rotate with base {model.rotary_local_base}": model.rotary_local_base
        is not None,
        f"queries of layers without positions grow with the position (floor {heat.floor if heat else 0}, scale "
        f"{heat.scale if heat else 0:g})": heat is not None,
        f"scores are bounded at {model.score_cap or 0:g}": model.score_cap is not None,
        f"logits are bounded at {model.logit_cap or 0:g}": model.logit_cap is not None,
        f"embeddings are multiplied by {model.embedding_scale or 0:.4g}": model.embedding_scale is not None,
    }
    if told := [text for text, there in lost.items() if there]:
        yield f"in {model.name} {'; '.join(told)}: Megatron-Core has no such thing, and trains without"


def refuse_indexer(model: ModelSpec, core: Sequence[int], release: str, instead: str) -> None:
    """ValueError where attention picks tokens before Megatron-Core 0.19, whose fused kernels it is told with.

    Source: Megatron-Core 0.19.2, transformer_config.py, dsa_kernel_backend and dsa_indexer_topk_freq, not in 0.18.2.
    """
    if model.indexer is not None and tuple(core) < (0, 19):
        raise ValueError(
            f"{model.name} has sparse latent attention, for which {release} has no fused kernels: they came with "
            f"Megatron-Core 0.19. Try {instead}."
        )


def refuse_heads_apart(model: ModelSpec, release: str) -> None:
    """ValueError where heads of multi-token prediction have other layers than the last one: release builds them so."""
    if heads_apart(model):
        raise ValueError(
            f"{model.name} has heads of multi-token prediction without the experts of its layers, and {release} builds "
            "them like the last layer. Leave them out of the file (num_nextn_predict_layers, mtp_layers); "
            "`advisor predict` knows their cost."
        )


def refuse_custom_heads(model: ModelSpec, release: str, way: str = "", *, recipe: bool = False) -> None:
    """ValueError where no configuration says the heads of a model, and no recipe builds it as our file has it.

    way: out, where it is not a recipe of Megatron-Bridge or none; recipe: whether the target has one of the model,
    whose layers are what its publisher trained.
    """
    if not model.custom_heads:
        return
    if not recipe:
        elsewhere = recipe_names("megatron_bridge", model.name)
        way = way or ("Try --to megatron-bridge." if elsewhere else "`advisor predict` knows its cost.")
        raise ValueError(
            f"{model.name} has {model.custom_heads}, and {release} has no recipe that builds them. {way}"
        )
    published = load_model(model.name)
    changed = [name for name in OF_HEADS if getattr(model, name) != getattr(published, name)]
    if changed:
        raise ValueError(
            f"{changed[0]} of {model.name} is changed, and {release} builds its heads by a recipe that has no such "
            f"setting. Leave it as `advisor models {model.name}` shows it."
        )


def refuse_hybrid_stages(
    plan: Plan, model: ModelSpec, release: str, instead: str = "--to megatron-lm"
) -> None:
    """ValueError where a model with Mamba layers has stages that its class cannot be told: it splits evenly.

    Source: Megatron-Bridge 0.6.2, models/hybrid/hybrid_provider.py; Megatron-Core 0.16.1, ssm/mamba_block.py.
    """
    if not model.layer_pattern or plan.pp == 1:
        return
    asked = {
        f"--vpp {plan.vpp}": plan.vpp > 1,
        f"--pipeline-layout {plan.pipeline_layout}": plan.pipeline_layout,
        "--account-embedding": plan.account_embedding,
        "--account-loss": plan.account_loss,
    }
    if named := [flag for flag, said in asked.items() if said]:
        raise ValueError(
            f"{', '.join(named)}: {release} splits the Mamba and other layers of {model.name} evenly over stages, one "
            f"chunk each. Leave it out, or try {instead}."
        )


def refuse_other_shape(lost: Mapping[str, Any], model: ModelSpec, release: str, instead: str) -> None:
    """ValueError where fields of the model's shape have no name in the release: without them it is another model.

    lost: values by dotted name that the release has no place for, those of the plan too. instead: where they have one.
    """
    shape = model_fields(model)
    said = [f"{name}={value}" for name, value in lost.items() if name.rpartition(".")[2] in shape]
    if said:
        more = f" and {len(said) - 3} more" if len(said) > 3 else ""
        raise ValueError(
            f"{', '.join(said[:3])}{more}: {release} has no such name, and would train another model than "
            f"{model.name}. Try {instead}."
        )


def refuse_hybrid_experts(
    model: ModelSpec, core: Sequence[int], release: str, instead: str = "--to megatron-lm"
) -> None:
    """ValueError where layers of experts stand in a pattern of Mamba layers before Megatron-Core 0.16.

    Source: Megatron-Core 0.15.3, ssm/mamba_hybrid_layer_allocation.py: "'E' is not one of {'-', '*', 'M'}".
    """
    if "E" in (model.layer_pattern or "") and tuple(core) < (0, 16):
        raise ValueError(
            f"{model.name} has layers of experts (E) among Mamba layers, which {release} refuses: its Megatron-Core "
            f"takes M, * and - before 0.16. Try {instead}."
        )


def refuse_recomputed_graphs(
    fields: Mapping[str, Any], core: Sequence[int], release: str, instead: str
) -> None:
    """ValueError where Megatron-Core before 0.16 refuses CUDA graphs with what the plan recomputes.

    fields: of the model's configuration. Up to 0.14 only its own graphs refuse recompute; 0.15 takes it with
    Transformer Engine's graphs of attention alone, whose own parts it must not recompute.
    Source: Megatron-Core 0.14.0 and 0.15.3, transformer_config.py, __post_init__.
    """
    if tuple(core) >= (0, 16) or not fields.get("recompute_granularity"):
        return
    kind, word = fields.get("cuda_graph_impl", "none"), fields.get("cuda_graph_scope")
    whole = fields["recompute_granularity"] != "selective" or kind != "transformer_engine" or word != "attn"
    inside = [name for name in fields.get("recompute_modules") or () if name in ("core_attn", "mla_up_proj")]
    if fields.get("enable_cuda_graph") or (kind != "none" and whole):
        why = f"CUDA graphs ({word}) with {fields['recompute_granularity']} recompute"
    elif kind != "none" and inside:
        why = f"CUDA graphs of attention with recompute of {' and '.join(inside)}"
    else:
        return
    raise ValueError(
        f"{why}: Megatron-Core {'.'.join(map(str, core))} of {release} refuses the two together. "
        f"Try --no-cuda-graph, or {instead}."
    )


def setting_value(name: str, value: Any) -> Any:
    """A setting as targets take it: ranks separated by commas are a list of numbers."""
    if name != "profile_ranks":
        return value
    words = str(value).replace(",", " ").split()
    if not words or not all(word.isdigit() for word in words):
        raise ValueError(f"profile_ranks {value!r} are not ranks. Try --set profile_ranks=0,1.")
    return [int(word) for word in words]


def setting_notes(plan: Plan, target: str, title: str, said: Collection[str]) -> Iterator[str]:
    """A line for each setting that is neither in `said`, nor a field of Megatron-Core, nor a variable.

    target: field of the catalogue with the target's names. title: the target with its release.
    """
    for name, value in plan.settings:
        record = SETTINGS[name]
        if name in said or name == OVERLAP_SETTING or record.mcore or record.env or value == record.default:
            continue
        words = getattr(record, target)
        known = f"it as {words}, set outside this export" if words else "no such name"
        yield f"{name}={value}: {title} has {known}, left out"
