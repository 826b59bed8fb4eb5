"""Amounts of one rank of a plan, predicted: the formulas behind the step time and memory, evaluated for any stage.

They are evaluated in fractions, so that they hold to the digit: FLOPs of a step pass what a double can count.
Amounts are of balanced routing, and of one document a sequence; quantised recipes change formats, no amounts of
work, and are counted in 16 bits, as a dry run without Transformer Engine traces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from costmodel import schedule, stack
from costmodel.amount import Amount, maximum
from costmodel.binding import bind_amounts, precision_recipe
from costmodel.columns import plan_columns
from costmodel.family import family_features
from costmodel.fusions import activation_has_kernel
from costmodel.layer import block_work
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.plan_inputs import plan_inputs
from costmodel.rank_amounts import Message, RankAmounts
from costmodel.rank_layers import CHUNK, WINDOW, Placed, PlacedChunk, placed_chunks
from costmodel.rank_state import parameter_counts, stage_buffers, state_bytes, step_messages
from costmodel.symbols import ATTENTION_BLOCKS, HEADED_BLOCKS, of_block
from costmodel.work import (
    activations,
    attention,
    dispatched,
    experts,
    messages,
    mixers,
    recompute,
    vocabulary,
)
from costmodel.work.block import BlockWork
from costmodel.work.linear import Linear, linear_flops_forward
from costmodel.work.mla import core_width
from costmodel.work.router import number_bytes
from costmodel.workload import Workload

# Inputs of the step time that no amount of a dry run depends on.
UNUSED = ("expert_kernels", "loop_launch")
# The Megatron-Core that the project installs, 0.16 (pyproject.toml, versions.toml).
INSTALLED = "mcore-26.02"
# What a rank keeps once, whatever is in flight: logits, and the maps and gathered tokens that dispatchers hold.
ONCE = ("output", "dispatcher")


def rank_amounts(
    plan: Plan,
    workload: Workload,
    model: ModelSpec,
    stage: int,
    num_microbatches: int | None = None,
    software: str = INSTALLED,
) -> RankAmounts:
    """What the first rank of a pipeline stage computes, sends and keeps in a step of `num_microbatches`.

    By default all micro-batches of the plan. software: the stack whose Megatron-Core runs.
    Raises ValueError, one line, for a plan that does not fit together or a stage that it does not have.
    """
    if not 0 <= stage < plan.pp:
        raise ValueError(f"--stage {stage} is not a stage of --pp {plan.pp}. Try --stage {plan.pp - 1}.")
    _check(plan, workload, model)
    count = num_microbatches or plan.num_microbatches(workload.global_batch)
    x, features = amount_inputs(plan, workload, model, software)
    x.m = Fraction(count)
    chunks = placed_chunks(plan, model, stage, workload.seq_len)
    works = {
        name: block_work(x, name, features)
        for name in {each.block for chunk in chunks for each in chunk.blocks}
    }
    apart = not stack.load_stack(software).unsummed_experts
    buffered = stage_buffers(x, plan, chunks, works, model, experts_apart=apart)
    once = step_messages(x, plan, buffered)
    saved = _saved(x, chunks, works)
    flying, turned = schedule.in_flight(x, stage), schedule.last_chunk_in_flight(x, stage)
    heads = _saved_by_heads(x, chunks, works)
    return RankAmounts(
        stage=stage,
        num_microbatches=count,
        flops=_flops(x, chunks, works, count),
        messages=_plain(messages.merged([*_messages(x, plan, chunks, works, model, count), *once])),
        saved={name: _number(size) for name, size in saved.items()},
        parameters=parameter_counts(buffered),
        state={name: _number(size) for name, size in state_bytes(x, buffered).items()},
        peak=_number(
            flying * (sum(size for name, size in saved.items() if name not in ONCE) - heads)
            + turned * heads
            + sum(saved.get(name, 0) for name in ONCE)
        ),
        notes=_notes(plan, workload, model),
    )


def _check(plan: Plan, workload: Workload, model: ModelSpec) -> None:
    """What Megatron-Core has no dry run for, said in one line."""
    if model.sparse_attention:
        raise ValueError(
            f"{model.name} has {model.sparse_attention}, which is not built here with Megatron-Core 0.16. "
            "Try deepseek-v3."
        )
    if workload.task == "lora":
        raise ValueError("--task lora: adapters are not part of Megatron-Core. Try --task sft.")
    if plan.fsdp:
        raise ValueError(
            "--fsdp: amounts are counted for the distributed optimizer. Try --no-fsdp --zero-stage 1."
        )
    adam_alone(plan)
    plan.num_microbatches(workload.global_batch)


def adam_alone(plan: Plan) -> None:
    """ValueError, one line, for a plan whose optimizer state is not counted to the byte."""
    if plan.optimizer != "adam":
        raise ValueError(
            f"--optimizer {plan.optimizer}: amounts of a rank are counted for Adam. Try --optimizer adam."
        )


def amount_inputs(
    plan: Plan, workload: Workload, model: ModelSpec, software: str = INSTALLED
) -> tuple[SimpleNamespace, frozenset[str]]:
    """Inputs of the formulas as fractions, and the features of the model's family.

    Quantised recipes are replaced by bf16, imbalance and packed documents by their absence.
    """
    even = replace(workload, moe_imbalance=1.0, mean_length=0)
    remainders = plan.precision != "fp16"
    precision = plan.precision if plan.precision == "fp32" else "bf16"
    plan = replace(plan, precision=precision, fp8_param_gather=False)
    columns = plan_columns([plan])
    base = float(precision_recipe(precision)["base"])
    found: dict[str, Any] = {name: each.value for name, each in bind_amounts(model, even, precision).items()}
    found |= plan_inputs(
        columns,
        model=model,
        workload=even,
        domain=1,
        precision_bytes=base,
        quantised=False,
        remainders=remainders,
        fuses_activation=activation_has_kernel(model),
    )
    # As the model states it, where a step time takes the usual job's.
    found["router_wide"] = found["results_wide"]
    numbers = {name: _fraction(float(np.ravel(value)[0])) for name, value in found.items()}
    has = stack.load_stack(software)
    flags = {name: int(getattr(has, name)) for name in stack.INPUTS}
    inputs = SimpleNamespace(**dict.fromkeys(UNUSED, 0) | flags | numbers)
    return inputs, family_features(model, even, columns)


def _fraction(value: float) -> Fraction:
    """The fraction meant: shares such as 1 / 3 are not what a double holds."""
    return Fraction(value) if value == int(value) else Fraction(value).limit_denominator(10**6)


def _number(amount: Amount) -> float:
    """A whole number as int, which prints and compares to the digit; else a float."""
    exact = Fraction(amount)
    return int(exact) if exact.denominator == 1 else float(exact)


def _plain(found: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(replace(one, bytes=_number(one.bytes), count=_number(one.count)) for one in found)


def _seeing(x: SimpleNamespace, placed: Placed) -> SimpleNamespace:
    """The inputs of one attention block, where the model's are means over its layers."""
    own = {"window_share": int(placed.sees == WINDOW), "chunk_share": int(placed.sees == CHUNK)}
    return SimpleNamespace(**vars(x) | own)


def core_flops(x: SimpleNamespace, placed: Placed) -> Amount:
    """FLOPs of a block's attention core or scan, forward, for one micro-batch. [FLOP]"""
    if placed.block in ("mamba", "delta"):
        scan = mixers.mamba_scan_flops_forward if placed.block == "mamba" else mixers.delta_scan_flops_forward
        return scan(x)
    x = of_block(x, placed.block)
    width = core_width(x) if placed.block == "mla" else attention.core_width(x)
    if x.unfused:
        return attention.unfused_core_flops(x, width)
    return attention.core_flops_forward(_seeing(x, placed), width)


def _backward_factor(x: SimpleNamespace, placed: Placed) -> Amount:
    """FLOPs of a fused core's backward pass over its forward pass; of scans too. [1]"""
    if placed.block in HEADED_BLOCKS:
        return attention.core_backward_factor(of_block(x, placed.block))
    return attention.CORE_BACKWARD


def product_name(layer: Linear) -> str:
    """Name of a linear layer's product: those of routed experts apart from those of an MLP."""
    return f"experts_{layer.name}" if layer.grouped else layer.name


def _flops(
    x: SimpleNamespace,
    chunks: tuple[PlacedChunk, ...],
    works: Mapping[str, BlockWork],
    count: int,
) -> dict[str, dict[str, float]]:
    """FLOPs by product and pass; what recompute repeats is done in the backward pass."""
    found: dict[str, dict[str, Amount]] = {}

    def add(name: str, forward: Amount, backward: Amount) -> None:
        entry = found.setdefault(name, {"forward": 0, "backward": 0})
        entry["forward"] += count * forward
        entry["backward"] += count * backward

    for placed in (each for chunk in chunks for each in chunk.blocks):
        for layer in works[placed.block].linears:
            once = linear_flops_forward(layer)
            again = 1 if placed.again else recompute.linear_again(x, placed.block, layer.name)
            add(product_name(layer), once, (2 + again) * once)
        if placed.block == "experts" and x.shared_gate:
            once = experts.shared_gate_flops_forward(x)
            again = 1 if placed.again else recompute.linear_again(x, "experts", "shared_gate")
            add("shared_gate", once, (2 + again) * once)
        if placed.block in (*ATTENTION_BLOCKS, "mamba", "delta"):
            name = "core" if placed.block in ATTENTION_BLOCKS else "scan"
            once = core_flops(x, placed)
            factor = 2 if x.unfused and name == "core" else Fraction(_backward_factor(x, placed))
            again = 1 if placed.again else recompute.core_again(x, placed.block)
            add(name, once, (factor + again) * once)
    heads = sum(chunk.mtp for chunk in chunks)
    if heads:
        once = linear_flops_forward(vocabulary.mtp_projection(x))
        add("mtp_proj", heads * once, 2 * heads * once)
    passes = (1 + x.mtp_heads) * sum(chunk.last for chunk in chunks)
    if passes:
        once = vocabulary.logits_flops_forward(x)
        add("output", passes * once, 2 * passes * once)
    return {name: {kind: _number(size) for kind, size in entry.items()} for name, entry in found.items()}


def _messages(
    x: SimpleNamespace,
    plan: Plan,
    chunks: tuple[PlacedChunk, ...],
    works: Mapping[str, BlockWork],
    model: ModelSpec,
    count: int,
) -> list[Message]:
    """Messages of `count` micro-batches."""
    found: list[Message] = []
    for placed in (each for chunk in chunks for each in chunk.blocks):
        found += _block_messages(x, placed, works[placed.block], model)
    for chunk in chunks:
        found += messages.embedding(x) * (chunk.first + chunk.mtp)
        found += messages.output(x) * int((1 + x.mtp_heads) * chunk.last)
        found += messages.mtp_projection(x) * chunk.mtp
    if plan.pp > 1:
        receives = sum(not chunk.first for chunk in chunks)
        sends = sum(not chunk.last for chunk in chunks)
        found += messages.pipeline(x, receives, sends)
    return [replace(one, count=count * one.count) for one in found]


def _block_messages(x: SimpleNamespace, placed: Placed, work: BlockWork, model: ModelSpec) -> list[Message]:
    name = placed.block
    found: list[Message] = []
    again = 1 if placed.again else recompute.messages_again(x, name)
    if name == "mla":
        inputs = messages.latent_inputs(x, work)
        found += messages.tensor_parallel(x, inputs, work.reduced, int(placed.again))
        if x.sp and not placed.again and x.recompute_mla_up_proj:
            found += [Message("all_gather", "tp", int(x.tp), size, 1, "backward") for size in inputs]
        found += messages.rotary_keys(x, int(placed.again))
    elif work.gathered:
        kept = x.shared_overlap if name == "experts" else 0
        found += messages.tensor_parallel(x, [work.gathered], work.reduced, again, kept=kept)
        found += messages.joined_heads(x, work, again)
    if name in ATTENTION_BLOCKS:
        found += messages.context_parallel(x, name, 1 if placed.again else recompute.core_again(x, name))
    if name in ("mamba", "delta"):
        found += messages.mixer_exchange(x, work, int(placed.again))
    if name == "experts":
        repeated = 1 if placed.again else x.recompute_moe
        found += messages.expert_parallel(x, repeated, int(number_bytes(x)))
    return found


def _saved(
    x: SimpleNamespace, chunks: tuple[PlacedChunk, ...], works: Mapping[str, BlockWork]
) -> dict[str, Amount]:
    """Bytes that one micro-batch keeps in each kind of block; "layer" where full recompute keeps inputs alone."""
    found: dict[str, Amount] = {}
    gathered: Amount = 0
    if any(placed.block == "experts" for chunk in chunks for placed in chunk.blocks):
        gathered = found["dispatcher"] = dispatched.gathered_tokens(x)
    for chunk in chunks:
        for placed in chunk.blocks:
            if not placed.again:
                found[placed.block] = found.get(placed.block, 0) + works[placed.block].saved_bytes()
            if placed.block == "experts" and (placed.again or x.recompute_moe):
                found["dispatcher"] = found.get("dispatcher", 0) + dispatched.held_maps(x)
        if chunk.first and x.dropout:
            found["embedding"] = activations.embedding_mask(x)
        if chunk.inputs:
            found["layer"] = found.get("layer", 0) + chunk.inputs * activations.layer_input(x)
        if chunk.mtp:
            found["mtp"] = found.get("mtp", 0) + chunk.mtp * activations.mtp_inputs(x)
        passes = (1 + x.mtp_heads) * chunk.last
        if passes:
            kept = activations.saved_logits(x) + activations.output_input(x)
            # One buffer serves all gathers, those of tokens too.
            buffer = maximum(activations.gather_buffer(x) - gathered, 0)
            found["output"] = found.get("output", 0) + passes * kept + buffer
    return found


def _saved_by_heads(
    x: SimpleNamespace, chunks: tuple[PlacedChunk, ...], works: Mapping[str, BlockWork]
) -> Amount:
    """Bytes of these that heads for more tokens keep, on the last chunk. [byte]"""
    blocks = [placed for chunk in chunks for placed in chunk.blocks if placed.mtp and not placed.again]
    inputs = sum(chunk.mtp for chunk in chunks) * activations.mtp_inputs(x)
    return sum(works[placed.block].saved_bytes() for placed in blocks) + inputs


def _notes(plan: Plan, workload: Workload, model: ModelSpec) -> tuple[str, ...]:
    """What is counted otherwise than the plan says."""
    notes = []
    if plan.precision not in ("bf16", "fp32"):
        notes.append(
            f"{plan.precision} counted as bf16: Transformer Engine's recipe changes copies and casts, not FLOPs"
        )
    if workload.moe_imbalance != 1 and model.moe is not None:
        notes.append("routing counted as balanced")
    if workload.mean_length:
        notes.append("sequences counted as one document each")
    if plan.offload_layers or plan.offload_modules or plan.optimizer_offload:
        notes.append("what waits in host memory is counted as predicted; a dry run keeps it")
    return tuple(notes)
