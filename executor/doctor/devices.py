"""GPUs as nvidia-smi tells them: memory, power limit, errors, throttling, MIG; and their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from executor.doctor.finding import Finding
from executor.doctor.machine import Machine
from hardware_db import platform_of

# A device that already holds more than this is someone else's. [MiB]
IN_USE = 2048
SMI = "nvidia-smi --help-query-gpu"


def devices(machine: Machine, plan: Mapping[str, Any] | None) -> Iterator[Finding]:
    """How many devices of which kind, and what is wrong with one."""
    files = [name for name in machine.names("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    gpus = machine.gpus
    if not gpus and files:
        yield Finding(
            "devices",
            "fail",
            f"{len(files)} GPU device files, and nvidia-smi does not answer",
            "driver and kernel module do not run together, or the driver hangs",
            "Look at `dmesg | grep -i nvrm`; reload the driver or reboot",
        )
        return
    if not gpus and machine.amd_gpus:
        yield Finding(
            "devices",
            "warn",
            f"{machine.amd_gpus} GPUs of AMD, which are not examined",
            "what they hold, their power, errors and clocks are asked of nvidia-smi alone, and `advisor run` trains on "
            "NVIDIA's GPUs or on cores",
            f"Look at them with `{platform_of('AMD').monitor}`",
        )
        return
    if not gpus:
        yield Finding("devices", "ok", f"no GPU: ranks run on {machine.affinity} CPU cores (gloo)")
        return
    names = sorted({gpu["name"] for gpu in gpus})
    if len(names) > 1:
        yield Finding(
            "devices",
            "warn",
            f"GPUs of different kinds: {', '.join(names)}",
            "a step is as slow as its slowest rank",
            "Use nodes of one kind, or choose with CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Finding("devices", "ok", f"{len(gpus)} x {names[0]}, driver {gpus[0]['driver_version']}")
    yield from _visible(machine, len(gpus))
    for gpu in gpus:
        yield from _one(gpu)


def _visible(machine: Machine, count: int) -> Iterator[Finding]:
    chosen = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and chosen.strip() in ("", "-1"):
        yield Finding(
            "devices",
            "warn",
            f"CUDA_VISIBLE_DEVICES={chosen!r} hides all {count} GPUs",
            "ranks would train on the CPU",
            "Unset it to use them",
        )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None  # [N/A], [Not Supported]


def _one(gpu: Mapping[str, str]) -> Iterator[Finding]:
    """What is wrong with one GPU."""
    name = f"GPU {gpu['index']}"
    total, used = _number(gpu["memory.total"]), _number(gpu["memory.used"])
    if total and used and used > IN_USE:
        yield Finding(
            "memory of devices",
            "warn",
            f"{name} holds {used:.0f} MiB of {total:.0f} already",
            "another process uses it: less memory, and steps that wait for each other",
            "See whose it is with `nvidia-smi`, and end it or take another GPU",
            SMI,
        )
    limit, default = _number(gpu["power.limit"]), _number(gpu["power.default_limit"])
    if limit and default and limit < 0.98 * default:
        yield Finding(
            "power",
            "warn",
            f"{name} is limited to {limit:.0f} W of {default:.0f} W",
            "clocks fall under dense GEMMs, and predictions assume the default limit",
            f"sudo nvidia-smi -i {gpu['index']} -pl {default:.0f}",
            SMI,
        )
    errors = _number(gpu.get("ecc.errors.uncorrected.volatile.total"))
    if errors:
        yield Finding(
            "ECC",
            "fail",
            f"{name} counts {errors:.0f} uncorrected memory errors since it started",
            "values in its memory were wrong: the run fails, or trains on garbage",
            "Drain the node, reset the GPU, and replace it when errors return",
            SMI,
        )
    slow = [
        word
        for word in ("hw_slowdown", "sw_thermal_slowdown")
        if gpu.get(f"clocks_throttle_reasons.{word}") == "Active"
    ]
    if slow:
        yield Finding(
            "clocks",
            "warn",
            f"{name} runs at {gpu.get('clocks.current.sm')} of {gpu.get('clocks.max.sm')} MHz: {' and '.join(slow)}",
            "heat or power holds its clocks down, and all ranks wait for the slowest",
            "Check cooling and power supply of the node",
            SMI,
        )
    if gpu.get("mig.mode.current") == "Enabled":
        yield Finding(
            "MIG",
            "warn",
            f"{name} is divided (MIG)",
            "NCCL does not join slices of one GPU, and the device's figures do not hold for a slice",
            "Use whole GPUs for training",
            "NVIDIA MIG user guide, limitations",
        )
