"""Shared by all tests: no deadlines (the suite never times things), a cache folder of its own, Megatron-LM's parser."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# The suite draws the same examples each time: a commit passes or fails for good. `make explore` draws others.
settings.register_profile("advisor", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("ADVISOR_EXAMPLES", "advisor"))

# Ranks compute with one thread each: those of several test processes share the cores, and threads that wait for one
# another spin, which makes one process's step take three times its arithmetic.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Texts are compared on the widest page; tests of narrow ones ask for theirs.
os.environ["COLUMNS"] = "100"
os.environ.setdefault("ADVISOR_CACHE", os.path.join(tempfile.gettempdir(), f"advisor-cache-{os.getuid()}"))


@pytest.fixture(scope="session")
def parser() -> ModuleType:
    """tools/megatron_lm_parser with the wheel of 0.19.2 at hand, skipped with the reason where it cannot be had."""
    tools = str(Path(__file__).parents[1] / "tools")
    if tools not in sys.path:
        sys.path.insert(0, tools)
    import megatron_lm_parser

    try:
        megatron_lm_parser.wheel_folder(megatron_lm_parser.WHEELS["0.19"])
    except megatron_lm_parser.NoParser as reason:
        pytest.skip(str(reason))
    return megatron_lm_parser
