"""Faults that really happen to a training run: each ends in time, with its cause in a line and the record whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor.faults import kernel_kills
from executor.outcome import OUTCOME, RESERVE, RESERVED


def kind(training) -> str:
    """What the record says of how the run ended."""
    return json.loads((training.folder / OUTCOME).read_text())["kind"]


def test_a_stopped_rank_is_named(training):
    said = str(training.end_with("stop"))
    assert said.startswith("no progress for 5 s: rank 1 is stopped (SIGSTOP); rank 0 waits in ")
    assert "after step 1" in said
    assert kind(training) == "hang"


def test_a_rank_that_hangs_in_forward_is_named_with_its_place(training):
    said = str(training.end_with("sleep in forward"))
    assert said.startswith("no progress for 5 s: rank 1 hangs in forward at forward (faults/faulty_rank.py:")
    assert "rank 0 waits in " in said
    assert "the data-parallel group" in said
    stack = (training.folder / "stack-1.txt").read_text()
    assert "in strike" not in stack
    assert "in forward" in stack


def test_a_tensor_beyond_memory(training):
    said = str(training.end_with("allocate a tensor"))
    assert said.startswith(f"rank 1 failed: this machine's memory ran out at a tensor of {4 << 45} bytes. ")
    assert kind(training) == "out of memory"


def test_a_loss_that_is_not_finite(training):
    # Megatron-Core looks at the gradients of the second step before it ends.
    said = str(training.end_with("none", rank=7, least=1, learning_rate=1e30))
    assert "failed: gradients of this rank hold " in said
    assert "check_for_nan_in_grad found: training diverged" in said
    assert kind(training) == "loss not finite"


@pytest.fixture
def small_disk(training):
    """The record on a disk of 2 MiB."""
    folder = training.folder / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no tmpfs here: {made.stderr.decode().strip()}")
    training.folder = folder
    yield training
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk):
    # The rank that fills the disk may do so before the other has written down the step just done.
    said = str(small_disk.end_with("fill the disk", least=1))
    assert "the disk is full" in said or "the disk of the record is full" in said
    assert kind(small_disk) == "disk full"
    assert not (small_disk.folder / RESERVE).exists()
    assert (small_disk.folder / "filler").stat().st_size > (1 << 20) - RESERVED


GROUP = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_memory():
    """A control group of 1.8 GiB for this process and its children; the kernel kills beyond."""
    group = GROUP / f"advisor-test-{os.getpid()}"
    if kernel_kills() is None or not (GROUP / "memory.limit_in_bytes").exists():
        pytest.skip("no control groups for memory (v1) here")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(1800 << 20))
    except OSError as error:
        pytest.skip(f"control groups are not ours to make: {error}")
    yield group
    group.rmdir()


CHILD = """\
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from executor.launch import RunFailed, run_worker
try:
    run_worker("faulty_rank", [sys.argv[2], "1", "touch memory"], 2, Path(sys.argv[2]).parent, 300)
except RunFailed as failed:
    print(failed)
"""


def test_the_kernels_oom_killer_is_recognised(training, small_memory):
    job = training.write_job()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(small_memory), str(job)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = child.stdout.strip()
    assert said.startswith("rank 1 was killed by SIGKILL: memory ran out (the kernel's OOM killer)"), (
        child.stderr
    )
    assert kind(training) == "out of memory"
    training.steps_read()


LIMITED = """\
import resource, sys
from pathlib import Path
from executor.launch import RunFailed, run_worker
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
try:
    run_worker("faulty_rank", [sys.argv[1], "1", "map memory"], 2, Path(sys.argv[1]).parent, 300)
except RunFailed as failed:
    print(failed)
"""


def test_a_limit_of_address_space(training):
    job = training.write_job()
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, str(job)], capture_output=True, text=True, timeout=200
    )
    assert child.stdout.startswith("rank 1 failed: this machine's memory ran out"), child.stderr
    assert kind(training) == "out of memory"
    training.steps_read()
