"""What failed runs say is understood: recorded messages, and the same ones raised by real libraries."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from executor.faults import classify, explain, hang, port_taken, rules
from executor.launch import Nodes, RunFailed, run_worker
from executor.run import missing_software
from executor.watchdog import Watchdog, Whereabouts, culprit, locate

MESSAGES = tomllib.loads(Path(__file__).with_name("messages.toml").read_text())["message"]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["says"][:40])
def test_recorded_words(message):
    found = explain(message["text"])
    assert found is not None
    assert found[0].kind == message["kind"]
    assert message["says"] in found[1]
    assert "{" not in found[1]
    assert "  " not in found[1]


def test_every_kind_has_recorded_words():
    unseen = {rule.kind for rule in rules()} - {message["kind"] for message in MESSAGES}
    # Not met in a run of ours nor printed whole by its source.
    assert unseen == {"hardware error", "invalid device"}


def test_every_rule_says_the_way_out_and_its_source():
    for rule in rules():
        assert rule.way_out
        assert rule.source
        assert not rule.way_out.endswith(".")


def test_source_lines_of_a_traceback_do_not_count():
    frame = '{0}  File "/v/indexed_dataset.py", line 266, in __init__\n'
    frame += '{0}    raise OSError("No space left on device")\n'
    for mark in ("", "[rank1]: "):
        assert explain(frame.format(mark) + f"{mark}ValueError: other\n") is None
        found = explain(frame.format(mark) + f"{mark}ValueError: the loss is nan at step 3\n")
        assert found is not None
        assert found[0].kind == "loss not finite"


def test_ordinary_words_mean_nothing():
    assert explain("step 3 of 10: loss 2.3, memory 1.2 GiB, the info of a nan-free run") is None


@pytest.mark.parametrize("first", [0, 1])
def test_a_lost_connection_never_hides_the_cause(tmp_path, first):
    errors = ["RuntimeError: Connection closed by peer", "OSError: [Errno 28] No space left on device"]
    for rank, error in enumerate(errors):
        path = tmp_path / f"failure-{rank}.json"
        path.write_text(json.dumps({"rank": rank, "error": error}))
        os.utime(path, (100 + (rank != first), 100 + (rank != first)))
    fault = classify(tmp_path, 1, tmp_path / "worker.log")
    assert (fault.kind, fault.rank) == ("disk full", 1)


def test_a_lost_connection_alone_sends_to_the_other_nodes(tmp_path):
    (tmp_path / "failure-0.json").write_text(
        json.dumps({"rank": 0, "error": "RuntimeError: Connection reset by peer"})
    )
    fault = classify(tmp_path, 1, tmp_path / "worker.log")
    assert fault.kind == "connection lost"
    assert "other nodes" in fault.line


def test_a_kill_that_the_kernel_counted_is_memory(tmp_path, monkeypatch):
    log = tmp_path / "worker.log"
    log.write_text("rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 42)\n")
    monkeypatch.setattr("executor.faults.kernel_kills", lambda: 5)
    assert classify(tmp_path, 1, log, kills_before=4).kind == "out of memory"
    assert classify(tmp_path, 1, log, kills_before=5).kind == "killed"


def test_a_kill_that_torchrun_did_not_see(tmp_path, monkeypatch):
    (tmp_path / "failure-0.json").write_text(
        json.dumps({"rank": 0, "error": "RuntimeError: Connection reset by peer"})
    )
    for rank in (0, 1):
        (tmp_path / f"pulse-{rank}").touch()
    monkeypatch.setattr("executor.faults.kernel_kills", lambda: 5)
    log = tmp_path / "worker.log"
    said = [classify(tmp_path, 1, log, kills_before=4).line, hang("stands still", tmp_path, log, 4).line]
    assert said[0] == said[1]
    assert said[0].startswith("rank 1 was killed by SIGKILL: memory ran out (the kernel's OOM killer)")
    assert classify(tmp_path, 1, log, kills_before=5).kind == "connection lost"


torch_here = pytest.mark.skipif(missing_software() is not None, reason="needs torch")


def said_by(code: str, **environment: str) -> str:
    """What a Python program writes to its standard error."""
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )
    assert child.returncode
    return child.stderr


@torch_here
@pytest.mark.launch
def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        code = f"import torch.distributed as dist; dist.TCPStore('127.0.0.1', {port}, 2, is_master=True)"
        found = explain(said_by(code))
    assert found is not None
    assert found[0].kind == "port in use"
    assert str(port) in found[1]


def test_a_port_in_use_is_refused_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as held:
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        for rank in (None, 0):
            with pytest.raises(RunFailed, match="is in use: another run"):
                run_worker("nosuch", [], 1, tmp_path, 60, nodes=Nodes(1, endpoint, rank))
    assert json.loads((tmp_path / "outcome.json").read_text())["kind"] == "port in use"
    # Another machine's address is not ours to listen at.
    assert port_taken("192.0.2.1:29500") is None


def test_ranks_that_never_begin_are_told(tmp_path):
    assert Watchdog(tmp_path, to_meet=0.0).look() == (
        "no rank began within 0 s: nodes do not find each other, or something else answers"
    )
    assert Watchdog(tmp_path).look() is None


@torch_here
@pytest.mark.launch
def test_a_torch_without_nccl_is_named():
    code = "import torch.distributed as dist\nassert not dist.is_nccl_available(), 'NCCL is here'\n"
    code += "dist.init_process_group('nccl', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)"
    said = said_by(code)
    if "NCCL is here" in said:
        pytest.skip("this torch has NCCL")
    found = explain(said)
    assert found is not None
    assert found[0].kind in ("no NCCL", "wrong CUDA")


def test_a_torch_of_another_cuda_is_named(tmp_path):
    # A library that wants a CUDA which is not there, loaded by the real loader.
    code = "import ctypes; ctypes.CDLL('libcudart.so.99')"
    found = explain(said_by(code))
    assert found is not None
    assert found[0].kind == "wrong CUDA"
    assert "libcudart.so.99" in found[1]


@torch_here
@pytest.mark.launch
def test_a_broken_dataset_is_named(tmp_path):
    pytest.importorskip("megatron.core")
    prefix = tmp_path / "text"
    prefix.with_suffix(".idx").write_bytes(b"not an index at all")
    prefix.with_suffix(".bin").write_bytes(b"tokens")
    code = "import sys\nfrom megatron.core.datasets.indexed_dataset import IndexedDataset as D\n"
    code += "try:\n    D(sys.argv[1])\nexcept Exception as error:\n    print(error, file=sys.stderr)\nD(sys.argv[2])"
    child = subprocess.run(
        [sys.executable, "-c", code, str(prefix), str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    first, _, second = child.stderr.partition("Traceback")
    for said, word in ((first, "text.idx"), (second, "missing")):
        found = explain(said)
        assert found is not None
        assert found[0].kind == "dataset unreadable"
        assert word in found[1]


STACKS = """\
Thread 0x00007f11 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
Current thread 0x00007f22 (most recent call first):
  File "/v/torch/distributed/distributed_c10d.py", line 3052 in all_reduce
  File "/v/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/w/executor/workers/stopwatch.py", line 93 in timed
  File "/v/megatron/core/tensor_parallel/mappings.py", line 30 in _reduce
  File "/v/megatron/core/pipeline_parallel/schedules.py", line 400 in backward_step
  File "/w/executor/workers/train.py", line 75 in train
"""


def test_a_stack_tells_collective_group_and_phase():
    place = locate(3, "S", "step 7", STACKS)
    assert place.place == "waits in all_reduce of the tensor-parallel group in backward"


def at(rank: int, collective: str | None, state: str = "S") -> Whereabouts:
    """A rank somewhere in the forward pass."""
    return Whereabouts(rank, state, "step 7", "forward", collective, None, "f (model.py:1)")


def test_who_holds_the_others_up():
    said = culprit([at(0, "all_reduce"), at(1, None), at(2, "all_reduce")])
    assert (
        said
        == "rank 1 hangs in forward at f (model.py:1); ranks 0, 2 wait in all_reduce in forward, after step 7"
    )
    assert culprit([at(0, "all_reduce"), at(1, None, "")]).startswith("rank 1 is gone; rank 0 waits in")
    assert culprit([at(0, "send"), at(1, None, "D")]).startswith("rank 1 sleeps inside a driver")
    assert culprit([at(0, "send"), at(1, "recv"), at(2, "all_reduce")]).startswith("ranks wait for different")
    assert (
        culprit([at(0, "all_reduce"), at(1, "all_reduce")])
        == "ranks 0, 1 wait in all_reduce in forward, after step 7: a rank of another node hangs or is lost"
    )
