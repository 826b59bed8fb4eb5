"""One block on one rank and one micro-batch: forward and backward time, part by part.

`block_times` writes a block's quantities into the ledger, each under the block's name, and returns the
symbols of what it wrote, so that `costmodel.step` can multiply them by blocks and micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from costmodel.amount import Amount, is_above_one
from costmodel.block_kernels import Issued, block_kernels
from costmodel.dispatch import Beside, inner_compute
from costmodel.exposed import (
    Times,
    adapter_messages,
    context_parallel_times,
    gathered_plain,
    joint_scale_time,
    mixer_exchange_times,
    ring_merges,
    tensor_parallel_times,
)
from costmodel.rates import (
    added_apart,
    half_length,
    linear_gemm,
    model_gemm,
    model_gemm_fraction,
    stream,
    tuned_stream,
)
from costmodel.recompute_time import recompute_time
from costmodel.streams import stream_times
from costmodel.symbols import ATTENTION_BLOCKS, HEADED_BLOCKS, of_block
from costmodel.term import Ledger
from costmodel.timing import kernels
from costmodel.work import attention, communication, mixers, quantisation
from costmodel.work.adapters import adapter_of, between
from costmodel.work.block import BlockWork
from costmodel.work.csa import attended_entries, csa, csa_flops_forward
from costmodel.work.dsa import dsa, dsa_backward_factor, dsa_flops_forward, picked_tokens, sparse_width
from costmodel.work.experts import counts_vary, experts
from costmodel.work.linear import tokens
from costmodel.work.messages import context_columns, mixer_exchange_bytes
from costmodel.work.mla import core_backward_factor, core_width, mla
from costmodel.work.mlp import mlp
from costmodel.work.split_activation import with_split_activation
from costmodel.work.written_norms import with_norms

Parts = dict[str, Amount]


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of one block and micro-batch, by kind and pass, as symbols of the ledger.

    forward, backward: kind ("linear", "attention", ...) to seconds; again: what its recompute setting repeats;
    kernels: issued in each pass; shared: forward and backward of the shared experts; wait: host round trips; inner: of
    the routed experts alone, between dispatch and combine.
    """

    work: BlockWork
    forward: Parts
    backward: Parts
    again: Amount
    kernels: Issued
    shared: Amount = 0
    wait: Amount = 0
    inner: Beside | None = None


Blocks = Mapping[str, BlockTimes]


def block_work(x: SimpleNamespace, name: str, features: Collection[str]) -> BlockWork:
    """Amounts of the block of that name, with what its adapters keep between their products."""
    work = with_split_activation(x, _plain_work(x, name, features), features)
    if "norms" in features:
        work = with_norms(of_block(x, name), work)
    if "lora" not in features:
        return work
    return replace(work, saved=dict(work.saved) | {"adapters": between(x, work)})


def _plain_work(x: SimpleNamespace, name: str, features: Collection[str]) -> BlockWork:
    if name in HEADED_BLOCKS:
        return attention.attention(of_block(x, name), name)
    if name == "mla":
        return mla(x, features)
    if name == "dsa":
        return dsa(x)
    if name == "csa":
        return csa(x)
    if name == "mlp":
        return mlp(x)
    if name == "experts":
        return experts(x, features)
    return mixers.mamba(x) if name == "mamba" else mixers.delta(x)


def linear_times(ledger: Ledger, x: SimpleNamespace, block: BlockWork, features: Collection[str]) -> Times:
    """Forward, data-gradient and weight-gradient time of each linear layer, and its quantisation.

    With frozen weights (task lora) weight gradients vanish; the adapters' GEMMs are counted apart.
    """
    times: Times = {}
    for layer in block.linears:
        p = f"{block.name}_{layer.name}"
        weights, columns = quantisation.weight_cast_bytes(x, layer)
        in_recipe = (1 - x.bf16_share) if layer.quantised else 0
        column = layer.split == "column"
        plain = gathered_plain(x, layer) if column else 0
        inputs = quantisation.operand_traffic(x, x.quantise_input_bytes, column, plain, layer.normed)
        grads = quantisation.operand_traffic(x, x.quantise_grad_bytes, layer.split == "row", x.cast_anew)
        cast_forward = inputs * quantisation.quantise_input_elements(layer) + weights
        cast_backward = grads * quantisation.quantise_grad_elements(layer) + columns
        mixed = "ends" in features
        formulas: dict[str, tuple[Amount, Callable[..., Amount]]] = {
            "forward": (linear_gemm(x, layer, "forward", mixed), kernels.gemm_time),
            "dgrad": (linear_gemm(x, layer, "dgrad", mixed), kernels.gemm_time),
            "wgrad": (x.trained * linear_gemm(x, layer, "wgrad", mixed), kernels.gemm_time),
            "quantise_forward": (
                in_recipe
                * (
                    tuned_stream(x, cast_forward, x.elementwise_fraction)
                    + joint_scale_time(x, layer, "column")
                ),
                quantisation.quantise_input_elements,
            ),
            "quantise_backward": (
                in_recipe
                * (
                    tuned_stream(x, cast_backward, x.elementwise_fraction) + joint_scale_time(x, layer, "row")
                ),
                quantisation.quantise_grad_elements,
            ),
        }
        times[layer.name] = {
            kind: ledger.define(f"{p}_{kind}", expr, "s", formula)
            for kind, (expr, formula) in formulas.items()
        }
    return times


def adapter_times(ledger: Ledger, x: SimpleNamespace, block: BlockWork) -> Parts:
    """GEMMs of a block's low-rank adapters, in the model's format: K x r and r x N beside each adapted layer.

    Backward has data and weight gradients of both. The result is scaled (2 e an element) and added to the layer's own
    output (3 e); backward the gradient is scaled and the input's gradient added to the layer's.
    Source: E. Hu et al., arXiv:2106.09685; `costmodel.work.adapters`.
    """
    forward: Amount = 0
    backward: Amount = 0
    for layer in block.linears:
        if layer.adapter:
            one = adapter_of(x, layer)
            for rows, columns, inner in (one.down, one.up):
                forward += one.on * model_gemm(x, rows, columns, inner)
                backward += one.on * model_gemm(x, rows, inner, columns)
                backward += one.on * model_gemm(x, columns, inner, rows, accumulate=True)
            rows, _, inner = one.down
            moved = (5 * one.out, 2 * one.out + 3 * rows * inner)
            added = [one.on * stream(x, x.activation_bytes * size, x.elementwise_fraction) for size in moved]
            forward += added[0]
            backward += added[1]
    return {
        "forward": ledger.define(f"{block.name}_adapters_forward", forward, "s", adapter_times),
        "backward": ledger.define(f"{block.name}_adapters_backward", backward, "s", adapter_times),
    }


# Attention whose queries meet picked tokens alone.
SPARSE = ("csa", "dsa")


def _core_sizes(
    x: SimpleNamespace, block: str
) -> tuple[Amount, Amount, Amount, Callable[..., Amount], Amount]:
    """Of an attention core: mean head dimension of queries and values [1], keys a query meets [1], FLOPs forward and
    their formula [FLOP], backward over forward [1]."""
    if block == "csa":
        return x.d, attended_entries(x), csa_flops_forward(x), csa_flops_forward, attention.CORE_BACKWARD
    if block == "dsa":
        sizes = sparse_width(x), picked_tokens(x), dsa_flops_forward(x)
        return *sizes, dsa_flops_forward, dsa_backward_factor(x)
    width = core_width(x) if block == "mla" else attention.core_width(x)
    backward = core_backward_factor(x) if block == "mla" else attention.core_backward_factor(x)
    flops = attention.core_flops_forward(x, width)
    return width, attention.attended_keys(x), flops, attention.core_flops_forward, backward


def attention_times(ledger: Ledger, x: SimpleNamespace, block: str, label: str) -> Parts:
    """Forward and backward time of the attention core, fused or not (sparse ones always are)."""
    width, keys, amount, formula, backward = _core_sizes(x, block)
    sparse = block in SPARSE
    flops = ledger.define(f"{label}_flops", amount, "FLOP", formula)
    # A ring step sees s / cp queries at a time; an all-to-all group sees the whole sequence.
    ring = ledger.define(
        f"{label}_cp_ring",
        x.cp / x.cp_a2a_size * (1 - x.cp_all_gather) + x.cp_all_gather,
        "1",
        "steps of the context-parallel ring",
    )
    last = attention.last_rank_work(x)
    passes = {"forward": 1.0, "backward": backward}
    # Heads are shared between tensor-parallel ranks, queries (or heads) between context-parallel ones.
    waves = ledger.define(
        f"{label}_query_waves",
        kernels.query_waves(x.b * x.s / x.cp, x.a / x.tp, x.gpu_sms),
        "1",
        kernels.query_waves,
    )
    square = attention.unfused_core_flops(x, width) / (
        x.gpu_peak * model_gemm_fraction(x) * x.unfused_gemm_fraction
    )
    scores = {
        "forward": attention.unfused_score_bytes_forward(x),
        "backward": attention.unfused_score_bytes_backward(x),
    }
    times: Parts = {}
    for name, factor in passes.items():
        fused = kernels.attention_time(
            factor * flops,
            2 * keys / ring,
            width,
            peak=x.gpu_peak * (1 + x.fp8_attention * (getattr(x, f"attention_{name}_fp8_gain") - 1)),
            fraction=getattr(x, f"attention_{name}_fraction") * x.attention_scale * x.release_scale,
            half_seq=half_length(x, name),
            half_dim=getattr(x, f"attention_{name}_half_dim"),
            # Kernels of sparse attention are made for their one wide head.
            wide=0 if sparse else getattr(x, f"attention_{name}_wide"),
            launch=x.attention_launch * ring,
            waves=waves,
            tail=getattr(x, f"attention_{name}_tail"),
        )
        unfused = (1 if name == "forward" else 2) * square + stream(x, scores[name], x.elementwise_fraction)
        times[name] = ledger.define(
            f"{label}_core_{name}",
            fused * last if sparse else (1 - x.unfused) * fused * last + x.unfused * unfused,
            "s",
            kernels.attention_time,
        )
    return times


def scan_times(ledger: Ledger, x: SimpleNamespace, block: str) -> Parts:
    """Forward and backward time of a recurrent scan; backward recomputes and differentiates: 2.5 times."""
    formula = mixers.mamba_scan_flops_forward if block == "mamba" else mixers.delta_scan_flops_forward
    flops = ledger.define(f"{block}_flops", formula(x), "FLOP", formula)
    rate = x.sm_cycles * x.scan_rate * x.release_scale
    if block == "mamba":
        rate /= mixers.wide_state(x)
    return {
        name: ledger.define(f"{block}_core_{name}", factor * flops / rate, "s", formula)
        for name, factor in {"forward": 1.0, "backward": 2.5}.items()
    }


def block_times(
    ledger: Ledger, x: SimpleNamespace, name: str, features: Collection[str], label: str = ""
) -> BlockTimes:
    """All of one block on one rank and one micro-batch, written under `label` (its name by default)."""
    x = of_block(x, name)
    work = replace(block_work(x, name, features), name=label or name)
    gemms = linear_times(ledger, x, work, features)
    small = stream_times(ledger, x, work)
    forward, backward = _dense_parts(x, work, gemms, small)
    core = _core_times(ledger, x, name, work)
    beside: list[Times] = [core]
    if any(layer.split == "row" for layer in work.linears):
        beside.append({"tensor_parallel": tensor_parallel_times(ledger, x, work, gemms)})
    if "lora" in features and any(layer.adapter for layer in work.linears):
        adapters = adapter_times(ledger, x, work)
        beside.append({"adapters": adapters, "tensor_parallel": adapter_messages(ledger, x, work)})
    for times in beside:
        for kind, passes in times.items():
            forward[kind] = forward.get(kind, 0) + passes["forward"]
            backward[kind] = backward.get(kind, 0) + passes["backward"]
    again = recompute_time(
        ledger, x, name, work.name, gemms, small, sum(passes["forward"] for passes in core.values()), forward
    )
    return BlockTimes(
        work,
        forward,
        backward,
        again,
        block_kernels(ledger, x, work, "lora" in features),
        shared=_shared(
            x, gemms, small, [times["tensor_parallel"] for times in beside if "tensor_parallel" in times]
        ),
        wait=x.expert_wait * counts_vary(x) if name == "experts" else 0,
        inner=inner_compute(x, gemms, small, _grouped(work)) if name == "experts" else None,
    )


def _grouped(work: BlockWork) -> set[str]:
    return {layer.name for layer in work.linears if layer.grouped}


def _dense_parts(x: SimpleNamespace, work: BlockWork, gemms: Times, small: Times) -> tuple[Parts, Parts]:
    """Matrix products, their quantisation and element-wise kernels by kind, forward and backward. [s]"""
    grouped = _grouped(work)
    plain = [times for layer, times in gemms.items() if layer not in grouped]
    experts_own = [gemms[layer] for layer in sorted(grouped)]
    forward: Parts = {
        "linear": sum(times["forward"] for times in plain),
        "quantise": sum(times["quantise_forward"] for times in gemms.values()),
        "elementwise": sum(times["forward"] for times in small.values()),
    }
    apart = added_apart(x, x.trained * (work.weights(True) + work.weights(False)))
    backward: Parts = {
        "linear_dgrad": sum(times["dgrad"] for times in plain),
        "linear_wgrad": sum(times["wgrad"] for times in plain),
        "quantise": sum(times["quantise_backward"] for times in gemms.values()),
        "elementwise": sum(times["backward"] for times in small.values()) + apart,
    }
    if experts_own:
        forward["experts"] = sum(times["forward"] for times in experts_own)
        backward["experts"] = sum(times["dgrad"] + times["wgrad"] for times in experts_own)
    return forward, backward


def _core_times(ledger: Ledger, x: SimpleNamespace, name: str, work: BlockWork) -> Times:
    """What mixes tokens, attention core or scan, and what context parallelism exchanges and merges for it. [s]"""
    label = work.name
    if name in ATTENTION_BLOCKS:
        core = attention_times(ledger, x, name, label)
        columns = context_columns(x, name)
        return {
            "attention": core,
            "context_parallel": context_parallel_times(ledger, x, label, core, columns),
            "elementwise": ring_merges(ledger, x, label, columns),
        }
    if name in ("mamba", "delta"):
        return {
            "scan": scan_times(ledger, x, name),
            "context_parallel": mixer_exchange_times(ledger, x, label, mixer_exchange_bytes(x, work)),
        }
    return {}


def _shared(x: SimpleNamespace, gemms: Times, small: Times, messages: Sequence[Parts]) -> Amount:
    """All of the shared experts, which run on one stream: products, casts, activation, tensor-parallel messages. [s]

    Of an expert block only they have such messages; tokens that travel on the same links leave those no room.
    Source: Megatron-Core 0.16.1, shared_experts.py.
    """
    own = [times for kinds in (gemms, small) for name, times in kinds.items() if name.startswith("shared")]
    leaves = is_above_one(x.ep / communication.ranks_in_domain(x, x.ep, x.etp, x.ep_straddle))
    return sum(sum(times.values()) for times in own) + leaves * sum(sum(each.values()) for each in messages)


def block_tokens(ledger: Ledger, x: SimpleNamespace) -> Amount:
    """Tokens of one micro-batch on one rank, as an entry of the ledger. [1]"""
    return ledger.define("tokens", tokens(x), "1", tokens)
