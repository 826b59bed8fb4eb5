"""Flags in a shell script, a command line or a launcher's YAML: the words, variables put in, comments left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LARGEST = 1 << 20
END = "\n"
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^${}]*))?(?:\[@\])?\}|\$(\w+)")


@dataclass(frozen=True)
class Flags:
    """given: flag to its values, the last word counts; variables: of the script, as written there."""

    given: dict[str, list[str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


def read_flags(text: str) -> Flags:
    """Every flag with its values. ValueError in one line when the text holds none."""
    if len(text) > LARGEST:
        raise ValueError("the configuration is larger than 1 MiB, so it is none. Check the path.")
    variables: dict[str, str] = {}
    given: dict[str, list[str]] = {}
    # Directives of Slurm are comments for the shell.
    for name, value in re.findall(r"^#SBATCH\s+(--[\w-]+)(?:[= ](\S+))?", text, re.MULTILINE):
        given[name] = [value] if value else []
    _collect(list(_words(text)), given, variables)
    if not given:
        raise ValueError(
            "no argument such as --num-layers 32 is in the text. Give a command line, a shell script or a YAML."
        )
    return Flags(_expanded(given, variables), variables)


def left_open(values: Iterable[str]) -> bool:
    """Whether any of a flag's words is left to a variable or a command that the text does not give."""
    return any("$" in word or "`" in word for word in values)


def _words(text: str) -> Iterator[str]:
    """Words of a shell script, with END at line ends; quotes are taken off, backslashes join lines.

    Between the brackets of an array a line's end is a blank, as it is for the shell.
    """
    word, quote, index, started, depth = "", "", 0, False, 0
    while index < len(text):
        letter = text[index]
        index += 1
        if quote:
            if letter == "\\" and quote == '"' and index < len(text):
                word += "" if text[index] == "\n" else text[index]
                index += 1
            elif letter == quote:
                quote = ""
            else:
                word += letter
        elif letter in "\"'":
            quote, started = letter, True
        elif letter == "\\" and index < len(text):
            if text[index] != "\n":
                word += text[index]
            elif word or started:
                yield word
                word, started = "", False
            index += 1
        elif letter == "#" and not word and not started:
            index = text.find("\n", index)
            index = len(text) if index < 0 else index
        elif letter.isspace():
            if word or started:
                yield word
                word, started = "", False
            if letter == "\n" and not depth:
                yield END
        else:
            if letter == "(" and (depth or _ARRAY.fullmatch(word)):
                depth += 1
            depth -= bool(depth and letter == ")")
            word += letter
    if word or started:
        yield word


def _collect(words: list[str], given: dict[str, list[str]], variables: dict[str, str]) -> None:
    """Flags and variables of the words, in the order of the text."""
    flag = ""
    for word in words:
        assigned = _ASSIGNED.fullmatch(word)
        if assigned and assigned[2].startswith("(--"):
            word, assigned = assigned[2], None  # an array that begins with its first flag
        if word == END:
            flag = ""
        elif assigned and not word.startswith("-"):
            name, value = assigned[1], assigned[2].strip().rstrip(";")
            variables[name] = value
            flag = ""
            if "--" in value:  # arguments kept in a variable, quoted or as an array
                # What is put in by its name is cut at blanks, and line ends are such.
                _collect([each for each in _words(value.lstrip("(")) if each != END], given, variables)
        elif re.match(r"\(?--[A-Za-z]", word):
            flag, separator, value = word.lstrip("(").rstrip(")").rstrip(":").partition("=")
            given[flag] = [value] if separator else []
        elif flag and word not in (")", ";", "&&", "||", "|", "&", "\\"):
            given[flag].append(word.rstrip(")") if word.count("(") < word.count(")") else word)


def _expanded(given: dict[str, list[str]], variables: dict[str, str]) -> dict[str, list[str]]:
    """Values with the script's own variables put in; others stay as they are."""

    def put(value: str, depth: int = 0) -> str:
        def known(match: re.Match[str]) -> str:
            name, default = match[1] or match[3], match[2]
            own = variables.get(name, "")
            if own and f"${{{name}" not in own and f"${name}" not in own:
                return own
            within = _VARIABLE.search(own)
            return default if default is not None else (within[2] or match[0]) if within else match[0]

        fresh = _VARIABLE.sub(known, value)
        return fresh if fresh == value or depth > 5 else put(fresh, depth + 1)

    return {flag: [put(value) for value in values] for flag, values in given.items()}
