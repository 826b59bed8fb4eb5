"""What can be checked on one GPU, in less than eight minutes: `python -m executor.gpu_checks`.

Calibrates the device (products, attention, memory), then trains Llama-like stacks and a mixture of experts through
the same path as `advisor run`, and prints predicted beside measured: with the constants that ship, with kernels just
measured, and with what the other runs taught on top (`advisor calibrate --from`). Keeps the records and both profiles
in a folder of hardware_db/measured. What does not fit into the time is left out and named.
"""

from __future__ import annotations

import argparse
import datetime
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import hardware_db
from costmodel.model_spec import ModelSpec, Moe
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor import calibrate, run
from executor.devices import gpu_here
from executor.resolve import resolve
from hardware_db import Cluster

SECONDS = 470.0  # of eight minutes
CALIBRATE = 60.0
# A stack is started only with this much time left: most of it goes into importing and compiling. [s]
STACK = 50.0
# What learning from the runs takes. [s]
LEARN = 20.0
STEPS, WARMUP, GLOBAL_BATCH = 8, 4, 4


@dataclass(frozen=True)
class Stack:
    """A model to train on one device."""

    model: ModelSpec
    seq_len: int
    recompute: str = "none"
    precision: str = "bf16"

    @property
    def name(self) -> str:
        """Such as hidden4096-8192-full-bf16."""
        return f"{self.model.name}-{self.seq_len}-{self.recompute}-{self.precision}"


def llama(hidden: int, layers: int, moe: Moe | None = None) -> ModelSpec:
    """A shallow Llama: head dimension 128, eight key-value heads, 8/3 h in the MLP."""
    return ModelSpec(
        name=f"{'experts' if moe else 'hidden'}{hidden}",
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=-(-8 * hidden // (3 * 256)) * 256,
        num_heads=hidden // 128,
        num_kv_heads=8,
        head_dim=128,
        vocab=32000,
        moe=moe,
        source="this project: stacks for checks on one device",
    )


STACKS = (
    Stack(llama(4096, 8), 8192),
    Stack(llama(2048, 16), 4096),
    Stack(llama(8192, 3), 4096),
    Stack(llama(8192, 3), 8192, "full"),
    Stack(llama(2048, 6, Moe(num_experts=8, topk=2, expert_ffn=4096)), 4096),
    Stack(llama(4096, 8), 8192, precision="fp8-cs"),
    Stack(llama(8192, 3), 4096, precision="fp8-cs"),
)


@dataclass(frozen=True)
class Row:
    """One stack: seconds measured, and predicted with shipped constants, with kernels measured here, and with what the
    other runs taught (nan where there are too few); bytes of live tensors on the worst rank, and predicted."""

    name: str
    measured: float
    shipped: float
    kernels: float
    memory: float
    memory_predicted: float
    others: float = math.nan


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all that fits into the time; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m executor.gpu_checks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time in all")
    parser.add_argument("--out", type=Path, default=None, help="folder [hardware_db/measured/GPU-DATE]")
    given = parser.parse_args(arguments)
    if not run.has_cuda():
        print("Error: there is no NVIDIA device here. Run this where there is one.", file=sys.stderr)
        return 2
    gpu = gpu_here()
    shipped = Path(hardware_db.__file__).parent / "measured"
    out = given.out or shipped / f"{gpu}-{datetime.date.today().isoformat()}"
    end = time.monotonic() + given.seconds
    rows, left_out = check(STACKS, hardware_db.resolve(gpu, None)[0], out, end, say)
    print(table(rows, left_out))
    print(f"records and profile: {out}")
    return 0 if rows and not left_out else 1


def say(line: str) -> None:
    """What goes on, as it goes on."""
    print(f"  {line}", file=sys.stderr, flush=True)


def check(
    stacks: Sequence[Stack], cluster: Cluster, out: Path, end: float, tell: Callable[[str], None]
) -> tuple[list[Row], list[str]]:
    """Calibrate, train the stacks until `end` (of time.monotonic), and what was left out or failed, a line each."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "profile.toml"
    rows: list[Row] = []
    left_out: list[str] = []
    own = cluster
    try:
        seconds = min(CALIBRATE, (end - time.monotonic()) / 3)
        if calibrate.calibrate_here(1, seconds, path, tell) is not None:
            own = hardware_db.load_cluster(str(path))
    except (RuntimeError, ValueError) as error:
        left_out.append(f"calibration: {error}")
    for stack in stacks:
        left = end - time.monotonic() - LEARN
        if left < STACK:
            left_out.append(f"{stack.name}: no time left")
            continue
        try:
            rows.append(train(stack, cluster, own, out / stack.name, left, tell))
        except (RuntimeError, ValueError) as error:
            left_out.append(f"{stack.name}: {error}")
    if len(rows) > 1:
        learned = calibrate.calibrate_from([out / row.name for row in rows], own, out / "learned.toml")
        apart = learned.outcome.apart if learned.outcome else {}
        rows = [
            replace(row, others=row.measured * math.exp(apart[row.name])) if row.name in apart else row
            for row in rows
        ]
    return rows, left_out


def train(
    stack: Stack, cluster: Cluster, own: Cluster, folder: Path, limit: float, tell: Callable[[str], None]
) -> Row:
    """Train one stack and keep its record."""
    machine = run.here()
    asked = Plan(precision=stack.precision if machine.cuda else "fp32", recompute=stack.recompute)
    plan, _ = resolve(asked, stack.model, machine)
    workload = Workload(stack.seq_len, GLOBAL_BATCH)
    shipped, calibrated = (predict(stack.model, workload, each, plan) for each in (cluster, own))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tell(f"{stack.name}: {calibrated.step_time_s:.2f} s a step predicted")
    result = run.execute(
        plan,
        workload,
        stack.model,
        predicted=calibrated.to_dict(),
        steps=STEPS,
        warmup=WARMUP,
        out=folder,
        progress=tell,
        limit=limit,
        requested=asked,
        variables=run.cuda_variables(calibrated, cluster) if machine.cuda else None,
    )
    allocated = result.measured.get("peak_allocated_bytes")
    return Row(
        stack.name,
        result.measured["step_time_s"],
        shipped.step_time_s,
        calibrated.step_time_s,
        max(allocated or result.measured["peak_memory_bytes"]),
        calibrated.allocated_bytes if allocated else calibrated.memory.value,
    )


def table(rows: Sequence[Row], left_out: Sequence[str]) -> str:
    """Predicted beside measured, one line a stack, and the median errors."""
    names = {"shipped": "as shipped", "kernels": "kernels measured", "others": "told by the others"}
    lines = [
        f"{'stack':29} {'measured':>9} "
        + " ".join(f"{title:>18}" for title in names.values())
        + "  live tensors"
    ]
    for row in rows:
        told = " ".join(_told(getattr(row, name), row.measured) for name in names)
        lines.append(
            f"{row.name:29} {row.measured:8.3f}s {told}  {row.memory / 2**30:6.1f} GiB "
            f"{row.memory_predicted / row.memory - 1:+6.1%}"
        )
    for name, title in names.items():
        errors = sorted(abs(getattr(row, name) / row.measured - 1) for row in rows)
        known = [error for error in errors if not math.isnan(error)]
        if known:
            lines.append(f"median error, {title}: {known[len(known) // 2]:.1%}")
    return "\n".join([*lines, *(f"left out: {one}" for one in left_out)])


def _told(predicted: float, measured: float) -> str:
    return f"{'-':>18}" if math.isnan(predicted) else f"{predicted:9.3f}s {predicted / measured - 1:+7.1%}"


if __name__ == "__main__":
    sys.exit(main())
