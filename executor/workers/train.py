"""One rank of a real training run with Megatron-Core: `python -m executor.workers.train JOB.json`.

Started by torchrun. Builds the plan's model, trains on generated tokens or an indexed dataset, and writes what it
measures: rank 0 appends one line a step to steps.jsonl, tells of all ranks in ranks.json and, at the end, of one
typical step in timeline.json; every rank its memory at the end.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

import torch
import torch.distributed as dist

from executor.workers import last_words, measure
from executor.workers.data import batches, own_chunks, source
from executor.workers.device import take_device
from executor.workers.layer_graphs import LayerGraphs
from executor.workers.quiet import QuietClock
from executor.workers.stopwatch import HostClock, Stopwatch, StreamClock
from executor.workers.user_buffers import make_user_buffers

LIBRARIES = ("megatron.core.models.gpt", "megatron.core.optimizer", "megatron.core.distributed")
COLLECT_EVERY = 100  # steps between two collections of garbage where the plan says when


def main(job_path: Path) -> None:
    """Run the job; any failure leaves its reason in failure-RANK.json."""
    rank = int(os.environ["RANK"])
    out = job_path.parent
    try:
        train(json.loads(job_path.read_text()) | {"out": str(out)}, out, rank)
    except BaseException as error:
        last_words.leave_reason(out, rank, error)
        raise


def train(job: dict[str, Any], out: Path, rank: int) -> None:
    """Build, train, measure."""
    last_words.pulse("the start")
    cuda = job["device"] == "cuda"
    watch = Stopwatch(StreamClock() if cuda else HostClock())
    watch.watch_collectives()
    join(job, cuda)
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from executor.workers.groups import make_groups
    from executor.workers.training_model import build

    # Memory is counted beyond what the libraries take: load them all first.
    for library in LIBRARIES:
        importlib.import_module(library)
    base_memory = measure.memory(cuda)["allocated" if cuda else "resident"]
    notes: list[str] = []
    measure.count_recompute()
    make_groups(job["plan"], seed=1234, te_rng_tracker=job["plan"]["cuda_graph"])
    if cuda:
        make_user_buffers(job)
    chunks, optimizer = build(job, cuda, notes)
    graphs = LayerGraphs(job, chunks, optimizer)
    watch.watch_phases()
    if job["plan"]["fsdp"]:
        watch.watch_events("dp")
    draw = source(job)
    run_step = stepper(job, chunks, optimizer, watch, get_forward_backward_func(), cuda)
    steps = StepFile(out / "steps.jsonl") if rank == 0 else None
    if job["plan"]["manual_gc"]:
        gc.collect()
        gc.disable()
    kept: deque[measure.Kept] = deque(maxlen=measure.KEPT_STEPS)
    for index in range(job["steps"]):
        step = job["first_step"] + index
        data = batches(job, draw, step, parallel_state.get_data_parallel_rank())
        captured = graphs.before_step(index)
        record, spans = run_step(data)
        if index < 2 or captured:
            # The optimizer has its state after the first step; gradients are sent as they come from the second on.
            facts = measure.everyone(measure.rank_facts(chunks, optimizer, watch, cuda))
            if rank == 0:
                write_whole(out / "ranks.json", {"ranks": facts, "notes": notes})
        if steps is not None:
            known = {"step": step, "warmup": index < job["warmup"], "session": job["session"]}
            rate = job["workload"]["seq_len"] * job["workload"]["global_batch"] / record["seconds"]
            steps.append(known | {"tokens_per_second": round(rate, 1)} | record)
        if index >= job["warmup"]:
            kept.append((step, record["seconds"], spans))
        last_words.pulse(f"step {step}")
        if record["loss"] is not None and not math.isfinite(record["loss"]):
            raise FloatingPointError(f"the loss is {record['loss']} at step {step}")
        if job["plan"]["manual_gc"] and step % COLLECT_EVERY == COLLECT_EVERY - 1:
            gc.collect()
    memory = {
        "rank": rank,
        "base_bytes": base_memory,
        "peak_bytes": measure.peak(cuda),
        "device": job["device"],
    }
    ranks = measure.everyone(memory)
    for each in ranks if rank == 0 else []:
        write_whole(out / f"memory-{each['rank']}.json", each)
    timeline = measure.typical_step(kept)
    if rank == 0 and timeline is not None:
        write_whole(out / "timeline.json", timeline)
    dist.barrier()
    dist.destroy_process_group()


def join(job: dict[str, Any], cuda: bool) -> None:
    """Take this rank's device and meet the others."""
    if cuda:
        if not torch.cuda.is_available():
            raise RuntimeError(f"this torch ({torch.__version__}) finds no CUDA device it can use")
        take_device()
        if job["plan"]["cuda_graph"]:
            # As Megatron-LM: what is built on the legacy stream cannot be captured.
            torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        # Without a device_id: with one, NCCL gives every group its buffers at once, those of one rank and those that
        # are never used too (0.4 GiB each on an H200).
        dist.init_process_group("nccl")
        return
    torch.set_num_threads(int(job["threads"]))
    from executor.workers import cpu_shim, no_compiler

    dist.init_process_group("gloo")  # asks the compiler to forget, where one is loaded
    no_compiler.install()
    cpu_shim.install()


def stepper(
    job: dict[str, Any], chunks: list[Any], optimizer: Any, watch: Stopwatch, schedule: Any, cuda: bool
) -> Any:
    """A function that trains one step on micro-batches and gives its record, and its spans on this rank."""
    clock, cp = QuietClock(), job["plan"]["cp"]

    def forward_step(iterator: Any, model: Any) -> tuple[torch.Tensor, Any]:
        return forward(iterator, model, cp)

    def run_step(data: list[dict[str, torch.Tensor]]) -> tuple[dict[str, Any], Any]:
        iterators = [iter(data) for _ in chunks]
        several = len(chunks) > 1
        dist.barrier()
        if cuda:
            torch.cuda.synchronize()
        watch.reset()
        queued, start = clock.queued(), time.perf_counter()
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = schedule(
            forward_step_func=forward_step,
            data_iterator=iterators if several else iterators[0],
            model=chunks if several else chunks[0],
            num_microbatches=job["num_microbatches"],
            seq_length=job["workload"]["seq_len"],
            micro_batch_size=job["plan"]["micro_batch"],
            forward_only=False,
        )
        with watch.phase("optimizer"):
            _, grad_norm, _ = optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        wall = time.perf_counter() - start
        spans = watch.spans()  # before the ranks talk about the step
        return measure.gather(wall, clock.queued() - queued, watch, losses, grad_norm, cuda), spans

    return run_step


def forward(iterator: Any, model: Any, cp: int) -> tuple[torch.Tensor, Any]:
    """Megatron-Core's forward step: output and a function from output to loss.

    Schedules multiply the loss by the ranks of a sequence, as Megatron-LM's sums over them ask for; ours is a mean.
    """
    from megatron.core import parallel_state

    own = own_chunks(next(iterator), parallel_state.get_context_parallel_rank(), cp)
    batch = {name: tensor.cuda(non_blocking=True) for name, tensor in own.items()}
    output = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])

    def loss_function(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.float().mean()
        return loss / cp, {"loss": loss.detach().clone()}

    return output, loss_function


class StepFile:
    """Lines of JSON that are on the disk when `append` returns; a line that a kill cut short is taken away first."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            whole = path.read_bytes()
            with path.open("r+b") as file:
                file.truncate(whole.rfind(b"\n") + 1)
        self._file = path.open("a")

    def append(self, record: dict[str, Any]) -> None:
        """One more line."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def write_whole(path: Path, content: Any) -> None:
    """Write whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=2))
    os.replace(temporary, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
