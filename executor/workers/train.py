"""One rank of a real training run with Megatron-Core: `python -m executor.workers.train JOB.json`.

Started by torchrun. Builds the plan's model, trains on generated tokens with a structure to learn, and
writes what it measures: rank 0 appends one line a step to steps.jsonl, every rank its memory at the end.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

import torch
import torch.distributed as dist

from executor.workers import last_words
from executor.workers.stopwatch import Stopwatch

# Tokens that the generated text uses; few, so that a small model learns it in some steps.
ALPHABET = 64


def main(job_path: Path) -> None:
    """Run the job; any failure leaves its reason in failure-RANK.json."""
    rank = int(os.environ["RANK"])
    out = job_path.parent
    try:
        train(json.loads(job_path.read_text()), out, rank)
    except BaseException as error:
        last_words.leave_reason(out, rank, error)
        raise


def train(job: dict[str, Any], out: Path, rank: int) -> None:
    """Build, train, measure."""
    last_words.pulse("the start")
    cuda = torch.cuda.is_available() and job["device"] == "cuda"
    watch = Stopwatch()
    watch.watch_collectives()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(int(job["threads"]))
        from executor.workers import cpu_shim

        cpu_shim.install()
    dist.init_process_group("nccl" if cuda else "gloo")
    plan = job["plan"]
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    # Memory is counted beyond what the libraries take: load them all first.
    for library in ("megatron.core.models.gpt", "megatron.core.optimizer", "megatron.core.distributed"):
        importlib.import_module(library)
    base_memory = memory_now(cuda)
    chunks, optimizer = build(job, cuda)
    watch.watch_phases()
    forward_backward = get_forward_backward_func()
    num_microbatches = job["num_microbatches"]
    steps = (out / "steps.jsonl").open("a", buffering=1) if rank == 0 else None
    for step in range(job["steps"]):
        data = batches(job, step, parallel_state.get_data_parallel_rank())
        iterators = [iter(data) for _ in chunks]
        dist.barrier()
        watch.reset()
        start = time.perf_counter()
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=iterators if len(chunks) > 1 else iterators[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=num_microbatches,
            seq_length=job["workload"]["seq_len"],
            micro_batch_size=plan["micro_batch"],
            forward_only=False,
        )
        with watch.phase("optimizer"):
            _, grad_norm, _ = optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        wall = time.perf_counter() - start
        record = gather(wall, dict(watch.seconds), losses, grad_norm)
        if steps is not None:
            steps.write(json.dumps({"step": step, "warmup": step < job["warmup"], **record}) + "\n")
        last_words.pulse(f"step {step}")
        if record["loss"] is not None and not math.isfinite(record["loss"]):
            raise FloatingPointError(f"the loss is {record['loss']} at step {step}")
    memory = {
        "rank": rank,
        "base_bytes": base_memory,
        "peak_bytes": memory_peak(cuda),
        "device": "cuda" if cuda else "cpu",
    }
    (out / f"memory-{rank}.json").write_text(json.dumps(memory))
    dist.barrier()
    dist.destroy_process_group()


def build(job: dict[str, Any], cuda: bool) -> tuple[list[Any], Any]:
    """Model chunks wrapped for data parallelism, and the optimizer, of this rank."""
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig

    from executor.workers.modules import block_spec
    from executor.workers.weights import initialise

    plan, model = job["plan"], job["model"]
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=plan["tp"],
        pipeline_model_parallel_size=plan["pp"],
        virtual_pipeline_model_parallel_size=plan["vpp"] if plan["vpp"] > 1 else None,
    )
    torch.manual_seed(1234)
    model_parallel_cuda_manual_seed(1234)
    dtype = torch.bfloat16 if plan["precision"] != "fp32" else torch.float32
    activation = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}.get(
        model["activation"], torch.nn.functional.gelu
    )
    config = TransformerConfig(
        **job["transformer_config"],
        activation_func=activation,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
    )
    spec = block_spec(config, model["qk_norm"])
    ddp = DistributedDataParallelConfig(**job["ddp_config"])
    chunks = []
    for stage in range(plan["vpp"]):
        virtual = stage if plan["vpp"] > 1 else None
        if virtual is not None:
            parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=virtual is None, vp_stage=virtual)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=virtual is None, vp_stage=virtual)
        chunk = GPTModel(
            config=config,
            transformer_layer_spec=spec(virtual),
            vocab_size=model["padded_vocab"],
            max_sequence_length=job["workload"]["seq_len"],
            pre_process=first,
            post_process=last,
            parallel_output=True,
            share_embeddings_and_output_weights=model["tied_embeddings"],
            position_embedding_type="learned_absolute" if model["learned_positions"] else "rope",
            vp_stage=virtual,
        )
        initialise(chunk, config)
        chunk = chunk.cuda() if cuda else chunk
        chunks.append(DistributedDataParallel(config, ddp, chunk))
    config.no_sync_func = [chunk.no_sync for chunk in chunks] if len(chunks) > 1 else chunks[0].no_sync
    config.finalize_model_grads_func = finalize_model_grads
    if job["ddp_config"]["overlap_grad_reduce"]:
        starts = [chunk.start_grad_sync for chunk in chunks]
        config.grad_sync_func = starts if len(chunks) > 1 else starts[0]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=job["learning_rate"],
            weight_decay=0.01,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            clip_grad=1.0,
            use_distributed_optimizer=job["ddp_config"]["use_distributed_optimizer"],
            overlap_param_gather=job["ddp_config"]["overlap_param_gather"],
        ),
        chunks,
    )
    config.grad_scale_func = optimizer.scale_loss
    return chunks, optimizer


def batches(job: dict[str, Any], step: int, data_rank: int) -> list[dict[str, torch.Tensor]]:
    """Micro-batches of noisy arithmetic sequences: nine tokens of ten follow from the one before.

    A sequence depends on its place in the global batch only, so that every layout trains on the same text.
    """
    length, size = job["workload"]["seq_len"], job["plan"]["micro_batch"]
    draws = []
    for index in range(job["num_microbatches"]):
        first = (index * job["plan"]["dp"] + data_rank) * size
        for place in range(first, first + size):
            draw = torch.Generator().manual_seed(step * 1_000_003 + place)
            noise = torch.randint(0, ALPHABET, (length + 1,), generator=draw)
            draws.append((noise, torch.rand(length + 1, generator=draw) < 0.9))
    # Positions first: the rule walks along them for all sequences at once.
    tokens = torch.stack([noise for noise, _ in draws], dim=1)
    follow = torch.stack([kept for _, kept in draws], dim=1)
    for position in range(1, length + 1):
        next_token = (5 * tokens[position - 1] + 7) % ALPHABET
        tokens[position] = torch.where(follow[position], next_token, tokens[position])
    return [
        {
            "tokens": part[:, :-1].contiguous(),
            "labels": part[:, 1:].contiguous(),
            "positions": torch.arange(length).expand(size, -1),
        }
        for part in tokens.T.contiguous().split(size)
    ]


def forward_step(iterator: Any, model: Any) -> tuple[torch.Tensor, Any]:
    """Megatron-Core's forward step: output and a function from output to loss."""
    batch = {name: tensor.cuda() for name, tensor in next(iterator).items()}
    output = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])

    def loss_function(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.float().mean()
        return loss, {"loss": loss.detach().clone()}

    return output, loss_function


def gather(wall: float, seconds: dict[str, float], losses: list[Any], grad_norm: Any) -> dict[str, Any]:
    """One record of the step from all ranks: slowest wall time, mean phases, mean loss."""
    mine = {"wall": wall, "seconds": seconds, "losses": [float(entry["loss"]) for entry in losses]}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    names = sorted({name for entry in everyone for name in entry["seconds"]})
    values = [loss for entry in everyone for loss in entry["losses"]]
    return {
        "seconds": max(entry["wall"] for entry in everyone),
        "loss": sum(values) / len(values) if values else None,
        "grad_norm": float(grad_norm) if grad_norm is not None else None,
        "phases": {
            name: sum(entry["seconds"].get(name, 0.0) for entry in everyone) / len(everyone) for name in names
        },
    }


def memory_now(cuda: bool) -> int:
    """Bytes of this rank: allocated on the GPU, else resident."""
    if cuda:
        return int(torch.cuda.memory_allocated())
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def memory_peak(cuda: bool) -> int:
    """Peak bytes of this rank: allocated on the GPU, else resident."""
    if cuda:
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]))
