"""Units of the data files and their size in base units: byte, byte/s, FLOP/s, second, watt, hertz."""

from __future__ import annotations

# GB = 1e9 bytes, GiB = 2**30 bytes, Gbit/s = 1e9 bits a second.
UNITS: dict[str, float] = {
    "1": 1.0,
    "byte": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "GB": 1e9,
    "TB": 1e12,
    "byte/s": 1.0,
    "GB/s": 1e9,
    "GiB/s": 2.0**30,
    "TB/s": 1e12,
    "Gbit/s": 1e9 / 8,
    "FLOP/s": 1.0,
    "GFLOP/s": 1e9,
    "TFLOP/s": 1e12,
    "TOP/s": 1e12,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "W": 1.0,
    "kW": 1e3,
    "Hz": 1.0,
    "MHz": 1e6,
    "GHz": 1e9,
    "USD/h": 1.0,
}


def to_base(value: float, unit: str) -> float:
    """`value` in base units. ValueError for a unit that is not in the table."""
    if unit not in UNITS:
        raise ValueError(f"unit {unit!r} is unknown. Units: {', '.join(UNITS)}.")
    return value * UNITS[unit]
