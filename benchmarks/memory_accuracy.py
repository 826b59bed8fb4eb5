"""Memory on published runs: `python benchmarks/memory_accuracy.py MEASUREMENTS.csv` prints the section.

Allocated is what torch's allocator counts as live tensors at the peak, reserved what it took from the device.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shipped_recipes import recipe_lines

import hardware_db
from advisor.measurements import read_rows
from advisor.validation import memory_verdict, validate
from costmodel.model_file import with_overrides
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.workload import Workload

Result = Mapping[str, Any]
KINDS = (
    ("allocated", "allocated_gib", "measured_memory_gib"),
    ("reserved", "reserved_gib", "measured_reserved_gib"),
)


def table(headers: list[str], rows: Iterable[list[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]]


def memory_section(report: Mapping[str, Any], recipes: Iterable[str] = ()) -> list[str]:
    """The section Memory: errors by source against published peaks, runs said not to fit, every published peak.

    recipes: what is said of plans without times.
    """
    rows = report["rows"]
    unfit = [row for row in rows if not row["fits"]]
    lines = [
        "## Memory",
        "",
        "Published peaks against the prediction. Allocated is what the allocator counts as live tensors, reserved "
        "what it took from the device (torchtitan prints reserved alone).",
        "",
        *table(
            ["source", "figure", "runs", "mean error", "median", "worst", "bias"],
            [line for kind in KINDS for line in _by_source(rows, *kind)],
        ),
        "",
        f"Of {len(rows)} published runs, {memory_verdict(rows)}.",
        "",
        *recipes,
    ]
    if unfit:
        lines += [
            "",
            "Said not to fit:",
            "",
            *table(
                ["row", "run", "predicted [GiB]", "device [GiB]"],
                [
                    [
                        row["id"],
                        f"{row['model']} x{row['gpus']} {row['plan']}",
                        f"{row['peak_memory_gib']:.1f}",
                        f"{row['device_gib']:.1f}",
                    ]
                    for row in unfit
                ],
            ),
        ]
    lines += [
        "",
        *table(
            ["row", "plan", "figure", "published [GiB]", "predicted [GiB]", "error"],
            [
                [
                    row["id"],
                    row["plan"],
                    kind,
                    f"{row[there]:.1f}",
                    f"{row[here]:.1f}",
                    f"{_error(row, here, there):+.1%}",
                ]
                for row in rows
                for kind, here, there in KINDS
                if row[there]
            ],
        ),
    ]
    return lines


def _error(row: Result, here: str, there: str) -> float:
    return float(row[here] / row[there] - 1)


def _by_source(rows: Iterable[Result], kind: str, here: str, there: str) -> list[list[str]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row[there]:
            groups[row["source"]].append(_error(row, here, there))
    return [
        [
            source,
            kind,
            str(len(errors)),
            f"{statistics.fmean(map(abs, errors)):.1%}",
            f"{statistics.median(map(abs, errors)):.1%}",
            f"{max(map(abs, errors)):.1%}",
            f"{statistics.fmean(errors):+.1%}",
        ]
        for source, errors in sorted(groups.items())
    ]


# Clusters of Megatron-LM's functional tests.
PLATFORMS = {"a100": "dgx-a100", "h100": "dgx-h100", "gb200": "gb200-nvl72"}


def functional_cases(path: Path) -> list[tuple[dict[str, str], Prediction]]:
    """Megatron-LM's functional tests of dense GPT in 16 bits, with the prediction of each.

    Left out is what their columns do not settle: experts, hybrids, reinforcement learning, FSDP, 8 bits.
    """
    found = []
    for row in csv.DictReader(path.open(newline="")):
        sizes = {name: int(row[name] or 1) for name in ("tp", "pp", "cp")}
        world, batch = int(row["gpus"] or 0), int(row["gbs"] or 0)
        unlike = row["family"] != "gpt" or row["fp8"] or row["num_experts"] or row["hybrid_pattern"]
        if unlike or "grpo" in row["case"] or row["use_megatron_fsdp"] == "1" or row["mla"] == "1":
            continue
        if row["platform"] not in PLATFORMS or row["precision"] != "bf16":
            continue
        if not world or not batch or not row["mem_max_allocated_gb"]:
            continue
        if world % math.prod(sizes.values()) or row["recompute"]:
            continue
        hidden, gated = int(row["hidden_size"]), row["swiglu"] == "1"
        rotary = "rope" in row["case"] or gated
        try:
            model = with_overrides(
                load_model("gpt3-175b"),
                {
                    "num_layers": int(row["num_layers"]),
                    "hidden": hidden,
                    "num_heads": int(row["heads"]),
                    "num_kv_heads": int(row["kv_groups"] or row["heads"]),
                    "head_dim": hidden // int(row["heads"]),
                    "ffn_hidden": int(row["ffn_hidden_size"] or 4 * hidden),
                    "gated": gated,
                    "vocab_padded": None,
                    "vocab": int(row["vocab"] or 50257),
                    "learned_positions": 0 if rotary else int(row["seq_len"]),
                },
            )
            plan = Plan(
                **sizes,
                vpp=1,
                dp=world // math.prod(sizes.values()),
                micro_batch=int(row["mbs"]),
                sequence_parallel=row["sequence_parallel"] == "1",
                zero_stage=1 if row["distributed_optimizer"] == "1" else 0,
                fused_cross_entropy="cross-entropy-loss-fusion" in row["extra_args"],
                gradient_accumulation_fusion="no-gradient-accumulation-fusion" not in row["extra_args"],
                dropout=True,
                expandable_segments=False,
            )
            workload = Workload(int(row["seq_len"]), batch)
            cluster = hardware_db.load_cluster(PLATFORMS[row["platform"]])
            plan.num_microbatches(batch)
            # The fused loss of Megatron-LM's arguments is Megatron-Core's own unless they say Transformer Engine's.
            own = plan.fused_cross_entropy and "cross-entropy-fusion-impl te" not in row["extra_args"]
            stack = "mcore-26.05" if own else "mcore-26.01"
            found.append((row, predict(model, workload, cluster, plan, stack)))
        except ValueError:
            continue
    return found


def functional_section(path: Path) -> list[str]:
    """Errors of peak allocated memory on the functional tests, by platform."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row, prediction in functional_cases(path):
        groups[row["platform"]].append(
            prediction.allocated_bytes / (1e9 * float(row["mem_max_allocated_gb"])) - 1
        )
    lines = [
        [
            name,
            str(len(errors)),
            f"{statistics.fmean(map(abs, errors)):.1%}",
            f"{statistics.median(map(abs, errors)):.1%}",
            f"{statistics.fmean(errors):+.1%}",
        ]
        for name, errors in sorted(groups.items())
    ]
    return table(["platform", "runs", "mean error", "median", "bias"], lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="measurements.csv")
    parser.add_argument("tests", type=Path, nargs="*", help="functional_tests.csv")
    given = parser.parse_args()
    print("\n".join(memory_section(validate(read_rows(given.table)), recipe_lines())))
    for path in given.tests:
        print(
            "\n".join(["", "Megatron-LM's functional tests, peak allocated:", "", *functional_section(path)])
        )
