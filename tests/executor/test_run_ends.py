"""However a run ends, no process is left, the record reads, and the cause stands in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor.commands.run import says_where
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.launch import RunFailed, run_worker
from executor.record import read_steps, write_json
from executor.run import make_job, missing_software

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core"),
]

LONG = 5000  # steps; far more than a test waits for


def processes_with(word: str) -> dict[int, str]:
    """Processes whose command line holds the word, by id; this one left out."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(folder.name) != os.getpid():
            found[int(folder.name)] = line
    return found


def rank_of(process: int) -> str | None:
    """RANK of a worker's environment."""
    try:
        variables = (Path("/proc") / str(process) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((entry[5:].decode() for entry in variables if entry.startswith(b"RANK=")), None)


def long_job(folder: Path) -> Path:
    """A run on two ranks that ends only when it is ended."""
    plan, workload = Plan(dp=2, precision="fp32"), Workload(64, 4)
    job = make_job(plan, workload, load_model("tiny-gpt"), steps=LONG, warmup=0, cuda=False)
    write_json(folder / "job.json", job | {"variables": None})
    write_json(folder / "prediction.json", {"interval": {}})
    write_json(folder / "requested.json", plan.to_dict())
    return folder / "job.json"


def test_a_killed_rank_ends_the_run_with_its_name(tmp_path, monkeypatch):
    job = long_job(tmp_path)
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    killed: list[float] = []

    def poll() -> None:
        if len(read_steps(tmp_path)) >= 2 and not killed:
            victims = [number for number in processes_with(str(job)) if rank_of(number) == "1"]
            assert victims
            os.kill(victims[0], signal.SIGKILL)
            killed.append(time.monotonic())

    with pytest.raises(RunFailed, match=r"^rank 1 was killed by SIGKILL") as failed:
        run_worker("executor.workers.train", [str(job)], 2, tmp_path, 120, poll)
    # Bounded, not timed: without the end the other rank waits for minutes.
    assert time.monotonic() - killed[0] < 40
    assert "\n" not in str(failed.value)
    assert processes_with(str(job)) == {}
    # torchrun's own folder is neither left in the record nor among temporary files.
    assert list(elsewhere.glob("torchelastic*")) == [] == list(tmp_path.glob("torchrun*"))
    steps = read_steps(tmp_path)
    assert 2 <= len(steps) < LONG
    assert [step["step"] for step in steps] == list(range(len(steps)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_rank(tmp_path, number):
    job = long_job(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from advisor import cli\n"
        "from executor.launch import run_worker\n"
        "from advisor.commands.run import says_where\n"
        "def train(*_):\n"
        "    with says_where(Path(job).parent):\n"
        "        run_worker('executor.workers.train', [job], 2, Path(job).parent, 120)\n"
        # Inside click, which makes an interrupt its own.
        "job, sys.argv[1:] = sys.argv[1], ['run']\n"
        "cli.advisor.invoke = train\n"
        "cli.main()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(job)],
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets its background jobs, such as this suite, ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + 100
    while len(read_steps(tmp_path)) < 1:
        assert child.poll() is None
        assert time.monotonic() < end
        time.sleep(0.2)
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    # click ends the line on which ^C stands.
    assert [line for line in said.splitlines() if line] == [
        f"record: {tmp_path}; `advisor run --resume-measure {tmp_path}` goes on.",
        "interrupted; nothing was left half-written.",
    ]
    assert processes_with(str(job)) == {}
    assert read_steps(tmp_path)


def test_the_command_that_goes_on_is_quoted_and_told_where_it_works(capsys, tmp_path):
    """An interrupt before the job was written was told to go on with a folder that --resume-measure refuses."""
    folder = tmp_path / "my runs"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt), says_where(folder):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"record: {folder}; run the plan again.\n"
    long_job(folder)
    with pytest.raises(KeyboardInterrupt), says_where(folder):
        raise KeyboardInterrupt
    assert f"`advisor run --resume-measure '{folder}'` goes on" in capsys.readouterr().err
