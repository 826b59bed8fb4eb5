"""Element-wise kernels on one rank: nominal HBM bytes and kernel counts.

Bytes count each tensor a fused kernel must read or write once; `activation_bytes` (e) a element.
Real kernels reach a measured fraction of the memory bandwidth on these bytes.
"""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work.block import Stream
from costmodel.work.linear import tokens
from costmodel.work.quantisation import writes_operands

# Kernels of an attention block and of an MLP, forward and backward, with fused norm, rotary embedding, SwiGLU and
# bias-dropout-add, beyond the quantisation's: 135 and 170 in ten llama layers of a Megatron-Core 0.16.1 dry run.
ATTENTION_KERNELS = (7.5, 9.5)
MLP_KERNELS = (6.0, 7.5)
# Kernels more where a fusion is off, forward and backward together as seen in Megatron-Core's modules.
ACTIVATION_KERNELS, RESIDUAL_KERNELS = 3.0, 2.0
# Rotary embedding that is not fused, forward and backward: 16-bit elements read and written for one (fused: two), and
# kernels more than two for queries and keys together. Megatron-Core turns halves around and adds products with cosine
# and sine, for latent attention it also reorders interleaved columns; torchtitan multiplies complex numbers in FP32.
# Counted as PyTorch 2.13 issues their operations: Megatron-Core 0.16.1, rope_utils.py, _apply_rotary_pos_emb_bshd (12
# kernels and 7, latent 13 and 10); torchtitan 0.1.0 to 0.3.0, apply_rotary_emb (3 and 3). Hugging Face's: 10 and 15.
ROTARY_PASSES, ROTARY_KERNELS = (12, 14), (22.0, 12.0)
LATENT_ROTARY_PASSES, LATENT_ROTARY_KERNELS = (14, 21), (24.0, 18.0)
COMPLEX_ROTARY_PASSES, COMPLEX_ROTARY_KERNELS = (10, 10), (4.0, 4.0)
# Kernels of one packed document and tensor where such an embedding turns one document after the other, forward and
# backward. Each is written into its rows of the whole; backward, PyTorch copies the whole gradient for every one (read
# and write) before it takes those rows. Counted as PyTorch 2.13 issues them: Megatron-Core 0.19.2, rope_utils.py,
# _apply_rotary_pos_emb_thd (until 0.14 12 and 7, latent 13 and 10, without those copies, which is not told apart).
DOCUMENT_KERNELS, LATENT_DOCUMENT_KERNELS = (13.0, 12.0), (14.0, 17.0)
DOCUMENT_COPIES = 2
# What a squared ReLU that nothing compiles reads and writes beyond a compiled one, forward and backward, in elements,
# and its kernels more.
PLAIN_SQUARED_RELU_PASSES, PLAIN_SQUARED_RELU_KERNELS = (2, 7), (1.0, 3.0)
# Time of PyTorch's own backward pass of a norm over a fused one's: 1.5 to 1.8 against 3.4 to 3.8 TB/s on H200.
# Source: shared hardware notes, section 7.
PLAIN_NORM_BACKWARD = 2.2
# RMSNorm as rows of element-wise kernels over 16-bit elements: bytes an element and kernels, forward and backward.
# Forward casts to FP32 (6), squares (8), averages (4), scales (8), casts back (6), multiplies by the weight (4).
# Backward: of the weight's product (4 and 6) with its sum (2), casts (6 and 6), of the scale (8, and 16 of its factor),
# of the average (4), of the square (28) and a sum of two gradients (12). Source: transformers 5.24.0, LlamaRMSNorm, as
# PyTorch 2.13 issues its operations; that PyTorch's own before 2.9 (ATen, layer_norm.cpp) is alike is from memory.
# LayerNorm has had a kernel of its own in every PyTorch that trains language models (native_layer_norm).
COMPOSED_NORM_BYTES = (36.0, 92.0)
COMPOSED_NORM_KERNELS = (8.0, 16.0)
# Bytes an element that it keeps for the backward pass: FP32 input, and the scaled one for the weight's gradient.
COMPOSED_NORM_SAVED = 6


def residual_tokens(x: SimpleNamespace) -> Amount:
    """Tokens of norms and residuals on one rank: divided by tp with sequence parallelism. [1]

    Source: V. Korthikanti et al., arXiv:2205.05198, sec. 4.2.
    """
    return tokens(x) / (1 + x.sp * (x.tp - 1))


def norm(x: SimpleNamespace, more: Amount = 0, joined: Amount = 0, joined_more: Amount = 0) -> Stream:
    """The norm in front of a block: read and write the hidden state; `more` elements normalised beside it.

    joined, joined_more: 1 where the norm of either is one module with the linear layer behind it, whose operand it
    writes where the recipe can: for both of its products, unless that is transposed behind. Backward reads input and
    output gradient and writes the input's: 1.5 times as much, at half the rate in PyTorch's own kernel, which LayerNorm
    has where RMSNorm is composed. A composed norm moves the bytes of all its kernels instead.
    """
    hidden = residual_tokens(x) * x.h
    elements, fed = hidden + more, joined * hidden + joined_more * more
    plain = x.activation_bytes * 2 * elements
    other = x.trained * (x.quantised_copy_bytes - x.operand_bytes - x.transpose_bytes / 2)
    narrower = writes_operands(x) * (1 - x.bf16_share) * (x.activation_bytes - x.operand_bytes - other)
    forward = plain - narrower * fed
    own = maximum(x.plain_norms, x.composed_norms * x.residual_split * (x.norm_vectors - 1))
    slower = 1 + own * (PLAIN_NORM_BACKWARD - 1)
    apart = composes_norm(x)
    return Stream(
        "norm",
        (1 - apart) * forward + apart * COMPOSED_NORM_BYTES[0] * elements,
        (1 - apart) * 1.5 * slower * plain + apart * COMPOSED_NORM_BYTES[1] * elements,
        "norm",
    )


def composes_norm(x: SimpleNamespace) -> Amount:
    """1 where a norm is a row of element-wise kernels: RMSNorm, in a framework that has it so, nothing compiled. [1]"""
    return x.composed_norms * x.residual_split * (2 - x.norm_vectors)


def splits_residual(x: SimpleNamespace, bias: Amount = 1) -> Amount:
    """1 where a bias or dropout stands apart from the residual addition; a bare addition is one kernel anyway. [1]

    bias: 1 where a block with biases leaves its last one to the residual. Experts of a grouped GEMM add their own, and
    with them Megatron-Core refuses the fused kernel to the whole model. Source: Megatron-Core 0.16.1, moe/experts.py,
    TEGroupedMLP.
    """
    apart = 1 - (1 - x.residual_split) * (1 - x.biased_experts * x.grouped * x.megatron_core)
    return apart * (1 - (1 - x.dropout) * (1 - x.biases * bias))


def split_kernels(x: SimpleNamespace, bias: Amount = 1) -> tuple[Amount, Amount]:
    """Kernels more of a block whose norm and residual are not fused, forward and backward; bias: as above. [1]

    A composed norm has its kernels in place of the fused one.
    """
    residual = RESIDUAL_KERNELS * splits_residual(x, bias)
    forward, backward = (composes_norm(x) * (number - 1) for number in COMPOSED_NORM_KERNELS)
    return residual + forward, residual + backward


def residual(x: SimpleNamespace, bias: Amount = 1) -> Stream:
    """The residual addition behind a block: read two, write one; a byte of mask an element with dropout.

    Backward adds two gradients; dropout reads mask and gradient. Not fused, bias and dropout read and write the sum
    again.
    """
    elements = residual_tokens(x) * x.h
    again = 2 * x.activation_bytes * splits_residual(x, bias)
    forward = elements * (3 * x.activation_bytes + x.dropout + again)
    backward = elements * (3 * x.activation_bytes + x.dropout * (2 * x.activation_bytes + 1) + again)
    return Stream("residual", forward, backward, "contiguous")


def activation(x: SimpleNamespace, name: str, rows: Amount, width: Amount) -> Stream:
    """The activation function of an MLP with `rows` tokens and `width` columns on this rank.

    SwiGLU reads both halves and writes one (3), backward reads three and writes two (5); GELU 2 and 3.
    Not fused: SiLU (2), an offset added to the other half (2), their product (3); backward two products (6), SiLU's
    gradient (3), halves put together (4). No offset and no halves where gate and rest are products of their own. A
    bias is added apart (2). SwiGLU's backward kernel takes cycles of SMs where it puts both gradients together; of
    halves in tensors of their own it keeps pace with the memory. Squared ReLU that nothing compiles: ReLU and its
    power read and write (4); backward its power again (2) times two (2), times the gradient (3), which passes the
    ReLU (3). Source: Megatron-Core 0.16.1, mlp.py, glu.
    Source of the last: PyTorch 2.13, derivatives.yaml, pow and relu, and the operations that it issues for them.
    """
    elements = x.activation_bytes * rows * width
    gated = x.activation_split * x.gates * (2 - x.separate_gate)
    apart = maximum(x.activation_split, x.separate_gate)
    biased = 2 * x.activation_split * (1 - x.gates) * x.biases
    forward, backward = (plain_squared_relu(x) * number for number in PLAIN_SQUARED_RELU_PASSES)
    return Stream(
        name,
        (2 + x.gates + 2 * gated + biased + forward) * elements,
        (3 + 2 * x.gates + 4 * gated + backward) * elements,
        "contiguous",
        (0, x.gates * (1 - apart) * rows * width),
        ("", "swiglu_backward_cycles"),
    )


def plain_squared_relu(x: SimpleNamespace) -> Amount:
    """1 where the activation function is a squared ReLU of kernels that nothing compiles into one. [1]"""
    return x.plain_squared_relu * x.squared_relu


def input_gradient_sum(x: SimpleNamespace, products: Amount) -> Stream:
    """Sum of the input gradients of products that read one input and are kept apart (`separate_gate`).

    Added two at a time (3 passes each), where compiled in the kernel of the norm behind, which reads each; tensor
    parallelism needs the sum, and DTensor a copy of it in the order in which it is scattered.
    Source: PyTorch 2.13, autograd's accumulation; torchtitan 0.1.0, models/llama3 (wq, wk, wv, w1, w3).
    """
    several = is_more_than_one(x.tp)
    compiled = (products - 1) + 2 * several * is_more_than_one(products)
    eager = 3 * (products - 1)
    passes = x.residual_split * eager + (1 - x.residual_split) * compiled
    return Stream("input_gradients", 0, x.separate_gate * passes * x.activation_bytes * tokens(x) * x.h)


def packing(x: SimpleNamespace, width: Amount) -> Stream:
    """Gather and scatter of `width` columns around the attention core, read and written; their gradients likewise.

    Source: llm-foundry, attention.py (flash_attn_fn: unpad_input of queries, keys and values, pad_input).
    """
    size = 2 * x.packs_attention * x.activation_bytes * tokens(x) * width
    return Stream("packing", size, size)


def rotary(x: SimpleNamespace, width: Amount, passes: tuple[float, float] = ROTARY_PASSES) -> Stream:
    """Rotary embedding of `width` columns of queries and keys, each read and written once, forward as backward.

    Not fused it is a row of kernels, which read and write `passes` elements for one. Source: see ROTARY_PASSES.
    """
    size = x.rotary * x.activation_bytes * tokens(x) * width
    apart = _rotary_apart(x, passes, COMPLEX_ROTARY_PASSES)
    forward, backward = (2 * (1 - x.rope_split) + x.rope_split * each for each in apart)
    copies = x.rope_split * x.documents_apart * DOCUMENT_COPIES * x.documents
    turned = x.rotary * (1 - x.rope_split) * tokens(x) * width
    return Stream(
        "rotary",
        size * forward,
        size * (backward + copies),
        busy=(turned, turned),
        cycles=("rotary_forward_cycles", "rotary_backward_cycles"),
    )


def saved_angles(x: SimpleNamespace, width: Amount) -> Amount:
    """Cosines and sines that rotary embedding of `width` columns keeps where it is not fused. [byte]

    Both are made anew for queries and for keys, of one sequence, in the activations' format. Source: Megatron-Core
    0.16.1, rope_utils.py, _apply_rotary_pos_emb_bshd.
    """
    return 4 * x.megatron_core * x.rotary * x.rope_split * x.activation_bytes * tokens(x) / x.b * width


def head_copies(x: SimpleNamespace, queries: Amount, keys: Amount, values: Amount, grouped: Amount) -> Stream:
    """Heads copied out of the QKV product, where Megatron-Core splits it, and its gradient put together again.

    queries, keys, values: columns on this rank. Queries of several groups are copied to lie as heads; values to lie as
    queries and keys do, which rotary embedding has written anew. Source: Megatron-Core 0.16.1, attention.py,
    get_query_key_value_tensors; Transformer Engine's SplitAlongDim; kernels of a step profiled on an H200.
    """
    apart = x.megatron_core * tokens(x)
    copied = apart * (grouped * queries + x.rotary * values)
    return Stream(
        "heads",
        2 * x.activation_bytes * copied,
        2 * x.activation_bytes * apart * (queries + keys + values),
        busy=(copied, 0),
        cycles=("head_copy_cycles", ""),
    )


def rotary_kernels(
    x: SimpleNamespace, kernels: tuple[float, float] = ROTARY_KERNELS
) -> tuple[Amount, Amount]:
    """Kernels more of a block with rotary embedding that is not fused, of all documents at once. [1]"""
    forward, backward = _rotary_apart(x, kernels, COMPLEX_ROTARY_KERNELS)
    at_once = x.rotary * x.rope_split * (1 - x.documents_apart * minimum(1, x.documents))
    return at_once * forward, at_once * backward


def rotary_stops(x: SimpleNamespace) -> Amount:
    """Round trips in which the host reads the lengths of packed documents, forward, for one micro-batch. [1]

    Not fused, it reads their lengths and that of the whole for queries, and again for keys. Source: Megatron-Core 0.15
    to 0.19, rope_utils.py, _apply_rotary_pos_emb_thd, whose table of angles is as long as the longest document.
    """
    return x.rotary * x.rope_split * x.b * 4 * x.reads_documents * minimum(1, x.documents)


def rotary_loops(
    x: SimpleNamespace, kernels: tuple[float, float] = DOCUMENT_KERNELS
) -> tuple[Amount, Amount]:
    """Kernels of a block that turn packed documents one by one, queries and keys, forward and backward. [1]"""
    documents = x.rotary * x.rope_split * x.documents_apart * x.b * 2 * x.documents
    return documents * kernels[0], documents * kernels[1]


def _rotary_apart(
    x: SimpleNamespace, halves: tuple[float, float], pairs: tuple[float, float]
) -> tuple[Amount, Amount]:
    """Of a framework that turns halves of a head, or of one that multiplies pairs as complex numbers."""
    forward, backward = (
        (1 - x.complex_rotary) * half + x.complex_rotary * pair
        for half, pair in zip(halves, pairs, strict=True)
    )
    return forward, backward
