"""Megatron-LM's own parser and checks over many command lines: `python -m ... WHEEL`, a line of jobs in, one out.

WHEEL is an unpacked wheel of megatron-core 0.17 or later, which holds megatron.training. It is loaded once (seconds);
then each line of standard input is a list of jobs in JSON, answered by a line of standard output, until the input
ends. A job has `arguments` (words), `environment` (variables of the script), `world`, `arch` (compute capability of
the GPU). An answer has `refused` ("" when accepted), `values` (arguments as the parser leaves them), `layers` (of
every stage and chunk, as Megatron's own function builds them) and `config` (fields of the configuration it makes).
The job "flags" is answered by every flag that the parser knows.

What this machine lacks is answered for: a GPU of the job's architecture, and a Transformer Engine that is new
enough, so that what is refused is refused for the arguments. No kernel is run. A job with `groups` has the process
groups of its world made too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import io
import json
import os
import sys
import types
import typing
from typing import Any

from executor.workers import no_compiler

TE_VERSION = "2.14"
KEPT = ("PATH", "HOME", "PYTHONPATH", "LANG", "TORCHDYNAMO_DISABLE", "TMPDIR")
# Modules that import Triton, whose kernels no parser calls.
KERNELS = (
    "megatron.core.transformer.moe.ops.paged_stash",
    "megatron.core.transformer.moe.paged_stash",
)


class _Kernels(types.ModuleType):
    """A module of GPU kernels: importable, and an error when one is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"{name} is a GPU kernel; the parser called it")

        return kernel


def load(wheel: str) -> Any:
    """The modules of the wheel that parse and check."""
    sys.path.insert(0, wheel)
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda method: method  # type: ignore[attr-defined]
    for name in KERNELS:
        sys.modules[name] = _Kernels(name)
    # Groups of arguments are read from the sources of their classes, for every command line anew.
    inspect.getsource = functools.cache(inspect.getsource)
    no_compiler.install()
    import torch

    torch.cuda.get_device_capability = lambda *_, **__: (_arch(), 0)
    torch.cuda.get_device_properties = lambda *_, **__: types.SimpleNamespace(  # type: ignore[assignment]
        major=_arch(), minor=0, multi_processor_count=132, total_memory=80 << 30, name="GPU"
    )
    import megatron.core.transformer.transformer_config as transformer_config
    import megatron.core.utils as utils
    from packaging.version import Version

    utils._te_version = Version(TE_VERSION)
    utils.get_te_version = lambda: Version(TE_VERSION)
    # Sparse attention's kernels ask for a device and packages, which are none of the arguments'.
    transformer_config._validate_dsa_kernel_backend_dependencies = lambda backend: None
    from megatron.training import arguments

    _kernels_of_te()
    return arguments


def _kernels_of_te() -> None:
    """Names of Transformer Engine's kernels whose presence configurations check when built."""
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.transformer.moe.moe_utils as experts

    missing = _Kernels("transformer_engine")
    for name in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        setattr(rope, name, getattr(missing, name))
    for name in (
        "fused_permute",
        "fused_permute_with_probs",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
        "fused_unpermute",
    ):
        setattr(experts, name, getattr(missing, name))


def _arch() -> int:
    return int(os.environ.get("ADVISOR_ARCH", "9"))


def flags(arguments: Any) -> list[str]:
    """Every flag that the parser knows."""
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return [flag for action in parser._actions for flag in action.option_strings]


def answer(arguments: Any, job: dict[str, Any]) -> dict[str, Any]:
    """What Megatron-LM makes of one job."""
    for name in set(os.environ) - set(KEPT):
        os.environ.pop(name)
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(job["world"]), "ADVISOR_ARCH": str(job.get("arch", 9))}
    os.environ |= {name: value for name, value in job.get("environment", {}).items() if value is not None}
    sys.argv = ["pretrain_gpt.py", *job["arguments"]]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            args = arguments.parse_args()
            arguments.validate_args(args)
            config = arguments.core_transformer_config_from_args(args)
            layers = _layers(args, config)
            if job.get("groups"):
                _groups(args)
    except SystemExit:
        return {"refused": said.getvalue().strip().splitlines()[-1:][0] if said.getvalue() else "exit()"}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {_where(error)}{error}".strip()}
    return {
        "refused": "",
        "values": {name: _plain(value) for name, value in vars(args).items()},
        "config": {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)},
        "layers": layers,
    }


def _where(error: Exception) -> str:
    """The line that refused, for errors without a text."""
    if str(error):
        return ""
    import linecache

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    return linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()


def _layers(args: Any, config: Any) -> list[int]:
    """Layers of each chunk, chunk by chunk over the stages; none for hybrids, whose pattern says it."""
    if getattr(args, "hybrid_layer_pattern", None):
        return []
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    chunks = range(args.virtual_pipeline_model_parallel_size or 1)
    stages = range(args.pipeline_model_parallel_size)
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        return [
            sum(kind.name == "decoder" for kind in layout.layout[stage][chunk])
            for chunk in chunks
            for stage in stages
        ]
    virtual = args.virtual_pipeline_model_parallel_size is not None
    return [
        get_num_layers_to_build(config, vp_stage=chunk if virtual else None, pp_rank=stage)
        for chunk in chunks
        for stage in stages
    ]


def _groups(args: Any) -> None:
    """Megatron-Core's process groups of the whole world, on torch's fake backend: it refuses sizes that do not fit."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(backend="fake", rank=0, world_size=args.world_size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=args.tensor_model_parallel_size,
            pipeline_model_parallel_size=args.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            hierarchical_context_parallel_sizes=args.hierarchical_context_parallel_sizes,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(getattr(value, "name", value))


def main(wheel: str) -> None:
    """Answer every line of jobs. Only answers are on standard output: what libraries print goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    arguments = load(wheel)
    for line in sys.stdin:
        found = [flags(arguments) if job == "flags" else answer(arguments, job) for job in json.loads(line)]
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
