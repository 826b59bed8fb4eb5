"""No way out names what the software stack or the machine lacks: every rule, over stacks and machines."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from advisor.case import Case
from advisor.diagnosis import rule_here
from advisor.rules import Violation, load_rules, rules_of, violations
from advisor.rules.features import load_features
from advisor.rules.ways import NOTHING_ELSE, SETTING, Way, joined
from advisor.whatif import what_if
from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.diagnose import load_rules as diagnoses
from hardware_db import resolve
from tests.advisor.test_rules_cases import CASES, PlanWithSettings, broken, changed, load_model
from tests.advisor.test_rules_cases import RULES as ALL_RULES

# Generation, vendor, link, network and domain of machines that lack different things.
MACHINES: dict[str, dict[str, Any]] = {
    "A100": {"on": "ampere", "link": "nvlink3"},
    "H100": {"on": "hopper"},
    "GB200": {"on": "blackwell", "link": "nvlink5", "domain": 72, "network": "roce-400"},
    "RTX": {"on": "blackwell-consumer", "peers": False, "link": "pcie5-x16", "network": "eth-25"},
    "MI300X": {"on": "cdna3", "vendor": "AMD", "link": "xgmi3", "network": "roce-400"},
}
# Every kind of stack on one machine, and every machine with two stacks.
PLACES = [
    *[
        (stack, "H100")
        for stack in (
            "nemo-26.06", "nemo-25.09", "nemo-25.04", "nemo-24.05", "megatron-22.05", "torchtitan", "torchtitan-24.08",
            "llm_foundry", "deepspeed",
        )
    ],
    *[("nemo-26.06", machine) for machine in MACHINES if machine != "H100"],
    ("nemo-24.05", "A100"),
    ("torchtitan", "GB200"),
]  # fmt: skip
LACKING = {rule.id for rule in load_rules() if rule.lacks} | {feature.rule for feature in load_features()}
OPTION = re.compile(r"--(no-)?([a-z][a-z0-9-]*)(?: (\w(?:[\w.+,-]*\w)?))?")


@lru_cache(maxsize=256)
def model_of(rule: str) -> Any:
    case = CASES[rule]
    return changed(load_model(case.get("model", "llama3-70b")), case.get("model_change", {}))


def judged(rule: str, plan: Any, stack: str | None, machine: dict[str, Any]) -> dict[str, Violation]:
    """What the rules say of a plan in the setting of a rule's case, on another machine and stack, by id."""
    return broken(CASES[rule] | machine, model_of(rule), plan, stack)


def taken(way: str, plan: Any) -> Any | None:
    """The plan that takes one way out of those told; None where it names no value of a knob or setting."""
    if re.match(r"(leave|drop|lower|raise|halve|keep|unset)\b", way, re.IGNORECASE):
        return None
    changes = {}
    for off, dashed, value in OPTION.findall(way):
        knob = KNOBS.get(dashed.replace("-", "_"))
        if knob is not None and knob.kind == "bool":
            changes[knob.name] = not off
        elif knob is not None and value:
            try:
                changes[knob.name] = knob.parse(value)
            except ValueError:
                continue
    if "recompute_modules" in changes:
        changes.setdefault("recompute", "selective")
    settings = {name: True for name, _ in SETTING.findall(way) if name.islower() and name not in KNOBS}
    if not changes and not settings:
        return None
    # What follows from other sizes has rules of its own.
    changes = {name: value for name, value in changes.items() if name not in ("sequence_parallel", "dp")}
    own = {name: getattr(plan, name) for name in Plan.__dataclass_fields__ if name != "settings"}
    return PlanWithSettings(Plan(**own | changes), dict(plan.settings) | settings)


@pytest.mark.parametrize(("stack", "machine"), PLACES)
def test_no_way_out_names_what_the_stack_or_the_machine_lacks(stack: str, machine: str) -> None:
    told, wrong = 0, []
    for rule, case in CASES.items():
        knobs = case.get("breaks", {})
        plan = PlanWithSettings(
            Plan(**{k: v for k, v in knobs.items() if k != "settings"}), knobs.get("settings", {})
        )
        before = judged(rule, plan, stack, MACHINES[machine])
        for name, found in before.items():
            told += 1
            if found.way_out.startswith(NOTHING_ELSE):
                continue
            for way in found.way_out.split(", or "):
                try:
                    other = taken(way, plan)
                except ValueError as error:
                    wrong.append(f"{name}: {way}: {error}")
                    continue
                if other is not None:
                    new = judged(rule, other, stack, MACHINES[machine]).keys() - before.keys()
                    wrong += [f"{name}, case {rule}, {each}: {found.way_out}" for each in new & LACKING]
    assert not wrong
    assert told > 400


def test_what_is_left_are_the_ways_that_there_are() -> None:
    def way_out(stack: str, machine: str, rule: str = "ep_beyond_domain") -> str:
        knobs = CASES[rule]["breaks"]
        plan = PlanWithSettings(Plan(**knobs), {})
        return judged(rule, plan, stack, MACHINES[machine])[rule].way_out

    newest = way_out("nemo-26.06", "H100")
    assert newest == (
        "Try --ep 8, or --moe-dispatcher deepep, which sends a token once to each node, or --moe-dispatcher hybridep, "
        "which sends a token once to each node, or --overlap-moe-comm."
    )
    assert way_out("nemo-25.04", "H100") == (
        "Try --ep 8, or --moe-dispatcher deepep, which sends a token once to each node."
    )
    assert way_out("nemo-24.05", "H100") == "Try --ep 8."
    assert "deepep" not in way_out("nemo-26.06", "MI300X")


def test_the_gpu_is_told_first_and_no_format_that_it_lacks() -> None:
    """`--precision fp8-delayed` was told of an A100: names with a hyphen were read up to it."""
    plan, (a100, _) = Plan(dp=8, precision="fp8-cs"), resolve("a100", None)
    found = violations(load_model("llama3-8b"), Workload(8192, 128), a100, plan, stack="nemo-24.05")
    errors = [each for each in found if each.severity == "ERROR"]
    assert [each.id for each in errors] == ["fp8_generation", "stack_fp8_cs"]
    assert not any("fp8-delayed" in each.way_out for each in found)


def test_where_no_way_is_left_it_says_what_is_lacking() -> None:
    plan = PlanWithSettings(Plan(precision="fp8-sc"), {})
    found = judged("blockwise_on_blackwell", plan, "torchtitan-24.12", MACHINES["GB200"])
    assert found["blockwise_on_blackwell"].way_out == (
        f"{NOTHING_ELSE}torchtitan-24.12 has no MXFP8, which came with torchtitan-25.03."
    )


def test_ways_are_one_sentence() -> None:
    assert (
        joined(["try --ep 8", "", "try --vpp 2", "leave it out"])
        == "Try --ep 8, or --vpp 2, or leave it out."
    )
    assert joined(["add --nvls", "try --tp 2", "try --tp 1"], most=2) == "Add --nvls, or try --tp 2."
    assert joined([""]) == ""


def test_what_a_way_takes_is_read_off_its_text() -> None:
    assert Way("try --vpp 2, or --no-overlap-moe-comm").takes == {"vpp": 2, "overlap_moe_comm": False}
    assert Way("try --cuda-graph-scope attn,moe_router").takes == {"cuda_graph_scope": ("attn", "moe_router")}
    assert Way("try --ep {near(experts, ep)}").takes == {"ep": None}
    assert Way("{'' if pcie else 'try --moe-dispatcher deepep'}").takes == {"moe_dispatcher": "deepep"}
    assert Way("try --precision fp8-delayed").takes == {"precision": "fp8-delayed"}
    assert Way("try less --tp or --cp").takes == {}
    assert Way("leave out --nccl-ub").takes == {}
    assert Way("add --set reduce_scatter_with_fp32_accumulation=true").takes == {
        "reduce_scatter_with_fp32_accumulation": "true"
    }


def test_every_rule_of_what_is_lacking_says_so_in_words() -> None:
    assert {
        "fp8_generation",
        "dispatch_link",
        "tp_overlap_needs_peers",
        "nvls_switch",
        "sharp_network",
        "vboost_gpu",
    } <= LACKING
    for stack in ("nemo-24.05", "torchtitan"):
        assert all(rule.lacks for rule in rules_of(stack) if rule.id.startswith("stack_"))
    assert all(replace(rule, lacks="").lacks == "" for rule in ALL_RULES.values())


@pytest.mark.parametrize(
    ("stack", "gpu", "said", "unsaid"),
    [
        ("nemo-26.06", "h100", ("deepep", "hybridep", "--overlap-moe-comm", "--cuda-graph", "NVTE_"), ()),
        ("nemo-25.04", "h100", ("deepep", "--cuda-graph"), ("hybridep", "--overlap-moe-comm")),
        (
            "torchtitan-25.06",
            "h100",
            (),
            ("deepep", "hybridep", "--overlap-moe-comm", "--cuda-graph", "NVTE_"),
        ),
        ("nemo-26.06", "gb200", ("hybridep",), ("deepep",)),
        ("nemo-26.06", "mi300x", (), ("deepep", "hybridep", "--cuda-graph", "--tp-comm-overlap", "--vboost")),
    ],
)
def test_diagnoses_name_what_the_plans_stack_and_machine_have(
    stack: str, gpu: str, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    model = load_model("mixtral-8x7b")
    cluster = resolve(gpu, None)[0]
    plan = Plan(
        tp=2,
        dp=4,
        ep=8,
        sequence_parallel=True,
        moe_capacity_factor=1.0,
        moe_pad_expert_input_to_capacity=True,
    )
    case = Case(model, Workload(4096, 128), cluster, 8, plan, stack, (), None)  # type: ignore[arg-type]
    here = [rule_here(rule, case) for rule in diagnoses()]
    told = " ".join(rule.do for rule in here if rule.id != "misspelt_variable")
    assert all(word in told for word in said)
    assert not [word for word in unsaid if word in told]
    assert all(rule.do for rule in here)
    exchange = next(rule for rule in here if rule.id == "ep_exposed")
    assert ("overlap_moe_comm" in exchange.knobs) == ("--overlap-moe-comm" in exchange.do)


@pytest.mark.parametrize(
    ("gpu", "knobs"), [("gb200", {"moe_dispatcher": "hybridep"}), ("mi300x", {}), ("a100", {"nvls": False})]
)
def test_what_if_offers_nothing_that_the_machine_lacks(gpu: str, knobs: dict[str, Any]) -> None:
    cluster = resolve(gpu, None)[0]
    plan = Plan(dp=8, ep=8, zero_stage=1, **knobs)
    model = load_model("mixtral-8x7b")
    case = Case(model, Workload(4096, 128), cluster, 8, plan, None, (), None)  # type: ignore[arg-type]
    names = ("moe_dispatcher", "cuda_graph", "nvls", "sharp", "vboost", "nccl_ub", "precision")
    for change in what_if(case, names).changes:
        found = violations(case.model, case.workload, cluster, change.neighbour.plan)
        assert not LACKING & {each.id for each in found}, change.neighbour


@pytest.mark.parametrize(("batch", "told"), [(8, False), (64, True)])
def test_one_rank_a_sequence_is_advised_only_where_the_batch_has_so_many_sequences(batch, told):
    """8 sequences of 131,072 tokens on 64 GPUs: "try --tp 1 --cp 1" could not be."""
    plan = Plan(cp=8, dp=8, zero_stage=3, fsdp=True)
    workload = Workload(131072, batch)
    found = violations(load_model("llama3-8b"), workload, resolve("h100", None)[0], plan)
    (rule,) = (each for each in found if each.id == "max_connections_conflict")
    assert ("--cp 1" in rule.way_out) == told
    assert "--fsdp" in rule.way_out


@pytest.mark.parametrize(
    ("plan", "most"),
    [
        (Plan(tp=4, pp=2, dp=8, micro_batch=3), 0),  # no whole number of micro-batches, whatever the ranks
        (Plan(tp=4, pp=2, dp=3), 512),
        (Plan(tp=4, pp=2, vpp=5, dp=3), 256),
        (Plan(tp=4, pp=2, dp=3, micro_batch=4), 128),
    ],
)
def test_a_batch_is_told_the_most_gpus_that_it_divides_over(plan, most):
    """It was told to feed 1365 GPUs, which are no multiple of the 8 of a replica."""
    found = broken({"batch": 64}, load_model("llama3-70b"), plan, None)["batch_divides"]
    assert re.findall(r"at most (\d+) GPUs", found.way_out) == ([str(most)] if most else [])
    if most:
        grown = replace(plan, dp=most * plan.dp // plan.world)
        assert not {"batch_divides", "vpp_microbatches"} & set(
            broken({"batch": 64}, load_model("llama3-70b"), grown, None)
        )
