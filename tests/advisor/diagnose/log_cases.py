"""Logs that tests of diagnose and compare share: of a dump's plan, of one that ran as predicted, with a YAML."""

from __future__ import annotations

import random

from written import megatron_line, megatron_log, timers

DUMP = "llama3-8b-tp2-pp2-vpp2-dp4"


def leaves(term):
    """Name -> seconds."""
    if not term["parts"]:
        return {term["name"]: term["seconds"]}
    return {name: value for part in term["parts"] for name, value in leaves(part).items()}


def log_as_predicted(predicted, tmp_path, *, name="train.log", extra=None, times=None):
    """A log whose steps take what is predicted, with timers as predicted, but for `extra` seconds of some timers."""
    told, dice = leaves(predicted["terms"]), random.Random(4)
    extra = extra or {}
    forward = sum(value for key, value in told.items() if key.startswith("forward_")) + told["vocabulary"] / 3
    backward = (
        sum(value for key, value in told.items() if key.startswith("backward_")) + told["vocabulary"] * 2 / 3
    )
    forward += (
        told["launch_gaps"] * 13.5 / 30.5 + told["dp_gather"]
    )  # which overlaps, and is waited for there
    backward += told["launch_gaps"] * 17 / 30.5
    pipeline = sum(
        told[name]
        for name in ("pipeline_bubble", "pipeline_send_recv", "pipeline_starts", "schedule_correction")
    )
    seconds = {
        "forward-compute": forward + extra.get("forward-compute", 0),
        "backward-compute": backward,
        "all-grads-sync": told["dp_gradients"] + extra.get("all-grads-sync", 0),
        "optimizer": told["optimizer_step"] + extra.get("optimizer", 0),
    }
    whole = sum(seconds.values()) - seconds["optimizer"] + pipeline
    seconds["forward-backward"] = whole
    step = predicted["step_time_s"] + sum(extra.values())
    lines = [megatron_log([(1, 20.0)], dump=DUMP)]
    for number in range(2, 60):
        lines.append(megatron_line(number, step * dice.gauss(1, 0.002)))
        lines += timers({key: (0.98 * value, value) for key, value in seconds.items()})
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


YAML = """_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  context_parallel_size: 1
  sequence_parallel: true
  seq_length: 8192
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  kv_channels: 128
  gated_linear_unit: true
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [5]}
train:
  _target_: megatron.bridge.training.config.TrainingConfig
  global_batch_size: 128
  micro_batch_size: 1
ddp:
  overlap_grad_reduce: true
  use_distributed_optimizer: true
"""
