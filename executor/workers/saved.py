"""Bytes that one micro-batch keeps for its backward pass, by block of the model.

Live bytes are read at the edges of blocks in the first forward pass of every model chunk. A block's growth counts its
output for its input, which are of one size; so the embedding is counted without its output, and the head with its
input. Layers that are computed again as a whole are one thing, "layer".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from executor.workers.count import LiveBytes


class Saved:
    """Growth of live bytes by block, while a chunk's first micro-batch goes forward."""

    def __init__(self, live: LiveBytes) -> None:
        self.live = live
        self.bytes: Counter[str] = Counter()
        self.on = False
        self.hidden = 0
        self._start = 0
        self._tables = 0
        self._seen: set[int] = set()

    def _now(self) -> int:
        """Live bytes without tables of rotary angles, which the first pass makes anew and all later ones share."""
        return self.live.now - self._tables

    def install(self) -> None:
        """Watch Megatron-Core's blocks from now on."""
        import megatron.core.pipeline_parallel.schedules as schedules
        from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
        from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
        from megatron.core.ssm.mamba_block import MambaStack
        from megatron.core.ssm.mamba_layer import MambaLayer
        from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionLayer
        from megatron.core.transformer.transformer_block import TransformerBlock
        from megatron.core.transformer.transformer_layer import TransformerLayer

        schedules.forward_step = self.step(schedules.forward_step)
        layer = TransformerLayer
        layer._forward_attention = self.block(layer._forward_attention, mixer_name)
        layer._forward_mlp = self.block(layer._forward_mlp, feed_name)
        MambaLayer.forward = self.block(MambaLayer.forward, lambda _: "mamba")
        MultiTokenPredictionLayer.forward = self.rest(MultiTokenPredictionLayer.forward, "mtp")
        RotaryEmbedding.forward = self.table(RotaryEmbedding.forward)
        YarnRotaryEmbedding._set_cos_sin_cache = self.table(YarnRotaryEmbedding._set_cos_sin_cache)
        for stack in (TransformerBlock, MambaStack):
            stack.forward = self.door(stack.forward)
            if hasattr(stack, "_checkpointed_forward"):
                stack._checkpointed_forward = self.rest(stack._checkpointed_forward, "layer")
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            self.live.resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        # Nothing has a value, and fake tensors would remember both storages of a copy for good.
        torch.UntypedStorage.copy_ = lambda storage, *_, **__: storage  # type: ignore[method-assign]

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`schedules.forward_step`, watched the first time a chunk comes by."""

        def wrapped(step: Any, iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            self.on = id(model) not in self._seen
            self._seen.add(id(model))
            self._start, before = self._now(), sum(self.bytes.values())
            result = function(step, iterator, model, *args, **kwargs)
            if self.on:
                self._ends(inner(model), self._now() - self._start - (sum(self.bytes.values()) - before))
            self.on = False
            return result

        return wrapped

    def _ends(self, chunk: Any, rest: int) -> None:
        """What no block has claimed belongs to the head; the embedding was claimed at the decoder's door."""
        if chunk.pre_process:
            self.bytes["embedding"] -= self.hidden
        if chunk.post_process:
            self.bytes["output"] += rest + self.hidden
        else:
            # A batch's tokens, which stood at the decoder's door and are gone by now.
            self.bytes["embedding" if chunk.pre_process else "other"] += rest

    def door(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A decoder's forward pass: what came before it belongs to the embedding."""

        def wrapped(module: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            if self.on:
                given = hidden_states if module.pre_process else module.input_tensor
                given = given[0] if isinstance(given, list) else given
                self.hidden = given.untyped_storage().nbytes()
                self.bytes["embedding" if module.pre_process else "other"] += self._now() - self._start
            return function(module, hidden_states, *args, **kwargs)

        return wrapped

    def block(self, function: Callable[..., Any], name: Callable[[Any], str]) -> Callable[..., Any]:
        """A block's forward pass; without gradients it keeps nothing of its own."""

        def wrapped(module: Any, *args: Any, **kwargs: Any) -> Any:
            start = self._now()
            result = function(module, *args, **kwargs)
            if self.on and torch.is_grad_enabled() and name(module):
                self.bytes[name(module)] += self._now() - start
            return result

        return wrapped

    def table(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Tables of rotary angles made in a forward pass, in the place of those that the model was built with."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = self.live.now
            result = function(*args, **kwargs)
            self._tables += self.live.now - start
            return result

        # Megatron-Core's own are cached by length, and cleared when a model is built.
        wrapped.cache_clear = getattr(function, "cache_clear", None)  # type: ignore[attr-defined]
        return wrapped

    def rest(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Something around blocks: its growth without theirs."""

        def wrapped(module: Any, *args: Any, **kwargs: Any) -> Any:
            start, before = self._now(), sum(self.bytes.values())
            result = function(module, *args, **kwargs)
            if self.on:
                self.bytes[name] += self._now() - start - (sum(self.bytes.values()) - before)
            return result

        return wrapped


def mixer_name(layer: Any) -> str:
    """The cost model's name of a layer's mixer, "" when it has none."""
    kind = type(layer.self_attention).__name__
    return {"IdentityOp": "", "MLASelfAttention": "mla", "GatedDeltaNet": "delta"}.get(kind, "attention")


def feed_name(layer: Any) -> str:
    """The cost model's name of what follows the mixer, "" for nothing."""
    if type(layer.mlp).__name__ == "IdentityOp":
        return ""
    return "experts" if layer.is_moe_layer else "mlp"


def inner(model: Any) -> Any:
    """The model inside its wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model
