"""Findings about runs on AMD's GPUs, in the words and with the tools of their nodes."""

from __future__ import annotations

import json
import re

import pytest
from written import megatron_log

SHM = "node0:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"


@pytest.mark.parametrize(("gpu", "of_nvidia"), [("mi300x", False), ("h100", True)])
def test_channels_through_the_host_are_told_of_the_links_that_are_there(ask, tmp_path, gpu, of_nvidia):
    plan, log = tmp_path / "plan.toml", tmp_path / "train.log"
    ask("explain", "--model", "llama3-8b", "--gpus", "16", "--gpu", gpu, "--pin", "tp=2", "--save", str(plan))
    log.write_text(SHM + megatron_log([(step, 9.1) for step in range(1, 30)]))
    _, told = ask("diagnose", str(log), "--plan", str(plan), "--json")
    (found,) = (each for each in json.loads(told)["findings"] if each["id"] == "host_memory_channels")
    text = " ".join(str(found[name]) for name in ("title", "cause", "evidence", "do"))
    assert bool(re.search(r"NVLink|nvidia-smi|\bNCCL\b", text)) == of_nvidia
    assert bool(re.search(r"Infinity Fabric.*amd-smi", text)) != of_nvidia
