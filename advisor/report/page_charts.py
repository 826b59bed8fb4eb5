"""The step in time, all plans, the roofline and scaling: a chart each, and beside it the numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.render import count, gib, percent, seconds
from advisor.report.markup import Markup, chart, folded, section, table, tag
from hardware_db.units import flop_rate, three_figures

# Rows of the Pareto front that its table lists.
FRONT_ROWS = 40


def timeline(data: dict[str, Any]) -> Markup:
    """Every stage over the step, and the memory of the worst rank."""
    line = data["schedule"]
    rows = [
        (
            row["stage"],
            seconds(row["compute_s"]),
            seconds(row["exposed_s"]),
            seconds(row["idle_s"]),
            seconds(row["warm_up_s"]),
            seconds(row["steady_s"]),
            seconds(row["flush_s"]),
            gib(row["peak_bytes"]),
        )
        for row in line["rows"]
    ]
    headers = [
        "stage",
        "computes",
        "waits, exposed",
        "idle",
        "warm-up ends",
        "steady ends",
        "flush ends",
        "peak",
    ]
    together = "" if line["whole"] else " Neighbouring passes of a stage are drawn as one."
    worst = line["stage_names"][line["worst"]]
    rest = (
        f" Of the waiting at its end the formulas count {seconds(line['residual_s'])} that no simulated event explains."
        if line["residual_s"]
        else ""
    )
    return section(
        "timeline",
        "The step in time",
        chart(
            "timeline-chart",
            f"Timeline of {line['stages']} pipeline stages over {seconds(line['step_time_s'])}: forward and backward "
            "passes, exposed communication, warm-up, steady state and flush. The table below has the numbers.",
            "The step as it is simulated, event by event. Each row is a pipeline stage: the strip on top shows its "
            "phases, the bar what it does, the strip below what travels meanwhile."
            f"{together}{rest} To zoom, drag the ends of the slider, or hold Ctrl and scroll.",
            "tall" if line["stages"] > 8 else "",
        ),
        tag("h3", f"Memory over the step, {worst}"),
        chart(
            "memory-line-chart",
            f"Memory of the worst rank over the step, peak {gib(line['rows'][line['worst']]['peak_bytes'])}.",
            "Weights, gradients and optimizer state stay; activations come with each forward pass and go with its "
            "backward pass.",
            "low",
        ),
        folded("Stages as a table", table(headers, rows, "What each stage does with the step", "lrrrrrrr")),
    )


def plans(data: dict[str, Any]) -> Markup:
    """Throughput against memory of everything that fits."""
    cloud, points, front = data["cloud"], data["cloud"]["points"], data["cloud"]["front"]
    if not front:
        return section(
            "plans", "All plans that fit", tag("p", "No plan that a search tries fits in this setting.")
        )
    columns = [points[name][:front] for name in ("plan", "step_time_s", "gpus", "memory_bytes")]
    rows = [
        (plan, seconds(step), f"{cloud['tokens_per_step'] / step / gpus:,.0f}", gib(size))
        for plan, step, gpus, size in list(zip(*columns, strict=True))[:FRONT_ROWS]
    ]
    drawn = f"{len(points['plan']):,} of {cloud['feasible']:,}"
    return section(
        "plans",
        "Throughput against memory, all plans that fit",
        chart(
            "plans-chart",
            f"Scatter of {drawn} feasible plans, throughput against memory of the worst rank, with the Pareto front "
            "and the chosen plan. The table below lists the front.",
            f"{drawn} plans that fit are drawn: all {front:,} of the Pareto front, and a random sample of the "
            "others. Their times come from the closed formulas; those of the chosen plan and of the best of each "
            "layout from the simulated pipeline.",
        ),
        folded(
            f"The Pareto front as a table ({len(rows)} of {front} plans)",
            table(
                ["plan", "step", "tokens/s/GPU", "memory"], rows, "No plan is both faster and leaner", "lrrr"
            ),
        ),
    )


def roofline(data: dict[str, Any]) -> Markup:
    """The layer's matrix products under the roof of the GPU."""
    roof = data["roofline"]
    rows = [
        (
            f"{gemm['layer']}, {gemm['pass']}",
            " x ".join(f"{size:,.0f}" for size in gemm["shape"])
            + (f", {gemm['groups']:g} groups" if gemm["groups"] > 1 else ""),
            f"{gemm['intensity']:,.0f}",
            three_figures(gemm["rate"] / 1e12),
            percent(gemm["share_of_roof"]),
            gemm["bound"],
            seconds(gemm["seconds"]),
        )
        for gemm in roof["gemms"]
    ]
    roofs = ", ".join(f"{each['title']} {flop_rate(each['rate'])}" for each in roof["roofs"])
    return section(
        "roofline",
        "Roofline of the layer's matrix products",
        chart(
            "roofline-chart",
            f"Roofline: arithmetic intensity against achieved rate of {len(rows)} matrix products; {roofs}; "
            f"{roof['bandwidth'] / 1e12:.2f} TB/s. The table below has the numbers.",
            f"{roofs}; memory {roof['bandwidth'] / 1e12:.2f} TB/s. Rates are those inside a training step.",
        ),
        folded(
            "Matrix products as a table",
            table(
                [
                    "layer, pass",
                    "M x N x K",
                    "FLOP/byte",
                    "TFLOP/s",
                    "of the roof",
                    "bound by",
                    "one micro-batch",
                ],
                rows,
                "Matrix products of one layer of each kind, one micro-batch on one rank",
                "llrrrlr",
            ),
        ),
    )


def scaling(data: dict[str, Any]) -> Markup | str:
    """The same work on fewer and more GPUs, and what it costs."""
    curve = data["scaling"]
    if not curve:
        return ""
    held = [row for row in curve["rows"] if "plan" in row]
    tokens = f"{count(curve['tokens'])} tokens"
    prices = sorted({row["cost"]["usd_per_gpu_hour"] for row in held if "usd_per_gpu_hour" in row["cost"]})
    powers = sorted({row["cost"]["watt_per_gpu"] for row in held if "watt_per_gpu" in row["cost"]})
    notes = [f"${price:.2f} a GPU-hour" for price in prices] or ["no price on file"]
    notes += [f"{power:,.0f} W a GPU, host included" for power in powers] or ["no power on file"]
    return section(
        "scaling",
        "Scaling over the number of GPUs",
        chart(
            "scaling-chart",
            f"Throughput and cost of {tokens} on {', '.join(str(row['gpus']) for row in held)} GPUs. "
            "The table below has the numbers.",
            "The best plan of each count by the same search, number format and global batch unchanged. "
            f"Cost of {tokens}: {', '.join(notes)}.",
            "low pair",
        ),
        table(
            ["GPUs", "plan", "step", "tokens/s/GPU", "efficiency", "MFU", "days", "GPU-hours", "USD", "MWh"],
            list(_scaling_rows(curve["rows"])),
            f"Scaling, and what {tokens} take",
            "rlrrrrrrrr",
        ),
    )


def _scaling_rows(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for row in rows:
        if "plan" not in row:
            yield [f"{row['gpus']:,}", row["why_not"], *[""] * 8]
            continue
        cost = row["cost"]
        yield [
            f"{row['gpus']:,}",
            row["plan"],
            seconds(row["step_time_s"]),
            f"{row['tokens_per_second_per_gpu']:,.0f}",
            percent(row["efficiency"], 0) if "efficiency" in row else "",
            percent(row["mfu"]),
            f"{cost['hours'] / 24:,.1f}",
            f"{cost['gpu_hours']:,.0f}",
            f"{cost['usd']:,.0f}" if "usd" in cost else "",
            f"{cost['kwh'] / 1000:,.0f}" if "kwh" in cost else "",
        ]
