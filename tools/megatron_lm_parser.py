"""Megatron-LM's own parser, from the wheel of megatron-core, for tests and sweeps.

    python tools/megatron_lm_parser.py 0.19.2 --num-layers 2 ...   what it says to these arguments
    python tools/megatron_lm_parser.py --lacks                     which flags of ours each version lacks

The wheel (2.4 MB) is downloaded once with pip and unpacked in the cache folder; the package in the environment
stays what it is. `megatron.training` is in wheels from 0.17 on.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
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


def parse_all(jobs: Sequence[dict[str, Any]], release: str = "0.19.2") -> list[dict[str, Any]]:
    """What Megatron-LM says to every job; see `executor.workers.megatron_lm_parser`."""
    wheel = wheel_folder(release)
    with tempfile.TemporaryDirectory() as place:
        given, answers = Path(place, "jobs.json"), Path(place, "answers.json")
        given.write_text(json.dumps(list(jobs)))
        # The worker's folder comes first on the path, so that of the wheel is put before it there.
        root = str(Path(__file__).parents[1])
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "executor.workers.megatron_lm_parser",
                str(given),
                str(answers),
                str(wheel),
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**os.environ, "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"},
        )
        if not answers.is_file():
            raise RuntimeError(f"the parser of {release} ended: {done.stderr.strip()[-2000:]}")
        found: list[dict[str, Any]] = json.loads(answers.read_text())
        return found


def flags_of(release: str) -> set[str]:
    """Every flag that the parser of a release knows."""
    wheel = wheel_folder(release)
    code = (
        "import argparse, sys; from executor.workers.megatron_lm_parser import load\n"
        "parser = load(sys.argv[1]).add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))\n"
        "print('FLAGS', *(flag for action in parser._actions for flag in action.option_strings))\n"
    )
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(wheel)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FLAGS ")]
    if not lines:
        raise RuntimeError(f"the parser of {release} ended: {done.stderr.strip()[-2000:]}")
    return set(lines[0].split()[1:])


if __name__ == "__main__":
    if sys.argv[1] == "--lacks":
        known = {name: flags_of(release) for name, release in WHEELS.items()}
        for name, flags in known.items():
            print(name, sorted(set.union(*known.values()) - flags))
    else:
        job = {"arguments": sys.argv[2:], "world": int(os.environ.get("WORLD_SIZE", "1")), "environment": {}}
        print(json.dumps(parse_all([job], sys.argv[1])[0], indent=1))
