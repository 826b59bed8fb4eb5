"""Megatron-LM's arguments read back: knobs, workload and the model, from a command line, a script or YAML."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from costmodel.knobs import SETTINGS
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.stack import newest_stack
from executor.export.batch_ramp import IGNORED, RAMP, SCHEDULE, Ramp, ramp_in, ramp_line
from executor.export.configuration_text import yaml_of
from executor.export.core_model import (
    architecture,
    other_base,
    other_tokens,
    position_kind,
    said_heads,
    said_positions,
    same_models,
)
from executor.export.core_read import knobs_of, other_optimizer, said_fields
from executor.export.environment import environment_knobs, read_environment
from executor.export.exchange_read import mixed_exchange
from executor.export.exported import Reading
from executor.export.launch_read import launch_knobs, unseen
from executor.export.megatron_lm_arguments import LEGACY_LAYOUT, NO_MASK, setting_flags
from executor.export.megatron_lm_fields import OTHERS, fields_of
from executor.export.megatron_lm_names import names
from executor.export.megatron_lm_old import renamed
from executor.export.model_read import of_model
from executor.export.shell_words import left_open, read_flags

# Of Megatron-LM's arguments (core 0.16.1 to 0.19.2, arguments.py).
DEFAULT_ROTARY_BASE = 10000
# GiB from which the loader's mask is told of.
LARGE_MASK = 0.5
# Variables of the environment in the YAML of its functional tests (tests/functional_tests/test_cases).
TEST_ENVIRONMENT = "ENV_VARS"
# Flags of the workload, which no knob or setting is.
LOADS = {"--seq-length", "--micro-batch-size", "--global-batch-size"}
# How alike a flag that nothing here knows is to one that it likely means, of difflib: one letter wrong in ten or so.
MISSPELT = 0.9
# Names a file, which is looked for in the text's folder whatever variable its path begins with.
OVERLAP_FILE = "--tp-comm-overlap-cfg"
# Flags of the launch line, without which a text says nothing of how its processes start.
LAUNCHERS = {"--nproc-per-node", "--nproc_per_node", "--nodes", "--nnodes"}
# Flags that neither time nor memory of a step depends on: schedule, data, logging, checkpoints, the launcher's.
ASIDE = re.compile(
    r"--(lr|min-lr|decoupled-|moe-router-bias-update|train|eval|log|save|load|data-|split|tokenizer|weight-decay|adam|init|seed|clip|tensorboard|wandb"
    r"|spec$|transformer-impl|use-mcore|vocab|merge|distributed|ckpt|dist-ckpt|timing|exit|norm-epsilon|rotary|mock"
    r"|attention-softmax|no-check|start-weight|end-weight|override|finetune|no-load|no-save|auto-detect|async|sft"
    r"|pretrained|use-rotary|rope|use-rope|mscale|beta|no-create|num-workers|reset|eod|dataloader|no-mmap|result"
    r"|check-for|check-weight|profile|padded-vocab|no-use-layer-wise|nproc|nnodes|node|master|rdzv|standalone|no-python|job-name|account$|partition|time$|output"
    r"|error|mem|exclusive|gpus|ntasks|cpus|gres|requeue|open-mode|container|kill|segment|mpi|export|comment|qos"
    r"|bind|cpunodebind|membind|query-gpu|format|enable-experimental|disable-msc|optimizer$|fp8-amax|fp8-margin"
    r"|fp8-interval|position-embedding|max-position|micro-batch|global-batch|seq-length|make-vocab|use-flash-attn"
    r"|fp8-format|fp8-recipe|manual-gc|tp-comm-overlap-cfg|swiglu|squared-relu|quick-geglu|no-bias-|ddp-|untie"
    r"|use-sharp|is-hybrid|decrease-batch|vboost|fine-grained-offloading-max|segment|no-rope-freq|moe-latent|mtp-|hybrid-|num-experts|use-megatron-fsdp|data-parallel-sharding)"
)


def reading(text: str) -> Reading:
    """What the text means in our words. ValueError in one line when it cannot be read."""
    text = _as_flags(text)
    flags = read_flags(text)
    given, old = renamed(flags.given)
    if not {"--num-layers", "--hidden-size", "--hybrid-layer-pattern", "--hybrid-override-pattern"} & set(
        given
    ):
        raise ValueError(
            "the text has neither --num-layers nor --hidden-size, so it is no configuration of Megatron-LM. "
            "`advisor check PLAN` reads plan files."
        )
    fields = fields_of(given)
    knobs = knobs_of(fields, gpus := _world(given))
    settings = knobs.pop("settings", {}) | _flag_settings(given)
    around = environment_knobs(read_environment(text))
    settings |= (beside := around.pop("settings"))
    launch = launch_knobs(text) if LAUNCHERS & set(given) else {}
    knobs |= around | _arguments_alone(given, fields) | launch
    # The default base, which logs print too, is what a text without the flag trains with: it says nothing of the model.
    telling = {
        name: value for name, value in fields.items() if name != "rotary_base" or value != DEFAULT_ROTARY_BASE
    }
    models, vocab = same_models(telling), 0
    if models:
        model = load_model(models[0])
        knobs = of_model(knobs | {"settings": settings}, model)
        settings = knobs.pop("settings", {})
        said = fields.get("vocab_size") or fields.get("padded_vocab_size")
        # A padded size may be that of the model before padding: no other vocabulary then.
        vocab = said if said and said != model.vocab and other_tokens(fields, model) else 0
    told = {name: value for name, value in knobs.items() if _plain(name) != value}
    ramp = ramp_in(given, fields)
    return Reading(
        knobs=told | ({"settings": settings} if settings else {}),
        model=models[0] if models else "",
        architecture={} if models else architecture(fields),
        workload=_workload(given, fields) | ({"global_batch": ramp.full} if ramp else {}),
        unread=tuple(_unread(given)),
        left_open=tuple(_left_open(given)),
        otherwise=(
            *mixed_exchange(fields),
            *_branches(flags.branched),
            *_optimizer(given),
            *_other_positions(given, fields, models),
            *_ramp(ramp, fields),
            *_mask(given, fields),
            *old,
        ),
        alike=_alike(telling, models),
        vocab=vocab,
        gpus=gpus,
        mtp_heads=said_heads(fields, whole=True),
        positions=said_positions(fields),
        stack=newest_stack("megatron_lm", fields.get("cross_entropy_fusion_impl") != "te"),
        batches=ramp.smaller if ramp and "--decrease-batch-size-if-needed" not in given else (),
        unseen=unseen(around | beside, bool(launch)),
        table="".join(given.get(OVERLAP_FILE, [])[:1]) if fields["tp_comm_overlap"] else "",
        needs_tp=("sequence_parallel",),
    )


def _alike(fields: Mapping[str, Any], models: list[str]) -> tuple[str, ...]:
    """Models whose vocabulary may be the text's, which says none; none where one alone pads to what it says.

    A base of rotary positions tells them apart too.
    """
    if fields.get("vocab_size"):
        return ()
    fitting = [
        name
        for name in models
        if not other_tokens(fields, load_model(name)) and not other_base(fields, load_model(name))
    ]
    return tuple(fitting) if len(fitting) > 1 or not fields.get("padded_vocab_size") else ()


def _plain(name: str) -> Any:
    return getattr(Plan(), name)


def _as_flags(text: str) -> str:
    """YAML of Megatron-LM (--yaml-cfg) or of its functional tests as a command line; other text as it is."""
    body = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    tests = re.search(r"^\s+--[\w-]+:", body, re.MULTILINE)
    if not tests and (
        re.search(r"(?:^|[\s\"'(=])--[A-Za-z]", body) or not re.search(r"^\w+:", body, re.MULTILINE)
    ):
        return text
    record = yaml_of(text)
    words: list[str] = []
    if isinstance(record, Mapping):
        around = record.get(TEST_ENVIRONMENT)
        variables = around if isinstance(around, Mapping) else {}
        words = [f"export {name}={shlex.quote(str(value))}\n" for name, value in variables.items()]
        record = {name: value for name, value in record.items() if name != TEST_ENVIRONMENT}
    for name, value in _leaves(record):
        flag = name if name.startswith("--") else "--" + name.replace("_", "-")
        words += _yaml_words(flag, value)
    return " ".join(words)


def _leaves(node: Any) -> list[tuple[str, Any]]:
    """Names and values at the ends of nested mappings."""
    if not isinstance(node, Mapping):
        return []
    found: list[tuple[str, Any]] = []
    for name, value in node.items():
        found += _leaves(value) if isinstance(value, Mapping) else [(str(name), value)]
    return found


def _yaml_words(flag: str, value: Any) -> list[str]:
    """A setting of a YAML file as words; its switches are true or false, by the names of fields."""
    off = names()["off"].get(flag[2:].replace("-", "_"))
    if value is None or (value is False and off is None):
        return []
    if isinstance(value, bool) and off is not None:
        return [] if value else [off]
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *(str(each) for each in value)]
    if flag.endswith("modules"):  # a list, which may stand in quotes
        return [flag, *re.findall(r"[^\s,\[\]'\"]+", str(value))]
    return [flag, f"'{value}'"]


def _world(given: Mapping[str, list[str]]) -> int:
    """Ranks that the launch line or the job script names, 0 when they do not."""

    def first(*flags: str) -> str:
        return next((given[flag][0] for flag in flags if given.get(flag)), "")

    nodes = first("--nnodes", "--nodes") or "1"
    each = first("--nproc-per-node", "--nproc_per_node", "--gpus-per-node")
    each = each or (first("--gres").rsplit(":", 1)[-1] if first("--gres").startswith("gpu") else "")
    return int(nodes) * int(each) if nodes.isdigit() and each.isdigit() else 0


def _arguments_alone(given: Mapping[str, list[str]], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs that are arguments of Megatron-LM but no fields of Megatron-Core."""
    found: dict[str, Any] = {"manual_gc": "--manual-gc" in given, "sharp": "--use-sharp" in given}
    if fields.get("micro_batch_size"):
        found["micro_batch"] = fields["micro_batch_size"]
    return found


def _flag_settings(given: Mapping[str, list[str]]) -> dict[str, Any]:
    """Settings that are arguments but no fields; at their default they say nothing."""
    found: dict[str, Any] = {}
    for setting in SETTINGS.values():
        for flag in setting_flags(setting.megatron_lm):
            if flag not in given or setting.mcore:
                continue
            words = given[flag]
            if setting.kind == "bool":
                found[setting.name] = not flag.startswith(("--no-", "--disable-"))
            elif words and not left_open(words):
                found[setting.name] = setting.parse(" ".join(words))
    if {"--use-megatron-fsdp", "--use-custom-fsdp"} & set(given) and found.get(
        "ckpt_format"
    ) == "fsdp_dtensor":
        found.pop("ckpt_format")  # the only one it has
    return {name: value for name, value in found.items() if SETTINGS[name].default != value}


def _workload(given: Mapping[str, list[str]], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sequence, batch and task, as far as they are said; --finetune alone goes on with data of pretraining."""
    found: dict[str, Any] = {}
    for field, name in (("seq_length", "seq_len"), ("global_batch_size", "global_batch")):
        if isinstance(fields.get(field), int):
            found[name] = fields[field]
    if "--sft" in given:
        found["task"] = "sft"
    return found


def _ramp(ramp: Ramp | None, fields: Mapping[str, Any]) -> Iterator[str]:
    """What is trained before the full batch, and whether the release still knows the flag."""
    if ramp:
        samples, steps = (fields.get(name) for name in ("train_samples", "train_iters"))
        yield ramp_line(
            ramp, *(number if isinstance(number, int) else None for number in (samples, steps))
        ) + (f" ({IGNORED})" if ramp.said.startswith(RAMP) else "")


def _mask(given: Mapping[str, list[str]], fields: Mapping[str, Any]) -> Iterator[str]:
    """A line where the loader's mask of every token by every other is large, which nothing here counts.

    A byte of each on the GPU. Source: Megatron-Core 0.16 to 0.19.2, gpt_dataset.py, _get_ltor_masks_and_position_ids.
    """
    length, batch = fields.get("seq_length"), fields.get("micro_batch_size") or 1
    if NO_MASK in given or not isinstance(length, int):
        return
    size = batch * length**2 / 2**30
    if size >= LARGE_MASK:
        yield f"without {NO_MASK} the loader's mask takes {size:,.1f} GiB of each GPU, which is not counted: add it"


def _known() -> set[str]:
    """Every flag that says something of a plan, a model or a setting, those of fields by the field's name too."""
    return {
        *said_fields(),
        *(RAMP, SCHEDULE),
        *names()["flags"].values(),
        *names()["off"].values(),
        *OTHERS,
        *(each for setting in SETTINGS.values() for each in setting_flags(setting.megatron_lm)),
    }


def _meant(flag: str) -> bool:
    """Whether the flag says something of a plan, a model or a setting."""
    known = _known()
    return flag in known or flag.lstrip("-").replace("-", "_") in known


def _unread(given: Mapping[str, list[str]]) -> list[str]:
    """Flags that mean nothing here; of a misspelt one the flag that it likely is, which is taken as left out."""
    fields = {each if each.startswith("--") else f"--{each.replace('_', '-')}" for each in _known()}
    found = []
    for flag, values in given.items():
        aside = ASIDE.match(flag)
        if _meant(flag) or flag in LOADS:
            continue
        known = LOADS if aside else LOADS | fields
        near = difflib.get_close_matches(flag, known - given.keys(), n=1, cutoff=MISSPELT)
        if aside and not near:
            continue
        found.append(" ".join([flag, *values]) + (f" (is {near[0]} meant?)" if near else ""))
    return found


def _left_open(given: Mapping[str, list[str]]) -> list[str]:
    """Flags that mean something, but what is left to variables that the text does not set."""
    return [
        " ".join([flag, *values])
        for flag, values in given.items()
        if left_open(values) and (_meant(flag) or flag in LOADS) and flag != OVERLAP_FILE
    ]


def _branches(flags: Iterable[str]) -> Iterator[str]:
    """A line on flags that if or case of the script decides, which are read as if every branch ran."""
    if named := [flag for flag in flags if _meant(flag) or flag in LOADS]:
        yield f"{', '.join(named)}: as the last branch of if or case says, whichever runs; options win"


def _optimizer(given: Mapping[str, list[str]]) -> Iterator[str]:
    """What of the optimizer is read otherwise than it is."""
    name = "".join(given.get("--optimizer", []))
    yield from other_optimizer(name)
    dealt = name == "dist_muon" or (name == "muon" and "--use-distributed-optimizer" in given)
    if dealt and LEGACY_LAYOUT not in given:
        yield (
            f"--optimizer {name} without {LEGACY_LAYOUT}: Megatron-LM from 0.18 on pads buckets to ranks x the largest "
            "matrix, which is not counted"
        )


def _other_positions(
    given: Mapping[str, list[str]], fields: Mapping[str, Any], models: list[str]
) -> Iterator[str]:
    """A line where the text has other positions than its model: one of our catalogue, or any without Mamba layers."""
    kind, flag = position_kind(fields), "--position-embedding-type"
    said = f"{flag} {kind}" if flag in given else f"{flag} left out, which is {kind} there"
    if models:
        ours = load_model(models[0]).position_embedding
        if kind != ours:
            yield f"{said}: {models[0]} has {ours}, which is counted"
    elif kind == "none" and "M" not in str(fields.get("hybrid_layer_pattern") or ""):
        yield f"{said}: rope is counted"
