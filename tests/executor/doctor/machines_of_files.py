"""Machines made of files, which the doctor examines: GPUs, adapters, limits and variables that are not here."""

from __future__ import annotations

from pathlib import Path

from executor.doctor import Machine, examine
from executor.doctor.machine import BASIC, MORE

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


def found(machine: Machine, status: str, plan=None) -> list[str]:
    """Lines of that status."""
    return [
        f"{each.check}: {each.found} | {each.why} | {each.way_out}"
        for each in examine(machine, plan)
        if each.status == status
    ]
