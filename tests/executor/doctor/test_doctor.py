"""The doctor on machines made of files: GPUs, adapters, limits and variables that are not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executor.doctor import Machine, examine, this_machine, worst
from executor.doctor.machine import BASIC, MORE
from executor.doctor.software import holds, listed, pairs
from executor.doctor.variables import known_names, slip_of

SMI = (Path(__file__).parent / "data" / "nvidia_smi_h200.csv").read_text()
GOOD = {"torch": "2.9.0+cu128", "megatron-core": "0.16.1", "nvidia-nccl-cu12": "2.27.5"}


class Maker:
    """Writes a machine's files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("/proc/meminfo", "MemTotal: 65536000 kB\nMemAvailable: 60000000 kB\nHugePages_Total: 0\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def adapters(self, *names: str, state: str = "4: ACTIVE") -> None:
        for name in names:
            self.write(f"/sys/class/infiniband/{name}/ports/1/state", state + "\n")
            self.write(f"/sys/class/infiniband/{name}/ports/1/rate", "400 Gb/sec (4X NDR)\n")

    def machine(self, smi: str = "", old_driver: bool = False, **fields) -> Machine:
        def run(command: tuple[str, ...]) -> str | None:
            if command[0] != "nvidia-smi" or not smi:
                return None
            asked = command[1].partition("=")[2]
            if asked == f"{BASIC},{MORE}":
                return None if old_driver else smi
            assert asked == BASIC
            return "".join(", ".join(line.split(", ")[:8]) + "\n" for line in smi.splitlines())

        given = {
            "environment": {},
            "distributions": GOOD,
            "torch_cuda": "12.8" if smi else "",
            "limits": {"memlock": -1, "nofile": 65536},
            "cores": 64,
            "affinity": 64,
            "record": self.root,
            "free": lambda path: 1 << 40,
        }
        return Machine(root=self.root, run=run, **(given | fields))


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path)


def found(machine: Machine, status: str, plan=None) -> list[str]:
    """Lines of that status."""
    return [
        f"{each.check}: {each.found} | {each.why} | {each.way_out}"
        for each in examine(machine, plan)
        if each.status == status
    ]


def test_this_machine_is_examined_whole(tmp_path):
    findings = examine(this_machine(tmp_path))
    assert {"devices", "environment", "memory", "cores", "disk"} <= {each.check for each in findings}
    assert not [each for each in findings if "the check itself failed" in each.found]


def test_a_good_node_of_gpus_is_ready(maker):
    maker.adapters("mlx5_0", "mlx5_1")
    maker.write("/proc/modules", "nvidia_peermem 16384 0 - Live\n")
    machine = maker.machine(smi=SMI.splitlines()[0] + "\n")
    assert worst(examine(machine)) == "ok"
    assert any("2 RDMA adapters, all active: 400 Gb/sec" in line for line in found(machine, "ok"))


def test_gpus_with_faults_are_named_one_by_one(maker):
    machine = maker.machine(smi=SMI)
    warned, failed = found(machine, "warn"), found(machine, "fail")
    assert any("GPU 1 holds 61234 MiB of 143771" in line for line in warned)
    assert any("GPU 1 is limited to 550 W of 700 W" in line for line in warned)
    assert any("GPU 2 runs at 1200 of 1980 MHz: hw_slowdown" in line for line in warned)
    assert any("GPU 3 is divided (MIG)" in line for line in warned)
    assert len(warned) == 4
    assert len(failed) == 1
    assert failed[0].startswith("ECC: GPU 2 counts 4 uncorrected")


def test_a_driver_that_knows_fewer_questions(maker):
    machine = maker.machine(smi=SMI, old_driver=True)
    assert [gpu["name"] for gpu in machine.gpus] == ["NVIDIA H200"] * 4
    assert found(machine, "fail") == []


def test_devices_without_an_answering_driver(maker):
    maker.write("/dev/nvidia0", "")
    maker.write("/dev/nvidiactl", "")
    assert "1 GPU device files, and nvidia-smi does not answer" in found(maker.machine(), "fail")[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"torch_cuda": "13.0"}, "driver 570.133.20 with cuda 13.0 | CUDA 13 needs a driver of branch 580"),
        ({"torch_cuda": "11.7"}, "cuda 11.7 with gpu 9.0 | Hopper"),
        ({"torch_cuda": ""}, "is a CPU build and there are 1 GPUs"),
        ({"distributions": {"torch": "2.9.0"}}, "megatron-core not installed"),
        (
            {
                "distributions": {
                    "torch": "2.9.0",
                    "megatron-core": "0.16.1",
                    "transformer-engine-cu13": "2.9",
                }
            },
            "transformer-engine-cu13 2.9 with torch for CUDA 12.8",
        ),
    ],
)
def test_versions_that_do_not_work_together(maker, fields, said):
    failed = found(maker.machine(smi=SMI.splitlines()[0] + "\n", **fields), "fail")
    assert any(said in line for line in failed)


def test_what_a_plan_needs_of_versions(maker):
    machine = maker.machine(smi=SMI.splitlines()[0] + "\n")
    assert found(machine, "fail", {"precision": "bf16", "cp": 1}) == []
    failed = found(machine, "fail", {"precision": "fp8-cs"})
    assert "no transformer-engine with precision=fp8-cs" in failed[0]
    newer = GOOD | {"transformer-engine": "2.6.0"}
    assert (
        "2.6.0 with precision=nvfp4"
        in found(
            maker.machine(smi=SMI.splitlines()[0] + "\n", distributions=newer), "fail", {"precision": "nvfp4"}
        )[0]
    )


def test_precisions_and_fields_of_the_table_exist():
    import dataclasses

    from costmodel.knobs import KNOBS
    from costmodel.plan import Plan

    fields = {field.name for field in dataclasses.fields(Plan)}
    for pair in pairs():
        for asked in listed(pair.get("plan", {})):
            assert set(asked) <= fields
            for precision in asked.get("precision", []):
                assert precision in KNOBS["precision"].choices
        assert pair["source"]


@pytest.mark.parametrize(
    ("version", "wanted", "true"),
    [
        ("2.13.0+cpu", ">=2.6", True),
        ("2.6", ">=2.6.0", True),
        ("2.5.1", ">=2.6", False),
        ("12.8", ">=12.0 <13.0", True),
        ("13.0", ">=12.0 <13.0", False),
        ("10.0", ">=9.0 <10.0", False),
        ("0.16.1rc1", ">=0.17.1", False),
        ("2.4.0", "!=2.4.0", False),
        ("2.4", "!=2.4.0", False),
        ("2.4.1", "!=2.4.0", True),
    ],
)
def test_bounds_of_versions(version, wanted, true):
    assert holds(version, wanted) is true


def test_adapters_that_are_down_or_passed_by(maker):
    maker.adapters("mlx5_0")
    maker.adapters("mlx5_1", state="1: DOWN")
    machine = maker.machine(environment={"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"})
    warned = found(machine, "warn")
    assert any("1 of 2 RDMA adapters are not active: mlx5_1" in line for line in warned)
    assert any("NCCL_NET=Socket beside RDMA adapters" in line for line in warned)
    assert any("NCCL_IB_DISABLE=1 beside RDMA adapters" in line for line in warned)


def test_efa_needs_its_plugin(maker):
    maker.adapters("rdmap16s27", "rdmap32s27")
    assert any("no libnccl-net" in line for line in found(maker.machine(), "warn"))
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    assert found(maker.machine(), "warn") == []
    other = maker.machine(environment={"NCCL_NET_PLUGIN": "spcx"})
    assert any("NCCL_NET_PLUGIN=spcx beside EFA" in line for line in found(other, "warn"))


def with_fi_info(machine: Machine, answer: str | None, tool: str = "fi_info") -> Machine:
    """The machine with libfabric's tool, which finds `answer`."""

    def run(command: tuple[str, ...]) -> str | None:
        if command[0] != tool:
            return None
        return "fi_info: 2.1.0amzn3.0\nlibfabric: 2.1.0\n" if command[1] == "--version" else answer

    return replace(machine, run=run)


@pytest.mark.parametrize(
    ("answer", "tool", "said"),
    [
        ("provider: efa\n    fabric: efa\n    domain: rdmap16s27-rdm\n", "fi_info", "fi_info finds efa"),
        ("provider: efa\n", "/opt/amazon/efa/bin/fi_info", "fi_info finds efa"),
        (None, "elsewhere", "no fi_info here"),
    ],
)
def test_efa_whose_provider_is_there_or_cannot_be_asked_for(maker, answer, tool, said):
    maker.adapters("rdmap16s27")
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    machine = with_fi_info(maker.machine(), answer, tool)
    assert any(said in line for line in found(machine, "ok"))
    assert found(machine, "warn") == []


@pytest.mark.parametrize("answer", [None, "provider: tcp\n"])
def test_efa_whose_provider_is_missing_falls_back_to_tcp(maker, answer):
    maker.adapters("rdmap16s27")
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    (line,) = found(with_fi_info(maker.machine(), answer), "warn")
    assert "fi_info -p efa finds no provider" in line
    assert "TCP" in line


def test_a_provider_that_is_asked_for_otherwise(maker):
    asked = maker.machine(environment={"FI_PROVIDER": "efa"})
    assert any("FI_PROVIDER=efa and no EFA adapter" in line for line in found(asked, "warn"))
    maker.adapters("rdmap16s27")
    maker.write("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    assert found(asked, "warn") == []
    other = maker.machine(environment={"FI_PROVIDER": "tcp"})
    assert any("FI_PROVIDER=tcp beside EFA" in line for line in found(other, "warn"))


@pytest.mark.parametrize(
    ("version", "warned"), [("2.4.0", True), ("2.4.0rc1", True), ("2.4.1", False), ("2.5.0", False)]
)
def test_the_nemo_that_the_guides_avoid(maker, version, warned):
    lines = found(maker.machine(distributions=GOOD | {"nemo-toolkit": version}), "warn")
    assert [line for line in lines if f"nemo {version} |" in line and "2.5.0" in line] == lines
    assert bool(lines) == warned


def test_gpudirect_that_is_missing(maker):
    maker.adapters("mlx5_0")
    gpu = SMI.splitlines()[0] + "\n"
    assert any("nvidia_peermem is not loaded" in line for line in found(maker.machine(smi=gpu), "warn"))
    maker.write(
        "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06"
    )
    assert found(maker.machine(smi=gpu), "warn") == []


def test_an_interface_that_is_not_there_fails(maker):
    maker.write("/sys/class/net/eth0/address", "")
    assert found(maker.machine(environment={"NCCL_SOCKET_IFNAME": "eth"}), "fail") == []
    assert found(maker.machine(environment={"NCCL_SOCKET_IFNAME": "^docker"}), "fail") == []
    assert (
        "GLOO_SOCKET_IFNAME=ib0" in found(maker.machine(environment={"GLOO_SOCKET_IFNAME": "ib0"}), "fail")[0]
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NVTE_FLASH_ATT", "NVTE_FLASH_ATTN"),
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_NLVS_ENABLE", "NCCL_NVLS_ENABLE"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("CUDA_DEVICE_MAX_CONECTIONS", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
        ("TORCH_NCCL_AVOID_RECORD_STREAM", "TORCH_NCCL_AVOID_RECORD_STREAMS"),
        ("nccl_debug", "NCCL_DEBUG"),
    ],
)
def test_slips_of_names(maker, name, meant):
    assert slip_of(name) == meant
    warned = found(maker.machine(environment={name: "1"}), "warn")
    assert any(f"Did you mean {meant}?" in line for line in warned)


def test_no_known_name_is_a_slip_of_another():
    assert {name: slip_of(name) for name in known_names() if slip_of(name)} == {}


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "NCCL_MY_OWN_THING", "CUDA_HOME", "OMPI_COMM_WORLD_RANK", "DEBUG"]
)
def test_other_names_are_left_alone(name):
    assert slip_of(name) is None


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warn", "nothing overlaps"),
        ({"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"}, "warn", "only unfused attention"),
        (
            {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"},
            "fail",
            "every attention backend",
        ),
        ({"NCCL_PROTO": "simple"}, "warn", "low-latency"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:1"}, "warn", "only one of the two"),
    ],
)
def test_values_that_cost(maker, given, status, said):
    lines = found(maker.machine(environment=given), status)
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(("capability", "warned"), [("9.0", True), ("10.0", True), ("8.0", False)])
def test_the_attention_that_recipes_on_aws_switch_off(maker, capability, warned):
    """Guide 004 exports NVTE_FUSED_ATTN=0, which costs on Hopper and Blackwell."""
    first = SMI.splitlines()[0]
    assert ", 9.0, " in first
    machine = maker.machine(
        smi=first.replace(", 9.0, ", f", {capability}, ") + "\n", environment={"NVTE_FUSED_ATTN": "0"}
    )
    assert any("cuDNN's attention is off" in line for line in found(machine, "warn")) == warned
    assert not any(
        "cuDNN" in line for line in found(maker.machine(environment={"NVTE_FUSED_ATTN": "0"}), "warn")
    )


@pytest.mark.parametrize(
    "offload", [{"offload_layers": 8}, {"offload_modules": ["core_attn"]}, {"optimizer_offload": 50}]
)
def test_offloading_beside_an_old_nccl(maker, offload):
    old = GOOD | {"nvidia-nccl-cu12": "2.25.1"}
    machine = maker.machine(smi=SMI.splitlines()[0] + "\n", distributions=old)
    none = {"offload_layers": 0, "offload_modules": [], "optimizer_offload": 0}
    assert any("NCCL_NET_GDR_LEVEL=PHB" in line for line in found(machine, "warn", none | offload))
    assert not any("GDR" in line for line in found(machine, "warn", none))


def test_threads_of_ranks_beyond_the_cores(maker):
    machine = maker.machine(smi=SMI, environment={"OMP_NUM_THREADS": "32"})
    assert any("Set OMP_NUM_THREADS=16" in line for line in found(machine, "warn"))


def test_a_harmless_environment_is_ok(maker):
    machine = maker.machine(environment={"CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG": "WARN"})
    assert any(line.startswith("environment: 2 variables") for line in found(machine, "ok"))


def test_the_host(maker):
    maker.write("/proc/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n")
    maker.write("/sys/fs/cgroup/memory.max", str(1 << 30))
    maker.adapters("mlx5_0")
    machine = maker.machine(
        smi=SMI,
        affinity=2,
        limits={"memlock": 64 << 10, "nofile": 1024},
        free=lambda path: 1 << 20,
    )
    warned, failed = found(machine, "warn"), found(machine, "fail")
    assert any("/dev/shm holds 64 MiB" in line for line in warned)
    assert any("ulimit -n is 1024" in line for line in warned)
    assert any("4 ranks are pinned to 2 cores" in line for line in warned)
    assert any("limited to 1.0 by its container" in line for line in failed)
    assert any("ulimit -l is 64 KiB" in line for line in failed)
    assert any(line.startswith("disk: 0.0 GiB free") for line in failed)


def test_a_place_for_records_that_cannot_be_written_fails(maker):
    """A file system that is mounted read-only has room, and takes nothing."""
    failed = found(maker.machine(writable=lambda path: False), "fail")
    assert any(
        line.startswith(f"disk: {maker.root} is no folder that this user can write") for line in failed
    )
    (maker.root / "file").write_text("")
    failed = found(maker.machine(record=maker.root / "file"), "fail")
    assert any("file is no folder that this user can write" in line for line in failed)


def test_sizes_of_the_host_have_units(maker):
    maker.write("/proc/mounts", "shm /dev/shm tmpfs rw,nosuid,size=24684092k 0 0\n")
    machine = maker.machine(limits={"memlock": 8 << 20, "nofile": 65536})
    good = found(machine, "ok")
    assert any("/dev/shm holds 23.5 GiB" in line for line in good)
    assert any("locked memory 8 MiB" in line for line in good)


def test_a_check_that_breaks_stops_nothing(maker, monkeypatch):
    maker.write("/proc/meminfo", "MemTotal: many kB\n")

    def broken(*_):
        raise RuntimeError("odd machine")

    monkeypatch.setattr("executor.doctor.checks.CHECKS", (("network", broken), ("host", lambda *_: [])))
    findings = examine(maker.machine())
    assert [each.status for each in findings] == ["warn"]
    assert "odd machine" in findings[0].found
