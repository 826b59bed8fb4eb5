"""What a user asks: model, GPUs, workload, objective and pinned knobs, checked when built, defaults said."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from advisor.options import split_pairs, value_text
from advisor.precisions import choose_precisions
from advisor.profiles import other_processes
from advisor.rules.features import unheard
from advisor.sizes import SizesError, check_gpus
from advisor.usual_sizes import usual_global_batch, usual_seq_len, why_that_long, why_that_many
from advisor.workload_options import check_acting
from costmodel.knobs import KNOBS, SETTINGS, checked_settings, knob_error
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.workload import Workload

if TYPE_CHECKING:
    from hardware_db import Cluster

OBJECTIVES = ("throughput", "cost", "memory")
# How many times as slow as the fastest a plan of less memory may be: full recompute costs a third, FSDP of whole layers
# somewhat more; without a bound 1 % less memory took 10 times as long.
SLOWDOWN = 1.5
# Knobs that one kind of recompute alone takes.
RECOMPUTE_OF = {"recompute_modules": "selective", "recompute_num_layers": "full"}


@dataclass(frozen=True)
class Request:
    """One question to the advisor. Raises ValueError in one line when it cannot be meant.

    gpus: GPUs there are. precisions: recipes to search. pins: knob or setting -> value that every plan must have.
    top: plans to return. tokens: length of the training run, for its cost. stack: software stack, None is
    the newest known. notes: what was assumed for the user. slowdown: how many times as slow as the fastest that fits a
    plan may be, of the objective "memory". [1] usual_batch: nobody gave a global batch: other GPUs have another.
    """

    model: ModelSpec
    gpus: int
    cluster: Cluster
    workload: Workload
    objective: str = "throughput"
    slowdown: float = SLOWDOWN
    precisions: tuple[str, ...] = ("bf16",)
    pins: Mapping[str, Any] = field(default_factory=dict)
    top: int = 5
    tokens: float | None = None
    stack: str | None = None
    notes: tuple[str, ...] = ()
    usual_batch: bool = False

    def __post_init__(self) -> None:
        check_gpus(self.gpus)
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"--objective {self.objective!r} is not one of {', '.join(OBJECTIVES)}."
                + _hint(self.objective, OBJECTIVES)
            )
        if isinstance(self.top, bool) or not isinstance(self.top, int) or not 1 <= self.top <= 100:
            raise ValueError(f"--top {self.top!r} is not a whole number from 1 to 100. Try --top 5.")
        if not 1 <= self.slowdown < math.inf:
            raise ValueError(
                f"--slowdown {self.slowdown:g} is not a number from 1 up: how many times as slow as the fastest "
                f"plan one of less memory may be. Try --slowdown {SLOWDOWN:g}."
            )
        if self.tokens is not None and not 0 < self.tokens < math.inf:
            raise ValueError(f"--tokens {self.tokens!r} is not a positive number. Try --tokens 1e12.")
        for precision in self.precisions:
            problem = knob_error("precision", precision)
            if problem:
                raise ValueError(problem)
        self._check_pins()

    def batch_on(self, gpus: int) -> int:
        """Sequences of a step of the same question on other GPUs: those given, or the usual ones there. [1]"""
        given = self.workload
        if not self.usual_batch:
            return given.global_batch
        return usual_global_batch(self.model, self.cluster, gpus, given.seq_len, given.task)

    @property
    def knob_pins(self) -> dict[str, Any]:
        """The pins that are knobs: what the search keeps to."""
        return {name: value for name, value in self.pins.items() if name in KNOBS}

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """The pins that are settings, as every plan carries them."""
        return checked_settings({name: value for name, value in self.pins.items() if name in SETTINGS})

    def _check_pins(self) -> None:
        for name, value in self.pins.items():
            if name in SETTINGS:
                problem = SETTINGS[name].error(value)
            else:
                problem = knob_error(name, value) if name in KNOBS else f"{name!r} is not a knob."
            if problem:
                raise ValueError(problem)
        if "precision" in self.pins and self.precisions != (self.pins["precision"],):
            raise ValueError(
                f"--precision {','.join(self.precisions)} contradicts --pin precision={self.pins['precision']}. "
                "Leave one out."
            )
        if {"fsdp", "zero_stage"} <= set(self.pins):
            # A plan refuses the two that do not go together.
            Plan(fsdp=self.pins["fsdp"], zero_stage=self.pins["zero_stage"])
        self._check_recompute()
        # Beside GPUs of the encoder's own, tp and pp need not divide all of them.
        dividing = ("cp", "dp") if self.pins.get("encoder_pp") else ("tp", "pp", "cp", "dp")
        sizes = {name: self.pins[name] for name in dividing if name in self.pins}
        product = math.prod(sizes.values())
        if self.gpus % product:
            given = ", ".join(f"{name}={size}" for name, size in sizes.items())
            wrong = SizesError(
                f"--gpus {self.gpus} does not fit {given}: {self.gpus} is not a multiple of "
                f"{' x '.join(sizes)} = {product}.",
                self.gpus,
                sizes,
                lambda changes: math.prod((sizes | dict(changes)).values()),
            )
            raise ValueError(wrong.line(self._broken, "--pin {}={}"))

    def _broken(self, changes: Mapping[str, int]) -> int | None:
        """ERROR rules that plans break whatever is searched, as they are about pinned knobs alone; None for no plan."""
        from advisor.rules import violations

        pins = {name: value for name, value in (self.knob_pins | dict(changes)).items() if name != "gpus"}
        gpus = changes.get("gpus", self.gpus)
        try:
            plan = Plan(**pins)
            if "dp" not in pins and gpus % plan.replica == 0:
                plan = replace(plan, dp=gpus // plan.replica)
            found = violations(self.model, self.workload, self.cluster, plan, stack=self.stack)
        except ValueError:
            return None
        return sum(each.severity == "ERROR" and set(each.knobs) <= set(pins) for each in found)

    def _check_recompute(self) -> None:
        """Refuse pins, or what --why-not asks, of a kind of recompute beside another: a plan could not hold both."""
        given = {name: value for name, value in self.pins.items() if name in RECOMPUTE_OF and value}
        for name, value in given.items():
            kind = RECOMPUTE_OF[name]
            if self.pins.get("recompute", kind) != kind:
                raise ValueError(
                    f"recompute={self.pins['recompute']} contradicts {name}={value_text(value)}, "
                    f"which is of recompute={kind}. Leave one out, or say recompute={kind}."
                )
        if len(given) > 1:
            words = [
                f"{name}={value_text(value)}, which is of recompute={RECOMPUTE_OF[name]}"
                for name, value in given.items()
            ]
            raise ValueError(f"{', contradicts '.join(words)}. Leave one out.")


def make_request(
    model: str,
    gpus: int,
    gpu: str | None = None,
    cluster: str | None = None,
    *,
    seq_len: int | None = None,
    global_batch: int | None = None,
    task: str = "pretrain",
    precision: str = "auto",
    objective: str = "throughput",
    slowdown: float | None = None,
    pins: Iterable[str] | Mapping[str, Any] = (),
    top: int = 5,
    tokens: float | None = None,
    stack: str | None = None,
    load: Mapping[str, Any] | None = None,
) -> Request:
    """A request from what a user types; every default taken is told in `notes`.

    model, gpu and cluster are names or paths. pins: "tp=4" texts, or knob -> value. precision: "auto", one
    recipe or several separated by commas. load: further fields of the workload (documents, adapters, loads).
    """
    from costmodel.model_registry import load_model
    from hardware_db import resolve

    check_gpus(gpus)
    if slowdown is not None and objective != "memory":
        raise ValueError(
            f"--slowdown {slowdown:g} bounds what less memory may cost, and --objective is {objective}. "
            "Add --objective memory, or leave it out."
        )
    spec = load_model(model)
    place, note = resolve(gpu, cluster)
    notes = [*([note] if note else []), *other_processes(place, gpus)]
    if seq_len is None:
        seq_len = usual_seq_len(spec)
        notes.append(f"sequence length {seq_len}, {why_that_long(spec, seq_len)}")
    usual_batch = global_batch is None
    if global_batch is None:
        Workload(seq_len, 1, task)
        on_cpu = place.gpu.generation == "cpu"
        global_batch = usual_global_batch(spec, place, gpus, seq_len, task)
        notes.append(
            f"global batch {global_batch} sequences ({global_batch * seq_len:,} tokens a step), "
            + ("small, for a processor" if on_cpu else why_that_many(spec, task))
        )
    fixed = completed(pins if isinstance(pins, Mapping) else parse_pins(pins))
    recipes, recipe_note = choose_precisions(precision, place, stack)
    if "precision" in fixed and (precision == "auto" or fixed["precision"] in recipes):
        recipes, recipe_note = (fixed["precision"],), ""
    notes += unheard(fixed, stack)
    workload = Workload(seq_len, global_batch, task, **(load or {}))
    check_acting(load or {}, workload, spec)
    check_tokens(tokens, workload)
    return Request(
        model=spec,
        gpus=gpus,
        cluster=place,
        workload=workload,
        objective=objective,
        slowdown=SLOWDOWN if slowdown is None else slowdown,
        precisions=recipes,
        pins=fixed,
        top=top,
        tokens=tokens,
        stack=stack,
        notes=(*notes, recipe_note) if recipe_note else tuple(notes),
        usual_batch=usual_batch,
    )


def check_tokens(tokens: float | None, workload: Workload) -> None:
    """ValueError in one line where a training run would be shorter than one of its steps: 15 for 15T."""
    step = workload.seq_len * workload.global_batch
    if tokens is not None and 0 < tokens < step:
        raise ValueError(
            f"--tokens {tokens:,.0f} is less than one step, of {step:,} tokens. Say 15T for trillions, 15B for "
            "billions, or give a smaller --global-batch."
        )


def completed(pins: Mapping[str, Any]) -> dict[str, Any]:
    """The pins with what they mean: a scope of CUDA graphs is of plans that have graphs."""
    graphs = {"cuda_graph": True} if pins.get("cuda_graph_scope") else {}
    return graphs | dict(pins)


def parse_pins(texts: Iterable[str], option: str = "--pin") -> dict[str, Any]:
    """Knob or setting -> value of "tp=4" texts, or of "tp=4,pp=2", under any name that --set takes.

    option: where they were given, for the error. ValueError in one line for anything else.
    """
    from costmodel.knobs.names import parse_pair

    pins: dict[str, Any] = {}
    for text in (pair for joined in texts for pair in split_pairs(joined)):
        knob, value = parse_pair(text, option)
        if pins.get(knob.name, value) != value:
            raise ValueError(f"{option} gives {knob.name} twice: {pins[knob.name]} and {value}. Keep one.")
        pins[knob.name] = value
    return pins


def _hint(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.4)
    return f" Did you mean {near[0]}?" if near else ""
