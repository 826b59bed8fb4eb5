"""Calibration: kernels alone, short runs in context, and what both say as a profile that every command can use."""

from __future__ import annotations

import math
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import hardware_db
from executor.calibrate_fit import Learned, Outcome, learn, tell_apart
from executor.calibrate_gpu import gpu_tables
from executor.calibrate_probes import run_probes
from executor.calibrate_records import Observed, read_all
from executor.devices import gpu_here
from executor.local_profile import (
    home,
    keep_older,
    make_room,
    measure,
    profile,
    warnings_of,
    write_profile,
)
from executor.run_job import has_cuda
from hardware_db import Cluster, Quantity

Record = dict[str, Any]
SHIPPED = Path(hardware_db.__file__).parent
# Share of the time for kernels and messages; probes have the rest.
KERNELS = 0.3


@dataclass(frozen=True)
class Calibration:
    """A profile that was written: where, its document, what runs taught, how well they are told, and warnings.

    older: where the profile that it replaced is kept, None where there was none.
    """

    path: Path
    document: Record
    outcome: Outcome | None
    runs: tuple[Observed, ...]
    warnings: tuple[str, ...]
    older: Path | None = None


def calibrate_here(
    processes: int,
    seconds: float,
    out: Path,
    progress: Callable[[float, str], None] = lambda share, what: None,
    refuse_noise: bool = False,
) -> Calibration | None:
    """Measure this machine within about `seconds`, and write its profile; None where noise is refused and found.

    On GPUs all the time goes into kernels and messages: tiny runs would show the host alone, records teach the rest.
    ValueError where the GPU is not in the catalogue, OSError before anything is measured where `out` takes no file.
    """
    make_room(out)
    cluster = hardware_db.resolve(gpu_here(), None)[0] if has_cuda() else None
    kernels = KERNELS if cluster is None else 1.0
    measured = measure(
        processes, kernels * seconds, out.parent, lambda share, what: progress(kernels * share, what)
    )
    warnings = warnings_of(measured)
    if refuse_noise and warnings:
        return None
    if cluster is not None:
        document = base_document(cluster) | {
            "calibration": gpu_tables(measured, cluster),
            "warnings": warnings,
        }
        older = keep_older(out)
        write_profile(out, document)
        return Calibration(out, document, None, (), tuple(warnings), older)
    document = profile(measured, processes)
    folder = Path(tempfile.mkdtemp(prefix="probes-", dir=out.parent))
    try:
        runs, failed = run_probes(
            processes,
            (1 - KERNELS) * seconds,
            folder,
            False,
            lambda share, what: progress(KERNELS + (1 - KERNELS) * share, what),
        )
        warnings += failed
        outcome = None
        if runs:
            draft = folder / "draft.toml"
            write_profile(draft, document)
            drafted = hardware_db.load_cluster(str(draft))
            outcome = tell_apart(learn(runs, drafted), runs, drafted)
            document = taught(document, outcome, runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    document["warnings"] = warnings
    older = keep_older(out)
    write_profile(out, document)
    return Calibration(out, document, outcome, tuple(runs), tuple(warnings), older)


def calibrate_from(
    records: Sequence[Path], cluster: Cluster, out: Path, stack: str | None = None
) -> Calibration:
    """Fit what runs show in context over the cluster's own constants, and write the profile.

    Raises ValueError when a folder is no record, or runs were on something else than the cluster.
    """
    make_room(out)
    runs, left_out = read_all(records)
    for run in runs:
        if run.device and (run.device == "cpu") != (cluster.gpu.generation == "cpu"):
            where = "a processor" if run.device == "cpu" else "GPUs"
            raise ValueError(
                f"{run.name} ran on {where}, and {cluster.gpu.title} is none. Name its machine by --gpu or --profile."
            )
    outcome = tell_apart(learn(runs, cluster, stack), runs, cluster, stack)
    busy = [f"{run.name}: ranks waited for cores that others held" for run in runs if run.busy]
    warnings = [*left_out, *busy]
    worlds = sorted({run.plan.world for run in runs})
    if cluster.gpu.generation == "cpu" and len(worlds) > 1:
        warnings.append(
            f"runs of {', '.join(map(str, worlds))} processes bend one another's constants: a profile of processors "
            "belongs to one number of them; give records of one number at a time"
        )
    if not any(each.taught for each in outcome.learned):
        warnings.append("these runs teach no constant: the profile is what it was")
    document = taught(base_document(cluster), outcome, runs)
    document["warnings"] = [*document.get("warnings", []), *warnings]
    older = keep_older(out)
    write_profile(out, document)
    return Calibration(out, document, outcome, tuple(runs), tuple(warnings), older)


def taught(document: Record, outcome: Outcome, runs: Sequence[Observed]) -> Record:
    """The document with the constants that runs taught in their places."""
    for each in outcome.learned:
        if not each.taught:
            continue
        for *path, name in each.constant.places:
            table = document.setdefault("calibration", {})
            for step in path:
                table = table.setdefault(step, {})
            if each.constant.factor and name not in table:
                continue
            own = table[name] if each.constant.factor else None
            table[name] = leaf(each, len(runs), own)
    if outcome.half_width:
        document.setdefault("calibration", {})["evidence"] = evidence(outcome)
    return document


def evidence(outcome: Outcome) -> Record:
    """What the interval of a prediction on this profile rests on: `costmodel.evidence.own_interval`."""
    told = {
        "kind": "measured",
        "source": "runs told by constants learned without them, by `advisor calibrate`",
        "read_on": date.today(),
        "unit": "1",
    }
    return {
        "runs": {"value": len(outcome.apart)} | told,
        "half_width": {"value": float(f"{outcome.half_width:.4g}")} | told,
    }


def leaf(each: Learned, runs: int, own: Record | None = None) -> Record:
    """A taught constant as a quantity. own: the leaf that it multiplies."""
    constant = each.constant
    before, after = each.before / constant.per, each.after / constant.per
    if own is not None:
        before, after = own["value"], own["value"] * each.after
    was = f"kernels alone said {before:.4g}" if before else "not measured alone"
    return {
        "value": float(f"{after:.5g}"),
        "unit": own["unit"] if own is not None else constant.unit,
        "kind": "measured",
        "source": f"fitted from {each.runs} of {runs} runs in context by `advisor calibrate`",
        "read_on": date.today(),
        "residual": float(f"{min(each.error, 9.99):.2g}"),
        "note": was,
    }


def base_document(cluster: Cluster) -> Record:
    """What an overlay begins with: the user's own file as it is, or one that names what is shipped.

    Sourced data is copied into the overlay with its source, never edited.
    """
    path = cluster.gpu.path
    if not path.is_relative_to(SHIPPED):
        return tomllib.loads(path.read_text())
    gpu = cluster.gpu
    return {
        "gpu": {
            "name": gpu.name,
            "title": gpu.title,
            "vendor": gpu.vendor,
            "generation": gpu.generation,
            "calibrated_like": gpu.calibrated_like,
            **{key: quantity(each) for key, each in gpu.quantities.items()},
        },
        "cluster": {
            "name": cluster.name,
            "title": cluster.title,
            "gpus_per_node": cluster.gpus_per_node,
            "domain_size": cluster.domain_size,
            "intra": cluster.intra.name,
            "inter": cluster.inter.name,
            "host_link": cluster.host_link.name,
            **{key: quantity(each) for key, each in cluster.quantities.items()},
        },
    }


def quantity(each: Quantity) -> Record:
    """A quantity as the table that it was read from."""
    record = {
        "value": each.value,
        "unit": each.unit,
        "kind": each.kind,
        "source": each.source,
        "note": each.note,
    }
    return {name: value for name, value in record.items() if value} | (
        {"read_on": each.read_on} if each.read_on else {}
    )


def profiles_folder() -> Path:
    """Where profiles with names stand."""
    return home() / "profiles"


def is_named(given: str) -> bool:
    """Whether a profile is given by its name, kept among the others, rather than by a path."""
    return not given.endswith(".toml") and "/" not in given


def out_path(given: str | None, default: Path) -> Path:
    """Where a profile is written: a path as it is, a name among the named profiles. ValueError for neither."""
    if not given:
        return default
    if not is_named(given):
        return Path(given).expanduser()
    if not all(letter.isalnum() or letter in "-_." for letter in given) or given.startswith("."):
        raise ValueError(
            f"-o {given!r} is no name of a profile: letters, digits and -_. only, no . first. Try -o mine, "
            "or the path of a TOML file."
        )
    return profiles_folder() / f"{given}.toml"


def quality(outcome: Outcome) -> tuple[float, float]:
    """Median error of the runs' steps before and after the fit. [1]"""
    if not outcome.before:
        return math.nan, math.nan
    return Outcome.median(outcome.before), Outcome.median(outcome.after)
