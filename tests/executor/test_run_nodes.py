"""Launches over nodes and through Slurm: what is refused, what torchrun and sbatch are told."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import tomli_w
from planted_machine import planted
from run_process import advisor_run, refused

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile, save_plan_file
from costmodel.workload import Workload
from executor.devices import known_gpu
from executor.launch import Nodes, run_worker
from executor.local_profile import profile as made_profile
from executor.record import read_memory, read_ranks, read_steps, write_json
from executor.run import make_job, missing_software


@pytest.fixture
def plan_file(tmp_path):
    plan = Plan(tp=8, pp=2, dp=2, sequence_parallel=True)
    kept = PlanFile("llama3-8b", Workload(8192, 64), "dgx-h100", 32, plan)
    return save_plan_file(tmp_path / "plan.toml", kept)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--model", "tiny-gpt", "--nodes", "2"], "--rdzv"),
        (["--model", "tiny-gpt", "--nodes", "0", "--rdzv", "localhost:1"], "--nodes 0"),
        (["--model", "tiny-gpt", "--nodes", "2", "--rdzv", "nowhere"], "HOST:PORT"),
        (
            ["--model", "tiny-gpt", "--nodes", "2", "--rdzv", "localhost:1", "--node-rank", "2"],
            "--node-rank 2",
        ),
        (
            ["--model", "tiny-gpt", "--gpus", "3", "--nodes", "2", "--rdzv", "localhost:1"],
            "multiple of --nodes 2",
        ),
        (["--model", "tiny-gpt", "--node-rank", "1"], "--nodes"),
        (["--model", "tiny-gpt", "--print-only"], "--slurm"),
        (["--model", "tiny-gpt", "--slurm"], "--save plan.toml"),
        (["--model", "tiny-gpt", "--data", "nothing"], "nothing.bin"),
        (["--model", "tiny-gpt", "--resume-measure", "x"], "no PLAN, --model"),
        (["--resume-measure", "no-such-record"], "no-such-record"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(tmp_path, arguments, part):
    assert part in refused(advisor_run(tmp_path / "home", *arguments))
    assert not (tmp_path / "home").exists()


def test_a_fixed_rank_or_the_order_of_coming():
    fixed = Nodes(4, "node0:29500", 3).arguments()
    assert fixed == ["--nnodes=4", "--node-rank=3", "--master-addr=node0", "--master-port=29500"]
    free = Nodes(4, "node0:29500").arguments()
    assert "--rdzv-endpoint=node0:29500" in free
    assert not [word for word in free if word.startswith("--node-rank")]


def test_a_host_that_nobody_knows_is_refused_at_once(monkeypatch):
    """torchrun asks for the name for minutes, and nothing says so. A name server that does not answer may do later."""
    told = {"first": socket.EAI_NONAME, "slow": socket.EAI_AGAIN}

    def lookup(host, port):
        raise socket.gaierror(told[host], "told")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(ValueError, match=r"--rdzv first:29500: no host of the name first .*`hostname -f`"):
        Nodes(2, "first:29500").check_host()
    Nodes(2, "slow:29500").check_host()


def test_the_job_script_runs_every_node_once(plan_file, tmp_path):
    done = advisor_run(tmp_path / "home", str(plan_file), "--slurm", "--print-only", "--steps", "7")
    assert done.returncode == 0, done.stderr
    script = done.stdout
    assert "#SBATCH --nodes=4" in script
    assert "#SBATCH --gpus-per-node=8" in script
    assert '--node-rank "$SLURM_NODEID"' in script
    assert "--steps 7" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).returncode == 0
    assert not (tmp_path / "home").exists()


def test_the_job_of_a_processors_plan_asks_for_no_gpus(tmp_path):
    """Nodes without GPUs could not take it."""
    profile = tmp_path / "mine.toml"
    profile.write_text(tomli_w.dumps(made_profile(planted(), 2)))
    plan = Plan(dp=2, precision="fp32")
    kept = save_plan_file(
        tmp_path / "plan.toml", PlanFile("tiny-gpt", Workload(256, 8), str(profile), 2, plan)
    )
    done = advisor_run(tmp_path / "home", str(kept), "--slurm", "--print-only")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=1" in done.stdout
    assert "gpus-per-node" not in done.stdout


def test_a_printed_job_script_runs_the_plan_that_was_given(plan_file, tmp_path):
    """Nothing is copied, so `advisor run plan.toml` ran another plan of that name, or none."""
    other = plan_file.rename(tmp_path / "my plan's.toml")
    script = advisor_run(tmp_path / "home", str(other), "--slurm", "--print-only").stdout
    bin_ = tmp_path / "bin"
    fake(bin_, "scontrol", "echo node7")
    fake(bin_, "srun", 'for word in "$@"; do last="$word"; done; bash -c "$last"')
    fake(bin_, "advisor", 'printf "%s\\n" "$2"')
    kept = {
        "SLURM_JOB_NODELIST": "node7",
        "SLURM_JOB_ID": "42",
        "SLURM_SUBMIT_DIR": "/job",
        "SLURM_NODEID": "0",
    }
    told = subprocess.run(
        ["bash"],
        input=script,
        text=True,
        capture_output=True,
        env={"PATH": f"{bin_}:{os.environ['PATH']}"} | kept,
    )
    assert told.stdout == f"{other}\n", told.stderr


def fake(folder, name: str, text: str) -> None:
    """A program on the PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_job_is_submitted_with_its_plan_and_every_node_gets_its_rank(plan_file, tmp_path):
    """sbatch, scontrol, srun and advisor are stand-ins that tell what they were given."""
    bin_ = tmp_path / "bin"
    fake(bin_, "sbatch", "ls; echo Submitted batch job 42")
    fake(bin_, "scontrol", "echo node7; echo node8")
    fake(
        bin_,
        "srun",
        'for word in "$@"; do last="$word"; done\nfor SLURM_NODEID in 0 1; do export SLURM_NODEID; '
        'bash -c "$last"; done',
    )
    fake(bin_, "advisor", 'echo "advisor $*"')
    path = f"{bin_}:{os.environ['PATH']}"
    done = advisor_run(tmp_path / "home", str(plan_file), "--slurm", PATH=path)
    assert done.returncode == 0, done.stderr
    assert "Submitted batch job 42" in done.stdout
    folder = next((tmp_path / "home" / "runs").iterdir())
    assert {"job.sbatch", "plan.toml"} == {each.name for each in folder.iterdir()}
    told = subprocess.run(
        ["bash", str(folder / "job.sbatch")],
        text=True,
        capture_output=True,
        env={
            "PATH": path,
            "SLURM_JOB_NODELIST": "node[7-8]",
            "SLURM_JOB_ID": "42",
            "SLURM_SUBMIT_DIR": "/job",
        },
    )
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["0", "1"]
    assert all("--nodes 4 --rdzv node7:20042" in line for line in lines)


def test_a_refusal_of_sbatch_is_one_line(plan_file, tmp_path):
    fake(tmp_path / "bin", "sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    text = refused(advisor_run(tmp_path / "home", str(plan_file), "--slurm", PATH=path))
    assert "Invalid account" in text
    fake(tmp_path / "none", "true", "")
    kept = [part for part in os.environ["PATH"].split(":") if not os.path.exists(f"{part}/sbatch")]
    text = refused(advisor_run(tmp_path / "home", str(plan_file), "--slurm", PATH=":".join(kept)))
    assert "no sbatch" in text


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_devices_by_the_name_that_nvidia_smi_gives(title, name):
    assert known_gpu(title) == name


def test_an_unknown_device_is_named():
    with pytest.raises(ValueError, match=r"Tesla V100.*--gpu"):
        known_gpu("Tesla V100")


@pytest.mark.launch
@pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core")
def test_two_nodes_train_together_and_rank_0_keeps_the_record(tmp_path):
    """Two torchrun agents, as two machines start them, with fixed ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    plan = Plan(dp=2, precision="fp32")
    model = load_model("tiny-gpt")
    folders = [tmp_path / "node0", tmp_path / "node1"]

    def node(rank: int) -> None:
        folder = folders[rank]
        folder.mkdir()
        job = make_job(plan, Workload(64, 4), model, steps=2, warmup=0, cuda=False)
        write_json(folder / "job.json", job)
        arguments = [str(folder / "job.json")]
        nodes = Nodes(2, endpoint, rank)
        run_worker("executor.workers.train", arguments, 1, folder, 300, nodes=nodes)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(node, (1, 0)))
    assert len(read_steps(folders[0])) == 2
    assert len(read_steps(folders[0])[0]["seconds_by_rank"]) == 2
    assert [each["rank"] for each in read_ranks(folders[0])] == [0, 1]
    assert len(read_memory(folders[0])) == 2
    assert read_steps(folders[1]) == []
