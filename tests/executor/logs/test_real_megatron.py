"""What Megatron-LM itself prints on this machine is read whole: its own code writes the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor.logs.plan_text import gpus_of
from executor.logs.read import read_log
from executor.logs.summary import steady, timer_medians

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tools"))


OPTIONS = ("minmax", "max", "all")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The folder with the log of each option."""
    pytest.importorskip("torch")
    import megatron_lm_parser

    try:
        wheel = megatron_lm_parser.wheel_folder(megatron_lm_parser.WHEELS["0.19"])
    except megatron_lm_parser.NoParser as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("logs")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "real_megatron.py"), str(wheel), str(folder), *OPTIONS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("option", OPTIONS)
def test_megatrons_own_log(logs, option):
    log = read_log(logs / f"{option}.log")
    assert log.framework == "Megatron-LM"
    assert [each.step for each in log.iterations] == list(range(1, 13))
    assert all(each.seconds and each.loss and each.tflops is not None for each in log.iterations)
    assert {each.grad_norm for each in log.iterations} == {1.234}
    assert {each.global_batch for each in log.iterations} == {8}
    assert log.arguments["num_layers"] == "4"
    assert log.arguments["barrier_with_L1_time"] == "True"
    # Names so long that no dots fit between them and their value.
    assert log.arguments["inference_dynamic_batching_enable_prefix_caching"] == "False"
    assert gpus_of(log) == log.world == 1
    assert log.memory[0].max_allocated == 30100 * 2**20
    assert {each.step for each in log.memory} == {1, 2}
    assert log.theoretical["weight and optimizer"] > 0
    kept = steady(log)
    found = timer_medians(log, kept)
    for name, nap in (("forward-backward", 0.02), ("forward-compute", 0.006), ("optimizer", 0.003)):
        low, high = found[name]
        assert nap <= high < nap + kept.seconds
        assert (low is None) == (option == "max")
