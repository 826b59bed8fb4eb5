"""How a run is described when it is compared with published ones, and how two runs differ, in words."""

from __future__ import annotations

import math
import re

from costmodel.columns import plan_columns
from costmodel.evidence.effects import default_text, effects, effects_text, read_effects
from costmodel.knobs import KNOBS
from costmodel.model_spec import ModelSpec
from costmodel.parameter_counts import count_parameters
from costmodel.plan import Plan
from costmodel.plan_array import PlanArray
from costmodel.stack import default_stack, load_stack
from costmodel.workload import Workload
from hardware_db import Cluster, Gpu, load_gpu
from hardware_db.evidence import Setting

# What sets families apart from dense decoders, by the word in their names.
TRAITS = {
    "moe": "experts",
    "mla": "latent attention",
    "hybrid": "Mamba mixers",
    "gated-delta": "gated delta nets",
    "dsa": "sparse latent attention",
    "csa": "compressed attention",
}
DISPATCHERS = frozenset(KNOBS["moe_dispatcher"].choices)
# Before the name of a setting whose effects differ, among the parts of a distance.
EFFECT = "effect of "
KINDS = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def setting_of(
    model: ModelSpec, workload: Workload, cluster: Cluster, plan: Plan, stack: str | None
) -> Setting:
    """A case as published runs are described. stack: family-release, or None for the usual one."""
    known = model.parameters_known
    case = PlanArray(model, workload, cluster, plan.precision, plan_columns([plan]), stack)
    return Setting(
        model=model.name,
        family=model.family,
        layers=model.num_layers,
        hidden=model.hidden,
        parameters=float(count_parameters(model).active if known else model.params_published or 1e9),
        task=workload.task,
        cluster=cluster.name,
        gpu=cluster.gpu.name,
        generation=cluster.gpu.generation,
        gpus=plan.world,
        precision=plan.precision,
        seq_len=workload.seq_len,
        global_batch=workload.global_batch,
        tp=plan.tp,
        pp=plan.pp,
        vpp=plan.vpp,
        cp=plan.cp,
        ep=plan.ep,
        dp=plan.dp,
        micro_batch=plan.micro_batch,
        fsdp=(plan.fsdp_shard_size or plan.dp) if plan.fsdp else 0,
        recompute=plan.recompute,
        stack="local" if cluster.gpu.generation == "cpu" else load_stack(stack or default_stack()).name,
        techniques=" ".join(techniques(model, plan)),
        effects=effects_text(effects(case, plan)),
        kernels=_borrowed(cluster.gpu),
    )


def _borrowed(gpu: Gpu) -> str:
    """The GPU whose kernel tables one takes; "" where it has its own, or is that GPU but for its links (H800, A800)."""
    if gpu.own_calibration or gpu.calibrated_like == gpu.name:
        return ""
    keys = ("peak_bf16", "hbm_bandwidth", "power")
    mine, theirs = (
        [one.quantities[key].si if key in one.quantities else None for key in keys]
        for one in (gpu, load_gpu(gpu.calibrated_like))
    )
    return "" if mine == theirs else gpu.calibrated_like


def techniques(model: ModelSpec, plan: Plan) -> list[str]:
    """Words of what moves a step beside layout, formats and recompute."""
    spread = model.moe is not None and plan.ep > 1
    words = {
        plan.moe_dispatcher: spread,
        "overlapped-dispatch": spread and plan.overlap_moe_comm,
        "graphs": plan.cuda_graph,
        # Dropless experts stop the host unless one graph holds the whole step.
        "whole-step-graph": model.moe is not None
        and plan.cuda_graph
        and "full_iteration" in plan.cuda_graph_scope,
        "muon": plan.optimizer == "muon",
        "offload": bool(plan.offload_layers or plan.offload_modules),
    }
    return [word for word, used in words.items() if used]


def traits(family: str) -> frozenset[str]:
    """The words of `TRAITS` in a family's name."""
    return frozenset(word for word in TRAITS if re.search(rf"(^|-){word}(-|$)", family))


def bits(precision: str) -> int:
    """Bits of the operands of linear layers. [1]"""
    if precision in ("fp32", "tf32"):
        return 32
    return 8 if "fp8" in precision else 4 if "fp4" in precision else 16


def library(stack: str) -> str:
    """The framework family of a stack."""
    return stack.partition("-")[0]


def year(stack: str) -> float:
    """When a stack was released, NaN when its name does not tell: 2026.5 of nemo-26.06."""
    found = re.search(r"(?:20)?(\d\d)(?:\.(\d\d))?(?!\d)", stack.partition("-")[2])
    if not found:
        return math.nan
    return 2000 + int(found[1]) + (int(found[2]) / 12 if found[2] else 0.5)


def uses(setting: Setting) -> tuple[bool, ...]:
    """Which kinds of parallelism a run uses."""
    return (*(getattr(setting, kind) > 1 for kind in KINDS), setting.fsdp > 0)


def differences(query: Setting, run: Setting, terms: dict[str, float], most: int = 4) -> tuple[str, ...]:
    """What the query has instead of the published run, in words, biggest first: five at most, or four and a count."""
    ordered = sorted((name for name, size in terms.items() if size > 0.01), key=lambda name: -terms[name])
    words = list(dict.fromkeys(_word(name, query, run) for name in ordered))
    if len(words) > most + 1:
        words[most:] = [f"{len(words) - most} smaller differences"]
    return tuple(words)


def swapped(mine: frozenset[str], its: frozenset[str]) -> bool:
    """Whether both exchange tokens, with different dispatchers."""
    return len((mine ^ its) & DISPATCHERS) == 2


# Techniques whose word in evidence.csv is not how they are called in a sentence.
TOLD = {"graphs": "CUDA graphs", "whole-step-graph": "a graph of the whole step", "muon": "Muon"}


def _technique_words(mine: frozenset[str], its: frozenset[str]) -> str:
    words = []
    here, there = mine & DISPATCHERS, its & DISPATCHERS
    if here != there and here and there:
        words.append(f"{min(here)} instead of {min(there)}".replace("-", " "))
    both = (here | there) if here and there else frozenset()
    for sign, others in (("with", mine - its - both), ("without", its - mine - both)):
        if others:
            told = [TOLD.get(word, word.replace("-", " ")) for word in sorted(others)]
            words.append(f"{sign} {' and '.join(told)}")
    return ", ".join(words)


def _effect_words(name: str, query: Setting, run: Setting) -> str:
    """What a setting is in the query instead of the run, of those with an effect."""
    default = default_text(name)
    mine, its = (read_effects(each.effects).get(name, (default, 0.0))[0] for each in (query, run))
    if {mine, its} == {"on", "off"}:
        return f"{'with' if mine == 'on' else 'without'} {name}"
    if name == "documents":
        return f"{_documents(mine)} instead of {_documents(its)}"
    if name == "bucket_size":
        mine, its = ("the recipes' size" if size == default else f"{int(size):,}" for size in (mine, its))
        return f"buckets of {mine} instead of {its}"
    title = {"lora_targets": "adapters on", "lora_rank": "adapters of rank"}.get(name, name)
    return f"{title} {mine} instead of {its}"


def _documents(text: str) -> str:
    if text == "whole":
        return "whole sequences"
    kind, length, _ = text.split("-", 2)
    return f"{kind} documents of {int(length):,} tokens"


def _word(name: str, query: Setting, run: Setting) -> str:
    if name.startswith(EFFECT):
        return _effect_words(name.removeprefix(EFFECT), query, run)
    mine, its = getattr(query, name), getattr(run, name)
    if name == "gpu":
        same = query.gpu == run.gpu
        return f"{query.cluster if same else mine.upper()} instead of {run.cluster if same else its.upper()}"
    if name == "model" and mine == its:
        return f"{query.layers} layers of {query.hidden} instead of {run.layers} of {run.hidden}"
    if name == "gpus":
        return f"{mine:,} instead of {its:,} GPU{'s' * (its != 1)}"
    if name == "seq_len":
        return f"sequences of {mine:,} instead of {its:,}"
    if name == "micro_batch":
        return f"micro-batch {mine} instead of {its}"
    if name == "techniques":
        return _technique_words(frozenset(mine.split()), frozenset(its.split()))
    if name == "recompute":
        words = [read_effects(each.effects).get(name, (each.recompute, 0))[0] for each in (query, run)]
        return f"recompute {words[0]} instead of {words[1]}"
    if name == "fsdp":
        return "FSDP" if mine else "no FSDP"
    if name == "global_batch":
        return f"global batch {mine:,} instead of {its:,}"
    if name in KINDS or name == "vpp":
        return f"{name} {mine} instead of {its}"
    return f"{mine} instead of {its}"
