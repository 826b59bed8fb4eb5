"""Hardware numbers for the symbols: data sheets, fitted kernel tables and step constants.

Order of belief: what a user's own profile measured, the fitted tables of this GPU or of the sibling its
file names, and only then an assumption, which the answer then states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import hardware_db
from costmodel.binding.attention import attention_inputs, fp8_attention_gains
from costmodel.binding.links import collective_inputs
from costmodel.binding.tables import (
    NONE_KNOWN,
    bound_of,
    leaf,
    leaf_if_known,
    limited,
    memory_factor,
    of_memory,
    power_factor,
)
from costmodel.bound import Bound
from costmodel.placement import is_newer, network_reduces, switch_reduces
from costmodel.stack import INPUTS, Stack, default_stack, nearest_release
from costmodel.step_constants import (
    NOT_FITTED,
    PRIORS,
    architecture,
    fitted,
    maturity,
    parameter_keys,
    usual_key,
)
from hardware_db import Cluster, Gpu, platform_of

# GPUs of a generation are less far apart (H20's peak is 6.7 times below H100's); a slip of the unit is 8 times or more.
FAR_FROM_KIN = 7.0
# Dense 16-bit FLOPs of a Hopper SM in a cycle. Source: NVIDIA H100 whitepaper: 989 TFLOP/s of 132 SMs at 1830 MHz.
FLOPS_A_CYCLE = 4096
# Pinned copies reach this share of the host link. Source: NVIDIA bandwidthTest on PCIe 5 and NVLink-C2C.
HOST_LINK_EFFICIENCY = 0.85
# A GPU's share of the host's memory bandwidth where the cluster's file has none, assumed: eight DDR5 channels for four.
# [byte/s]
HOST_MEMORY_BANDWIDTH = 75e9
# Host time of a kernel where ranks are not bound to the cores next to their GPU, over that of bound ones. Of GB200
# guides say that binding does as much as a change of dispatcher (knobs.csv, CPU/NUMA binding: "launch latency
# multiplier"). How much is inferred from runs that no fit sees: functional checks of Megatron-Bridge on Grace ask for
# 1.8, 2.2 and 2.8 times the host time of tuned runs, nine on x86 servers for 1.0 in the median. That nobody bound their
# ranks is our reading, not printed. Five steps of DeepSeek-V3 on GB200 before its hosts were tuned, read so afterwards,
# are told at 89 to 103 % of their time with it (66 to 72 % without). [1]
UNBOUND_LAUNCH = {"grace": 2.0, "x86": 1.0}


def hardware_inputs(
    cluster: Cluster, recipe: Mapping[str, Any], precision: str, software: Stack, mla: bool = False
) -> dict[str, Bound]:
    """Inputs of the groups "hardware" and "step" for one cluster, precision and software stack.

    The GPU must have the number formats of the precision, see `has_formats`. mla: heads are MLA's, or like
    them: queries wider than values.
    """
    tables = hardware_db.load_calibration(cluster.gpu)
    gemm = str(recipe["gemm"])
    base, linear = _formats(recipe, precision)
    table_of_base = "fp32" if base == "fp32" else "bf16"
    bound = {
        "linear_peak": _quantity(cluster, f"peak_{linear}"),
        "gpu_peak": _quantity(cluster, f"peak_{base}"),
        "gpu_sms": _quantity(cluster, "sm_count"),
        "gpu_memory": _quantity(cluster, "hbm_capacity_usable"),
        "hbm_bandwidth": _quantity(cluster, "hbm_bandwidth"),
    }
    bound |= _cycles(tables, cluster, bound["gpu_peak"])
    bound |= _gemm(tables, cluster, gemm, "linear") | _gemm(tables, cluster, table_of_base, "gemm")
    bound |= attention_inputs(tables, cluster, table_of_base, software, mla)
    bound |= fp8_attention_gains(tables, cluster, precision, mla, software)
    reached = memory_factor(cluster)
    for symbol, name in (
        ("elementwise_fraction", "elementwise"),
        ("norm_fraction", "norm"),
        ("norm_backward_fraction", "norm_backward"),
        ("stream_fraction", "stream"),
    ):
        bound[symbol] = of_memory(leaf(tables, cluster, "memory", name), reached, cluster)
    # What was not measured by itself runs as other element-wise kernels.
    for name in ("contiguous", "permute"):
        known = name in tables.get("memory", {})
        found = leaf(tables, cluster, "memory", name if known else "elementwise")
        bound[f"{name}_fraction"] = of_memory(found, reached, cluster)
    bound["kernel_launch"] = leaf(tables, cluster, "host", "kernel_launch")
    bound["graph_launch"] = leaf(tables, cluster, "host", "graph_launch")
    bound["attention_launch"] = bound["gemm_launch"]
    for symbol, name in (("pass_host", "pass"), ("layer_update_host", "layer_update")):
        bound[symbol] = _exposed_host(tables, cluster, name)
    bound |= collective_inputs(tables, cluster) | _host(cluster)
    bound |= _step(tables, cluster, gemm, software)
    return bound


def has_formats(cluster: Cluster, recipe: Mapping[str, Any], precision: str) -> bool:
    """Whether the GPU has kernels, and peaks on file, of the number formats of a precision recipe."""
    gemm = recipe["gemm"]
    kernels = gemm == "bf16" or gemm in hardware_db.load_calibration(cluster.gpu).get("gemm", {})
    return kernels and has_peaks(cluster, recipe, precision)


def has_peaks(cluster: Cluster, recipe: Mapping[str, Any], precision: str) -> bool:
    """Whether peaks of the number formats of a precision recipe are on file for the GPU."""
    return all(cluster.gpu.peak(dtype) for dtype in _formats(recipe, precision))


def _formats(recipe: Mapping[str, Any], precision: str) -> tuple[str, str]:
    """Number formats of what is not quantised, and of the linear layers, as peaks are named."""
    base = "fp32" if recipe["base"] == 4 else ("fp16" if precision == "fp16" else "bf16")
    gemm = str(recipe["gemm"])
    return base, {"fp8-block": "fp8", "mxfp8": "fp8", "bf16": base}.get(gemm, gemm)


def cluster_stack(cluster: Cluster) -> str:
    """Software release assumed for a cluster when none is named."""
    return "local" if cluster.gpu.generation == "cpu" else default_stack()


def _cycles(tables: Mapping[str, Any], cluster: Cluster, peak: Bound) -> dict[str, Bound]:
    """Cycles of all SMs in a second, and those that element-wise kernels take where a table has them.

    None where no such kernel was profiled, or where the GPU's file has no clock: those kernels go by their bytes, and
    the device has as many cycles as its peak has at a Hopper SM's FLOPs in one.
    """
    timed = "boost_clock" in cluster.gpu.quantities
    clock = (
        _quantity(cluster, "boost_clock") if timed else Bound(1.0, f"{cluster.gpu.title}: no clock on file")
    )
    cycles = (
        Bound(
            cluster.gpu.get("sm_count") * clock.value, f"gpu {cluster.gpu.name}: sm_count times boost_clock"
        )
        if timed
        else Bound(
            peak.value / FLOPS_A_CYCLE, f"{cluster.gpu.title}: its peak over a Hopper SM's {FLOPS_A_CYCLE}"
        )
    )
    return {"sm_cycles": cycles} | {
        f"{name}_cycles": leaf_if_known(tables, cluster, "sm_cycles", name) if timed else NONE_KNOWN
        for name in ("swiglu_backward", "rotary_forward", "rotary_backward", "head_copy", "timed")
    }


def _quantity(cluster: Cluster, key: str) -> Bound:
    gpu = cluster.gpu
    gpu.get(key)  # one clear line when the file lacks it
    quantity = gpu.quantities[key]
    return Bound(
        quantity.si,
        f"gpu {gpu.name}, {key}: {quantity.value:g} {quantity.unit}, {quantity.kind}, {quantity.source}",
        _unlike_its_kin(cluster.gpu, key),
    )


def _unlike_its_kin(gpu: Gpu, key: str) -> str:
    """A line where a quantity is far from that of the GPU whose tables are used, as with a slip of the unit."""
    if gpu.own_calibration or gpu.calibrated_like == gpu.name:
        return ""
    own, kin = gpu.quantities[key], hardware_db.load_gpu(gpu.calibrated_like).quantities.get(key)
    if kin is None or 1 / FAR_FROM_KIN < own.si / kin.si < FAR_FROM_KIN:
        return ""
    ratio = own.si / kin.si
    times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
    return (
        f"{gpu.title}: {key} {own.value:g} {own.unit} is {times} times the {kin.value:g} {kin.unit} of "
        f"{gpu.calibrated_like}, like which it is calibrated: check value and unit"
    )


def _exposed_host(tables: Mapping[str, Any], cluster: Cluster, name: str) -> Bound:
    """Host time that computes in turn with the kernels: on a processor, whose profile measured it, else none. [s]"""
    if name in tables.get("host", {}):
        return leaf(tables, cluster, "host", name)
    return Bound(0.0, "a GPU's host runs ahead of it: costmodel.timing.host")


def _gemm(tables: Mapping[str, Any], cluster: Cluster, dtype: str, prefix: str) -> dict[str, Bound]:
    names = {"fraction": "fraction", "wave": "wave_weight", "launch": "launch"}
    bound = {f"{prefix}_{short}": leaf(tables, cluster, "gemm", dtype, name) for short, name in names.items()}
    # Profiles measured on a user's machine take it into their fraction.
    bound[f"{prefix}_fill"] = leaf_if_known(tables, cluster, "gemm", dtype, "fill")
    bound[f"{prefix}_fraction"] = limited(bound[f"{prefix}_fraction"], power_factor(cluster), cluster)
    if prefix == "gemm":
        bound["gemm_bandwidth_fraction"] = leaf(tables, cluster, "gemm", dtype, "bandwidth_fraction")
    return bound


def _host(cluster: Cluster) -> dict[str, Bound]:
    """Links to the host, its memory, and what a GPU's generation decides about queues, switches and clocks."""
    generation, link = cluster.gpu.generation, cluster.host_link
    quantity = cluster.quantities.get("host_memory_bandwidth")
    share = quantity.si / cluster.gpus_per_node if quantity else HOST_MEMORY_BANDWIDTH
    queued = generation in ("ampere", "hopper", "ada")
    processor = "grace" if cluster.has_c2c else "x86"
    return {
        "host_link": Bound(
            link.bandwidth * HOST_LINK_EFFICIENCY, f"link {link.name}, {HOST_LINK_EFFICIENCY} of it"
        ),
        "host_memory": Bound(share, "host memory bandwidth, a GPU's share"),
        "unbound_launch": Bound(
            UNBOUND_LAUNCH[processor], f"{processor}: inferred from checks that nobody tuned, not published"
        ),
        "queued": Bound(float(queued), f"{generation}: one hardware queue orders kernels before Blackwell"),
        "switch_reduces": Bound(
            float(switch_reduces(generation, cluster.has_nvlink_switch)),
            f"{generation}, {cluster.intra.name}: NVLS from Hopper's NVSwitch on",
        ),
        "network_reduces": Bound(
            float(network_reduces(cluster.inter.name)), f"{cluster.inter.name}: SHARP is InfiniBand's"
        ),
        "boost_slider": Bound(
            float(is_newer(generation)), f"{generation}: nvidia-smi boost-slider from Hopper on"
        ),
    }


def _release_rate(stack: Stack, generation: str) -> Bound:
    """Rate of a release's kernels: fitted, of the nearest release in time that was, or its prior."""
    prefix, suffix = f"{stack.family}-", f"-{generation}"
    known = {
        key.removeprefix(prefix).removesuffix(suffix): record
        for key, record in fitted().get("release_rate", {}).items()
        if key.startswith(prefix) and key.endswith(suffix) and key.count("-") == (prefix + suffix).count("-")
    }
    release = nearest_release(stack.release, known)
    if release is None:
        expected = maturity(stack.release, generation)
        return Bound(
            expected, f"no published run of {stack.family} on {generation}: the prior of release_rate"
        )
    record = known[release]
    if record["kind"] == "derived":
        note = f"stack {stack.name}: no published run of {stack.family} on {generation}; what other frameworks show"
    elif release != stack.release:
        nearest = f"{stack.family}-{release}"
        note = (
            f"stack {stack.name}: no published run on {generation}; rates of {nearest}, the nearest release"
        )
    else:
        note = ""
    return Bound(
        record["value"],
        f"hardware_db/calibrated/step.toml, release_rate.{stack.family}-{release}{suffix}: {record['source']}",
        note,
    )


def _step(tables: Mapping[str, Any], cluster: Cluster, gemm: str, stack: Stack) -> dict[str, Bound]:
    """Inputs of the group "step": what the stack's file says, and step constants; the first guessed notes them all."""
    bound = {
        name: Bound(float(getattr(stack, name)), f"costmodel/stacks.toml: {stack.name}") for name in INPUTS
    }
    bound["library_scale"] = Bound(1.0, f"costmodel/stacks.toml: {stack.name}, matrix kernels of a container")
    guessed: dict[str, str] = {}
    for symbol, key in parameter_keys(cluster, gemm, stack).items():
        bound[symbol], known = _step_constant(tables.get("step", {}), cluster, stack, key)
        if not known:
            name, _, where = key.partition("/")
            # Keys name the attention of CUDA's containers, which the constants are learned from.
            where = where.replace("cudnn", platform_of(cluster.gpu.vendor).attention)
            guessed[symbol] = f"{name} ({where})"
    if guessed:
        first, listed = next(iter(guessed)), ", ".join(dict.fromkeys(guessed.values()))
        note = f"no published step determines {listed}: what others of their kind show"
        bound[first] = replace(bound[first], note=note)
    return bound


def _step_constant(own: Mapping[str, Any], cluster: Cluster, stack: Stack, key: str) -> tuple[Bound, bool]:
    """The constant `name/where` of a step; False beside it where runs could tell it, and none did.

    In the order of belief: own, the user's profile; the fit; what others of its kind are fitted to; the prior.
    """
    name, _, where = key.partition("/")
    if name == "release_rate":
        return _release_rate(stack, architecture(cluster.gpu.generation)), True
    # Profiles written before 2026-11-29 have one rate of all that is element-wise, and one of networks.
    older = {"tuned_stream_rate": "elementwise_rate", "one_card_rate": "inter_rate"}.get(name, name)
    for each in (name, older):
        if each in own:
            return bound_of(own[each], f"{cluster.gpu.name}, step.{each}"), True
    if name == "step_overhead" and stack.loop:
        return Bound(stack.loop, f"costmodel/stacks.toml, {stack.family}.loop: {stack.title}"), True
    fits = fitted().get(name, {})
    for each in (where, usual_key(where)):
        if each in fits:
            source = f"hardware_db/calibrated/step.toml, {name}.{each}: {fits[each]['source']}"
            return Bound(fits[each]["value"], source), each == where
    prior = PRIORS[name]
    source = f"costmodel/step_constants.py, prior of {name}: {prior.meaning}"
    return Bound(prior.value, source), name in NOT_FITTED
