"""What surrounds the GPUs of a maker: the words of `platforms.toml`, by which texts and exports are right for it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# What titles are told in.
WORDS = ("context", "graphs", "collectives", "interconnect")
PLATFORMS = Path(__file__).with_name("platforms.toml")


@dataclass(frozen=True)
class Platform:
    """Software and names around a maker's GPUs; the fields are explained in `platforms.toml`."""

    name: str
    vendors: tuple[str, ...]
    context: str
    graphs: str
    collectives: str
    interconnect: str
    attention: str
    multiprocessors: str
    monitor: str
    image: str
    source: str

    @property
    def is_rocm(self) -> bool:
        """Whether programs run on ROCm: NVIDIA's libraries, drivers and tools are not there."""
        return self.name == "ROCm"

    def told(self, title: str) -> str:
        """A title or sentence that is written in CUDA's words, in those of this platform.

        Variables keep their names, which RCCL and PyTorch for ROCm share. Not for what only NVIDIA has.

        Examples
        --------
        >>> platform_of("AMD").told("CUDA context, libraries, NCCL buffers")
        'HIP context, libraries, RCCL buffers'
        """
        return _retold(title, platforms()[0], self)


def _retold(text: str, one: Platform, other: Platform) -> str:
    """Words of one platform put in those of another; NCCL_DEBUG and NVLink-C2C are names of their own."""
    for word in WORDS if one is not other else ():
        text = re.sub(rf"\b{getattr(one, word)}(?![_A-Z-])", getattr(other, word), text)
    return text


def as_written(title: str) -> str:
    """A title that some platform tells as it is written, by which a term is one on all of them.

    Examples
    --------
    >>> as_written("HIP context, libraries, RCCL buffers")
    'CUDA context, libraries, NCCL buffers'
    """
    for each in platforms():
        title = _retold(title, each, platforms()[0])
    return title


@lru_cache(maxsize=1)
def platforms() -> tuple[Platform, ...]:
    """Every platform, CUDA first."""
    records = tomllib.loads(PLATFORMS.read_text(encoding="utf-8"))
    return tuple(
        Platform(name, **record | {"vendors": tuple(record["vendors"])}) for name, record in records.items()
    )


@lru_cache(maxsize=32)
def platform_of(vendor: str) -> Platform:
    """The platform of a maker's GPUs, CUDA where none lists it: a processor's or a file's that names no maker."""
    return next((each for each in platforms() if vendor in each.vendors), platforms()[0])
