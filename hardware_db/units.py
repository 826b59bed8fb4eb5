"""Units of the data files: what each measures, and its size in base units (byte, FLOP, second, watt, hertz)."""

from __future__ import annotations

# Base unit -> its units. GB = 1e9 bytes, GiB = 2**30 bytes, Gbit/s = 1e9 bits a second; TOP/s counts integer
# operations as FLOP/s counts floating-point ones. Money is not converted.
UNITS_OF: dict[str, dict[str, float]] = {
    "1": {"1": 1.0},
    "byte": {"byte": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "GB": 1e9, "TB": 1e12},
    "byte/s": {"byte/s": 1.0, "GB/s": 1e9, "GiB/s": 2.0**30, "TB/s": 1e12, "Gbit/s": 1e9 / 8},
    "FLOP/s": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "TOP/s": 1e12},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "W": {"W": 1.0, "kW": 1e3},
    "Hz": {"Hz": 1.0, "MHz": 1e6, "GHz": 1e9},
    "USD/h": {"USD/h": 1.0},
}
UNITS: dict[str, float] = {unit: size for units in UNITS_OF.values() for unit, size in units.items()}
BASE: dict[str, str] = {unit: base for base, units in UNITS_OF.items() for unit in units}
# More than any machine has: what lies above is a slip of the unit, and would overflow later. [base units]
LARGEST: dict[str, float] = {
    "1": 1e9,
    "byte": 1e17,
    "byte/s": 1e17,
    "FLOP/s": 1e20,
    "s": 3600.0,
    "W": 1e7,
    "Hz": 1e12,
    "USD/h": 1e6,
}


def to_base(value: float, unit: str) -> float:
    """`value` in base units. ValueError for a unit that is not in the table."""
    if unit not in UNITS:
        raise ValueError(f"unit {unit!r} is unknown. Units: {', '.join(UNITS)}.")
    return value * UNITS[unit]


def three_figures(value: float, comma: str = ",") -> str:
    """A number of at least three figures: 1,979, 12, 4.21, 0.0132. comma: between thousands."""
    return f"{value:{comma}.0f}" if not value or abs(value) >= 9.995 else f"{value:#.3g}"


def flop_rate(rate: float, kind: str = "", comma: str = ",") -> str:
    """A rate [FLOP/s] for people: 989 TFLOP/s, and below one 132 GFLOP/s, as processors have them.

    kind: a word before the unit, as "model ". comma: between thousands.
    """
    unit = "TFLOP/s" if not rate or rate >= 0.9995e12 else "GFLOP/s"
    return f"{three_figures(rate / UNITS[unit], comma)} {kind}{unit}"
