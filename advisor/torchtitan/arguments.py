"""A start line of torchtitan, or a script with one: its configuration, and the keys that it sets over that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advisor.torchtitan.job import (
    FILES,
    Job,
    check,
    check_known,
    kinds_of,
    known_keys,
    read_job,
    release_of,
)
from advisor.torchtitan.python_job import RELEASE, RENAMED, named_job, python_job
from executor.export.megatron_lm_fields import number_or_word
from executor.export.shell_words import left_open, read_flags

# Where a start line, or a variable of its script, says what is trained: a job file, or a function of a module. Source:
# torchtitan 0.1.0 and 0.3.0, README, whose run_train.sh takes the variables.
FILE = ("job.config_file", "CONFIG_FILE")
MODULE, CONFIG = ("module", "MODULE"), ("config", "CONFIG")
# Flags of ours in front of the text: the variables, put in as for any flag, also of a text without flags.
VARIABLES = "".join(f"--{name} ${{{name}}}\n" for _, name in (FILE, MODULE, CONFIG))
PASSED_ON = re.compile(r"\$(?:[@*]|\{[@*][^}]*\})")  # what whoever starts a script adds to its line
TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# Tables of 0.3.0 whose keys change no step.
OTHERS = ("profiler", "metrics", "tokenizer", "dataloader", "lr_scheduler", "checkpoint", "comm", "validator")


def arguments_job(text: str) -> Job:
    """The job that a start line means. ValueError in one line for what is no key, or names no configuration."""
    given = {
        name.removeprefix("--").replace("-", "_"): [word for word in values if not PASSED_ON.fullmatch(word)]
        for name, values in read_flags(VARIABLES + text).given.items()
    }
    module, config, file = (_named(given, names) for names in (MODULE, CONFIG, FILE))
    if bool(module) != bool(config):
        raise ValueError(
            "--module and --config are given together, as --module llama3 --config llama3_8b, "
            "or MODULE=llama3 CONFIG=llama3_8b before ./run_train.sh."
        )
    if module.endswith(".py"):
        base = python_job(_file(module, "--module"), config)
    elif module:
        base = named_job(module, config)
    else:
        base = read_job(_file(file, "--job.config_file")) if file else Job({}, "")
    release = RELEASE if module else FILES
    said, notes = dict(base.said), list(base.notes)
    for name, values in given.items():
        if "." not in name or name == FILE[0] or (module and name.partition(".")[0] in OTHERS):
            continue
        key, off = _key(name, release)
        if left_open(values):
            notes.append(
                f"Left to a variable that is not set: {name} {' '.join(values)[:40]}. It counts as not said."
            )
            continue
        said[RENAMED.get(key, key)] = _value(key, values, off)
    if module:
        return Job(said, release, tuple(notes))
    if not said:
        raise ValueError(
            "this starts nothing of torchtitan: it names no configuration and sets no key. "
            "Try '--module llama3 --config llama3_8b', or the job file itself."
        )
    found, mixed = release_of(said)
    return Job(said, found, tuple(dict.fromkeys((*notes, *mixed))))


def _named(given: dict[str, list[str]], names: tuple[str, str]) -> str:
    """What a flag names, else its variable; "" without both. ValueError in one line where nothing sets it."""
    option, variable = names
    said = given.get(option, [])[:1]  # words behind are the shell's
    if said and not left_open(said):
        return said[0]
    own = given[variable][:1]
    if own and not left_open(own):
        return own[0].strip("\"'")
    if said:
        raise ValueError(
            f"--{option} {said[0][:80]} is left to a variable that the text does not set. Write the name itself, "
            f"or {variable}=NAME in front."
        )
    return ""


def _file(name: str, option: str) -> str:
    path = Path(name).expanduser()
    if not path.is_file():
        shown = " ".join(name.split())[:80]
        raise ValueError(f"{shown}, which {option} names, is no file. Give its path from this folder.")
    return path.read_text(encoding="utf-8", errors="replace")


def _key(name: str, release: str) -> tuple[str, bool]:
    """The key that an option means, and whether it is switched off by a no_ before its last part."""
    table, _, leaf = name.rpartition(".")
    bare = f"{table}.{leaf.removeprefix('no_')}"
    if leaf.startswith("no_") and bare in known_keys(release) and "bool" in kinds_of(bare):
        return bare, True
    check_known([name], release)
    return name, False


def _value(key: str, values: Sequence[str], off: bool) -> Any:
    """A value as its key's type. ValueError in one line where it is of another."""
    kinds, word = kinds_of(key), " ".join(values)
    value: Any = word
    if "bool" in kinds:
        value = not off if not values else TRUTH.get(word.lower(), word)
    elif any(kind.startswith("list") for kind in kinds):
        value = [each for each in re.split(r"[,\s]+", word) if each]
    elif {"int", "float"} & set(kinds):
        value = number_or_word(word)
    check(key, value)
    return value
