"""Lets the tests of logs import `log_cases` and `written`, and gives each a runner of commands and a prediction."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli import advisor

sys.path.insert(0, str(Path(__file__).parents[2] / "executor" / "logs"))
sys.path.insert(0, str(Path(__file__).parent))
from log_cases import DUMP
from written import megatron_log


@pytest.fixture
def ask():
    """Runs a command; gives its exit code and what it printed, or the error."""

    def _ask(*words):
        result = CliRunner().invoke(advisor, list(words))
        if isinstance(result.exception, ValueError):
            return 2, str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result.exit_code, result.output

    return _ask


@pytest.fixture
def predicted(ask, tmp_path):
    """The prediction of the dump's plan on H100s: step and leaves of the time tree. [s]"""
    path = tmp_path / "probe.log"
    path.write_text(megatron_log([(step, 1.0) for step in range(1, 12)], dump=DUMP))
    _, text = ask("compare", str(path), "--gpu", "h100", "--json")
    return json.loads(text)["prediction"]
