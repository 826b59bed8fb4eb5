"""The dense MLP block on one rank."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import maximum
from costmodel.work.adapters import joined_norm, kept_input, kept_norm
from costmodel.work.attention import saved_norm
from costmodel.work.block import BlockWork
from costmodel.work.elementwise import (
    ACTIVATION_KERNELS,
    MLP_KERNELS,
    PLAIN_SQUARED_RELU_KERNELS,
    activation,
    input_gradient_sum,
    norm,
    plain_squared_relu,
    residual,
    residual_tokens,
    split_kernels,
)
from costmodel.work.linear import Linear, tokens
from costmodel.work.recompute import kept_products


def mlp(x: SimpleNamespace) -> BlockWork:
    """FC1 (twice as wide when gated), activation function, FC2. Source: Megatron-Core, MLP.

    Saved: FC1's output and FC2's input; when the MLP is computed again nothing, not even its norm's output, as FC1
    holds the norm; FC1's output alone when only the activation function is. Per-op recompute: see
    `costmodel.work.attention.attention`; where nothing is compiled, it keeps FC2's output too, which no gradient needs.
    Source: PyTorch 2.13, utils/checkpoint.py, _CachingTorchDispatchMode.
    """
    rows, width = tokens(x), x.f / x.tp
    kept = (1 - x.recompute_mlp) * rows * width
    gate = (1 + x.gates * (1 - x.recompute_ops)) * (1 - x.recompute_ops + kept_products(x))
    # A bare activation function, and squared ReLU at all, is one kernel either way.
    fusable = maximum(x.gates, x.biases) * (1 - x.squared_relu)
    split = [
        ACTIVATION_KERNELS * x.activation_split * fusable + plain_squared_relu(x) * apart + kernels
        for apart, kernels in zip(PLAIN_SQUARED_RELU_KERNELS, split_kernels(x), strict=True)
    ]
    return BlockWork(
        name="mlp",
        linears=(
            Linear(
                "fc1",
                (1 + x.gates) * width,
                x.h,
                rows,
                "column",
                adapter="mlp",
                normed=joined_norm(x, "mlp"),
                products=1 + x.gates,
            ),
            Linear("fc2", x.h, width, rows, "row", adapter="mlp"),
        ),
        streams=(
            norm(x, joined=joined_norm(x, "mlp")),
            residual(x),
            activation(x, "activation", rows, width),
            input_gradient_sum(x, 1 + x.gates),
        ),
        gathered=x.operand_bytes * rows * x.h,
        reduced=x.activation_bytes * rows * x.h,
        saved=saved_norm(
            x,
            1 - (1 - x.offload_mlp_norm) * (1 - x.recompute_ops),
            0,
            kept_norm(x, "mlp"),
            inside=x.recompute_mlp,
        )
        | {
            "fc1 output": kept * gate * x.activation_bytes,
            "fc2 output": kept_products(x) * x.residual_split * x.activation_bytes * residual_tokens(x) * x.h,
            "fc2 input": kept * (1 - x.recompute_activation) * (1 - x.recompute_ops) * kept_input(x, "mlp"),
        },
        vectors=x.biases * ((1 + x.gates) * width + x.h) + x.norm_vectors * x.h,
        kernels_forward=MLP_KERNELS[0] + split[0],
        kernels_backward=MLP_KERNELS[1] + split[1],
    )
