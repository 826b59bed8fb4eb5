"""The what-if engine of a page: time, memory and legality of a plan's neighbours, computed by the browser.

Nothing here is a model. The ledger is printed by sympy (`costmodel.javascript`); inputs of the plan and conditions
of the rules are written down while NumPy's functions run over traced columns (`costmodel.javascript.columns`);
rank arithmetic and the event simulator are translated from their Python (`costmodel.javascript.functions`);
what hangs on files or on the balancer of layouts is computed here for every choice that the page has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from advisor.options import value_text
from advisor.report.controls import Control, controls, offered
from advisor.report.rules_script import FUNCTIONS, rules_script
from advisor.report.tables import bound_tables, layout_tables, precision_tables, values_of
from advisor.rules.facts import knob_words
from advisor.rules.model_words import cluster_words, model_words, workload_words
from advisor.rules.predicted_words import SCATTERED, UNPREDICTED, WAITS, host_memory_gb
from advisor.rules.setting_words import UNSAID, setting_words
from advisor.sections import SEVERITY_WORDS
from costmodel.binding import fuses_activation, recipe_formats, repeats_layers
from costmodel.columns import CODED, ITEMS, NUMERIC, default_columns, plan_columns
from costmodel.family import family_features
from costmodel.host_memory import HOST_STATE, OFFLOADS
from costmodel.javascript import family_javascript, object_javascript, script_json
from costmodel.javascript.columns import Trace, literal
from costmodel.javascript.functions import RUNTIME, translate
from costmodel.knobs import KNOBS
from costmodel.placement import used_domain
from costmodel.plan import Plan
from costmodel.plan_inputs import knob_inputs
from costmodel.prediction import CORRECTION, FITS_BELOW, RESOURCES, TIGHT_ABOVE, Prediction
from costmodel.simulated_pipeline import CORRECTION_TITLE, schedule_correction
from costmodel.stage_inputs import PLACED, placed
from costmodel.term import Term
from hardware_db import Platform

__all__ = ["controls", "engine_script", "whatif_markup", "whatif_script"]

ASSETS = Path(__file__).with_name("assets")
# Functions that the page brings itself, for those that are translated: layouts are looked up.
GIVEN = ("_layout", "_per_domain", "_check")


def engine_script(
    prediction: Prediction, stack: str | None = None, names: Mapping[str, str] | None = None
) -> str:
    """JavaScript that sets window.advisorModel for the plan of a prediction.

    evaluate(knobs) gives {step_time, memory, time, values, broken, ...} of the plan with some knobs changed; controls
    are those of `advisor.report.controls`; commandLine(knobs) is what to type. names: what the user called the
    model ("model") and the machine ("gpu" or "cluster"), where their own names do not find them.
    """
    found = offered(prediction, stack)
    functions = translate((placed, schedule_correction, used_domain, *FUNCTIONS), GIVEN)
    parts = {
        "data": script_json(_data(prediction, found, stack, names or {})),
        "ledger": family_javascript(_features(prediction, found)).source,
        "planInputs": _inputs_script(prediction, found, stack),
        "rulebook": _rulebook_script(prediction, found, stack),
    }
    declared = "".join(f"const {name} = {text};\n" for name, text in parts.items())
    own = (ASSETS / "engine.js").read_text(encoding="utf-8")
    return f'window.advisorModel = (() => {{\n"use strict";\n{RUNTIME}{functions}\n{declared}{own}}})();\n'


def whatif_script() -> str:
    """JavaScript that draws into <section id="whatif">, after `engine_script` and once that element stands."""
    return (ASSETS / "whatif.js").read_text(encoding="utf-8")


def whatif_markup() -> str:
    """What stands in the section before the script draws into it, with its style."""
    return (ASSETS / "whatif.html").read_text(encoding="utf-8")


def _data(
    prediction: Prediction, found: Sequence[Control], stack: str | None, names: Mapping[str, str]
) -> dict[str, Any]:
    load, cluster, plan = prediction.workload, prediction.cluster, prediction.plan
    trees = family_javascript(_features(prediction, found)).trees
    settings = {name: value for name, value in plan.to_dict().items() if name != "settings"}
    settings |= {"global_batch": load.global_batch, "seq_len": load.seq_len}
    machine = {"gpu": names["gpu"]} if names.get("gpu") else {"cluster": names.get("cluster") or cluster.name}
    options = {"model": names.get("model") or prediction.model.name, "gpus": plan.world} | machine
    return {
        "settings": settings,
        "defaults": {name: list(k.default) if k.kind == "list" else k.default for name, k in KNOBS.items()},
        "controls": [control.to_dict() for control in found],
        "experts": prediction.model.moe is not None,
        "gpus": plan.world,
        "domain": cluster.domain_size,
        "columns": {name: _column(name, found, prediction) for name in (*NUMERIC, *CODED, "pipeline_layout")},
        "items": {name: list(where) for name, where in ITEMS.items()},
        "unnamed_modules": list(Plan(recompute="selective").recomputed_modules),
        "bound": bound_tables(prediction, found, stack),
        "precision": precision_tables(prediction, found),
        "layouts": layout_tables(prediction, found),
        "placed": list(PLACED),
        "trees": {name: _tree(tree, prediction.platform) for name, tree in trees.items()},
        "severities": SEVERITY_WORDS,
        "correction": [CORRECTION, CORRECTION_TITLE],
        "fits_below": FITS_BELOW,
        "tight_above": TIGHT_ABOVE,
        "unsaid": UNSAID,
        "scattered": SCATTERED,
        "unpredicted": list(UNPREDICTED),
        "waits": {word: RESOURCES[name] for word, name in WAITS.items()},
        "offloads": OFFLOADS,
        "host_state": HOST_STATE,
        "host_memory_gb": host_memory_gb(cluster),
        "gpus_per_node": cluster.gpus_per_node,
        "command": options | _workload_options(load, stack),
        "kept": [f"{name}={value_text(value)}" for name, value in plan.settings],
    }


def _workload_options(load: Any, stack: str | None) -> dict[str, Any]:
    """Options of the workload that are not the usual ones."""
    given = {name: value for name, value in asdict(load).items() if name not in ("seq_len", "global_batch")}
    usual = asdict(type(load)(load.seq_len, load.global_batch))
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return changed | ({"stack": stack} if stack else {})


def _column(name: str, found: Sequence[Control], prediction: Prediction) -> list[Any] | None:
    """Values that a coded column stands for, in the order of their codes; None where it is a number."""
    if name == "pipeline_layout":
        return list(values_of(found, prediction, name))
    return list(KNOBS[name].choices) if name in CODED else None


def _tree(term: Term, platform: Platform) -> list[Any]:
    return [term.name, platform.told(term.title), [_tree(part, platform) for part in term.parts]]


def _features(prediction: Prediction, found: Sequence[Control]) -> frozenset[str]:
    """Features of every plan that the controls reach, so that one ledger holds for all."""
    columns = plan_columns([prediction.plan])
    reached = {
        name: np.array([1.0])
        for name in _varying(found)
        if name in columns and columns[name].dtype == np.float64
    }
    return family_features(prediction.model, prediction.workload, columns | reached)


def _varying(found: Sequence[Control]) -> set[str]:
    """Columns that a control changes, itself or through what follows from it."""
    knobs = {control.knob for control in found}
    columns = {name for name in (*NUMERIC, *CODED, "pipeline_layout") if name in knobs}
    columns |= {
        name
        for name, (knob, _) in ITEMS.items()
        if knob in knobs or (knob == "recompute_modules" and "recompute" in knobs)
    }
    columns |= {"dp"} if knobs & {"tp", "pp", "cp"} else set()
    return columns | ({"fsdp"} if "zero_stage" in knobs else set())


def _columns(trace: Trace, prediction: Prediction, found: Sequence[Control]) -> dict[str, Any]:
    """Every column: traced where a control changes it, else the plan's number."""
    fixed = default_columns() | {
        name: float(column[0]) for name, column in plan_columns([prediction.plan]).items()
    }
    varying = _varying(found)
    return {
        name: trace.input(f"c.{name}") if name in varying else np.asarray(value)
        for name, value in fixed.items()
    }


def _by_precision(
    trace: Trace, prediction: Prediction, found: Sequence[Control], kind: str, base: Mapping[str, Any]
) -> dict[str, Any]:
    """`base`, the "formats" or "words" of a precision recipe, traced where the precisions on offer differ in it."""
    tables = [table[kind] for table in precision_tables(prediction, found).values()]
    return {
        name: trace.input(f"x.{name}", isinstance(value, bool | np.bool_))
        if any(table[name] != tables[0][name] for table in tables)
        else value
        for name, value in base.items()
    }


def _workload_inputs(trace: Trace, prediction: Prediction, found: Sequence[Control]) -> dict[str, Any]:
    """Batch and sequence length, traced where the page offers others."""
    return {
        name: trace.input(f"x.{name}")
        if len(values_of(found, prediction, name)) > 1
        else getattr(prediction.workload, name)
        for name in ("global_batch", "seq_len")
    }


def _inputs_script(prediction: Prediction, found: Sequence[Control], stack: str | None) -> str:
    """`(c, x) => inputs`: the plan's inputs from columns c and the rest x."""
    trace = Trace()
    formats = recipe_formats(prediction.plan.precision)
    inputs = knob_inputs(
        _columns(trace, prediction, found),
        cast(Any, trace.input("x.layers_pace")),
        num_layers=prediction.model.num_layers,
        global_batch=_workload_inputs(trace, prediction, found)["global_batch"],
        **_by_precision(trace, prediction, found, "formats", formats),
        repeats_layers=repeats_layers(prediction.model, prediction.cluster, stack),
        fuses_activation=fuses_activation(prediction.model, prediction.cluster, stack),
    )
    results = {name: literal(value) for name, value in inputs.items()}
    return f"(c, x) => {{\n{trace.lines(inputs)}return {object_javascript(results)};\n}}"


def _rulebook_script(prediction: Prediction, found: Sequence[Control], stack: str | None) -> str:
    """The rules over the columns c and the rest x; see `advisor.report.rules_script`."""
    trace = Trace()
    load = SimpleNamespace(**asdict(prediction.workload) | _workload_inputs(trace, prediction, found))
    fixed = model_words(prediction.model) | workload_words(cast(Any, load))
    plan = prediction.plan
    own = cluster_words(prediction.cluster, plan.precision, plan.world)
    fixed |= _by_precision(trace, prediction, found, "words", own)
    fixed |= setting_words(plan.settings)
    words = knob_words(_columns(trace, prediction, found), fixed)
    domain = prediction.cluster.domain_size
    words |= {
        "used": trace.input("x.used"),
        "aligned": used_domain(domain, domain + 1),
        "layout_problem": trace.input("x.layout_problem"),
        "layout_layers": trace.input("x.layout_layers"),
        **{name: trace.input(f"x.{name}") for name in UNPREDICTED},
        # Columns hold modules only where they act; the rule about idle ones needs what the plan says.
        "modules_given": trace.input("x.modules_given", truth=True),
    }
    return rules_script(trace, words, stack)
