"""What a page is about: one plan predicted, the search in its setting, and what was said with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advisor.case import Case
from advisor.explain import Explanation, explain
from advisor.plan_faults import plan_faults
from advisor.precisions import choose_precisions
from advisor.report.cloud import Cloud
from advisor.report.records import run_records
from advisor.report.scaling import scaling
from advisor.request import Request
from advisor.rules import Violation, holds
from advisor.rules.predicted_words import predicted_words
from advisor.search.candidates import Candidate
from advisor.sections import training_cost
from advisor.why import GuidePath, Step
from costmodel.prediction import Prediction
from costmodel.simulated_pipeline import with_schedule
from costmodel.stack import shown_stack
from executor.export.exported import TARGETS

if TYPE_CHECKING:
    from advisor.progress import Tell


@dataclass(frozen=True)
class Subject:
    """A plan and all that a page tells of it.

    prediction: its pipeline simulated, as every command tells it. explanation: of the search in the plan's setting,
    None where no plan is legal there (problem says why). best: whether the plan is the answer of that search.
    commands: what to type next, each with what it does. names: what the user called the model ("model") and the
    machine ("cluster"). records: of its runs. gpus: those there are, where the sizes may take another number; else 0.
    """

    prediction: Prediction
    explanation: Explanation | None
    cloud: Cloud
    steps: tuple[Step, ...]
    found: tuple[Violation, ...]
    notes: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    names: Mapping[str, str]
    records: tuple[dict[str, Any], ...] = ()
    scaling: dict[str, Any] | None = None
    stack: str | None = None
    tokens: float | None = None
    problem: str = ""
    gpus: int = 0

    @property
    def best(self) -> bool:
        """Whether this is the plan that the search gives."""
        found = self.explanation.best if self.explanation else None
        return found is not None and found.plan == self.prediction.plan

    @property
    def layouts(self) -> tuple[Candidate, ...]:
        """The best plan of each of the best layouts, by rank."""
        return self.explanation.result.plans if self.explanation else ()

    @property
    def holds(self) -> bool:
        """Whether the plan runs and fits."""
        return holds(self.prediction, self.found)

    @property
    def cost(self) -> dict[str, float] | None:
        """What training on the tokens asked about costs with this plan."""
        return training_cost(self.prediction, self.tokens) if self.tokens else None


def subject_of_case(
    case: Case,
    path: str | None,
    tokens: float | None,
    records: Sequence[str],
    tell: Tell,
    asked: Sequence[str] = (),
) -> Subject:
    """The plan of a file or of options, beside the search over everything else in its setting.

    asked: where there is no file, the arguments of the command that writes one.
    """
    with plan_faults(case):
        closed = case.predict()
        prediction = with_schedule(closed)
    words = predicted_words(prediction)
    found = case.violations(words, prediction)
    runs = tuple(run_records(prediction, records, case))
    recipes, note = choose_precisions("auto", case.cluster, case.stack)
    request = Request(
        model=case.model,
        gpus=case.plan.world,
        cluster=case.cluster,
        workload=case.workload,
        precisions=tuple(dict.fromkeys((*recipes, case.plan.precision))),
        tokens=tokens,
        stack=case.stack,
        notes=(note,) if note else (),
    )
    cloud, problem = Cloud(), ""
    try:
        explanation: Explanation | None = explain(request, (), _part(tell, 0.0, 0.5), cloud)
        curve = scaling(request, explanation.best, _part(tell, 0.5, 0.9))
    except ValueError as refused:
        explanation, curve, problem = None, None, str(refused)
    best = explanation.best if explanation else None
    if explanation and best and best.plan == case.plan:
        steps = explanation.steps
    else:
        steps = tuple(GuidePath(prediction, request.precisions, case.stack).steps())
    return Subject(
        prediction=prediction,
        explanation=explanation,
        cloud=cloud,
        steps=steps,
        found=tuple(found),
        notes=case.notes,
        commands=next_commands(path, asked, holds(prediction, found), case.stack, case.cluster.gpu.vendor),
        names={"model": case.plan_file.model, "cluster": case.plan_file.cluster},
        records=runs,
        scaling=curve,
        stack=case.stack,
        tokens=tokens,
        problem=problem,
        gpus=case.gpus,
    )


def subject_of_explanation(
    explanation: Explanation,
    cloud: Cloud,
    names: Mapping[str, str],
    saved: str | None,
    asked: Sequence[str],
    tell: Tell,
) -> Subject:
    """The answer of `explain`, or the least bad plan when nothing fits. saved: its file; asked: the arguments."""
    request: Request = explanation.request
    prediction = explanation.shown.prediction
    steps = explanation.steps
    if not steps:
        steps = tuple(GuidePath(prediction, request.precisions, request.stack).steps())
    return Subject(
        prediction=prediction,
        explanation=explanation,
        cloud=cloud,
        steps=steps,
        found=tuple(explanation.found),
        notes=tuple(explanation.result.notes),
        commands=next_commands(
            saved, asked, explanation.best is not None, request.stack, request.cluster.gpu.vendor
        ),
        names=names,
        records=tuple(run_records(prediction, ())),
        scaling=scaling(request, explanation.best, tell),
        stack=request.stack,
        tokens=request.tokens,
    )


def next_commands(
    path: str | None,
    asked: Sequence[str] = (),
    holds: bool = True,
    stack: str | None = None,
    vendor: str = "",
) -> tuple[tuple[str, str], ...]:
    """What to type next. path: of the plan file, None where none was written; asked: what made the plan.

    stack: whose release it is for, as which it is exported where that is a target; None for what trains on GPUs of
    that vendor.
    """
    first: tuple[tuple[str, str], ...] = ()
    if path is None and asked:
        again = shlex.join(word for word in without_page(asked) if word != "--json")
        first = ((f"advisor {again} --save plan.toml", "keeps this plan as a file"),)
    name = shlex.quote(path or "plan.toml")
    target = shown_stack(stack, vendor).names.replace("_", "-")
    if not holds:
        if path is None:
            return ()
        return (
            (f"advisor check {name}", "tells everything that keeps the plan from running, and the way out"),
            (f"advisor whatif {name}", "tells what every knob would change"),
        )
    return (
        *first,
        (f"advisor run {name}", "trains with it here, predicted beside measured"),
        (
            f"advisor export {name} --to {target if target in TARGETS else TARGETS[0]} --slurm -o run",
            "writes configuration, launch line and job",
        ),
        (f"advisor whatif {name}", "tells what every knob would change"),
    )


def without_page(asked: Sequence[str], options: Sequence[str] = ("--html",)) -> list[str]:
    """Arguments of a command without those options of the page, each of which takes a value.

    Examples
    --------
    >>> without_page(["explain", "--html", "plan.html", "--gpus", "8", "--html=other.html"])
    ['explain', '--gpus', '8']
    """
    kept: list[str] = []
    words = iter(asked)
    for word in words:
        if word in options:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            kept.append(word)
    return kept


def _part(tell: Tell, start: float, end: float) -> Tell:
    return lambda share, what: tell(start + (end - start) * share, what)
