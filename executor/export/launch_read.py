"""What a launch script says around the arguments: environment, binding, clocks; and the scripts beside a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.knobs import KNOBS
from executor.export.environment import environment_knobs, read_environment
from executor.export.exported import Reading
from executor.export.launch import SCRIPT
from executor.export.overlap_table import with_file
from executor.export.slurm import JOB_SCRIPT

LARGEST = 1 << 20
# Knobs that nothing but the environment says, and those that nothing but the launch says.
BY_ENVIRONMENT = (
    "max_connections",
    "nvls",
    "expandable_segments",
    "avoid_record_streams",
    "layernorm_sm_margin",
)
BY_LAUNCH = ("cpu_binding", "vboost")


def launch_knobs(text: str) -> dict[str, Any]:
    """Knobs of what stands around the arguments of a launch line: binding and clocks."""
    found: dict[str, Any] = {"cpu_binding": bool(re.search(r"numactl|--cpu-bind|taskset", text))}
    return found | ({"vboost": True} if "boost-slider" in text else {})


def with_environment(knobs: Mapping[str, Any], variables: Mapping[str, str | None]) -> dict[str, Any]:
    """The knobs with what the variables mean, which wins."""
    around = environment_knobs(variables)
    settings = dict(knobs.get("settings", {})) | around.pop("settings")
    kept = {name: value for name, value in knobs.items() if name != "settings"}
    told = {name: value for name, value in around.items() if value != KNOBS[name].default or name in kept}
    return kept | told | ({"settings": settings} if settings else {})


def unseen(variables: Collection[str], launched: bool = False) -> tuple[str, ...]:
    """Knobs that a text leaves to what it does not hold. launched: whether it holds a launch line."""
    return (*(() if variables else BY_ENVIRONMENT), *(() if launched else BY_LAUNCH))


def scripts_beside(path: Path) -> dict[str, str]:
    """The launch script in the folder that starts the file, and the job script that starts it: name to text."""
    found: dict[str, str] = {}
    wanted = path.name
    for name in (SCRIPT, JOB_SCRIPT):
        script = path.parent / name
        if name == path.name or not script.is_file() or script.stat().st_size > LARGEST:
            continue
        text = script.read_text(encoding="utf-8", errors="replace")
        if wanted in text:
            found[name] = text
            wanted = name
    return found


def with_scripts(found: Reading, scripts: Mapping[str, str]) -> Reading:
    """What was read, with what scripts beside it say around it: what they set wins, as in the run."""
    text = "\n".join(scripts.values())
    variables = read_environment(text)
    launch = {name: value for name, value in launch_knobs(text).items() if value or name in found.unseen}
    knobs = with_environment(found.knobs, variables) | launch
    left = [name for name in found.unseen if not variables and name in BY_ENVIRONMENT]
    return replace(found, knobs=knobs, unseen=tuple(left))


def table_file(named: str, folder: Path) -> Path | None:
    """The file of overlapped GEMMs that a text names, None where it is not there. folder: of the text.

    A path that begins with a variable, as ${HERE}/table.yaml, is looked for in the folder by its name.
    """
    path = Path(named) if "$" not in named else Path(named.rpartition("/")[2])
    found = next((each for each in (folder / path, path) if each.is_file()), None)
    return found if found and found.stat().st_size <= LARGEST else None


def with_table(found: Reading, path: Path) -> Reading:
    """What was read, with the file of overlapped GEMMs. ValueError in one line when it cannot be read."""
    try:
        return replace(
            found, knobs=with_file(found.knobs, path.read_text(encoding="utf-8", errors="replace"))
        )
    except ValueError as error:
        raise ValueError(f"{path}, which --tp-comm-overlap-cfg names: {error}") from None


def unseen_line(names: Collection[str]) -> str:
    """A line about knobs that stand in an environment or a launch which was not given."""
    options = ", ".join("--" + name.replace("_", "-") for name in names)
    around, launch = (any(name in names for name in each) for each in (BY_ENVIRONMENT, BY_LAUNCH))
    where = (
        "Environment and launch line are"
        if around and launch
        else f"The {'environment' if around else 'launch line'} is"
    )
    return (
        f"{where} not in the text: {options} are as usual unless you give them. A {SCRIPT} in the file's folder that "
        "starts it is read too."
    )
