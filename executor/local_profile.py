"""The profile of this machine: measured constants in the schema of hardware_db, kept in the user's cache.

`executor.workers.calibrate` measures, `executor.calibrate_tables` fits its medians; here they become a TOML file
that `--gpu` and `--profile` take like any other. Sourced data is never edited.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

import hardware_db
from costmodel.plan_file import check_writable, write_whole
from executor.calibrate_tables import Leaf, copy_bandwidth, peaks, tables
from executor.calibrate_tables import warnings_of as tables_warnings
from executor.launch import run_worker

SECONDS = 12.0
# What the rules ask of a machine, of one whose processors compute: known before anything is measured.
WHAT_IT_IS = {"name": "local", "vendor": "local", "generation": "cpu"}
WHERE_IT_IS: dict[str, Any] = {
    "domain_size": 2**16,
    "intra": "shared-memory",
    "inter": "shared-memory",
    "host_link": "shared-memory",
}
NOISY = 0.10  # spread above which a measurement is flagged

Record = dict[str, Any]


def home() -> Path:
    """Folder of profiles and run records: $ADVISOR_HOME, else the user's cache folder."""
    if os.environ.get("ADVISOR_HOME"):
        return Path(os.environ["ADVISOR_HOME"]).expanduser()  # of a file of variables no shell expands ~
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "advisor"


def profile_path(processes: int) -> Path:
    """File of the profile measured on this machine, with this torch and this many processes."""
    try:
        torch = metadata.version("torch").replace("+", "-")
    except metadata.PackageNotFoundError:
        torch = "none"
    return home() / f"local-{platform.node() or 'machine'}-{os.cpu_count()}-torch{torch}-{processes}.toml"


def local_profile(processes: int, again: bool, tell: Callable[[str], None]) -> tuple[Path, list[str]]:
    """The profile of this machine, measured now when there is none (or `again`), and warnings about it."""
    path = profile_path(processes)
    if path.is_file() and not again:
        tell(f"using the profile of this machine, {path}")
        return path, kept_warnings(path, "--recalibrate")
    tell(
        f"measuring this machine with {processes} process{'es' * (processes > 1)}, about {SECONDS:.0f} s: "
        "matmul, attention, memory, gloo; `advisor calibrate` takes longer and is nearer"
    )
    measured = measure(processes, SECONDS, path.parent)
    write_profile(path, profile(measured, processes))
    return path, [
        f"{warning} (when this machine was measured, just now)" for warning in warnings_of(measured)
    ]


def own_cluster(path: Path, again: str) -> hardware_db.Cluster:
    """The machine of a profile that was measured here. ValueError in one line where its file is broken.

    again: what measures it again, which is the way out: nobody writes a line of such a file.
    """
    try:
        return hardware_db.load_cluster(str(path))
    except ValueError as error:
        what = str(error).partition(". ")[0].rstrip(".")
        raise ValueError(
            f"{what}. It is the profile of this machine, and {again} measures it again."
        ) from None


def measure(
    processes: int,
    seconds: float,
    beside: Path,
    progress: Callable[[float, str], None] | None = None,
) -> Record:
    """What `executor.workers.calibrate` measures here within about `seconds`, with that many processes.

    beside: a folder to work in; a log stays there after a failure. progress(share done, what was measured last).
    """
    beside.mkdir(parents=True, exist_ok=True)
    # Beside the profile, so that a folder that cannot be written is known at once, and a log outlives failure.
    folder = Path(tempfile.mkdtemp(prefix="measuring-", dir=beside))
    out = folder / "measured.json"
    last = ""

    def poll() -> None:
        nonlocal last
        if progress is None:
            return
        try:
            told = json.loads((folder / "progress.json").read_text())
        except (OSError, ValueError):
            return
        if told["what"] != last:
            last = told["what"]
            progress(told["done"], last)

    limit = 180.0 + 4 * seconds
    try:
        run_worker("executor.workers.calibrate", [str(out), str(seconds)], processes, folder, limit, poll)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        raise
    measured: Record = json.loads(out.read_text())
    shutil.rmtree(folder)
    return measured


def make_room(path: Path) -> None:
    """The profile's folder, made where it is missing; OSError unless a file can be written at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_writable(path)


def write_profile(path: Path, document: Record) -> None:
    """Write whole or not at all. OSError where `path` is a folder, a device or a pipe."""
    make_room(path)
    write_whole(path, tomli_w.dumps(document))


def keep_older(path: Path) -> Path | None:
    """Copy the profile that a new one will replace to the first free name beside it; None where there is none.

    It may be of a quieter hour or of runs that are gone, so it is never lost: `mine.toml` is kept as
    `mine.before.toml`, then `mine.before-2.toml`, which `--profile mine.before` names.
    """
    if not path.is_file() or not path.stat().st_size:
        return None
    names = itertools.chain(["before"], (f"before-{number}" for number in itertools.count(2)))
    free = next(each for name in names if not (each := path.with_name(f"{path.stem}.{name}.toml")).exists())
    shutil.copy2(path, free)
    return free


def kept_warnings(path: Path, again: str) -> list[str]:
    """What was uncertain when a profile was measured before; a broken file is told by its loader.

    again: what measures it again.
    """
    try:
        kept = tomllib.loads(path.read_text()).get("warnings", [])
    except (OSError, ValueError):
        return []
    return [f"{warning} (when the profile was measured; {again} measures again)" for warning in kept]


def machine(measured: Record, processes: int, leaf: Leaf) -> Record:
    """The tables [gpu], [cluster] and [links] of a machine without a data sheet: its processors."""
    best, bandwidth = peaks(measured), copy_bandwidth(measured)
    memory = _memory_bytes() / max(1, processes)
    return {
        "gpu": {
            **WHAT_IT_IS,
            "title": f"this machine ({platform.processor() or platform.machine()}, {os.cpu_count()} cores), CPU",
            "sm_count": leaf(1, "1"),
            "hbm_capacity_usable": leaf(
                memory / 2**30, "GiB", note="memory of the machine over the processes"
            ),
            "hbm_bandwidth": leaf(bandwidth / 1e9, "GB/s"),
            "power": leaf(65, "W", kind="assumed", note="a processor's share; not measured"),
            **{
                f"peak_{dtype}": leaf(rate / 1e9, "GFLOP/s", note="the best product measured")
                for dtype, rate in best.items()
            },
        },
        "cluster": {
            "name": "local",
            "title": f"{processes} processes on this machine, gloo",
            "gpus_per_node": os.cpu_count() or 1,
            "processes": leaf(processes, "1"),
            **WHERE_IT_IS,
        },
        "links": {
            "shared-memory": {
                "title": "shared memory of this machine",
                "bandwidth": leaf(bandwidth / 1e9, "GB/s"),
                "latency": leaf(50, "us", kind="assumed"),
            }
        },
    }


def profile(measured: Record, processes: int) -> Record:
    """The TOML document of a measurement."""
    leaf = Leaf(f"measured here with torch {measured['torch']}, {processes} processes")
    fitted = tables(measured, peaks(measured), copy_bandwidth(measured), 1, leaf)
    return {
        "warnings": warnings_of(measured),
        **machine(measured, processes, leaf),
        "calibration": fitted | {"step": step_table(leaf)},
    }


def warnings_of(measured: Record) -> list[str]:
    """What makes the profile uncertain: other load on the machine, or scattered repeats."""
    return tables_warnings(measured, NOISY, os.cpu_count() or 1)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def step_table(leaf: Leaf) -> Record:
    """Step constants of a processor before any run: kernels were measured as the step runs them."""
    note = "kernels were measured under the load of a run"
    rates = (
        "gemm_rate",
        "attention_rate",
        "elementwise_rate",
        "tuned_stream_rate",
        "intra_rate",
        "inter_rate",
        "one_card_rate",
    )
    return {
        **{name: leaf(1, "1", note=note) for name in rates},
        "overlap_slowdown": leaf(1, "1", kind="assumed", note="communication runs on the same cores"),
        "unfused_gemm_fraction": leaf(1, "1", kind="assumed"),
        "ring_hop": leaf(14, "us", kind="assumed", note="ranks of one machine have no ring that leaves it"),
        "straggler": leaf(0, "1", kind="assumed"),
        "step_overhead": leaf(5, "ms", kind="assumed"),
        "expert_wait": leaf(
            1000, "us", kind="assumed", note="counts and probabilities of tokens travel apart"
        ),
        "pass_start": leaf(0, "us", kind="assumed", note="a pass's host time is measured whole"),
        "host_kernel": leaf(0, "us", note="a CPU issues and computes in one; counted as launch gaps"),
        "fragmentation": leaf(0, "1", kind="assumed"),
        "graph_pool": leaf(0, "1", kind="assumed"),
        "context_bytes": leaf(0, "byte", note="the record counts memory beyond the loaded libraries"),
    }
