"""Lines that mean trouble, or tell which network runs: NCCL's, the allocator's, torch's, Transformer Engine's."""

from __future__ import annotations

import re

from executor.faults import pattern_of
from executor.logs.record import Log

# Kind -> what its line holds. NCCL_DEBUG=INFO prints the NCCL lines (NCCL's documentation, "NCCL_DEBUG");
# `via NET/Socket/0` is a channel over TCP, `via NET/IB/0/GDRDMA` InfiniBand, `via NET/Libfabric` or `via NET/AWS
# Libfabric` EFA, `via P2P` NVLink or PCIe, `via SHM` through the host's memory.
KINDS: dict[str, re.Pattern[str]] = {
    "nccl socket channel": re.compile(r"NCCL INFO Channel .*via NET/Socket"),
    "nccl fast channel": re.compile(r"NCCL INFO Channel .*via NET/(?!Socket)\S+"),
    "nccl p2p channel": re.compile(r"NCCL INFO Channel .*via P2P"),
    "nccl shm channel": re.compile(r"NCCL INFO Channel .*via SHM"),
    "nccl uses socket": re.compile(r"NCCL INFO (?:Using network Socket|NET/Socket\s*: Using)"),
    "nccl uses fast network": re.compile(r"NCCL INFO (?:Using network (?!Socket)\S+|NET/IB\s*: Using)"),
    "nccl no device": re.compile(r"NCCL INFO NET/IB\s*: No device found"),
    "nccl plugin missing": re.compile(
        r"NCCL (?:INFO|WARN) NET/Plugin.*(?:[Cc]ould not find|No plugin found|Failed)"
    ),
    "nccl warning": re.compile(r"NCCL WARN"),
    "nccl no gpu direct": re.compile(
        r"GPU Direct RDMA Disabled|NET/\S+/\d+(?!/GDRDMA)(?=\(|\s|$).*\bGDR 0\b"
    ),
    "nccl timeout": re.compile(
        r"Watchdog caught collective operation timeout|NCCL.*(?:timed out|operation timeout)"
    ),
    # What the other ranks and the network say of a rank that is gone; completions of InfiniBand name a status but 0.
    "lost rank": re.compile(
        r"NCCL WARN NET/IB\s*: Got completion.*status=(?!0\b)\d+|NCCL error in:|\bnccl(?:Remote|System)Error\b"
        r"|gloo.*Timed out waiting \d+ms"
    ),
    "nvls": re.compile(r"NCCL INFO .*NVLS multicast support is available|NCCL INFO .*nvls channels"),
    "out of memory": re.compile(
        pattern_of("cuda out of memory") + r"|OutOfMemoryError|CUDNN_STATUS_ALLOC_FAILED", re.I
    ),
    "allocator retry": re.compile(r"memory allocation retries|alloc_retries: [1-9]|cudaMalloc retries", re.I),
    "cache flush": re.compile(r"(?:pytorch )?allocator cache flush(?:es)?(?: since last step)?", re.I),
    "loss scale": re.compile(r"found inf|overflow.*skipp|reducing loss scale", re.I),
    "nan loss": re.compile(
        r"(?:found NaN in local|Rank \d+: found NaN|nan loss|unexpected result.*nan)", re.I
    ),
    "traceback": re.compile(r"^Traceback \(most recent call last\)"),
    # By a signal, whatever sent it; the kernel and Slurm's cgroup send one when the host's memory runs out.
    "killed": re.compile(
        r"Signal (?:6|7|8|9|11|15) \(SIG[A-Z]+\)|slurmstepd: error:|srun: error: .*(?:Killed|Out Of Memory|fault)"
        r"|exitcode\s*: -\d+|\bOOM Killed\b|\boom[-_]kill|Out of memory: Killed process|\bSegmentation fault\b"
        r"|^Fatal Python error:"
    ),
    "data loader": re.compile(
        r"worker processes in total\. Our suggested max|DataLoader worker.*(?:killed|exited)"
        r"|does not have many workers which may be a bottleneck"
    ),
    "no overlap": re.compile(
        # Megatron-LM says so of every run of one chunk, whose stages have nothing to overlap with.
        r"(?!.*non-interleaved schedule does not support)"
        r"(?:Disabling|disable[ds]?|turn(?:ing)? off|setting(?=.*\bFalse\b))\b.*(?:tp_comm_overlap|overlap_grad_reduce"
        r"|overlap_param_gather|overlap_p2p_comm|communication overlap)",
        re.I,
    ),
    "unfused attention": re.compile(
        r"Running with UnfusedDotProductAttention|Selected backend = UnfusedDotProductAttention"
        r"|Available backends = .*FlashAttention=False, FusedAttention=False"
    ),
    "xid": re.compile(
        r"\bNVRM: Xid|\bXid \d+|uncorrectable (?:ECC|NVLink) error (?:encountered|detected)"
        r"|CUDA error: unspecified launch failure"
    ),
    # However the host learns of it: torch, its watchdog, NCCL and cuBLAS each print CUDA's words.
    "kernel fault": re.compile(pattern_of("kernel fault")),
    "throttle": re.compile(
        r"(?:SW|HW) (?:Thermal|Power) ?(?:Brake )?Slowdown\s*: Active|clocks? throttl", re.I
    ),
}
# Words in small letters without which a kind cannot match: searching for them is what makes large logs quick.
NEEDLES: dict[str, tuple[str, ...]] = {
    "nccl socket channel": ("net/socket",),
    "nccl fast channel": ("via net/",),
    "nccl p2p channel": ("via p2p",),
    "nccl shm channel": ("via shm",),
    "nccl uses socket": ("using network socket", "net/socket"),
    "nccl uses fast network": ("using network", "net/ib"),
    "nccl no device": ("no device found",),
    "nccl plugin missing": ("net/plugin",),
    "nccl warning": ("nccl warn",),
    "nccl no gpu direct": ("gpu direct rdma", "gdr 0"),
    "nccl timeout": ("timeout", "timed out"),
    "lost rank": ("got completion", "nccl error in", "ncclremote", "ncclsystem", "timed out waiting"),
    "nvls": ("nvls",),
    "out of memory": ("out of memory", "outofmemory", "alloc_failed", "cudaerrormemoryallocation"),
    "allocator retry": ("retries",),
    "cache flush": ("cache flush",),
    "loss scale": ("found inf", "overflow", "loss scale"),
    "nan loss": ("nan",),
    "traceback": ("traceback",),
    "killed": (
        "signal",
        "slurmstepd",
        "srun: ",
        "exitcode",
        "oom",
        "out of memory",
        " fault",
        "fatal python",
    ),
    "data loader": ("worker",),
    "no overlap": ("overlap",),
    "unfused attention": ("attention",),
    "xid": ("xid", "uncorrectable", "launch failure"),
    "kernel fault": ("illegal", "assert", "misaligned", "invalid program counter", "execution_failed"),
    "throttle": ("slowdown", "throttl"),
}
ANY_NEEDLE = re.compile(
    "|".join(sorted({re.escape(each) for needles in NEEDLES.values() for each in needles}))
)
VARIABLE_STARTS = ("NCCL_", "NVTE_", "CUDA_", "PYTORCH_", "FI_", "NVSHMEM_", "OMP_", "UB_")
VARIABLE = re.compile(
    r"(?:^|\s)(?:export\s+)?((?:NCCL|NVTE|CUDA|TORCH_NCCL|PYTORCH|FI|NVSHMEM|OMP|UB)_[A-Z0-9_]+)\s*=\s*['\"]?([\w:.,/+-]+)"
)
SET_BY_NCCL = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]+) set (?:by environment )?to ([\w:.,/+-]+)")


# The line that ends a traceback and names what happened.
EXCEPTION = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b")


def feed(line: str, log: Log) -> bool:
    """Count the kinds of trouble of a line; note the variables that it shows, and what ended a traceback."""
    begun = log.examples.get("traceback", "")
    if begun and KINDS["traceback"].match(begun) and EXCEPTION.match(line):
        log.examples["traceback"] = line[:300]
    if any(start in line for start in VARIABLE_STARTS):
        if "=" in line and (found := VARIABLE.search(line)):
            log.variables.setdefault(found[1], found[2].rstrip("."))
        if " set " in line and (told := SET_BY_NCCL.search(line)):
            log.variables[told[1]] = told[2].rstrip(".")
    small = line.lower()
    if not ANY_NEEDLE.search(small):
        return False
    kinds = [
        kind
        for kind, needles in NEEDLES.items()
        if any(needle in small for needle in needles) and KINDS[kind].search(line)
    ]
    for kind in kinds:
        log.count(kind, line)
    return bool(kinds)
