"""How many GPUs a run had whose log does not say it: by its micro-batches, or by the rate that it counts."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from executor.logs.compare import last_batch
from executor.logs.record import Log

if TYPE_CHECKING:
    from advisor.case import Case

# Lines at the end of a log whose rate is taken; how far the count of replicas by it may lie from a whole number [1],
# for frameworks count the FLOP of a step by other conventions than ours.
LINES, APART = 50, 0.2


def gpus_by_work(log: Log, case: Case) -> tuple[int, str] | None:
    """GPUs of a run and how that is known; None where the log does not tell. case: of the run, on any number of them.

    Micro-batches of a replica tell the replicas: global batch / (micro-batch x micro-batches). Else the FLOP of a step
    over the time of a step and the FLOP/s of a GPU, as Megatron-Bridge and Megatron-LM's --log-throughput print them.
    """
    plan, batch = case.plan, last_batch(log) or case.workload.global_batch
    each = log.num_microbatches * plan.micro_batch
    if each and batch % each == 0:
        told = f"{batch:,} sequences a step in {log.num_microbatches:,} micro-batches of {plan.micro_batch:,}"
        return batch // each * plan.replica, told
    rates = [line.tflops * line.seconds for line in log.iterations[-LINES:] if line.tflops and line.seconds]
    if not rates:
        return None
    one = case.predict(judged=False)
    work = one.model_tflops_per_gpu * one.step_time_s * plan.world  # of a step [TFLOP]
    replicas = work / statistics.median(rates) / plan.replica
    nearest = round(replicas)
    if nearest < 1 or abs(replicas / nearest - 1) > APART or batch % (nearest * plan.micro_batch):
        return None
    return nearest * plan.replica, "the FLOP/s of a GPU that it prints"
