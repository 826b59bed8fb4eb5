"""Lines that mean trouble: every kind by lines of it, and usual lines that are none."""

from __future__ import annotations

import pytest
from written import megatron_line, megatron_log

from executor.logs.read import read_log
from executor.logs.troubles import KINDS, NEEDLES

STEPS = [(1, 30.0), (2, 3.0), (3, 3.0), (4, 3.1), (5, 3.0)]


SAMPLES = {
    "nccl socket channel": "n1:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0",
    "nccl fast channel": "n1:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA",
    "nccl p2p channel": "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "nccl shm channel": "n1:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    "nccl uses socket": "n1:1:2 [0] NCCL INFO Using network Socket",
    "nccl uses fast network": "n1:1:2 [0] NCCL INFO Using network AWS Libfabric",
    "nccl no device": "n1:1:2 [0] NCCL INFO NET/IB : No device found.",
    "nccl plugin missing": "n1:1:2 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so",
    "nccl warning": "n1:1:2 [0] misc/socket.cc:50 NCCL WARN Connect to 10.0.0.1 failed",
    "nccl no gpu direct": "n1:1:2 [0] NCCL INFO GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    "nccl timeout": "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)",
    "lost rank": "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv",
    "nvls": "n1:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0",
    "out of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "allocator retry": "pytorch allocator: 3 memory allocation retries since last step",
    "cache flush": "[WARNING] 2 pytorch allocator cache flushes since last step.",
    "loss scale": "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    "nan loss": "Rank 3: found NaN in local forward loss calculation.",
    "traceback": "Traceback (most recent call last):",
    "killed": "  exitcode  : -9 (pid: 4242)",
    "data loader": "This DataLoader will create 32 worker processes in total. Our suggested max number of worker in",
    "no overlap": "WARNING: Disabling tp_comm_overlap since sequence_parallel is False",
    "unfused attention": "[DEBUG | DotProductAttention]: Selected backend = UnfusedDotProductAttention",
    "xid": "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    "kernel fault": "  what():  CUDA error: an illegal memory access was encountered",
    "throttle": "SW Power Cap: Not Active, HW Thermal Slowdown : Active",
}


def test_every_kind_of_trouble_is_known_by_a_line_of_it(write):
    assert set(SAMPLES) == set(KINDS) == set(NEEDLES)
    for kind, line in SAMPLES.items():
        log = write("\n".join([line, megatron_line(1, 2.0), megatron_line(2, 2.0)]))
        assert log.counted[kind] == 1, kind
        assert log.examples[kind].endswith(line[-20:])


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (
            "killed",
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=8123.0. Some of your processes may have",
        ),
        (
            "killed",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM",
        ),
        ("killed", "srun: error: node1: task 3: Out Of Memory"),
        ("killed", "[12345.6] Out of memory: Killed process 4242 (python) total-vm:1kB"),
        ("killed", "python invoked oom-killer: gfp_mask=0xcc0, order=0"),
        ("killed", "Fatal Python error: Segmentation fault"),
        (
            "killed",
            "E0304 elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 3 (pid: 103)",
        ),
        ("killed", "  traceback : Signal 11 (SIGSEGV) received by PID 4242"),
        ("out of memory", "RuntimeError: CUDA error: out of memory"),
        (
            "out of memory",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
        ("out of memory", "what(): cudaErrorMemoryAllocation"),
        (
            "lost rank",
            "net_ib.cc:1299 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4000> with status=12 op",
        ),
        (
            "lost rank",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
        ),
        ("xid", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        ("kernel fault", "[rank1]: RuntimeError: CUDA error: device-side assert triggered"),
        ("kernel fault", "n1:1:2 [0] NCCL WARN Cuda failure 'misaligned address'"),
        (
            "kernel fault",
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle, ...)`",
        ),
    ],
)
def test_what_ends_a_run_is_of_one_kind(write, kind, line):
    """Memory of the host was taken for the GPU's, and what leaves no traceback of Python for nothing."""
    counted = write("\n".join([line, megatron_log(STEPS)])).counted
    assert counted[kind] == 1
    assert set(counted) - {"nccl warning"} == {kind}


def test_usual_lines_are_no_trouble(write):
    lines = [
        "> setting random seeds to 1234 ...",
        "loss scale: 1.0",
        "building GPT model ...",
        "Saving nanobatch",
        "NCCL timeout for process groups: 1800 s",
        "GPU 3: 0 uncorrectable ECC errors, default fault tolerance, room for 12 tasks",
        "Setting tp_comm_overlap: True",
        "Setting args.overlap_p2p_comm and args.align_param_gather to False since non-interleaved schedule does not "
        "support overlapping p2p communication and aligned param AG",
    ]
    assert not write("\n".join([*lines, megatron_log(STEPS)])).counted


def test_out_of_memory_before_the_first_step_is_told_the_order_of_cures(tmp_path):
    log = tmp_path / "rank0.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    with pytest.raises(ValueError, match="Mend that first") as refused:
        read_log(log)
    order = ("expandable", "recompute", "--offload-layers", "micro-batch", "context", "more tensor")
    assert sorted(order, key=str(refused.value).index) == list(order)


def test_a_run_that_goes_on_was_ended_by_nothing(write):
    """A traceback of wandb with 50 steps after it was "The run ended before its last step", cited as the cause."""
    other, last = "Traceback (most recent call last):", "  exitcode  : -9 (pid: 4242)"
    steps = [megatron_line(step, 2.0) for step in (1, 2, 3)]
    went_on = write("\n".join([steps[0], other, last, *steps[1:]]))
    assert went_on.counted["killed"] == 1
    assert not went_on.since_step
    ended = write("\n".join([steps[0], last, *steps[1:], other, last.replace("4242", "4343")]))
    assert ended.since_step == {"traceback": 1, "killed": 1}
    assert "4343" in ended.examples["killed"]


@pytest.mark.parametrize(
    "prefix", ["pretrain/0 [default7]:", "2026-06-01T10:00:00.123456789Z ", "7: [default7]:", "[rank3]: "]
)
def test_what_launchers_put_before_a_line_is_no_part_of_it(write, prefix):
    lines = [prefix + line for line in megatron_log(STEPS).splitlines()]
    plain, prefixed = write(megatron_log(STEPS)), write("\n".join(lines))
    assert prefixed.arguments == plain.arguments
    assert [each.seconds for each in prefixed.iterations] == [each.seconds for each in plain.iterations]
