"""`advisor run` in a process of its own, as a user starts it, and the error that it ends with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def advisor_run(
    home: Path, *arguments: str, before: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """With a profile folder of its own. before: Python that runs first; variables: of the environment."""
    return subprocess.run(
        [sys.executable, "-c", f"{before}\nfrom advisor.cli import main; main()", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"ADVISOR_HOME": str(home)} | variables,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]
