"""Words that a shell completes: models, machines, knobs and their values. Imported only while a shell asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")
Words = Callable[[str], Iterable[str]]
FILES = [CompletionItem("", type="file")]
# Options that name a file or a folder, and arguments that may.
PATHS = (
    "output",
    "save",
    "record",
    "trace",
    "data",
    "resume_measure",
    "html",
    "logs",
    "traces",
    "source",
    "file",
)


def complete_values(command: click.Command) -> click.Command:
    """Give the options and arguments of a command the words that they take."""
    for parameter in command.params:
        words = _words(parameter, command.name or "")
        if words is not None:
            setattr(parameter, "shell_complete", _completer(words))  # noqa: B010
        elif isinstance(parameter, click.Argument) or parameter.name in PATHS:
            setattr(parameter, "shell_complete", lambda context, incomplete: FILES)  # noqa: B010
    return command


def _completer(words: Words) -> Callable[[click.Context, str], list[CompletionItem]]:
    def complete(context: click.Context, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(word) for word in dict.fromkeys(words(incomplete)) if word.startswith(incomplete)
        ]

    return complete


def _words(parameter: click.Parameter, command: str) -> Words | None:
    """What a parameter takes; None where nothing is known."""
    from costmodel.knobs import KNOBS

    name = parameter.name or ""
    if isinstance(parameter, click.Argument):
        return {"models": _models, "hardware": _hardware, "knobs": _knobs, "completion": _shells}.get(command)
    fixed = {
        "task": ("pretrain", "sft", "lora"),
        "objective": ("throughput", "cost", "memory"),
        "precision": (*KNOBS["precision"].choices, *(("auto",) if command == "explain" else ())),
    }
    if name in fixed:
        return lambda incomplete: fixed[name]
    if name in KNOBS and KNOBS[name].choices:
        return lambda incomplete: [choice for choice in KNOBS[name].choices if choice]
    known: dict[str, Words] = {
        "model": _models,
        "gpu": lambda incomplete: [*_gpus(), *(("local",) if command == "run" else ())],
        "cluster": _clusters,
        "stack": _stacks,
        "pin": _pairs,
        "why_not": _pairs,
        "set_pairs": _pairs,
        "names": _knobs,
    }
    return known.get(name)


def _models(incomplete: str = "") -> list[str]:
    from costmodel.model_registry import list_aliases, list_models

    return [*list_models(), *list_aliases()]


def _gpus() -> list[str]:
    import hardware_db

    return [gpu.name for gpu in hardware_db.list_gpus()] + sorted(
        {gpu.name.partition("-")[0] for gpu in hardware_db.list_gpus()}
    )


def _clusters(incomplete: str = "") -> list[str]:
    import hardware_db

    return [cluster.name for cluster in hardware_db.list_clusters()]


def _hardware(incomplete: str = "") -> list[str]:
    import hardware_db

    return [*_gpus(), *_clusters(), *(link.name for link in hardware_db.list_links())]


def _stacks(incomplete: str = "") -> list[str]:
    from costmodel.stack import families

    return [f"{name}-{release}" for name, family in families().items() for release in family["releases"]]


def _shells(incomplete: str = "") -> tuple[str, ...]:
    return SHELLS


def _knobs(incomplete: str = "") -> list[str]:
    from costmodel.knobs import KNOBS, SETTINGS

    return [*KNOBS, *SETTINGS]


def _pairs(incomplete: str) -> list[str]:
    """knob= first, then its values."""
    from costmodel.knobs import KNOBS

    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{knob}=" for knob in KNOBS]
    knob = KNOBS.get(name)
    if knob is None:
        return []
    values = ("on", "off") if knob.kind == "bool" else knob.choices
    return [f"{name}={value}" for value in values if value]
