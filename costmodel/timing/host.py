"""Host time: a GPU waits when kernels are issued more slowly than they run."""

from __future__ import annotations

from costmodel.amount import Amount, maximum


def host_exposed(kernels: Amount, host_kernel: Amount, gpu_time: Amount) -> Amount:
    """Time the GPU waits for the host in one pass. [s]

    max(0, kernels x host_kernel - gpu_time); kernels of CUDA graphs, which replay without the host, do not count.
    Holds when the host runs ahead freely inside the pass.
    """
    return maximum(0, kernels * host_kernel - gpu_time)


def launch_gaps(kernels: Amount, kernel_launch: Amount, graph_launch: Amount, graph: Amount) -> Amount:
    """Device-side gaps between the kernels of one pass. [s]

    Source: te42kyfo/gpu-benches: 2.5 us on a stream and 1.3 us in a CUDA graph on Hopper.
    """
    return kernels * (kernel_launch * (1 - graph) + graph_launch * graph)
