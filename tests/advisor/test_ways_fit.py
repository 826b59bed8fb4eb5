"""Ways out of the rules that a plan breaks fit into memory where the plan does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from advisor.case import Case, read_case
from advisor.commands.check import checked
from advisor.request import make_request
from advisor.rules import load_rules, violations
from advisor.rules.facts import PlanWords, facts
from advisor.rules.predicted_words import all_words
from advisor.rules.room import room_of
from advisor.rules.ways import NOTHING_ELSE, Way
from advisor.search import search
from advisor.search.scored import Scored
from costmodel.columns import plan_columns
from costmodel.knobs import KNOBS
from costmodel.plan import Plan
from costmodel.predict import predict

WIDE = {"ep": 64, "dp": 64}


def ask(gpu: str = "h100", **knobs) -> Case:
    return read_case(None, {"model": "gpt-oss-120b", "gpus": 64, "gpu": gpu, **WIDE, **knobs})


def told(case: Case, rule: str = "ep_beyond_domain") -> str:
    (found,) = (each for each in checked(case).violations if each.id == rule)
    return found.way_out


def test_experts_over_fewer_ranks_are_told_where_they_fit():
    """GPT-OSS 120B on 64 H100: experts over 8 ranks take more than 80 GB, of B300 less than 288 GB."""
    assert checked(ask()).prediction.fits
    assert not ask(ep=8).predict().fits
    assert "--ep 8" not in told(ask())
    assert "--moe-dispatcher deepep" in told(ask())
    assert ask("b300", ep=8).predict().fits
    assert "--ep 8" in told(ask("b300"))


@pytest.mark.parametrize(
    ("sizes", "modules", "way"),
    [
        ({"tp": 2, "dp": 4, "sequence_parallel": True}, ("core_attn",), "Try --recompute none."),
        ({"dp": 8}, ("core_attn",), "Try --recompute-modules mlp."),
        ({"dp": 8}, ("core_attn", "mlp"), "Leave core_attn out of --recompute-modules."),
    ],
)
def test_what_recompute_of_flash_attention_wastes_is_told_first(sizes, modules, way):
    """Of Llama 3 8B on 8 H100; two ranks of tp fit without recompute, and one does not even with core_attn."""
    knobs = {"recompute": "selective", "recompute_modules": modules} | sizes
    case = read_case(None, {"model": "llama3-8b", "gpus": 8, "gpu": "h100", **knobs})
    assert case.predict().fits == (way != "Try --recompute-modules mlp.")
    assert told(case, "recompute_flash") == way


def test_a_plan_that_does_not_fit_keeps_its_ways():
    full = ask(micro_batch=8)
    assert not full.predict().fits
    assert "--ep 8" in told(full)


def test_where_no_way_fits_the_memory_is_told():
    case = ask()
    words = facts(case.model, case.workload, case.cluster, case.plan.precision, plan_columns([case.plan]), 64)
    rule = replace(
        next(each for each in load_rules() if each.id == "ep_beyond_domain"), way_out=("try --ep 8",)
    )
    room = room_of(case.predict(), case.stack)
    needs = ask(ep=8).predict().peak_memory_bytes / 2**30
    assert (
        rule.message(PlanWords(words), room)[1] == f"{NOTHING_ELSE}--ep 8 takes {needs:.1f} GiB of 79.6 GiB."
    )
    assert rule.message(PlanWords(words))[1] == "Try --ep 8."


@pytest.mark.parametrize(
    "way",
    [
        "leave it out",
        "try --seq-len 1024",
        "try --stack nemo-26.06",
        "try a smaller --micro-batch",
        "try --ep 64",
    ],
)
def test_ways_that_change_no_plan_or_fit_lack_no_room(way):
    assert room_of(ask().predict(), None).lacking(way) == ""


@pytest.mark.parametrize(("model", "gpus"), [("gpt-oss-120b", 64), ("llama3-70b", 16)])
def test_what_is_told_beside_plans_that_fit_fits(model, gpus):
    kept: list[Scored] = []
    request = make_request(model, gpus, "h100")
    search(request, None, kept.extend)
    (part,) = (each for each in kept if each.space.precision == "bf16")
    fitting = np.flatnonzero(part.fits())
    followed = 0
    setting = (request.model, request.workload, request.cluster)
    for plan in part.plans(fitting[np.linspace(0, len(fitting) - 1, 25).astype(int)]):
        prediction = predict(*setting, plan, judged=False)
        words = all_words(prediction, None)
        for found in violations(*setting, plan, 0, words, None, room_of(prediction, None)):
            for other in led_to(plan, found.way_out):
                with suppress(ValueError):  # a way that goes with a batch
                    fits = predict(*setting, other, judged=False).fits
                    followed += 1
                    assert fits, (plan.describe(), found.id, other.describe())
    assert followed > 5


def led_to(plan: Plan, way_out: str) -> list[Plan]:
    """The plans that ways out name, whole ones: without those that need another batch or another machine."""
    if way_out.startswith(NOTHING_ELSE):
        return []
    takes = [
        {name: value for name, value in Way(way[:1].lower() + way[1:]).takes.items() if name in KNOBS}
        for way in way_out.removesuffix(".").split(", or ")
        if "--global-batch" not in way
    ]
    return [replace(plan, **each) for each in takes if each and None not in each.values()]
