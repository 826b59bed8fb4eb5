"""The Python file of a Megatron-Bridge export: a recipe or a whole ConfigContainer, the overrides, the launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from executor.export.environment import environment
from executor.export.exported import Job
from executor.export.megatron_bridge_settings import Overrides
from executor.export.overlap_table import FIELD, ROW, TABLE, table_of
from executor.export.python_environment import SET, UNSET, environment_code
from executor.export.python_text import assignment, literal, options_of, sorted_imports
from executor.export.target_names import Names

BRIDGE = "megatron.bridge"
TITLES = {
    "model": "Model, parallel sizes, memory, kernels",
    "train": "Batch and loop",
    "ddp": "Data parallelism",
    "optimizer": "Optimizer",
    "mixed_precision": "Precision",
    "comm_overlap": "Communication beside compute; what is not said here Bridge decides itself",
    "dataset": "Data",
    "peft": "Adapters",
}
# What a ConfigContainer needs that no plan knows; the learning rate is the user's.
CONTAINER = """\
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=int(inputs.warmup_iters),
        max_lr=float(inputs.lr),
        min_lr=float(inputs.min_lr),
    )
    cfg = ConfigContainer(
        model=model,
        train=TrainingConfig(
            train_iters=int(inputs.train_iters), global_batch_size={batch}, micro_batch_size={micro}
        ),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig(),
        dataset=GPTDatasetConfig(
            random_seed=1234,
            {length}={seq_len},
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            split="99,1,0",
        ),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(),
        checkpoint=CheckpointConfig(save_interval=500, ckpt_format="torch_dist"),
        rng=RNGConfig(),
    )
"""
CONTAINER_NAMES = (
    "CheckpointConfig ConfigContainer DistributedDataParallelConfig GPTDatasetConfig LoggerConfig RNGConfig"
)
CONTAINER_NAMES += " TrainingConfig"
# Layers of models that Megatron-Core's usual specification does not build.
MIXED_LAYERS = "from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec"
DELTA_LAYERS = (
    "from megatron.core.models.gpt.experimental_attention_variant_module_specs import "
    "get_transformer_block_with_experimental_attention_variant_spec"
)


def python_file(job: Job, names: Names, found: Overrides, variables: Iterable[str]) -> str:
    """The whole file. variables: of the launch script, which the file takes as options."""
    imports = {"import argparse", f"from {BRIDGE}.training.config import ConfigContainer"}
    variables_set = environment(job, "megatron-bridge")
    body = [*_start(job, names, found, imports), *_overrides(found, imports)]
    if names.has("container", "env_vars"):
        body += _variables(any(each.value is None for each in variables_set))
    user = list(_inputs(job, imports))
    task = "pretrain" if job.workload.task == "pretrain" else "finetune"
    imports |= {f"from {BRIDGE}.training.{task} import {task}"}
    imports |= {f"from {BRIDGE}.training.gpt_step import forward_step"}
    lines = [
        f'"""{job.model.name} on {job.plan.world} x {job.cluster.gpu.title}: {job.plan.describe()}.',
        "",
        f"Written by `advisor export` for Megatron-Bridge {names.release} (Megatron-Core {names.core}).",
        *(f"Note: {note}." for note in found.notes),
        '"""',
        "",
        *environment_code(variables_set),
        "",
        *sorted_imports(imports),
        "",
        f"WORLD_SIZE = {job.plan.world}",
        "",
        "",
        *options_of(variables),
        "",
        "",
        "def configuration(inputs: argparse.Namespace) -> ConfigContainer:",
        f'    """The plan: {job.workload.global_batch} sequences of {job.workload.seq_len} tokens a step."""',
        *body,
        "    return cfg",
        "",
        "",
        "def with_inputs(cfg: ConfigContainer, inputs: argparse.Namespace) -> ConfigContainer:",
        '    """What the plan does not know: data, tokenizer, checkpoints."""',
        *user,
        "    return cfg",
        "",
        "",
        'if __name__ == "__main__":',
        '    world = int(os.environ.get("WORLD_SIZE", "1"))',
        "    if world != WORLD_SIZE:",
        '        raise SystemExit(f"{world} processes, and the plan is for {WORLD_SIZE}: launch all with torchrun")',
        "    inputs = given()",
        f"    {task}(config=with_inputs(configuration(inputs), inputs), forward_step_func=forward_step)",
    ]
    return "\n".join(lines) + "\n"


def _start(job: Job, names: Names, found: Overrides, imports: set[str]) -> Iterator[str]:
    """The recipe, or the model's provider in a ConfigContainer."""
    if found.recipe:
        module, _, function = found.recipe.partition(":")
        imports.add(f"from {BRIDGE}.recipes.{module} import {function}")
        yield f"    cfg = {function}()"
    else:
        yield from _container(job, names, imports)
    if job.workload.task != "pretrain":
        newer = names.has("finetuning", "enable_offline_packing")
        module = "dataset_utils" if newer else "finetune_utils"
        imports.add(f"from {BRIDGE}.recipes.utils.{module} import default_squad_config")
        multiple = 2 * job.plan.cp if job.plan.cp > 1 else 1
        yield "    # SQuAD, as in the recipes: put your data set here."
        yield f"    cfg.dataset = default_squad_config({job.workload.seq_len}, {job.workload.packed}, {multiple})"


def _container(job: Job, names: Names, imports: set[str]) -> Iterator[str]:
    module, provider = provider_of(job, names)
    imports |= {
        f"from {BRIDGE}.{module} import {provider}",
        f"from {BRIDGE}.training.tokenizers.config import TokenizerConfig",
        f"from {BRIDGE}.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing",
    }
    imports.discard(f"from {BRIDGE}.training.config import ConfigContainer")
    inner = "".join(f"    {name},\n" for name in CONTAINER_NAMES.split())
    imports.add(f"from {BRIDGE}.training.config import (\n{inner})")
    model = job.model
    sizes = (
        f"num_layers={model.num_layers}, hidden_size={model.hidden}, num_attention_heads={model.num_heads}"
    )
    yield f"    model = {provider}({sizes})"
    if model.gated_delta is not None or model.indexer is not None:
        imports.add(DELTA_LAYERS)
        yield "    model.transformer_layer_spec = get_transformer_block_with_experimental_attention_variant_spec"
    elif model.moe is not None and model.mamba is None:
        imports |= {"from functools import partial", MIXED_LAYERS}
        yield "    model.transformer_layer_spec = partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"
    length = "seq_length" if names.has("dataset", "seq_length") else "sequence_length"
    yield CONTAINER.format(
        batch=job.workload.global_batch,
        micro=job.plan.micro_batch,
        length=length,
        seq_len=job.workload.seq_len,
    ).rstrip()


def provider_of(job: Job, names: Names) -> tuple[str, str]:
    """Module and class that hold the model's configuration in the release."""
    if job.model.mamba is not None:
        return "models.mamba.mamba_provider", "MambaModelProvider"
    if job.model.mla is None:
        return "models.gpt_provider", "GPTModelProvider"
    if names.numbers < (0, 3):
        return "models.deepseek.deepseek_provider", "DeepSeekModelProvider"
    return "models.mla_provider", "MLAModelProvider"


def _overrides(found: Overrides, imports: set[str]) -> Iterator[str]:
    """The overrides by part of the container, parts that are made anew first."""
    for section in dict.fromkeys(dotted.partition(".")[0] for dotted in found.settings):
        part = {
            dotted: value for dotted, value in found.settings.items() if dotted.partition(".")[0] == section
        }
        yield f"    # {TITLES.get(section, section.capitalize().replace('_', ' '))}"
        yield from _made(section, part, imports)
        for dotted, value in part.items():
            if dotted.endswith(f".{FIELD}") and isinstance(value, Mapping):
                imports.add(f"from {BRIDGE}.training.comm_overlap import {ROW}, {TABLE}")
                yield assignment(f"cfg.{dotted}", table_of(value))
            elif "." in dotted:
                yield assignment(f"cfg.{dotted}", literal(dotted, value, imports))


def _made(section: str, part: Mapping[str, Any], imports: set[str]) -> Iterator[str]:
    if section == "mixed_precision":
        recipe = part["mixed_precision"]
        name = "get_mixed_precision_config" if recipe else "MixedPrecisionConfig"
        imports.add(f"from {BRIDGE}.training.mixed_precision import {name}")
        yield (
            f'    cfg.mixed_precision = {name}("{recipe}")'
            if recipe
            else f"    cfg.mixed_precision = {name}()"
        )
    elif section == "comm_overlap":
        imports.add(f"from {BRIDGE}.training.comm_overlap import CommOverlapConfig")
        yield f"    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap={part['comm_overlap.tp_comm_overlap']})"
    elif section == "peft":
        imports.add(f"from {BRIDGE}.peft.lora import LoRA")
        yield "    cfg.peft = LoRA()"


def _variables(some_unset: bool) -> list[str]:
    """What the recipe would set of the environment, without what must not be set."""
    kept = f"{{name: text for name, text in cfg.env_vars.items() if name not in {UNSET}}}"
    before = f"{kept} | {SET}" if some_unset else f"cfg.env_vars | {SET}"
    return ["    # Environment: a recipe has variables of its own", f"    cfg.env_vars = {before}"]


def _inputs(job: Job, imports: set[str]) -> Iterator[str]:
    """Data, tokenizer, checkpoints; nothing for a benchmark, which has them from nowhere."""
    tuning = job.workload.task != "pretrain"
    if not job.benchmark:
        yield '    cfg.tokenizer.tokenizer_type = "HuggingFaceTokenizer"'
        yield "    cfg.tokenizer.tokenizer_model = inputs.tokenizer_model"
        yield "    cfg.checkpoint.save = cfg.checkpoint.load = inputs.checkpoints"
        if not tuning:
            imports.add("from megatron.core.datasets.utils import get_blend_from_list")
            yield "    # Prefixes of tokenised data, or weights and prefixes in turn."
            yield "    cfg.dataset.blend = get_blend_from_list(inputs.data_path.split())"
    if tuning:
        yield "    cfg.checkpoint.pretrained_checkpoint = inputs.pretrained"
    if job.benchmark and not tuning:
        yield "    # A benchmark: data from nowhere, no checkpoints."
