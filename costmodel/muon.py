"""Muon: weights are updated by orthogonalised momentum, matrix by matrix; embeddings, norms and biases by Adam.

As Megatron-Core runs it: a distributed Muon ("layer-wise") gives every rank that holds the same parameters some whole
tensors to update. Gradients are all-reduced for that and new parameters gathered in the model's own format. Under
tensor parallelism each rank orthogonalises its own part of a matrix (mode "blockwise", the default). Megatron-LM has
from 0.18 on a layout of whole matrices too, which scatters gradients but pads each bucket to ranks x its largest
matrix: not modelled, what we export switches it off.
Sources: K. Jordan, Muon, 2024; J. Liu et al., arXiv:2502.16982; Megatron-Core 0.16.1 to 0.19.2, optimizer,
layer_wise_optimizer.py; emerging_optimizers 0.3.0, muon_utils.py and orthogonalized_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, ceiling, is_more_than_one, maximum, minimum
from costmodel.host_waits import kernel_time
from costmodel.layer import Blocks
from costmodel.rates import model_gemm, stream
from costmodel.symbols import HEADED_BLOCKS, of_block
from costmodel.term import Ledger
from costmodel.work.block import BlockWork
from costmodel.work.linear import Linear, kv_heads_per_rank

# Newton-Schulz iterations on a matrix, Megatron-Core's muon_num_ns_steps, with three products each; two of these add to
# a matrix, which PyTorch's addmm copies into the result before (ATen, cuda/Blas.cpp, addmm_out_cuda_impl; from memory).
STEPS, PRODUCTS, COPIES = 5, 3, 2
# Kernels on a matrix beside the products, one after the other in PyTorch: weight decay, momentum and Nesterov's look
# ahead; norm, its bound and the division by it; to 16 bits and back; two scalings; the update and the copy of it.
KERNELS = 12
# Adam's second moment, which Muon does without, in FP32. [byte]
SECOND_MOMENT = 4


@dataclass(frozen=True)
class Matrix:
    """What is orthogonalised by itself on one rank: rows x columns; count: equal ones in a tensor. [1]"""

    rows: Amount
    columns: Amount
    count: Amount = 1


@dataclass(frozen=True)
class Weight:
    """A tensor that is dealt out whole: its layer, its matrices; count: equal ones in a block. [1]"""

    name: str
    matrices: tuple[Matrix, ...]
    count: Amount = 1

    @property
    def elements(self) -> Amount:
        """Elements of one such tensor on one rank. [1]"""
        return sum(each.rows * each.columns * each.count for each in self.matrices)


@dataclass(frozen=True)
class Held:
    """Elements of a stage on one rank, and those of its largest tensor, which one rank keeps whole. [1]"""

    elements: Amount
    largest: Amount


def weights_of(x: SimpleNamespace, work: BlockWork, *, grouped: bool) -> Iterator[Weight]:
    """Tensors of a block that Muon updates: those of the experts, or the others.

    Queries, keys and values of one projection are one tensor and orthogonalised apart (muon_split_qkv); gate and input
    of a gated MLP are one matrix, each expert's are its own. Source: Megatron-Core 0.19.2, emerging_optimizers.py.
    """
    for layer in work.linears:
        if layer.grouped == grouped:
            split = work.name in HEADED_BLOCKS and layer.name == "qkv"
            plain = (Matrix(layer.columns, layer.inner),)
            found = _query_key_value(of_block(x, work.name), layer) if split else plain
            yield Weight(layer.name, found, layer.groups)


def _query_key_value(x: SimpleNamespace, layer: Linear) -> tuple[Matrix, ...]:
    keys, values = (kv_heads_per_rank(x) * width for width in (x.d, x.d_v))
    queries = x.a / x.tp * x.d
    return (
        Matrix(queries, layer.inner, 1 + x.output_gate),
        Matrix(keys, layer.inner),
        Matrix(values, layer.inner),
    )


def newton_schulz_flops(rows: Amount, columns: Amount) -> Amount:
    """FLOPs of five Newton-Schulz iterations on a matrix, s the shorter and l the longer side. [FLOP]

    Each takes X X^T (2 s^2 l), its square (2 s^3) and that times X (2 s^2 l). Source: emerging_optimizers,
    newton_schulz_step, which does not use that the first two are symmetric.
    """
    short, long = minimum(rows, columns), maximum(rows, columns)
    return STEPS * (4 * short**2 * long + 2 * short**3)


def newton_schulz_time(x: SimpleNamespace, rows: Amount, columns: Amount) -> Amount:
    """Seconds of the products of `newton_schulz_flops`, in 16 bits (muon_fp32_matmul_prec "medium"). [s]"""
    short, long = minimum(rows, columns), maximum(rows, columns)
    return STEPS * (
        model_gemm(x, short, short, long)
        + model_gemm(x, short, short, short)
        + model_gemm(x, short, long, short)
    )


def streamed_bytes(x: SimpleNamespace) -> Amount:
    """HBM bytes of an element of a matrix beside the products, kernel by kernel in FP32. [byte]

    Gradients to FP32 where they are not, norm (4) and clipping (8); weight decay (8), momentum (12), Nesterov's look
    ahead (12); norm of the matrix (4) and division (8); to 16 bits (6) and back (6); two scalings (16); update (12);
    the parameter written from its master copy. Nesterov is Megatron-Bridge's default, not Megatron-LM's. Source: as
    `costmodel.muon`.
    """
    widened = 3 * (4 - x.grad_bytes)
    return widened + 4 + 8 + 8 + 12 + 12 + 4 + 8 + 6 + 6 + 16 + 12 + 4 + x.weight_bytes


def copied_bytes(x: SimpleNamespace, matrix: Matrix) -> Amount:
    """HBM bytes of the copies in front of a matrix's products that add: of X X^T and of X, read and written. [byte]"""
    short, long = minimum(matrix.rows, matrix.columns), maximum(matrix.rows, matrix.columns)
    return STEPS * 2 * x.activation_bytes * short * (short + long)


def matrix_time(x: SimpleNamespace, matrix: Matrix) -> Amount:
    """Seconds in which one matrix is updated: its products and streams, or the host that issues them. [s]"""
    moved = streamed_bytes(x) * matrix.rows * matrix.columns + copied_bytes(x, matrix)
    on_device = newton_schulz_time(x, matrix.rows, matrix.columns) + stream(x, moved, x.contiguous_fraction)
    return maximum(on_device, (STEPS * (PRODUCTS + COPIES) + KERNELS) * kernel_time(x))


def weight_time(x: SimpleNamespace, weight: Weight) -> Amount:
    """Seconds in which the matrices of one tensor are updated, one after the other. [s]"""
    return sum(each.count * matrix_time(x, each) for each in weight.matrices)


def muon_share(x: SimpleNamespace, ranks: Amount) -> Amount:
    """Share of the matrices that one of so many ranks updates, and whose state it keeps. [1]"""
    return 1 - x.optimizer_sharded + x.optimizer_sharded / ranks


def slowest_rank(number: Amount, seconds: Amount, largest: Amount, share: Amount) -> Amount:
    """Seconds of the rank with most work, of `number` tensors that take `seconds` together. [s]

    Whole tensors, dealt by size to the first rank up to the last, then back: as many mean ones as a rank may hold, and
    at least the one that takes longest. Source: Megatron-Core 0.19.2, layer_wise_optimizer.py, _shard_params_ping_pong.
    """
    most = ceiling(number * share - 1e-6)  # a whole share stays whole in floating point
    return maximum(most * seconds / maximum(number, 1e-9), largest)


def muon_time(
    ledger: Ledger,
    x: SimpleNamespace,
    blocks: Blocks,
    share: Amount,
    *,
    grouped: bool,
) -> Amount:
    """Seconds in which one rank updates its matrices: those of experts (grouped), or the others. [s]

    share: of them that one rank updates [1].
    """
    number: Amount = 0
    seconds: Amount = 0
    largest: Amount = 0
    kind = "experts" if grouped else "dense"
    for name, times in blocks.items():
        here = getattr(x, f"{name}_pace")
        for weight in weights_of(x, times.work, grouped=grouped):
            one = ledger.define(f"muon_{name}_{weight.name}", weight_time(x, weight), "s", weight_time)
            number += here * weight.count
            seconds += here * weight.count * one
            largest = maximum(largest, minimum(here, 1) * one)
    return ledger.define(f"muon_{kind}", slowest_rank(number, seconds, largest, share), "s", slowest_rank)


def muon_state_bytes(x: SimpleNamespace, matrix: Held, rest: Held, ranks: Amount) -> Amount:
    """Optimizer state of one rank: 8 bytes an element of a matrix, 12 of the rest, which is under Adam. [byte]

    matrix, rest: what `ranks` ranks hold together. The fullest rank has its share of both, in which the largest tensor
    of the one or of the other lies whole. Where parameters are FP32 themselves there is no master copy. Two of the
    largest may meet on one rank (tables of embedding and output, where ranks divide the tensors that way): not counted.
    """
    share = muon_share(x, ranks)
    of_matrix, of_rest = x.state_bytes - SECOND_MOMENT, x.state_bytes
    even = of_matrix * matrix.elements * share + of_rest * rest.elements * share
    more = maximum(
        0,
        of_matrix * (matrix.largest - matrix.elements * share),
        of_rest * (rest.largest - rest.elements * share),
    )
    return even + more


def muon_gather_bytes(x: SimpleNamespace, dense: Amount, experts: Amount, held: Amount) -> Amount:
    """What the gather after a distributed Muon's step needs beyond the activations, which are gone by then. [byte]

    A copy of all parameters that ranks share, in the model's own format: of the dense ones, then of the experts.
    dense, experts: parameters of a stage [1]; held: activations, logits and workspace of a pass [byte]. Overlapped, the
    buffer of the gradients receives them (0.19), or a copy of a bucket at a time (0.17). Source: Megatron-Core 0.17.1
    and 0.19.2, layer_wise_optimizer.py, allgather_params; param_and_grad_buffer.py, start_param_sync.
    """
    alone = x.muon * x.optimizer_sharded * (1 - x.overlap_gather) * is_more_than_one(x.dp * x.cp)
    shared = x.trained * maximum(dense, is_more_than_one(x.edp) * experts)
    return alone * maximum(x.weight_bytes * shared - held, 0)
