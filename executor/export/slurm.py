"""The sbatch script around an exported launch script: nodes, container, rendezvous, safe to requeue."""

from __future__ import annotations

import math
import textwrap

from costmodel.placement import segment_sizes, used_domain
from executor.export.exported import Job
from executor.export.launch import SCRIPT, nodes_of
from hardware_db import platform_of

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
        *(
            textwrap.wrap(note, 110, initial_indent="# ", subsequent_indent="# ")
            if (note := segment_note(job))
            else ()
        ),
        f"# sbatch --account=A --partition=P {JOB_SCRIPT}, in the folder of {SCRIPT}.",
        "set -euo pipefail",
        "",
        f': "${{CONTAINER_IMAGE:?set it to the image, such as {platform_of(job.cluster.gpu.vendor).image}}}"',
        'CONTAINER_MOUNTS="${CONTAINER_MOUNTS:-$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR}"  # the data set too: ,/data:/data',
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
        # A plan of a processor's ranks takes no GPU, which its nodes need not have.
        *([f"--gpus-per-node={per_node}"] if job.cluster.gpu.generation != "cpu" else []),
        "--exclusive",
        "--mem=0",
        *_segment(job, nodes),
        "--time=04:00:00",
        "--output=%x-%j.log",
        "--open-mode=append",
        "--requeue",
    ]


def segment_note(job: Job) -> str:
    """A line where the placement that was priced cannot be asked of Slurm; "" where it can, or needs no asking."""
    nodes, _ = nodes_of(job)
    together = _together(job, nodes)
    if not together or nodes % together == 0:
        return ""
    per_node, domain = job.cluster.gpus_per_node, job.cluster.domain_size
    sizes = segment_sizes(domain, per_node, job.plan.world)[1:]
    tiling = [size for size in sizes if size % per_node == 0 and job.plan.world % size == 0][-3:]
    way_out = f"; --nvl-segment {' or '.join(map(str, tiling))} can be asked for" if tiling else ""
    return (
        f"the plan is priced on {together} nodes of each NVLink domain, in {math.ceil(nodes / together)} domains, the "
        f"last filled in part: Slurm's --segment cannot ask for that, for {nodes} nodes are no multiple of {together}. "
        f"Placed otherwise, groups straddle domains{way_out}"
    )


def placement_note(job: Job) -> str:
    """A line on the placement that was priced, for a start without Slurm; "" where it needs no asking."""
    nodes, _ = nodes_of(job)
    together = _together(job, nodes)
    if not together:
        return ""
    if unasked := segment_note(job):
        return unasked
    many = (
        f"all {nodes} nodes in one NVLink domain"
        if together >= nodes
        else f"{together} nodes of each NVLink domain"
    )
    return (
        f"the plan is priced on {many} (nvl_segment), in the order of node ranks: placed otherwise, groups straddle "
        "domains; --slurm writes a job that asks for it"
    )


def _segment(job: Job, nodes: int) -> list[str]:
    """Nodes of each NVLink domain that the job takes together (Slurm's block topology)."""
    together = _together(job, nodes)
    return [f"--segment={together}"] if together and nodes % together == 0 else []


def _together(job: Job, nodes: int) -> int:
    """Nodes of each domain that the plan is priced on, 0 where a node is a domain or the job. [1]"""
    per_node, domain = job.cluster.gpus_per_node, job.cluster.domain_size
    if domain <= per_node or nodes == 1:
        return 0
    return min(nodes, max(1, used_domain(domain, nodes * per_node, job.plan.nvl_segment) // per_node))


def boosts(job: Job) -> bool:
    """Whether the job moves nvidia-smi's boost slider: the plan asks for it, and the GPUs are NVIDIA's."""
    return job.plan.vboost and not platform_of(job.cluster.gpu.vendor).is_rocm


def _vboost(job: Job) -> list[str]:
    if not boosts(job):
        return []
    return [
        "# Power from memory to the cores, once a node; needs rights the site must grant.",
        'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sudo nvidia-smi boost-slider --vboost 1',
        "",
    ]
