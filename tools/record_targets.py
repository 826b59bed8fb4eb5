"""Record the names that Megatron-Bridge and NeMo really have, release by release.

    python tools/record_targets.py FOLDER             reads the wheels in FOLDER, writes executor/export/*_names.toml
    python tools/record_targets.py FOLDER --download  fetches those that are missing first (about 45 MB, from PyPI)

Wheels are read as zip files and their Python as syntax trees; nothing of them is imported, so no GPU package is needed.
What every release has stands once; what only some have stands with those.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "executor" / "export"
# Release -> the Megatron-Core beside it. Bridge: the oldest of CORES that lacks fewest of the names which the release
# imports from it (0, 1, 0, 7 and 4 of 106 to 217; later ones were built beside an unreleased one), within the bounds of
# its metadata. NeMo: assumed, one minor release each; its imports do not tell (5 to 12 of 176 to 207 names
# are lacking in these, 8 to 10 in 0.17.1), and no document was read that does.
BRIDGES = {"0.2.0rc6": "0.15.3", "0.3.1": "0.16.1", "0.4.2": "0.17.1", "0.5.1": "0.18.2", "0.6.2": "0.19.2"}
NEMOS = {"2.3.0": "0.12.3", "2.4.0": "0.13.1", "2.5.0": "0.14.0", "2.6.0": "0.15.3"}
# Families of recipes that train decoders of text.
FAMILIES = (
    "llama",
    "qwen",
    "deepseek",
    "gpt",
    "gpt_oss",
    "kimi",
    "moonlight",
    "nemotronh",
    "mamba",
    "stepfun",
)
NEMO_ARGUMENTS = ("dir", "name", "num_nodes", "num_gpus_per_node")
NEMO_FURTHER = ("use_mtp", "performance_mode", "peft_scheme", "packed_sequence", "seq_length", "resume_path")

CONFIG = "megatron.bridge.training.config"
# Part of a ConfigContainer -> classes whose fields an override may name; those a release lacks are left out.
BRIDGE_CLASSES = {
    "model": (
        "megatron.bridge.models.gpt_provider.GPTModelProvider",
        "megatron.bridge.models.mla_provider.MLAModelProvider",
        "megatron.bridge.models.mamba.mamba_provider.MambaModelProvider",
        "megatron.bridge.models.deepseek.deepseek_provider.DeepSeekModelProvider",
    ),
    "train": (f"{CONFIG}.TrainingConfig",),
    "validation": (f"{CONFIG}.ValidationConfig",),
    "ddp": (f"{CONFIG}.DistributedDataParallelConfig",),
    "optimizer": (f"{CONFIG}.OptimizerConfig",),
    "scheduler": (f"{CONFIG}.SchedulerConfig",),
    "dataset": (f"{CONFIG}.GPTDatasetConfig",),
    "finetuning": (
        f"{CONFIG}.FinetuningDatasetConfig",
        "megatron.bridge.data.builders.gpt_sft.GPTSFTDatasetConfig",
    ),
    "packing": (
        "megatron.bridge.data.datasets.packed_sequence.PackedSequenceSpecs",
        "megatron.bridge.data.packing.config.PackedSequenceSpecs",
    ),
    "tokenizer": ("megatron.bridge.training.tokenizers.config.TokenizerConfig",),
    "checkpoint": (f"{CONFIG}.CheckpointConfig",),
    "dist": (f"{CONFIG}.DistributedInitConfig",),
    "rng": (f"{CONFIG}.RNGConfig",),
    "logger": (f"{CONFIG}.LoggerConfig",),
    "profiling": (f"{CONFIG}.ProfilingConfig",),
    "rerun_state_machine": (f"{CONFIG}.RerunStateMachineConfig",),
    "comm_overlap": ("megatron.bridge.training.comm_overlap.CommOverlapConfig",),
    "mixed_precision": ("megatron.bridge.training.mixed_precision.MixedPrecisionConfig",),
    "peft": ("megatron.bridge.peft.lora.LoRA",),
    "container": (f"{CONFIG}.ConfigContainer",),
}
NEMO_CLASSES = {
    "model.config": (
        "nemo.collections.llm.gpt.model.base.GPTConfig",
        "nemo.collections.llm.gpt.model.deepseek.DeepSeekConfig",
        "nemo.collections.llm.gpt.model.ssm.SSMConfig",
    ),
    "trainer.strategy": ("nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy",),
    "trainer.strategy.ddp": ("megatron.core.distributed.DistributedDataParallelConfig",),
    "trainer.plugins": ("nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision",),
    "optim.config": ("megatron.core.optimizer.OptimizerConfig",),
    "data": ("nemo.collections.llm.gpt.data.pre_training.PreTrainingDataModule",),
    "mock": ("nemo.collections.llm.gpt.data.mock.MockDataModule",),
    "packed": ("nemo.collections.llm.gpt.data.packed_sequence.PackedSequenceSpecs",),
    "peft": ("nemo.collections.llm.peft.lora.LoRA",),
    "overlap": ("nemo.lightning.pytorch.callbacks.megatron_comm_overlap.MegatronCommOverlapCallback",),
    "garbage": ("nemo.lightning.pytorch.callbacks.garbage_collection.GarbageCollectionCallback",),
    "nsys": ("nemo.lightning.pytorch.callbacks.nsys.NsysCallback",),
    "snapshot": ("nemo.lightning.pytorch.callbacks.memory_profiler.MemoryProfileCallback",),
    "environment": ("nemo.lightning.run.plugins.PerfEnvPlugin",),
}
BRIDGE_PRECISIONS = "megatron.bridge.training.mixed_precision"
NEMO_RECIPES = "nemo.collections.llm.recipes."
NEMO_PRECISIONS = f"{NEMO_RECIPES}precision.mixed_precision"
TASKS = ("pretrain", "sft", "peft", "finetune")


class Package:
    """The Python of some wheels, as syntax trees by dotted module name."""

    def __init__(self, wheels: Iterable[Path]) -> None:
        self.sources: dict[str, bytes] = {}
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".py"):
                        module = name[:-3].replace("/", ".").removesuffix(".__init__")
                        self.sources[module] = archive.read(name)
        self.trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        """The module's syntax tree, None when there is none or it is written for a newer Python."""
        if module not in self.trees:
            try:
                self.trees[module] = ast.parse(self.sources[module])
            except (KeyError, SyntaxError):
                self.trees[module] = None
        return self.trees[module]

    def find(self, dotted: str, seen: frozenset[str] = frozenset()) -> tuple[str, ast.ClassDef] | None:
        """Where a class stands, through the imports of the modules on the way."""
        module, _, name = dotted.rpartition(".")
        tree = self.tree(module)
        if tree is None or dotted in seen:
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        base = self._absolute(module, node)
                        return self.find(f"{base}.{alias.name}", seen | {dotted})
        return None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = any(other.startswith(f"{module}.") for other in self.sources)
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + is_package]
        return ".".join([*kept, node.module] if node.module else kept)

    def fields(self, dotted: str) -> set[str]:
        """Fields of a dataclass with those of its bases, or the arguments of another class's constructor."""
        found = self.find(dotted)
        if found is None:
            return set()
        module, node = found
        names = set()
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(inner, ast.Name):
                names |= self.fields(f"{module}.{inner.id}")
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list) or _annotated_only(node):
            names |= {name for name in _annotations(node) if not name.startswith("_")}
        constructor = next((each for each in node.body if _is_function(each, "__init__")), None)
        if constructor is not None:
            names |= _arguments(constructor)
        return names

    def functions(self, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        """Top-level functions of the modules below `prefix`."""
        for module in sorted(self.sources):
            if module.startswith(prefix) and (tree := self.tree(module)) is not None:
                yield from ((module, node) for node in tree.body if isinstance(node, ast.FunctionDef))

    def aliases(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Module and name of what its top level imports under another name."""
        for module in sorted(self.sources):
            if module.startswith(prefix) and (tree := self.tree(module)) is not None:
                for node in tree.body:
                    if isinstance(node, ast.ImportFrom):
                        yield from ((module, each.asname) for each in node.names if each.asname)


def _is_function(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _annotations(node: ast.ClassDef) -> list[str]:
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


def _annotated_only(node: ast.ClassDef) -> bool:
    return not any(_is_function(each, "__init__") for each in node.body)


def _arguments(node: ast.FunctionDef) -> set[str]:
    return {each.arg for each in [*node.args.args, *node.args.kwonlyargs]} - {"self"}


@dataclass
class Names:
    """What each release of one target has, by section."""

    releases: dict[str, str]
    sections: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    def add(self, release: str, section: str, names: Iterable[str]) -> None:
        """Note names of a section in a release."""
        self.sections.setdefault(section, {}).setdefault(release, set()).update(names)

    def text(self, title: str, sources: str) -> str:
        """The table as TOML: names of all releases together, the others with those that have them."""
        lines = [f"# {title}", "# Written by tools/record_targets.py; do not edit.", f'source = "{sources}"']
        lines.append(f"releases = {_list(self.releases)}")
        lines += ["", "[megatron_core]  # the release that it is written for"]
        lines += [f'"{release}" = "{core}"' for release, core in self.releases.items()]
        for section, found in self.sections.items():
            lines += ["", f'["{section}"]']
            every = set.intersection(*(found.get(release, set()) for release in self.releases))
            lines += [f"always = {_list(sorted(every))}"]
            others: dict[tuple[str, ...], list[str]] = {}
            for name in sorted(set.union(*found.values()) - every):
                having = tuple(release for release in self.releases if name in found.get(release, set()))
                others.setdefault(having, []).append(name)
            lines += [f'"{" ".join(having)}" = {_list(names)}' for having, names in sorted(others.items())]
        return "\n".join(lines) + "\n"


def _list(names: Iterable[str]) -> str:
    """A TOML array, lines within 120."""
    text, width, parts = "", 0, [f'"{name}"' for name in names]
    if sum(len(part) + 2 for part in parts) < 80:
        return f"[{', '.join(parts)}]"
    for part in parts:
        if width + len(part) > 110:
            text, width = text.rstrip() + "\n    ", 0
        text, width = text + part + ", ", width + len(part) + 2
    return f"[\n    {text.rstrip()}\n]"


def wheel(folder: Path, name: str, release: str) -> Path:
    """The wheel of a release. SystemExit with the way out when it is not there."""
    found = sorted(folder.glob(f"{name}-{release}-*.whl"))
    if not found:
        sys.exit(f"{folder} has no {name} {release}. Add --download.")
    return found[0]


def download(folder: Path) -> None:
    """Fetch what is missing from PyPI; wheels are read only, so those for another Python will do."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--ignore-requires-python"]
    cores = {**BRIDGES, **NEMOS}.values()
    pinned = {"megatron_core": cores, "megatron_bridge": BRIDGES, "nemo_toolkit": NEMOS}
    for name, releases in pinned.items():
        for release in releases:
            if not list(folder.glob(f"{name}-{release}-*.whl")):
                newer = ["--python-version", "3.12", "--only-binary", ":all:"]
                args = ["-d", str(folder), f"{name.replace('_', '-')}=={release}"]
                if subprocess.run([*pip, *args]).returncode:
                    subprocess.run([*pip, *newer, *args], check=True)


def record(folder: Path, name: str, releases: dict[str, str], classes: dict[str, tuple[str, ...]]) -> Names:
    """Fields of the classes, precision recipes and model recipes of each release."""
    names = Names(releases)
    for release, core in releases.items():
        both = Package([wheel(folder, "megatron_core", core), wheel(folder, name, release)])
        for section, dotted in classes.items():
            names.add(release, section, set().union(*(both.fields(each) for each in dotted)))
        if name == "megatron_bridge":
            _bridge_recipes(release, both, names)
        else:
            _nemo_recipes(release, both, names)
    return names


def _bridge_recipes(release: str, package: Package, names: Names) -> None:
    """Precision recipes, and module:function of every recipe, which needs no arguments."""
    precisions = [
        node.name for _, node in package.functions(BRIDGE_PRECISIONS) if node.name.endswith("_mixed")
    ]
    names.add(release, "precisions", precisions)
    ends = tuple(f"{task}_config" for task in TASKS)
    for family in FAMILIES:
        prefix = f"megatron.bridge.recipes.{family}."
        for module, node in package.functions(prefix):
            short = module.removeprefix("megatron.bridge.recipes.")
            # Below the GPUs' folders stand recipes of one GPU count each, and a few that are named nowhere else.
            general = short.count(".") == 1 or "gpu_" not in node.name
            if node.name.endswith(ends) and not node.name.startswith(("_", "default")) and general:
                names.add(release, "recipes", [f"{short}:{node.name}"])
        for module, alias in package.aliases(prefix):
            short = module.removeprefix("megatron.bridge.recipes.")
            if alias.endswith(ends) and short.count(".") == 1:
                names.add(release, "recipes", [f"{short}:{alias}"])


def _nemo_recipes(release: str, package: Package, names: Names) -> None:
    """Precision recipes, module:function of every recipe with its further arguments, and its model's class."""
    precisions = [node.name for _, node in package.functions(NEMO_PRECISIONS) if node.name.endswith("_mixed")]
    names.add(release, "precisions", precisions)
    for module, node in package.functions(NEMO_RECIPES):
        short = module.removeprefix(NEMO_RECIPES)
        if node.name in ("pretrain_recipe", "finetune_recipe"):
            named = [each.arg for each in [*node.args.args, *node.args.kwonlyargs]]
            more = [arg for arg in NEMO_FURTHER if arg in named]
            less = [f"-{arg}" for arg in NEMO_ARGUMENTS if arg not in named]
            names.add(release, node.name, [" ".join([short, *more, *less])])
        elif node.name == "model":
            inner = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and "Config" in each.id}
            names.add(release, "configs", [f"{short}:{config}" for config in sorted(inner)])


def main() -> None:
    """Read the wheels, write the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--download", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.download:
        download(given.folder)
    bridge = record(given.folder, "megatron_bridge", BRIDGES, BRIDGE_CLASSES)
    (HERE / "megatron_bridge_names.toml").write_text(
        bridge.text("Names that Megatron-Bridge has, by release.", "wheels of megatron-bridge on PyPI"),
        "utf-8",
    )
    nemo = record(given.folder, "nemo_toolkit", NEMOS, NEMO_CLASSES)
    (HERE / "nemo_names.toml").write_text(
        nemo.text("Names that NeMo has, by release.", "wheels of nemo-toolkit on PyPI"), "utf-8"
    )


if __name__ == "__main__":
    main()
