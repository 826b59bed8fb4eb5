"""The configuration that a log shows, as the text that the export's readers read."""

from __future__ import annotations

import re
from collections.abc import Callable

from executor.logs.record import Log

# Arguments that Megatron-LM derives, or that read as something else when they are given back.
DERIVED = {
    "rank",
    "local_rank",
    "world_size",
    "data_parallel_size",
    "params_dtype",
    "transformer_pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "consumed_train_samples",
    "consumed_valid_samples",
    "skipped_train_samples",
    "start_weight_decay",
    "end_weight_decay",
    "encoder_seq_length",
    "encoder_num_layers",
    "tensor_parallel_num_weight_shards",
    "expert_tensor_parallel_num_weight_shards",
}
# Arguments that a dump shows with their defaults although the model has no such part: part, prefixes, names.
PARTS = (
    ("num_experts", ("moe_", "expert_"), ()),
    (
        "multi_latent_attention",
        (),
        ("kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    ),
    ("hybrid_layer_pattern", ("mamba_",), ()),
)
# Switches that are on without a flag, by the flag that turns them off; those of the export's table come first.
OFF = {
    "add_bias_linear": "--disable-bias-linear",
    "add_position_embedding": "--no-position-embedding",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "align_param_gather": "--no-align-param-gather",
    "align_grad_reduce": "--no-align-grad-reduce",
    "use_gloo_process_groups": "--disable-gloo-process-groups",
    "check_for_nan_in_loss_and_grad": "--no-check-for-nan-in-loss-and-grad",
}


def plan_text(log: Log) -> tuple[str, str]:
    """Target of the export's readers and the text for it; ("", "") when the log shows no configuration."""
    if log.yaml:
        return "megatron-bridge", "\n".join(log.yaml)
    if log.configuration:
        return "megatron-bridge", "\n".join(_override(line) for line in log.configuration)
    if "hidden_size" in log.arguments or "num_layers" in log.arguments:
        return "megatron-lm", _command_line(_with_vocabulary(log))
    return "", ""


def _with_vocabulary(log: Log) -> dict[str, str]:
    """The dump, with the tokenizer's vocabulary where the run was not told one: a line of its own counts it.

    Without that line the padded one remains, which follows from the vocabulary where that is told.
    """
    found = dict(log.arguments)
    if found.get("vocab_size", "None") == "None" and log.vocab:
        found["vocab_size"] = str(log.vocab)
    if found.get("vocab_size", "None") != "None":
        found.pop("padded_vocab_size", None)
    return found


def gpus_of(log: Log) -> int:
    """GPUs of the run when the log says, else 0."""
    told = log.arguments.get("world_size", "")
    return int(told) if told.isdigit() else log.world


def _override(line: str) -> str:
    """`model.attention_backend=<AttnBackend.auto: 5>` as a plain word."""
    name, _, value = line.partition("=")
    enumeration = re.match(r"<(\w+)\.(\w+): .*>$", value)
    return f"{name}={enumeration[2] if enumeration else value}"


def _absent(arguments: dict[str, str]) -> Callable[[str], bool]:
    """Whether an argument belongs to a part that the model does not have."""
    none = ("None", "", "False")
    missing = [
        (prefixes, alone)
        for part, prefixes, alone in PARTS
        if part in arguments
        and arguments[part] in none
        and arguments.get("hybrid_override_pattern", "None") in none
    ]
    return lambda name: any(name.startswith(prefixes) or name in alone for prefixes, alone in missing)


def _command_line(arguments: dict[str, str]) -> str:
    """The dump as the flags that give it: switches by name, `None` and lists of nothing left out."""
    from executor.export.megatron_lm_names import names

    off, flags = OFF | names()["off"], names()["flags"]
    words = []
    absent = _absent(arguments)
    for name, value in arguments.items():
        if name in DERIVED or value in ("None", "", "[]") or absent(name):
            continue
        flag = flags.get(name, "--" + name.replace("_", "-"))
        if value in ("True", "False"):
            negative = off.get(name)
            if negative is not None:
                words += [] if value == "True" else [negative]
            elif value == "True":
                words.append(flag)
            continue
        enumeration = re.match(
            r"(?:<)?(?:AttnBackend|ModelType|InferenceCudaGraphScope|CudaGraphScope)\.(\w+)", value
        )
        if enumeration:
            value = enumeration[1]
        if value.startswith("["):
            words += [flag, *re.findall(r"[^\s,'\"\[\]<>]+", re.sub(r"<\w+\.(\w+): \d+>", r"\1", value))]
        else:
            words += [flag, "'" + value.replace("'", "") + "'"]
    world = arguments.get("world_size", "")
    if world.isdigit():
        # Not as a launch line, which would say how processes are bound: a log does not tell.
        words = ["--gpus-per-node", world, *words]
    return " ".join(words)
