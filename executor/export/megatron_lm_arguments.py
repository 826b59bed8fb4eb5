"""A job as Megatron-LM's arguments: fields of Megatron-Core by their flags, and what only the arguments say.

The fields come from `executor.megatron_args`, the flags' names from `megatron_lm.toml`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from costmodel.knobs import SETTINGS
from costmodel.layout import layout_of
from executor.export.exported import Job
from executor.export.megatron_lm_names import Version, flag_of, names
from executor.export.unsaid import BENCHMARK_ONLY, refuse_hybrid_stages, setting_notes, setting_value
from executor.megatron_args import core_fields
from executor.megatron_model import ENDS, mtp_segments, not_expressed, rotary_fields, staged_pattern
from executor.megatron_training import ddp_fields, optimizer_fields

Arguments = dict[str, Any]
# Muon's tensors dealt out one by one, without the padded layout.
LEGACY_LAYOUT = "--no-use-layer-wise-param-layout"
# Keeps the loader from building a mask of every token by every other.
NO_MASK = "--no-create-attention-mask-in-dataloader"
# Names of recompute modules that Megatron-Core has; ours are more.
MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "mhc")


class Writer:
    """Arguments as they are gathered, with a note for what has no argument."""

    def __init__(self, job: Job, version: Version) -> None:
        self.job, self.version = job, version
        self.arguments: Arguments = {}
        self.notes: list[str] = []

    def put(self, flag: str, value: Any = True) -> None:
        """Take an argument; None and False leave it out, a flag that the version lacks becomes a note."""
        if value is None or value is False:
            return
        if flag in self.version.lacks:
            self.notes.append(f"{flag} is not in Megatron-LM {self.version.name} and is left out")
            return
        self.arguments[flag] = value

    def fields(self, fields: Mapping[str, Any]) -> None:
        """Fields of Megatron-Core under their flags."""
        table = names()
        for field, value in fields.items():
            if field in table["derived"]:
                continue
            if field in table["unsaid"]:
                if value != table["unsaid"][field]:
                    self.notes.append(f"{field} = {value}: Megatron-LM has no argument for it")
            elif field in table["off"]:
                self.put(table["off"][field], value is False)
            else:
                self.put(flag_of(field), value)


def arguments(job: Job, version: Version) -> tuple[Arguments, list[str]]:
    """Flag to value (True for a switch, a list for several words), and what could not be said, a line each."""
    writer = Writer(job, version)
    fields = core_fields(job.plan, job.model, job.workload) | _training_fields(job)
    if job.native_loss or not version.te_loss:
        fields.pop("cross_entropy_fusion_impl", None)  # left out, it is Megatron-Core's own
    for name in BENCHMARK_ONLY:
        asked = fields.pop(name, False) or dict(job.plan.settings).get(name)
        if asked and not job.benchmark:
            writer.notes.append(f"{name} is for benchmarks: left out, --benchmark keeps it")
        elif asked:
            fields[name] = True
    _model(writer, fields)
    _pipeline(writer, fields)
    _recompute(writer, fields)
    _graphs(writer, fields)
    _reduction(writer, fields)
    if job.plan.optimizer == "muon":
        _muon(writer, fields)
    writer.fields(fields)
    _batch(writer)
    _host(writer)
    writer.notes += not_expressed(job.model, writer.version.hybrid_stages, indexers=True)
    return writer.arguments, writer.notes


def _training_fields(job: Job) -> Arguments:
    """Fields of data parallelism and of the optimizer; those of the optimizer's types are already there."""
    fields = ddp_fields(job.plan) | optimizer_fields(job.plan)
    for name in ("params_dtype", "bf16", "fp16", "clip_grad"):
        fields.pop(name, None)
    if fields["optimizer"] == "adam":
        fields.pop("optimizer")
    return fields


def _model(writer: Writer, fields: Arguments) -> None:
    """Activation, heads, experts' layers, positions: what the flags say otherwise than the fields."""
    model = writer.job.model
    exact = _activation(writer, fields.pop("activation_func"), bool(fields.pop("gated_linear_unit")))
    fused = fields.pop("bias_activation_fusion") or (writer.job.plan.bias_activation_fusion and not exact)
    if not fused:
        writer.put("--no-bias-swiglu-fusion" if "--swiglu" in writer.arguments else "--no-bias-gelu-fusion")
    groups = fields.pop("num_query_groups")
    if model.mla is None and groups != model.num_heads:
        writer.put("--group-query-attention")
        writer.put("--num-query-groups", groups)
    if fields.get("add_bias_linear"):
        fields.pop("add_qkv_bias", None)  # follows from it
    for name in ("moe_layer_freq", "window_attn_skip_freq", "no_rope_freq", "linear_attention_freq"):
        if name in fields:
            fields[name] = frequency(fields[name])
    if "window_size" in fields:
        fields["window_size"] = ",".join(str(size) for size in fields["window_size"])
    writer.put("--position-embedding-type", model.position_embedding)
    writer.put("--max-position-embeddings", max(writer.job.workload.seq_len, model.learned_positions))
    if model.mla is None:
        for name, value in rotary_fields(model).items():
            writer.put(flag_of(name), value)
    writer.put("--untie-embeddings-and-output-weights", not model.tied_embeddings)
    writer.put("--make-vocab-size-divisible-by", model.vocab_divisible_by)


def _activation(writer: Writer, name: str, gated: bool) -> bool:
    """The flag of the activation function; False where the nearest that has one stands in for it.

    A gate stays a gate, which is a third of the MLP's weights.
    """
    flags = {
        ("silu", True): "--swiglu",
        ("squared_relu", False): "--squared-relu",
        ("quick_gelu", True): "--quick-geglu",
    }
    if (name, gated) == ("gelu", False):
        return True
    if (name, gated) in flags:
        writer.put(flags[name, gated])
        return True
    if gated:
        writer.put("--swiglu")
    words, instead = f"activation {'gated ' * gated}{name}", "--swiglu" if gated else "gelu"
    writer.notes.append(f"{words}: Megatron-LM has no argument for it, {instead} stands in")
    return False


def frequency(value: int | list[int]) -> str | int:
    """A number, or one for each layer as Megatron reads it: ([0]*3+[1]*58)."""
    if isinstance(value, int):
        return value
    runs = [f"[{number}]*{len(list(run))}" for number, run in itertools.groupby(value)]
    return f"({'+'.join(runs)})"


def _pipeline(writer: Writer, fields: Arguments) -> None:
    """Stages: a layout tells chunks itself, hybrids tell them in their pattern."""
    plan, model, version = writer.job.plan, writer.job.model, writer.version
    if fields.get("pipeline_model_parallel_layout"):
        fields.pop("virtual_pipeline_model_parallel_size", None)
    if fields.get("pipeline_model_parallel_layout") or plan.pp == 1:
        # A layout holds the ends. One stage has none: Megatron would build that many layers, or refuse.
        for name in ENDS:
            fields.pop(name, None)
    if plan.tp == 1:
        fields.pop("tp_comm_overlap")  # nothing to overlap, and the parser asks for sequence parallelism
    if plan.vpp == 1:
        fields.pop("overlap_p2p_comm")  # without chunks there is nothing to overlap
    if not model.layer_pattern:
        return
    if not version.hybrid_stages:
        refuse_hybrid_stages(plan, model, f"Megatron-LM {version.name}", "--target-version 0.17")
    pattern = _staged(writer) if version.hybrid_stages else model.layer_pattern
    if "|" in pattern:
        # It holds the ends: Megatron-Core 0.19.2, hybrid_layer_allocation.py, "Cannot specify" them beside it.
        for name in ENDS:
            fields.pop(name, None)
    if version.hybrid_stages:
        pattern += mtp_segments(model)
        if model.mtp_layers:
            writer.put("--mtp-num-layers", model.mtp_layers)
    writer.put(version.hybrid_pattern, pattern)
    if version.hybrid_switch:
        writer.put(version.hybrid_switch)
    for name in ("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "moe_layer_freq"):
        fields.pop(name, None)
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        if fields.pop(name, False):
            writer.notes.append(f"{name}: hybrids take stages from their pattern")


def _staged(writer: Writer) -> str:
    """The pattern with its stages, and a note where MTP heads are priced elsewhere."""
    plan, model, seq_len = writer.job.plan, writer.job.model, writer.job.workload.seq_len
    pattern = staged_pattern(plan, model, seq_len)
    if "|" in pattern:
        layout = layout_of(plan, model, seq_len)
        chunks = [layout.chunks[stage][chunk] for chunk in range(plan.vpp) for stage in range(plan.pp)]
        if any(chunk.mtp for chunk in chunks[:-1]):
            writer.notes.append("MTP heads stand on the last stage, where Megatron-LM takes those of hybrids")
    return pattern


def _recompute(writer: Writer, fields: Arguments) -> None:
    """Modules under Megatron-Core's names; ours for activation functions is moe_act, and only with experts."""
    wanted = fields.get("recompute_modules")
    if wanted is None:
        return
    kept: list[str] = []
    for module in wanted:
        name = "moe_act" if module == "activation" and writer.job.model.moe else module
        if name in MODULES:
            kept += [name] if name not in kept else []
        else:
            writer.notes.append(f"recompute of {module}: Megatron-Core has no such module for this model")
    if kept:
        fields["recompute_modules"] = kept
    elif not wanted:
        fields.pop("recompute_modules")  # Megatron-LM's own choice: core_attn
    else:
        for name in ("recompute_modules", "recompute_granularity"):
            fields.pop(name)


def _graphs(writer: Writer, fields: Arguments) -> None:
    """CUDA graphs: of parts of layers, or of the whole step, which no check of the loss may interrupt."""
    scope = fields.pop("cuda_graph_scope", None)
    if scope is None:
        return
    whole = "full_iteration" in scope
    parts = [part for part in scope if part != "full_iteration"]
    if whole and writer.version.graph_whole == "impl":
        fields["cuda_graph_impl"] = "full_iteration"
    else:
        writer.put(writer.version.graph_modules, (["full_iteration"] if whole else []) + parts or None)
    if whole and writer.job.plan.offload_modules and not parts:
        writer.put("--fine-grained-offloading-max-inflight-offloads", 1)  # 0.19 asks for a bound
    if whole:
        writer.notes.append("a graph of the whole step excludes checks for NaN in loss and gradients")


def _reduction(writer: Writer, fields: Arguments) -> None:
    """Gradients, FSDP and the optimizer, whose flags are not the fields."""
    plan = writer.job.plan
    wide = fields.pop("grad_reduce_in_fp32")
    if wide:
        writer.put("--accumulate-allreduce-grads-in-fp32")
    elif plan.precision not in ("fp32", "fp16"):
        writer.put("--grad-reduce-in-bf16")
    if plan.fsdp:
        _fsdp(writer, fields)
    if plan.sharp:
        writer.put("--use-sharp")


def _muon(writer: Writer, fields: Arguments) -> None:
    """Whole matrices dealt to ranks: an option of the distributed optimizer from 0.18 on, before that "dist_muon".

    The layout that 0.18 would choose itself pads each bucket to ranks x its largest matrix, which no prediction of
    ours holds. Sources: Megatron-LM 0.17.1 and 0.19.2, arguments.py; 0.16.1, layer_wise_optimizer.py.
    """
    shared = bool(writer.job.plan.zero_stage)
    if LEGACY_LAYOUT not in writer.version.lacks:
        if shared:
            fields |= {"optimizer": "muon", "use_distributed_optimizer": True}
            writer.put(LEGACY_LAYOUT)
        return
    refused: dict[str, str] = {}
    if shared:
        own = "Megatron-LM before 0.18 keeps FP8 parameters with the distributed optimizer alone"
        refused |= dict.fromkeys(("fp8_param", "fp4_param", "reuse_grad_buf_for_mxfp8_param_ag"), own)
    else:
        refused["overlap_grad_reduce"] = "Megatron-LM before 0.18 refuses it where every rank has all of Muon"
    if writer.version.name == "0.16":
        refused["overlap_param_gather"] = "Megatron-LM 0.16 gathers after Muon's step alone"
    for field, reason in refused.items():
        if fields.pop(field, False):
            writer.notes.append(f"{flag_of(field)} is left out: {reason}")


def _fsdp(writer: Writer, fields: Arguments) -> None:
    """Both implementations have their own checkpoints; PyTorch's takes neither the distributed optimizer nor fusion.

    Megatron's makes the model shard by shard: without the meta device all of it stands on each GPU first. Source:
    Megatron-LM 0.19.2, training/training.py, get_model; NVIDIA's recipes of Megatron-Bridge 0.6.2 with FSDP.
    """
    plan = writer.job.plan
    if plan.fsdp_implementation == "torch":
        writer.put("--use-torch-fsdp2")
        writer.put("--ckpt-format", "torch_dist")
        for name in ("use_distributed_optimizer", "overlap_param_gather", "fp8_param"):
            fields.pop(name, None)
        fields["gradient_accumulation_fusion"] = False
    else:
        writer.put("--ckpt-format", "fsdp_dtensor")
        if plan.zero_stage == 3:
            writer.put("--init-model-with-meta-device")


def _batch(writer: Writer) -> None:
    workload = writer.job.workload
    writer.put("--micro-batch-size", writer.job.plan.micro_batch)
    writer.put("--global-batch-size", workload.global_batch)
    writer.put("--seq-length", workload.seq_len)


def _host(writer: Writer) -> None:
    """Garbage collection, and settings of the plan that are arguments but no fields of Megatron-Core."""
    plan = writer.job.plan
    settings = dict(plan.settings)
    if plan.manual_gc:
        writer.put("--manual-gc")
        writer.put("--manual-gc-interval", settings.get("manual_gc_interval", 100))
    said = {"manual_gc_interval", *BENCHMARK_ONLY}
    for name, given in settings.items():
        record, value = SETTINGS[name], setting_value(name, given)
        flag = next(iter(setting_flags(record.megatron_lm)), None)
        if flag is None or record.mcore or name in said or value == "":
            continue
        said.add(name)
        if record.kind == "bool" and record.default is True:
            writer.put(flag, value is False)
        else:
            writer.put(flag, value.split() if isinstance(value, str) and " " in value else value)
    writer.notes += setting_notes(plan, "megatron_lm", f"Megatron-LM {writer.version.name}", said)


def setting_flags(text: str) -> Iterable[str]:
    """Flags named in a record of the catalogue; remarks in brackets are none."""
    said = re.sub(r"\([^)]*\)", "", text)
    return [word for word in said.replace(",", " ").split() if word.startswith("--")]


def words(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as the words of a command line."""
    found: list[str] = []
    for flag, value in arguments.items():
        values = value if isinstance(value, list | tuple) else [] if value is True else [value]
        found += [flag, *(str(each) for each in values)]
    return found
