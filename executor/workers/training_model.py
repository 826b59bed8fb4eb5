"""Model chunks and optimizer of one rank of a real run, from Megatron-Core's own specifications."""

from __future__ import annotations

from typing import Any

from executor.workers.build import to_dtype
from executor.workers.config import DTYPES, make


def build(job: dict[str, Any], cuda: bool, notes: list[str]) -> tuple[list[Any], Any]:
    """Model chunks wrapped for data parallelism, and the optimizer, of this rank; groups are made before."""
    from megatron.core import parallel_state, transformer
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from executor.workers.modules import install_local
    from executor.workers.weights import initialise

    plan, megatron = job["plan"], job["megatron"]
    if not job["te"]:
        install_local()
    config = make(getattr(transformer, megatron["config_class"]), megatron["config"], notes)
    wrap, ddp = data_parallel(plan, megatron["ddp"], notes)
    chunks = []
    for stage in range(plan["vpp"]) if plan["vpp"] > 1 else [None]:
        if stage is not None:
            parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
        chunk = chunk_of(config, job, stage)
        to_dtype(chunk, DTYPES[megatron["config"]["params_dtype"]])
        initialise(chunk, config)
        chunk = chunk.cuda() if cuda else chunk
        # The last chunks' buckets are not overlapped in an interleaved schedule, as Megatron-LM has it.
        later = stage is not None and stage > 0
        chunks.append(wrap(config, ddp, chunk, disable_bucketing=later))
    config.finalize_model_grads_func = finalize_model_grads
    if ddp.overlap_grad_reduce:
        config.no_sync_func = one_or_all([each.no_sync for each in chunks])
        # All stages reduce at the same time, as Megatron-LM has it unless asked otherwise.
        config.grad_sync_func = one_or_all([each.start_grad_sync for each in chunks])
    settings = make(
        OptimizerConfig,
        {**megatron["optimizer"], "lr": job["learning_rate"], "weight_decay": 0.01},
        notes,
    )
    optimizer = get_megatron_optimizer(settings, chunks, use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    return chunks, optimizer


def data_parallel(plan: dict[str, Any], fields: dict[str, Any], notes: list[str]) -> tuple[Any, Any]:
    """Megatron-Core's class that wraps a chunk, and its configuration."""
    from megatron.core import distributed

    if not plan["fsdp"]:
        return distributed.DistributedDataParallel, make(
            distributed.DistributedDataParallelConfig, fields, notes
        )
    if plan["fsdp_implementation"] == "torch":

        class TorchFsdp(distributed.TorchFullyShardedDataParallel):  # type: ignore[misc]
            """Megatron-Core 0.16.1 tells it to reduce by force, a word that it does not take."""

            def finish_grad_sync(self, force_all_reduce: bool = False) -> None:
                """Nothing: PyTorch reduces in the backward pass."""

        return TorchFsdp, make(distributed.TorchFullyShardedDataParallelConfig, fields, notes)
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    return FullyShardedDataParallel, make(distributed.DistributedDataParallelConfig, fields, notes)


def one_or_all(chunks: list[Any]) -> Any:
    """What Megatron-Core's schedules take: a list where stages are interleaved, else the one."""
    return chunks if len(chunks) > 1 else chunks[0]


def chunk_of(config: Any, job: dict[str, Any], stage: int | None) -> Any:
    """One GPTModel chunk of this pipeline rank; `stage` is its virtual stage, None without interleaving."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel

    from executor.workers.modules import gpt_specs

    first = parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage)
    spec, heads = gpt_specs(config, stage, job["te"])
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        mtp_block_spec=heads,
        vp_stage=stage,
        pre_process=first,
        post_process=last,
        parallel_output=True,
        **job["megatron"]["arguments"],
    )
