"""A vision or audio encoder in front of the decoder: its time, its own pipeline stages, its memory.

It has a tensor and a pipeline size of its own, on GPUs of its own before the decoder's (GPUs = dp x cp x
(enc_tp x enc_pp + tp x pp)), or stands in the decoder's first stage. Source: NeMo performance guide,
encoder_tensor_model_parallel_size and encoder_pipeline_model_parallel_size.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.layer import BlockTimes, block_times
from costmodel.term import Ledger
from costmodel.work import activations, parameters

BLOCKS = ("attention", "mlp")


def encoder_symbols(x: SimpleNamespace) -> SimpleNamespace:
    """The decoder's symbols with the encoder's sizes: every token attends to all, no context parallelism."""
    own = {
        "h": x.enc_h,
        "f": x.enc_f,
        "a": x.enc_a,
        "k": x.enc_a,
        **dict.fromkeys(("d", "d_v"), x.enc_h / x.enc_a),
        "gates": x.enc_gates,
        "squared_relu": 0,
        "s": x.enc_tokens,
        "document": 2 * x.enc_tokens,
        "tp": x.enc_tp,
        "window_share": 0,
        "chunk_share": 0,
        **dict.fromkeys(("output_gate", "gate_width", "values_scaled"), 0),
        **dict.fromkeys(("sinks", "scores_wide", "capped_scores", "unfusable"), 0),
        "qk_norms": 0,
        "rotary": 0,
        **dict.fromkeys(("lora_qkv", "lora_proj", "lora_mlp"), 0),
        **dict.fromkeys(("cp", "cp_a2a_size"), 1),
        **dict.fromkeys(("cp_all_gather", "cp_straddle", "tp_overlap"), 0),
    }
    return SimpleNamespace(**{**vars(x), **own})


def encoder_blocks(ledger: Ledger, x: SimpleNamespace) -> dict[str, BlockTimes]:
    """Attention and MLP of one encoder layer."""
    own = encoder_symbols(x)
    return {name: block_times(ledger, own, name, (), f"encoder_{name}") for name in BLOCKS}


def encoder_time(ledger: Ledger, x: SimpleNamespace, blocks: dict[str, BlockTimes]) -> Amount:
    """Time of all encoder layers for one micro-batch, forward and backward; frozen it has no backward pass. [s]

    Adapters (task lora) are the decoder's. Source: Megatron-Bridge 0.6.2, peft/lora.py, VLMLoRA, freeze_vision_model.
    """
    one = sum(
        sum(times.forward.values()) + x.trained * (sum(times.backward.values()) + times.again)
        for times in blocks.values()
    )
    return ledger.define("encoder_time", x.enc_layers * one, "s", encoder_time)


def encoder_flops(x: SimpleNamespace) -> Amount:
    """Model FLOPs of the encoder for one sequence: 6 a weight and token, 3 x its attention; frozen a third. [FLOP]"""
    weights = (4 + (2 + x.enc_gates) * x.enc_f / x.enc_h) * x.enc_h**2
    core = 4 * x.enc_tokens * x.enc_h
    return x.enc_layers * x.enc_tokens * (1 + 2 * x.trained) * (2 * weights + core)


def encoder_weights(x: SimpleNamespace, blocks: dict[str, BlockTimes]) -> tuple[Amount, Amount]:
    """Weights of an encoder rank's linear layers, and all of its parameters. [1]"""
    layers = x.enc_layers / x.enc_pp
    linear = sum(times.work.weights(grouped=False) for times in blocks.values())
    return layers * linear, layers * sum(parameters.block_parameters(times.work) for times in blocks.values())


def encoder_kept(x: SimpleNamespace, blocks: dict[str, BlockTimes]) -> Amount:
    """What an encoder rank keeps of one micro-batch for its backward pass; of recomputed layers their inputs. [byte]"""
    saved = sum(times.work.saved_bytes() for times in blocks.values())
    inputs = activations.layer_input(encoder_symbols(x))
    return (
        x.trained * x.enc_layers / x.enc_pp * (x.recompute_layers * inputs + (1 - x.recompute_layers) * saved)
    )
