"""The launch of an exported plan: one script for each node, with torchrun, binding and rendezvous in it.

The environment stands in this script, which runs inside the container: variables of the host's shell lose
against those that a container image sets.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from costmodel.knobs import SETTINGS
from executor.export.environment import environment, environment_lines
from executor.export.exported import Exported, Job
from executor.export.unsaid import setting_value
from hardware_db import platform_of

SCRIPT = "train.sh"
# Every process finds the NUMA node of its GPU; where the machine does not tell (-1), it stays unbound.
OF_CUDA = """\
    bus=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader -i "$LOCAL_RANK" | tr 'A-Z' 'a-z' || true)
    numa=$(cat "/sys/bus/pci/devices/${bus#0000}/numa_node" 2>/dev/null || echo -1)
"""
# As torchrun --numa-binding finds it, which PyTorch has for both makers. Source: PyTorch 2.13 torch/numa/binding.py.
OF_ROCM = """\
    bus=$(python -c 'import os, torch; gpu = torch.cuda.get_device_properties(int(os.environ["LOCAL_RANK"])); \\
        print("%04x:%02x:%02x.0" % (gpu.pci_domain_id, gpu.pci_bus_id, gpu.pci_device_id))' 2>/dev/null || true)
    numa=$(cat "/sys/bus/pci/devices/$bus/numa_node" 2>/dev/null || echo -1)
"""
BIND = """\
    if [[ "$numa" -ge 0 ]] && command -v numactl >/dev/null; then
        exec numactl --cpunodebind="$numa" --membind="$numa" "$@"
    fi
"""
# What words inside "${NAME:?words}" may not hold: bash ends the words there, puts something else in, or reads on
# to the end of the script for the other quote.
SHELL_MARKS = frozenset("'\"`$\\{}\n")
# Frameworks mark the steps, and nothing records them but Nsight Systems around the process.
# Source: Megatron-LM megatron/training/arguments.py, --profile, whose example this is.
TRACE = """\
    # Ranks that are traced run under Nsight Systems, which records the steps that the run marks.
    if [[ ",{ranks}," == *",$RANK,"* ]]; then
        set -- nsys profile -s none -t nvtx,cuda -o "trace-rank$RANK" --force-overwrite true \\
            --capture-range=cudaProfilerApi --capture-range-end=stop "$@"
    fi
"""


def nodes_of(job: Job) -> tuple[int, int]:
    """Nodes, and GPUs of each that the job uses. ValueError when the world does not fill whole nodes."""
    world, per_node = job.plan.world, job.cluster.gpus_per_node
    if world <= per_node:
        return 1, world
    if world % per_node:
        raise ValueError(
            f"{world} GPUs do not fill whole nodes of {job.cluster.name}, which have {per_node}. "
            f"Try --gpus {math.ceil(world / per_node) * per_node}."
        )
    return world // per_node, per_node


def train_script(job: Job, exported: Exported, inputs: Mapping[str, tuple[str, str]]) -> str:
    """The script that each node runs.

    inputs: shell variables the user gives: name to (default, what it is); no default makes it required.
    """
    nodes, per_node = nodes_of(job)
    lines = ["#!/usr/bin/env bash", *_head(job, exported), "set -euo pipefail", ""]
    lines += _each_process(job)
    if exported.files:
        lines += [
            'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)  # files of the export stand beside it',
            "",
        ]
    if inputs:
        lines += ["# What the plan does not know.", *_inputs(inputs), ""]
    lines += [
        "# Environment; it wins over the container's.",
        *environment_lines(environment(job, exported.target)),
        "",
    ]
    lines += _rendezvous(nodes)
    lines += ["", *argument_block(exported), ""]
    return "\n".join([*lines, *_torchrun(job, exported, nodes, per_node)]) + "\n"


def traced_ranks(job: Job) -> list[int]:
    """Ranks that Nsight Systems traces, none unless the plan's settings ask for it; of AMD's GPUs it sees nothing."""
    given = dict(job.plan.settings)
    if not given.get("use_nsys_profiler") or platform_of(job.cluster.gpu.vendor).is_rocm:
        return []
    ranks: list[int] = setting_value(
        "profile_ranks", given.get("profile_ranks", SETTINGS["profile_ranks"].default)
    )
    return ranks


def _each_process(job: Job) -> list[str]:
    """What each process does before it trains: trace itself, bind itself."""
    plan, ranks = job.plan, traced_ranks(job)
    todo = [
        *(["to be traced"] if ranks else []),
        *(["to be bound to the cores and memory next to its GPU"] * plan.cpu_binding),
    ]
    if not todo:
        return []
    lines = [
        f"# Each process comes back here, {' and '.join(todo)}.",
        'if [[ "${1:-}" == bound ]]; then',
        "    shift",
    ]
    if ranks:
        lines += TRACE.format(ranks=",".join(map(str, ranks))).splitlines()
    if plan.cpu_binding:
        find = OF_ROCM if platform_of(job.cluster.gpu.vendor).is_rocm else OF_CUDA
        lines += (find + BIND).splitlines()
    return [*lines, '    exec "$@"', "fi", ""]


def _head(job: Job, exported: Exported) -> list[str]:
    workload = job.workload
    lines = [
        f"# {job.model.name} on {job.plan.world} x {job.cluster.gpu.title}: {job.plan.describe()}, "
        f"{workload.global_batch} sequences of {workload.seq_len} tokens.",
        f"# For {exported.target} {exported.version}, written by `advisor export`.",
    ]
    return lines + [f"# Note: {note}" for note in exported.notes]


def _inputs(inputs: Mapping[str, tuple[str, str]]) -> list[str]:
    lines = []
    for name, (default, meaning) in inputs.items():
        assert not set(meaning) & SHELL_MARKS, (
            f"{name}: {meaning!r} would end or change the line of the script"
        )
        if default:
            lines.append(f'{name}="${{{name}:-{default}}}"  # {meaning}')
        else:
            lines.append(f': "${{{name}:?set it to {meaning}}}"')
    return lines


def _rendezvous(nodes: int) -> list[str]:
    if nodes == 1:
        return []
    return [
        "# Ranks follow the order of nodes, which decides what talks over which link: a fixed node rank each.",
        f"NNODES=${{NNODES:-{nodes}}}",
        'NODE_RANK="${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK to 0 on the first node, 1 on the second, ...}}"',
        ': "${MASTER_ADDR:?set it to the host name of node 0}"',
        'MASTER_PORT="${MASTER_PORT:-29500}"',
    ]


def argument_block(exported: Exported) -> list[str]:
    """The arguments of the command, a flag with its values on each line, as a shell array."""
    lines = ["ARGS=("]
    row: list[str] = []
    for word in exported.command[1:]:
        if word.startswith("--") and row:
            lines.append("    " + " ".join(row))
            row = []
        row.append(quoted(word))
    return [*lines, *(["    " + " ".join(row)] if row else []), ")"]


def _torchrun(job: Job, exported: Exported, nodes: int, per_node: int) -> list[str]:
    words = ["exec torchrun", f"--nproc-per-node {per_node}"]
    if nodes == 1:
        words.append("--standalone")
    else:
        words += ['--nnodes "$NNODES" --node-rank "$NODE_RANK"']
        words += ['--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"']
    name = exported.command[0]
    script = quoted(f"${{HERE}}/{name}" if name in exported.files else name)
    bound = 'bash "${BASH_SOURCE[0]}" bound ' if _each_process(job) else ""
    words += ["--no-python", f'{bound}python -u {script} "${{ARGS[@]}}" "$@"']
    return [" \\\n    ".join(words)]


def quoted(word: str) -> str:
    """A word for the shell; variables stay variables."""
    return f'"{word}"' if "$" in word else shlex.quote(word)
