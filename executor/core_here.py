"""The Megatron-Core that is found here, and what it changes in a dry run. Imports no torch.

The project installs 0.16, the last for Python 3.11. What differs in later releases is data: flags of their stack
(costmodel/stacks.toml), documented differences that need "core 0.19", and the patterns of hybrids below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from costmodel.amounts import INSTALLED
from costmodel.stack import Stack, load_stack
from costmodel.versions import month_of, version_months

# First release whose hybrids have stages, chunks and MTP heads in one pattern. Source: Megatron-Core 0.17.1,
# models/mamba/mamba_model.py, hybrid_layer_pattern; 0.16.1 has hybrid_override_pattern.
STAGED_HYBRIDS = "26.04"


@dataclass(frozen=True)
class Core:
    """A Megatron-Core. version: "" where none is found, as of 0.16. release: its month, "yy.mm".

    folder: where its package stands, None where Python finds it.
    """

    version: str
    release: str
    folder: Path | None = None

    @property
    def stack(self) -> Stack:
        """The stack whose flags it has."""
        return load_stack(f"mcore-{self.release}")

    @property
    def stages_hybrids(self) -> bool:
        """Whether a pattern says where stages and chunks of a hybrid begin, and its MTP heads."""
        return self.release >= STAGED_HYBRIDS

    @property
    def features(self) -> frozenset[str]:
        """What documented differences ask for: "core 0.19" for that release and each later one."""
        months = version_months("megatron_core")
        return frozenset(f"core {name}" for name, month in months.items() if month <= self.release)


def core_of(found: str) -> Core:
    """A Megatron-Core by its version, the newest known where it is newer."""
    months = version_months("megatron_core")
    if not found:
        return Core("", INSTALLED.partition("-")[2])
    return Core(found, month_of(found, months) or max(months.values()))


def core_here() -> Core:
    """The one that is found here."""
    try:
        return core_of(version("megatron-core"))
    except PackageNotFoundError:
        return core_of("")


def core_in(folder: Path) -> Core:
    """The one whose wheel is unpacked in a folder. ValueError, one line, where none is."""
    found = [one.version for one in distributions(path=[str(folder)]) if one.name == "megatron-core"]
    if not found or not (folder / "megatron" / "core").is_dir():
        raise ValueError(
            f"--megatron-core {str(folder)!r} holds no megatron-core. Try `pip install --no-deps --target DIR "
            "megatron-core` (with --ignore-requires-python before Python 3.12), and --megatron-core DIR."
        )
    return replace(core_of(found[0]), folder=folder.resolve())
