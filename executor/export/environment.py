"""The environment of a plan: each variable with its value and why, for every target and launcher.

Names of variables are the catalogue's (`costmodel/knobs`, field env); values follow from the plan, the GPU and
what the frameworks refuse (advisor/rules/environment.toml and graphs.toml hold the same conflicts as rules).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.knobs import KNOBS, SETTINGS
from costmodel.placement import used_domain
from costmodel.plan import Plan
from executor.export.exported import Job
from executor.export.target_names import names_of
from executor.megatron_args import attention_word
from hardware_db import platform_of

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
GROWING = "expandable_segments:True"
OF_HYBRIDEP = ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL")
# Of a variable whose reader is the ROCm build of a library: nothing on file tells that it has it.
UNCHECKED = "; that ROCm's builds read it is not checked here"
DISPATCHER = "moe_flex_dispatcher_backend"  # the field by which a release tells HybridEP from DeepEP
# Variables of Transformer Engine that Megatron-Core sets by its attention_backend -> the words with which they are 1.
ATTENTION = {
    "NVTE_FLASH_ATTN": ("flash", "auto"),
    "NVTE_FUSED_ATTN": ("fused", "auto"),
    "NVTE_UNFUSED_ATTN": ("unfused", "auto"),
}


@dataclass(frozen=True)
class Variable:
    """One variable; value None means that it must not be set, whatever the image says."""

    name: str
    value: str | None
    why: str


def environment(job: Job, target: str = "") -> tuple[Variable, ...]:
    """Every variable that the plan needs, once each; a setting of the plan wins over what we would choose.

    target: what runs it, "" for anything; NeMo has no HybridEP, so nothing of it is set there.
    """
    found = {variable.name: variable for variable in _chosen(job)}
    if target == "nemo" and not names_of("nemo", job.version)[0].has("model.config", DISPATCHER):
        for name in OF_HYBRIDEP:
            found.pop(name, None)
    for variable in _settings(job):
        found[variable.name] = variable
    return tuple(found.values())


def _chosen(job: Job) -> Iterator[Variable]:
    yield _connections(job)
    plan, platform = job.plan, platform_of(job.cluster.gpu.vendor)
    margin, unchecked = str(plan.layernorm_sm_margin), UNCHECKED if platform.is_rocm else ""
    for name in KNOBS["layernorm_sm_margin"].env.split(", "):
        why = (
            f"{platform.multiprocessors} that norm kernels leave to the communication beside them{unchecked}"
        )
        yield Variable(name, margin, why)
    if plan.cudnn_norms:
        yield Variable(KNOBS["cudnn_norms"].env, "1", "norms write the operands of MXFP8 products")
    yield from _allocator(job)
    streams = str(int(plan.avoid_record_streams))
    yield Variable(
        "TORCH_NCCL_AVOID_RECORD_STREAMS", streams, "memory of collectives is freed without stream records"
    )
    if not platform.is_rocm:  # whose links have no switch to reduce in
        nvls = (
            "in-switch reductions inside the NVLink domain" if plan.nvls else "its buffers would take memory"
        )
        yield Variable("NCCL_NVLS_ENABLE", str(int(plan.nvls)), nvls)
    if plan.nccl_ub and plan.nvls and not platform.is_rocm:
        yield Variable("NCCL_CTA_POLICY", "1", "with registered buffers NCCL prefers what spares SMs")
    if plan.offload_modules:
        yield Variable(
            "NVTE_CPU_OFFLOAD_V1", "1", "Transformer Engine 2.10 on would offload weights with activations"
        )
    if (plan.offload_layers or plan.offload_modules or plan.optimizer_offload) and job.cluster.has_c2c:
        why = (
            "the network reaches the GPU over C2C, past offloading (NCCL 2.26; older: NCCL_NET_GDR_LEVEL=PHB)"
        )
        yield Variable("NCCL_NET_GDR_C2C", "1", why)  # source: performance guides of NeMo and Megatron-Bridge
    yield from _experts(job)
    yield from _expert_kernel(job)
    yield from _efa(job)


def _connections(job: Job) -> Variable:
    """CUDA_DEVICE_MAX_CONNECTIONS: 1 orders launches before Blackwell, FSDP and expert overlap need more queues.

    Sources: Megatron-LM arguments.py (asserts 1 for tp or cp before Blackwell, refuses 1 with FSDP);
    PerfEnvPlugin of NeMo and Megatron-Bridge (32 on Blackwell).
    """
    plan = job.plan
    if platform_of(job.cluster.gpu.vendor).is_rocm:
        return _asked_of_rocm(plan)
    newer = job.cluster.gpu.generation.startswith("blackwell")
    grouped = plan.tp > 1 or plan.cp > 1
    if plan.max_connections:
        return Variable(CONNECTIONS, str(plan.max_connections), "as the plan says")
    if plan.fsdp:
        return Variable(CONNECTIONS, None, "FSDP needs several queues: 1 would serialise its gathers")
    if plan.overlap_moe_comm:
        return Variable(CONNECTIONS, "32", "experts' exchange runs beside compute in queues of its own")
    if grouped and not newer:
        return Variable(CONNECTIONS, "1", "before Blackwell tp and cp communication must be queued in order")
    if grouped or plan.moe_dispatcher in ("deepep", "hybridep"):
        return Variable(CONNECTIONS, "32", "queues enough that no stream waits for another")
    return Variable(
        CONNECTIONS,
        None,
        "with tp = cp = 1, 1 would put gradient reduction behind compute; the default is right",
    )


def _asked_of_rocm(plan: Plan) -> Variable:
    """CUDA_DEVICE_MAX_CONNECTIONS as Megatron-LM's arguments ask for it; that ROCm queues by it is on file nowhere.

    Source: Megatron-LM megatron/training/arguments.py, whose check knows NVIDIA's architectures alone: it asks for 1
    below compute capability 10.
    """
    if plan.max_connections:
        return Variable(CONNECTIONS, str(plan.max_connections), f"as the plan says{UNCHECKED}")
    if plan.fsdp:
        return Variable(CONNECTIONS, None, "Megatron-LM refuses 1 with FSDP")
    if (plan.tp > 1 or plan.cp > 1) and not plan.overlap_moe_comm:
        return Variable(CONNECTIONS, "1", f"Megatron-LM's arguments ask for it with tp or cp{UNCHECKED}")
    return Variable(CONNECTIONS, None, "Megatron-LM asks for no value here")


def _allocator(job: Job) -> Iterator[Variable]:
    """PYTORCH_CUDA_ALLOC_CONF with what it excludes: user buffers before PyTorch 2.11, registered graph buffers.

    PyTorch for ROCm reads it too, and has growing segments from ROCm 7.0 on. Source: its CUDAAllocatorConfig.h, 2.13.
    """
    plan = job.plan
    from_release = ", from ROCm 7.0 on" if platform_of(job.cluster.gpu.vendor).is_rocm else ""
    if plan.expandable_segments and not plan.nccl_ub:
        yield Variable(ALLOCATOR, GROWING, f"segments that grow do not fragment{from_release}")
        if plan.cuda_graph:
            yield Variable(
                "NCCL_GRAPH_REGISTER", "0", "graphs with growing segments would read memory that moved"
            )
    elif plan.expandable_segments:
        yield Variable(ALLOCATOR, None, "growing segments are refused with nccl_ub before PyTorch 2.11")
    else:
        yield Variable(ALLOCATOR, None, "fixed segments, as the plan says")


def _experts(job: Job) -> Iterator[Variable]:
    """HybridEP asks how many of its ranks share an NVLink domain. Source: Megatron-Bridge overrides of its recipes."""
    plan, domain = job.plan, job.cluster.domain_size
    if plan.moe_dispatcher != "hybridep" or job.model.moe is None or plan.ep == 1:
        return
    used, group = used_domain(domain, plan.world, plan.nvl_segment), plan.ep * plan.etp
    # Of a job in several domains, blocks of that many ranks lie in one each, whatever the sizes are.
    inside = group if plan.world <= used else math.gcd(group, used)
    ranks, size, spans = OF_HYBRIDEP
    part = "" if used == domain else f"{used} of the "
    yield Variable(ranks, str(inside), f"ep {plan.ep} on {part}{domain} GPUs of each domain")
    if domain > job.cluster.gpus_per_node:
        yield Variable(size, str(domain), "GPUs that NVLink joins")
        yield Variable(spans, "1", "the domain spans nodes")


def _expert_kernel(job: Job) -> Iterator[Variable]:
    """Transformer Engine's fused kernel of the expert MLP is behind a switch. Source: Megatron-Bridge's recipes."""
    if job.plan.expert_mlp_fusion and job.model.moe is not None:
        yield Variable("NVTE_CUTEDSL_FUSED_GROUPED_MLP", "1", "the fused expert MLP's kernel")


def _efa(job: Job) -> Iterator[Variable]:
    if job.cluster.inter.name.startswith("efa"):
        yield Variable("FI_PROVIDER", "efa", "libfabric's provider on AWS; without it NCCL falls back to TCP")
        yield Variable("FI_EFA_USE_HUGE_PAGE", "0", "data loaders fork; huge pages make that fail")


def _settings(job: Job) -> Iterator[Variable]:
    """Settings of the plan that are environment variables, as their records in the catalogue name them."""
    for name, value in job.plan.settings:
        record = SETTINGS[name]
        if record.env:
            text = str(int(value)) if isinstance(value, bool) else str(value)
            word = attention_word(job.plan)
            if record.env in ATTENTION and value != (word in ATTENTION[record.env]):
                why = f"Megatron-Core sets it by attention_backend {word}, and stops at another value"
                yield Variable(record.env, None, why)
                continue
            yield Variable(record.env, text, record.meaning)


def environment_lines(variables: Iterable[Variable]) -> list[str]:
    """Lines of a shell script, every variable with its reason."""
    lines = []
    for variable in variables:
        what = (
            f"unset {variable.name}" if variable.value is None else f"export {variable.name}={variable.value}"
        )
        lines.append(f"{what}  # {variable.why}")
    return lines


def read_environment(text: str) -> dict[str, str | None]:
    """Variables that a shell script sets or unsets, the last word of each; None where it is unset."""
    found: dict[str, str | None] = {}
    setting = r"(?:^|[;\s])(?:export\s+|-e\s+)?([A-Z][A-Z0-9_]+)=(\"[^\"]*\"|'[^']*'|[^\s;#\"']*)"
    for line in text.splitlines():
        bare = line.split(" #", 1)[0].strip()
        if bare.startswith("#"):
            continue
        if dropped := re.match(r"unset\s+(.+)", bare):
            found |= dict.fromkeys(dropped[1].split())
            continue
        found |= {name: value.strip("\"'") for name, value in re.findall(setting, bare)}
    return found


def environment_knobs(variables: Mapping[str, str | None]) -> dict[str, Any]:
    """Knobs and settings (under "settings") that the variables mean; unknown variables are left out."""
    knobs: dict[str, Any] = {}
    given = {name: value for name, value in variables.items() if value is not None}
    numbers = {name: int(value) for name, value in given.items() if value.isdigit()}
    if CONNECTIONS in numbers:
        knobs["max_connections"] = numbers[CONNECTIONS]
    if "NVTE_FWD_LAYERNORM_SM_MARGIN" in numbers:
        knobs["layernorm_sm_margin"] = numbers["NVTE_FWD_LAYERNORM_SM_MARGIN"]
    for name, knob in (
        ("NCCL_NVLS_ENABLE", "nvls"),
        (KNOBS["cudnn_norms"].env, "cudnn_norms"),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "avoid_record_streams"),
    ):
        if name in numbers:
            knobs[knob] = numbers[name] != 0
    if ALLOCATOR in variables:
        knobs["expandable_segments"] = GROWING in (variables[ALLOCATOR] or "")
    knobs["settings"] = _read_settings(given)
    return knobs


def _read_settings(given: Mapping[str, str]) -> dict[str, Any]:
    settings = {}
    for setting in SETTINGS.values():
        if setting.env in given:
            try:
                settings[setting.name] = setting.parse(given[setting.env])
            except ValueError:
                continue  # a shell expression such as $HCA: nothing we could carry
    return settings
