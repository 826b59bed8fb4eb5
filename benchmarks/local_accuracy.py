"""Predicted against measured on this machine: five small models that are nowhere else in the repository.

    python benchmarks/local_accuracy.py [--profile NAME] [--repeats 2] [--steps 10]

Each is trained by `advisor run` after `advisor calibrate`, several times; the medians of those runs give the
machine's own run-to-run spread. Held: the median error of the step time is at most 10 %, or that spread where it is
larger. Printed beside it: the step less the time that ranks queued for a core, which is what other work took from
them; on a quiet machine both are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from tabulate import tabulate

TOLERANCE = 0.10
DENSE: dict[str, Any] = {"num_kv_heads": 4, "num_heads": 8, "source": "benchmarks/local_accuracy.py"}
# Name, sizes, knobs, sequence length, sequences a step.
CASES: list[tuple[str, dict[str, Any], dict[str, Any], int, int]] = [
    (
        "dense-gqa",
        {"num_layers": 5, "hidden": 320, "ffn_hidden": 832, "head_dim": 40, "vocab": 3000, **DENSE},
        {"tp": 2, "sequence_parallel": True},
        192,
        4,
    ),
    (
        "dense-mha-gelu",
        {
            "num_layers": 4, "hidden": 288, "ffn_hidden": 1152, "head_dim": 36, "vocab": 2500, "gated": False,
            "activation": "gelu", "norm": "LayerNorm", "linear_bias": True, "learned_positions": 256,
            **DENSE, "num_kv_heads": 8,
        },
        {"dp": 2},
        160,
        8,
    ),
    (
        "moe-top2",
        {
            "num_layers": 4, "hidden": 224, "ffn_hidden": 320, "head_dim": 28, "vocab": 1500, **DENSE,
            "moe": {"num_experts": 6, "topk": 2, "expert_ffn": 320},
        },
        {"ep": 2, "dp": 2},
        160,
        4,
    ),
    (
        "deep-narrow",
        {"num_layers": 16, "hidden": 144, "ffn_hidden": 400, "head_dim": 18, "vocab": 1200, **DENSE},
        {"pp": 2, "vpp": 2},
        160,
        4,
    ),
    (
        "wide-shallow",
        {"num_layers": 2, "hidden": 704, "ffn_hidden": 1920, "head_dim": 88, "vocab": 2000, **DENSE},
        {"tp": 2, "sequence_parallel": True},
        160,
        4,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model: predicted step, medians of its runs, those less queueing, scatter of steps, bytes of state. [s, 1]"""

    name: str
    plan: str
    predicted: float
    measured: tuple[float, ...]
    unqueued: tuple[float, ...]
    scatter: float
    state_exact: bool | None

    @property
    def typical(self) -> float:
        """Median of the runs. [s]"""
        return statistics.median(self.measured)

    @property
    def error(self) -> float:
        """predicted / measured - 1. [1]"""
        return self.predicted / self.typical - 1

    @property
    def error_unqueued(self) -> float:
        """The same against the step less queueing. [1]"""
        return self.predicted / statistics.median(self.unqueued) - 1

    @property
    def spread(self) -> float:
        """Largest over smallest median of the runs, less one. [1]"""
        return max(self.measured) / min(self.measured) - 1

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance, or the machine's own spread."""
        return abs(self.error) <= max(TOLERANCE, self.spread)


def main() -> None:
    """Run, print, exit 1 when the median error is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default=None)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", default="", help="names, separated by commas")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    rows = []
    for case in CASES:
        if arguments.only and case[0] not in arguments.only.split(","):
            continue
        try:
            rows.append(measure(case, arguments.profile, arguments.repeats, arguments.steps))
        except RuntimeError as error:
            print(f"{case[0]} did not run: {error}", flush=True)
            continue
        print(
            f"{rows[-1].name}: predicted {rows[-1].predicted:.3f} s, measured {rows[-1].measured}", flush=True
        )
    sys.exit(report(rows))


def report(rows: list[Row]) -> int:
    """The table and the verdict; 0 when it holds."""
    shown = [
        (
            row.name,
            row.plan,
            f"{row.predicted:.3f}",
            f"{row.typical:.3f}",
            f"{row.error:+.0%}",
            f"{row.error_unqueued:+.0%}",
            f"{row.spread:.0%}",
            f"{row.scatter:.0%}",
            {True: "exact", False: "DIFFER", None: "-"}[row.state_exact],
            "holds" if row.holds else "MISSES",
        )
        for row in rows
    ]
    heads = [
        "model",
        "plan",
        "predicted s",
        "measured s",
        "error",
        "less queueing",
        "run to run",
        "step to step",
    ]
    print(tabulate(shown, [*heads, "bytes of state", f"within {TOLERANCE:.0%} or spread"]))
    if not rows:
        return 1
    error = statistics.median(abs(row.error) for row in rows)
    quiet = statistics.median(abs(row.error_unqueued) for row in rows)
    spread = statistics.median(row.spread for row in rows)
    print(
        f"median error {error:.1%} ({quiet:.1%} less queueing); the machine's own run-to-run spread {spread:.1%}"
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0 if error <= max(TOLERANCE, spread) else 1


def measure(
    case: tuple[str, dict[str, Any], dict[str, Any], int, int], profile: str | None, repeats: int, steps: int
) -> Row:
    """One model, run `repeats` times. RuntimeError with the command's own line when it cannot run."""
    name, sizes, knobs, seq_len, batch = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(tomli_w.dumps({"name": name, **sizes}))
        command = [
            *(
                str(Path(sys.executable).with_name("advisor")),
                "run",
                "--model",
                str(path),
                "--gpus",
                "2",
                "--json",
            ),
            *("--seq-len", str(seq_len), "--global-batch", str(batch), "--steps", str(steps)),
            *(
                word
                for knob, value in ({"micro_batch": 1} | knobs).items()
                for word in ("--pin", f"{knob}={value}")
            ),
            *(("--profile", profile) if profile else ()),
        ]
        runs = []
        for _ in range(repeats):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr.strip()[-300:])
            runs.append(json.loads(done.stdout))
    exact = [entry["equal"] for run in runs for entry in run.get("state", [])]
    return Row(
        name,
        " ".join(f"{knob}={value}" for knob, value in knobs.items()),
        runs[0]["prediction"]["step_time_s"],
        tuple(run["measured"]["step_time_s"] for run in runs),
        tuple(run["measured"]["step_time_s"] - run["measured"].get("queued_s", 0.0) for run in runs),
        statistics.median(run["measured"]["spread"] for run in runs),
        all(exact) if exact else None,
    )


if __name__ == "__main__":
    main()
