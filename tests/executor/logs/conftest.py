"""Puts the writer of logs beside the tests on the path; writes a log and reads it."""

import sys
from pathlib import Path

import pytest

from executor.logs.read import read_log

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def write(tmp_path):
    """Writes a log and reads it."""

    def _write(text, name="train.log"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_log(path)

    return _write
