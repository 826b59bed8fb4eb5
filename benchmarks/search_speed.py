"""How fast the search is: plans a second, and the wall time of a whole `advisor explain`.

    python benchmarks/search_speed.py

The work is element-wise NumPy, on as many cores as `costmodel.plan_array` takes. Prints tables and asserts nothing,
for timings belong to machines, not to tests.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from tabulate import tabulate

from advisor.request import make_request
from advisor.search import search
from advisor.space import build_space
from costmodel.plan_array import PlanArray, evaluate_plans
from costmodel.simulate import simulate_pipeline

CASES = (
    ("llama3-8b", 8, "h100"),
    ("llama3-70b", 64, "b200"),
    ("llama3.1-405b", 128, "gb200"),
    ("llama3.1-405b", 1024, "h100"),
    ("deepseek-v3", 256, "h100"),
    ("deepseek-v3", 256, "gb200"),
)
PIPES = ((8, 64, 5), (16, 256, 8), (32, 512, 16))
REPEATS = 3
ENTRY = "from advisor.cli import main; main()"


def best_of(work: Callable[[], object]) -> float:
    """Least wall time of a few runs, which other load on the machine disturbs least. [s]"""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def search_rows() -> list[list[object]]:
    """Space, evaluation and whole search of each case."""
    rows = []
    for model, gpus, gpu in CASES:
        request = make_request(model, gpus, gpu)
        precision = request.precisions[-1]
        space = build_space(request, precision)
        plans = PlanArray(request.model, request.workload, request.cluster, precision, space.grid)
        evaluate_plans(plans)
        build = best_of(lambda request=request, precision=precision: build_space(request, precision))
        evaluate = best_of(lambda plans=plans: evaluate_plans(plans))
        found = search(request)
        whole = best_of(lambda request=request: search(request))
        rows.append([f"{model} {gpus} x {gpu}", found.legal, build, space.legal / evaluate, whole])
    return rows


def explain_rows() -> list[list[object]]:
    """Median wall time of `advisor explain` as a process of its own, cost model compiled before."""
    rows = []
    for model, gpus, gpu in CASES[:3]:
        options = ["explain", "--model", model, "--gpus", str(gpus), "--gpu", gpu]
        times = []
        for _ in range(REPEATS + 1):
            started = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", ENTRY, *options], capture_output=True, check=False)
            times.append(time.perf_counter() - started)
        rows.append([" ".join(["advisor", *options]), done.returncode, statistics.median(times[1:])])
    return rows


def simulator_rows() -> list[list[object]]:
    """Passes a second of the event simulator."""
    rows = []
    for pp, microbatches, vpp in PIPES:
        forward, backward = [[1.0] * vpp] * pp, [[2.0] * vpp] * pp
        seconds = best_of(lambda f=forward, b=backward, m=microbatches: simulate_pipeline(f, b, m))
        rows.append([f"pp {pp}, m {microbatches}, vpp {vpp}", 2 * pp * microbatches * vpp, seconds])
    return rows


def main() -> None:
    """Print the tables."""
    headers = [
        "search",
        "legal plans, all precisions",
        "build one [s]",
        "plans/s",
        "whole search [s]",
    ]
    print(tabulate(search_rows(), headers, floatfmt=("", ",.0f", ".3f", ",.0f", ".2f"), intfmt=","))
    print()
    headers = ["command", "exit", "wall, process included [s]"]
    print(tabulate(explain_rows(), headers, floatfmt=".2f"))
    print()
    headers = ["pipeline simulated", "passes", "[s]"]
    print(tabulate(simulator_rows(), headers, floatfmt=".4f", intfmt=","))


if __name__ == "__main__":
    main()
