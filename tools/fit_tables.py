"""Fit kernel and collective constants from measured tables: GEMM, fused attention, NCCL.

    python tools/fit_tables.py DATA_FOLDER      # the folder `hardware` of the shared data

Fits the formulas of costmodel.timing themselves to the raw tables (NVIDIA aiconfigurator GEMM and NCCL,
NVIDIA cudnn-frontend attention), writes hardware_db/calibrated/GPU.toml and docs/kernel-fits.md. FP8 and
FP4 GEMM tables include the activation's quantisation kernel, whose time goes with M K and not with N; it is
fitted beside them, so that the constants are of the GEMM alone. GPUs without a table take the starting
factors of the data's README, kind "assumed". Running it again gives the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import defaultdict
from datetime import date
from pathlib import Path

import numpy as np
import tomli_w
from fit_attention import START, assumed_attention, attention_tables
from fit_collectives import AIC, collective_tables, leaf
from scipy.optimize import least_squares

from costmodel.timing import kernels

ROOT = Path(__file__).resolve().parent.parent

# GPU file -> name in the GEMM and NCCL tables (None: no table), SMs, dense peaks [TFLOP/s], HBM [TB/s]
SYSTEMS: dict[str, tuple[str | None, int, dict[str, float], float]] = {
    "a100-sxm-80": ("a100_sxm", 108, {"bf16": 312}, 2.039),
    "h100-sxm": ("h100_sxm", 132, {"bf16": 989.5, "fp8": 1979}, 3.35),
    "h200-sxm": ("h200_sxm", 132, {"bf16": 989.5, "fp8": 1979}, 4.8),
    "b200": ("b200_sxm", 148, {"bf16": 2250, "fp8": 4500, "nvfp4": 9000}, 8.0),
    "b300": ("b300_sxm", 148, {"bf16": 2250, "fp8": 4500, "nvfp4": 13500}, 8.0),
    "gb200": ("gb200", 148, {"bf16": 2500, "fp8": 5000, "nvfp4": 10000}, 8.0),
    "gb300": ("gb300", 152, {"bf16": 2500, "fp8": 5000, "nvfp4": 15000}, 8.0),
    "l40s": ("l40s", 142, {"bf16": 362, "fp8": 733}, 0.864),
    "rtx-pro-6000": ("rtx_pro_6000_server", 188, {"bf16": 467.8, "fp8": 935.6, "nvfp4": 1871}, 1.6),
}
# Starting factors where no table exists: bf16, fp8 pure, attention forward / backward, HBM stream / fused.
STARTING = {
    "h20": (0.93, 0.88, 0.80, 0.68, 0.87, 0.78),
    "mi300x": (0.53, 0.48, 0.35, 0.25, 0.80, 0.70),
    "mi325x": (0.62, 0.57, 0.35, 0.25, 0.80, 0.70),
    "mi355x": (0.60, 0.60, 0.42, 0.32, 0.82, 0.72),
    "rtx4090": (0.90, 0.80, 0.75, 0.60, 0.90, 0.75),
    "rtx5090": (0.90, 0.80, 0.75, 0.60, 0.90, 0.75),
}
TABLE_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4"}
OPERAND_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "nvfp4": 0.5625}
# HBM bytes of quantising one element, from where the fit starts: 16 bits read, the format written, at 0.75 of HBM.
QUANTISED_BYTES = {"bf16": 0.0, "fp8": 3.0 / 0.75, "fp8-block": 3.1 / 0.75, "nvfp4": 2.6 / 0.75}


def read_gemms(folder: Path) -> dict[tuple[str, str, str], np.ndarray]:
    """(system, dtype, dataset) -> rows of m, n, k, microseconds with m >= 256 and n, k >= 512."""
    rows: dict[tuple[str, str, str], list[tuple[float, ...]]] = defaultdict(list)
    with gzip.open(folder / "kernels" / "gemm_aiconfigurator_subset.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            m, n, k = (int(row[name]) for name in ("m", "n", "k"))
            if m >= 256 and n >= 512 and k >= 512 and not row["watts"]:
                rows[row["system"], row["gemm_dtype"], row["dataset"]].append((m, n, k, float(row["us"])))
    return {key: np.array(value) for key, value in rows.items()}


# Least, start and most of each constant.
BOUNDS = {
    "fraction": (0.2, 0.65, 0.98),
    "bandwidth_fraction": (0.2, 0.6, 1.0),
    "launch": (1e-6, 4e-6, 20e-6),
    "wave_weight": (0.005, 0.1, 1.2),
    "fill": (1.0, 50.0, 4000.0),
}


def fit_gemm(
    points: np.ndarray, dtype: str, num_sms: int, peak: float, hbm: float
) -> tuple[dict[str, float], np.ndarray]:
    """Constants of `gemm_time` and the log residuals of the points. Rows: m, n, k, microseconds.

    quantise, where the format has it: bytes for each element of the activation, at the data sheet's bandwidth.
    """
    m, n, k, us = points.T
    operand = OPERAND_BYTES[dtype]
    num_bytes = operand * (m * k + k * n) + 2 * m * n
    start = QUANTISED_BYTES[dtype]
    bounds = BOUNDS | ({"quantise": (0.2 * start, start, 10 * start)} if start else {})

    def model(p: np.ndarray) -> np.ndarray:
        values = dict(zip(bounds, np.exp(p), strict=True))
        gemm = kernels.gemm_time(
            m,
            n,
            k,
            peak=peak,
            fraction=values["fraction"],
            num_sms=num_sms,
            wave_weight=values["wave_weight"],
            launch=values["launch"],
            num_bytes=num_bytes,
            bandwidth=values["bandwidth_fraction"] * hbm,
            fill=values["fill"],
        )
        return gemm + values.get("quantise", 0.0) * m * k / hbm

    def cost(p: np.ndarray) -> np.ndarray:
        return np.log(model(p) / (us * 1e-6))

    low, begin, high = (np.log(row) for row in zip(*bounds.values(), strict=True))
    result = least_squares(cost, begin, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    return dict(zip(bounds, np.exp(result.x), strict=True)), cost(result.x)


def gemm_tables(folder: Path, report: list[str]) -> dict[str, dict[str, dict[str, object]]]:
    """[gemm.DTYPE] of every GPU with a table."""
    data = read_gemms(folder)
    tables: dict[str, dict[str, dict[str, object]]] = {}
    report += [
        "## GEMM",
        "",
        "`quantise`: what quantisation of an activation's element takes, in bytes at the data sheet's bandwidth.",
        "",
        "| GPU | format | points | fraction | launch [us] | wave weight | fill | quantise [byte] | mean abs log error "
        "| worst decile |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for gpu, (system, num_sms, peaks, hbm) in SYSTEMS.items():
        for dtype, name in TABLE_DTYPES.items():
            found = sorted(
                key for key in data if key[0] == system and key[1] == name and key[2].startswith("trtllm")
            )
            peak = peaks.get("fp8" if dtype == "fp8-block" else dtype)
            if not found or peak is None:
                continue
            points = data[found[-1]]
            values, errors = fit_gemm(points, dtype, num_sms, peak * 1e12, hbm * 1e12)
            error, decile = float(np.abs(errors).mean()), float(np.quantile(np.abs(errors), 0.9))
            source = f"{AIC}, {found[-1][2]}, short runs, random data"
            quantise = values.get("quantise", 0.0)
            note = (
                f"GEMM alone: the activation's quantisation, {quantise:.1f} bytes an element, is taken out"
                if quantise
                else ""
            )
            # The fixed time of the quantised tables is their quantisation kernel's; a GEMM launches alike.
            launch = (
                values["launch"] if dtype == "bf16" else float(tables[gpu]["bf16"]["launch"]["value"]) * 1e-6
            )
            extra = {
                "residual": float(f"{error:.2g}"),
                "num_points": len(points),
                **({"note": note} if note else {}),
            }
            tables.setdefault(gpu, {})[dtype] = {
                "fraction": leaf(values["fraction"], "1", "measured", source, **extra),
                "bandwidth_fraction": leaf(values["bandwidth_fraction"], "1", "measured", source),
                "launch": leaf(launch * 1e6, "us", "measured", source),
                "wave_weight": leaf(values["wave_weight"], "1", "measured", source),
                "fill": leaf(values["fill"], "1", "measured", source),
            }
            report.append(
                f"| {gpu} | {dtype} | {len(points)} | {values['fraction']:.3f} | {values['launch'] * 1e6:.1f} "
                f"| {values['wave_weight']:.3f} | {values['fill']:.0f} | {quantise:.1f} | {error:.3f} | {decile:.3f} |"
            )
        if "nvfp4" in tables.get(gpu, {}):
            fp8 = tables[gpu][
                "fp8-block" if "fp8-block" in tables[gpu] and gpu not in ("h100-sxm", "h200-sxm") else "fp8"
            ]
            note = "MXFP8 GEMM assumed to run like the quicker FP8 kernel of this GPU"
            tables[gpu]["mxfp8"] = {
                name: {**entry, "kind": "assumed", "note": note} for name, entry in fp8.items()
            }
    return tables


# Bandwidth of permuting rows over that of other element-wise kernels, on a B200.
PERMUTING = 0.50 / 0.67
PERMUTING_SOURCE = (
    "SimuMax, configs/system, B200: permutation 0.50, other kernels 0.67 of HBM (quantities Q263)"
)
PERMUTED = ("b200", "gb200", "b300", "gb300")


def memory_table(gpu: str, stream: float, fused: float) -> dict[str, object]:
    """[memory]: fractions of the data sheet bandwidth by kind of kernel."""
    kind = "derived" if gpu == "b200" else "assumed"
    permute = (
        {"permute": leaf(0.93 * fused * PERMUTING, "1", kind, PERMUTING_SOURCE)} if gpu in PERMUTED else {}
    )
    note = "forward 3.7 to 3.85 of 4.8 TB/s on H200, backward 3.4 to 3.8; generic element-wise 0.67 (SimuMax, B200)"
    return {
        "stream": leaf(stream, "1", "assumed", START),
        "norm": leaf(fused, "1", "assumed", START, note=note),
        "norm_backward": leaf(0.9 * fused, "1", "assumed", START, note=note),
        "elementwise": leaf(0.93 * fused, "1", "assumed", START, note=note),
        "contiguous": leaf(
            stream, "1", "assumed", START, note="activation functions and additions, as a copy or triad"
        ),
        **permute,
    }


def host_table(blackwell: bool) -> dict[str, object]:
    """[host]: launch gaps on the device. Hopper figures stand in where nothing was measured."""
    source = "te42kyfo/gpu-benches@1c36d50"
    kind = "assumed" if blackwell else "measured"
    return {
        "kernel_launch": leaf(
            1.2, "us", kind, source, note="gap between dependent kernels; 2.5 us stream launch, partly hidden"
        ),
        "graph_launch": leaf(0.6, "us", kind, source),
    }


# Cycles of one SM, at the boost clock, for an element of kernels that wait for their arithmetic or indexing and not for
# memory: SwiGLU's backward pass (of its output), fused rotary embedding, a strided copy of heads. Where none is listed,
# kernels go by their bytes; on other generations such cycles made runs left out of the fit no better told.
SM_CYCLES = {"swiglu_backward": 1.02, "rotary_forward": 0.55, "rotary_backward": 0.60, "head_copy": 0.60}
CYCLES_SOURCE = (
    "profiles of training steps of two models on an H200, 2026-11-26 (Transformer Engine 2.12, PyTorch 2.11)"
)
CYCLES_READ_ON = date(2026, 11, 26)
# 1 where cycles of routers, maps of the permutation and sinks hold, which `costmodel.work` counts itself.
TIMED_SOURCE = (
    "kernels timed alone on an H100, 2026-11-27 (hardware_db/measured/h100-sxm-2026-11-27-kernels.csv)"
)
TIMED_NOTE = (
    "1: routers, maps and sinks take the cycles of Hopper's multiprocessors that the cost model counts"
)
TIMED_READ_ON = date(2026, 11, 27)
PROFILED = {"h200-sxm": "measured", "h100-sxm": "derived", "h20": "derived"}


def cycles_table(gpu: str) -> dict[str, object]:
    """[sm_cycles] of the GPUs of the generation where it was profiled; empty for others."""
    if gpu not in PROFILED:
        return {}
    clocks = "clocks were 1.70 GHz in BF16 and 1.76 in FP8, whose kernels were 4 % faster"
    kind = PROFILED[gpu]
    note = clocks if kind == "measured" else "as on H200, whose multiprocessors are the same"
    return {
        name: leaf(value, "1", kind, CYCLES_SOURCE, note=note, read_on=CYCLES_READ_ON)
        for name, value in SM_CYCLES.items()
    } | {"timed": leaf(1.0, "1", "measured", TIMED_SOURCE, note=TIMED_NOTE, read_on=TIMED_READ_ON)}


MEMORY = {
    "a100-sxm-80": (0.82, 0.75),
    "h100-sxm": (0.86, 0.78),
    "h200-sxm": (0.86, 0.78),
    "l40s": (0.85, 0.75),
}


def main(folder: Path) -> None:
    """Fit everything and write the files."""
    report = [
        "# Fits of the kernel tables",
        "",
        "Printed by `tools/fit_tables.py`. Error: log(model / measured). Fractions are of the dense peak.",
        "",
    ]
    gemms = gemm_tables(folder, report)
    attention = attention_tables(folder, report)
    collectives = collective_tables(
        folder, [(gpu, system or "") for gpu, (system, *_) in SYSTEMS.items()], report
    )
    out = ROOT / "hardware_db" / "calibrated"
    out.mkdir(parents=True, exist_ok=True)
    header = "# Written by tools/fit_tables.py; do not edit. What kernels and collectives reach alone.\n"
    for gpu in SYSTEMS:
        record = {
            "gpu": gpu,
            "gemm": gemms[gpu],
            "attention": attention[gpu],
            "memory": memory_table(gpu, *MEMORY.get(gpu, (0.90, 0.75))),
            "host": host_table("b" in gpu[:2]),
        }
        if cycles := cycles_table(gpu):
            record["sm_cycles"] = cycles
        if gpu in collectives:
            record["collective"] = collectives[gpu]
        (out / f"{gpu}.toml").write_text(header + tomli_w.dumps(record))
    for gpu, (bf16, fp8, forward, backward, stream, fused) in STARTING.items():
        table = {}
        formats = {"bf16": bf16, "fp8": fp8, "fp8-block": fp8}
        if gpu in ("mi355x", "rtx5090"):
            formats |= {"mxfp8": fp8, "nvfp4": 0.8 * fp8}
        for dtype, fraction in formats.items():
            table[dtype] = {
                "fraction": leaf(fraction, "1", "assumed", START, note="no table of this GPU"),
                "bandwidth_fraction": leaf(0.7, "1", "assumed", START),
                "launch": leaf(3, "us", "assumed", START),
                "wave_weight": leaf(0.05, "1", "assumed", START),
                "fill": leaf(60, "1", "assumed", START, note="between those of Blackwell and Hopper"),
            }
        record = {
            "gpu": gpu,
            "gemm": table,
            "attention": {"bf16": assumed_attention(forward, 500, backward, 500)},
            "memory": memory_table(gpu, stream, fused),
            "host": host_table(False),
        }
        if cycles := cycles_table(gpu):
            record["sm_cycles"] = cycles
        (out / f"{gpu}.toml").write_text(header + tomli_w.dumps(record))
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "kernel-fits.md").write_text("\n".join(report) + "\n")
    print("\n".join(report))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder `hardware` of the shared data")
    main(parser.parse_args().folder)
