"""A run on a Slurm cluster: the job script that starts `advisor run` once on every node, and its submission."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from executor.export.exported import Job
from executor.export.launch import nodes_of
from executor.export.slurm import JOB_SCRIPT, MEETING, directives

# The plan's name where it is copied beside the job script.
PLAN = "plan.toml"


def run_script(job: Job, words: Sequence[str], plan: str | Path = PLAN) -> str:
    """The job script. words: further options of `advisor run`, the same on every node. plan: where they find the plan.

    Account, partition and time are the cluster's: given to sbatch, or in SBATCH_ variables. Each node starts one
    `advisor run`, which starts torchrun; its record stays under the folder of the job, on the file system they share.
    """
    nodes, _ = nodes_of(job)
    command = ["advisor", "run", str(plan), "--gpu", job.cluster.gpu.name, *words]
    text = " ".join(shlex.quote(word) for word in command)
    if nodes > 1:
        text += f' --nodes {nodes} --rdzv "$MASTER_ADDR:$MASTER_PORT" --node-rank "$SLURM_NODEID"'
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH {directive}" for directive in directives(job)),
        f"# sbatch --account=A --partition=P {JOB_SCRIPT}, in the folder where the nodes find "
        f"{shlex.quote(str(plan))}.",
        "set -euo pipefail",
        "",
        *MEETING,
        'export ADVISOR_HOME="${ADVISOR_HOME:-$SLURM_SUBMIT_DIR}"  # records of the run; every node sees it',
        "",
        "# With CONTAINER_IMAGE set, inside it; else `advisor` is on the PATH of the nodes.",
        "WITHIN=()",
        'if [[ -n "${CONTAINER_IMAGE:-}" ]]; then',
        '    WITHIN=(--container-image="$CONTAINER_IMAGE" --container-workdir="$SLURM_SUBMIT_DIR")',
        '    WITHIN+=(--container-mounts="${CONTAINER_MOUNTS:-$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR}")',
        "fi",
        "# SLURM_NODEID is known on each node only: its shell puts it in.",
        f'srun --kill-on-bad-exit=1 "${{WITHIN[@]}}" bash -c {shlex.quote(text)}',
    ]
    return "\n".join(lines) + "\n"


def submit(folder: Path, script: str) -> str:
    """Write the script into `folder` and give it to sbatch; what sbatch said. ValueError, one line, when it refuses."""
    (folder / JOB_SCRIPT).write_text(script)
    program = shutil.which("sbatch")
    if program is None:
        raise ValueError(
            f"there is no sbatch on this machine. The script is {folder / JOB_SCRIPT}: submit it where there is one, "
            "or try --print-only."
        )
    done = subprocess.run(
        [program, JOB_SCRIPT], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise ValueError(
            f"sbatch refused {folder / JOB_SCRIPT}: {said[-1]}. Set SBATCH_ACCOUNT, SBATCH_PARTITION."
        )
    return done.stdout.strip()
