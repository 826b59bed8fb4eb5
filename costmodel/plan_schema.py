"""The shape of a plan file, checked with pydantic: types, bounds, and no key that is not known."""

from __future__ import annotations

import difflib
import json
import shlex
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError, create_model
from pydantic.fields import FieldInfo

from costmodel.knobs import KNOBS, SETTINGS, Knob
from costmodel.workload import TASKS

# The way out where a file is no plan but, by its name or its tables, another program's.
OTHERS_FILE = "`advisor check --from TARGET {}` reads a framework's configuration: TARGET is whose it is."
# Keys of one part that are still told in a line.
MANY_KEYS = 20
_CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelPart(BaseModel):
    """[model]: a name of the catalogue or a path."""

    model_config = _CLOSED
    name: str = Field(min_length=1, max_length=4096)


class WorkloadPart(BaseModel):
    """[workload]: one optimizer step; seq_len in tokens, global_batch in sequences."""

    model_config = _CLOSED
    seq_len: StrictInt
    global_batch: StrictInt
    task: str = Field(default="pretrain", json_schema_extra={"choices": list(TASKS)})
    mean_length: StrictInt = 0
    length_cv: float | None = None
    packed: StrictBool = True
    lora_rank: StrictInt = 16
    lora_targets: str = "all"
    moe_imbalance: float = 1.0
    moe_adjacent: StrictBool = False


class ClusterPart(BaseModel):
    """[cluster]: name or path, GPUs in all (0: as many as the plan needs), software stack, a price [USD/h]."""

    model_config = _CLOSED
    name: str = Field(min_length=1, max_length=4096)
    gpus: StrictInt = Field(default=0, ge=0, le=2**24)
    stack: str = ""
    price_per_gpu_hour: float | None = Field(default=None, gt=0)


def _knob_type(kind: str) -> Any:
    return {
        "int": StrictInt,
        "float": float,
        "bool": StrictBool,
        "choice": str,
        "text": str,
        "list": list[str],
    }[kind]


def _knobs_part() -> type[BaseModel]:
    """[knobs]: one field per knob of the catalogue, so that a new knob needs no line here."""
    fields: dict[str, tuple[Any, FieldInfo]] = {
        name: (_knob_type(knob.kind), Field(default=knob.default)) for name, knob in KNOBS.items()
    }
    part: type[BaseModel] = create_model("KnobsPart", __config__=_CLOSED, **fields)  # type: ignore[call-overload]
    return part


def _settings_part() -> type[BaseModel]:
    """[settings]: only what was written; a default here would claim that it was chosen."""
    fields: dict[str, Any] = {
        name: (_knob_type(setting.kind), Field(default=None)) for name, setting in SETTINGS.items()
    }
    part: type[BaseModel] = create_model("SettingsPart", __config__=_CLOSED, **fields)  # type: ignore[call-overload]
    return part


KnobsPart = _knobs_part()
SettingsPart = _settings_part()


class PlanSchema(BaseModel):
    """A whole plan file."""

    model_config = _CLOSED
    schema_version: Literal[1] = Field(alias="schema")
    model: ModelPart
    workload: WorkloadPart
    cluster: ClusterPart
    knobs: KnobsPart = Field(default_factory=KnobsPart)  # type: ignore[valid-type]
    settings: SettingsPart = Field(default_factory=SettingsPart)  # type: ignore[valid-type]
    # Provenance is read back as it stands: newer versions may write more of it.
    prediction: dict[str, Any] = Field(default_factory=dict)


_PARTS: dict[str, type[BaseModel]] = {
    "model": ModelPart,
    "workload": WorkloadPart,
    "cluster": ClusterPart,
    "knobs": KnobsPart,
    "settings": SettingsPart,
}


def check_record(record: dict[str, Any], where: str, schema: int) -> dict[str, Any]:
    """The checked record with every default filled in. ValueError in one line for the first problem."""
    if not record:
        raise ValueError(
            f"{where} is empty: no plan is in it. Write one with `advisor explain ... --save {_to_write(where)}`."
        )
    given = record.get("schema")
    if given != schema:
        said = "no schema line" if given is None else f"schema = {given!r}"
        foreign = given is None and "knobs" not in record and {"parallelism", "training"} & set(record)
        way = OTHERS_FILE.format(shlex.quote(where)) if foreign else "Write it again with --save."
        raise ValueError(f"{where}: {said}, but this advisor reads schema = {schema}. {way}")
    try:
        checked = PlanSchema.model_validate(record)
    except ValidationError as error:
        raise ValueError(f"{where}: {_one_line(error)}") from None
    settings = checked.settings.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
    return checked.model_dump() | {"settings": settings}


def _to_write(where: str) -> str:
    """The file itself as a shell takes it, or a name for one where it is a device or a pipe."""
    return shlex.quote(where) if not Path(where).exists() or Path(where).is_file() else "plan.toml"


def _one_line(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    problem = min(problems, key=lambda each: each["type"] != "extra_forbidden")
    path = [str(part) for part in problem["loc"]]
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return f"{key} is not a key of a plan file.{_suggest(path)}{more}"
    if problem["type"] == "missing":
        return f"{key} is missing. {_example(path)}{more}"
    record = {"knobs": KNOBS, "settings": SETTINGS}.get(path[0], {}).get(path[1] if len(path) > 1 else "")
    if record and record.kind == "list" and isinstance(problem["input"], str):
        return f"{key}: {_as_list(record, problem['input'])}{more}"
    if record and (told := record.error(problem["input"])):
        return f"{key}: {told}{more}"
    return f"{key} = {_short(problem['input'])}: {_reason(problem, path[-1])}.{more}"


def _as_list(record: Knob, text: str) -> str:
    """Why a text is no value of a list, and how it is written as one."""
    try:
        items = record.parse(text)
    except ValueError as error:
        return str(error)
    return f"{_short(text)} is a text, and a list is needed. Try {json.dumps(list(items))}."


def _suggest(path: list[str]) -> str:
    part = _PARTS.get(path[0]) if len(path) > 1 else None
    known = [field.alias or name for name, field in (part or PlanSchema).model_fields.items()]
    homes = [home for home, other in _PARTS.items() if path[-1] in other.model_fields]
    if homes:
        return f" It belongs to [{homes[0]}]."
    # Environment variables are written in capitals elsewhere.
    near = difflib.get_close_matches(path[-1].lower(), known, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {near[0]}?"
    if len(known) > MANY_KEYS:
        return " `advisor knobs` lists them."
    return f" Keys here: {', '.join(known)}."


def _example(path: list[str]) -> str:
    return {
        "model": 'Add [model] with name = "llama3-8b".',
        "workload": "Add [workload] with seq_len = 8192 and global_batch = 128.",
        "cluster": 'Add [cluster] with name = "dgx-h100" and gpus = 8.',
    }.get(path[0], "Add it.")


def _reason(problem: Any, key: str) -> str:
    if problem["type"] == "int_type" and isinstance(problem["input"], str):
        number = problem["input"] if problem["input"].isdigit() else 8
        return f"a whole number is needed, without quotes. Try {key} = {number}"
    text = str(problem["msg"])
    return text[0].lower() + text[1:]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
