"""Traces read: laws of intervals, planted overlaps found again, a real trace of torch, the schema of nsys."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.logs.compare import dimension as dimension_of
from executor.profiles.intervals import length, less, union
from executor.profiles.kernels import collective, compute_class
from executor.profiles.read import read_profile

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=12)


@given(SPANS, SPANS)
def test_intervals_are_sets(left, right):
    def points(spans):
        return {point for start, end in spans for point in range(start, end)}

    assert points(union(left)) == points(left)
    assert length(union(left)) == len(points(left))
    assert points(less(union(left), union(right))) == points(left) - points(right)
    assert all(one[1] < two[0] for one, two in zip(union(left), union(left)[1:], strict=False))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        (
            "ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)",
            "reduce-scatter",
        ),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all-gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send/recv"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "all-to-all"),
        ("kuserbuffers_pushrecv", "send/recv"),
        ("gloo:all_reduce", "all-reduce"),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", ""),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::reduce>", ""),
    ],
)
def test_kernels_that_communicate(name, kind):
    assert collective(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "linear"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "linear"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", "attention"),
        ("void transformer_engine::multi_tensor_apply_kernel<AdamFunctor>", "optimizer"),
        ("void transformer_engine::cast_transpose_fused_kernel", "quantisation"),
        ("aten::mm", "linear"),
        ("void at::native::vectorized_elementwise_kernel", "element-wise"),
    ],
)
def test_kernels_that_compute(name, kind):
    assert compute_class(name) == kind


def kernel(name, ts, dur, stream=7, **args):
    """A kernel as Kineto writes it. [us]"""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": ts,
        "dur": dur,
        "args": {"device": 0, "stream": stream, **args},
    }


def trace(tmp_path, events, name="trace.json"):
    """A trace of Kineto's form."""
    path = tmp_path / name
    record = json.dumps(
        {"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": events}
    )
    path.write_bytes(gzip.compress(record.encode()) if name.endswith(".gz") else record.encode())
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_planted_overlap_is_found(tmp_path, name):
    """Of 100 us of reduce-scatter 60 lie under a GEMM; of 50 us of all-gather none do; 20 us nothing runs."""
    dp = {
        "Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP",
        "Group size": 4,
        "In msg nelems": 1000,
        "dtype": "BFloat16",
    }
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 0, "dur": 240, "args": {}},
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 1,
            "dur": 2,
            "args": {"correlation": 9},
        },
        kernel("nvjet_tst_128", 10, 100, correlation=9),
        kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING", 50, 100, stream=20, **dp),
        kernel(
            "ncclDevKernel_AllGather_RING_LL",
            160,
            50,
            stream=24,
            **{"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"},
        ),
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD (Pinned -> Device)",
            "ts": 220,
            "dur": 10,
            "args": {"device": 0},
        },
        {"ph": "i", "cat": "Trace", "name": "Iteration Start", "ts": 0},
    ]
    (found,) = read_profile(trace(tmp_path, events, name))
    assert (found.rank, found.steps, found.device) == (3, 1, "cuda:0")
    assert found.window == pytest.approx(240e-6)
    assert found.computing == pytest.approx(100e-6)
    assert found.communicating == pytest.approx(150e-6)
    assert found.exposed == pytest.approx(90e-6)
    assert found.idle == pytest.approx(40e-6)
    groups = {each.group: each for each in found.groups}
    assert groups["DATA_PARALLEL_GROUP_WITH_CP"].exposed == pytest.approx(40e-6)
    assert groups["DATA_PARALLEL_GROUP_WITH_CP"].moved == 2000
    assert groups["TENSOR_MODEL_PARALLEL_GROUP"].exposed == pytest.approx(50e-6)
    assert found.copies == {"host to device": pytest.approx(10e-6)}
    assert found.lead == pytest.approx(9e-6)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 200), st.booleans()), min_size=1, max_size=30))
def test_the_parts_make_the_window(tmp_path_factory, spans):
    """Computing, exposed communication and idle are the window, whatever overlaps."""
    folder = tmp_path_factory.mktemp("trace")
    events = [
        kernel("ncclDevKernel_AllReduce" if talks else "nvjet_gemm", start, dur, stream=number)
        for number, (start, dur, talks) in enumerate(spans)
    ]
    (found,) = read_profile(trace(folder, events))
    assert found.computing + found.exposed + found.idle == pytest.approx(found.window, abs=1e-12)


REAL = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3),
             on_trace_ready=lambda p: p.export_chrome_trace(sys.argv[1])) as prof:
    for _ in range(5):
        model(torch.randn(128, 64)).square().mean().backward()
        optimizer.step(); optimizer.zero_grad(); prof.step()
"""


def test_a_real_trace_of_torch(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "real.json.gz"
    subprocess.run([sys.executable, "-c", REAL, str(path)], check=True, capture_output=True, timeout=300)
    (found,) = read_profile(path)
    assert found.steps == 3
    assert found.device == "cpu"
    assert 0 < found.computing <= found.window
    assert found.compute["linear"] > 0
    assert found.exposed == 0
    assert found.computing + found.exposed + found.idle == pytest.approx(found.window)


SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
 globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
 launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
 gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
 blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
 localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
 sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
 globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER,
 dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
 migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
 globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
 callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
 category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
 domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
 int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
"""
PROCESS = 4242 << 24


def nsys(tmp_path, kernels, copies=(), ranges=(), process=PROCESS):
    """An export of the schema above. kernels: (name, start, end, device, stream, launched)."""
    path = tmp_path / "report.sqlite"
    base = sqlite3.connect(path)
    base.executescript(SCHEMA)
    names = {name: number for number, name in enumerate(dict.fromkeys(each[0] for each in kernels), 1)}
    base.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in names.items()]
    )
    for number, (name, start, end, device, stream, launched) in enumerate(kernels):
        row = [start, end, device, 1, None, stream, number, process, names[name], names[name], names[name]]
        base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 28)})", row + [0] * 17)
        call = (launched, launched + 5, 0, process + 7, number, 1, 0, None)
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?,?)", call)
    for start, end, size, kind in copies:
        row = [start, end, 0, 1, None, 7, 0, process, size, kind]
        base.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({','.join('?' * 21)})", row + [None] * 11
        )
    for text, start, end in ranges:
        row = [start, end, 59, None, None, None, text, process + 7]
        base.execute(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * 20)})", row + [None] * 12)
    base.commit()
    base.close()
    return path


def test_an_export_of_nsys(tmp_path):
    kernels = [
        ("nvjet_tst_256x128", 1000, 5000, 0, 7, 200),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 4000, 7000, 0, 21, 300),
        ("void flash_fwd_kernel", 8000, 9000, 0, 7, 7900),
    ]
    path = nsys(tmp_path, kernels, copies=[(9000, 9500, 4096, 1)], ranges=[("step 12", 0, 10000)])
    (found,) = read_profile(path)
    assert found.steps == 1
    assert found.window == pytest.approx(10e-6)
    assert found.exposed == pytest.approx(2e-6)
    assert found.compute == {"attention": pytest.approx(1e-6), "linear": pytest.approx(4e-6)}
    assert found.copies == {"host to device": pytest.approx(0.5e-6)}
    assert found.groups[0].group == "stream 21"
    assert found.lead == pytest.approx(0.8e-6)


def test_ranges_by_registered_strings_and_whole_graphs(tmp_path):
    """torch's NVTX registers its texts, and graphs may be traced as a whole."""
    path = nsys(tmp_path, [("gemm", 1000, 2000, 0, 7, 900)])
    base = sqlite3.connect(path)
    base.execute("INSERT INTO StringIds VALUES (77, 'iteration 8')")
    row = [0, 10_000, 60, None, None, None, None, PROCESS + 7, None, 77]
    base.execute(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * 20)})", row + [None] * 10)
    base.executescript(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, graphId INTEGER,"
        " streamId INTEGER, correlationId INTEGER, globalPid INTEGER);"
    )
    base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (3000, 8000, 0, 1, 7, 5, ?)", (PROCESS,))
    base.commit()
    base.close()
    (found,) = read_profile(path)
    assert found.steps == 1
    assert found.computing == pytest.approx(6e-6)
    assert found.idle == pytest.approx(4e-6)


def test_several_devices_are_several_profiles(tmp_path):
    kernels = [("gemm", 0, 100, device, 7, 0) for device in range(4)]
    assert [each.device for each in read_profile(nsys(tmp_path, kernels))] == [f"cuda:{n}" for n in range(4)]


@pytest.mark.parametrize(
    ("group", "kind", "knobs", "dimension"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "all-gather", None, "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "reduce-scatter", None, "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "reduce-scatter", None, "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "reduce-scatter", None, "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "all-to-all", None, "ep"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "all-gather", None, "ep"),
        ("CONTEXT_PARALLEL_GROUP", "send/recv", None, "cp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "send/recv", None, "pp"),
        ("stream 20", "all-gather", None, ""),
        ("stream 20", "all-gather", {"tp": 1, "dp": 8, "cp": 1}, "dp"),
        ("stream 20", "all-gather", {"tp": 4, "dp": 8, "cp": 1}, ""),
        ("stream 20", "send/recv", {"pp": 4, "cp": 1, "ep": 1}, "pp"),
    ],
)
def test_groups_serve_a_dimension(group, kind, knobs, dimension):
    """Descriptions are those of Megatron-Core's parallel_state."""
    assert dimension_of(group, kind, knobs) == dimension


WHOLE = gzip.compress(json.dumps([number**2 % 9973 for number in range(20_000)]).encode())
TORN = WHOLE[:9000] + bytes(400) + WHOLE[9400:]


def test_odd_fields_are_left_out(tmp_path):
    """Arguments that are none, a rank that is no number, a packed trace without .gz in its name."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 10, "args": None},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclKernel_AllReduce",
            "ts": 10,
            "dur": 10,
            "args": {"Group size": "x"},
        },
        {"ph": "X", "cat": "cuda_runtime", "name": "l", "ts": 0, "dur": 1, "args": [1]},
    ]
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(json.dumps({"distributedInfo": 3, "traceEvents": events}).encode()))
    (found,) = read_profile(path)
    assert (found.rank, found.kernels) == (0, 2)
    assert found.computing == pytest.approx(10e-6)
    assert found.exposed == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"", "is empty"),
        ("a.json", b'{"traceEvents": [{"ph": "X"', "not the whole JSON"),
        ("a.json", b'{"loss": 3}', "no trace"),
        ("a.json", b'{"traceEvents": []}', "no kernel"),
        ("a.json", b'{"traceEvents": [3, {"ph": "X", "cat": "kernel", "ts": 1, "dur": "a"}]}', "no trace"),
        ("a.json", b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": "a"}]}', "no kernel"),
        ("a.json.gz", b"\x1f\x8b\x00broken", "not the whole JSON"),
        ("a.json.gz", TORN, "not the whole JSON"),
        ("a.nsys-rep", b"NVIDIA", "nsys export"),
        ("a.sqlite", b"SQLite format 3\x00garbage", "cannot be read as SQLite"),
    ],
)
def test_what_is_no_profile_is_refused_in_one_line(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as refused:
        read_profile(path)
    assert "\n" not in str(refused.value)


def test_sqlite_without_kernels(tmp_path):
    path = tmp_path / "other.sqlite"
    sqlite3.connect(path).executescript("CREATE TABLE notes (id INTEGER);").connection.close()
    with pytest.raises(ValueError, match="no GPU was traced"):
        read_profile(path)
