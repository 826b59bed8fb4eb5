"""The parameter tensors of one rank one by one, in the order of Megatron-Core's modules, and its buffers.

Sums of parameters stand in `costmodel.work`; single tensors are needed where Megatron-Core aligns and cuts them:
the flat buffers of gradients and parameters, their buckets, and the shards of the distributed optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.symbols import HEADED_BLOCKS, of_block
from costmodel.work import parameters
from costmodel.work.block import BlockWork
from costmodel.work.linear import Linear, padded_vocabulary
from costmodel.work.written_norms import own_vectors

# Elements to which tensors in a sharded buffer are aligned, and of which the end of a bucket is a multiple, beside
# the ranks that share it. Source: Megatron-Core 0.16.1, param_and_grad_buffer.py.
TENSOR_ALIGNMENT, BUCKET_MULTIPLE = 64, 128
Layers = dict[str, Linear]


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor. elements: on this rank [1]; expert: of a routed expert, the number'th on this rank.

    reduced: held whole by every tensor-parallel rank, each of which sees its own tokens under sequence parallelism,
    so that gradients are summed over tp. head_norm: a norm of single heads, reduced with and without it.
    shared: an embedding that another pipeline stage holds too.
    """

    name: str
    elements: int
    expert: bool = False
    reduced: bool = False
    head_norm: bool = False
    shared: bool = False
    number: int = 0


def block_tensors(x: SimpleNamespace, work: BlockWork, *, plain: bool = False) -> list[Tensor]:
    """Trained tensors of a block, whose sizes sum to its weights and vectors, in the order of Transformer Engine's
    modules, where most column-parallel layers hold the norm in front of them.

    plain: in that of Megatron-Core's own layers, where norms stand apart before a block and experts one by one.
    The balancing bias of a router is no parameter: it has no gradient and no optimizer state.
    """
    layers = {layer.name: layer for layer in work.linears}
    found = _OF_BLOCK[work.name](of_block(x, work.name), layers, _norm(x, "norm", x.h))
    beside = own_vectors(of_block(x, work.name), work.name) if work.name in _NORMED else {}
    found += [Tensor(f"{name}.weight", int(size), reduced=True) for name, size in beside.items() if size]
    return _plain_order(found) if plain else found


def _plain_order(tensors: list[Tensor]) -> list[Tensor]:
    """Norm first; each expert's layers together, where grouped GEMMs have all weights of a layer together.

    Source: Megatron-Core 0.16.1, transformer_layer.py (input_layernorm, pre_mlp_layernorm) and experts.py,
    SequentialMLP.
    """
    norms = [each for each in tensors if each.name.startswith("norm.")]
    rest = [each for each in tensors if not each.name.startswith("norm.")]
    experts = [each for each in rest if each.expert]
    if experts:
        first = rest.index(experts[0])
        others = [each for each in rest if not each.expert]
        # A stable sort: within an expert fc1 stays before fc2, weights before biases.
        rest = [*others[:first], *sorted(experts, key=lambda each: each.number), *others[first:]]
    return norms + rest


def _norm(x: SimpleNamespace, name: str, width: Amount) -> list[Tensor]:
    vectors = ("weight", "bias")[: int(x.norm_vectors)]
    return [Tensor(f"{name}.{vector}", int(width), reduced=True) for vector in vectors]


def _linear(layer: Linear, biased: Amount = 0, *, replicated: bool = False) -> list[Tensor]:
    """A layer's weight and bias; biases behind a split inner dimension are held whole by every rank."""
    found = [Tensor(f"{layer.name}.weight", int(layer.columns * layer.inner), reduced=replicated)]
    if biased:
        whole = replicated or layer.split == "row"
        found.append(Tensor(f"{layer.name}.bias", int(layer.columns), reduced=whole))
    return found


def _attention(x: SimpleNamespace, layers: Layers, norm: list[Tensor]) -> list[Tensor]:
    found = [Tensor("sinks", int(x.a / x.tp))] if x.sinks else []
    found += _linear(layers["proj"], x.biases) + norm + _linear(layers["qkv"], x.qkv_biases)
    for name in ("q_norm", "k_norm") if x.qk_norms else ():
        found.append(Tensor(f"{name}.weight", int(x.d), reduced=True, head_norm=True))
    return found


def _mla(x: SimpleNamespace, layers: Layers, norm: list[Tensor]) -> list[Tensor]:
    found = norm + _linear(layers["proj"])
    if "q_down" in layers:
        found += _linear(layers["q_down"], replicated=True)
    for name in ("q_up", "kv_down", "kv_up"):
        found += _linear(layers[name], replicated=layers[name].split == "none")
    latents = (("q_norm", x.q_lora), ("kv_norm", x.kv_lora))
    normed = [(name, width) for name, width in latents if width and x.qk_norms]
    return found + [tensor for name, width in normed for tensor in _norm(x, name, width)]


def _mlp(x: SimpleNamespace, layers: Layers, norm: list[Tensor]) -> list[Tensor]:
    return norm + _linear(layers["fc1"], x.biases) + _linear(layers["fc2"], x.biases)


def _experts(x: SimpleNamespace, layers: Layers, norm: list[Tensor]) -> list[Tensor]:
    found = norm + _linear(layers["router"], x.biases, replicated=True)
    for name in ("latent_down", "latent_up"):
        found += _linear(layers[name], replicated=True) if name in layers else []
    for name in ("fc1", "fc2"):
        layer = layers[name]
        for kind, elements in (("weight", layer.columns * layer.inner), ("bias", x.biases * layer.columns)):
            each = [
                Tensor(f"{name}.{kind}{one}", int(elements), expert=True, number=one)
                for one in range(int(layer.groups))
            ]
            found += each if elements else []
    if "shared_fc1" in layers:
        if x.shared_gate:
            found.append(Tensor("shared_gate.weight", int(x.h), reduced=True))
        found += _linear(layers["shared_fc1"]) + _linear(layers["shared_fc2"])
    return found


def _convolution(x: SimpleNamespace, width: int, biased: bool) -> list[Tensor]:
    weight = Tensor("conv.weight", int(x.conv * width))
    return [weight, Tensor("conv.bias", width)] if biased else [weight]


def _mamba(x: SimpleNamespace, layers: Layers, norm: list[Tensor]) -> list[Tensor]:
    heads, inner = int(x.mamba_heads / x.tp), int(layers["out_proj"].inner)
    convolved = int(layers["in_proj"].columns) - inner - heads
    vectors = [Tensor(name, heads) for name in ("dt_bias", "A_log", "D")]
    into = [*norm, *_linear(layers["in_proj"]), *_convolution(x, convolved, True)]
    return [*vectors, *into, Tensor("gated_norm.weight", inner), *_linear(layers["out_proj"])]


def _delta(x: SimpleNamespace, layers: Layers, norm: list[Tensor]) -> list[Tensor]:
    heads, inner = int(x.delta_value_heads / x.tp), int(layers["out_proj"].inner)
    convolved = int(layers["in_proj"].columns) - inner - 2 * heads
    vectors = [Tensor(name, heads) for name in ("dt_bias", "A_log")]
    into = [*norm, *_linear(layers["in_proj"]), *_convolution(x, convolved, False)]
    gated = Tensor("gated_norm.weight", int(x.delta_value_dim), reduced=True)
    return [*vectors, *into, gated, *_linear(layers["out_proj"])]


_OF_BLOCK = {
    **dict.fromkeys(HEADED_BLOCKS, _attention),
    "mla": _mla,
    "mlp": _mlp,
    "experts": _experts,
    "mamba": _mamba,
    "delta": _delta,
}


# Blocks that may have norms beside the one in front.
_NORMED = (*HEADED_BLOCKS, "mlp", "experts")


def embedding_tensors(x: SimpleNamespace, *, shared: bool) -> list[Tensor]:
    """Word embedding and learned positions; shared: another stage holds the same word embedding."""
    words = Tensor("word_embedding", int(padded_vocabulary(x) * x.h / x.tp), shared=shared)
    return [words] + ([Tensor("position_embedding", int(x.positions * x.h))] if x.positions else [])


def output_tensors(x: SimpleNamespace) -> list[Tensor]:
    """Final norm, and the output layer where it is one of its own or a copy of the first stage's."""
    layer = int(parameters.output_parameters(x) - x.norm_vectors * x.h)
    found = _norm(x, "final_norm", x.h)
    return found + ([Tensor("output", layer, shared=bool(x.tied))] if layer else [])


def mtp_tensors(x: SimpleNamespace, layer: Sequence[Tensor]) -> list[Tensor]:
    """An MTP head: two norms, the projection from 2 h to h, its layer, and a norm behind that.

    Source: Megatron-Core 0.16.1, multi_token_prediction.py, MultiTokenPredictionLayer.
    """
    into = [one for name in ("embedding_norm", "hidden_norm") for one in _norm(x, name, x.h)]
    return [*into, Tensor("mtp_proj", int(2 * x.h * x.h / x.tp)), *layer, *_norm(x, "final_norm", x.h)]


@dataclass(frozen=True)
class Buffer:
    """A flat buffer of gradients (and with a distributed optimizer of parameters), as buckets.

    buckets: elements of each, padding included [1]. in_shard: elements of its tensors whose optimizer state the rank
    holds [1].
    """

    buckets: tuple[int, ...]
    in_shard: int

    @property
    def elements(self) -> int:
        """With padding. [1]"""
        return sum(self.buckets)


def make_buffer(
    tensors: Sequence[Tensor], *, sharded: bool, bucket_size: float, ranks: int, rank: int = 0
) -> Buffer:
    """The buffer that Megatron-Core lays out for some tensors, last ones first.

    sharded: distributed optimizer: tensors start at multiples of 64 elements, and buckets end at multiples of 128 and
    of the ranks, each of which holds an equal part of every bucket; a shared embedding has a bucket of its own.
    bucket_size: elements from which on a bucket is full, 0 for one bucket [1].
    Source: Megatron-Core 0.16.1, param_and_grad_buffer.py and distrib_optimizer.py.
    """
    spans: list[list[tuple[int, int]]] = [[]]
    ends: list[int] = []
    multiple = math.lcm(ranks, BUCKET_MULTIPLE) if sharded else 1
    start = opened = 0

    def close(end: int) -> int:
        ends.append(-(-end // multiple) * multiple)
        spans.append([])
        return ends[-1]

    for tensor in reversed(tensors):
        apart = tensor.shared and sharded
        start = -(-start // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT if sharded else start
        if apart and spans[-1]:
            start = opened = close(start)
        end = start + tensor.elements
        spans[-1].append((start, end))
        if apart or (bucket_size and end - opened >= bucket_size):
            end = opened = close(end)
        start = end
    if spans[-1]:
        close(start)
    begins = [0, *ends[:-1]]
    buckets = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    if not sharded:
        return Buffer(buckets, in_shard=sum(tensor.elements for tensor in tensors))
    in_shard = 0
    for begin, end, inside in zip(begins, ends, spans, strict=False):
        part = (end - begin) // ranks
        low, high = begin + rank * part, begin + (rank + 1) * part
        in_shard += sum(max(0, min(high, last) - max(low, first)) for first, last in inside)
    return Buffer(buckets, in_shard)
