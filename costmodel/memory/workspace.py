"""What a rank holds for a moment: of the one layer being computed, or of the embedding's gradient."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum
from costmodel.layer import Blocks, block_work
from costmodel.work import activations, dispatched, linear


def workspace_bytes(
    x: SimpleNamespace, per_layer: Amount, widest: Amount, again: Amount, ring: Amount, has_experts: bool
) -> Amount:
    """The one layer being computed: recomputed activations, or temporaries of the widest linear layer. [byte]

    With full recompute one whole layer's activations exist while it is differentiated, with that of modules what they
    had not kept (`again`); beside it the gradients of FC1's output and its gathered input, or forward what a context
    ring has received (`ring`). They come when the logits are gone: a stage with the loss has the larger of both.
    An expert block's forward pass has rows of its own, and where tokens are gathered results of all ranks' tokens
    before their reduction. Where the exchange of one micro-batch's experts runs under another's backward pass, its rows
    as sent and as received, to the experts and back, exist beside that. Source: Megatron-Core, combined_1f1b.py and
    token_dispatcher.py.
    """
    gathered = 2 * x.activation_bytes * linear.tokens(x) * x.h  # the input of FC1 and its gradient
    travelling: Amount = 0
    results: Amount = 0
    if has_experts:
        # A recomputed block has its rows beside all that it had not kept.
        results = dispatched.gathered_results(x) + dispatched.forward_rows(x) + x.recompute_moe * again
        travelling = 2 * x.activation_bytes * x.he * (dispatched.routed_copies(x) + dispatched.expert_rows(x))
    backward = again + widest + gathered
    most = maximum(maximum(backward, ring), (1 - x.ep_overlap) * results)
    return x.recompute_layers * per_layer + most + x.ep_overlap * travelling


def table_gradient(x: SimpleNamespace, kept: Amount, layers: Amount) -> Amount:
    """The embedding's gradient at the end of a micro-batch's backward pass, beyond what that has freed by then. [byte]

    Dense and in the weights' format, before it is added to the buffer of gradients. kept: of the stage's decoder layers
    for one micro-batch, of which a virtual stage has its part. Source:
    PyTorch 2.13, embedding_dense_backward; Megatron-Core 0.16.1, tensor_parallel/layers.py, VocabParallelEmbedding.
    """
    freed = x.recompute_layers * layers * activations.layer_input(x) + (1 - x.recompute_layers) * kept
    return maximum(0, whole_table(x) - (1 - x.offload_share) * freed / x.vpp)


def whole_table(x: SimpleNamespace) -> Amount:
    """The embedding's gradient on one rank, in the weights' format. [byte] FSDP counts its tables elsewhere."""
    return x.trained * (1 - x.fsdp) * x.activation_bytes * linear.padded_vocabulary(x) * x.h / x.tp


def early_table_gradient(x: SimpleNamespace, features: Collection[str]) -> Amount:
    """The embedding's gradient by MTP heads, which waits for that by the decoder where one stage has both. [byte]

    Heads turn first; autograd sums the gradients of one weight before it hands them on. Source: PyTorch 2.13,
    autograd/input_buffer.cpp; Megatron-Core 0.16.1, multi_token_prediction.py.
    """
    return (1 - is_more_than_one(x.pp)) * whole_table(x) if "mtp" in features else 0


def recomputed_bytes(x: SimpleNamespace, blocks: Blocks, features: Collection[str]) -> Amount:
    """What the recomputed modules of one block had not kept, and have while it is differentiated: the most. [byte]"""
    modules = {name: 0 for name in vars(x) if name.startswith("recompute_") and name != "recompute_layers"}
    whole = SimpleNamespace(**(vars(x) | modules))
    most: Amount = 0
    for name, times in blocks.items():
        most = maximum(most, block_work(whole, name, features).saved_bytes() - times.work.saved_bytes())
    return most


def widest_gradient(x: SimpleNamespace, blocks: Blocks) -> Amount:
    """Gradient of the widest FC1 output or mixer input, twice. [byte]"""
    widths = [
        2 * x.activation_bytes * layer.groups * layer.rows * layer.columns
        for name, times in blocks.items()
        for layer in times.work.linears
        if layer.name in ("fc1", "in_proj") or (len(blocks) == 1 and layer.name == "qkv")
    ]
    return maximum(*widths) if len(widths) > 1 else widths[0]
