"""Logs written with the very format strings of the frameworks, so that readers are tested on what those print.

Megatron-LM: megatron/training/training.py, core/timers.py, utils/common_utils.py of megatron-core 0.19.2.
Megatron-Bridge: training/utils/train_utils.py of 0.6.2. NeMo: progress_printer.py of nemo-toolkit 2.4.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def megatron_line(
    step: int, seconds: float, *, total: int = 100, loss: float = 9.5, batch: int = 32, **more: Any
) -> str:
    """An iteration line of Megatron-LM."""
    line = f" [2026-03-04 10:{step // 60 % 60:02d}:{step % 60:02d}.123456]"
    line += f" iteration {step:8d}/{total:8d} |"
    line += f" consumed samples: {step * batch:12d} |"
    line += f" elapsed time per iteration (ms): {seconds * 1000.0:.1f} |"
    if "tflops" in more:
        line += f" throughput per GPU (TFLOP/s/GPU): {more['tflops']:.1f} |"
    if "power" in more:
        line += f" energy per GPU (J/iter/GPU): {more['power'] * seconds:.1f} |"
        line += f" power per GPU (W/GPU): {more['power']:.1f} |"
    line += f" learning rate: {1.5e-6:.6E} |"
    line += f" global batch size: {batch:5d} |"
    line += " {}: {:.6E} |".format("lm loss", loss) if loss >= 0 else ""
    line += f" loss scale: {1.0:.1f} | grad norm: {more.get('grad_norm', 1.25):.3f} |"
    line += " number of skipped iterations: {:3d} |".format(more.get("skipped", 0))
    line += " number of nan iterations: {:3d} |".format(more.get("nan", 0))
    return line


def timers(times: Mapping[str, tuple[float, float]], option: str = "minmax") -> list[str]:
    """A table of timers, in seconds of a step on the quickest and slowest rank."""
    if option == "minmax":
        head = "(min, max) time across ranks (ms):"
        rows = [
            "    {}: ({:.2f}, {:.2f})".format((name + " ").ljust(48, "."), low * 1e3, high * 1e3)
            for name, (low, high) in times.items()
        ]
    elif option == "max":
        head = "max time across ranks (ms):"
        rows = [
            "    {}: {:.2f}".format((name + " ").ljust(48, "."), high * 1e3)
            for name, (_, high) in times.items()
        ]
    else:
        head = "times across ranks (ms):"
        rows = []
        for name, pair in times.items():
            rows.append(f"  {name}:")
            rows += [f"     rank {rank:2d}: {value * 1e3:.2f}" for rank, value in enumerate(pair)]
    return [head, *rows]


def memory_line(rank: int, step: int, allocated: float, peak: float, reserved: float) -> str:
    """Megatron's report of memory, in MiB that it calls MB."""
    return (
        f"[Rank {rank}] (after {step} iterations) memory (MB) | allocated: {allocated:.2f} | max allocated: {peak:.2f}"
        f" | reserved: {reserved:.2f} | max reserved: {reserved:.2f}"
    )


def megatron_log(steps: Iterable[tuple[int, float]], dump: str = "", **more: Any) -> str:
    """A whole log of Megatron-LM."""
    lines = ["using world size: 16, data-parallel size: 4, context-parallel size: 1"]
    if dump:
        lines.append((DATA / f"arguments-{dump}.txt").read_text().rstrip())
    lines += [
        " > number of parameters on (tensor, gtp_weight_remat, pipeline) model parallel rank (0, 0, 0): 2007629824",
        " > number of parameters on (tensor, pipeline) model parallel rank (1, 1): 2007633920",
        "[before the start of training step] datetime: 2026-03-04 10:00:00.000000 ",
    ]
    for number, (step, seconds) in enumerate(steps):
        lines.append(megatron_line(step, seconds, **more))
        if number == 1:
            lines.append(memory_line(0, step, 21000.5, 30100.25, 33000))
            lines.append(memory_line(4, step, 20000.5, 26100.25, 29000))
    return "\n".join(lines) + "\n"


def bridge_lines(step: int, seconds: float, tflops: float, **more: Any) -> list[str]:
    """What Megatron-Bridge prints of a step: rank 0 and the last rank."""
    return [
        f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU",
        megatron_line(step, seconds, tflops=tflops, **more),
    ]


def nemo_line(step: int, seconds: float, total: int = 100, **more: Any) -> str:
    """NeMo's line of a step that counts from 1: `{val:.4}`, whole floats as integers."""
    metrics: dict[str, Any] = {
        "lr": 4.498e-06,
        "global_batch_size": 512.0,
        "global_step": float(step - 1),
        **more,
        "reduced_train_loss": 11.03,
        "train_step_timing in s": seconds,
        "consumed_samples": float(512 * step),
    }
    line = f"Training epoch 0, iteration {step - 1}/{total - 1}"
    for name, value in metrics.items():
        line += f" | {name}: {int(value)}" if float(value).is_integer() else f" | {name}: {value:.4}"
    return line
