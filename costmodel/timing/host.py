"""Host time: a GPU waits when kernels are issued more slowly than they run."""

from __future__ import annotations

from costmodel.amount import Amount, maximum


def issue_time(host_kernel: Amount, unbound: Amount, unbound_launch: Amount) -> Amount:
    """Host time to issue one kernel. [s]

    host_kernel: of a rank that is bound to the cores next to its GPU [s]; unbound: 1 where ranks are not bound;
    unbound_launch: what those take over it [1].
    """
    return host_kernel * (1 + (unbound_launch - 1) * unbound)


def host_exposed(issuing: Amount, gpu_time: Amount) -> Amount:
    """Time the GPU waits for the host in one pass. [s]

    max(0, issuing - gpu_time). issuing: what the host needs to issue the pass, without what CUDA graphs replay, see
    `costmodel.host_waits.issuing_time`; gpu_time: of its kernels [s]. Holds when the host runs ahead freely in it.
    """
    return maximum(0, issuing - gpu_time)


def launch_gaps(kernels: Amount, kernel_launch: Amount, graph_launch: Amount, graph: Amount) -> Amount:
    """Device-side gaps between the kernels of one pass. [s]

    Source: te42kyfo/gpu-benches: 2.5 us on a stream and 1.3 us in a CUDA graph on Hopper.
    """
    return kernels * (kernel_launch * (1 - graph) + graph_launch * graph)
