"""The matrix products of a layer on the roofline: how much they compute for a byte, and the rate they are given."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from costmodel.layer import block_work
from costmodel.prediction import Prediction
from costmodel.rates import accumulated_bytes, gemm_memory, padded_rows
from costmodel.symbols import BLOCKS
from costmodel.work.linear import Linear, gemm_flops

PASSES = {"forward": "forward", "dgrad": "data gradient", "wgrad": "weight gradient"}


def roofline(prediction: Prediction) -> dict[str, Any]:
    """Roofs of the GPU and the GEMMs of one layer of each kind, one micro-batch on one rank.

    roofs: title, peak [FLOP/s]; bandwidth [byte/s]. gemms: layer, pass, shape (M, N, K) and groups, FLOPs, bytes,
    intensity [FLOP/byte], seconds and rate [FLOP/s], which of the two limits binds, share of the roof [1].
    """
    values = prediction.values
    roofs = [{"title": f"dense {prediction.mfu_peak.rpartition(' ')[2]} peak", "rate": values["linear_peak"]}]
    if values["gpu_peak"] != values["linear_peak"]:
        roofs.append({"title": "dense 16-bit peak", "rate": values["gpu_peak"]})
    return {"roofs": roofs, "bandwidth": values["hbm_bandwidth"], "gemms": list(_gemms(prediction))}


def _gemms(prediction: Prediction) -> Iterator[dict[str, Any]]:
    x = SimpleNamespace(**prediction.values)
    for name in BLOCKS:
        if name not in prediction.features or not prediction.values.get(f"{name}_total"):
            continue
        for layer in block_work(x, name, prediction.features).linears:
            for kind in PASSES:
                seconds = prediction.values[f"{name}_{layer.name}_{kind}"]
                if seconds:
                    yield _gemm(x, name, layer, kind, seconds)


def _gemm(x: SimpleNamespace, block: str, layer: Linear, kind: str, seconds: float) -> dict[str, Any]:
    """One pass of one linear layer; shapes as `costmodel.rates.linear_gemm` gives them to the kernel."""
    tokens = padded_rows(x, layer) if layer.grouped else layer.rows
    m, n, k = {
        "forward": (tokens, layer.columns, layer.inner),
        "dgrad": (tokens, layer.inner, layer.columns),
        "wgrad": (layer.columns, layer.inner, tokens),
    }[kind]
    operand = x.operand_bytes if layer.quantised else x.activation_bytes
    moved = gemm_memory(x, m, n, k, operand, layer.groups)["num_bytes"]
    if kind == "wgrad":
        moved += layer.groups * accumulated_bytes(x, m, n)
    flops = layer.groups * gemm_flops(m, n, k)
    peak = x.linear_peak if layer.quantised else x.gpu_peak
    intensity = flops / moved
    roof = min(peak, intensity * x.hbm_bandwidth)
    return {
        "layer": f"{block} {layer.name}",
        "term": f"{block}_{layer.name}_{kind}",
        "pass": PASSES[kind],
        "shape": [float(m), float(n), float(k)],
        "groups": float(layer.groups),
        "flops": float(flops),
        "bytes": float(moved),
        "intensity": float(intensity),
        "seconds": seconds,
        "rate": float(flops / seconds),
        "bound": "compute" if roof == peak else "memory",
        "share_of_roof": float(flops / seconds / roof),
    }
