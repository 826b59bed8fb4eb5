"""What the size of attention heads and FP8 do to cuDNN's kernels, from measured tables. Part of tools/fit_tables.py.

Below 128 the softmax counts, whose exponentials do not shrink with the head; above, tiles of heads do not fit the SM
and the rate falls again. MLA's heads (192 for queries and keys, 128 for values) have kernels of their own.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit_collectives import leaf

from costmodel.timing import kernels

CUDNN = "NVIDIA cudnn-frontend@3929da2 benchmark/sdpa_benchmark_training (MIT)"
FLASH3 = "FlashAttention-3 paper, arXiv:2407.08608, figures 5 and 6, cuDNN on H100"
NOTES = "shared hardware notes, section 7: head dimension 64 reaches 0.70 to 0.75 of 128"
# Attention measured on one GPU and assumed on its siblings.
ATTENTION_LIKE = {
    "h100-sxm": "H200",
    "h200-sxm": "H200",
    "b200": "GB200",
    "gb200": "GB200",
    "b300": "GB300",
    "gb300": "GB300",
}
# Models of the table -> what their heads are: plain ones of 128, or MLA's, wider for queries than for values.
HEADS = {"llama3.1": "plain", "dsv3": "mla"}
# Mean of the head dimensions of MLA's queries and values in the table.
MLA_WIDTH = 160
# Dense 16-bit peaks [TFLOP/s], and SMs of the Blackwell ones.
PEAKS = {"H200": 989.5, "GB200": 2500.0, "GB300": 2500.0}
B200_SMS = 148
PASSES = {"fwd": "forward", "bwd": "backward"}

Rates = dict[tuple[str, ...], dict[str, float]]


def read_rates(path: Path) -> Rates:
    """Rates of cuDNN's table by GPU, heads, pass, length and then format: causal, no window. [TFLOP/s]"""
    rates: Rates = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            plain = row["mask"] == "top_left" and row["deterministic"] == "False" and not row["window"]
            if plain and row["model"] in HEADS:
                key = (row["gpu"], HEADS[row["model"]], PASSES[row["pass"]], row["seqlen"])
                rates[key][row["dtype"]] = float(row["tflops"])
    return rates


def read_figures(path: Path) -> dict[str, dict[float, float]]:
    """cuDNN's rates in FlashAttention-3's figures, by what is drawn and by length. [TFLOP/s]"""
    drawn: dict[str, dict[float, float]] = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            length = re.match(r"seq (\d+)(k?) ", row["x"])
            if row["hardware"] == "H100 SXM" and "cuDNN" in row["quantity"] and length:
                drawn[row["quantity"]][float(length[1]) * (1024 if length[2] else 1)] = float(row["value"])
    return drawn


def mean_ratio(above: Mapping[float, float], below: Mapping[float, float]) -> float:
    """Geometric mean of a ratio over the lengths that both have. [1]"""
    return float(np.exp(np.mean([np.log(above[key] / below[key]) for key in above if key in below])))


def half_dim_of(ratio: float) -> float:
    """half_dim of `attention_time` from the rate at head dimension 64 over that at 128. [1]"""
    return (1 - ratio) / (ratio / 64 - 1 / 128)


def wide_of(ratio: float, width: float) -> float:
    """Exponent `wide` of `attention_time` from the rate at a width beyond 128 over that at 128; 0 for no fall. [1]"""
    return max(0.0, float(-np.log(ratio) / np.log(width / 128)))


def size_tables(folder: Path, report: list[str]) -> dict[str, dict[str, dict[str, object]]]:
    """half_dim, wide and wide_mla of [attention.bf16.PASS] of every GPU with cuDNN's table.

    Heads of 64 and 256 were measured on an H100 alone, those of 256 forward alone; MLA's on Blackwell alone.
    """
    rates = read_rates(folder / "kernels" / "attention_cudnn.csv")
    drawn = read_figures(folder.parent / "quantities.csv")

    def of(gpu: str, heads: str, name: str) -> dict[float, float]:
        return {
            float(key[3]): found["bfloat16"] for key, found in rates.items() if key[:3] == (gpu, heads, name)
        }

    narrow = {
        "forward": (0.725, NOTES),
        "backward": (mean_ratio(drawn["bwd hd64 cuDNN"], drawn["bwd hd128 cuDNN"]), FLASH3),
    }
    broad = mean_ratio(drawn["fwd hd256 cuDNN (causal figure)"], of("H200", "plain", "forward"))
    report += [
        "",
        "## Attention (cuDNN, causal, 16-bit, other heads than 128)",
        "",
        "| GPU | heads | pass | rate over that of 128 | half head dimension or exponent |",
        "|---|---|---|---|---|",
        f"| H100 | 256 | forward | {broad:.2f} | {wide_of(broad, 256):.2f} |",
    ]
    report += [
        f"| H100 | 64 | {name} | {ratio:.2f} | {half_dim_of(ratio):.0f} |"
        for name, (ratio, _) in narrow.items()
    ]
    latent: dict[tuple[str, str], float] = {}
    for name in narrow:
        for gpu in ("GB200", "GB300"):
            latent[gpu, name] = mean_ratio(of(gpu, "mla", name), of(gpu, "plain", name))
            shown = wide_of(latent[gpu, name], MLA_WIDTH)
            report.append(f"| {gpu} | MLA | {name} | {latent[gpu, name]:.2f} | {shown:.2f} |")
        latent["H200", name] = float(np.sqrt(latent["GB200", name] * latent["GB300", name]))
    tables: dict[str, dict[str, dict[str, object]]] = {}
    for gpu, like in ATTENTION_LIKE.items():
        hopper, own = like == "H200", gpu.upper() == like
        other = "forward pass of an H100"
        tables[gpu] = {
            name: {
                "half_dim": leaf(half_dim_of(ratio), "1", "derived" if hopper else "assumed", source),
                "wide": leaf(
                    wide_of(broad, 256), "1", "derived" if hopper and name == "forward" else "assumed",
                    f"{FLASH3}, {other}, over {CUDNN}, H200",
                ),
                "wide_mla": leaf(
                    wide_of(latent[like, name], MLA_WIDTH), "1", "derived" if own else "assumed",
                    f"{CUDNN}, {'GB200 and GB300' if hopper else like}",
                ),
            }
            for name, (ratio, source) in narrow.items()
        }  # fmt: skip
    return tables


def window_tables(
    folder: Path, tables: Mapping[str, Mapping[str, Any]], report: list[str]
) -> dict[str, dict[str, dict[str, object]]]:
    """half_window of [attention.bf16.PASS]: `half_seq` of the kernel under a sliding window.

    tables: the other constants of each GPU. What a block of queries costs beside its keys is far from hidden under a
    window: measured with 128 tokens on Blackwell and 1,024 on Hopper, heads of 64.
    """
    report += [
        "",
        "## Attention (cuDNN, sliding window, 16-bit)",
        "",
        "| GPU | window | pass | points | half sequence |",
        "|---|---|---|---|---|",
    ]
    found: dict[str, dict[str, dict[str, object]]] = {}
    for gpu, like in ATTENTION_LIKE.items():
        found[gpu] = {}
        for short, name in PASSES.items():
            constants = {key: each["value"] for key, each in tables[gpu]["bf16"][name].items()}
            points = read_windows(folder / "kernels" / "attention_cudnn.csv", like, short)
            alone = [
                kernels.attention_time(
                    1.0, np.inf, point.head_dim, peak=PEAKS[like], fraction=constants["fraction"],
                    half_seq=0.0, half_dim=constants["half_dim"], launch=0.0,
                    waves=point.waves, tail=constants.get("tail", 0.0),
                )
                for point in points
            ]  # fmt: skip
            over = [1 / (point.rate * seconds) - 1 for point, seconds in zip(points, alone, strict=True)]
            half = float(np.mean([2 * point.keys * each for point, each in zip(points, over, strict=True)]))
            kind = "derived" if gpu.split("-")[0].upper() == like else "assumed"
            found[gpu][name] = leaf(half, "1", kind, f"{CUDNN}, gpt_oss on {like}", num_points=len(points))
            if gpu.split("-")[0].upper() == like:
                report.append(f"| {like} | {points[0].window:.0f} | {name} | {len(points)} | {half:.0f} |")
    return found


@dataclass(frozen=True)
class Windowed:
    """One run of a kernel under a sliding window.

    keys: that a query meets, mean [1]; rate: FLOPs of these over the time [TFLOP/s]; waves: see `query_waves`.
    """

    window: float
    keys: float
    head_dim: float
    waves: float
    rate: float


def read_windows(path: Path, gpu: str, name: str) -> list[Windowed]:
    """Runs of cuDNN's 16-bit kernels under a window, of sequences of 4,096 to 16,384 tokens."""
    found = []
    with path.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            seq, window = float(row["seqlen"]), float(row["window"] or 0)
            kernel = (row["gpu"], row["pass"], row["dtype"], row["deterministic"])
            if kernel == (gpu, name, "bfloat16", "False") and window and 4096 <= seq <= 16384:
                keys = window - window**2 / (2 * seq)
                heads = float(row["batch"]) * float(row["q_heads"])
                waves = float(kernels.query_waves(seq, heads, B200_SMS))
                found.append(Windowed(window, keys, float(row["hd_qk"]), waves, float(row["tflops"])))
    return found


def fp8_gains(path: Path, report: list[str]) -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    """[attention.FORMAT.HEADS.PASS] of every GPU whose FP8 kernels were measured: their rate over 16 bits. [1]

    Geometric mean over lengths, causal, without window, not deterministic.
    """
    logs: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for (gpu, heads, name, _), by_format in read_rates(path).items():
        for dtype in ("fp8", "mxfp8"):
            if {dtype, "bfloat16"} <= set(by_format):
                ratio = by_format[dtype] / by_format["bfloat16"]
                logs[gpu, dtype, heads, name].append(np.log(ratio))
    report += [
        "",
        "## Attention (cuDNN, causal, FP8 over 16 bits)",
        "",
        "| GPU | format | heads | pass | points | gain | least | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    tables: dict[str, dict[str, dict[str, dict[str, object]]]] = defaultdict(dict)
    for (measured, dtype, heads, name), found in sorted(logs.items()):
        gain, low, high = np.exp([np.mean(found), min(found), max(found)])
        report.append(
            f"| {measured} | {dtype} | {heads} | {name} | {len(found)} | {gain:.2f} | {low:.2f} | {high:.2f} |"
        )
        for gpu, like in ATTENTION_LIKE.items():
            if like == measured:
                kind = "measured" if gpu.split("-")[0].upper() == like else "assumed"
                entry = leaf(float(gain), "1", kind, f"{CUDNN}, on {like}", num_points=len(found))
                tables[gpu].setdefault(dtype, {}).setdefault(heads, {})[name] = entry
    return tables
