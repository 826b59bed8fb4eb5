"""The what-if engine in a real browser against Python: random plans of every family, numbers and rules alike."""

from __future__ import annotations

import json
import math
import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from advisor.case import Case, read_case
from advisor.cli import advisor
from advisor.commands.predict import command as predict_command
from advisor.options import given_knobs
from advisor.report.engine import controls, engine_script
from advisor.rules import violations
from advisor.rules.predicted_words import predicted_words
from costmodel.model_tables import Encoder
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import CORRECTION, with_schedule
from costmodel.workload import Workload

PLANS = 20
TOLERANCE = 1e-9
# One setting of each family, task and kind of machine: domains that groups straddle, a mesh
# without a switch, uneven stages, copies of FSDP.
SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama3.1-405b", "gpus": 1024, "gpu": "h100", "tp": 8, "pp": 8, "cp": 2, "vpp": 4},
    "biases, dropout and muon": {
        "model": "gpt3-175b",
        "gpus": 128,
        "gpu": "a100",
        "tp": 8,
        "pp": 8,
        "dropout": True,
        "optimizer": "muon",
    },
    "experts and latents": {
        "model": "deepseek-v3",
        "gpus": 512,
        "gpu": "gb200",
        "pp": 8,
        "ep": 32,
        "vpp": 2,
        "precision": "mxfp8",
        "pipeline_layout": "balanced",
    },
    "mamba": {"model": "nemotronh-47b", "gpus": 96, "gpu": "h100", "tp": 4, "pp": 2},
    "gated delta": {"model": "qwen3-next-80b-a3b", "gpus": 144, "gpu": "gb200", "tp": 2, "pp": 3, "ep": 8},
    "straddling experts": {
        "model": "llama4-maverick",
        "gpus": 576,
        "gpu": "gb200",
        "pp": 2,
        "ep": 32,
        "nvl_segment": 72,
    },
    "compressed attention": {"model": "deepseek-v4-flash", "gpus": 256, "gpu": "b200", "pp": 4, "ep": 16},
    "adapters": {"model": "llama3-70b", "gpus": 24, "gpu": "h100", "tp": 4, "task": "lora", "packed": False},
    "padded to the longest": {
        "model": "llama3-8b",
        "gpus": 16,
        "gpu": "h100",
        "task": "sft",
        "seq_len": 4096,
        "mean_length": 500,
        "length_cv": 0.8,
        "packed": False,
    },
    "sharded": {
        "model": "llama3-8b",
        "gpus": 64,
        "gpu": "h100",
        "fsdp": True,
        "zero_stage": 3,
        "fsdp_implementation": "torch",
        "fsdp_shard_size": 8,
        "stack": "torchtitan",
    },
    "mesh": {"model": "llama3-70b", "gpus": 64, "gpu": "mi300x", "tp": 2, "pp": 2, "cp": 4},
    "shared choices": {
        "model": "glm-5.2",
        "gpus": 416,
        "gpu": "h100",
        "pp": 13,
        "ep": 32,
        "pipeline_layout": "balanced",
        "recompute": "full",
        "stack": "nemo-26.08",
    },
    "encoder": {
        "model": "llama3-8b",
        "gpus": 40,
        "gpu": "h100",
        "tp": 2,
        "pp": 4,
        "encoder_tp": 2,
        "encoder_pp": 1,
    },
}
FEW = ("dense", "experts and latents")
# Knobs that change what Python compiles: tried on FEW alone, since every family takes seconds to compile.
OF_FAMILIES = ("bf16_end_layers", "offload_layers", "offload_modules")


@dataclass(frozen=True)
class Setting:
    """A plan, its prediction, and the random knobs that are tried on it."""

    case: Case
    prediction: Prediction
    script: str
    knobs: tuple[dict[str, Any], ...]

    def plan(self, settings: Mapping[str, Any], knobs: Mapping[str, Any]) -> Plan:
        """The plan that the page's settings mean."""
        own = {name: tuple(v) if isinstance(v, list) else v for name, v in knobs.items()}
        own = {name: value for name, value in own.items() if name not in ("global_batch", "seq_len")}
        return replace(self.case.plan, **own, dp=settings["dp"], fsdp=settings["fsdp"])

    def load(self, knobs: Mapping[str, Any]) -> Workload:
        """The workload that the page's settings mean."""
        own = {name: knobs[name] for name in ("global_batch", "seq_len") if name in knobs}
        return replace(self.case.workload, **own)


def setting_of(name: str) -> Setting:
    case = read_case(None, SETTINGS[name])
    if name == "encoder":
        tower = Encoder(num_layers=27, hidden=1152, ffn_hidden=4304, num_heads=16, tokens=1024)
        case = replace(case, model=replace(case.model, encoder=tower))
    prediction = predict(case.model, case.workload, case.cluster, case.plan, case.stack)
    rng = random.Random(name)
    offered = [
        control
        for control in controls(prediction, case.stack)
        if name in FEW or control["knob"] not in OF_FAMILIES
    ]
    return Setting(
        case,
        prediction,
        engine_script(prediction, case.stack),
        ({}, *(random_knobs(offered, rng) for _ in range(PLANS))),
    )


def random_knobs(offered: list[dict[str, Any]], rng: random.Random) -> dict[str, Any]:
    """Some knobs at values that the page offers."""
    knobs: dict[str, Any] = {}
    for control in offered:
        if rng.random() < (0.35 if control["main"] else 0.15):
            values = control["values"]
            items = control["kind"] == "items"
            knobs[control["knob"]] = (
                [v for v in values if rng.random() < 0.4] if items else rng.choice(values)
            )
    return knobs


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Setting:
    return setting_of(request.param)


@dataclass(frozen=True)
class Tried:
    """One choice of knobs: the page's answer, and what Python makes of it, None where it predicts nothing."""

    answer: dict[str, Any]
    plan: Plan
    load: Workload
    expected: Prediction | None
    refused: str


@pytest.fixture(scope="module")
def tried(setting: Setting, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Tried]:
    answers = evaluated(setting, browser, tmp_path_factory.mktemp("engine"))
    found = []
    for knobs, answer in zip(setting.knobs, answers, strict=True):
        plan, load, case = setting.plan(answer["settings"], knobs), setting.load(knobs), setting.case
        expected, refused = None, ""
        if plan.world == case.plan.world and load.global_batch % (plan.micro_batch * plan.dp) == 0:
            try:
                expected = with_schedule(predict(case.model, load, case.cluster, plan, case.stack))
            except ValueError as error:
                refused = str(error)
        found.append(Tried(answer, plan, load, expected, refused))
    return found


def evaluated(setting: Setting, browser: Any, folder: Path) -> list[dict[str, Any]]:
    """What the browser makes of every one of the setting's knobs."""
    page = folder / "engine.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><link rel=icon href=data:,><script>{setting.script}</script>"
    )
    browser.open(page)
    assert browser.complaints() == []
    found: list[dict[str, Any]] = browser.run(
        "return arguments[0].map((knobs) => "
        "({...advisorModel.evaluate(knobs), command: advisorModel.commandLine(knobs)}))",
        list(setting.knobs),
    )
    return found


def test_every_term_is_pythons(setting: Setting, tried: list[Tried]) -> None:
    compared = 0
    for answer, expected in ((each.answer, each.expected) for each in tried):
        if answer["problem"]:
            chunks = answer["settings"]["pp"] * answer["settings"]["vpp"]
            assert expected is None or chunks > setting.case.model.num_layers, answer["problem"]
            continue
        assert expected is not None, answer["settings"]
        own = expected.values.keys() - {"parameter_spread", CORRECTION}
        off = {
            name: (answer["values"].get(name), expected.values[name])
            for name in own
            if not math.isclose(
                answer["values"].get(name, math.nan), expected.values[name], rel_tol=TOLERANCE
            )
        }
        assert off == {}, answer["settings"]
        compared += len(own)
        for key, value in {
            "step_time": expected.step_time_s,
            "tokens_per_second_per_gpu": expected.tokens_per_second_per_gpu,
            "model_tflops_per_gpu": expected.model_tflops_per_gpu,
            "mfu": expected.mfu,
            "memory": expected.peak_memory_bytes,
            "device": expected.device_bytes,
        }.items():
            assert math.isclose(answer[key], value, rel_tol=TOLERANCE), (key, answer["settings"])
        assert (answer["fits"], answer["tight"]) == (expected.fits, expected.tight)
        assert answer["worst_stage"] == expected.worst_stage
    assert compared > 1000


def test_trees_are_pythons(tried: list[Tried]) -> None:
    for answer, expected in ((each.answer, each.expected) for each in tried):
        if answer["problem"] or expected is None:
            continue
        for tree, term in ((answer["time"], expected.time), (answer["memory_tree"], expected.memory)):
            mine = leaves(tree)
            theirs = {leaf.name: leaf.value for leaf in term.leaves()}
            # The page's ledger has terms of features that its controls can switch on: 0 while they are off.
            assert {name for name, value in mine.items() if value} <= set(theirs)
            for name, value in theirs.items():
                assert math.isclose(mine[name], value, rel_tol=TOLERANCE, abs_tol=TOLERANCE * tree["value"])
            assert math.isclose(sum(mine.values()), tree["value"], rel_tol=TOLERANCE)


def leaves(tree: dict[str, Any]) -> dict[str, float]:
    """Values of the terms without parts, by name."""
    if not tree["parts"]:
        return {tree["name"]: tree["value"]}
    return {name: value for part in tree["parts"] for name, value in leaves(part).items()}


def test_rules_and_their_words_are_pythons(setting: Setting, tried: list[Tried]) -> None:
    told, case = 0, setting.case
    for each in tried:
        answer = each.answer
        shown = each.expected if not answer["problem"] else None
        found = violations(
            case.model,
            each.load,
            case.cluster,
            each.plan,
            case.plan.world,
            predicted_words(shown),
            case.stack,
        )
        assert [
            (rule["id"], rule["severity"], rule["knobs"], rule["text"], rule["way_out"], rule["source"])
            for rule in answer["broken"]
        ] == [
            (rule.id, rule.severity, list(rule.knobs), rule.text, rule.way_out, rule.source) for rule in found
        ]
        errors = sum(rule.severity == "ERROR" for rule in found)
        assert answer["errors"] == errors
        assert answer["holds"] == bool(shown and shown.fits and not errors)
        told += len(found)
    assert told > PLANS


def test_what_python_refuses_is_refused_in_its_words(tried: list[Tried]) -> None:
    for each in tried:
        assert each.refused in ("", each.answer["problem"])


def test_nothing_is_predicted_only_where_a_rule_forbids_it(tried: list[Tried]) -> None:
    for answer in (each.answer for each in tried):
        assert not answer["problem"] or answer["errors"], answer["problem"]


def test_the_command_line_means_the_plan(setting: Setting, tried: list[Tried]) -> None:
    for each in tried:
        words, plan, load = shlex.split(each.answer["command"]), each.plan, each.load
        assert words[:2] == ["advisor", "predict"]
        options = predict_command.make_context("predict", words[2:]).params
        assert replace(Plan(), **given_knobs(options), dp=plan.dp) == plan
        assert (options["seq_len"], options["global_batch"]) == (load.seq_len, load.global_batch)
        assert options["gpus"] == setting.case.plan.world


def test_the_command_line_gives_the_numbers_of_the_page(browser: Any, tmp_path: Path) -> None:
    """Every knob is held, also those at their default: with a search around pins the answer was another plan."""
    kept = {"manual_gc_interval": 20}
    options = {"model": "llama3-8b", "gpus": 8, "gpu": "h100", "pp": 2, "vpp": 2, "precision": "fp8-cs"}
    case = read_case(None, options)
    case = replace(case, plan=replace(case.plan, settings=kept))
    script = engine_script(case.predict(), case.stack, {})
    knobs = ({"micro_batch": 2}, {"recompute_num_layers": 4}, {"recompute": "selective", "vboost": True})
    made = Setting(case, case.predict(), script, knobs)
    for answer in evaluated(made, browser, tmp_path):
        words = shlex.split(answer["command"])
        done = CliRunner().invoke(advisor, [*words[1:], "--json"])
        said = json.loads(done.stdout)
        assert said["step_time_s"] == pytest.approx(answer["step_time"], rel=TOLERANCE)
        assert said["memory"]["worst_rank_gib"] == pytest.approx(answer["memory"] / 2**30)
        assert "--set manual_gc_interval=20" in answer["command"]


def test_names_in_the_command_line_are_quoted(browser: Any, tmp_path: Path) -> None:
    made = setting_of("sharded")
    hostile = """it's <b>"$(x)"</b></script>.toml"""
    script = engine_script(made.prediction, made.case.stack, {"model": hostile, "gpu": "my gpu.toml"})
    assert "</script" not in script
    answer = evaluated(replace(made, script=script, knobs=({},)), browser, tmp_path)[0]
    words = shlex.split(answer["command"])
    assert words[words.index("--model") + 1] == hostile
    assert words[words.index("--gpu") + 1] == "my gpu.toml"


def test_unknown_knobs_are_refused(browser: Any, tmp_path: Path) -> None:
    made = replace(setting_of("sharded"), knobs=())
    evaluated(made, browser, tmp_path)
    said = browser.run("try { advisorModel.evaluate({tpp: 2}) } catch (error) { return error.message }")
    assert said == "tpp is not a knob of this page"


@pytest.mark.parametrize("name", FEW)
def test_the_engine_is_small(name: str) -> None:
    """The page has 3 MB with its charts; the engine takes about a fifth of them."""
    assert len(setting_of(name).script.encode()) < 640_000
