"""Shared by tests of exports: Megatron-LM's own parser, skipped with the reason where it cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
for folder in ("tools", "benchmarks"):
    sys.path.insert(0, str(ROOT / folder))
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def parser() -> ModuleType:
    """tools/megatron_lm_parser, with the wheel of 0.19.2 at hand."""
    import megatron_lm_parser

    try:
        megatron_lm_parser.wheel_folder(megatron_lm_parser.WHEELS["0.19"])
    except megatron_lm_parser.NoParser as reason:
        pytest.skip(str(reason))
    return megatron_lm_parser
