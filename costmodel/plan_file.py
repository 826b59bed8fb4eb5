"""Plan files: a training plan as TOML, with what it is for and where its prediction came from.

    schema = 1
    [model]      name: a model of the catalogue, or a path (relative paths start at this file)
    [workload]   seq_len, global_batch, task
    [cluster]    name (or path), gpus, stack, price_per_gpu_hour where --price gave one
    [knobs]      any knob of `costmodel.knobs`; those left out take their default
    [settings]   what the plan carries without a predicted cost, such as nccl_debug
    [prediction] what was predicted, by which version and when; never read back as truth

Reading checks everything through `costmodel.plan_schema` (pydantic, imported only then).
"""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
import tomllib
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.compiled import cache_folder
from costmodel.plan import Plan
from costmodel.workload import Workload

if TYPE_CHECKING:
    from costmodel.prediction import Prediction

SCHEMA = 1
# A plan file is a page of text; anything larger is some other file.
LARGEST_FILE = 1 << 20
# What stands for on and off elsewhere, and is taken for a file after a switch.
SWITCH_WORDS = ("on", "off", "true", "false", "yes", "no", "0", "1")
_HEADER = (
    "# A plan of advisor: `advisor predict FILE` shows what it does, `advisor check FILE` what is wrong.\n"
)


@dataclass(frozen=True)
class PlanFile:
    """One plan and its setting. model and cluster are names or paths; gpus counts all of them [1].

    stack is the software release, empty for the default; prediction holds plain values of provenance; price is what a
    GPU-hour costs whoever asked, None for what is on file [USD/h].
    """

    model: str
    workload: Workload
    cluster: str
    gpus: int
    plan: Plan
    stack: str = ""
    prediction: dict[str, Any] = field(default_factory=dict)
    price: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the order of the file; empty parts are left out."""
        cluster: dict[str, Any] = {"name": self.cluster, "gpus": self.gpus}
        if self.stack:
            cluster["stack"] = self.stack
        if self.price is not None:
            cluster["price_per_gpu_hour"] = self.price
        knobs = self.plan.to_dict()
        settings = knobs.pop("settings")
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "model": {"name": self.model},
            "workload": self.workload.to_dict(),
            "cluster": cluster,
            "knobs": knobs,
        }
        if settings:
            record["settings"] = settings
        if self.prediction:
            record["prediction"] = self.prediction
        return record


def provenance(prediction: Prediction, command: str = "") -> dict[str, Any]:
    """The [prediction] table: numbers with units in their names, and who said so when."""
    gib = 2**30
    record: dict[str, Any] = {
        "step_time_s": prediction.step_time_s,
        "step_time_low_s": prediction.interval_low,
        "step_time_high_s": prediction.interval_high,
        "interval_level": prediction.interval_level,
        "tokens_per_second_per_gpu": prediction.tokens_per_second_per_gpu,
        "mfu": prediction.mfu,
        "mfu_peak": prediction.mfu_peak,
        "peak_memory_gib": prediction.peak_memory_bytes / gib,
        "device_gib": prediction.device_bytes / gib,
        "advisor": advisor_version(),
        "made_on": date.today().isoformat(),
    }
    return record | ({"command": command} if command else {})


def advisor_version() -> str:
    """Version of this package; "unknown" in a checkout that is not installed."""
    try:
        return version("advisor")
    except PackageNotFoundError:
        return "unknown"


def save_plan_file(path: str | Path, plan_file: PlanFile) -> Path:
    """Write the plan whole or not at all; returns the path. OSError when the folder cannot be written.

    Paths of models and clusters are kept relative to the file when they lie beside or below it.
    """
    import tomli_w

    target = Path(path).expanduser()
    record = plan_file.to_dict()
    for part in ("model", "cluster"):
        record[part]["name"] = _portable(record[part]["name"], target.parent)
    check_writable(target)
    return write_whole(target, _HEADER + tomli_w.dumps(record))


def write_whole(target: Path, text: str) -> Path:
    """Write text whole or not at all, over what was there; returns the path. OSError when it cannot be written."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}."[:64], suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise OSError(
            error.errno, error.strerror, str(target)
        ) from None  # not the name of the temporary file
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target


def check_writable(path: str | Path) -> None:
    """OSError that names `path` unless a file can be written there; cheap enough to ask before a long search."""
    target = Path(path).expanduser()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(target))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is a device or pipe, not a file", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", str(target))
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "its folder cannot be written", str(target))


def load_plan_file(path: str | Path) -> PlanFile:
    """Read and check a plan file. Raises ValueError in one line: file, key, what was given, the way out."""
    source = Path(path).expanduser()
    record = _read(source)
    from costmodel.plan_schema import check_record

    checked = check_record(record, str(source), SCHEMA)
    try:
        plan = Plan(**checked["knobs"], settings=checked["settings"])
        workload = Workload(**checked["workload"])
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return PlanFile(
        model=_resolved(checked["model"]["name"], source.parent),
        workload=workload,
        cluster=_resolved(checked["cluster"]["name"], source.parent),
        gpus=checked["cluster"]["gpus"] or plan.world,
        plan=plan,
        stack=checked["cluster"]["stack"],
        prediction=checked["prediction"],
        price=checked["cluster"]["price_per_gpu_hour"],
    )


def last_plan_path() -> Path:
    """Where `explain` keeps the plan it gave last, for `run` and `predict` without a file."""
    return cache_folder() / "last-plan.toml"


def _read(source: Path) -> dict[str, Any]:
    try:
        if source.is_dir():
            if (source / "job.json").is_file():
                record = shlex.quote(str(source))
                raise ValueError(
                    f"{source} is the record of a run, not a plan file. `advisor compare {record}` and "
                    f"`advisor diagnose {record}` read it."
                )
            raise ValueError(f"{source} is a folder, not a plan file. Name the TOML file in it.")
        with source.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        if str(source).lower() in SWITCH_WORDS:
            raise ValueError(
                f"{source} was given where a plan file stands. A switch takes no value: --NAME is on, --no-NAME is off."
            ) from None
        raise ValueError(
            f"{source} cannot be read: {error.strerror}. `advisor explain ... --save F` writes a plan."
        ) from None
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{source} is larger than 1 MiB, so it is no plan file. Check the path.")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"{source} is not UTF-8 text, so it is no plan file. Check the path.") from None
    except tomllib.TOMLDecodeError as error:
        from costmodel.plan_schema import OTHERS_FILE

        foreign = source.suffix in (".sh", ".sbatch", ".slurm", ".yaml", ".yml", ".py")
        way = (
            OTHERS_FILE.format(shlex.quote(str(source)))
            if foreign
            else "Plan files hold lines such as tp = 4."
        )
        raise ValueError(f"{source} is not TOML: {error}. {way}") from None
    except (RecursionError, ValueError):
        # Brackets nested thousands deep, or a whole number of thousands of digits.
        raise ValueError(f"{source} is nested or sized like no plan file. Check the path.") from None


def _looks_like_path(name: str) -> bool:
    return name.endswith((".toml", ".json")) or name.startswith((".", "/", "~"))


def _portable(name: str, folder: Path) -> str:
    if not _looks_like_path(name):
        return name
    path = Path(name).expanduser().resolve()
    base = folder.resolve()
    return f"./{path.relative_to(base)}" if path.is_relative_to(base) else str(path)


def _resolved(name: str, folder: Path) -> str:
    if not _looks_like_path(name) or Path(name).expanduser().is_absolute():
        return name
    return str(folder / name)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
