"""What can be checked on one GPU, in less than eight minutes: `python -m executor.gpu_checks`.

Calibrates the device (products, attention, memory), then trains Llama-like stacks and a mixture of experts through
the same path as `advisor run`, and prints predicted beside measured: with the constants that ship, with kernels just
measured, and with what the other runs taught on top (`advisor calibrate --from`). Keeps the records and both profiles
in a folder of hardware_db/measured. What does not fit into the time is left out and named.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import hardware_db
from costmodel.model_spec import ModelSpec
from costmodel.model_tables import Moe
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor import calibrate, run, shared_ranks
from executor.devices import gpu_here
from executor.fresh_run import run_fresh
from executor.gpu_records import LEARNED, PROFILE, read_rows, records_of, table
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
    micro_batch: int = 1

    @property
    def name(self) -> str:
        """Such as hidden4096-8192-mb1-full-bf16."""
        return f"{self.model.name}-{self.seq_len}-mb{self.micro_batch}-{self.recompute}-{self.precision}"


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
    Stack(llama(2048, 16), 4096, micro_batch=4),
    Stack(llama(8192, 3), 4096),
    Stack(llama(8192, 3), 8192, "full"),
    Stack(llama(2048, 6, Moe(num_experts=8, topk=2, expert_ffn=4096)), 4096, micro_batch=4),
    Stack(llama(4096, 8), 8192, precision="fp8-cs"),
    Stack(llama(8192, 3), 4096, precision="fp8-cs"),
    # Narrow layers and short passes: the host can be what a step waits for.
    Stack(llama(2048, 16), 4096),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all that fits into the time; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m executor.gpu_checks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time in all, not of --shared-ranks")
    parser.add_argument("--out", type=Path, default=None, help="folder [hardware_db/measured/GPU-DATE]")
    parser.add_argument(
        "--shared-ranks", action="store_true", help="plans of several ranks on one GPU instead"
    )
    parser.add_argument("--only", default="", help="with --shared-ranks, checks whose name holds this")
    given = parser.parse_args(arguments)
    chosen = [each for each in shared_ranks.CHECKS if given.only in each.name]
    try:
        if not run.has_cuda():
            raise ValueError("there is no NVIDIA device here. Run this where there is one.")
        if given.only and not given.shared_ranks:
            raise ValueError("--only chooses among plans of several ranks. Try it with --shared-ranks.")
        if not chosen:
            names = ", ".join(each.name for each in shared_ranks.CHECKS)
            raise ValueError(f"--only {given.only!r} is in the name of no check. There are {names}.")
        gpu = gpu_here()
    except ValueError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    cluster = hardware_db.resolve(gpu, None)[0]
    if given.shared_ranks:
        return shared(chosen, cluster, given.out)
    shipped = Path(hardware_db.__file__).parent / "measured"
    out = given.out or shipped / f"{gpu}-{datetime.date.today().isoformat()}"
    end = time.monotonic() + given.seconds
    left_out = check(STACKS, cluster, out, end, say)
    rows = read_rows(out, cluster)
    print("\n".join([*table(rows), *(f"left out: {one}" for one in left_out)]))
    print(f"records and profiles: {out}")
    return 0 if rows and not left_out else 1


def shared(chosen: Sequence[shared_ranks.Check], cluster: Cluster, out: Path | None) -> int:
    """Check plans of several ranks on this GPU; the exit status. Records are kept where `out` says."""
    with contextlib.ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shared-ranks-")))
        found = shared_ranks.check_all(chosen, cluster, folder, say)
    print("\n".join(each.line() for each in found))
    bad = sum(bool(each.wrong) for each in found)
    print(f"{len(found)} plans, {bad} with something wrong")
    return 1 if bad else 0


def say(line: str) -> None:
    """What goes on, as it goes on."""
    print(f"  {line}", file=sys.stderr, flush=True)


def check(
    stacks: Sequence[Stack], cluster: Cluster, out: Path, end: float, tell: Callable[[str], None]
) -> list[str]:
    """Calibrate, train the stacks until `end` (of time.monotonic), learn from them; what was left out or failed."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / PROFILE
    left_out: list[str] = []
    own = cluster
    try:
        seconds = min(CALIBRATE, (end - time.monotonic()) / 3)
        if calibrate.calibrate_here(1, seconds, path) is not None:
            own = hardware_db.load_cluster(str(path))
    except (RuntimeError, ValueError) as error:
        left_out.append(f"calibration: {error}")
    for stack in stacks:
        left = end - time.monotonic() - LEARN
        if left < STACK:
            left_out.append(f"{stack.name}: no time left")
            continue
        try:
            train(stack, own, out / stack.name, left, tell)
        except (RuntimeError, ValueError) as error:
            left_out.append(f"{stack.name}: {error}")
    records = records_of(out)
    if records:
        calibrate.calibrate_from(records, own, out / LEARNED)
    return left_out


def train(stack: Stack, cluster: Cluster, folder: Path, limit: float, tell: Callable[[str], None]) -> None:
    """Train one stack and keep its record."""
    asked = Plan(
        micro_batch=stack.micro_batch,
        precision=stack.precision if run.has_cuda() else "fp32",
        recompute=stack.recompute,
    )
    run_fresh(
        asked,
        Workload(stack.seq_len, GLOBAL_BATCH),
        stack.model,
        cluster,
        folder,
        steps=STEPS,
        warmup=WARMUP,
        limit=limit,
        tell=tell,
    )


if __name__ == "__main__":
    sys.exit(main())
