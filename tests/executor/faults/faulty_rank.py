"""The training worker with one planted fault: `python -m faulty_rank JOB.json RANK FAULT`.

The fault strikes rank RANK when it has done its second step. Everything else is the worker as it is.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from pathlib import Path

from executor.workers import last_words, train


def strike(fault: str) -> None:
    """Do to this process what the fault says; real ones, no exception raised in their place."""
    if fault == "sleep in forward":
        from megatron.core.models.gpt import GPTModel

        def forward(*_, **__):
            while True:
                time.sleep(1)

        GPTModel.forward = forward
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "allocate a tensor":
        import torch

        torch.zeros(1 << 45)
    elif fault == "map memory":
        mapped = []
        while True:  # until a limit of address space refuses
            mapped.append(mmap.mmap(-1, 1 << 28))
    elif fault == "touch memory":
        kept = []
        while True:  # until the kernel ends this process
            kept.append(mmap.mmap(-1, 1 << 24))
            kept[-1].write(b"x" * (1 << 24))
    elif fault == "fill the disk":
        with open(Path(sys.argv[1]).with_name("filler"), "wb", buffering=0) as file:
            for size in (1 << 16, 1 << 8, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue
    else:
        raise AssertionError(fault)


def main() -> None:
    victim, fault = int(sys.argv[2]), sys.argv[3]
    pulse = last_words.pulse

    def struck(doing: str) -> None:
        pulse(doing)
        if doing == "step 1" and int(os.environ["RANK"]) == victim:
            strike(fault)

    last_words.pulse = struck
    train.main(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
