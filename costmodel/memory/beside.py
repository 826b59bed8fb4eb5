"""What a rank holds beside states and activations: stand-ins, buffers, graph pools, the allocator's losses."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.layer import Blocks
from costmodel.stage_parameters import decoder_count
from costmodel.symbols import ATTENTION_BLOCKS, in_stage, symbol
from costmodel.vocabulary import deferred
from costmodel.work import activations, dispatched
from costmodel.work.activations import hidden_states
from costmodel.work.block import BlockWork
from costmodel.work.linear import padded_vocabulary, tokens
from costmodel.work.messages import context_columns

# NVLink SHARP keeps multicast buffers for each communicator. Source: NeMo performance guide, NCCL_NVLS_ENABLE.
NVLS_BYTES = 0.75 * 2**30


def stand_in_bytes(x: SimpleNamespace, blocks: Blocks, stage: str, has_loss: Amount) -> Amount:
    """Tensors that stand for weight gradients which a kernel has added to their buffer already. [byte]

    One for each shape of a weight, in the weights' format, kept for good: autograd wants a gradient to call its hooks
    with. Of the kinds of blocks on a stage, its experts alike, and of the output layer; kinds are taken to differ in
    shape. None where weight gradients are added by kernels of their own. Source: Megatron-Core 0.14 to 0.19,
    tensor_parallel/layers.py, get_dummy_wgrad; Transformer Engine 2.3 to 2.20, module/base.py, _dummy_wgrads.
    """
    shapes: Amount = has_loss * padded_vocabulary(x) * x.h / x.tp
    for name, times in blocks.items():
        one = sum(layer.columns * layer.inner for layer in times.work.linears)
        shapes += minimum(in_stage(x, name, stage), 1) * one
    return x.stand_ins * (1 - x.accumulate_split) * x.trained * x.weight_bytes * shapes


def whole_parameters(x: SimpleNamespace, work: BlockWork) -> Amount:
    """Parameters of a block that every tensor-parallel rank holds whole: norms, routers, latents' down-projections. [1]

    Sequence parallelism has their gradients summed. Source: as `flat_gradient_bytes`.
    """
    linears = (layer for layer in work.linears if layer.split == "none" and not layer.grouped)
    return sum((layer.columns * layer.inner for layer in linears), start=0) + x.norm_vectors * x.h


def dispatcher_bytes(x: SimpleNamespace, stage: str) -> Amount:
    """What a stage's dispatchers hold, whatever is in flight. [byte]

    Maps of routing of its recomputed expert blocks, one set a block, and one buffer of gathered tokens.
    """
    buffer = minimum(in_stage(x, "experts", stage), 1) * dispatched.gathered_tokens(x)
    again = x.recompute_layers * decoder_count(x, "experts", stage)
    again += (1 - x.recompute_layers) * x.recompute_moe * in_stage(x, "experts", stage)
    return again * dispatched.held_maps(x) + buffer


def gather_buffer_bytes(x: SimpleNamespace, blocks: Blocks, stage: str) -> Amount:
    """The output layer's buffer of gathered tokens, beyond that of dispatchers, which serves it too. [byte]"""
    if "experts" not in blocks:
        return activations.gather_buffer(x)
    there = minimum(in_stage(x, "experts", stage), 1)
    return maximum(activations.gather_buffer(x) - there * dispatched.gathered_tokens(x), 0)


def deferred_bytes(x: SimpleNamespace, features: Collection[str]) -> Amount:
    """What deferred weight gradients of the output layer keep: its input and output gradient, by micro-batch. [byte]

    Of one the gradient is written over the logits. Source: Megatron-Core 0.16.1, tensor_parallel/layers.py,
    grad_output_buffer and embedding_activation_buffer.
    """
    gradients = tokens(x) * padded_vocabulary(x) / x.tp
    each = x.activation_bytes * gradients + hidden_states(x)
    return x.trained * maximum(0, deferred(x, features) - 1) * each


def flat_gradient_bytes(x: SimpleNamespace, blocks: Blocks, stage: str, held: Amount) -> Amount:
    """Gradients that tensor-parallel ranks sum at a step's end, in one flat copy, beyond the activations gone by then.

    held: activations, logits and workspace of a pass. [byte] Source: Megatron-Core 0.12 to 0.19.2,
    finalize_model_grads.py, _allreduce_non_tensor_model_parallel_grads.
    """
    whole = sum(in_stage(x, name, stage) * symbol(f"{name}_whole_parameters") for name in blocks)
    copied = x.megatron_core * x.sp * (1 - x.fsdp) * x.trained * x.grad_bytes
    return maximum(copied * whole - held, 0)


def ring_bytes(x: SimpleNamespace, blocks: Blocks) -> Amount:
    """What a context ring has at the end of one forward core, beyond this rank's own: the last rank's. [byte]

    Keys and values of every step go into a buffer each, and the output of every step is kept until all are scaled and
    summed. The rank with the last tokens has whole outputs at each. Source: Transformer Engine 2.12,
    dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P.forward, p2p_comm_buffers and out_per_step.
    """
    steps = (1 - x.cp_all_gather) * (x.cp / x.cp_a2a_size - 1)
    most: Amount = 0
    for name in (kind for kind in ATTENTION_BLOCKS if kind in blocks):
        columns = context_columns(x, name)
        most = maximum(most, steps * x.activation_bytes * tokens(x) * (columns.keys + columns.output))
    return most


def graph_bytes(x: SimpleNamespace, pooled: Amount, static: Amount) -> Amount:
    """Private memory pools of CUDA graphs: buffers they hold fast between replays. [byte]

    pooled: logits and workspace in proportion to the captured blocks, and what these save for the micro-batches in
    flight beyond the first. Each micro-batch in flight has graphs of its own, which cannot share static buffers; one
    micro-batch alone takes from the pool what it would take without graphs, beside static: input, output gradient
    and input gradient of each captured layer. Sources: Transformer Engine, make_graphed_callables; Megatron-Bridge,
    CUDA graph notes: one pair with PP 4, VPP 20 from 85.89 to 119.80 GiB, 2 to 5 GB without pipeline stages, over
    10 GB with. A whole step in one graph has no tensors to hand from graph to graph: its pool takes the place of the
    allocator's cache, which is emptied before the capture. Source: Megatron-Core 0.16.1, full_cuda_graph.py; PyTorch
    2.13, cuda/graphs.py, graph.__enter__.
    """
    return (x.graph - x.graph_step) * (x.graph_pool * pooled + static)


def fragmentation_bytes(x: SimpleNamespace, held: Amount, elsewhere: Amount = 0) -> Amount:
    """What the allocator loses. [byte]

    Expandable segments, which can be mapped anew, lose half; without them 15 % more is lost. With stream records 5 %
    more, as with a second stream that computes (overlapped expert dispatch), whose tensors are not free before the
    first has passed them. elsewhere: see `stream_pool_bytes` [byte]. Sources: Megatron-Bridge, memory tuning notes (a
    run of 58.8 GiB allocated fails on 80 GB without expandable segments); SimuMax's runs without them reserve 20 to
    30 % of the activations more.
    """
    records = maximum(x.stream_records, x.ep_overlap)
    lost = held * (x.fragmentation * (1 - 0.5 * x.segments) + 0.15 * (1 - x.segments) + 0.05 * records)
    return lost + elsewhere


def stream_pool_bytes(x: SimpleNamespace, layer_weights: Amount, tables: Amount) -> Amount:
    """What FSDP 2's gathers hold in the pool of a stream of their own, where no other tensor finds place. [byte]

    A gather writes into a buffer from which parameters are copied out: that of two layers, one prefetched, or of the
    vocabulary's tables [1]. Source: PyTorch 2.13, _fully_shard/_fsdp_collectives.py, foreach_all_gather.
    """
    return x.params_sharded * x.fsdp2 * x.weight_bytes * maximum(2 * layer_weights, tables)


def handed_bytes(x: SimpleNamespace, in_flight: Amount, stage: str) -> Amount:
    """What PyTorch's pipelines hold of the hidden states that stages hand on, beyond what layers keep of them. [byte]

    A buffer for the input and one for the output's gradient of each micro-batch of a step and chunk, and each output
    until its backward pass, which Megatron-Core frees when it is sent. in_flight: micro-batches of the stage, whose
    inputs its first layers keep. Source: PyTorch 2.13, distributed/pipelining/stage.py, _prepare_forward_infra,
    _create_grad_recv_info and fwd_cache.
    """
    received = 0 if stage == "first" else x.m - in_flight
    sent = 0 if stage == "last" else x.m + in_flight
    several = x.dtensor * is_more_than_one(x.pp)
    return several * x.vpp * maximum(received + sent, 0) * hidden_states(x)


def logits_hole_bytes(x: SimpleNamespace, has_loss: Amount) -> Amount:
    """The place of 16-bit logits in the allocator's pool, where PyTorch's loss is not compiled. [byte]

    They are freed before the backward pass, whose tensors of as many elements in FP32 do not fit there. Of frameworks
    of PyTorch alone: XLA has a pool of its own, and Megatron-Core's loss works in place. Source: torchtitan 0.1.0,
    train.py (`del pred`, then loss.backward()); PyTorch, CUDACachingAllocator.
    """
    eager = maximum(maximum(x.fsdp1, x.fsdp2), x.dtensor) * (1 - x.megatron_core) * (1 - x.fused_loss)
    return has_loss * eager * x.activation_bytes * tokens(x) * padded_vocabulary(x) / x.tp


def context_bytes(x: SimpleNamespace) -> Amount:
    """What is taken of the device outside the allocator: CUDA context and libraries, NCCL's buffers. [byte]

    x.context_bytes is that of a rank with four communicators (tensor, pipeline, data, expert parallel); each takes
    about as much as context and libraries do, for its channels (16 to 32 of them) have buffers of 4 MiB and more to
    each neighbour. Experts that are replicated have a fifth. NVLink SHARP takes multicast buffers beside them.
    Source: NCCL environment variables, NCCL_BUFFSIZE; NeMo performance guide.
    """
    sizes = (x.tp, x.pp, x.dp * x.cp, x.ep)
    groups = sum(is_more_than_one(size) for size in sizes) + is_more_than_one(x.ep) * is_more_than_one(x.edp)
    return x.context_bytes * (1 + groups) / (1 + len(sizes)) + NVLS_BYTES * x.nvls * x.switch_reduces
