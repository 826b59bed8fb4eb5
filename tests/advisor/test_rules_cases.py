"""Each rule fires on a plan that breaks it and not on one beside it: tables by topic in `rule_cases`.

A case has the setting (model, model_change, on, vendor, peers, domain, link, network, host_link, seq_len, batch, task,
mean_length, packed, gpus, stack), the knobs of the plan that `breaks` the rule and of the one that `holds`, and in
`holds_in` what else differs for it. Rules about what is predicted have its words as `predicted`.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.rules import SEVERITIES, TOPICS, Violation, feature_rule, load_rules, topic_rules, violations
from advisor.rules.features import load_features
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.model_tables import Encoder
from costmodel.plan import Plan
from costmodel.stack import load_stack
from costmodel.workload import Workload

TABLES = Path(__file__).with_name("rule_cases")
CASES = {
    name: case
    for topic in (*TOPICS, "stack")
    for name, case in tomllib.loads((TABLES / f"{topic}.toml").read_text()).items()
}
STACK_RULES = {
    feature.rule: feature_rule(feature, load_stack(CASES[feature.rule]["stack"]))
    for feature in load_features()
}
RULES = {rule.id: rule for rule in load_rules()} | STACK_RULES
KNOWN = {
    "model", "model_change", "on", "domain", "seq_len", "batch", "task", "mean_length", "packed", "lora_rank", "gpus",
    "link", "host_link", "network",
    "vendor", "peers", "stack", "breaks", "holds", "holds_in", "predicted",
}  # fmt: skip


class PlanWithSettings:
    """A plan with settings, whatever settings the catalogue has."""

    def __init__(self, plan: Plan, settings: dict[str, Any]) -> None:
        self._plan, self.settings = plan, settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


def changed(model: ModelSpec, changes: dict[str, Any]) -> ModelSpec:
    """The model with other sizes; those of its experts stand under moe, an encoder's under encoder."""
    own = {name: value for name, value in changes.items() if name not in ("moe", "encoder")}
    if "encoder" in changes:
        own["encoder"] = Encoder(**changes["encoder"])
    if "moe" in changes:
        own["moe"] = replace(model.moe, **changes["moe"])
    return replace(model, **own)


def broken(case: dict[str, Any], model: ModelSpec, plan: Any, stack: str | None) -> dict[str, Violation]:
    """What the rules say about a plan in the setting of the case, by id."""
    workload = Workload(
        case.get("seq_len", 8192),
        case.get("batch", 128),
        case.get("task", "pretrain"),
        mean_length=case.get("mean_length", 0),
        packed=case.get("packed", True),
        lora_rank=case.get("lora_rank", 16),
    )
    generation = case.get("on", "hopper")
    cluster = SimpleNamespace(
        name="stub",
        domain_size=case.get("domain", 8),
        gpu=SimpleNamespace(
            generation=generation,
            title=generation.upper(),
            vendor=case.get("vendor", "NVIDIA"),
            has_peers=case.get("peers", True),
            get={"hbm_capacity_usable": 80 * 2**30}.get,
        ),
        intra=SimpleNamespace(name=case.get("link", "nvlink4")),
        inter=SimpleNamespace(name=case.get("network", "ib-ndr-400")),
        host_link=SimpleNamespace(name=case.get("host_link", "pcie5-x16")),
        has_nvlink_switch=case.get("link", "nvlink4").startswith("nvlink"),
        has_c2c=case.get("host_link", "").startswith("nvlink-c2c"),
    )
    found = violations(model, workload, cluster, plan, case.get("gpus", 0), case.get("predicted", {}), stack)
    return {each.id: each for each in found}


def told(case: dict[str, Any], knobs: dict[str, Any]) -> dict[str, Violation]:
    """What the rules say about the knobs in the setting of the case, by id."""
    model = changed(load_model(case.get("model", "llama3-70b")), case.get("model_change", {}))
    settings = knobs.get("settings", {})
    plan = PlanWithSettings(Plan(**{k: v for k, v in knobs.items() if k != "settings"}), settings)
    return broken(case, model, plan, case.get("stack"))


@pytest.mark.parametrize("topic", TOPICS)
def test_every_rule_of_a_topic_has_a_case(topic: str) -> None:
    table = tomllib.loads((TABLES / f"{topic}.toml").read_text())
    assert set(table) == {rule.id for rule in topic_rules(topic)}
    assert all(set(case) <= KNOWN for case in table.values())


def test_every_feature_of_stacks_has_a_case() -> None:
    assert list(tomllib.loads((TABLES / "stack.toml").read_text())) == list(STACK_RULES)
    assert all(set(case) <= KNOWN for case in CASES.values())


@pytest.mark.parametrize("rule", CASES)
def test_each_rule_fires_on_its_case_and_not_beside_it(rule: str) -> None:
    case = CASES[rule]
    assert rule in told(case, case.get("breaks", {}))
    assert rule not in told(case | case.get("holds_in", {}), case.get("holds", {}))


@pytest.mark.parametrize("rule", CASES)
def test_messages_are_one_line_with_numbers_and_a_way_out(rule: str) -> None:
    case = CASES[rule]
    found = told(case, case.get("breaks", {}))[rule]
    line = found.line()
    assert "\n" not in line
    assert not set("{}[]") & set(line), line
    assert "np." not in line
    assert "array" not in line
    assert not line.rstrip(".").endswith("."), line
    assert ".." not in line, line
    assert found.way_out.endswith("."), line
    assert found.severity in SEVERITIES
    assert found.source


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.severity == "ERROR"])
def test_the_plan_beside_an_error_has_none_of_its_kind(rule: str) -> None:
    """The way out leads somewhere: the neighbour breaks no other ERROR rule about the same knobs."""
    case = CASES[rule]
    rest = told(case | case.get("holds_in", {}), case.get("holds", {})).values()
    same = [v.id for v in rest if v.severity == "ERROR" and set(v.knobs) <= set(RULES[rule].knobs)]
    assert not same
