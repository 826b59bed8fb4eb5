"""The doctor on whole machines: GPUs and their driver, the host's limits, a check that breaks."""

from __future__ import annotations

from machines_of_files import SMI, found

from executor.doctor import examine, this_machine, worst


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


def test_the_disk_is_told_by_the_folder_of_records(maker):
    """A folder that is still to be made was told by the first one above it that is there: records at /."""
    good = found(maker.machine(record=maker.root / "not" / "yet"), "ok")
    assert any(
        line.startswith(f"disk: 1024.0 GiB free for records at {maker.root}/not/yet ") for line in good
    )


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
