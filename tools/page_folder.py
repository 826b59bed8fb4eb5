"""The folder in which the commands of a page run: a new user's, with a checkout and an empty home."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What of a checkout a page may need: the packages and what is built, documented and tested beside them.
CHECKOUT = (
    *("advisor", "costmodel", "executor", "hardware_db", "tools", "docs", "tests/conftest.py"),
    *("tests/advisor/test_rules_cases.py", "tests/advisor/rule_cases"),
    *("pyproject.toml", "README.md", "LICENSE", "Makefile"),
)


def prepare(folder: Path) -> dict[str, str]:
    """A folder as a new user has it, with a checkout in `advisor`; the environment to run in.

    Packages are found where this Python has them, so that `pip install` in a new environment installs the advisor
    itself and downloads nothing.
    """
    for name in CHECKOUT:
        source, target = ROOT / name, folder / "advisor" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy2(source, target)
    home = folder.parent / f"{folder.name}-home"
    home.mkdir(exist_ok=True)
    packages = folder.parent / f"{folder.name}-packages"
    packages.mkdir(exist_ok=True)
    for entry in (
        each for path in sys.path if path.endswith("site-packages") for each in Path(path).iterdir()
    ):
        if not entry.name.startswith(("advisor", "__editable__", "_virtualenv", "__pycache__")):
            (packages / entry.name).symlink_to(entry)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "ADVISOR_CACHE") if name in os.environ}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(home),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(packages),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say: without isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }
