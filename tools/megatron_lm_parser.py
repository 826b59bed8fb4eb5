"""Megatron-LM's own parser, from the wheel of megatron-core, for tests and sweeps.

    python tools/megatron_lm_parser.py 0.19.2 --num-layers 2 ...   what it says to these arguments
    python tools/megatron_lm_parser.py --lacks                     which flags of ours each version lacks

The wheel (2.4 MB) is downloaded once with pip and unpacked in the cache folder; the package in the environment
stays what it is. `megatron.training` is in wheels from 0.17 on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WHEELS = {"0.17": "0.17.1", "0.18": "0.18.2", "0.19": "0.19.2"}
LIMIT = 600.0  # seconds for one batch of command lines


class NoParser(RuntimeError):
    """The wheel is not here and cannot be downloaded; the message says why in one line."""


def wheel_folder(release: str) -> Path:
    """The unpacked wheel of megatron-core `release`. NoParser when it cannot be had."""
    from costmodel.compiled import cache_folder

    folder = cache_folder() / f"megatron-core-{release}"
    if (folder / "megatron" / "training" / "arguments.py").is_file():
        return folder
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--python-version", "3.12", "--implementation", "cp"]
        command += ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_24_x86_64"]
        command += ["--dest", place, f"megatron-core=={release}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            raise NoParser(f"megatron-core {release} was not downloaded within 180 s") from None
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise NoParser(f"megatron-core {release} cannot be downloaded: {last:.200}")
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(fresh)
        with contextlib.suppress(OSError):  # another process was quicker
            fresh.rename(folder)
    return folder


class Parser:
    """A process that has loaded the Megatron-LM of one release, and answers until this one ends.

    NoParser where the wheel cannot be had; RuntimeError with its last words where the process ends or takes too long.
    """

    def __init__(self, release: str) -> None:
        self.release = release
        wheel = wheel_folder(release)
        # The worker's folder comes first on the path, so that of the wheel is put before it there.
        root = str(Path(__file__).parents[1])
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "executor.workers.megatron_lm_parser", str(wheel)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"},
        )
        atexit.register(self.process.kill)

    def ask(self, jobs: Sequence[dict[str, Any] | str]) -> list[Any]:
        """The answers to jobs, in order; see `executor.workers.megatron_lm_parser`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        limit = threading.Timer(LIMIT, self.process.kill)
        limit.start()
        line = ""
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and said why
                self.process.stdin.write(json.dumps(list(jobs)) + "\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            _parser.cache_clear()
            self.errors.seek(0)
            raise RuntimeError(f"the parser of {self.release} ended: {self.errors.read().strip()[-2000:]}")
        found: list[Any] = json.loads(line)
        return found


@functools.cache
def _parser(release: str) -> Parser:
    return Parser(release)


def parse_all(jobs: Sequence[dict[str, Any]], release: str = "0.19.2") -> list[dict[str, Any]]:
    """What Megatron-LM says to every job; see `executor.workers.megatron_lm_parser`."""
    return _parser(release).ask(jobs)


def flags_of(release: str) -> set[str]:
    """Every flag that the parser of a release knows."""
    return set(_parser(release).ask(["flags"])[0])


if __name__ == "__main__":
    if sys.argv[1] == "--lacks":
        known = {name: flags_of(release) for name, release in WHEELS.items()}
        for name, flags in known.items():
            print(name, sorted(set.union(*known.values()) - flags))
    else:
        job = {"arguments": sys.argv[2:], "world": int(os.environ.get("WORLD_SIZE", "1")), "environment": {}}
        print(json.dumps(parse_all([job], sys.argv[1])[0], indent=1))
