"""A stand-in for Transformer Engine in dry runs: its modules' interfaces, saved tensors, messages and shapes.

Megatron-Core's own code for Transformer Engine then runs as it does on GPUs. Nothing here computes numbers: kernels
only make outputs of the right shape, so it is of use under fake tensors alone. What each module keeps for the
backward pass follows Transformer Engine 2.8 (module/linear.py, layernorm_linear.py, grouped_linear.py,
attention/dot_product_attention, permutation.py, router.py), without FP8.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

VERSION = "2.8.0"
# Needs Triton when imported, and is for inference alone.
INFERENCE = "megatron.core.inference.contexts.attention_context.triton.tensor_ops"
PACKAGES = ("transformer_engine", "mamba_ssm", "causal_conv1d", "fla", "fused_weight_gradient_mlp_cuda")


class _AbsentType(type):
    """Anything of Transformer Engine that dry runs have no use for: it may be named, not used."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(f"{cls.__name__}.{name}")

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"the dry run has no {cls.__name__}")


def _absent(name: str) -> Any:
    return _AbsentType(name, (), {})


class _Module(types.ModuleType):
    """A module whose unknown names are absent things instead of errors."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every module of some packages out of nothing."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".")[0] in self.packages or fullname == INFERENCE:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__version__"] = VERSION


class NoFp8:
    """FP8GlobalStateManager of a run without FP8."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Never here."""
        return False

    is_fp8_calibration = is_fp8_enabled
    with_fp8_parameters = is_fp8_enabled


def decorator(*given: Any, **_: Any) -> Any:
    """Triton's decorators: a kernel stays the function that it is, and nobody calls it."""
    return given[0] if given and callable(given[0]) else lambda function: function


@contextlib.contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[None]:
    """A context that changes nothing."""
    yield


def install(triton: bool = False) -> None:
    """Put the stand-in where Megatron-Core looks for Transformer Engine; before it is imported.

    triton: for Triton too, of which Megatron-Core has kernels that it imports from 0.18 on; where nothing is compiled.
    """
    sys.meta_path.insert(0, _Finder((*PACKAGES, "triton") if triton else PACKAGES))
    from executor.workers.te_like import attention, linear, mixers, moe, optimizers

    provided: dict[str, dict[str, Any]] = {
        "transformer_engine.pytorch": {
            "Linear": linear.Linear,
            "LayerNormLinear": linear.LayerNormLinear,
            "GroupedLinear": moe.GroupedLinear,
            "LayerNorm": linear.LayerNorm,
            "RMSNorm": linear.RMSNorm,
            "DotProductAttention": attention.DotProductAttention,
        },
        "transformer_engine.pytorch.fp8": {"FP8GlobalStateManager": NoFp8, "fp8_autocast": nothing},
        "transformer_engine.pytorch.distributed": {
            "activation_recompute_forward": nothing,
            "get_all_rng_states": dict,
            "is_fp8_activation_recompute_enabled": NoFp8.is_fp8_enabled,
        },
        "transformer_engine.pytorch.cpu_offload": {
            "get_cpu_offload_context": lambda *_, **__: (contextlib.nullcontext(), None)
        },
        "transformer_engine.pytorch.attention": {"_SplitAlongDim": attention.SplitAlongDim},
        "transformer_engine.pytorch.attention.rope": {"apply_rotary_pos_emb": attention.apply_rotary},
        "transformer_engine.pytorch.permutation": {
            "moe_permute": moe.permute,
            "moe_permute_with_probs": moe.permute_with_probs,
            "moe_sort_chunks_by_index": moe.sort_chunks,
            "moe_sort_chunks_by_index_with_probs": moe.sort_chunks_with_probs,
            "moe_unpermute": moe.unpermute,
        },
        "transformer_engine.pytorch.router": {
            "fused_topk_with_score_function": moe.topk_scores,
            "fused_compute_score_for_moe_aux_loss": moe.aux_scores,
            "fused_moe_aux_loss": moe.aux_loss,
        },
        "transformer_engine.pytorch.cpp_extensions": {"general_gemm": linear.general_gemm},
        "transformer_engine.pytorch.module.base": {
            "get_workspace": lambda: None,
            "get_dummy_wgrad": linear.dummy_wgrad,
        },
        "transformer_engine.pytorch.optimizers": {
            "FusedAdam": optimizers.FusedAdam,
            "multi_tensor_applier": optimizers.apply_to_lists,
            "multi_tensor_l2norm": optimizers.l2norm,
            "multi_tensor_scale": optimizers.scale,
            "multi_tensor_scale_tensor": optimizers.scale,
        },
        "fused_weight_gradient_mlp_cuda": {
            "wgrad_gemm_accum_fp32": linear.accumulate_wgrad,
            "wgrad_gemm_accum_fp16": linear.accumulate_wgrad,
        },
        **mixers.PROVIDED,
    }
    if triton:
        provided["triton"] = {
            "jit": decorator,
            "autotune": decorator,
            "heuristics": decorator,
            "Config": dict,
        }
    for name, contents in provided.items():
        module = importlib.import_module(name)
        module.__dict__.update(contents)
        parent, _, leaf = name.rpartition(".")
        if parent:
            importlib.import_module(parent).__dict__[leaf] = module
