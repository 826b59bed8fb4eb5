"""Predicted against measured compute on a machine that other work shares: the five models of local_accuracy.py.

    python benchmarks/local_compute.py --profile NAME [--only NAMES] [--repeats 2]

Forward, backward and optimizer of a rank, mean over the ranks, on a clock that stands still while the rank waits for
a core (`executor.workers.probe`); messages and waiting are left out. So a busy machine can say whether the compute
terms hold, which is what calibration is about; the whole step needs a quiet one (local_accuracy.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomli_w
from local_accuracy import CASES, TOLERANCE
from tabulate import tabulate

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor.calibrate_probes import run_probe
from executor.calibrate_records import part_of
from executor.launch import RunFailed
from executor.record import read_steps
from executor.resolve import resolve
from executor.run import here
from hardware_db import Cluster

PHASES = ("forward", "backward", "optimizer")


def main() -> None:
    """Run, print, exit 1 when the median error is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    from advisor.profiles import find

    cluster = hardware_db.load_cluster(str(find(arguments.profile)))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    rows, errors, spreads = [], [], []
    for case in CASES:
        if arguments.only and case[0] not in arguments.only.split(","):
            continue
        try:
            predicted, seen = measure(case, cluster, arguments.repeats)
        except (ValueError, RunFailed) as error:
            print(f"{case[0]} did not run: {error}", flush=True)
            continue
        typical, spread = statistics.median(seen), max(seen) / min(seen) - 1
        error = predicted / typical - 1
        errors.append(abs(error))
        spreads.append(spread)
        rows.append((case[0], f"{predicted:.3f}", f"{typical:.3f}", f"{error:+.1%}", f"{spread:.1%}"))
        print(rows[-1], flush=True)
    if not rows:
        sys.exit(1)
    print(tabulate(rows, ["model", "predicted s", "measured s", "error", "run to run"]))
    error, spread = statistics.median(errors), statistics.median(spreads)
    print(f"median error of compute {error:.1%}; run-to-run spread {spread:.1%}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(0 if error <= max(TOLERANCE, spread) else 1)


def measure(case: tuple[Any, ...], cluster: Cluster, repeats: int) -> tuple[float, list[float]]:
    """Predicted compute of a rank, and that of each run. [s]"""
    name, sizes, knobs, seq_len, batch = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(tomli_w.dumps({"name": name, **sizes}))
        model = load_model(str(path))
        asked = Plan(**{"micro_batch": 1, "precision": "fp32", **knobs})
        plan, _ = resolve(asked, model, here())
        workload = Workload(seq_len, batch)
        seen = []
        for index in range(repeats):
            place = Path(folder) / f"run-{index}"
            run_probe(model, plan, workload, place, cuda=False, quiet=True)
            steps = [step["phases"] for step in read_steps(place) if not step["warmup"]]
            seen.append(statistics.median(sum(step.get(phase, 0.0) for phase in PHASES) for step in steps))
    return compute(predict(model, workload, cluster, plan)), seen


def compute(prediction: Any) -> float:
    """Forward, backward and optimizer of a rank, mean over the pipeline's stages. [s]"""
    values, plan = prediction.values, prediction.plan
    leaves = {leaf.name: leaf.value for leaf in prediction.time.leaves()}
    microbatches = plan.num_microbatches(prediction.workload.global_batch)
    found = sum(value for name, value in leaves.items() if part_of(name) in ("compute", "optimizer"))
    traffic = values["embedding_tp"] + values["output_tp"]
    if plan.pp == 1:
        return float(found - microbatches * traffic)
    # Terms are of the slowest stage; two stages of as many layers differ by their ends.
    mean = (values["first_stage_time"] + values["last_stage_time"] - traffic) / 2
    return float(found + microbatches * (mean - values["slowest_stage_time"]))


if __name__ == "__main__":
    main()
