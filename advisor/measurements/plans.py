"""A row of published measurements as model, workload and plan: what it states, and what its source leaves unsaid."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from advisor.measurements.experts import drops_tokens, expert_knobs
from advisor.measurements.flags import (
    bucket_size,
    flag_knobs,
    graph_knobs,
    offload_knobs,
    optimizer_knobs,
    optimizer_words,
)
from advisor.measurements.habits import habit_of, row_release, row_task
from advisor.measurements.other_flags import stated_knobs
from advisor.measurements.precision import row_precision
from advisor.measurements.recompute import recompute_knobs
from advisor.measurements.release import row_date
from advisor.measurements.rows import SWITCHES, Row
from advisor.measurements.sizes import parallel_sizes, stage_layout
from costmodel.knobs import KNOBS
from costmodel.model_file import with_overrides
from costmodel.model_registry import is_known, list_aliases, load_model
from costmodel.model_sizes import from_sizes
from costmodel.model_spec import ModelSpec
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.work.dispatched import most_imbalance
from costmodel.workload import Workload
from executor.export.megatron_bridge_task import DEFAULT_TARGETS, reach_of
from hardware_db import Cluster

# What a column of sharding says where parameters are sharded, as ranks or in words, and where they are whole.
FSDP = re.compile(
    r"\d+(\.0)?|(torch|pytorch|megatron)?[-_ ]?fsdp ?[12]?|hsdp|zero-?3|(full|hybrid)([-_ ]shard)?|stage ?3"
)
NO_FSDP = re.compile(r"|zero-?2-like|zero[- ]?[012]|ddp|dp|no[-_ ]shard|shard[-_ ]grad[-_ ]op")
SHARDING = re.compile(r"(?i)(?<!no )\b(fsdp ?[12]?|hsdp|zero-?3)\b")
# Until then attention wrote its scores, unless a run names FlashAttention: that came in May 2022, into Megatron-LM in
# early 2023 (both from memory), and with PyTorch 2.0.0 of March 2023 (_scaled_dot_product_flash_attention).
UNFUSED_UNTIL = "22.12"

# SQuAD in packed sequences: mean tokens of a question with its answer, and their spread over it.
SQUAD_TOKENS, SQUAD_SPREAD = 250, 0.5
# How far the loads of experts differ when nothing forces balance, over what they would if every token chose the same:
# runs of Qwen3-235B on 8 expert ranks take 9 to 24 % longer at 16 to 128 k tokens than with forced balance, as they do
# with 1.75 times the mean on the busiest rank. Source: Megatron-MoE-ModelZoo, long context.
NATURAL_SPREAD = 0.54
# Tokens of the busiest expert rank over the mean where a bias of each expert is steered by its load while the model is
# pretrained. Source: L. Wang et al., arXiv:2408.15664, table 2 (from memory): 1.04 times the mean, against 1.5 to 1.7
# with an auxiliary loss alone.
STEERED_IMBALANCE = 1.04


def row_model(row: Row) -> tuple[ModelSpec, str]:
    """The row's model with its overrides, and in words how its name was read, "" when nothing was to read.

    One that is not known is built from its overrides, where they hold its sizes. ValueError in one line when it cannot.
    """
    named, overrides = row.text("model").strip(), row.json("model_overrides")
    try:
        known = load_model(named)
        model = with_overrides(known, overrides)
        words = "" if named in (known.name, *list_aliases()) else f"model {named!r} taken as {known.name}"
    except ValueError as error:
        if not overrides or is_known(named):
            raise ValueError(str(error).replace("--model", "model")) from None
        model = _of_sizes(named, overrides)
        words = f"model {named!r} is not known, so built from its sizes: {_in_words(model)}"
    stated = row.whole("mtp_layers")
    heads = habit_of(row).get("mtp", model.mtp_layers) if stated is None else stated
    if heads != model.mtp_layers:
        model = replace(model, mtp_layers=heads)
    return model, words


def _of_sizes(name: str, sizes: Mapping[str, Any]) -> ModelSpec:
    try:
        return from_sizes(name or "unnamed", sizes)
    except ValueError as error:
        raise ValueError(f"model {name!r} is not known, and {error}") from None


def _in_words(model: ModelSpec) -> str:
    """What a model built from sizes was taken to be."""
    parts = (
        model.family,
        f"{count_parameters(model).total / 1e9:.3g}B parameters",
        "gated MLP" if model.gated else "plain MLP",
        model.norm,
        "biases" if model.linear_bias else "no biases",
        "tied embeddings" if model.tied_embeddings else "untied embeddings",
    )
    return ", ".join(parts)


def row_workload(row: Row, model: ModelSpec, seq_len: int, global_batch: int) -> Workload:
    """The row's task; adapters as its recipe states them, else on QKV with rank 16, as NVIDIA's recipes."""
    task = row_task(row)
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
    targets = (peft.get("target_modules") or DEFAULT_TARGETS) if isinstance(peft, dict) else ("linear_qkv",)
    rank = int(peft.get("dim") or 16) if isinstance(peft, dict) else 16
    reach = reach_of(targets)
    if task == "sft":
        return Workload(seq_len, global_batch, task, **load, **packed)
    return Workload(seq_len, global_batch, task, lora_rank=rank, lora_targets=reach, **load, **packed)


def routes_naturally(row: Row) -> bool:
    """Whether tokens go where the router sends them: no forced balance, none dropped, several expert ranks.

    Benchmarks of pretraining force balance unless their row says otherwise; fine-tuning has data to learn from.
    """
    forced = row.flag("moe_force_balance", row_task(row) == "pretrain")
    natural = not forced or "natural routing" in row.text("notes")
    return natural and not drops_tokens(row) and row.count("ep") > 1


def _imbalance(row: Row, model: ModelSpec) -> float:
    """Tokens of the busiest expert rank over the mean. Fine-tuning data is not what a bias was steered by."""
    if model.moe is None or not routes_naturally(row):
        return 1.0
    if model.moe.expert_bias and row_task(row) == "pretrain":
        return STEERED_IMBALANCE
    return natural_imbalance(model.moe.num_experts, model.moe.topk, row.count("ep"))


def natural_imbalance(experts: int, chosen: int, ranks: int) -> float:
    """Tokens of the busiest expert rank over the mean, to a hundredth, where nothing makes `experts` alike. [1]

    If every token chose the same experts, loads would deviate from their mean by sqrt(experts / chosen - 1) of it. A
    rank's deviation is that of one expert over the root of how many it has, and the largest of n normal numbers lies
    Phi^-1((n - 3/8) / (n + 1/4)) deviations above their mean (G. Blom, 1958; from memory), `most_imbalance` at most.
    """
    if ranks == 1:
        return 1.0
    own = experts / ranks
    deviation = NATURAL_SPREAD * math.sqrt((experts / chosen - 1) / own)
    above = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return round(min(1 + above * deviation, float(most_imbalance(experts, chosen, ranks))), 2)


def packs_squad(row: Row) -> bool:
    """Whether the row's fine-tuning fills its sequences with SQuAD, as NVIDIA's recipes do."""
    return habit_of(row)["family"] == "nemo"


def row_plan(row: Row, model: ModelSpec, gpus: int) -> tuple[Plan, list[str]]:
    """The row's plan, and what had to be assumed for it. ValueError in one line when it cannot be one."""
    habit = habit_of(row)
    modern: bool = habit["modern"]
    assumed = [habit["why"]]
    if row_task(row) in ("sft", "lora") and packs_squad(row):
        assumed.append(f"sequences packed with SQuAD: {SQUAD_TOKENS} tokens a document")
    if (load := _imbalance(row, model)) > 1:
        assumed.append(f"natural routing: the busiest expert rank has {load:.3g} times the mean")
    precision, words = row_precision(row, habit)
    assumed += [words] if words else []
    sizes = parallel_sizes(row, habit, model, gpus, assumed)
    overlap = habit.get("overlap", modern)
    shards_overlap = habit.get("overlap_data_parallel", overlap)
    assumed += row.unread_switches() + optimizer_words(row)
    fsdp = _fsdp(row, habit, sizes["dp"] * sizes["cp"], assumed)
    shards = row.count("fsdp", 0)
    recompute, modules, layers = recompute_knobs(
        row, habit, sizes["vpp"], model.num_layers // sizes["pp"], assumed
    )
    micro_batch = _micro_batch(row, habit, sizes, assumed)
    plan = Plan(
        **sizes,
        **stage_layout(row, model, sizes, assumed),
        **(expert_knobs(row, habit, sizes, assumed) | flag_knobs(row, model, habit, fsdp)),
        **optimizer_knobs(row),
        **offload_knobs(row),
        **graph_knobs(row, model, habit),
        micro_batch=micro_batch,
        precision=precision,
        sequence_parallel=_sequence_parallel(row, model, sizes["tp"], modern, assumed),
        zero_stage=3 if fsdp else habit.get("zero_stage", 1),
        fsdp=fsdp,
        fsdp_shard_size=shards if fsdp and shards > 1 else 0,
        cp_comm_type=_exchange(row, model, habit),
        recompute=recompute,
        recompute_modules=modules,
        recompute_num_layers=layers,
        attention_backend=_attention_backend(row, habit, assumed),
        tp_comm_overlap=row.flag("tp_comm_overlap", habit.get("tp_overlap", False) and sizes["tp"] > 1),
        overlap_grad_reduce=row.flag("overlap_grad_reduce", shards_overlap),
        overlap_param_gather=row.flag("overlap_param_gather", habit.get("overlap_gather", shards_overlap)),
        bucket_size=bucket_size(row, sizes["dp"] * sizes["cp"]),
        overlap_p2p=habit.get("overlap_p2p", overlap),
        pipeline_flushes=_flushes(row, sizes, micro_batch),
        grad_reduce_in_fp32=row.flag("grad_reduce_in_fp32", _reduces_in_fp32(habit, fsdp, precision)),
        fp8_param_gather=_kept_quantised(row, habit, precision, fsdp, assumed),
        cudnn_norms=precision in habit.get("cudnn_norms", ()),
        fused_cross_entropy=_fused_loss(row, habit, assumed),
        cross_entropy_fusion_impl=_loss_of(row, habit),
        dropout=not modern or habit.get("dropout", habit["family"] == "nemo" and model.learned_positions > 0),
        nccl_ub=row.flag("nccl_ub", False),
        check_for_nan_in_grad=bool(_said(row, "check_for_nan_in_grad", habit.get("nan_checks", True))),
        tp_only_amax_red=bool(_said(row, "tp_only_amax_red", habit.get("maxima_inside", False))),
        # PerfEnvPlugin of Megatron-Bridge switches it on with registered buffers.
        nvls=row.flag("nccl_ub", False),
        expandable_segments=habit.get("expandable_segments", True),
    )
    return replace(plan, **stated_knobs(row, plan, assumed)), assumed


def _flushes(row: Row, sizes: Mapping[str, int], micro_batch: int) -> int:
    """Times that a step drains the pipeline: once for each local batch where a row has one (AutoModel's LBS)."""
    local = row.said_number("LBS")
    whole = row.count("gbs", 0) // sizes["dp"]
    if sizes["pp"] == 1 or local == 0 or local % micro_batch or whole % local:
        return 1
    return whole // local


def bound_to_cores(row: Row, cluster: Cluster) -> tuple[bool, str]:
    """Whether the row's ranks were bound to the cores next to their GPU, and in words what was taken for said.

    Runs that nobody tuned are read as not bound where their host is Grace: they take twice the host's time of tuned
    ones there, and none more on x86 servers (costmodel/binding/hardware.py, UNBOUND_LAUNCH).
    """
    said = _said(row, "cpu_binding", None if habit_of(row).get("bound", True) else False)
    if said is not None or not (row.untuned and cluster.has_c2c):
        return said is None or bool(said), ""
    return False, "not tuned for speed, so ranks are read as not bound to Grace's cores: an inference"


def _said(row: Row, name: str, usual: Any) -> Any:
    """What the row's other flags say of a setting, else what is usual."""
    return row.json("other_flags").get(name, usual)


def _fsdp(row: Row, habit: Mapping[str, Any], ranks: int, assumed: list[str]) -> bool:
    """Whether parameters are sharded; not where the column says what neither means, which is told.

    An empty column is on for software that shards unless told not to, and where the source or software is named by it.
    """
    said = row.text("fsdp").strip()
    word = said.lower()
    read = FSDP.fullmatch(word) or NO_FSDP.fullmatch(word) or word in SWITCHES
    if not read:
        assumed.append(f"fsdp {said!r} is neither on nor off: taken as not said")
    if (said and read) or ranks == 1:
        return row.flag("fsdp", FSDP.fullmatch(word) is not None)
    why = shards_unsaid(row, habit)
    assumed += [f"fsdp not stated: on, as {why}"] if why else []
    return bool(why)


def shards_unsaid(row: Row, habit: Mapping[str, Any]) -> str:
    """Why a row whose column does not say whether it shards its parameters does, "" where nothing tells so."""
    named = SHARDING.search(f"{row.text('source')} {row.text('container')}")
    return f"{named[0]!r} says" if named else "its software's default" if habit.get("shards") else ""


def _attention_backend(row: Row, habit: Mapping[str, Any], assumed: list[str]) -> str:
    if habit.get("unfused_attention"):
        return "unfused"
    month = row_date(row)
    flash = any("flash" in row.text(column).lower() for column in ("source", "container", "notes"))
    if flash or not habit["modern"]:
        return "fused" if flash or month >= habit.get("flash_from", "99.12") else "unfused"
    if "" < month <= UNFUSED_UNTIL:
        assumed.append("attention writes its scores, as before FlashAttention was common")
        return "unfused"
    return "fused"


def _micro_batch(row: Row, habit: Mapping[str, Any], sizes: Mapping[str, int], assumed: list[str]) -> int:
    """As stated, else as many as accumulate, 1, or as its framework splits a rank's batch: one for each stage.

    Without stages see `advisor.measurements.memory.largest_micro_batch`.
    """
    if row.number("mbs"):
        return row.count("mbs")
    local = row.count("gbs") // sizes["dp"]
    if accumulated := accumulation(row, local):
        assumed.append(f"micro-batch not stated: {local // accumulated}, by its gradient accumulation")
        return local // accumulated
    if sizes["pp"] == 1:
        return 1
    if habit.get("micro_batch_per_stage") and local % sizes["pp"] == 0:
        assumed.append(f"micro-batch not stated: {local // sizes['pp']}, the batch in one for each stage")
        return local // sizes["pp"]
    assumed.append("micro-batch not stated: 1")
    return 1


def accumulation(row: Row, local_batch: int) -> int:
    """Micro-batches of a step that a row states beside none's size, 0 where it does not or they divide no batch."""
    steps = row.count("ga", 0)
    return steps if steps and not row.number("mbs") and local_batch % steps == 0 else 0


def _reduces_in_fp32(habit: Mapping[str, Any], fsdp: bool, precision: str) -> bool:
    """Whether gradients are reduced in FP32 where a row does not say.

    `fsdp_grad_fp32`: under FSDP; `bf16_grad_fp32`: in BF16.
    """
    usual: bool = habit["grad_fp32"] or (precision == "bf16" and habit.get("bf16_grad_fp32", False))
    return bool(habit.get("fsdp_grad_fp32", usual)) if fsdp else usual


def _kept_quantised(
    row: Row, habit: Mapping[str, Any], precision: str, fsdp: bool, assumed: list[str]
) -> bool:
    """Whether parameters are kept and gathered quantised: as stated, else as the source's recipes of that precision.

    Megatron's FSDP has no buffer for parameters in NVFP4 (megatron-bridge 0.6.2, perf_recipes/nemotronh/common.py).
    """
    if precision in ("bf16", "fp16", "fp32"):
        return False
    usual = precision in habit.get("fp8_parameters", ()) and not (fsdp and precision == "nvfp4")
    column = "fp8_param_gather" if precision != "nvfp4" else ""  # which says nothing of other parameters
    if usual and not row.text(column):
        assumed.append(
            "parameters kept in the format of their products, as NVIDIA's recipes of that precision do"
        )
    stated = row.json("other_flags").get("fsdp_float8_all_gather") is True  # torchtitan's name
    return row.flag(column, usual or stated)


def _fused_loss(row: Row, habit: Mapping[str, Any], assumed: list[str]) -> bool:
    """Whether softmax and loss are fused: by the source's habit, from some release on.

    torchtitan compiled only the layers in 2024, since 2025 the loss too (0.1.0, components/loss.py). Configurations of
    2026 name the layers alone (0.3.0, llama3/config_registry.py), but the published peak in NVFP4 of that year, 111 GiB
    has no room for the 64 GiB more of a loss that is not fused.
    """
    compiled = row.json("other_flags").get("torch_compile") is True and row.text("date")[:4] >= "2025"
    since, release = habit.get("fused_loss_from", ""), row_release(row, habit)
    if release and release < since:
        assumed.append(f"loss not fused, as the defaults before {since}")
        return False
    return habit["fused_loss"] or compiled


def _loss_of(row: Row, habit: Mapping[str, Any]) -> str:
    """Whose fused loss runs: as the row says, else its recipe; Transformer Engine's where neither does."""
    said = _said(row, "cross_entropy_fusion_impl", "")
    return said if said in KNOBS["cross_entropy_fusion_impl"].choices else habit.get("loss_of", "te")


def _exchange(row: Row, model: ModelSpec, habit: Mapping[str, Any]) -> str:
    """How context-parallel ranks exchange where the row does not say: as its recipe does, else a ring.

    A learned sink of the softmax leaves the exchange of heads alone. Source: Transformer Engine 2.15,
    dot_product_attention/utils.py, get_attention_backend (softmax_type).
    """
    if row.count("cp") <= 1:
        return "p2p"
    return "a2a" if model.attention_sink else str(habit.get("cp_comm_type", "p2p"))


def _sequence_parallel(row: Row, model: ModelSpec, tp: int, modern: bool, assumed: list[str]) -> bool:
    stated = tp > 1 and row.flag("sequence_parallel", modern)
    if tp == 1 or stated or model.moe is None:
        return stated
    assumed.append("sequence parallel, without which experts do not run beside tensor parallelism")
    return True
