"""A case kept as a plan file, with its model beside it where no catalogue has that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.case import Case
    from costmodel.prediction import Prediction


def save_case(path: str, case: Case, prediction: Prediction | None) -> None:
    """Write the plan file of a case. A model that its name does not bring back is written to NAME-model.toml."""
    from costmodel.output_file import check_output
    from costmodel.plan_file import provenance, save_plan_file

    target = Path(path).expanduser()
    record = replace(case.plan_file, prediction=provenance(prediction) if prediction else {})
    if _brings_back(case):
        save_plan_file(target, record)
        return
    model = target.with_name(f"{target.stem}-model.toml")
    check_output("--save", model, "model file")
    save_plan_file(target, record)  # refuses a bad path before a model is written
    save_plan_file(target, replace(record, model=str(_save_model(model, case))))


def _brings_back(case: Case) -> bool:
    from costmodel.model_registry import load_model

    try:
        return load_model(case.plan_file.model) == case.model
    except ValueError:
        return False


def _save_model(path: Path, case: Case) -> Path:
    import tomli_w

    from costmodel.model_file import to_mapping
    from costmodel.plan_file import write_whole

    return write_whole(path, tomli_w.dumps(to_mapping(case.model)))
