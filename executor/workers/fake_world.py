"""One rank of a large world that is not there: a fake process group, and Megatron-Core patched to live in it.

Nothing is sent and nothing computed. What is patched here and why: random states (fake tensors have none), the
coalescing of collectives and of objects (no fake kernel), tokens' counts by expert (values: balanced), and the
edges of phases, which `executor.workers.count` needs to know.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from executor.workers.count import LEDGER


def enter(world: int, rank: int) -> None:
    """Become `rank` of `world` in a process group that answers everything at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(backend="fake", rank=rank, world_size=world, store=FakeStore())


def compile_nothing() -> None:
    """torch.compile makes one kernel of a function, as Megatron-Core's fusions do; before it is imported."""

    def compiled(function: Any = None, **_: Any) -> Any:
        if function is None:
            return compiled

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with LEDGER.one_kernel():
                return function(*args, **kwargs)

        return wrapped

    torch.compile = compiled


class _Coalesced:
    """What the manager of coalesced collectives yields: they have gone out one by one."""

    def wait(self) -> None:
        """Nothing to wait for."""


@contextlib.contextmanager
def _one_by_one(*_: Any, **__: Any) -> Any:
    yield _Coalesced()


def during(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with everything in it counted under `phase`."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with LEDGER.during(phase):
            return function(*args, **kwargs)

    return wrapped


def _of(product: str, function: Any) -> Any:
    """A static method of an autograd function with its products named."""

    return staticmethod(products_of(product, function))


def products_of(product: str, function: Any) -> Any:
    """The function with the matrix products in it named."""

    def wrapped(*args: Any) -> Any:
        with LEDGER.of(product):
            return function(*args)

    return wrapped


def patch() -> None:
    """Patch Megatron-Core for the life of this process."""
    import megatron.core.distributed.param_and_grad_buffer as buffers
    import megatron.core.optimizer.optimizer as optimizers
    import megatron.core.parallel_state as parallel_state
    import megatron.core.ssm.mamba_context_parallel as mamba_ranks
    import megatron.core.ssm.mamba_mixer as mamba_mixer
    import megatron.core.tensor_parallel.layers as layers
    import megatron.core.tensor_parallel.random as random_states
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.multi_latent_attention as latent
    from megatron.core.fusions import fused_bias_geglu
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet
    from megatron.core.transformer import mlp, transformer_config
    from megatron.core.transformer.attention import Attention
    from megatron.core.transformer.moe import experts

    from executor.workers.te_like import attention, mixers

    random_states.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    random_states._get_all_rng_states = lambda: (None, None, None)
    random_states._set_all_rng_states = lambda *_: None
    # Nothing is coalesced over fake groups, and every object is the rank's own.
    buffers._coalescing_manager = _one_by_one
    dist.all_gather_object = _own_object
    # Kernels of Triton, which stand in here as those of Transformer Engine do.
    latent.fused_apply_mla_rope_for_q = attention.latent_query_rotary
    latent.fused_apply_mla_rope_for_kv = attention.latent_key_rotary
    parallel_state.einops, parallel_state.HAVE_EINOPS = mixers, True
    mamba_mixer.rearrange, mamba_mixer.HAVE_EINOPS = mixers.rearrange, True
    mamba_ranks.repeat, mamba_ranks.HAVE_EINOPS = mixers.repeat, True
    # Gates are compiled functions, which keep their inputs alone; run operator by operator they keep FP32 copies.
    Attention._apply_output_gate = mixers.apply_output_gate
    GatedDeltaNet._apply_gated_norm = mixers.apply_gated_norm
    if hasattr(GatedDeltaNet, "_compute_g_and_beta"):
        GatedDeltaNet._compute_g_and_beta = mixers.compute_g_and_beta
    for module in (fused_bias_geglu, transformer_config, mlp, experts):
        module.quick_gelu = mixers.quick_gelu
    for function, product in (
        (moe_utils.RouterGatingLinearFunction, "router"),
        (layers.LinearWithGradAccumulationAndAsyncCommunication, "output"),
    ):
        function.forward = _of(product, function.forward)
        function.backward = _of(product, function.backward)
    found = optimizers.MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan
    # Gradients that are not there did not overflow: fp16 takes its step.
    optimizers.MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan = lambda self: (
        found(self) and False
    )
    group = buffers._ParamAndGradBucketGroup
    group.start_grad_sync = during("gradients", group.start_grad_sync)
    group.start_param_sync = during("parameters", group.start_param_sync)
    _tell_passes_apart()
    _balance()


def _tell_passes_apart() -> None:
    """Activations go to the next stage and come from the one before, gradients the other way."""
    import megatron.core.pipeline_parallel.p2p_communication as p2p

    passes = {
        "tensor_send_next": "forward",
        "tensor_recv_prev": "forward",
        "tensor_send_prev": "backward",
        "tensor_recv_next": "backward",
    }

    def noted(function: Any) -> Any:
        def wrapped(**tensors: Any) -> Any:
            LEDGER.between_stages = {
                tensors[name].untyped_storage()._cdata: (phase, tensors["group"].size())
                for name, phase in passes.items()
                if tensors.get(name) is not None
            }
            try:
                return function(**tensors)
            finally:
                LEDGER.between_stages = {}

        return wrapped

    p2p._batched_p2p_ops = noted(p2p._batched_p2p_ops)
    p2p._p2p_ops = noted(p2p._p2p_ops)


def _own_object(everyone: list[Any], mine: Any, group: Any = None) -> None:
    everyone[:] = [mine] * len(everyone)


def _spread(total: int, parts: int) -> Any:
    """A whole number of tokens spread over parts as evenly as can be."""
    import numpy

    each, rest = divmod(total, parts)
    return numpy.array([each + (index < rest) for index in range(parts)])


def _kept(config: Any, rows: int) -> int:
    """Rows of balanced experts that a capacity leaves, or pads them to."""
    factor = config.moe_expert_capacity_factor
    if factor is None:
        return rows
    return int(rows * (factor if config.moe_pad_expert_input_to_capacity else min(1.0, factor)))


def _balance() -> None:
    """Counts of tokens by rank and expert are values, and fake tensors have none: balanced routing stands in."""
    from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher as Gatherer
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher as Dispatcher

    original = Dispatcher.preprocess

    def preprocess(self: Any, routing_map: torch.Tensor) -> Any:
        found = original(self, routing_map)
        if self.drop_and_pad:
            return Counts([self.capacity * self.tp_size * self.ep_size] * self.num_local_experts)
        self.num_out_tokens = _kept(self.config, routing_map.shape[0] * self.config.moe_router_topk)
        if self.ep_size > 1 or self.tp_size > 1:
            self.input_splits = _spread(self.num_out_tokens, self.ep_size)
            self.output_splits = self.input_splits
            self.output_splits_tp = _spread(self.num_out_tokens * self.tp_size, self.tp_size)
        del found
        return _spread(self.num_out_tokens * self.tp_size, self.num_local_experts)

    Dispatcher.preprocess = preprocess
    Dispatcher._maybe_dtoh_and_synchronize = lambda self, point, counts=None: counts
    chosen = Gatherer.dispatch_postprocess

    def dispatch_postprocess(self: Any, hidden_states: torch.Tensor, probs: torch.Tensor) -> Any:
        LEDGER.rows = _kept(self.config, hidden_states.shape[0] * self.router_topk // self.ep_size)
        try:
            tokens, _, local_probs = chosen(self, hidden_states, probs)
        finally:
            rows, LEDGER.rows = LEDGER.rows, 0
        return tokens, _spread(rows, self.num_local_experts), local_probs

    Gatherer.dispatch_postprocess = dispatch_postprocess


class Counts(list):  # type: ignore[type-arg]
    """Tokens of each expert, as the experts ask for them."""

    def tolist(self) -> list[int]:
        """As numpy and torch have it."""
        return list(self)
