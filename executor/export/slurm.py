"""The sbatch script around an exported launch script: nodes, container, rendezvous, safe to requeue."""

from __future__ import annotations

from costmodel.placement import used_domain
from executor.export.exported import Job
from executor.export.launch import SCRIPT, nodes_of

JOB_SCRIPT = "job.sbatch"
# Where the nodes of a job meet.
MEETING = (
    "# Node 0 of this allocation; a requeued job gets other nodes, and reads them anew. sed reads all names: head",
    "# would close the pipe early, and with pipefail that ends the job.",
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
    "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))  # jobs that share a node do not meet",
    "export MASTER_ADDR MASTER_PORT",
)


def sbatch_script(job: Job) -> str:
    """The job script. Account, partition and time are the cluster's: given to sbatch, or in SBATCH_ variables."""
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH {directive}" for directive in directives(job)),
        f"# sbatch --account=A --partition=P {JOB_SCRIPT}, in the folder of {SCRIPT}.",
        "set -euo pipefail",
        "",
        f': "${{CONTAINER_IMAGE:?set it to the image, such as {_image()}}}"',
        'CONTAINER_MOUNTS="${CONTAINER_MOUNTS:-$SLURM_SUBMIT_DIR}"  # the data set too: /data,/home/me',
        "",
        *MEETING,
        "",
        *_vboost(job),
        "# Inside, each node runs the script once; it takes its rank from SLURM_NODEID.",
        'srun --kill-on-bad-exit=1 --container-image="$CONTAINER_IMAGE" \\',
        '    --container-mounts="$CONTAINER_MOUNTS" --container-workdir="$SLURM_SUBMIT_DIR" \\',
        f"    bash {SCRIPT}",
    ]
    return "\n".join(lines) + "\n"


def directives(job: Job) -> list[str]:
    """Options of sbatch: whole nodes, one task each, safe to requeue."""
    nodes, per_node = nodes_of(job)
    name = f"{job.model.name}-{job.plan.world}"
    return [
        f"--job-name={name}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={per_node}",
        "--exclusive",
        "--mem=0",
        *_segment(job, nodes),
        "--time=04:00:00",
        "--output=%x-%j.log",
        "--open-mode=append",
        "--requeue",
    ]


def _image() -> str:
    return "nvcr.io#nvidia/nemo:TAG or a file.sqsh"


def _segment(job: Job, nodes: int) -> list[str]:
    """Nodes of each NVLink domain that the job takes together (Slurm's block topology)."""
    per_node, segment, domain = job.cluster.gpus_per_node, job.plan.nvl_segment, job.cluster.domain_size
    if domain <= per_node or nodes == 1:
        return []
    together = min(nodes, max(1, used_domain(domain, nodes * per_node, segment) // per_node))
    return [f"--segment={together}"] if nodes % together == 0 else []


def _vboost(job: Job) -> list[str]:
    if not job.plan.vboost:
        return []
    return [
        "# Power from memory to the cores, once a node; needs rights the site must grant.",
        'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sudo nvidia-smi boost-slider --vboost 1',
        "",
    ]
