"""Every row of a table of published runs, exported to Megatron-LM and put before its own parser.

    python benchmarks/export_sweep.py /path/to/measurements.csv [--release 0.19.2]

Prints how many rows export, how many the parser of that release accepts, and every refusal once with its count.
A row that its own framework ran in a way Megatron-LM has no argument for counts as not expressible, with the reason.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import megatron_lm_parser  # noqa: E402

from advisor.measurements import Skip, read_rows, row_case  # noqa: E402
from advisor.rules import violations  # noqa: E402
from costmodel.layout import layout_of  # noqa: E402
from executor.export import megatron_lm  # noqa: E402
from executor.export.environment import environment  # noqa: E402
from executor.export.exported import Job  # noqa: E402

# Compute capability by generation; what Megatron-LM asks of the GPU.
ARCH = {"ampere": 8, "ada": 8, "hopper": 9}
VALUES = {
    "DATA_PATH": "/data/text",
    "TOKENIZER_MODEL": "some/tokenizer",
    "PRETRAINED": "/checkpoint",
    "HERE": ".",
}


@dataclass(frozen=True)
class Tried:
    """One row: the job, the errors of our rules, and what the parser said ("" for accepted)."""

    id: str
    job: Job
    errors: tuple[str, ...]
    refused: str
    answer: dict[str, Any]


def parser_job(job: Job) -> dict[str, Any]:
    """The job as `megatron_lm_parser.parse_all` takes it: variables of the shell have their values."""
    exported = megatron_lm.export(job)
    values = {
        name: default or VALUES[name] for name, (default, _) in megatron_lm.inputs(job).items()
    } | VALUES
    words = [re.sub(r"\$\{(\w+)\}", lambda name: values[name[1]], word) for word in exported.command[1:]]
    return {
        "arguments": words,
        "world": job.plan.world,
        "environment": {variable.name: variable.value for variable in environment(job)},
        "arch": ARCH.get(job.cluster.gpu.generation, 10),
    }


def jobs_of(path: Path, version: str) -> Iterator[tuple[str, Job | str, tuple[str, ...]]]:
    """Id, job (or why there is none) and broken ERROR rules of every row."""
    for row in read_rows(path):
        case = row_case(row)
        if isinstance(case, Skip):
            yield case.id, case.reason, ()
            continue
        found = violations(case.model, case.workload, case.cluster, case.plan)
        errors = tuple(each.id for each in found if each.severity == "ERROR")
        yield case.id, Job(case.plan, case.workload, case.model, case.cluster, version=version), errors


def sweep(path: Path, release: str) -> tuple[list[Tried], dict[str, str]]:
    """Rows that were tried, and those not expressible with the reason."""
    version = ".".join(release.split(".")[:2])
    ready: list[tuple[str, Job, tuple[str, ...]]] = []
    given: list[dict[str, Any]] = []
    not_said: dict[str, str] = {}
    for name, job, errors in jobs_of(path, version):
        if isinstance(job, str):
            not_said[name] = job
            continue
        try:
            given.append(parser_job(job))
            ready.append((name, job, errors))
        except ValueError as error:
            not_said[name] = str(error)
    answers = megatron_lm_parser.parse_all(given, release)
    tried = [
        Tried(name, job, errors, answer["refused"], answer)
        for (name, job, errors), answer in zip(ready, answers, strict=True)
    ]
    return tried, not_said


def differences(job: Job, answer: dict[str, Any]) -> list[str]:
    """Where what the parser derives is not the plan: ranks, chunks, layers of each chunk."""
    plan, model, values = job.plan, job.model, answer["values"]
    expected = {
        "data_parallel_size": plan.dp,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "sequence_parallel": plan.sequence_parallel and plan.tp > 1,
    }
    found = [
        f"{name} is {values[name]}, not {wanted}"
        for name, wanted in expected.items()
        if values[name] != wanted
    ]
    if answer["layers"]:
        layout = layout_of(plan, model, job.workload.seq_len)
        ours = [layout.chunks[stage][chunk].layers for chunk in range(plan.vpp) for stage in range(plan.pp)]
        if ours != answer["layers"]:
            found.append(f"layers of the chunks are {answer['layers']}, not {ours}")
    return found


def report(tried: Iterable[Tried], not_said: dict[str, str]) -> list[str]:
    """Counts, and every refusal and reason once."""
    tried = list(tried)
    legal = [each for each in tried if not each.errors]
    accepted = [each for each in tried if not each.refused]
    lines = [
        f"{len(tried)} rows exported, {len(accepted)} accepted by the parser.",
        f"{len(legal)} break no ERROR rule of ours, {sum(not each.refused for each in legal)} of them accepted.",
    ]
    for title, counts in (
        ("Refused, though our rules call it legal", Counter(each.refused for each in legal if each.refused)),
        (
            "Refused, and by our rules",
            Counter(
                f"{each.refused:.100} | {','.join(each.errors)}"
                for each in tried
                if each.refused and each.errors
            ),
        ),
        (
            "Accepted, though our rules refuse",
            Counter(",".join(each.errors) for each in tried if each.errors and not each.refused),
        ),
        (
            "Accepted as another plan",
            Counter(text for each in accepted for text in differences(each.job, each.answer)),
        ),
        ("Not expressible", Counter(re.sub(r"\d+", "N", reason) for reason in not_said.values())),
    ):
        lines += ["", f"{title}:", *(f"  {count:5d}  {text}" for text, count in counts.most_common())]
    return lines


def main() -> None:
    """Sweep the table that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--release", default="0.19.2")
    options = parser.parse_args()
    print("\n".join(report(*sweep(options.table, options.release))))


if __name__ == "__main__":
    main()
