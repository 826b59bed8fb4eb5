"""Megatron-LM's own logging on a CPU: `python real_megatron.py WHEEL FOLDER OPTION ...` writes to FOLDER/OPTION.log
what the last rank of a job with that --timing-log-option would print, each in a fork that has seen no other.

Called as a job calls it: its parser, dump of arguments, timers, training_log and memory report, from the wheel of
megatron-core 0.19.2. Memory is planted, as a CPU has no allocator to ask; steps are naps of known length.
"""

from __future__ import annotations

import os
import sys
import time
import traceback

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
from executor.workers.megatron_lm_parser import load

arguments = load(sys.argv[1])
from executor.workers import cpu_shim  # noqa: E402

cpu_shim.install()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator  # noqa: E402
from megatron.training import global_vars, training  # noqa: E402

STEPS, NAPS = 12, {"forward-backward": 0.02, "forward-compute": 0.006, "optimizer": 0.003}
MEMORY = {"memory_allocated": 21000, "max_memory_allocated": 30100, "memory_reserved": 33000}
FLAGS = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
)
FLAGS += " --micro-batch-size 2 --global-batch-size 8 --train-iters 20 --lr 1e-4 --bf16 --log-throughput"
FLAGS += " --timing-log-level 2 --tokenizer-type NullTokenizer --vocab-size 1000 --log-interval 1"


def main(option: str) -> None:
    """A job of twelve steps."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sys.argv = ["pretrain_gpt.py", *FLAGS.split(), "--timing-log-option", option]
    args = arguments.parse_args()
    arguments.validate_args(args)
    args.padded_vocab_size = 1024
    args.consumed_train_samples = 0
    global_vars.set_args(args)
    global_vars._set_energy_monitor(args)
    global_vars._set_timers(args)
    init_num_microbatches_calculator(0, None, 8, 2, 1)
    parallel_state.initialize_model_parallel(1, 1)
    for name, mebibytes in (MEMORY | {"max_memory_reserved": MEMORY["memory_reserved"]}).items():
        setattr(torch.cuda, name, lambda *_, size=mebibytes: size * 2**20)
    timers = global_vars.get_timers()
    timers("interval-time", log_level=0).start(barrier=True)
    report = True
    for step in range(1, STEPS + 1):
        for name, seconds in NAPS.items():
            timers(name, log_level=1).start()
            time.sleep(seconds)
            timers(name).stop()
        args.consumed_train_samples += 8
        losses = {"lm loss": torch.tensor(9.5 - step / 10)}
        report = training.training_log(
            losses, {}, 1e-4, step, 1.0, report, 0, 1.234, None, None, None, is_first_iteration=step == 1
        )
    training.print_datetime("after training is done")
    dist.destroy_process_group()


def in_turn(folder: str, options: list[str]) -> int:
    """A job for each option; how many failed."""
    failed = 0
    for option in options:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(os.open(f"{folder}/{option}.log", os.O_WRONLY | os.O_CREAT), 1)
                main(option)
                sys.stdout.flush()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        failed += os.waitpid(child, 0)[1] != 0
    return failed


sys.exit(in_turn(sys.argv[2], sys.argv[3:]))
