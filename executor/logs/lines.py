"""Lines of a log of any size: streamed, unpacked, without colours, carriage returns and prefixes of ranks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

# A line longer than this is no line of a log; its beginning is read. [byte]
LONGEST = 1 << 16
BLOCK = 1 << 20
ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# What launchers put before a line: `12: ` and `node-3: ` (srun --label, mpirun), `[default0]:` and `[rank0]: `
# (torchrun --tee, --redirects), `[1,0]<stdout>: ` (mpirun --tag-output), `(TrainWorker pid=12) ` (Ray),
# `train/0 [default0]:` (torchx, NeMo-Run), `2026-06-01T10:00:00.1Z ` (docker and kubectl logs with stamps),
# `0: ` within another. NeMo's and loggers' own stamps stay, as they are part of what is read.
PREFIX = re.compile(
    r"^(?:\s*\d{1,6}:[ \t]|\[(?:default|rank|trainer)?\d+\]:[ \t]?|\[[\w.-]+\]\[\w+\]:?[ \t]|"
    r"\[\d+,\d+\]<std(?:out|err)>:[ \t]?|\([\w ]+pid=\d+[^)]*\)[ \t]|(?:\w+/)?(?:rank|trainer|worker)[-_ ]?\d+:[ \t]|"
    r"[\w.-]+/\d+[ \t](?=\[)|\d{4}-\d\d-\d\dT[\d:]+(?:\.\d+)?Z[ \t])"
)
GZIP = b"\x1f\x8b"


def lines(path: Path) -> Iterator[str]:
    """Every line of the file, cleaned. ValueError in one line for what is empty, binary or no file."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a log. Name the file that the job wrote.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or pipe, and a log is read twice. Keep it in a file first.")
    if not path.is_file():
        raise ValueError(f"{path} is no file. Check the path of the log.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: nothing was logged. Check the path, or wait for the first step.")
    with path.open("rb") as file:
        head = file.read(2)
    try:
        with path.open("rb") as file:
            blocks = _unpacked(file) if head == GZIP else iter(lambda: file.read(BLOCK), b"")
            yield from _lines(blocks, path)
    except zlib.error as error:
        raise ValueError(f"{path} is no whole gzip file: {error}. Unpack it first.") from None


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    """What a gzip file holds, as far as it goes: one that is cut or still written is read to its end.

    Reading by GzipFile loses what was unpacked since its last block, of a small log everything.
    """
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while packed := file.read(BLOCK >> 4):
        while packed:
            yield member.decompress(packed)
            packed = member.unused_data.lstrip(b"\0")  # padding of tapes
            if member.eof:
                member = zlib.decompressobj(zlib.MAX_WBITS | 16)


def _lines(blocks: Iterator[bytes], path: Path) -> Iterator[str]:
    rest, first = b"", True
    for block in blocks:
        if first and block:
            _refuse_binary(block, path)
            first = False
        pieces = (rest + block).replace(b"\r", b"\n").split(b"\n")
        rest = pieces.pop()[-BLOCK:]
        for piece in pieces:
            if piece:
                yield clean(piece)
        if len(rest) >= BLOCK:  # a "line" without end
            yield clean(rest)
            rest = b""
    if rest:
        yield clean(rest)


def _refuse_binary(block: bytes, path: Path) -> None:
    """A log holds text: no NUL bytes, and hardly any that are no text."""
    sample = block[:8192]
    odd = sum(byte < 32 and byte not in b"\t\n\r\x0b\x0c\x1b\x07\x08" for byte in sample)
    # A preallocated or torn log may hold NULs in runs; a binary has them everywhere.
    if odd > len(sample) * 0.05:
        raise ValueError(f"{path} is binary, not the text of a log. Name the file that the job wrote.")


def clean(raw: bytes) -> str:
    """One line as the program printed it."""
    text = raw[:LONGEST].decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if "\x00" in text:
        text = text.replace("\x00", "")
    for _ in range(3):  # srun's label before torchrun's
        shorter = PREFIX.sub("", text, count=1)
        if shorter == text:
            break
        text = shorter
    return text.rstrip()
