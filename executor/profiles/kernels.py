"""What a kernel does, by its name.

NCCL names its kernels ncclDevKernel_<Collective>_<...> (ncclKernel_ before 2.19); Transformer Engine's user buffers,
DeepEP, HybridEP and NVSHMEM have kernels of their own. nvjet and cutlass are GEMMs of cuBLAS 12.8 and later.
"""

from __future__ import annotations

import re

COMMUNICATION = re.compile(
    r"nccl|userbuffers|deep_ep|hybrid_ep|nvshmem|internode::|intranode::|multimem|symm_mem|gloo:|c10d::", re.I
)
COLLECTIVES = (
    ("all-to-all", re.compile(r"all_?to_?all|dispatch|combine|alltoall", re.I)),
    ("all-reduce", re.compile(r"all_?reduce", re.I)),
    ("reduce-scatter", re.compile(r"reduce_?scatter|userbuffers\w*_rs", re.I)),
    ("all-gather", re.compile(r"all_?gather|userbuffers\w*_ag", re.I)),
    ("send/recv", re.compile(r"send_?recv|send|recv|pushsend|pushrecv", re.I)),
    ("broadcast", re.compile(r"broadcast", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
    ("barrier", re.compile(r"barrier", re.I)),
)
COMPUTE = (
    ("attention", re.compile(r"flash|fmha|attention|sdpa|cudnn_generated_fort_native", re.I)),
    (
        "linear",
        re.compile(
            r"gemm|gemv|nvjet|cutlass|xmma|wgmma|cublas|sm\d+_\w*mma|matmul|(?:^|:)(?:addmm|bmm|mm|linear)\b",
            re.I,
        ),
    ),
    ("optimizer", re.compile(r"multi_tensor|adam|l2norm|optimizer|_foreach|fused_adam", re.I)),
    (
        "quantisation",
        re.compile(r"quantize|cast_transpose|amax|fp8|mxfp8|nvfp4|scaled_cast|cast_kernel", re.I),
    ),
)
# copyKind of CUPTI.
COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 10: "device to device"}


def collective(name: str) -> str:
    """The collective of a communication kernel, "" for a kernel that computes."""
    if not COMMUNICATION.search(name):
        return ""
    return next((kind for kind, pattern in COLLECTIVES if pattern.search(name)), "other")


def compute_class(name: str) -> str:
    """linear, attention, quantisation, optimizer or element-wise (norms, activations, everything small)."""
    return next((kind for kind, pattern in COMPUTE if pattern.search(name)), "element-wise")
