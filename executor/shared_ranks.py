"""Plans of several ranks on one GPU, to check what only they reach: `python -m executor.gpu_checks --shared-ranks`.

Ranks share the device (`executor.workers.device`), so this checks code and never time: that each plan ends, holds the
bytes of state that are counted and the live tensors that are predicted, overlaps what it says, waits for the groups
that it has, trains the model that one rank trains, and leaves a record that opens as a trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.model_spec import ModelSpec
from costmodel.model_tables import Moe
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.fresh_run import run_fresh
from executor.record import read_steps
from executor.run import RunResult
from executor.trace_measured import record_trace
from executor.workers.device import SHARE
from hardware_db import Cluster

WORKLOAD = Workload(512, 4)
STEPS, WARMUP = 3, 2
# A run of these takes seconds once it started; ranks that wait for each other forever are ended. [s]
LIMIT = 200.0
AT_ONCE = 4
# Losses and gradient norms of BF16 and FP8 layouts differ by rounding. [1]
SAME_LOSS, SAME_NORM, SAME_NORM_FP8 = 0.01, 0.05, 0.15
# Live tensors may differ by a share, and by workspaces of GEMMs that are not counted: three of 32 MiB, and four of
# grouped GEMMs (as seen on an H100 with Transformer Engine 2.12 and PyTorch 2.11). [1], [byte]
SAME_TENSORS, WORKSPACES, GROUPED = 0.10, 96 * 2**20, 128 * 2**20

DENSE = ModelSpec(
    name="dense1024",
    num_layers=4,
    hidden=1024,
    ffn_hidden=2816,
    num_heads=8,
    num_kv_heads=8,
    head_dim=128,
    vocab=8192,
    source="this project: checks of several ranks on one device",
)
EXPERTS = replace(DENSE, name="experts1024", family="", moe=Moe(num_experts=4, topk=2, expert_ffn=1024))


@dataclass(frozen=True)
class Check:
    """A plan to try. waits: groups that its ranks must wait for; sees: words of the receipt, by knob."""

    name: str
    plan: Plan
    waits: tuple[str, ...]
    sees: tuple[tuple[str, str], ...] = ()
    model: ModelSpec = DENSE


OVERLAPPED = (("overlap_grad_reduce", "beside compute"), ("overlap_param_gather", "beside compute"))
APART = (("overlap_grad_reduce", "alone"), ("overlap_param_gather", "alone"))
TP2 = Plan(tp=2, sequence_parallel=True)
FSDP = Plan(dp=2, fsdp=True, zero_stage=3)
CHECKS = (
    Check("dp2", Plan(dp=2), ("dp",), OVERLAPPED),
    Check("dp2-apart", Plan(dp=2, overlap_grad_reduce=False, overlap_param_gather=False), ("dp",), APART),
    Check("dp2-whole-optimizer", Plan(dp=2, zero_stage=0), ("dp",), OVERLAPPED[:1]),
    Check("tp2", TP2, ("tp",), (("sequence_parallel", "gathers and scatters"),)),
    Check("tp2-whole-sequence", Plan(tp=2), ("tp",)),
    Check("pp2", Plan(pp=2), ("pp",), (("overlap_p2p", "batched"),)),
    Check("pp2-vpp2", Plan(pp=2, vpp=2), ("pp",), (("overlap_p2p", "one by one"),)),
    Check("cp2", Plan(cp=2), ("cp",)),
    Check("cp2-a2a", Plan(cp=2, cp_comm_type="a2a"), ("cp",)),
    Check("cp2-all-gather", Plan(cp=2, cp_comm_type="all_gather"), ("cp",)),
    Check("ep2", Plan(dp=2, ep=2), ("ep", "dp"), OVERLAPPED, EXPERTS),
    Check("ep2-all-gather", Plan(dp=2, ep=2, moe_dispatcher="allgather"), ("dp",), OVERLAPPED, EXPERTS),
    Check("tp2-ep2", replace(TP2, ep=2), ("tp", "ep"), (), EXPERTS),
    Check("fsdp2", FSDP, ("dp",), OVERLAPPED),
    Check("fsdp2-gradients", replace(FSDP, zero_stage=2), ("dp",), OVERLAPPED[:1]),
    Check("fsdp2-torch", replace(FSDP, fsdp_implementation="torch"), ("dp",)),
    Check("tp2-pp2", replace(TP2, pp=2), ("tp", "pp")),
    Check("tp2-dp2", replace(TP2, dp=2), ("tp", "dp"), OVERLAPPED),
    Check("dp2-full-recompute", Plan(dp=2, recompute="full"), ("dp",), (("recompute", "regions again"),)),
    Check(
        "tp2-core-recompute",
        replace(TP2, recompute="selective", recompute_modules=("core_attn",)),
        ("tp",),
        (("recompute", "regions again"),),
    ),
    Check("dp2-fp8", Plan(dp=2, precision="fp8-cs"), ("dp",), (*OVERLAPPED, ("precision", "in FP8"))),
    Check(
        "dp2-fp8-gather",
        Plan(dp=2, precision="fp8-cs", fp8_param_gather=True),
        ("dp",),
        (*OVERLAPPED, ("precision", "in FP8")),
    ),
    Check("tp2-fp8", replace(TP2, precision="fp8-cs"), ("tp",), (("precision", "in FP8"),)),
    Check("dp2-graphs", Plan(dp=2, cuda_graph=True, cuda_graph_scope=("attn",)), ("dp",), OVERLAPPED),
)


@dataclass(frozen=True)
class Found:
    """What one check gave, and what is wrong, a line each.

    loss: of the last step; tensors: live tensors over those predicted; both nan where nothing ran [1]. exposed: waits
    of a step by group [s].
    """

    name: str
    loss: float
    tensors: float
    exposed: dict[str, float]
    wrong: list[str]

    def line(self) -> str:
        """For a table."""
        waited = ", ".join(f"{group} {seconds:.3f} s" for group, seconds in self.exposed.items())
        head = (
            f"{self.name:22} loss {self.loss:.4f}  live tensors {self.tensors:5.2f} of told  waited {waited}"
        )
        return "\n".join([head, *(f"  WRONG: {each}" for each in self.wrong)])


def check_all(
    checks: Sequence[Check], cluster: Cluster, out: Path, tell: Callable[[str], None], at_once: int = AT_ONCE
) -> list[Found]:
    """Run checks, several at once, after one-rank runs of their models that losses are held against."""
    alone = {
        check.model.name: replace(check, name=f"{check.model.name}-alone", plan=Plan(), waits=(), sees=())
        for check in checks
    }
    with ThreadPoolExecutor(at_once) as pool:
        firsts = list(
            pool.map(lambda check: tried(check, cluster, out / check.name, [], tell), alone.values())
        )
        losses = {name: read_steps(out / check.name) for name, check in alone.items()}
        others = pool.map(
            lambda check: tried(check, cluster, out / check.name, losses[check.model.name], tell), checks
        )
        return [*firsts, *others]


def tried(
    check: Check, cluster: Cluster, out: Path, alone: Sequence[dict], tell: Callable[[str], None]
) -> Found:
    """Run one check; what is wrong with it. alone: steps of the model's one-rank run, [] of that run itself."""
    try:
        result = run_fresh(
            check.plan,
            WORKLOAD,
            check.model,
            cluster,
            out,
            steps=STEPS,
            warmup=WARMUP,
            limit=LIMIT,
            tell=lambda line: None,
            variables={SHARE: "1"},
        )
    except (RuntimeError, ValueError) as error:
        tell(f"{check.name}: {error}")
        return Found(check.name, math.nan, math.nan, {}, [str(error)])
    found = judged(check, result, alone)
    tell(found.line())
    return found


def judged(check: Check, result: RunResult, alone: Sequence[dict]) -> Found:
    """What is wrong with a run that ended."""
    steps, measured = read_steps(result.record), result.measured
    exposed = {group: seconds for group, seconds in measured["exposed"].items() if seconds > 0}
    seen = {feature.name: feature.observed for feature in result.features}
    told = next((row for row in result.rows if row.name == "of it live tensors"), None)
    tensors = told.ratio if told is not None else math.nan
    wrong = [line for line in result.warnings if "bytes of" in line]
    wrong += [f"nothing was waited for in the group {group}" for group in check.waits if group not in exposed]
    wrong += [
        f"the receipt says {seen.get(knob, '')!r} of {knob}, not {words!r}"
        for knob, words in check.sees
        if words not in seen.get(knob, "")
    ]
    norm = SAME_NORM_FP8 if check.plan.precision.startswith("fp8") else SAME_NORM
    for name, within in (("loss", SAME_LOSS), ("grad_norm", norm)):
        for one, other in zip(steps, alone, strict=False):
            # None where no rank told one: of a step that the optimizer left out there is no norm.
            found, wanted = (math.nan if each[name] is None else each[name] for each in (one, other))
            if not math.isclose(found, wanted, rel_tol=within):
                wrong.append(f"{name} of step {one['step']} is {found:.4f}, of one rank {wanted:.4f}")
    spare = WORKSPACES + (GROUPED if check.model.moe is not None else 0)
    if told is not None and abs(told.measured - told.predicted) > SAME_TENSORS * told.predicted + spare:
        wrong.append(f"live tensors are {tensors:.2f} of the {told.predicted / 2**20:.0f} MiB predicted")
    try:
        record_trace(result.record)
    except ValueError as error:
        wrong.append(f"no trace: {error}")
    return Found(check.name, steps[-1]["loss"], tensors, exposed, wrong)
