"""Flags in a shell script, a command line or a launcher's YAML: the words, variables put in, comments left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from executor.export.shell_values import expanded

LARGEST = 1 << 20
END = "\n"
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?=([^${}]*)\}")
# A flag and its values in one pair of quotes: an item of an array that is put in without quotes is cut at blanks.
_TOGETHER = re.compile(r"\(?--[A-Za-z][\w-]*\s+\S")
_PUT_IN = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?\}?")
_ENDS = (")", ";", "&&", "||", "|", "&", "\\")
_REDIRECTED = re.compile(r"\d?&?>{1,2}.*|<.*")
_OPENS, _CLOSES = ("if", "case"), ("fi", "esac")


@dataclass(frozen=True)
class Flags:
    """given: flag to its values, the last word counts; variables: of the script, as written there.

    branched: flags that stand in a branch (if, case), or whose value a branch decides.
    """

    given: dict[str, list[str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    branched: tuple[str, ...] = ()


def read_flags(text: str) -> Flags:
    """Every flag with its values. ValueError in one line when the text holds none."""
    if len(text) > LARGEST:
        raise ValueError("the configuration is larger than 1 MiB, so it is none. Check the path.")
    read = _Read()
    # Directives of Slurm are comments for the shell.
    for name, value in re.findall(r"^#SBATCH\s+(--[\w-]+)(?:[= ](\S+))?", text, re.MULTILINE):
        read.given[name] = [value] if value else []
    read.collect(_words(text))
    if not read.given:
        raise ValueError(
            "no argument such as --num-layers 32 is in the text. Give a command line, a shell script or a YAML."
        )
    given, used = expanded(read.given, read.variables)
    branched = [flag for flag in given if flag in read.branched or used[flag] & read.decided]
    return Flags(given, read.variables, tuple(branched))


def left_open(values: Iterable[str]) -> bool:
    """Whether any of a flag's words is left to a variable or a command that the text does not give."""
    return any("$" in word or "`" in word for word in values)


def _words(text: str) -> Iterator[str]:
    """Words of a shell script, with END at line ends; quotes are taken off, backslashes join lines.

    Between the brackets of an array a line's end is a blank, as it is for the shell; $(...) is one word.
    """
    word, quote, index, started, depth, within = "", "", 0, False, 0, 0
    while index < len(text):
        letter = text[index]
        index += 1
        if within and not quote:
            within += (letter == "(") - (letter == ")")
            word += letter
        elif quote:
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
            if letter == "(" and word.endswith("$"):
                within = 1
            elif letter == "(" and (depth or _ARRAY.fullmatch(word)):
                depth += 1
            depth -= bool(depth and letter == ")")
            word += letter
    if word or started:
        yield word


class _Read:
    """Flags and variables of words, as they are read in the order of the text.

    branched: flags that a branch gives. decided: variables that have another value in a branch than elsewhere.
    """

    def __init__(self) -> None:
        self.given: dict[str, list[str]] = {}
        self.variables: dict[str, str] = {}
        self.branched: set[str] = set()
        self.decided: set[str] = set()
        self._branches = 0
        self._in_branch: set[str] = set()

    def collect(self, words: Iterable[str]) -> None:
        """Read words, with END where a command's line ends."""
        flag, first = "", True
        for word in words:
            bare = word.rstrip(";")
            if first and bare in (*_OPENS, *_CLOSES):
                self._branches = max(0, self._branches + (1 if bare in _OPENS else -1))
            flag = self._next(word, flag)
            first = word in (END, "then", "else", "do") or word.endswith(";")

    def _next(self, word: str, flag: str) -> str:
        """Take a word; returns the flag whose values may follow, "" for none."""
        for name, value in _DEFAULT.findall(word):
            self.variables.setdefault(name, value)
        assigned = _ASSIGNED.fullmatch(word)
        if assigned and assigned[2].startswith("(--"):
            word, assigned = assigned[2], None  # an array that begins with its first flag
        if word == END or word in _ENDS or _REDIRECTED.fullmatch(word):
            return ""
        if assigned and not word.startswith("-"):
            self._assign(assigned[1], assigned[2].strip().rstrip(";"))
            return ""
        last = word.endswith(";")
        word = word.rstrip(";")
        if _TOGETHER.match(word):
            self.collect(each for each in _words(word) if each != END)
            return ""
        if re.match(r"\(?--[A-Za-z]", word):
            flag, separator, value = _bare(word.lstrip("(")).rstrip(":").partition("=")
            self.given[flag] = [value] if separator else []
            self.branched |= {flag} if self._branches else set()
        elif self._holds_flags(word):
            return ""
        elif flag and word:
            self.given[flag].append(_bare(word))
        return "" if last else flag

    def _holds_flags(self, word: str) -> bool:
        """Whether the word puts in arguments kept elsewhere, no value of the flag before: `--bf16 ${ARGS[@]}`."""
        put = _PUT_IN.fullmatch(word)
        value = self.variables.get(put[1]) if put else ""
        if value is None:
            return word.endswith("]}")  # an array that begins with its first flag
        return value in ("(", "()") or "--" in value

    def _assign(self, name: str, value: str) -> None:
        before = self.variables.get(name)
        if before not in (None, value) and (self._branches or name in self._in_branch):
            self.decided.add(name)
        self._in_branch |= {name} if self._branches else set()
        self.variables[name] = value
        if "--" in value:  # arguments kept in a variable, quoted, as an array or of a command
            # What is put in by its name is cut at blanks, and line ends are such.
            self.collect(each for each in _words(value.lstrip("$(")) if each != END)


def _bare(word: str) -> str:
    """The word without the bracket behind it that closes an array."""
    return word.rstrip(")") if word.count("(") < word.count(")") else word
