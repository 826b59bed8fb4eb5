"""Lets the tests here import their tables, and draw the plans that the sweep in benchmarks draws."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]
