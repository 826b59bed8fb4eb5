"""The answer to a request: the best plan, what it was compared with, and why it is the one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from advisor.alternatives import WhyNot, what_would_fit, whole_step_graph, why_not
from advisor.counts import Count, fewer_gpus, in_time
from advisor.more_memory import MoreMemory, what_memory_buys
from advisor.options import as_pins
from advisor.outside import Gain, gains_outside, tried_in
from advisor.prices import price_note
from advisor.progress import Tell
from advisor.request import Request, parse_pins
from advisor.rules import Violation, violations
from advisor.rules.predicted_words import all_words
from advisor.rules.room import room_of
from advisor.rules.setting_words import UNSAID
from advisor.search import Look, SearchResult, search
from advisor.search.best_with import BestWith
from advisor.search.candidates import Candidate
from advisor.search.scored import Scored
from advisor.sections import training_cost
from advisor.why import GuidePath, Step
from costmodel.knobs import KNOBS

# Pins that are sizes of the plan: rules that tell what does nothing beside them are about other knobs.
SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch")


@dataclass(frozen=True)
class Explanation:
    """Everything `advisor explain` tells. best is None when nothing fits; remedies then say what would.

    outside: what the search does not try and what would gain on the best plan. memory: leaner optimizers that make it
    quicker. fewer: a rounder number of GPUs that does more work than all of them. days: deadline that was asked about,
    in_time: the GPUs that keep it.
    """

    request: Request
    result: SearchResult
    best: Candidate | None
    steps: tuple[Step, ...] = ()
    alternatives: tuple[WhyNot, ...] = ()
    remedies: tuple[str, ...] = ()
    outside: tuple[Gain, ...] = ()
    memory: MoreMemory | None = None
    fewer: Count | None = None
    days: float | None = None
    in_time: Count | None = None

    @property
    def shown(self) -> Candidate:
        """The best plan, or the least bad one when nothing fits."""
        found = self.best or self.result.least_bad
        assert found is not None
        return found

    @property
    def cost(self) -> dict[str, float] | None:
        """Cost of the training run that --tokens asks about."""
        if self.request.tokens is None:
            return None
        return training_cost(self.shown.prediction, self.request.tokens)

    @cached_property
    def found(self) -> list[Violation]:
        """What the rules say about the plan shown: its price, what the environment must hold, ways out as pins."""
        request, plan = self.request, self.shown.plan
        shown = self.shown.prediction
        words = all_words(shown, request.stack)
        if request.objective == "memory":  # room that recompute leaves is what was asked for
            words = {**words, "recompute_gain": UNSAID}
        setting = (request.model, request.workload, request.cluster, plan, 0)
        found = violations(*setting, words, request.stack, room_of(shown, request.stack))
        return [replace(each, way_out=as_pins(each.way_out)) for each in found]

    @property
    def not_there(self) -> list[str]:
        """What was asked for and is not in the answer, each in one line: recipes without a plan, pins in vain."""
        request = self.request
        pinned = {
            name
            for name, value in request.knob_pins.items()
            if name not in SIZES and value != KNOBS[name].default
        }
        vain = [
            each for each in self.found if each.severity in ("SILENT", "AUTOFIX") and pinned & set(each.knobs)
        ]
        return [
            *(f"Without {name}: {why}." for name, why in self.result.left_out.items()),
            *(f"Pinned in vain: {each.text} [{each.id}]." for each in vain),
        ]

    @property
    def assumptions(self) -> list[str]:
        """What was taken for granted, in the order it was decided."""
        price = price_note(self.request.cluster) if self.request.tokens else []
        return [*self.result.notes, *price, *self.shown.prediction.assumptions]

    def to_dict(self) -> dict[str, Any]:
        """The object that `explain --json` prints."""
        result = self.result
        return {
            "plans": [_plan_dict(candidate) for candidate in result.plans],
            "least_bad": _plan_dict(result.least_bad) if result.least_bad else None,
            "remedies": list(self.remedies),
            "rejected": [
                {"reason": each.reason, "count": each.count, "example": each.example}
                for each in result.rejected
            ],
            "space": {
                "enumerated": result.enumerated,
                "legal": result.legal,
                "feasible": result.feasible,
                "tight": result.tight,
                "slowest": result.slowest if result.slowest < math.inf else None,
                "seconds": result.seconds,
            },
            "more_memory": self.memory.to_dict() if self.memory else None,
            "not_searched": [gain.to_dict() for gain in self.outside],
            "why": [step.to_dict() for step in self.steps],
            "why_not": [_why_not_dict(alternative) for alternative in self.alternatives],
            "not_there": self.not_there,
            "violations": [violation.to_dict() for violation in self.found],
            "cost": self.cost,
            "fewer_gpus": self.fewer.to_dict(self.request.tokens) if self.fewer else None,
            "in_time": self.in_time.to_dict(self.request.tokens) if self.in_time else None,
            "assumptions": self.assumptions,
        }


def explain(
    request: Request,
    questions: Sequence[str] = (),
    progress: Tell | None = None,
    look: Look | None = None,
    days: float | None = None,
) -> Explanation:
    """Search, then gather what makes the answer believable. ValueError in one line as `search`.

    questions: texts of --why-not, each NAME=VALUE, several joined by commas. look: as `search`. days: the time that the
    request's tokens may take.
    """
    asked = [parse_pins([text], "--why-not") for text in questions]
    tried: dict[str, frozenset[Any]] = {}
    evaluated: list[Scored] = []

    def seen(scored: list[Scored]) -> None:
        evaluated.extend(scored)
        tried.update(tried_in(each.space for each in scored))
        if look is not None:
            look(scored)

    result = search(request, progress, seen)
    if not result.plans:
        return Explanation(
            request,
            result,
            None,
            remedies=what_would_fit(result),
            fewer=fewer_gpus(request, None),
            days=days,
            in_time=in_time(request, None, days) if days else None,
        )
    best = result.plans[0]
    others = BestWith(result, evaluated) if request.objective == "throughput" else None
    path = GuidePath(best.prediction, request.precisions, request.stack, others)
    return Explanation(
        request,
        result,
        best,
        steps=tuple(path.steps()),
        alternatives=(
            *(why_not(request, pins, best, tried, result.slowest) for pins in asked),
            *filter(None, [] if _asks_scope(asked) else [whole_step_graph(request, best)]),
        ),
        outside=gains_outside(request, best, tried, result.slowest),
        memory=what_memory_buys(request, evaluated, best),
        fewer=fewer_gpus(request, best),
        days=days,
        in_time=in_time(request, best, days) if days else None,
    )


def _plan_dict(candidate: Candidate) -> dict[str, Any]:
    return {
        "rank": candidate.rank,
        "knobs": candidate.plan.to_dict(),
        "prediction": candidate.prediction.to_dict(),
        "lost_by": candidate.lost_by,
        "lost_to_term": candidate.lost_to_term or None,
        "order_held": candidate.order.to_dict() if candidate.order else None,
    }


def _asks_scope(asked: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a question is about the scope of CUDA graphs, which is then answered once."""
    return any("cuda_graph_scope" in pins for pins in asked)


def _why_not_dict(found: WhyNot) -> dict[str, Any]:
    return {
        "pins": {
            name: list(value) if isinstance(value, tuple) else value for name, value in found.pins.items()
        },
        "reason": found.reason,
        "not_taken": found.not_taken or None,
        "to_take": found.to_take or None,
        "plan": _plan_dict(found.candidate) if found.candidate else None,
    }
