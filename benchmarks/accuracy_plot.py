"""The plot of docs/accuracy.md: predicted against measured step time, and the histogram of errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Colours of families: blue for dense, the rest by what the layers hold. Okabe and Ito's palette, which colour-blind
# readers tell apart.
COLOURS = {
    "dense": "#0072B2",
    "moe": "#D55E00",
    "mla-moe": "#009E73",
    "hybrid": "#CC79A7",
    "hybrid-moe": "#E69F00",
    "gated-delta-moe": "#56B4E9",
}
OTHER = "#555555"
BAND = 0.10
# Errors beyond are counted in the last bar.
LARGEST = 0.6
BARS = 48


def write_plot(report: Mapping[str, Any], path: Path) -> None:
    """Write the SVG, the same bytes for the same report."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "accuracy", "font.size": 10, "svg.fonttype": "path"})
    figure, (scatter, bars) = plt.subplots(1, 2, figsize=(12, 6), width_ratios=(3, 2))
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in report["rows"]:
        groups[row["family"]].append(row)
    order = sorted(groups, key=lambda name: -len(groups[name]))
    times = [row[name] for row in report["rows"] for name in ("measured", "predicted")]
    ends = (min(times) / 1.5, max(times) * 1.5)
    scatter.fill_between(
        ends,
        [end * (1 - BAND) for end in ends],
        [end * (1 + BAND) for end in ends],
        color="#bbbbbb",
        alpha=0.5,
        lw=0,
        label="within 10 %",
    )
    scatter.plot(ends, ends, color="black", lw=0.8, label="predicted = measured")
    for name in order:
        scatter.scatter(
            [row["measured"] for row in groups[name]],
            [row["predicted"] for row in groups[name]],
            s=14,
            alpha=0.7,
            linewidths=0,
            color=COLOURS.get(name, OTHER),
            label=f"{name} ({len(groups[name])})",
        )
    scatter.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    scatter.set(xlabel="measured step time [s]", ylabel="predicted step time [s]")
    scatter.set_title(f"{len(report['rows'])} published runs")
    scatter.grid(True, which="major", lw=0.4, alpha=0.5)
    scatter.legend(loc="upper left", frameon=True, fontsize=9)
    edges = [LARGEST * (2 * index / BARS - 1) for index in range(BARS + 1)]
    clipped = [
        [max(-LARGEST, min(LARGEST, row["rel_error"])) * 100 for row in groups[name]] for name in order
    ]
    bars.hist(
        clipped,
        bins=[100 * edge for edge in edges],
        stacked=True,
        color=[COLOURS.get(name, OTHER) for name in order],
    )
    bars.axvspan(-100 * BAND, 100 * BAND, color="#bbbbbb", alpha=0.4, lw=0, zorder=0)
    bars.axvline(0, color="black", lw=0.8)
    bars.set(xlabel="predicted / measured − 1 [%], ends hold what lies beyond", ylabel="runs")
    bars.set_title("errors")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
