"""A case from another framework's configuration: its text read back, and what it does not say from options."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.case import Case, with_ways
from advisor.case_whose import check_whose
from advisor.options import given_knobs, plan_from_options
from advisor.workload_options import check_acting, given_workload
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile
from costmodel.stack import load_stack
from costmodel.workload import Workload

if TYPE_CHECKING:
    from advisor.torchtitan.job import Job
    from executor.export.exported import Reading

TITAN = "torchtitan"  # whose job files mean what rows of its published runs do
TARGETS = ("megatron-lm", "megatron-bridge", "nemo", TITAN)
LARGEST = 1 << 20
TOLD = 8  # names of what was not read that are told one by one


def read_foreign(target: str, given: str | None, options: dict[str, Any]) -> Case:
    """The case that a configuration of `target` means; options win over it. ValueError in one line."""
    if target not in TARGETS:
        hint = ""
        if given is None and Path(target).is_file():
            hint = f" It is a file: say whose before it, as --from {TITAN if target.endswith('.toml') else TARGETS[0]}."
        raise ValueError(f"--from {target!r} is not a source. Sources: {', '.join(TARGETS)}.{hint}")
    text = _text(target, given)
    check_whose(text, given or text, target)
    if target == TITAN:
        from advisor.torchtitan.reading import read_text

        job = read_text(text)
        return with_ways(options, lambda told: _of_job(job, told))
    from executor.export.bundle import target_module

    found: Reading = target_module(target).read(text)
    return with_ways(options, lambda told: _read(found, given, told))


def _read(found: Reading, given: str | None, options: dict[str, Any]) -> Case:
    notes = [_left_open(found)] if found.left_open else []
    notes += [_unread(found)] if found.unread else []
    notes += [f"Read otherwise than it is said: {'; '.join(found.otherwise)}."] if found.otherwise else []
    found = _with_launch(found, given, options, notes)
    found = _with_table(found, given, options, notes)
    model = _model(found, options, notes)
    notes += _unsaid(found, model, options)
    plan = _plan(found, options, notes)
    workload = _workload(found, model, plan, options, notes)
    return _case(model, workload, plan, options | {"stack": _stack(found, options, notes)}, notes)


def _of_job(job: Job, options: dict[str, Any]) -> Case:
    """The case of a job file of torchtitan."""
    from advisor.torchtitan.run import run_of

    notes: list[str] = []
    run = run_of(job, options, notes)
    check_acting(given_workload(options), run.workload, run.model)
    return _case(run.model, run.workload, run.plan, options | {"stack": run.stack}, notes)


def _with_launch(found: Reading, given: str | None, options: dict[str, Any], notes: list[str]) -> Reading:
    """What was read, with the launch script in its file's folder that starts it; a note on what neither says."""
    from executor.export.launch_read import scripts_beside, unseen_line, with_scripts

    scripts = (
        scripts_beside(Path(given).expanduser()) if given and given != "-" and not _is_text(given) else {}
    )
    if scripts:
        say = "say" if len(scripts) > 1 else "says"
        notes.append(f"Environment and launch as {' and '.join(scripts)} beside it {say}.")
        found = with_scripts(found, scripts)
    if left := [name for name in found.unseen if options.get(name) is None]:
        notes.append(unseen_line(left))
    return found


def _with_table(found: Reading, given: str | None, options: dict[str, Any], notes: list[str]) -> Reading:
    """What was read, with the file of overlapped GEMMs that it names; a note where that is not there."""
    if not found.table:
        return found
    from executor.export.launch_read import table_file, with_table
    from executor.export.unsaid import OVERLAP_KNOBS

    typed = not given or given == "-" or _is_text(given)
    path = table_file(found.table, Path() if typed else Path(given or "").expanduser().parent)
    if path:
        read = with_table(found, path)
        named = f"Splits and SMs of overlapped GEMMs as {path.name} says."
        usual = f"{path.name} names no splits or SMs of a pipelined proj_fprop but the usual ones, which are taken."
        notes.append(usual if read == found else named)
        return read
    if left := ["--" + name.replace("_", "-") for name in OVERLAP_KNOBS if options.get(name) is None]:
        notes.append(
            f"{found.table.rpartition('/')[2]}, which --tp-comm-overlap-cfg names, is not beside the text: "
            f"{', '.join(left)} are as usual unless you give them."
        )
    return found


def _is_text(given: str) -> bool:
    """Whether what was given is the configuration itself rather than its file."""
    return "--" in given or "\n" in given or "=" in given


def _text(target: str, given: str | None) -> str:
    """The text itself, of a file, or of standard input; ValueError in one line where there is none."""
    if given is not None and not given.strip():
        raise ValueError(
            f"--from {target} is given {given!r}: no file and no arguments, as of a variable that is not set. "
            f"Try `advisor check --from {target} FILE --gpu h100`, or quote the configuration's text."
        )
    if not given:
        raise ValueError(
            f"--from {target} needs a file or the arguments in quotes. "
            f'Try `advisor check --from {_example(target)} --gpu h100`, or "-" for standard input.'
        )
    if given == "-":
        return _said(sys.stdin.read(LARGEST + 1), "standard input", target)
    if _is_text(given):
        return given
    path = Path(given).expanduser()
    if path.is_dir():
        raise ValueError(f"{given} is a folder. Name the file in it that holds the configuration.")
    if not path.exists():
        raise ValueError(
            f"{given} is no file, and no arguments either. Name the file, or quote the arguments."
        )
    with path.open(encoding="utf-8", errors="replace") as file:  # a pipe tells no size
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"{given} is larger than 1 MiB, so it is no configuration. Check the path.")
    return _said(text, given, target)


def _example(target: str) -> str:
    return f"{TITAN} job.toml" if target == TITAN else "megatron-lm train.sh"


def _said(text: str, where: str, target: str) -> str:
    """The text; ValueError in one line where it says nothing or is none."""
    if "\0" in text:
        raise ValueError(
            f"{where} is binary, no text of a configuration of {target}. Name the file that says it."
        )
    if not text.strip():
        raise ValueError(f"{where} is empty: it says no configuration of {target}. Check what wrote it.")
    return text


def _open_sizes(found: Reading) -> str:
    return (
        f"It leaves {_first(found.left_open)} to variables that it does not set. " if found.left_open else ""
    )


def _left_open(found: Reading) -> str:
    return (
        f"Left to variables that the text does not set: {_first(found.left_open)}. They count as left out, but for "
        "what your options say: write the values into the text, or give options such as --tp."
    )


def _unsaid(found: Reading, model: ModelSpec, options: dict[str, Any]) -> list[str]:
    """What a recipe sets that is not read from it, as it stands in the framework's code: nothing, or one line."""
    names = [name for name in found.unsaid if options.get(name) is None and (name != "ep" or model.moe)]
    left = ["--" + name.replace("_", "-") for name in names]
    if not left:
        return []
    return [
        f"Not said: {', '.join(left)}. They count as 1 or off, whatever a recipe sets that the text begins with: give "
        "these options, or the whole configuration as its framework dumps it."
    ]


def _unread(found: Reading) -> str:
    return f"Not read, as nothing here knows it: {_first(found.unread)}."


def _first(told: tuple[str, ...]) -> str:
    """The first of what was not read, and how many more there are."""
    more = f" and {len(told) - TOLD} more" if len(told) > TOLD else ""
    return ", ".join(told[:TOLD]) + more


def _model(found: Reading, options: dict[str, Any], notes: list[str]) -> ModelSpec:
    from costmodel.model_file import from_mapping
    from costmodel.model_registry import load_model

    if options.get("model"):
        return _as_said(load_model(options["model"]), found, notes)
    if found.model:
        notes.append(f"{found.model}: the model of our catalogue that has these sizes.")
        if found.alike:
            notes.append(
                f"The vocabulary is not said: {' or '.join(found.alike)} may be meant, and the "
                f"{load_model(found.model).vocab:,} tokens of {found.model} are counted; --vocab-size in the "
                "configuration, or --model, says another."
            )
        model = load_model(found.model)
        if found.vocab:
            notes.append(
                f"The vocabulary of {found.model} is {model.vocab:,}, the configuration says {found.vocab:,}: "
                "the model's is counted."
            )
        return _as_said(model, found, notes)
    shape = dict(found.architecture)
    if not shape.get("num_layers") and not shape.get("layer_pattern"):
        raise ValueError(
            "the configuration does not say which model it trains: it has no sizes, and no recipe that is known here. "
            f"{_open_sizes(found)}Add --model, such as --model 70b; `advisor models` lists them."
        )
    if not shape.get("vocab"):
        shape["vocab"] = 128256
        notes.append(
            "Vocabulary not said: 128,256 tokens as in Llama 3; --vocab-size in the configuration sets another."
        )
    return from_mapping({"name": "as configured", **shape})


def _as_said(model: ModelSpec, found: Reading, notes: list[str]) -> ModelSpec:
    """The model with the MTP heads and the table of positions that the configuration says; hybrids keep their heads."""
    said, positions = found.mtp_heads, model.learned_positions
    if positions and found.positions not in (0, positions):
        notes.append(
            f"Learned positions: {model.name} has {positions:,}, the configuration {found.positions:,}, which is "
            "counted."
        )
        model = replace(model, learned_positions=found.positions)
    if said is None or said == model.mtp_layers or (said and model.layer_pattern):
        return model
    notes.append(
        f"MTP heads: {model.name} has {model.mtp_layers}, the configuration {said or 'none'}, which is counted."
    )
    return replace(model, mtp_layers=said, mtp_pattern=model.mtp_pattern if said else "")


def _plan(found: Reading, options: dict[str, Any], notes: list[str]) -> Plan:
    """The plan of the text with options over it; dp follows from --gpus, or else from the ranks that the text names."""
    read = dict(found.knobs)
    base = Plan(**read)
    knobs, gpus = given_knobs(options), options.get("gpus")
    if gpus is None and "dp" not in knobs and found.gpus:
        gpus, replica = found.gpus, plan_from_options(knobs, None, base).replica
        if gpus % replica:
            raise ValueError(
                f"the configuration starts {gpus} GPUs, and they are not a multiple of tp x pp x cp = {replica}. "
                f"Say how many run it: --gpus {replica * -(-gpus // replica)}."
            )
    elif gpus is None and "dp" not in knobs and "dp" not in read:
        gpus = base.replica
        notes.append(f"GPUs not said: {gpus}, the least that the sizes allow; --gpus says more.")
    if gpus is None and {"tp", "pp", "cp"} & set(knobs) and "dp" not in knobs:
        gpus = base.world
    plan = plan_from_options(knobs, gpus, base)
    off = [name for name in found.needs_tp if plan.tp == 1 and getattr(plan, name) and name not in knobs]
    if off:
        notes.append(f"With tp = 1 its parser switches {', '.join(off)} off, so it counts as off.")
    return replace(plan, **dict.fromkeys(off, False))


def _stack(found: Reading, options: dict[str, Any], notes: list[str]) -> str:
    """The release that --stack names, else the one that the text's settings belong to."""
    if not options.get("stack") and found.stack:
        notes.append(stack_note(found.stack))
    return options.get("stack") or found.stack


def stack_note(stack: str) -> str:
    """The release that is taken for Megatron-LM's, as no text of it names one."""
    own = load_stack(stack).native_loss
    which = (
        "whose fused loss keeps FP32 logits" if own else "of those that take Transformer Engine's fused loss"
    )
    return f"{stack}: the newest Megatron-LM on file, {which}; --stack names another."


def _workload(
    found: Reading, model: ModelSpec, plan: Plan, options: dict[str, Any], notes: list[str]
) -> Workload:
    from advisor.usual_sizes import usual_seq_len
    from executor.export.batch_ramp import uneven

    said = dict(found.workload)
    said |= {name: options[name] for name in ("seq_len", "global_batch", "task") if options.get(name)}
    if "seq_len" not in said:
        said["seq_len"] = usual_seq_len(model)
        notes.append(f"--seq-len {said['seq_len']}: the usual length of the model, as none was said.")
    if "global_batch" not in said:
        said["global_batch"] = plan.micro_batch * plan.dp
        notes.append(f"--global-batch {said['global_batch']}: one micro-batch a rank, as none was said.")
    if told := uneven(found.batches, plan.micro_batch * plan.dp):
        notes.append(told)
    workload = Workload(**said | given_workload(options))
    if workload.task != "pretrain" and not options.get("mean_length"):
        notes.append("Every sequence is taken as one full document; --mean-length says how long they are.")
    check_acting(given_workload(options), workload, model)
    return workload


def _case(
    model: ModelSpec, workload: Workload, plan: Plan, options: dict[str, Any], notes: list[str]
) -> Case:
    import hardware_db

    if not options.get("gpu") and not options.get("cluster"):
        raise ValueError("a configuration names no machine: give --gpu or --cluster. Try --gpu h100.")
    cluster, note = hardware_db.resolve(options.get("gpu"), options.get("cluster"))
    notes += [note] if note else []
    gpus, gpu = options.get("gpus") or plan.world, options.get("gpu")
    machine = options.get("cluster") or (gpu if gpu and gpu.endswith(".toml") else cluster.name)
    named = options.get("model") or model.name
    record = PlanFile(named, workload, machine, gpus, plan, options.get("stack") or "")
    return Case(model, workload, cluster, gpus, plan, record.stack or None, tuple(notes), record)
