"""Adam and the multi-tensor kernels as Transformer Engine has them: states of the right types, one kernel each."""

from __future__ import annotations

from typing import Any

import torch

from executor.workers.count import LEDGER


def apply_to_lists(kernel: Any, _overflow: Any, lists: list[list[torch.Tensor]], *args: Any) -> Any:
    """One kernel over lists of tensors."""
    LEDGER.kernel()
    return kernel(lists, *args)


def l2norm(lists: list[list[torch.Tensor]], *_: Any) -> tuple[torch.Tensor, None]:
    """The norm over all tensors of the first list."""
    return lists[0][0].new_empty(1, dtype=torch.float32), None


def scale(lists: list[list[torch.Tensor]], *_: Any) -> None:
    """The tensors of the first list, scaled, into those of the second."""


class FusedAdam(torch.optim.Optimizer):
    """te.pytorch.optimizers.FusedAdam. Source: optimizers/fused_adam.py, initialize_state."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        store_param_remainders: bool = False,
        use_decoupled_grad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "step": 0, "weight_decay": kwargs.get("weight_decay", 0.0)})
        self.master_weights, self.store_param_remainders = master_weights, store_param_remainders
        self.use_decoupled_grad = use_decoupled_grad
        self.kinds = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        self.master_weight_dtype = master_weight_dtype

    def initialize_state(self, parameter: torch.Tensor, store_param_remainders: bool = False) -> None:
        """Moments, and a master copy, or its lower 16 bits, where the optimizer keeps one."""
        state = self.state[parameter]
        for name, dtype in self.kinds.items():
            state[name] = torch.empty_like(parameter, dtype=dtype)
        if self.master_weights:
            halves = self.store_param_remainders and parameter.dtype == torch.bfloat16
            state["master_param"] = torch.empty_like(
                parameter, dtype=torch.int16 if halves else self.master_weight_dtype
            )

    def step(self, closure: Any = None, **_: Any) -> None:  # type: ignore[override]
        """One fused kernel a group."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            LEDGER.kernel()
            for parameter in group["params"]:
                grad = (
                    getattr(parameter, "decoupled_grad", None) if self.use_decoupled_grad else parameter.grad
                )
                if grad is not None and not self.state[parameter]:
                    self.initialize_state(parameter)
