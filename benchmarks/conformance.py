"""Amounts against real Megatron-Core: `python benchmarks/conformance.py [--plans N]` writes docs/conformance.md.

Draws random legal plans for models of every family of the registry, cut to a few layers, traces a rank of a random
pipeline stage of each with Megatron-Core (`executor.dryrun`), and compares every amount. About five seconds a plan.
With --release 0.19 its wheel traces instead of the Megatron-Core installed, and docs/conformance-0.19.md is written.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]

from legal_plans import KNOB_CHANGES, draw, small  # noqa: E402
from megatron_lm_parser import WHEELS, wheel_folder  # noqa: E402

from costmodel.model_registry import list_models, load_model  # noqa: E402
from costmodel.model_spec import ModelSpec  # noqa: E402
from costmodel.plan import Plan  # noqa: E402
from executor.core_here import Core, core_here, core_in  # noqa: E402
from executor.dryrun import DryRun, dry_run  # noqa: E402
from executor.dryrun_tracer import DryRunFailed  # noqa: E402
from executor.megatron_here import why_not_traced  # noqa: E402

# What 0.16.1 refuses and later releases take: the rules follow the later ones.
LATER = {
    "Gated delta net does not support context parallel": "0.19 takes it",
    "does not currently support virtual": "0.19's hybrid model takes it",
    "is invalid for input of size": "output gates with more tensor-parallel ranks than key-value heads; 0.19 takes it",
}
# A peak further off than this is listed.
LARGE = 0.1
DOCS = HERE.parent / "docs"
LAYERS = 8


@dataclass
class Family:
    """What the plans of one family came to. gaps: reason -> terms; refused, differing: plan -> what was said.

    peaks: plan -> predicted over counted peak of its activations, less one.
    """

    models: set[str] = field(default_factory=set)
    plans: int = 0
    exact: int = 0
    equal: int = 0
    worst: float = 0.0
    gaps: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    differing: dict[str, list[str]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)

    def add(self, case: str, plan: Plan, result: DryRun) -> None:
        """Count one traced plan, its peak but for dropout, whose masks a CPU keeps in another format."""
        for stage in result.stages:
            if stage.predicted.peak and not plan.dropout:
                self.peaks[case] = stage.predicted.peak / stage.counted.peak - 1
        self.plans += 1
        self.exact += len(result.exact)
        self.equal += result.num_equal
        self.worst = max(self.worst, result.worst_saved)
        self.gaps.update(term.reason for term in result.documented)
        if result.differing:
            self.differing[case] = [
                f"{term.section} {term.name}: {term.predicted:.17g} predicted, {term.counted:.17g} counted"
                for term in result.differing
            ]


# Knobs that a plan's own description has.
SAID = {"cp", "cp_comm_type", "precision", "recompute", "recompute_modules"}


def traceable() -> dict[str, list[ModelSpec]]:
    """Models of the registry by family, without those that Megatron-Core 0.16 cannot express."""
    found: dict[str, list[ModelSpec]] = {}
    for name in list_models():
        model = load_model(name)
        if model.parameters_known and why_not_traced(Plan(), model) is None:
            found.setdefault(model.family, []).append(model)
    return found


def describe(model: ModelSpec, plan: Plan, seq_len: int, stage: int) -> str:
    """Enough to repeat it."""
    flags = ["sequence parallel"] if plan.sequence_parallel else []
    flags += [plan.cp_comm_type] if plan.cp > 1 else []
    drawn = {name for change in KNOB_CHANGES for name in change} - SAID
    flags += [
        f"{name} {getattr(plan, name)}"
        for name in sorted(drawn)
        if getattr(plan, name) != getattr(Plan, name)
    ]
    words = ", ".join([f"{model.name} x {model.num_layers} layers", plan.describe(), *flags])
    return f"{words}, ZeRO {plan.zero_stage}, {seq_len} tokens, stage {stage}"


def sweep(plans: int, seed: int, only: list[str], core: Core) -> dict[str, Family]:
    """Trace `plans` plans of every family."""
    rng = random.Random(seed)
    found: dict[str, Family] = {}
    for family, models in traceable().items():
        record = found.setdefault(family, Family())
        # A refused plan is told and another one drawn.
        for _ in range(3 * plans if not only or family in only else 0):
            if record.plans == plans:
                break
            model = small(rng.choice(models), LAYERS)
            plan, workload = draw(rng.choice, model)
            # Two rounds of the pipeline: stand-ins for gradients are there from the first backward pass on.
            count = 2 * max(plan.pp, plan.vpp_group_size)
            workload = replace(workload, global_batch=plan.dp * plan.micro_batch * count)
            stage = rng.randrange(plan.pp)
            case = describe(model, plan, workload.seq_len, stage)
            record.models.add(model.name)
            start = time.monotonic()
            try:
                with tempfile.TemporaryDirectory() as folder:
                    result = dry_run(
                        plan,
                        workload,
                        model,
                        stages=[stage],
                        num_microbatches=count,
                        folder=Path(folder),
                        core=core,
                    )
            except DryRunFailed as error:
                record.refused[case] = str(error)
                print(f"{family}: {case}: refused: {error}", flush=True)
                continue
            record.add(case, plan, result)
            verdict = "differs" if result.differing else "agrees"
            print(f"{family}: {case}: {verdict}, {time.monotonic() - start:.0f} s", flush=True)
            for line in record.differing.get(case, []):
                print(f"    {line}", flush=True)
    return found


def page(found: dict[str, Family], command: str, core: Core) -> list[str]:
    """The page: a table, then reasons and what differs."""
    done = {family: record for family, record in found.items() if record.plans or record.refused}
    plans = sum(record.plans for record in done.values())
    lines = [
        "# Amounts against real Megatron-Core",
        "",
        f"Written by `python benchmarks/conformance.py {command}`; {plans} random legal plans. Each is a rank of a "
        f"random pipeline stage, traced with Megatron-Core {core.version} at the plan's full world size without a "
        f"GPU, models cut to {LAYERS} layers. Exact amounts (FLOPs by product, bytes of messages by group and "
        "collective, parameters, gradients, optimizer state) must be equal to the digit. Peaks are of all activations "
        "in a step, by the formulas of a plan's memory and as live tensors of the trace: their median and largest "
        "difference, of stages that the formulas have (the first, the second, the last).",
        "",
        "| family | models | plans | exact amounts equal | documented | differing | worst saved activations "
        "| peaks | median | largest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for family, one in done.items():
        documented = sum(one.gaps.values())
        differing = sum(map(len, one.differing.values()))
        lines.append(
            f"| {family} | {len(one.models)} | {one.plans} | {one.equal} of {one.exact} | {documented} | {differing} "
            f"| {100 * one.worst:.2f} % | {peak_cells(one)} |"
        )
    reasons = Counter[str]()
    for one in done.values():
        reasons.update(one.gaps)
    lines += ["", "## Documented differences", ""]
    lines += [f"- {reason} ({count} amounts)" for reason, count in reasons.most_common()] or ["None."]
    lines += ["", "## Differing", ""]
    different = [
        f"- {case}: {'; '.join(terms)}" for one in done.values() for case, terms in one.differing.items()
    ]
    lines += different or ["None."]
    lines += ["", f"## Peaks off by more than {LARGE:.0%}", ""]
    far = [
        f"- {case}: {share:+.1%}"
        for one in done.values()
        for case, share in one.peaks.items()
        if abs(share) > LARGE
    ]
    lines += far or ["None."]
    lines += ["", "## Refused by Megatron-Core", "", "Legal by our rules, yet not built by the dry run:", ""]
    refused = [f"- {case}: {why}{later(why)}" for one in done.values() for case, why in one.refused.items()]
    lines += refused or ["None."]
    return lines


def peak_cells(one: Family) -> str:
    """Number, median and largest difference of a family's peaks."""
    apart = sorted(map(abs, one.peaks.values()))
    return f"{len(apart)} | {statistics.median(apart):.1%} | {apart[-1]:.1%}" if apart else "0 | |"


def later(why: str) -> str:
    """What later releases do, in brackets; "" when not known."""
    return "".join(f" ({said})" for words, said in LATER.items() if words in why)


def main() -> None:
    """Sweep, then write the page; exit 1 when an amount differs without a reason."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=6, help="plans of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--family", action="append", default=[], help="only this family; repeatable, writes no page"
    )
    parser.add_argument("--release", choices=list(WHEELS), help="trace with its wheel, which pip downloads")
    options = parser.parse_args()
    core = core_in(wheel_folder(WHEELS[options.release])) if options.release else core_here()
    found = sweep(options.plans, options.seed, options.family, core)
    if not options.family:
        which = f"--release {options.release} " if options.release else ""
        place = DOCS / f"conformance{f'-{options.release}' if options.release else ''}.md"
        place.write_text("\n".join(page(found, f"{which}--seed {options.seed}", core)) + "\n")
        print(f"wrote {place}")
    sys.exit(1 if any(one.differing for one in found.values()) else 0)


if __name__ == "__main__":
    main()
