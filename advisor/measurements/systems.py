"""The cluster that a row's system means, however it is written."""

from __future__ import annotations

import re
from collections.abc import Iterable

import hardware_db
from hardware_db import Cluster, Gpu

# Of the memory that a name tells, how far a GPU's own may differ: 180, 186 and 192 GB are all printed of a B200. [1]
SAME_MEMORY = 0.1
# Gigabytes in a name, not bits a second; a bare g only behind a GPU's name, as in a100-40g.
MEMORY = re.compile(r"(?<![\d.])(\d{2,3})-?(?:gb|gib)(?![a-z0-9]|/s)|[a-z]\d+-(\d{2,3})g(?![a-z0-9/])")
# Memory that a name tells without its size.
NAMED_MEMORY = {"h20-3e": 141}  # GB
LARGEST_MEMORY = 320  # GB; what is larger is another number
# SXM modules, and cards that share a module's name, but neither its chip's size nor its memory.
MODULES = {"a100", "a800", "h100", "h200", "h20", "h800"}
OTHER_CARDS = re.compile(r"(?<![a-z0-9])(pcie|nvl(?!\d|-72|-36))(?![a-z0-9])")
# GPUs of a scale-up domain that a name tells, and how many such racks make one: nvl72, nvl36x2.
DOMAIN = re.compile(r"(?<![a-z0-9])nvl-?(\d+)(?:x(\d+))?(?![a-z0-9])")
# What of a system's name tells nothing but how much there is of a GPU.
AMOUNTS = re.compile(r"-\d+-?(?:gpus?|gb?|x)?(?=-|$)")


def row_cluster(system: str, runs_on: str = "") -> tuple[Cluster, str]:
    """The cluster of a row's system, and in words how its name was read; "" where it is ours or a GPU's usual one.

    runs_on: the cluster of the row's source, which counts where the system tells no more than its GPU.
    A name of ours anywhere in it counts, as in "ml.p5.48xlarge" or "Selene DGX A100"; else the GPU that it names, with
    the memory that it tells, as in "8x A100-SXM4-40GB". ValueError when it names none, several, or another card.
    """
    given = system.strip()
    if not given:
        raise ValueError("no system is stated. Name a cluster, such as dgx-h100, or a GPU.")
    try:
        found = hardware_db.resolve(given, None)[0]
    except ValueError as error:
        read = _read(_plain(given), given)
        if read is None:
            raise ValueError(str(error).replace("--gpu", "system")) from None
        found, told = read, False
    else:
        told = found == _usual(_first_word(found.gpu)) or _plain(given) == found.name
    if (told_size := DOMAIN.search(_plain(given))) and not given.endswith(".toml"):
        size = int(told_size[1]) * int(told_size[2] or 1)
        if size != found.domain_size:
            raise ValueError(
                f"system {given!r} has {size} GPUs in a domain, and {found.name} {found.domain_size}. Describe it in a "
                "file, as docs/extending.md shows, and name the file."
            )
    own = hardware_db.load_cluster(runs_on) if runs_on else found
    only_gpu = found == _usual(_first_word(found.gpu)) and _plain(given) != found.name
    if only_gpu and own != found and own.gpu == found.gpu:
        found, told = own, False
    return found, "" if told else f"system {given!r} taken as {found.name} ({found.title})"


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9./]+", "-", text.lower())


def _read(text: str, given: str) -> Cluster | None:
    card = OTHER_CARDS.search(text)
    gpus = _gpus_named(text, card[1] if card else "")
    names = {_first_word(gpu) for gpu in gpus}
    if len(names) > 1:
        raise ValueError(
            f"system {given!r} names several GPUs: {', '.join(sorted(names))}. Give each its own row."
        )
    if card and names & MODULES:
        raise ValueError(
            f"system {given!r} is another card than the SXM module of that name, and not known. Describe it in a "
            "file, as docs/extending.md shows, and name the file."
        )
    whole = _longest(text)
    if whole is not None and (not names or _first_word(whole.gpu) in names) and _has_memory(whole.gpu, text):
        return whole
    usual = {_usual(_first_word(gpu)).gpu.name for gpu in gpus}
    for gpu in sorted(gpus, key=lambda each: each.name not in usual):
        if _has_memory(gpu, text):
            return _usual(gpu.name)
    if gpus:
        told = " and ".join(f"{size} GB" for size in _sizes(text))
        raise ValueError(
            f"system {given!r}: no {names.pop()} with {told} is known. `advisor hardware` lists them."
        )
    return None


def _gpus_named(text: str, card: str) -> list[Gpu]:
    """GPUs that a text names; where it names a card of ours (h100-pcie) none of those whose name is a part of it.

    card: pcie or nvl where that stands anywhere in the text, as in "H100 80GB PCIe"; else "".
    """
    shipped = hardware_db.list_gpus()
    words = {_first_word(gpu) for gpu in shipped}
    found = {word for word in words if _named(word, text)}
    found |= {f"{word}-{card}" for word in found} & words
    found -= {word for word in found if any(other.startswith(f"{word}-") for other in found)}
    return [gpu for gpu in shipped if _first_word(gpu) in found]


def _longest(text: str) -> Cluster | None:
    """The cluster with the longest name in a text, of those whose names say more than their GPU's."""
    named = [
        (len(name), cluster)
        for cluster in hardware_db.list_clusters()
        for name in _names(cluster)
        if AMOUNTS.sub("", name) != _first_word(cluster.gpu) and _named(name, text)
    ]
    return max(named, key=lambda each: each[0])[1] if named else None


def _names(cluster: Cluster) -> Iterable[str]:
    return (_plain(name).strip("-") for name in (cluster.name, *cluster.aliases))


def _usual(gpu: str) -> Cluster:
    """The cluster that a GPU's name alone means."""
    return hardware_db.resolve(gpu, None)[0]


def _named(name: str, text: str) -> bool:
    """Whether a name stands in a text as words of its own, with a count of it or without: 8xh100, h100x8, h100s."""
    parts = "-?".join(re.escape(part) for part in re.findall(r"[a-z]+|[^a-z-]+", name))
    return bool(re.search(rf"(?<![a-z0-9])(?:\d+x)?{parts}(?:x\d+|s)?(?![a-z0-9])", text))


def _first_word(gpu: Gpu) -> str:
    """What a GPU is called in any of its forms: h100 of h100-sxm-500w, gh200 of gh200-144gb, rtx-pro-6000."""
    return re.sub(r"-(?:sxm|\d+w|\d+gb).*", "", gpu.name)


def _has_memory(gpu: Gpu, text: str) -> bool:
    """Whether a GPU has what a text tells of its memory; true where it tells nothing."""
    own = gpu.get("hbm_capacity") / 1e9
    sizes = _sizes(text)
    return not sizes or any(abs(size / own - 1) <= SAME_MEMORY for size in sizes)


def _sizes(text: str) -> list[int]:
    """Gigabytes that a text tells of a GPU's memory."""
    found = (int(one or other) for one, other in MEMORY.findall(text))
    named = [size for name, size in NAMED_MEMORY.items() if _named(name, text)]
    return named + [size for size in found if size <= LARGEST_MEMORY]
