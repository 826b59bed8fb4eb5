"""The step constants: physical factors of a training step over the kernel tables, and what keys them.

A kernel table says what a kernel reaches alone. Inside a step it shares power, memory and links with
others and is fed by a framework. Each constant is keyed by GPU generation, number format, attention kernel,
software release or the host's processor, never by model or row. Values come from
`hardware_db/calibrated/step.toml` (fitted by `tools/fit_step.py`); where no row determined one, the prior below holds
and the answer says so.
"""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import hardware_db
from costmodel.stack import Stack, months

STEP_FILE = Path(hardware_db.__file__).with_name("calibrated") / "step.toml"
GIB = 2**30


@dataclass(frozen=True)
class Prior:
    """What physics says before any step is measured: value, relative width, bounds, unit, meaning."""

    value: float
    width: float
    low: float
    high: float
    unit: str
    meaning: str


# Widths are held to runs left out of the fit (`tools/weigh_priors.py`): how sure physics may be of each.
PRIORS: dict[str, Prior] = {
    "gemm_rate": Prior(
        0.95, 0.10, 0.6, 2.4, "1", "GEMM rate in a step over the kernel table: power, clocks, cache"
    ),
    "library_rate": Prior(
        1.0, 0.12, 0.6, 1.15, "1", "GEMM rate of PyTorch's wheels over that of NVIDIA's containers"
    ),
    "wgrad_rate": Prior(
        0.95,
        0.25,
        0.5,
        1.2,
        "1",
        "GEMM rate of weight gradients over other passes: both operands transposed, result added to a buffer",
    ),
    "release_rate": Prior(
        1.0,
        0.035,  # a configuration measured again on the next release moves by about 3 %
        0.7,
        1.3,
        "1",
        "rate of all kernels of one software release over the tables'",
    ),
    "dispatch_network": Prior(
        0.88,
        0.05,
        0.2,
        1.2,
        "1",
        "bandwidth of expert dispatch between domains over one card's: 0.84 to 0.92 in DeepEP's own test on B200",
    ),
    "attention_rate": Prior(0.95, 0.3, 0.25, 1.4, "1", "attention rate in a step over the kernel table"),
    "elementwise_rate": Prior(
        0.9, 0.3, 0.4, 1.2, "1", "other element-wise bandwidth in a step over the table"
    ),
    "tuned_stream_rate": Prior(
        0.9,
        0.3,
        0.4,
        1.6,
        "1",
        "bandwidth of kernels written for it in a step over the table: norms, casts to 8 and 4 bits, passes over "
        "gradients and optimizer states",
    ),
    # Tables of collectives inside a domain were measured on the very links; networks between domains differ, and ranks
    # with one card each are a case of their own.
    "intra_rate": Prior(0.9, 0.06, 0.5, 1.1, "1", "collectives inside a domain, in a step over the table"),
    "inter_rate": Prior(0.8, 0.6, 0.2, 1.1, "1", "collectives between domains, in a step over the table"),
    "one_card_rate": Prior(
        0.8,
        0.6,
        0.2,
        1.0,
        "1",
        "collectives and sends of ranks with one network card each, in a step over the table",
    ),
    "ring_hop": Prior(
        14e-6,
        1.2,
        1.4e-6,
        140e-6,
        "s",
        "hop between domains of an all-gather's or reduce-scatter's ring, in a step: 14 us in NCCL's simple protocol, "
        "4 us in its LL128",
    ),
    "overlap_slowdown": Prior(
        0.15, 0.5, 0.02, 0.5, "1", "compute lost for each second of communication under it"
    ),
    "unfused_gemm_fraction": Prior(
        0.6, 0.3, 0.2, 1.0, "1", "batched GEMMs of unfused attention over plain GEMMs"
    ),
    "straggler": Prior(0.004, 0.5, 0.0002, 0.02, "1", "step time lost for each doubling of the GPUs"),
    "step_overhead": Prior(10e-3, 0.7, 0.5e-3, 0.2, "s", "data loading, logging, gradient norm"),
    "host_kernel": Prior(25e-6, 0.5, 1e-6, 100e-6, "s", "host time to issue one kernel"),
    "grouped_rate": Prior(0.85, 0.15, 0.3, 1.1, "1", "grouped GEMMs over one plain GEMM of as many tiles"),
    "scan_rate": Prior(125.0, 0.4, 20.0, 2500.0, "FLOP", "what Mamba and delta scans do in a cycle of an SM"),
    "dispatch_rate": Prior(
        1.1,
        0.15,
        0.6,
        1.6,
        "1",
        "bandwidth of DeepEP's and HybridEP's dispatch over that of an all-to-all: 0.95 to 1.3 in published times of "
        "a DeepSeek-V3 layer on GB200 and H100, rows counted with dispatch_row",
    ),
    "dispatch_row": Prior(
        4096.0, 0.5, 256.0, 32768.0, "byte", "bytes in whose time HybridEP sends a row beside the row's own"
    ),
    "expert_kernels": Prior(
        60.0, 0.8, 20.0, 160.0, "1", "kernels of router, permutation and dispatch of an expert block"
    ),
    "expert_host": Prior(
        30.0,
        0.8,
        2.0,
        300.0,
        "1",
        "host work of one pass of an expert block beside its kernels, in kernels' worth",
    ),
    "loop_launch": Prior(
        0.3,
        0.7,
        0.03,
        2.0,
        "1",
        "host time of one launch in the loop over a rank's experts over that of a kernel",
    ),
    "expert_wait": Prior(
        60e-6, 0.7, 5e-6, 1e-3, "s", "round trip in which the host learns how many tokens came"
    ),
    "pass_start": Prior(
        0.1e-3,
        1.0,
        1e-6,
        2e-3,
        "s",
        "time in which a pipeline stage begins a pass: exchange, change of chunk",
    ),
    "fragmentation": Prior(0.05, 0.5, 0.0, 0.3, "1", "activation memory lost to the allocator"),
    "graph_pool": Prior(
        0.4, 0.5, 0.0, 1.0, "1", "CUDA graph pools over activations: 85.9 -> 119.8 GiB published"
    ),
    "context_bytes": Prior(
        3.5 * GIB, 0.3, 0.5 * GIB, 10 * GIB, "byte", "CUDA context, libraries, NCCL buffers"
    ),
}


# Widths of formats whose kernel tables are of inference libraries' kernels, which training does not run.
FORMAT_WIDTH = {"nvfp4": 0.3}


# First software of a GPU generation, and what its kernels lack then: libraries are tuned for it over its first years.
# Chosen by the errors of left-out systems: 9.5 % without the term, 9.0 % with it; 0.20 for 0.15 changed
# them by 0.02 points.
LAUNCHED = {"ampere": "20.05", "hopper": "22.10", "blackwell": "25.01"}
UNTUNED, TUNING_MONTHS = 0.15, 15.0


def maturity(release: str, generation: str) -> float:
    """Rate of all kernels expected of a release, over that of a generation long known. [1]"""
    launched = LAUNCHED.get(generation)
    if not release or launched is None:
        return 1.0
    age = max(months(release) - months(launched), 0)
    return math.exp(-UNTUNED * math.exp(-age / TUNING_MONTHS))


def release_key(key: str) -> tuple[str, str, str]:
    """Family, release and generation of a key family-yy.mm-generation; no release: family-generation."""
    family, _, rest = key.partition("-")
    release, _, generation = rest.partition("-")
    return (family, release, generation) if "." in release else (family, "", rest)


def prior_of(parameter: str) -> Prior:
    """The prior of a constant `name/key`, wider for a format whose tables say less."""
    name, _, key = parameter.partition("/")
    if name == "release_rate":
        _, release, generation = release_key(key)
        return replace(PRIORS[name], value=maturity(release, generation))
    width = FORMAT_WIDTH.get(key.rpartition("-")[2])
    return replace(PRIORS[name], width=width) if width else PRIORS[name]


def architecture(generation: str) -> str:
    """The generation whose kernels a GPU runs: Blackwell Ultra, with tables of its own, runs Blackwell's.

    Products, whose units differ, keep constants of their own.
    """
    return generation.removesuffix("-ultra")


# Keys of constants that every GPU and stack shares, but for the origin of the matrix kernels: none is left to be
# expected.
SHARED_KEYS = ("all", "wheel")


# Formats of whose products steps reach as much as of BF16's: the tables are of the products alone.
PRODUCTS_AS = {"fp8": "bf16", "fp8-block": "bf16"}
# Attention kernels that steps are taken to reach as much of as of another.
RATED_AS = {"flex": "flash2"}
# Generations whose nodes have the network cards of another: 400 Gbit/s a GPU, or as much reached of newer ones.
CARDS_AS = {"blackwell": "hopper"}


def parameter_keys(cluster: hardware_db.Cluster, gemm: str, stack: Stack) -> dict[str, str]:
    """Input symbol -> the constant that gives it a number, as `name/key`.

    The key is the GPU's generation (ampere, hopper, ...), the recipe's kernel table (bf16, fp8, ...) where formats
    differ, or the software release where kernels change with it. What runs left out did not miss is one
    constant for all. library_rate is 1 by definition but for wheels.
    """
    family, generation = stack.family, cluster.gpu.generation
    kernels = architecture(generation)
    # Steps reach as much of the tables on all three; of Blackwell Ultra's, in each format, a tenth more.
    products = "all" if generation in LAUNCHED else generation
    wheels = {"library_scale": "library_rate/wheel"} if stack.wheels else {}
    return wheels | {
        "linear_scale": f"gemm_rate/{products}-{PRODUCTS_AS.get(gemm, gemm)}",
        "gemm_scale": f"gemm_rate/{products}-{'fp32' if gemm == 'fp32' else 'bf16'}",
        "release_scale": f"release_rate/{stack.name}-{kernels}",
        "attention_scale": f"attention_rate/{kernels}-{RATED_AS.get(stack.attention, stack.attention)}",
        "elementwise_scale": f"elementwise_rate/{kernels}",
        "tuned_stream_scale": "tuned_stream_rate/all",
        "grouped_scale": "grouped_rate/all",
        "wgrad_scale": f"wgrad_rate/{kernels}",
        "scan_rate": "scan_rate/all",
        "dispatch_scale": "dispatch_rate/all",
        "dispatch_network": "dispatch_network/all",
        "dispatch_row": "dispatch_row/all",
        "expert_kernels": "expert_kernels/all",
        "expert_host": "expert_host/all",
        "loop_launch": "loop_launch/all",
        "expert_wait": "expert_wait/all",
        "intra_scale": "intra_rate/all",
        "inter_scale": "inter_rate/all",
        "one_card_scale": f"one_card_rate/{CARDS_AS.get(kernels, kernels)}",
        "ring_hop": "ring_hop/all",
        "overlap_slowdown": f"overlap_slowdown/{kernels}",
        "unfused_gemm_fraction": "unfused_gemm_fraction/all",
        "straggler": "straggler/all",
        "step_overhead": "step_overhead/all",
        "host_kernel": "host_kernel/all",
        "pass_start": "pass_start/all",
        "fragmentation": f"fragmentation/{family}",
        "graph_pool": f"graph_pool/{family}",
        "context_bytes": f"context_bytes/{generation}",
    }


def key_parts(key: str) -> tuple[str, str]:
    """Of a constant's key: generation or framework, and what follows it (format, attention kernel, processor)."""
    found = re.match(r"([a-z0-9_]+(?:-(?:ultra|consumer))?)(?:-(.+))?$", key)
    assert found, key
    return found[1], found[2] or ""


def usual_key(key: str) -> str:
    """The key of what a generation or framework without runs is expected to have, given what others have."""
    second = key_parts(key)[1]
    return f"other-{second}" if second else "other"


# Constants that time measurements cannot determine; they keep their priors in the fit.
NOT_FITTED = ("fragmentation", "graph_pool", "context_bytes")


@lru_cache(maxsize=1)
def fitted() -> dict[str, Any]:
    """The fitted constants by name and key; empty before the first fit."""
    try:
        with STEP_FILE.open("rb") as file:
            record: dict[str, Any] = tomllib.load(file)
            return record
    except FileNotFoundError:
        return {}
