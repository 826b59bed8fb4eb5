"""Fit the constants of fused attention kernels from measured tables: cuDNN's, and FlashAttention-2's.

Part of tools/fit_tables.py. FlashAttention-2 was written for Ampere: on Hopper and Blackwell it issues the tensor
cores' older instructions and reaches half of cuDNN's rate and less, but the softmax costs it little beside that, and
short sequences too. Stacks say which kernel they run (costmodel/stacks.toml).
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fit_collectives import leaf
from fit_heads import ATTENTION_LIKE, B200_SMS, CUDNN, PEAKS, fp8_gains, size_tables, wide_of, window_tables
from scipy.optimize import least_squares, minimize_scalar

from costmodel.timing import kernels

START = "shared hardware notes, section 8, starting factors"
ATTENTION_ASSUMED = {
    "a100-sxm-80": (0.66, 350.0, 0.58, 350.0),
    "l40s": (0.34, 300.0, 0.30, 300.0),
    "rtx-pro-6000": (0.6, 400.0, 0.5, 400.0),
}
# Efficiency of scaled dot products on a B200 by number of heads, one sequence of 4096 tokens, of a simulator's own
# calibration. What its thread blocks leave idle at the end is taken from it, no rate.
TAILS = "SimuMax, configs/system, B200: efficiency by heads at 4096 tokens (quantities Q172)"
TAIL_ROW, TAIL_TOKENS = "Q172", 4096
WITH_TAIL = ("b200", "gb200", "b300", "gb300")
HOPPER_PEAK, GB200_PEAK, A100_PEAK = 989.5, 2500.0, 312.0  # [TFLOP/s]
FLASH2 = "FlashAttention-3 paper, arXiv:2407.08608, figures 5 and 6"
FLASH2_H200 = "Azure ND_H200_v5 results: FlashAttention-2, head dimension 128, 8192 tokens, 329.3 TFLOP/s"
FLASH2_H200_RATE = 329.3
FLASH2_GB200 = "Azure ND_GB200_v6 results: FlashAttention-2, head dimension 128, 8192 tokens, 373.9 TFLOP/s"
# Forward and backward together, causal, head dimension 128: 99 TFLOP/s at 512 tokens, 189 at 16384.
FLASH2_A100 = "shared hardware notes, section 7: A100 FA2 fwd+bwd hd128 causal 99-189"
FLASH2_A100_RATES = ((512.0, 99.0), (16384.0, 189.0))
FLASH2_LIKE = {
    "a100-sxm-80": "ampere",
    **dict.fromkeys(("h100-sxm", "h200-sxm"), "hopper"),
    **dict.fromkeys(("b200", "gb200", "b300", "gb300"), "blackwell"),
}


def fit_rates(
    s: np.ndarray,
    d: np.ndarray,
    rate: np.ndarray,
    peak: float,
    waves: np.ndarray | float = 1.0,
    tail: float = 0.0,
) -> tuple[float, float, float, float]:
    """fraction, half_seq, half_dim of `attention_time` and the mean |log error|. s, d [1]; rate, peak [TFLOP/s].

    One head dimension says nothing of half_dim: it is 0 then, and the fraction holds at that dimension.
    waves, tail: as `attention_time` takes them. [1]
    """
    known = len(set(d)) > 1

    def cost(p: np.ndarray) -> np.ndarray:
        fraction, half_seq, half_dim = np.exp(p) if known else (*np.exp(p), 0.0)
        seconds = kernels.attention_time(
            1e12,
            s,
            d,
            peak=peak * 1e12,
            fraction=fraction,
            half_seq=half_seq,
            half_dim=half_dim,
            launch=0.0,
            waves=waves,
            tail=tail,
        )
        return np.log(1 / seconds / rate)

    start, bounds = [0.6, 500, 60], [[0.1, 10, 1], [1.0, 4000, 400]]
    free = 2 + known
    result = least_squares(
        cost, np.log(start[:free]), bounds=np.log([end[:free] for end in bounds]), loss="soft_l1", f_scale=0.1
    )
    found = [*np.exp(result.x), 0.0][:3]
    return found[0], found[1], found[2], float(np.abs(cost(result.x)).mean())


def fit_tail(heads: np.ndarray, efficiency: np.ndarray) -> float:
    """Waves of `attention_time`'s tail, from efficiencies (of any scale) by heads of one sequence on a B200. [1]"""
    waves = kernels.query_waves(TAIL_TOKENS, heads, B200_SMS)

    def spread(tail: float) -> float:
        return float(np.var(np.log(efficiency * (1 + tail / waves))))

    return float(minimize_scalar(spread, bounds=(0, 20), method="bounded").x)


def read_tails(path: Path) -> dict[str, float]:
    """Tail of each pass, from the row of printed efficiencies. [1]"""
    with path.open() as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == TAIL_ROW)

    def numbers(text: str) -> np.ndarray:
        return np.array([float(number) for number in re.findall(r"\d*\.?\d+", text)])

    listed = re.search(r"heads ([\d/]+)", row["quantity"])
    assert listed, f"{TAIL_ROW} names no heads"
    heads = numbers(listed[1])
    return {"fwd": fit_tail(heads, numbers(row["value"])), "bwd": fit_tail(heads, numbers(row["note"]))}


def attention_tables(folder: Path, report: list[str]) -> dict[str, dict[str, dict[str, object]]]:
    """[attention.bf16.PASS] of every GPU; [attention.flash2.PASS] and FP8 gains of those where they were measured."""
    rows: dict[tuple[str, str], list[tuple[float, float, float, float]]] = defaultdict(list)
    tails = read_tails(folder.parent / "quantities.csv")
    with (folder / "kernels" / "attention_cudnn.csv").open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            plain = (
                row["mask"] == "top_left"
                and row["dtype"] == "bfloat16"
                and row["window"] in ("", "-1")
                and row["deterministic"] == "False"
            )
            if plain and row["hd_qk"] == row["hd_vo"] == "128":
                rows[row["gpu"], row["pass"]].append(
                    (
                        float(row["seqlen"]),
                        float(row["hd_qk"]),
                        float(row["tflops"]),
                        float(row["batch"]) * float(row["q_heads"]),
                    )
                )
    report += [
        "",
        "## Attention (cuDNN, causal, 16-bit)",
        "",
        f"Head dimension 128. On Blackwell the last thread blocks take as long as {tails['fwd']:.2f} waves forward and "
        f"{tails['bwd']:.2f} backward ({TAILS}).",
        "",
        "| GPU | pass | points | fraction | half sequence | mean abs log error |",
        "|---|---|---|---|---|---|",
    ]
    fitted: dict[tuple[str, str], tuple[float, float, float, int]] = {}
    for (gpu, name), points in sorted(rows.items()):
        seq, dim, rate, heads = np.array(points).T
        tail = tails[name] if gpu.lower() in WITH_TAIL else 0.0
        waves = kernels.query_waves(seq, heads, B200_SMS)
        fraction, half_seq, _, error = fit_rates(seq, dim, rate, PEAKS[gpu], waves, tail)
        fitted[gpu, name] = (fraction, half_seq, error, len(points))
        report.append(f"| {gpu} | {name} | {len(points)} | {fraction:.3f} | {half_seq:.0f} | {error:.3f} |")
    tables: dict[str, dict[str, dict[str, object]]] = {}
    for gpu, like in ATTENTION_LIKE.items():
        own = gpu.split("-")[0].upper() == like
        kind = "measured" if own else "assumed"
        note = "" if own else f"measured on {like}, assumed the same fraction of this GPU's peak"
        table: dict[str, dict[str, object]] = {}
        for name, short in (("forward", "fwd"), ("backward", "bwd")):
            fraction, half_seq, error, count = fitted[like, short]
            extra: dict[str, object] = {
                "residual": float(f"{error:.2g}"),
                "num_points": count,
                **({"note": note} if note else {}),
            }
            table[name] = {
                "fraction": leaf(fraction, "1", kind, CUDNN, **extra),
                "half_seq": leaf(half_seq, "1", kind, CUDNN),
            }
            if gpu in WITH_TAIL:
                table[name]["tail"] = leaf(
                    tails[short], "1", "derived" if gpu == "b200" else "assumed", TAILS
                )
        tables[gpu] = {"bf16": table}
    for gpu, (forward, forward_half, backward, backward_half) in ATTENTION_ASSUMED.items():
        tables[gpu] = {"bf16": assumed_attention(forward, forward_half, backward, backward_half)}
    for gpu, table in flash2_tables(folder.parent / "quantities.csv", report).items():
        tables[gpu]["flash2"] = table
    for gpu, sizes in size_tables(folder, report).items():
        for name, leaves in sizes.items():
            tables[gpu]["bf16"][name] |= leaves  # type: ignore[operator]
    for gpu, windows in window_tables(folder, tables, report).items():
        for name, window in windows.items():
            tables[gpu]["bf16"][name]["half_window"] = window  # type: ignore[index]
    for gpu, gains in fp8_gains(folder / "kernels" / "attention_cudnn.csv", report).items():
        tables[gpu] |= gains
    return tables


def flash2_tables(path: Path, report: list[str]) -> dict[str, dict[str, object]]:
    """[attention.flash2] of the GPUs on which FlashAttention-2 was measured, and of their siblings."""
    measured = read_flash2(path)
    forward_half, backward, backward_half, half_dim = fit_flash2(measured, report)
    wide = wide_of(measured["fwd hd256 FA2 (causal figure)"][8192] / FLASH2_H200_RATE, 256)

    def fraction_of(rate: float, peak: float) -> float:
        return rate * (1 + forward_half / 8192) / peak

    hopper, blackwell = fraction_of(FLASH2_H200_RATE, HOPPER_PEAK), fraction_of(373.9, GB200_PEAK)
    (short, low), (long, high) = FLASH2_A100_RATES
    half = short * long * (high - low) / (low * long - high * short)
    both = high * (1 + half / long) / A100_PEAK
    # The passes as in the starting factors: 3.5 FLOPs together, 2.5 of them backward.
    first, _, second, _ = ATTENTION_ASSUMED["a100-sxm-80"]
    scale = both * (1 / first + 2.5 / second) / 3.5
    of = {
        "hopper": Passes(
            (hopper, forward_half, FLASH2_H200),
            (backward, backward_half, FLASH2),
            "forward rate measured on H200, its shape and the backward pass on H100",
        ),
        "blackwell": Passes(
            (blackwell, forward_half, FLASH2_GB200),
            (backward * blackwell / hopper, backward_half, FLASH2_GB200),
            "forward pass measured on GB200; the backward pass as much slower than Hopper's",
        ),
        "ampere": Passes(
            (first * scale, half, FLASH2_A100),
            (second * scale, half, FLASH2_A100),
            "forward over backward as in the starting factors",
        ),
    }
    report += [
        f"| {name} | {which} | {each[0]:.3f} | {each[1]:.0f} | {half_dim:.0f} |"
        for name, passes in of.items()
        for which, each in (("fwd", passes.forward), ("bwd", passes.backward))
    ]
    return {gpu: passes_table(of[like], half_dim, wide) for gpu, like in FLASH2_LIKE.items()}


def read_flash2(path: Path) -> dict[str, dict[float, float]]:
    """Printed rates of FlashAttention-2 on H100 by quantity and sequence length. [TFLOP/s]"""
    measured: dict[str, dict[float, float]] = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            length = re.match(r"seq (\d+)(k?) ", row["x"])
            if row["hardware"] == "H100 SXM" and "FA2" in row["quantity"] and length:
                seq = float(length[1]) * (1024 if length[2] else 1)
                measured[row["quantity"]][seq] = float(row["value"])
    return measured


def fit_flash2(
    measured: dict[str, dict[float, float]], report: list[str]
) -> tuple[float, float, float, float]:
    """half_seq of the forward pass, fraction and half_seq of the backward pass, half_dim of both, on H100. [1]

    Backward rates are printed without mask; what the mask costs at each length is that of the forward figure.
    """
    masked, whole = (measured[f"fwd hd256 FA2 ({mask} figure)"] for mask in ("causal", "non-causal"))
    points = [
        (seq, dim, rate * masked[seq] / whole[seq])
        for dim in (64.0, 128.0)
        for seq, rate in measured[f"bwd hd{dim:.0f} FA2"].items()
    ]
    backward, backward_half, half_dim, error = fit_rates(*np.array(points).T, HOPPER_PEAK)
    lengths, rates = np.array(sorted(masked.items())).T
    _, forward_half, _, forward_error = fit_rates(lengths, np.full_like(lengths, 128.0), rates, HOPPER_PEAK)
    report += [
        "",
        "## Attention (FlashAttention-2, causal, 16-bit)",
        "",
        f"Shapes fitted on H100: {len(rates)} forward points, mean abs log error {forward_error:.3f}; {len(points)} "
        f"backward points, {error:.3f}. Rates: {FLASH2_H200}; {FLASH2_GB200}; {FLASH2_A100}.",
        "",
        "| generation | pass | fraction | half sequence | half head dim |",
        "|---|---|---|---|---|",
    ]
    return forward_half, backward, backward_half, half_dim


@dataclass(frozen=True)
class Passes:
    """fraction, half_seq and source of each pass, and what of that is assumed."""

    forward: tuple[float, float, str]
    backward: tuple[float, float, str]
    note: str


def passes_table(passes: Passes, half_dim: float, wide: float) -> dict[str, object]:
    """One GPU's table as the TOML files hold it."""
    found: dict[str, object] = {"half_dim": leaf(half_dim, "1", "assumed", FLASH2, note=passes.note)}
    for name, (fraction, half, source) in (("forward", passes.forward), ("backward", passes.backward)):
        found[name] = {
            "fraction": leaf(fraction, "1", "assumed", source, note=passes.note),
            "half_seq": leaf(half, "1", "assumed", source),
            "wide": leaf(wide, "1", "assumed", f"{FLASH2}, heads of 256 on H100, over {FLASH2_H200}"),
        }
    return found


def assumed_attention(
    forward: float, forward_half: float, backward: float, backward_half: float
) -> dict[str, object]:
    """Attention constants of a GPU without a table."""
    note = "no table of this GPU"
    return {
        "half_dim": leaf(60, "1", "assumed", START, note=note),
        "forward": {
            "fraction": leaf(forward, "1", "assumed", START, note=note),
            "half_seq": leaf(forward_half, "1", "assumed", START),
        },
        "backward": {
            "fraction": leaf(backward, "1", "assumed", START, note=note),
            "half_seq": leaf(backward_half, "1", "assumed", START),
        },
    }
