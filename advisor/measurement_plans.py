"""A row of published measurements as model, workload and plan: what it states, and what its source leaves unsaid."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from advisor.measurement_rows import Row
from costmodel.knobs import KNOBS
from costmodel.layout import BALANCED, even_chunks, expand
from costmodel.model_file import with_overrides
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import CP_COMM_TYPES, PRECISIONS, RECOMPUTE_MODULES, Plan
from costmodel.workload import Workload

# "26.02" in nemo:26.02.01 or in pytorch:26.04-py3.
CONTAINER_RELEASE = re.compile(r"(?<![\d.])2\d\.(0[1-9]|1[0-2])(?!\d)")
HABITS = Path(__file__).with_name("measurement_habits.toml")
# Recipe names of other frameworks -> the precision whose arithmetic and traffic they have.
PRECISION_NAMES = {
    "fp8-tensorwise(torchao)": "fp8-cs",
    "fp8-rowwise(torchao)": "fp8-sc",
    "fp8-delayed(te)": "fp8-delayed",
    "mxfp8(mxfp8_cublas)": "mxfp8",
    "nvfp4(bf16 tail)": "nvfp4",
}

# SQuAD in packed sequences: mean tokens of a question with its answer, and their spread over it.
SQUAD_TOKENS, SQUAD_SPREAD = 250, 0.5
# Tokens of the busiest expert rank over the mean when nothing forces balance: a run of Qwen3-235B on 8 expert ranks
# takes 9 to 24 % longer at 16 to 128 k tokens than with forced balance. Source: Megatron-MoE-ModelZoo, long context.
NATURAL_IMBALANCE = 1.75
# The same where a bias of each expert is steered by its load while the model is pretrained. Source: L. Wang et al.,
# arXiv:2408.15664, table 2 (from memory): 1.04 times the mean, against 1.5 to 1.7 with an auxiliary loss alone.
STEERED_IMBALANCE = 1.04
# Names of other frameworks and shorthands -> our recompute modules.
MODULE_NAMES = {"core": "core_attn", "mla_up_proj": "mla_up_proj"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8", "fp8": "fp8"}
# What of a flag column is on when the row says nothing: our plan's default.
PLAIN_FLAGS = {
    "delay_wgrad": "delay_wgrad_compute",
    "shared_expert_overlap": "moe_shared_expert_overlap",
    "fp8_attention": "fp8_dot_product_attention",
    "reuse_grad_buf": "reuse_grad_buf_for_mxfp8_param_ag",
    "defer_embedding_wgrad": "defer_embedding_wgrad_compute",
    "moe_permute_fusion": "moe_permute_fusion",
    "moe_router_fusion": "moe_router_fusion",
    "expert_mlp_fusion": "use_transformer_engine_op_fuser",
    "fp8_output": "fp8_output_proj",
    "moe_grouped_gemm": "moe_grouped_gemm",
    "gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "rope_fusion": "apply_rope_fusion",
}


# Chunks of each rank in a looped schedule of torchtitan where none are stated. Source: torchtitan, pipeline_parallel.py
INTERLEAVED_CHUNKS = 2
# Megatron-Bridge's recipes as they were resolved ("v0.5.0:...", "HEAD:..."): they name the fusions that are on.
RESOLVED_RECIPE = re.compile(r"v0\.|HEAD:")


@lru_cache(maxsize=1)
def _habits() -> list[dict[str, Any]]:
    """The entries in their order, each over the one that it is like."""
    with HABITS.open("rb") as file:
        entries = {entry["match"]: entry for entry in tomllib.load(file)["source"]}

    def whole(entry: dict[str, Any]) -> dict[str, Any]:
        return (whole(entries[entry["like"]]) if "like" in entry else {}) | entry

    return [whole(entry) for entry in entries.values()]


def habit_of(row: Row) -> dict[str, Any]:
    """The habits of the row's source."""
    where = f"{row.text('source')} | {row.text('container')}"
    return next(habit for habit in _habits() if habit["match"] in where)


def row_model(row: Row) -> ModelSpec:
    """The row's model with its overrides. ValueError when it is not known."""
    model = with_overrides(load_model(row.text("model")), row.json("model_overrides"))
    heads = row.text("mtp_layers") or str(habit_of(row).get("mtp", ""))
    if heads.isdigit() and int(heads) != model.mtp_layers:
        model = replace(model, mtp_layers=int(heads))
    return model


def row_workload(row: Row, model: ModelSpec, seq_len: int, global_batch: int) -> Workload:
    """The row's task; adapters as its recipe states them, else on QKV with rank 16, as NVIDIA's recipes."""
    task = row.text("task") or "pretrain"
    load: dict[str, Any] = {
        "moe_imbalance": _imbalance(row, model),
        "moe_adjacent": "fake balanced gate" in row.text("notes") and model.moe is not None,
    }
    if task == "pretrain":
        return Workload(seq_len, global_batch, **load)
    packed = (
        {"mean_length": min(SQUAD_TOKENS, seq_len), "length_cv": SQUAD_SPREAD} if packs_squad(row) else {}
    )
    peft = row.json("other_flags").get("peft")
    targets = set(peft.get("target_modules") or ()) if isinstance(peft, dict) else {"linear_qkv"}
    rank = int(peft.get("dim") or 16) if isinstance(peft, dict) else 16
    reach = "all" if any("fc" in name for name in targets) else "attention" if len(targets) > 1 else "qkv"
    if task == "sft":
        return Workload(seq_len, global_batch, task, **load, **packed)
    return Workload(seq_len, global_batch, task, lora_rank=rank, lora_targets=reach, **load, **packed)


def routes_naturally(row: Row) -> bool:
    """Whether tokens go where the router sends them: no forced balance, none dropped, several expert ranks."""
    dropped = row.text("moe_token_drop").startswith("cf=")
    natural = row.text("moe_force_balance") == "0" or "natural routing" in row.text("notes")
    return natural and not dropped and row.count("ep") > 1


def _imbalance(row: Row, model: ModelSpec) -> float:
    """Tokens of the busiest expert rank over the mean. Fine-tuning data is not what a bias was steered by."""
    if model.moe is None or not routes_naturally(row):
        return 1.0
    steered = model.moe.expert_bias and (row.text("task") or "pretrain") == "pretrain"
    return STEERED_IMBALANCE if steered else NATURAL_IMBALANCE


def packs_squad(row: Row) -> bool:
    """Whether the row's fine-tuning fills its sequences with SQuAD, as NVIDIA's recipes do."""
    return habit_of(row)["family"] == "nemo"


def row_plan(row: Row, model: ModelSpec, gpus: int) -> tuple[Plan, list[str]]:
    """The row's plan, and what had to be assumed for it. ValueError in one line when it cannot be one."""
    habit = habit_of(row)
    modern: bool = habit["modern"]
    assumed = [habit["why"]]
    if row.text("task") in ("sft", "lora") and packs_squad(row):
        assumed.append(f"sequences packed with SQuAD: {SQUAD_TOKENS} tokens a document")
    if (load := _imbalance(row, model)) > 1:
        assumed.append(f"natural routing: the busiest expert rank has {load:g} times the mean")
    precision = PRECISION_NAMES.get(row.text("precision"), row.text("precision"))
    if precision not in PRECISIONS:
        raise ValueError(f"precision {row.text('precision')!r} is not one of {', '.join(PRECISIONS)}")
    sizes = _sizes(row, habit, model, gpus, assumed)
    overlap = habit.get("overlap", modern)
    sharding = row.text("fsdp")
    fsdp = sharding not in ("", "0", "zero2-like")
    comm = row.json("other_flags").get("cp_comm_type")
    recompute, modules, layers = _recompute(row, habit, sizes["vpp"])
    plan = Plan(
        **sizes,
        **_layout(row, model, sizes, assumed),
        **_experts(row, sizes, assumed),
        **_optimizer(row),
        **_offload(row),
        **_graphs(row, model, habit),
        **_plain_flags(row, model, habit),
        micro_batch=_micro_batch(row, habit, sizes, assumed),
        precision=precision,
        sequence_parallel=_sequence_parallel(row, model, sizes["tp"], modern, assumed),
        zero_stage=3 if fsdp else habit.get("zero_stage", 1),
        fsdp=fsdp,
        fsdp_shard_size=int(sharding) if fsdp and sharding.isdigit() and int(sharding) > 1 else 0,
        cp_comm_type=comm if comm in CP_COMM_TYPES else "p2p",
        recompute=recompute,
        recompute_modules=modules,
        recompute_num_layers=layers,
        attention_backend="fused" if modern else "unfused",
        tp_comm_overlap=row.flag("tp_comm_overlap", habit.get("tp_overlap", False) and sizes["tp"] > 1),
        overlap_grad_reduce=row.flag("overlap_grad_reduce", overlap),
        overlap_param_gather=row.flag("overlap_param_gather", overlap),
        overlap_p2p=overlap,
        grad_reduce_in_fp32=row.flag("grad_reduce_in_fp32", habit["grad_fp32"]),
        fp8_param_gather=_fp8_parameters(row, habit, precision, assumed),
        fused_cross_entropy=_fused_loss(row, habit, assumed),
        dropout=not modern or (habit["family"] == "nemo" and model.learned_positions > 0),
        nccl_ub=row.flag("nccl_ub", False),
        expandable_segments=habit.get("expandable_segments", True),
    )
    return plan, assumed


def _micro_batch(row: Row, habit: Mapping[str, Any], sizes: Mapping[str, int], assumed: list[str]) -> int:
    """As stated, else 1, or as its framework splits a rank's batch: into as many as there are stages."""
    if row.number("mbs"):
        return row.count("mbs")
    local = row.count("gbs") // sizes["dp"]
    if habit.get("micro_batch_per_stage") and sizes["pp"] > 1 and local % sizes["pp"] == 0:
        assumed.append(f"micro-batch not stated: {local // sizes['pp']}, the batch in one for each stage")
        return local // sizes["pp"]
    assumed.append("micro-batch not stated: 1")
    return 1


def _fp8_parameters(row: Row, habit: Mapping[str, Any], precision: str, assumed: list[str]) -> bool:
    """Whether parameters are kept and gathered in FP8: as stated, else as the source's recipes of that precision."""
    if precision in ("bf16", "fp16", "fp32", "nvfp4"):
        return False
    usual = precision in habit.get("fp8_parameters", ())
    if usual and not row.text("fp8_param_gather"):
        assumed.append("parameters kept in FP8, as NVIDIA's recipes of that precision do")
    return row.flag("fp8_param_gather", usual)


def _fused_loss(row: Row, habit: Mapping[str, Any], assumed: list[str]) -> bool:
    """Whether softmax and loss are fused: by the source's habit, from some release on.

    torchtitan compiles the loss since 2025, before only the layers.
    """
    compiled = row.json("other_flags").get("torch_compile") is True and row.text("date")[:4] > "2024"
    since, release = habit.get("fused_loss_from", ""), row_release(row, habit)
    if release and release < since:
        assumed.append(f"loss not fused, as the defaults before {since}")
        return False
    return habit["fused_loss"] or compiled


def row_release(row: Row, habit: Mapping[str, Any]) -> str:
    """Software release "yy.mm": of the container, else the source's, else the date's; "" when none says it."""
    container = CONTAINER_RELEASE.search(row.text("container"))
    year, _, rest = row.text("date").partition("-")
    dated = f"{year[2:]}.{rest[:2] or '06'}" if len(year) == 4 and year.isdigit() else ""
    return container[0] if container else str(habit.get("release", dated))


def _sequence_parallel(row: Row, model: ModelSpec, tp: int, modern: bool, assumed: list[str]) -> bool:
    stated = tp > 1 and row.flag("sequence_parallel", modern)
    if tp == 1 or stated or model.moe is None:
        return stated
    assumed.append("sequence parallel, without which experts do not run beside tensor parallelism")
    return True


def _sizes(
    row: Row, habit: Mapping[str, Any], model: ModelSpec, gpus: int, assumed: list[str]
) -> dict[str, int]:
    tp, pp, cp, vpp, ep = (row.count(name) for name in ("tp", "pp", "cp", "vp", "ep"))
    if pp == 1:
        vpp = 1
    elif not row.text("vp"):
        vpp = _virtual_stages(row, habit, model, pp, assumed)
    if gpus % (tp * pp * cp):
        raise ValueError(f"{gpus} GPUs are not a multiple of tp x pp x cp = {tp * pp * cp}")
    etp = row.count("etp")
    if model.moe is not None and ep == 1 < gpus and "ep" in row.text("moe_dispatcher"):
        ep = next(size for size in range(gpus, 0, -1) if not gpus % size and not model.moe.num_experts % size)
        assumed.append(f"its dispatcher exchanges tokens, so that experts are spread: expert parallel {ep}")
    if model.moe is None:
        ep = etp = 1
    elif row.text("etp") or tp == 1 or gpus % (pp * ep * tp) or habit.get("plain_experts"):
        pass
    elif model.linear_bias:
        assumed.append("expert tensor parallel size not stated: 1, for experts with a bias allow no other")
    else:
        etp = tp
        assumed.append(f"expert tensor parallel size not stated: tp = {tp}, Megatron-Core's default")
    if gpus % (pp * ep * etp):
        raise ValueError(f"{gpus} GPUs are not a multiple of pp x ep x etp = {pp * ep * etp}")
    return {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "etp": etp, "dp": gpus // (tp * pp * cp)}


def _virtual_stages(row: Row, habit: Mapping[str, Any], model: ModelSpec, pp: int, assumed: list[str]) -> int:
    """Virtual stages where the table has none: as its notes or its recipe know them, else as the source's habit is."""
    if "Interleaved" in row.json("other_flags").get("schedule", ""):
        assumed.append(
            f"chunks of its interleaved schedule not stated: {INTERLEAVED_CHUNKS} for each rank, torchtitan's default"
        )
        return INTERLEAVED_CHUNKS
    launcher = re.search(
        rf"per launcher conf \(.*?\b{re.escape(row.text('model'))} VP(\d+)(?! in later)", row.text("notes")
    )
    recipe = re.search(r"\bvp row=1 recipe=(\d+)", row.text("recipe_match"))
    for found, whose in ((launcher, "the launcher's configuration"), (recipe, "its recipe")):
        if found and model.num_layers % (pp * int(found[1])) == 0:
            assumed.append(f"virtual stages of {whose}: {found[1]}")
            return int(found[1])
    stages: int = habit.get("vpp", 1)
    return stages or (1 if model.num_layers % pp else model.num_layers // pp)


def _layout(row: Row, model: ModelSpec, sizes: Mapping[str, int], assumed: list[str]) -> dict[str, Any]:
    """Layers of each stage: as printed, by the accounting flags where they divide, else balanced."""
    pp, vpp = sizes["pp"], sizes["vpp"]
    if pp == 1:
        return {}
    text = row.text("pp_layout")
    if text:
        stages = expand(text)
        placed = sum(stage.count("t") for stage in stages)
        if len(stages) % pp == 0 and len(stages) == pp * vpp and placed == model.num_layers:
            return {"pipeline_layout": "|".join(stages)}
        assumed.append(f"the printed layout has {len(stages)} stages of {placed} layers: balanced instead")
        return {"pipeline_layout": BALANCED}
    first, last = row.count("first_stage_layers", 0), row.count("last_stage_layers", 0)
    if first or last:
        return {"first_stage_layers": first, "last_stage_layers": last}
    flags = row.json("other_flags")
    stated = [bool(flags.get(f"account_for_{part}_in_pipeline_split")) for part in ("embedding", "loss")]
    for embedding, loss in (tuple(stated), (False, False), (True, True), (False, True)):
        if even_chunks(model.num_layers, pp, vpp, embedding, loss) is not None:
            if (embedding, loss) != (False, False) and not any(stated):
                assumed.append(
                    f"{model.num_layers} layers do not divide over {pp * vpp} chunks: embedding and loss count"
                )
            return {"account_embedding": embedding, "account_loss": loss}
    assumed.append(f"{model.num_layers} layers do not divide over {pp * vpp} chunks: balanced")
    return {"pipeline_layout": BALANCED}


def _experts(row: Row, sizes: Mapping[str, int], assumed: list[str]) -> dict[str, Any]:
    named = row.text("moe_dispatcher")
    dispatcher = next((kind for kind in KNOBS["moe_dispatcher"].choices if kind in named), "alltoall")
    factor = re.search(r"cf=([\d.]+)", row.text("moe_token_drop"))
    sms = row.json("other_flags").get("moe_hybridep_num_sms")
    overlap = row.flag("moe_a2a_overlap", False)
    if overlap and sizes["pp"] > 1 and sizes["vpp"] == 1:
        overlap = False
        assumed.append("no overlap of the experts' exchange, which needs virtual stages and none are stated")
    return {
        "moe_dispatcher": dispatcher,
        "dispatcher_sms": int(sms) if sms and dispatcher == "hybridep" else 0,
        "moe_capacity_factor": float(factor[1]) if factor else 0.0,
        "overlap_moe_comm": overlap,
    }


def _optimizer(row: Row) -> dict[str, Any]:
    flags = row.json("other_flags")
    aware = row.flag("precision_aware_optimizer", False)
    formats = {
        knob: DTYPES.get(str(flags.get(knob)), "fp32")
        for knob in ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    }
    instances = flags.get("num_distributed_optimizer_instances")
    values: dict[str, Any] = {"precision_aware_optimizer": aware} | (formats if aware else {})
    return values | {"optimizer_instances": int(instances) if instances else 1}


def _offload(row: Row) -> dict[str, Any]:
    named = row.text("fine_grained_offload")
    modules = tuple(name for name in KNOBS["offload_modules"].choices if name in named)
    flags = row.json("other_flags")
    return {
        "offload_layers": row.count("act_offload_layers", 0),
        "offload_modules": modules,
        "offload_weights": bool(flags.get("cpu_offloading_weights"))
        and row.count("act_offload_layers", 0) > 0,
    }


def _graphs(row: Row, model: ModelSpec, habit: Mapping[str, Any]) -> dict[str, Any]:
    text = row.text("cuda_graph")
    if not text and model.moe is not None:
        text = "+".join(habit.get("expert_graphs", ()))
    if text in ("", "0", "none"):
        return {"cuda_graph": False}
    named = re.split(r"[:+()\s]+", text)
    scopes = [scope for scope in KNOBS["cuda_graph_scope"].choices if scope in named]
    if "full" in named:
        scopes = []
    return {"cuda_graph": True, "cuda_graph_scope": tuple(scopes)}


def _plain_flags(row: Row, model: ModelSpec, habit: Mapping[str, Any]) -> dict[str, Any]:
    flags = row.json("other_flags")
    values: dict[str, Any] = {
        ours: bool(flags[theirs]) for ours, theirs in PLAIN_FLAGS.items() if theirs in flags
    }
    if RESOLVED_RECIPE.match(row.text("recipe_key")):
        values["rope_fusion"] = "apply_rope_fusion" in flags
        if model.moe is not None:
            values["moe_router_fusion"] = "moe_router_fusion" in flags
    # AutoModel's table has a column of kernels; "-": none but PyTorch's own.
    if flags.get("torch_compile") is False or flags.get("kernels") == "-":
        values |= dict.fromkeys(("rope_fusion", "bias_activation_fusion", "bias_dropout_fusion"), False)
    if habit.get("plain_mlp") and model.moe is None:
        values["bias_activation_fusion"] = False
    margin = flags.get("env.NVTE_FWD_LAYERNORM_SM_MARGIN")
    if isinstance(margin, int):
        values["layernorm_sm_margin"] = margin
    return values


def _recompute(row: Row, habit: Mapping[str, Any], vpp: int) -> tuple[str, tuple[str, ...], int]:
    """Recompute setting; Megatron counts the layers of each virtual stage, plans those of the stage.

    Of the method "uniform" the number is the layers kept as one unit: all of them are recomputed.
    """
    stated = row.text("recompute_granularity") or habit.get("recompute", "none")
    if stated == "full":
        layers = row.text("recompute_num_layers")
        some = layers.isdigit() and row.json("other_flags").get("recompute_method") != "uniform"
        return "full", (), int(layers) * vpp if some else 0
    if stated != "selective":
        return "none", (), 0
    named = re.split(r"[+(),\s]+", row.text("recompute_modules"))
    modules = tuple(module for module in RECOMPUTE_MODULES if module in named)
    if not modules and RESOLVED_RECIPE.match(row.text("recipe_key")):
        # Megatron-Core takes core_attn where no list is given, nothing where the list is empty.
        return "none", (), 0
    return "selective", modules or tuple(habit.get("recompute_modules", ("core_attn",))), 0
