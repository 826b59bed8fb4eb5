"""Lets the tests here draw the plans that the sweep in benchmarks draws."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
