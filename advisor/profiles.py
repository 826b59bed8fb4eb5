"""`--profile`: constants that `advisor calibrate` measured, in place of those of the machine that is named."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from advisor.commands import not_blank_profile

if TYPE_CHECKING:
    from hardware_db import Cluster

Function = TypeVar("Function", bound=Callable[..., Any])


def profile_option(function: Function) -> Function:
    """Decorator: --profile; the command sees --gpu (and --cluster) as the profile makes them."""

    @functools.wraps(function)
    def with_profile(*arguments: Any, **options: Any) -> Any:
        profile = options.pop("profile")
        return function(*arguments, **(options | machine_options(profile, options) if profile else options))

    option = click.option(
        "--profile",
        metavar="NAME",
        callback=named,
        help="What `advisor calibrate` measured: a name or a TOML; stands for --gpu too.",
    )
    return option(with_profile)  # type: ignore[return-value]


def named(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """The path of a profile; a callback of click. ValueError in one line when there is none."""
    not_blank_profile(context, parameter, given)
    return str(find(given)) if given is not None else None


def find(given: str) -> Path:
    """The file that a name or path means."""
    from executor.local_profile import home

    if given.endswith(".toml") or "/" in given:
        path = Path(given).expanduser()
        if path.is_dir():
            raise ValueError(f"--profile {given} is a folder. Name the TOML in it, or a profile by its name.")
        if not path.is_file():
            raise ValueError(
                f"--profile {given} does not exist. Try `advisor calibrate -o {shlex.quote(given)}`."
            )
        return path
    folder = home() / "profiles"
    path = folder / f"{given}.toml"
    if path.is_file():
        return path
    from hardware_db.reading import nearest

    known = sorted(each.stem for each in folder.glob("*.toml")) if folder.is_dir() else []
    hint = nearest(given, known) or (f"Known: {', '.join(known)}." if known else "None is kept yet.")
    raise ValueError(
        f"--profile {given!r} is no profile. {hint} `advisor calibrate -o {shlex.quote(given)}` makes one; "
        "a TOML's path works too."
    )


def machine_options(profile: str, options: dict[str, Any]) -> dict[str, Any]:
    """--gpu and --cluster that mean the profile; ValueError when they name another machine."""
    import hardware_db

    measured = hardware_db.load_cluster(profile).gpu
    gpu, cluster = options.get("gpu"), options.get("cluster")
    if gpu or cluster:
        there = hardware_db.resolve(gpu, cluster)[0].gpu
        if there.name != measured.name:
            given = f"--cluster {cluster}" if cluster else f"--gpu {gpu}"
            raise ValueError(
                f"{given} and --profile {profile} disagree: the profile is of {measured.title}. Drop one of them."
            )
    return (
        {"gpu": profile} if "cluster" not in options or not cluster else {"gpu": profile, "cluster": cluster}
    )


def other_processes(cluster: Cluster, world: int) -> list[str]:
    """What to know where a machine without GPUs was measured with another number of processes; nothing elsewhere."""
    measured = cluster.processes
    if measured is None or measured == world:
        return []
    return [
        f"{cluster.name} was measured with {measured} process{'es' * (measured > 1)}, and {world} share its cores and "
        f"memory otherwise: times and what fits are of {measured}. `advisor calibrate --gpus {world}` measures {world}."
    ]
