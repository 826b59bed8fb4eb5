"""Layer modules for Megatron-Core where Transformer Engine is absent, and Megatron's own specifications with them.

The norm marks its weight for sequence parallelism, which Megatron's plain norm refuses. The attention core uses
torch's scaled_dot_product_attention, which never writes the score matrix; under context parallelism it gathers keys
and values, which Megatron's plain attention refuses. Projections of latent attention that every tensor-parallel rank
holds whole, as Transformer Engine has them, are `Whole`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.attention
import torch.nn.functional as functional


class Norm(torch.nn.Module):
    """RMSNorm or LayerNorm, as the configuration says; input (sequence, batch, hidden)."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.shape, self.eps = (hidden_size,), eps
        kind = {"dtype": config.params_dtype, "device": torch.cuda.current_device()}
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, **kind))
        layer_norm = config.normalization == "LayerNorm"
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, **kind)) if layer_norm else None
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return functional.rms_norm(x, self.shape, self.weight, self.eps)
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class Whole(torch.nn.Module):
    """A linear layer that every tensor-parallel rank holds whole: TELinear with parallel_mode "duplicated"."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, init_method: Any, **_: Any) -> None:
        super().__init__()
        kind = {"dtype": config.params_dtype, "device": torch.cuda.current_device()}
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, **kind))
        init_method(self.weight)
        # Each rank sees its own part of the sequence: gradients are summed over the ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return functional.linear(x, self.weight), None


class AttentionCore(torch.nn.Module):
    """Causal attention; query (s, b, heads, d), key (s, b, groups, d), value (s, b, groups, d_v) to (s, b, heads d_v).

    With cp > 1 a rank holds chunks r and 2 cp - 1 - r of 2 cp (Megatron-Core's get_batch_on_this_cp_rank): keys and
    values are gathered over the ranks (their gradients scattered back), and each chunk of queries attends to the keys
    up to its own end, so that every rank has the same work.
    """

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: Any = None, **__: Any) -> None:
        super().__init__()
        from megatron.core import parallel_state
        from megatron.core.transformer.utils import is_layer_window_attention

        self.scale, self.kernel = softmax_scale, ""
        self.cp, self.group = config.context_parallel_size, parallel_state.get_context_parallel_group()
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = config.window_size[0] + 1 if windowed else 0
        if config.softmax_type == "learnable":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            kind = {"dtype": config.params_dtype, "device": torch.cuda.current_device()}
            self.softmax_offset = torch.nn.Parameter(torch.zeros(heads, **kind))
        else:
            self.softmax_offset = None

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
        length, batch = query.shape[:2]
        if self.cp == 1:
            out = self._attend(query, key, value, 0)
        else:
            out = self._attend_over_ranks(query, key, value)
        return out.permute(2, 0, 1, 3).reshape(length, batch, -1)

    def _attend(self, query: Any, key: Any, value: Any, first: int) -> torch.Tensor:
        """Queries from position `first` on against keys from position 0 on; (b, heads, s, d_v)."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        grouped = q.shape[1] != k.shape[1]
        if self.softmax_offset is not None:
            return self._with_sink(q, k, v, first)
        plain = not self.window and not first and len(query) == len(key)
        said: dict[str, Any] = {"scale": self.scale, "enable_gqa": grouped, "is_causal": plain}
        if not plain:
            said["attn_mask"] = self._seen(len(query), len(key), first, query.device)
        if not self.kernel:
            self.kernel = torch.nn.attention.SDPBackend(torch._fused_sdp_choice(q, k, v, **said)).name
        return functional.scaled_dot_product_attention(q, k, v, **said)

    def _seen(self, queries: int, keys: int, first: int, device: Any) -> torch.Tensor:
        """Which key each query sees: itself and those before it, of a window the last ones."""
        at = torch.arange(first, first + queries, device=device).unsqueeze(1)
        places = torch.arange(keys, device=device)
        seen = places <= at
        return seen & (places > at - self.window) if self.window else seen

    def _with_sink(self, q: Any, k: Any, v: Any, first: int) -> torch.Tensor:
        """Scores with one more column, a learned number for each head, that takes weight and gives nothing."""
        repeat = q.shape[1] // k.shape[1]
        k, v = (tensor.repeat_interleave(repeat, dim=1) for tensor in (k, v))
        scores = (q @ k.transpose(-1, -2)).float() * (self.scale or q.shape[-1] ** -0.5)
        seen = self._seen(q.shape[2], k.shape[2], first, q.device)
        scores = scores.masked_fill(~seen, float("-inf"))
        sink = self.softmax_offset.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
        return weights.to(v.dtype) @ v

    def _attend_over_ranks(self, query: Any, key: Any, value: Any) -> torch.Tensor:
        from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

        ranks, chunk = self.cp, len(query) // 2
        # Gathered by ranks: chunks 0, 2 cp - 1, 1, 2 cp - 2, ...
        gathered = [chunk for rank in range(ranks) for chunk in (rank, 2 * ranks - 1 - rank)]
        order = [gathered.index(place) for place in range(2 * ranks)]

        def whole(tensor: torch.Tensor) -> torch.Tensor:
            parts = gather_from_sequence_parallel_region(tensor.contiguous(), group=self.group).split(chunk)
            return torch.cat([parts[place] for place in order])

        key, value = whole(key), whole(value)
        here = self.group.rank()
        outs = []
        for part, place in zip(query.split(chunk), (here, 2 * ranks - 1 - here), strict=True):
            end = (place + 1) * chunk
            outs.append(self._attend(part, key[:end], value[:end], place * chunk))
        return torch.cat(outs, dim=2)


def install_local() -> None:
    """Make Megatron-Core's specifications without Transformer Engine use the modules above. Once a process."""
    from megatron.core.models import backends
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import multi_latent_attention as latent
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    class ExpertOutput(backends.RowParallelLinear):  # type: ignore[misc]
        """An expert's second layer; Megatron adds its bias in place, which a view of a message's result forbids."""

        def forward(self, x: torch.Tensor) -> Any:
            out, bias = super().forward(x)
            return (out if bias is None else out.clone()), bias

    class Provider(backends.LocalSpecProvider):  # type: ignore[misc]
        """Megatron's plain modules, but for norm, attention core and the output of experts."""

        def layer_norm(self, *_: Any, **__: Any) -> type:
            return Norm

        def core_attention(self) -> type:
            return AttentionCore

        def grouped_mlp_modules(self, *given: Any, **named: Any) -> Any:
            module, parts = super().grouped_mlp_modules(*given, **named)
            if parts is not None:
                parts.linear_fc2 = ExpertOutput
            return module, parts

    gpt_layer_specs.LocalSpecProvider, gpt_layer_specs.LNImpl = Provider, Norm
    # Without Transformer Engine its names are mocks, which isinstance refuses: Megatron-Core 0.16.1 asks nevertheless.
    latent.HAVE_TE, latent.TELinear = False, Whole
    moe_utils.te_general_gemm = None  # a name that 0.16.1 does not define then
    if not torch.cuda.is_available():
        token_dispatcher.maybe_move_tensor_to_cpu = _as_on_cpu


def _as_on_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """maybe_move_tensor_to_cpu, which makes numbers of tensors on GPUs only."""
    return tensor.numpy() if torch.is_tensor(tensor) and as_numpy else tensor


def gpt_specs(config: Any, stage: int | None, te: bool) -> tuple[Any, Any]:
    """Megatron-Core's specifications of this stage's layers, and of its multi-token prediction heads or None."""
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    block = specs.get_gpt_decoder_block_spec(
        config, use_transformer_engine=te, normalization=config.normalization, vp_stage=stage
    )
    whole = block
    if (
        not block.layer_specs
    ):  # a stage may have heads and no layers; heads are made like the model's last layer
        whole = specs.get_gpt_decoder_layer_specs(config, te, normalization=config.normalization)[-1]
    if not te:
        layers = [*block.layer_specs, *([] if whole is block else [whole])]
        for layer in layers:
            attention = layer.submodules.self_attention
            if attention.module is MLASelfAttention:
                attention.submodules.linear_q_down_proj = Whole
                attention.submodules.linear_kv_down_proj = Whole
    if not config.mtp_num_layers:
        return block, None
    return block, specs.get_gpt_mtp_block_spec(config, whole, use_transformer_engine=te, vp_stage=stage)
