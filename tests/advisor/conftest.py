"""Lets the test files here import their helpers, `published_rows` and the like."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
