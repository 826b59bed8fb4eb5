"""What a rank holds for a moment: of the one layer being computed, or of the embedding's gradient."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum
from costmodel.layer import Blocks, block_work
from costmodel.rates import apart_gradients
from costmodel.symbols import symbol
from costmodel.work import activations, dispatched, linear
from costmodel.work.block import BlockWork
from costmodel.work.experts import probabilities_are_wide

# Mixers whose core is a scan.
SCANS = ("mamba", "delta")


def workspace_bytes(x: SimpleNamespace, layer: Amount, blocks: Blocks, ring: Amount) -> Amount:
    """The one layer being computed: all that full recompute had dropped of it, and what its fullest block has. [byte]

    With full recompute one whole layer's activations and its output exist while it is differentiated (layer: of the
    widest); beside it what the block that needs most holds for a moment (`block_workspace`), or forward what a context
    ring has received (`ring`). They come when the logits are gone: a stage with the loss has the larger of both.
    Where the exchange of one micro-batch's experts runs under another's backward pass, its rows as sent and as
    received, to the experts and back, exist beside that. Source: Megatron-Core, combined_1f1b.py and
    token_dispatcher.py.
    """
    most = ring
    for name in blocks:
        most = maximum(most, symbol(f"{name}_workspace"))
    travelling: Amount = 0
    if "experts" in blocks:
        travelling = 2 * x.activation_bytes * x.he * (dispatched.routed_copies(x) + dispatched.expert_rows(x))
    again = x.recompute_layers * (layer + activations.layer_input(x))
    return again + most + x.ep_overlap * travelling


def block_workspace(x: SimpleNamespace, work: BlockWork, again: Amount) -> Amount:
    """What one block holds for a moment beyond what it keeps: in its backward pass, or experts in their forward. [byte]

    again: what its recomputed modules had not kept, which is there while they are differentiated. An expert block's
    forward pass has rows of its own, beside those of a recomputed block, and where tokens are gathered results of all
    ranks' tokens before their reduction.
    """
    backward = again + backward_bytes(x, work)
    if work.name != "experts":
        return backward
    rows = dispatched.gathered_results(x) + dispatched.forward_rows(x) + x.recompute_moe * again
    return maximum(backward, (1 - x.ep_overlap) * rows)


def backward_bytes(x: SimpleNamespace, work: BlockWork) -> Amount:
    """What the backward pass of a block has beyond what the block keeps, at its fullest moment. [byte]

    Beside the gradient that came in, the most of three moments. Of the last product: the gradient of its output, which
    sequence parallelism gathers, and of its input. Of the core: that of the first products' output; an activation
    function's own input and output gradients take the place of FC2's input, attention keeps its output. Of the first
    products: their input, gathered anew, and its gradient, when what lay behind them is free. A weight gradient that no
    product adds to its buffer stands beside its product as a whole, those of all experts at once. A scan writes the
    gradients of all that its projection gave, beside what it computes again.
    Source: Transformer Engine 2.12, module/layernorm_linear.py, linear.py and grouped_linear.py, backward; checked
    against live tensors of a dry run.
    """
    size, incoming = x.activation_bytes, activations.layer_input(x)
    inner_most = [layer for layer in work.linears if layer.grouped] or work.linears
    last = next(layer for layer in inner_most if layer.split == "row" or layer.name == "fc2")
    first = [
        layer for layer in inner_most if layer.split == "column" or (layer.grouped and layer is not last)
    ]
    produced = size * sum(layer.groups * layer.rows * layer.columns for layer in first)
    if work.name in SCANS:
        return incoming + 2 * produced
    behind = size * last.groups * last.rows * last.inner
    entering = size * last.groups * last.rows * (x.he if last.grouped else x.h)
    gathered = entering if last.grouped else x.sp * entering
    apart = x.trained * apart_gradients(x) * (1 - x.fsdp) * x.weight_bytes
    of_last = apart * last.groups * last.columns * last.inner
    of_first: Amount = 0
    for layer in first:
        of_first = maximum(of_first, apart * layer.groups * layer.columns * layer.inner)
    core = produced + (0 if last.name == "fc2" else behind)
    if last.grouped:
        core = maximum(core, weighted_rows(x) * last.groups * last.rows * last.inner)
    ends = entering + maximum(gathered, of_first + (1 - last.grouped) * x.sp * incoming) - behind
    return incoming + maximum(maximum(gathered + behind + of_last, core), ends)


def weighted_rows(x: SimpleNamespace) -> Amount:
    """Bytes of an element of FC2's input while the product of rows and probabilities is differentiated. [byte]

    Where no kernel fuses it with the activation function: three tensors of 4 bytes, its gradient, that of the rows and
    one that is summed to the probabilities', where these are in FP32, else two of 2. The 16-bit gradient takes the
    place of FC2's input, which a recomputed activation function still holds, with a gradient more.
    Source: Megatron-Core 0.16.1, experts.py, bias_act_func; PyTorch, mul_backward.
    """
    apart = x.activation_split * x.gates * (1 - x.separate_gate) + x.fc2_copies - 1
    return apart * (4 + 8 * probabilities_are_wide(x) + 4 * x.recompute_moe_act)


def table_gradient(x: SimpleNamespace, kept: Amount, layers: Amount) -> Amount:
    """The embedding's gradient at the end of a micro-batch's backward pass, beyond what that has freed by then. [byte]

    Dense and in the weights' format, before it is added to the buffer of gradients, beside the gradient of the hidden
    states, which sequence parallelism gathers, and the next one that a later stage sends. Tied to the output layer on
    one stage, a sum with that one's stand-in is written beside it; gradients of its own are added to in place. kept: of
    the stage's decoder layers for one micro-batch, of which a virtual stage has its part.
    Source: PyTorch 2.13, embedding_dense_backward and autograd/input_buffer.cpp; Megatron-Core 0.16.1,
    tensor_parallel/layers.py, VocabParallelEmbedding.
    """
    freed = x.recompute_layers * layers * activations.layer_input(x) + (1 - x.recompute_layers) * kept
    return maximum(0, beside_table(x) - (1 - x.offload_share) * freed / x.vpp)


def beside_table(x: SimpleNamespace) -> Amount:
    """The embedding's gradient and what stands beside it, see `table_gradient`. [byte]"""
    summed = x.tied * (1 - is_more_than_one(x.pp)) * x.stand_ins * (1 - x.accumulate_split)
    own = (1 + is_more_than_one(x.pp)) * activations.hidden_states(x)
    incoming = own + x.sp * x.activation_bytes * linear.tokens(x) * x.h
    return (1 + summed) * whole_table(x) + incoming


def whole_table(x: SimpleNamespace) -> Amount:
    """The embedding's gradient on one rank, in the weights' format. [byte] FSDP counts its tables elsewhere."""
    return x.trained * (1 - x.fsdp) * x.activation_bytes * linear.padded_vocabulary(x) * x.h / x.tp


def output_gradients(x: SimpleNamespace) -> Amount:
    """Gradient of the logits and the output layer's weight gradient as a tensor of its own. [byte]

    The latter only where no product adds it to the buffer: otherwise they are less than what stood at the loss.
    """
    logits = linear.tokens(x) * linear.padded_vocabulary(x) / x.tp
    return apart_gradients(x) * (x.activation_bytes * logits + whole_table(x))


def early_table_gradient(x: SimpleNamespace, features: Collection[str]) -> Amount:
    """The embedding's gradient by MTP heads or a tied output layer, which waits for that by the decoder. [byte]

    Where one stage has both. Heads and output layer turn first; autograd sums the gradients of one weight before it
    hands them on. Of the output layer only where no product adds its gradient to the buffer. Source: PyTorch 2.13,
    autograd/input_buffer.cpp; Megatron-Core 0.16.1, multi_token_prediction.py.
    """
    waits = 1 if "mtp" in features else x.tied * x.accumulate_split
    return (1 - is_more_than_one(x.pp)) * waits * whole_table(x)


def recomputed_bytes(x: SimpleNamespace, work: BlockWork, features: Collection[str]) -> Amount:
    """What the recomputed modules of a block had not kept, and have while it is differentiated. [byte]"""
    modules = {name: 0 for name in vars(x) if name.startswith("recompute_") and name != "recompute_layers"}
    whole = SimpleNamespace(**(vars(x) | modules))
    return block_work(whole, work.name, features).saved_bytes() - work.saved_bytes()


def widest_layer(blocks: Blocks) -> Amount:
    """Activations of the widest layer: of a mixer and of what follows it, in hybrid models of one block. [byte]"""
    followers = () if "mamba" in blocks else ("mlp", "experts")
    widths: list[Amount] = []
    for names in ([n for n in blocks if n not in followers], [n for n in blocks if n in followers]):
        kept: Amount = 0
        for name in names:
            kept = maximum(kept, symbol(f"{name}_activation_bytes"))
        widths.append(kept)
    return sum(widths)
