"""benchmarks/local_compute.py: runs of a case are started as `run_probe` takes them, and read back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import create_autospec

from executor.calibrate_probes import run_probe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import local_compute


def test_a_case_is_run_on_the_quiet_clock_and_read_back(monkeypatch):
    def write_steps(model, plan, workload, folder, cuda, quiet):
        assert (cuda, quiet) == (False, True)
        folder.mkdir()
        step = {
            "step": 0,
            "warmup": False,
            "seconds": 4.0,
            "phases": {"forward": 1.0, "backward": 2.0, "optimizer": 0.5},
        }
        (folder / "steps.jsonl").write_text(json.dumps(step) + "\n")

    # Raises TypeError for arguments that the real one does not take.
    monkeypatch.setattr(local_compute, "run_probe", create_autospec(run_probe, side_effect=write_steps))
    # The prediction of a processor needs its profile, which is measured; tests of predictions are elsewhere.
    monkeypatch.setattr(local_compute, "predict", lambda *setting: None)
    monkeypatch.setattr(local_compute, "compute", lambda prediction: 3.0)
    predicted, seen = local_compute.measure(local_compute.CASES[0], None, repeats=2)
    assert (predicted, seen) == (3.0, [3.5, 3.5])
