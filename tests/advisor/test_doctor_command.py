"""advisor doctor: the page, the document, exit codes, and a plan in this shell."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from advisor.commands.doctor import command, refuse_failures
from advisor.commands.run import command as run
from executor.doctor import Finding
from executor.run import missing_software


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A place for records, and no variables of libraries."""
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))
    import os

    for name in list(os.environ):
        if name.startswith(("NCCL_", "NVTE_", "CUDA_", "PYTORCH_", "TORCH")):
            monkeypatch.delenv(name)
    return tmp_path


def asked(*arguments: str) -> tuple[int, dict]:
    """Exit code and the JSON document."""
    done = CliRunner().invoke(command, [*arguments, "--json"])
    return done.exit_code, json.loads(done.output)


def test_the_page_begins_with_the_answer(home):
    done = CliRunner().invoke(command, [])
    assert done.output.splitlines()[0].startswith(("ready: ", "not ready: "))
    assert "disk" in done.output


def test_a_failure_is_exit_code_one_with_its_way_out(home, monkeypatch):
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        monkeypatch.setenv(name, "0")
    code, document = asked()
    assert code == 1
    assert document["status"] == "fail"
    failed = [check for check in document["checks"] if check["status"] == "fail"]
    assert len(failed) == 1
    assert failed[0]["way_out"] == "Unset one of them"


@pytest.fixture
def plan_file(home):
    """A plan for H100s, as `explain --save` writes it."""
    from advisor.cli import advisor

    path = home / "plan.toml"
    options = ["explain", "--model", "8b", "--gpus", "16", "--gpu", "h100"]
    options += ["--pin", "tp=2", "--pin", "fsdp=false", "--save"]
    done = CliRunner().invoke(advisor, [*options, str(path)])
    assert done.exit_code == 0, done.output
    return path


def test_the_shells_variables_against_the_plans(plan_file, monkeypatch):
    before = {(check["found"], check["why"]) for check in asked("--plan", str(plan_file))[1]["checks"]}
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    after = [
        check
        for check in asked("--plan", str(plan_file))[1]["checks"]
        if (check["found"], check["why"]) not in before and check["check"] == "plan"
    ]
    assert any(check["way_out"] == "Set CUDA_DEVICE_MAX_CONNECTIONS=1" for check in after)
    # The rule between knobs says the same with its reason.
    assert any("max_connections 8" in check["why"] for check in after)


def test_a_plan_that_fits_says_its_memory(plan_file):
    checks = asked("--plan", str(plan_file))[1]["checks"]
    assert any(check["check"] == "plan" and "GiB predicted of" in check["found"] for check in checks)


@pytest.mark.parametrize(
    ("gpus", "said"), [(0, "has no GPU"), (1, "has one GPU"), (4, "has 4 GPUs"), (8, "")]
)
def test_a_machine_that_is_none_of_the_plans_nodes_is_told(plan_file, gpus, said):
    """Sixteen GPUs of DGX H100 are nodes of eight; on a laptop `ok devices` would say nothing about them."""
    from advisor.case import read_case
    from advisor.commands.doctor import other_machine

    found = other_machine(read_case(str(plan_file), {}), gpus)
    assert [each.status for each in found] == (["warn"] if said else [])
    assert all(said in each.found and "8 GPUs" in each.found for each in found)


def test_only_failures_stop_a_run():
    warned = Finding("clock", "warn", "not synchronised", "order is lost", "Start chrony")
    refuse_failures([warned])
    failed = Finding("ECC", "fail", "GPU 2 counts 4", "it trains on garbage", "Drain the node")
    with pytest.raises(ValueError, match=r"^ECC: GPU 2 counts 4: it trains on garbage\. Drain the node\.$"):
        refuse_failures([warned, failed])


@pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core")
def test_a_run_asks_the_doctor_before_it_starts(home, monkeypatch):
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        monkeypatch.setenv(name, "0")
    done = CliRunner().invoke(run, ["--model", "tiny-gpt", "--gpus", "2"])
    assert isinstance(done.exception, ValueError)
    assert "every attention backend is switched off" in str(done.exception)
    # Nothing was measured and no record begun.
    assert list(home.iterdir()) == []


def test_a_host_carries_the_ranks_of_one_node(plan_file):
    """Sixteen GPUs are two nodes: eight ranks load libraries here. One machine's processes are all here."""
    from dataclasses import replace

    import hardware_db
    from advisor.case import read_case
    from advisor.commands.doctor import planned

    case = read_case(str(plan_file), {})
    assert planned(case)["ranks_here"] == 8
    cpu = replace(case.cluster, gpu=replace(case.cluster.gpu, generation="cpu"))
    assert planned(replace(case, cluster=cpu))["ranks_here"] == 16
    assert hardware_db.resolve("h100", None)[0].gpus_per_node == 8
