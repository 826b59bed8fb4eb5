"""Lets the test files here import their helpers, `claim_cases`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
