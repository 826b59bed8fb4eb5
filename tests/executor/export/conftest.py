"""Lets the tests of exports import what they share, and tools and benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
for folder in ("tools", "benchmarks"):
    sys.path.insert(0, str(ROOT / folder))
sys.path.insert(0, str(Path(__file__).parent))
