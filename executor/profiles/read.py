"""A profile file of either kind, known by its first bytes."""

from __future__ import annotations

from pathlib import Path

from executor.profiles.profile import Profile

SQLITE = b"SQLite format 3\x00"


def is_profile(path: Path) -> bool:
    """Whether the file is a trace or an export, by its name and first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(16)
    names = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep")
    return head == SQLITE or path.name.endswith(names)


def read_profile(path: str | Path) -> list[Profile]:
    """A profile for every device. ValueError in one line for anything else."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"{path} is no file. Check the path of the profile.")
    if file.stat().st_size == 0:
        raise ValueError(f"{path} is empty. Export the profile again.")
    with file.open("rb") as stream:
        head = stream.read(16)
    if file.suffix in (".nsys-rep", ".qdrep"):
        raise ValueError(
            f"{path} is a report of Nsight Systems, which only its own tools read. "
            f"Export it: nsys export --type sqlite {file.name}."
        )
    if head == SQLITE:
        from executor.profiles.nsys import read_nsys

        return read_nsys(file)
    from executor.profiles.chrome import read_chrome

    return read_chrome(file)
