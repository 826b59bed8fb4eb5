"""Lets the tests of the doctor import `machines_of_files`, and gives each a maker of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from machines_of_files import Maker


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)
