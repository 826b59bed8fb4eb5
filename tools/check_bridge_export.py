"""Whether the real Megatron-Bridge accepts exported files, without a GPU and without its heavy requirements.

    python tools/check_bridge_export.py RELEASE FOLDER FILE...

FOLDER holds the wheels that tools/record_targets.py --download fetched. The release's own ConfigContainer, recipes,
CommOverlapConfig and mixed precision run, with the Megatron-Core it is written for, then `ConfigContainer.validate()`.
Not real: packages that need a GPU or a download (Transformer Engine, transformers, ...) are stand-ins, so what depends
on their versions is not seen; and where a recipe reads a model from Hugging Face, its sizes come from our model file.
One line a file: ok, or what Bridge said.
"""

from __future__ import annotations

import abc
import argparse
import dataclasses
import importlib.abc
import importlib.machinery
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
import types
import typing
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
GIVEN = {"data_path": "1.0 /data/text", "tokenizer_model": "/data/tokenizer", "checkpoints": "/tmp/none"}
GIVEN |= {
    "pretrained": tempfile.gettempdir(),
    "train_iters": "1000",
    "lr": "3e-4",
    "min_lr": "3e-5",
    "warmup_iters": "10",
}
# Absent here and never stood in for: their importers ask whether they are there.
REALLY_ABSENT = ("apex", "numba", "amp_C", "flash_attn_3", "nvidia_kitchen", "kitchen", "tensorstore", "zarr")


class _Anything(abc.ABCMeta):
    """A class whose attributes, calls and items are stand-ins too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def register(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else None

    def __or__(cls, other: Any) -> Any:
        return typing.Any

    __ror__ = __or__

    def __iter__(cls) -> Any:
        return iter(())


def _stand_in(name: str) -> Any:
    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        plain = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if plain else object.__new__(cls)  # as a decorator it changes nothing

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    methods: dict[str, Any] = {
        "__init_subclass__": classmethod(lambda cls, **_: None),
        "__new__": make,
        "__init__": lambda self, *a, **k: None,
        "__getattr__": _of,
        "__call__": call,
    }
    return _Anything(
        name, (), methods | {"__iter__": lambda self: iter(()), "__getitem__": lambda self, _: self}
    )


def _of(self: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _stand_in(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder: makes every package up that no other has found."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        if (
            top in REALLY_ABSENT
            or (top == "megatron" and not name.startswith("megatron.energon"))
            or top in _REAL
        ):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []  # type: ignore[attr-defined]
        module.__version__ = "2.13.0"  # type: ignore[attr-defined]
        module.__getattr__ = _attribute  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Adam:
    """Transformer Engine's optimizer, whose arguments Megatron-Core asks for."""

    def __init__(
        self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
    ) -> None: ...


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "FusedAdam":
        return _Adam
    return _stand_in(name)


_REAL = ("torch", "numpy", "torchvision", "pandas", "scipy")


def prepare() -> None:
    """Stand-ins, and the newest words of typing."""
    import typing_extensions

    for name in ("override", "Unpack"):
        if not hasattr(typing, name):
            setattr(typing, name, getattr(typing_extensions, name))
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "TORCHDYNAMO_DISABLE": "1"}
    os.environ["NVTE_CPU_OFFLOAD_V1"] = "1"  # as the launch script has it with offloading
    paged = types.ModuleType("megatron.core.transformer.moe.ops.paged_stash")
    paged.__getattr__ = _attribute  # type: ignore[attr-defined]
    sys.modules[paged.__name__] = paged
    import tabulate  # noqa: F401
    import torch
    import torch.distributed.checkpoint  # with its optional packages really absent
    import tqdm  # noqa: F401
    import yaml  # noqa: F401
    from torch.utils._triton import has_triton_package

    has_triton_package()  # remembers that there is none, before there seems to be one
    sys.meta_path.append(_Finder())
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0, name="NVIDIA H100")  # type: ignore[assignment,misc]
    torch.cuda.current_device = lambda: 0


def provider(name: str) -> Any:
    """The recipe's model as its provider would be: our sizes, in the release's own class."""
    sys.path.append(str(HERE))
    from costmodel.model_registry import load_model
    from executor.megatron_model import model_arguments, model_fields

    model = load_model(name)
    module, wanted = "gpt_provider", "GPTModelProvider"
    if model.mla is not None:
        module, wanted = "mla_provider", "MLAModelProvider"
    if model.mamba is not None:
        module, wanted = "mamba.mamba_provider", "MambaModelProvider"
    cls = getattr(__import__(f"megatron.bridge.models.{module}", fromlist=[wanted]), wanted)
    fields = {**model_fields(model), **model_arguments(model, 1, 4096)}
    fields["vocab_size"] = model.vocab
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    from torch.nn.functional import gelu, relu, silu

    functions = {each.__name__: each for each in (gelu, relu, silu, quick_gelu, squared_relu)}
    fields["activation_func"] = functions[fields["activation_func"]]
    if fields.get("window_size"):
        fields["window_size"] = tuple(fields["window_size"])
    known = {each.name for each in dataclasses.fields(cls)}
    return cls(**{field: value for field, value in fields.items() if field in known})


def check(path: Path) -> str:
    """ok, or the first line of what Bridge said."""
    text = path.read_text("utf-8")
    name, _, rest = text.removeprefix('"""').partition(" on ")
    os.environ["WORLD_SIZE"] = rest.split()[0]
    import megatron.bridge as bridge

    made = types.SimpleNamespace(
        to_megatron_provider=lambda *_, **__: provider(name),
        from_hf_pretrained=lambda *_, **__: made,
    )
    bridge.AutoBridge.from_hf_pretrained = lambda *_, **__: made
    bridge.AutoBridge.from_hf_config = lambda *_, **__: made
    found = runpy.run_path(str(path), run_name="exported")
    given = argparse.Namespace(**GIVEN)
    config = found["with_inputs"](found["configuration"](given), given)
    from megatron.bridge.training.config import runtime_config_update

    for part in (
        "model",
        "ddp",
        "optimizer",
        "train",
        "dataset",
        "comm_overlap",
        "mixed_precision",
        "dist",
        "rng",
    ):
        held = getattr(config, part)
        said = set(re.findall(rf"^    cfg\.{part}\.(\w+) = ", text, re.MULTILINE))
        unknown = {
            name
            for name in said - {each.name for each in dataclasses.fields(held)}
            if not hasattr(type(held), name)
        }
        if unknown:
            raise ValueError(f"{part} has no field {sorted(unknown)}")
    runtime_config_update(config)
    config.validate()
    return "ok"


def check_all(paths: Sequence[Path]) -> int:
    """A line for each file; a fork each, since configurations change what is imported. 1 when one is refused."""
    prepare()
    import megatron.bridge.training.pretrain  # noqa: F401  once for all

    failed = False
    for path in paths:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 1
            try:
                said = check(path)
                code = 0
            except BaseException as error:
                said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                if os.environ.get("VERBOSE"):
                    traceback.print_exc()
            print(f"{path.name}: {said}", flush=True)
            os._exit(code)
        failed |= os.waitpid(child, 0)[1] != 0
    return int(failed)


def unpacked(folder: Path, release: str) -> list[str]:
    """Folders of the release and its Megatron-Core, unzipped beside the wheels' own."""
    sys.path.insert(0, str(Path(__file__).parent))
    from record_targets import BRIDGES, wheel

    places = []
    for name, number in (("megatron_bridge", release), ("megatron_core", BRIDGES[release])):
        place = Path(tempfile.gettempdir()) / "advisor-wheels" / f"{name}-{number}"
        if not place.is_dir():
            with zipfile.ZipFile(wheel(folder, name, number)) as archive:
                archive.extractall(place)
        places.append(str(place))
    return places


def main() -> int:
    """The files before the release, in a process that has it on its path."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("release")
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    # Both packages have a folder `megatron` without __init__: they are one namespace.
    around = os.environ | {"PYTHONPATH": os.pathsep.join(unpacked(given.folder, given.release))}
    command = [sys.executable, "-W", "ignore", __file__, "--these", *map(str, given.files)]
    return subprocess.run(command, env=around).returncode


if __name__ == "__main__":
    sys.exit(check_all([Path(name) for name in sys.argv[2:]]) if sys.argv[1:2] == ["--these"] else main())
