"""The Python file of a NeMo 2 export: a recipe or one built from parts, its settings, how it is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from executor.export.environment import environment
from executor.export.exported import Job
from executor.export.nemo_settings import (
    CONFIG,
    GARBAGE,
    NSYS,
    OVERLAP,
    SNAPSHOT,
    STRATEGY,
    Recipe,
    arguments_of,
)
from executor.export.overlap_table import ROW, TABLE, table_of
from executor.export.python_environment import SET, environment_code
from executor.export.python_text import assignment, literal, options_of, sorted_imports
from executor.export.target_names import Names

LLM = "nemo.collections.llm"
CALLBACKS = "nemo.lightning.pytorch.callbacks"
DDP = "from megatron.core.distributed import DistributedDataParallelConfig"
PARTS = (
    (("trainer.num_nodes", "trainer.devices", "trainer.max_steps", f"{STRATEGY}."), "Nodes, parallel sizes"),
    (("data.",), "Batch"),
    ((f"{CONFIG}.",), "Model, memory, kernels"),
    (("optim.config.",), "Optimizer"),
    (("peft.",), "Adapters"),
)
TRAINER = """\
    recipe = run.Partial(
        llm.{task},
        model={model},
        trainer=run.Config(
            nl.Trainer,
            accelerator="gpu",
            max_steps=int(inputs.train_iters),
            limit_val_batches=0.0,
            log_every_n_steps=1,
            use_distributed_sampler=False,
            strategy=run.Config(nl.MegatronStrategy, gradient_as_bucket_view=True),
        ),
        log=default_log(name="{name}"),
        resume=default_resume(),
        optim=distributed_fused_adam_with_cosine_annealing(
            warmup_steps=int(inputs.warmup_iters), max_lr=float(inputs.lr), min_lr=float(inputs.min_lr)
        ),
    )
"""


def python_file(job: Job, names: Names, found: Recipe, variables: Iterable[str]) -> str:
    """The whole file. variables: of the launch script, which the file takes as options."""
    imports = {"import argparse", "import nemo_run as run"}
    body = [*_start(job, names, found, imports), *_inputs(job, imports)]
    body += [*_parts(found.settings, imports), *_callbacks(found.settings, imports)]
    per_node = found.settings["trainer.devices"]
    nodes = found.settings["trainer.num_nodes"]
    lines = [
        f'"""{job.model.name} on {job.plan.world} x {job.cluster.gpu.title}: {job.plan.describe()}.',
        "",
        f"Written by `advisor export` for NeMo {names.release} (Megatron-Core {names.core}).",
        *(f"Note: {note}." for note in found.notes),
        '"""',
        "",
        *environment_code(environment(job, "nemo")),
        "",
        *sorted_imports(imports),
        "",
        "",
        *options_of(variables),
        "",
        "",
        "def configuration(inputs: argparse.Namespace) -> run.Partial:",
        f'    """The plan: {job.workload.global_batch} sequences of {job.workload.seq_len} tokens a step."""',
        *body,
        "    return recipe",
        "",
        "",
        'if __name__ == "__main__":',
        "    recipe = configuration(given())",
        '    if "LOCAL_RANK" in os.environ:  # torchrun or srun has started one process a GPU',
        "        run.run(recipe, direct=True)",
        *_executor(nodes, per_node),
    ]
    return "\n".join(lines) + "\n"


def _executor(nodes: int, per_node: int) -> list[str]:
    """Without a launcher NeMo-Run starts the processes: on this machine, or a job of several nodes through Slurm."""
    if nodes == 1:
        return [
            "    else:",
            "        executor = run.LocalExecutor(",
            f'            ntasks_per_node={per_node}, launcher="torchrun", env_vars={SET}',
            "        )",
            "        run.run(recipe, executor=executor)",
        ]
    return [
        "    else:",
        "        executor = run.SlurmExecutor(",
        '            account=os.environ["SLURM_ACCOUNT"],',
        '            partition=os.environ["SLURM_PARTITION"],',
        '            container_image=os.environ["CONTAINER_IMAGE"],',
        f"            nodes={nodes},",
        f"            ntasks_per_node={per_node},",
        f"            gpus_per_node={per_node},",
        '            time="04:00:00",',
        '            mem="0",',
        "            exclusive=True,",
        f"            env_vars={SET},",
        "            tunnel=run.LocalTunnel(job_dir=os.getcwd()),",
        "        )",
        "        run.run(recipe, executor=executor)",
    ]


def _start(job: Job, names: Names, found: Recipe, imports: set[str]) -> Iterator[str]:
    """The recipe's function with what it takes, or a recipe made of parts."""
    tuning = job.workload.task != "pretrain"
    if not found.module:
        yield from _parts_of_recipe(job, found.shape, imports)
    else:
        function = "finetune_recipe" if tuning else "pretrain_recipe"
        takes = arguments_of(names, found.module, function) or set()
        nodes, per_node = found.settings["trainer.num_nodes"], found.settings["trainer.devices"]
        given: dict[str, Any] = {"name": job.model.name.replace(".", "_"), "num_nodes": nodes}
        given |= {"num_gpus_per_node": per_node, "use_mtp": job.model.mtp_layers > 0}
        if tuning:
            given |= {"peft_scheme": "lora" if job.workload.task == "lora" else "none"}
            given |= {"packed_sequence": job.workload.packed, "seq_length": job.workload.seq_len}
        else:
            given.pop("seq_length", None)
        said = ", ".join(f"{name}={value!r}" for name, value in given.items() if name in takes)
        said = said.replace("'", '"')
        imports.add(f"from {LLM}.recipes import {found.module}")
        yield f"    recipe = {found.module}.{function}({said})"
    imports.add(DDP)
    average = f"average_in_collective={not (job.plan.fsdp or job.plan.calculate_per_token_loss)}"
    yield f"    recipe.{STRATEGY}.ddp = run.Config(DistributedDataParallelConfig, {average})"
    yield from _plugin(found.settings, imports)
    if tuning:
        yield from _tuning(job, found.module, imports)


def _parts_of_recipe(job: Job, shape: str, imports: set[str]) -> Iterator[str]:
    model, config = "llm.GPTModel", "llm.GPTConfig"
    if job.model.mla is not None:
        imports.add(f"from {LLM}.gpt.model.deepseek import DeepSeekConfig, DeepSeekModel")
        model, config = "DeepSeekModel", "DeepSeekConfig"
    elif job.model.mamba is not None:
        imports.add(f"from {LLM}.gpt.model.ssm import MambaModel, SSMConfig")
        model, config = "MambaModel", "SSMConfig"
    imports |= {
        "from nemo import lightning as nl",
        "from nemo.collections import llm",
        f"from {LLM}.recipes.log.default import default_log, default_resume",
        f"from {LLM}.recipes.optim.adam import distributed_fused_adam_with_cosine_annealing",
    }
    task = "pretrain" if job.workload.task == "pretrain" else "finetune"
    made = f"run.Config({model}, config=run.Config({config}))"
    if shape:
        imports.add(f"from {LLM}.recipes import {shape}")
        made = f"{shape}.model()"
    yield TRAINER.format(task=task, model=made, name=job.model.name).rstrip()
    if shape:
        return
    if job.model.moe is not None and job.model.mla is None and job.model.mamba is None:
        imports |= {
            "from functools import partial",
            "from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec",
        }
        layers = "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"
        yield f"    recipe.{CONFIG}.transformer_layer_spec = {layers}"


def _plugin(settings: Mapping[str, Any], imports: set[str]) -> Iterator[str]:
    yield "    # Precision"
    name = settings["trainer.plugins"]
    if name:
        imports.add(f"from {LLM}.recipes.precision.mixed_precision import {name}")
        yield f"    recipe.trainer.plugins = {name}()"
    else:
        imports.add("from nemo.lightning.pytorch.plugins import MegatronMixedPrecision")
        yield '    recipe.trainer.plugins = run.Config(MegatronMixedPrecision, precision="32")'
    for dotted, value in settings.items():
        if dotted.startswith("trainer.plugins."):
            yield assignment(f"recipe.{dotted}", literal(dotted, value, imports))


def _tuning(job: Job, module: str, imports: set[str]) -> Iterator[str]:
    if not module:
        imports.add("from nemo.collections import llm")
        yield "    # SQuAD, as in the recipes: put your data set here."
        yield "    recipe.data = run.Config(llm.SquadDataModule)"
    if job.workload.packed:
        imports.add(f"from {LLM}.gpt.data.packed_sequence import PackedSequenceSpecs")
        yield "    recipe.data.packed_sequence_specs = run.Config(PackedSequenceSpecs)"
    if job.workload.packed or job.plan.cuda_graph:  # of one shape, see rule graph_padded
        yield '    recipe.data.dataset_kwargs = {"pad_to_max_length": True}'
    if job.workload.task == "lora":
        imports.add(f"from {LLM}.peft import LoRA")
        yield "    recipe.peft = run.Config(LoRA)"


def _parts(settings: Mapping[str, Any], imports: set[str]) -> Iterator[str]:
    for starts, title in PARTS:
        part = {dotted: value for dotted, value in settings.items() if dotted.startswith(starts)}
        if part:
            yield f"    # {title}"
        for dotted, value in part.items():
            yield assignment(f"recipe.{dotted}", literal(dotted, value, imports))


def _callbacks(settings: Mapping[str, Any], imports: set[str]) -> Iterator[str]:
    """All callbacks, in place of the recipe's: some of those set what the plan has otherwise."""
    imports |= {
        "from nemo.utils.exp_manager import TimingCallback",
        f"from {CALLBACKS}.megatron_comm_overlap import MegatronCommOverlapCallback",
    }
    yield "    # Communication beside compute; what is not said here the callback decides itself"
    yield "    overlap = run.Config(MegatronCommOverlapCallback)"
    for dotted, value in settings.items():
        if dotted.startswith(f"{OVERLAP}."):
            code = repr(value)
            if isinstance(value, Mapping):
                imports.add(f"from {LLM}.recipes.tp_overlap_configs.userbuffers import {ROW}, {TABLE}")
                code = table_of(value, "run.Config({}, ")
            yield assignment(f"overlap.{dotted.removeprefix(OVERLAP + '.')}", code)
    held = ["run.Config(TimingCallback)", "overlap"]
    for name, module, place in (
        ("garbage", "garbage_collection", GARBAGE),
        ("trace", "nsys", NSYS),
        ("snapshot", "memory_profiler", SNAPSHOT),
    ):
        fields = {
            dotted.removeprefix(f"{place}."): value
            for dotted, value in settings.items()
            if dotted.startswith(f"{place}.")
        }
        if fields:
            kind = place.removeprefix("callbacks.")
            imports.add(f"from {CALLBACKS}.{module} import {kind}")
            said = "".join(f", {field}={literal(field, value, imports)}" for field, value in fields.items())
            yield f"    {name} = run.Config({kind}{said})"
            held.append(name)
    yield f"    recipe.trainer.callbacks = [{', '.join(held)}]"


def _inputs(job: Job, imports: set[str]) -> Iterator[str]:
    """Data, tokenizer, checkpoints, before the batch is set on them."""
    if job.workload.task != "pretrain":
        return
    if job.benchmark:
        imports.add(f"from {LLM}.gpt.data.mock import MockDataModule")
        yield "    recipe.data = run.Config(MockDataModule)"
        return
    imports |= {
        f"from {LLM}.gpt.data.pre_training import PreTrainingDataModule",
        "from nemo.collections.common.tokenizers.huggingface.auto_tokenizer import AutoTokenizer",
    }
    yield "    # Prefixes of tokenised data, or weights and prefixes in turn."
    yield "    tokenizer = run.Config(AutoTokenizer, pretrained_model_name=inputs.tokenizer_model)"
    paths = "paths=inputs.data_path.split()"
    yield f"    recipe.data = run.Config(PreTrainingDataModule, {paths}, tokenizer=tokenizer)"
    yield "    recipe.log.log_dir = inputs.checkpoints"
