"""One rank of a plan with real Megatron-Core and nothing computed: `python -m executor.workers.dryrun [JOB.json]`.

Without a job, paths of jobs come on standard input, a line each; each is traced in a fork of this process, which has
loaded everything, and its exit status is written to standard output.

Builds the model of one pipeline stage in a fake world of the plan's full size, under fake tensors, runs forward and
backward of the schedule and the optimizer's step, and writes what it counted to amounts-STAGE.json beside the job
(`costmodel.rank_amounts`). On failure: failure-STAGE.json with one line, and exit 1.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from costmodel.rank_amounts import Message, RankAmounts
from executor.workers import cpu_shim, fake_world, leash, te_like
from executor.workers.count import LEDGER, Counting
from executor.workers.groups import make_groups
from executor.workers.saved import Saved
from executor.workers.state import parameter_counts, state_bytes

# What jobs import while they build, so that it is there before they begin; torch's optimizers load the compiler.
LIBRARIES = (
    *("megatron.core.models.gpt", "megatron.core.models.gpt.gpt_layer_specs"),
    "megatron.core.models.gpt.experimental_attention_variant_module_specs",
    *("megatron.core.models.mamba", "megatron.core.models.mamba.mamba_layer_specs"),
    *("megatron.core.optimizer", "megatron.core.distributed", "megatron.core.pipeline_parallel.schedules"),
    *("executor.workers.build", "torch.testing._internal.distributed.fake_pg", "torch._dynamo"),
)


def serve() -> None:
    """Trace every job that is named, until nobody asks any more."""
    leash.tie(signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    load()
    gc.freeze()
    for line in sys.stdin:
        path = Path(line.removesuffix("\n"))
        child = os.fork()
        if not child:
            _be_the_child(path)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _be_the_child(path: Path) -> None:
    """Trace one job and end."""
    status = 1
    try:
        leash.tie(signal.SIGKILL)
        name = path.name.replace("job", "worker").replace(".json", ".log")
        log = os.open(path.with_name(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = main(path)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def load() -> None:
    """Load and patch everything that any job needs. Once a process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fake_world.compile_nothing()
    te_like.install(triton=True)
    cpu_shim.install()
    fake_world.patch()
    for library in LIBRARIES:
        importlib.import_module(library)


def main(path: Path) -> int:
    """Trace the job; the exit status."""
    job = json.loads(path.read_text())
    stage = job["stage"]
    try:
        amounts = trace(job)
    except Exception as error:
        reason = " ".join(str(error).split()) or _where(error)
        record = {
            "stage": stage,
            "error": f"{type(error).__name__}: {reason}",
            "traceback": traceback.format_exc(),
        }
        (path.parent / f"failure-{stage}.json").write_text(json.dumps(record))
        return 1
    (path.parent / f"amounts-{stage}.json").write_text(json.dumps(amounts.to_dict()))
    return 0


def _where(error: BaseException) -> str:
    """The failing line of an assertion without a text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}: {frame.line}"


def trace(job: dict[str, Any]) -> RankAmounts:
    """Build, run one step of `num_microbatches`, count."""
    plan = job["plan"]
    world = plan["dp"] * plan["cp"] * plan["tp"] * plan["pp"]
    fake_world.enter(world, job["stage"] * world // plan["pp"])
    make_groups(plan, seed=1)
    notes = list(job["notes"])
    counting = Counting()
    saved = Saved(LEDGER.live)
    with FakeTensorMode(allow_non_fake_inputs=True), counting:
        from executor.workers.build import build

        chunks, optimizer = build(job, notes)
        saved.install()
        base = LEDGER.live.now
        LEDGER.live.peak = base
        LEDGER.counting = True
        run_step(job, chunks)
        peak = LEDGER.live.peak - base
        if optimizer is not None:
            with LEDGER.during("optimizer"):
                optimizer.step()
        LEDGER.counting = False
        return amounts(job, chunks, optimizer, saved, peak, notes)


def run_step(job: dict[str, Any], chunks: list[Any]) -> None:
    """Forward and backward passes of the plan's schedule."""
    import megatron.core.pipeline_parallel.schedules as schedules

    schedules.forward_step = fake_world.during("forward", schedules.forward_step)
    schedules.backward_step = fake_world.during("backward", schedules.backward_step)
    # Weight gradients of the output layer that were put off, when all backward passes have run.
    schedules.drain_embedding_wgrad_compute = fake_world.during(
        "backward", fake_world.products_of("output", schedules.drain_embedding_wgrad_compute)
    )
    plan, several = job["plan"], len(chunks) > 1
    for chunk in chunks:
        chunk.zero_grad_buffer()
    iterators = [batches(job) for _ in chunks]
    with LEDGER.during("schedule"):
        schedules.get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iterators if several else iterators[0],
            model=chunks if several else chunks[0],
            num_microbatches=job["num_microbatches"],
            seq_length=job["workload"]["seq_len"],
            micro_batch_size=plan["micro_batch"],
            forward_only=False,
        )


def batches(job: dict[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
    """Micro-batches of one rank: its part of the sequence under context parallelism."""
    plan = job["plan"]
    shape = (plan["micro_batch"], job["workload"]["seq_len"] // plan["cp"])
    while True:
        yield {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "labels", "positions")} | {
            "mask": torch.ones(shape)
        }


def forward_step(iterator: Any, model: Any) -> tuple[torch.Tensor, Any]:
    """Megatron-LM's forward step: the loss is a mean over its mask."""
    batch = next(iterator)
    output = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])

    def loss_function(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = torch.sum(losses.view(-1).float() * batch["mask"].view(-1)) / batch["mask"].numel()
        return loss, {"loss": loss.detach()}

    return output, loss_function


def amounts(
    job: dict[str, Any], chunks: list[Any], optimizer: Any, saved: Saved, peak: int, notes: list[str]
) -> RankAmounts:
    """Everything counted, in the form that both sides share."""
    return RankAmounts(
        stage=job["stage"],
        num_microbatches=job["num_microbatches"],
        flops={
            _named(product, job): {kind: by_phase.get(kind, 0) for kind in ("forward", "backward")}
            for product, by_phase in sorted(LEDGER.flops.items())
        },
        messages=tuple(
            Message(operation, group, ranks, size, count, phase)
            for (operation, group, ranks, size, phase), count in sorted(LEDGER.messages.items())
        ),
        saved={name: size for name, size in saved.bytes.items() if size},
        parameters=parameter_counts(chunks),
        state=state_bytes(chunks, optimizer),
        peak=peak,
        operations=dict(LEDGER.operations),
        notes=tuple(dict.fromkeys(notes)),
    )


def _named(product: str, job: dict[str, Any]) -> str:
    """Megatron-Core multiplies by the gate of its shared experts with torch itself: the one product without a name."""
    gated = job["megatron"]["config"].get("moe_shared_expert_gate")
    return "shared_gate" if product == "other" and gated else product


if __name__ == "__main__":
    if sys.argv[1:]:
        load()
        sys.exit(main(Path(sys.argv[1])))
    serve()
