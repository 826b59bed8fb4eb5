"""CUDA graphs of layers in a run: captured once by Megatron-Core's helper, as Megatron-LM's training loop has it."""

from __future__ import annotations

from typing import Any

# Steps that run before graphs are captured: TransformerConfig.cuda_graph_warmup_steps of Megatron-Core 0.16.
BEFORE_CAPTURE = 3


class LayerGraphs:
    """Captures Transformer Engine's graphs of the layers after a few steps; without such graphs it does nothing."""

    def __init__(self, job: dict[str, Any], chunks: list[Any], optimizer: Any) -> None:
        fields = job["megatron"]["config"]
        self._job, self._chunks, self._optimizer = job, chunks, optimizer
        wanted = fields.get("cuda_graph_impl") == "transformer_engine"
        # Captured before the last step of the warm-up, so that a replay is warm too.
        self._at = min(BEFORE_CAPTURE, max(job["warmup"] - 1, 0)) if wanted else -1

    def before_step(self, index: int) -> bool:
        """Capture when it is time; whether it was. index: steps of this session that ended."""
        if index != self._at:
            return False
        from megatron.core import num_microbatches_calculator as calculator
        from megatron.core.transformer.cuda_graphs import TECudaGraphHelper
        from megatron.core.utils import get_model_config

        plan, workload = self._job["plan"], self._job["workload"]
        calculator.unset_num_microbatches_calculator()
        calculator.init_num_microbatches_calculator(
            rank=1,  # only rank 0 would log
            rampup_batch_size=None,
            global_batch_size=workload["global_batch"],
            micro_batch_size=plan["micro_batch"],
            data_parallel_size=plan["dp"],
        )
        helper = TECudaGraphHelper(
            self._chunks,
            get_model_config(self._chunks[0]),
            workload["seq_len"],
            plan["micro_batch"],
            [self._optimizer],
        )
        # Gathers of parameters hang on hooks before a module's forward pass, which a graph would capture.
        hooked = bool(self._job["megatron"]["ddp"].get("overlap_param_gather")) and index > 0
        if hooked:
            for chunk in self._chunks:
                chunk.disable_forward_pre_hook(param_sync=False)
        helper.create_cudagraphs()
        if hooked:
            for chunk in self._chunks:
                chunk.enable_forward_pre_hook()
            helper.cuda_graph_set_manual_hooks()
        return True


def replayed(modules: list[Any]) -> str:
    """What the receipt says of captured graphs; "" without any."""
    layers = [module for module in modules if getattr(module, "cuda_graphs", None)]
    return f"graphs of {len(layers)} layers" if layers else ""
