"""Published runs as arrays: how far each is from a query, and what their errors say of it.

Distance between two runs is a sum of terms, each read as "how much less does the one tell of the other": a
step of a factor of two in a size, or another kind of something. Errors are log(predicted / measured) throughout.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.evidence.effects import read_effects
from costmodel.evidence.quantile import Numbers, local_quantile
from costmodel.evidence.setting import EFFECT, KINDS, TRAITS, bits, library, swapped, traits, uses, year
from hardware_db.evidence import Evidence, Setting

Z = 1.645  # standard errors in half of a 90 % interval
# Distance of a mismatch of kind.
OTHER = {
    "trait": 0.8,  # each of: experts, latent attention, recurrent mixer, compressed attention
    "model": 0.2,
    "generation": 0.6,
    "gpu": 0.2,
    "cluster": 0.1,
    "bits": 0.4,  # 16, 8 or 4 bits in the matrix products
    "precision": 0.2,
    "task": 0.8,
    "library": 0.8,
    "layout": 0.15,  # each of tp, pp, cp, ep, fsdp that one run uses and the other does not
    "recompute": 0.2,
    "technique": 0.1,  # each of `Setting.techniques` that one run has and the other has not
}
# Distance of a setting that moves the step in one run otherwise than in the other, for each [log], and at most. By the
# least growth of an interval (0.1) a tenth of what a setting moves is unknown; at four times as much fewer runs left
# out lie inside their intervals (87.8 % for 88.8 %), at none of it 88.6 %.
EFFECT_SIZE = 1.0
MOST_EFFECT = 0.8
# Distance of a factor of two, and of a year between releases.
DOUBLE = {"gpus": 0.1, "parameters": 0.12, "seq_len": 0.12, "micro_batch": 0.1}
YEAR = 0.15
# Runs that are equally near come in the order of the sizes of their layout and batch: of a factor of two. It is no
# part of the distance, and no interval depends on it.
SIZES = ("tp", "pp", "vpp", "cp", "ep", "global_batch")
SIZE = 0.02
# Of what nobody has published a run of: a GPU generation, a framework, a trait of fewer than REACH runs. Leaving models
# out of a fit does not teach what a new machine or block costs; with the least growth (0.1) this gives the third that
# such a prediction may be off.
UNKNOWN = 3.0
# Width of the kernel in which runs share an error, and how many runs at no distance weigh as much as knowing of none.
SHARED_WIDTH = 0.3
SHARED_PRIOR = 1.0
# Of a GPU that no run was on and that has the kernels of another (`Setting.kernels`): what they reach on it, under its
# power limit and over its memory, is an inference, while its generation's software is known. Assumed: with the least
# growth a fifth.
UNKNOWN_GPU = 2.0
# Runs whose mean distance says how far away the evidence is.
REACH = 5
# Errors above a factor of two count as that: such a run was not what its line states (waiting for data, say).
LARGEST = math.log(2)
# Without constants learnt from published runs.
SPREAD = {"scale": 1.0, "growth": 0.1}


@dataclass(frozen=True)
class Table:
    """Published runs as arrays. spread: scale and growth of the interval, see `Table.half_width`; untuned: ratios
    of measured over predicted between which runs lie that nobody tuned (`runs` of them), none of which is in `runs`."""

    runs: tuple[Evidence, ...]
    spread: dict[str, float] = field(default_factory=lambda: dict(SPREAD))
    untuned: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> dict[str, Numbers]:
        """log2 of every size in DOUBLE."""
        return {name: np.log2([float(getattr(run, name)) for run in self.runs]) for name in DOUBLE}

    @cached_property
    def layout_sizes(self) -> dict[str, Numbers]:
        """log2 of every size in SIZES, whose unused ones are 0 or 1."""
        return {name: np.log2([float(max(1, getattr(run, name))) for run in self.runs]) for name in SIZES}

    @cached_property
    def words(self) -> dict[str, NDArray[Any]]:
        """Every name that is compared as it is."""
        columns = {
            name: [getattr(run, name) for run in self.runs]
            for name in (
                "id",
                "model",
                "generation",
                "gpu",
                "cluster",
                "precision",
                "task",
                "recompute",
                "techniques",
            )
        }
        columns["library"] = [library(run.stack) for run in self.runs]
        return {name: np.array(values, dtype=object) for name, values in columns.items()}

    @cached_property
    def codes(self) -> dict[str, tuple[dict[str, int], NDArray[np.int64]]]:
        """Names as numbers, which compare quickly."""
        coded = {}
        for name, values in self.words.items():
            known = {word: index for index, word in enumerate(dict.fromkeys(values))}
            coded[name] = known, np.array([known[word] for word in values], dtype=np.int64)
        return coded

    @cached_property
    def effects(self) -> dict[str, tuple[NDArray[Any], Numbers]]:
        """Of every setting with an effect in some run: its value in each run ("" at its default), and the effect."""
        found: dict[str, tuple[NDArray[Any], Numbers]] = {}
        for index, run in enumerate(self.runs):
            for name, (value, effect) in read_effects(run.effects).items():
                if name not in found:
                    found[name] = np.full(len(self), "", dtype=object), np.zeros(len(self))
                found[name][0][index], found[name][1][index] = value, effect
        return found

    @cached_property
    def years(self) -> Numbers:
        """Release of each run's software."""
        return np.array([year(run.stack) for run in self.runs])

    @cached_property
    def bits(self) -> Numbers:
        """Bits of each run's operands."""
        return np.array([bits(run.precision) for run in self.runs], dtype=float)

    @cached_property
    def uses(self) -> NDArray[np.bool_]:
        """Kinds of parallelism of each run."""
        return np.array([uses(run) for run in self.runs], dtype=bool).reshape(len(self.runs), len(KINDS) + 1)

    @cached_property
    def traits(self) -> NDArray[np.bool_]:
        """Traits of each run's model."""
        return np.array([[trait in traits(run.family) for trait in TRAITS] for run in self.runs])

    @cached_property
    def rare_traits(self) -> frozenset[str]:
        """Traits that too few runs have to say how far off a prediction is."""
        return frozenset(
            name for name, runs in zip(TRAITS, self.traits.sum(axis=0), strict=True) if runs < REACH
        )

    @cached_property
    def trait_sizes(self) -> Numbers:
        """Distance of a mismatch of each trait."""
        return np.array([UNKNOWN if name in self.rare_traits else OTHER["trait"] for name in TRAITS])

    @cached_property
    def weights(self) -> Numbers:
        """Weight of each run: many runs of like models on one machine tell less than as many models."""
        groups = [(run.source, run.family, run.hidden, run.cluster) for run in self.runs]
        size = Counter(groups)
        return np.array([size[group] ** -0.5 for group in groups])

    @cached_property
    def _errors(self) -> dict[bool, tuple[Numbers, Numbers]]:
        """Error of each run, at most LARGEST, and what runs near it have: by whether its model is in the fit."""
        error, held, near, near_held = (
            np.clip([getattr(run, name) for run in self.runs], -LARGEST, LARGEST)
            for name in ("error", "held_error", "near_error", "near_held_error")
        )
        # A new run of a model in the fit lies between runs that were fitted and runs whose model was not.
        return {True: ((error + held) / 2, near), False: (held, near_held)}

    def __len__(self) -> int:
        return len(self.runs)

    def other(self, name: str, word: str) -> Numbers:
        """1 for every run whose `name` is another word."""
        known, values = self.codes[name]
        return np.asarray(values != known.get(word, -1), dtype=float)

    def knows(self, name: str, word: str) -> bool:
        """Whether any run has this word."""
        return word in self.codes[name][0]

    def guesses(self, query: Setting) -> bool:
        """Whether a query's GPU has the kernels of another, and no run shows what they reach there."""
        known = self.knows("gpu", query.gpu) or not self.knows("generation", query.generation)
        return bool(query.kernels) and not known

    def terms(self, query: Setting) -> dict[str, Numbers]:
        """Parts of the distance of every run to a query, each at least 0; their sum is the distance. [1]"""
        found = {
            "model": OTHER["model"] * self.other("model", query.model)
            + (self.traits != [trait in traits(query.family) for trait in TRAITS]) @ self.trait_sizes
            + self._doubles("parameters", query),
            "gpu": (OTHER["generation"] if self.knows("generation", query.generation) else UNKNOWN)
            * self.other("generation", query.generation)
            + (UNKNOWN_GPU if self.guesses(query) else OTHER["gpu"]) * self.other("gpu", query.gpu)
            + OTHER["cluster"] * self.other("cluster", query.cluster),
            "precision": OTHER["precision"] * self.other("precision", query.precision)
            + OTHER["bits"] * (self.bits != bits(query.precision)),
            "task": OTHER["task"] * self.other("task", query.task),
            "stack": (OTHER["library"] if self.knows("library", library(query.stack)) else UNKNOWN)
            * self.other("library", library(query.stack))
            + YEAR * np.nan_to_num(np.abs(self.years - year(query.stack)), nan=1.0),
            "recompute": OTHER["recompute"] * self.other("recompute", query.recompute),
            "techniques": OTHER["technique"] * self._techniques(query),
        }
        effects = self._effects(query)
        found["recompute"] = found["recompute"] + effects.pop("recompute", 0.0)
        found |= {EFFECT + name: away for name, away in effects.items()}
        layout = OTHER["layout"] * (self.uses != list(uses(query)))
        found |= {kind: layout[:, index] for index, kind in enumerate((*KINDS, "fsdp"))}
        return found | {name: self._doubles(name, query) for name in ("gpus", "seq_len", "micro_batch")}

    def _techniques(self, query: Setting) -> Numbers:
        """Techniques in which each run differs; another dispatcher counts as one."""
        mine = frozenset(query.techniques.split())
        known, values = self.codes["techniques"]
        sets = [frozenset(words.split()) for words in known]
        return np.array([len(mine ^ its) - swapped(mine, its) for its in sets], dtype=float)[values]

    def _effects(self, query: Setting) -> dict[str, Numbers]:
        """How far each setting's effect in each run is from that in a query that has another value of it."""
        mine = read_effects(query.effects)
        none = np.full(len(self), "", dtype=object), np.zeros(len(self))
        found = {}
        for name in {**self.effects, **mine}:
            values, theirs = self.effects.get(name, none)
            value, effect = mine.get(name, ("", 0.0))
            away = np.where(values == value, 0.0, np.abs(theirs - effect))
            found[name] = np.minimum(EFFECT_SIZE * away, MOST_EFFECT)
        return found

    def _doubles(self, name: str, query: Setting) -> Numbers:
        size: float = getattr(query, name)
        away: Numbers = np.abs(self.sizes[name] - math.log2(size))
        return DOUBLE[name] * away

    def resized(self, query: Setting) -> dict[str, Numbers]:
        """How far the sizes of each run's layout and batch are from a query's, which orders runs equally near. [1]"""
        return {
            name: SIZE * np.abs(values - math.log2(max(1, getattr(query, name))))
            for name, values in self.layout_sizes.items()
        }

    def distances(self, query: Setting) -> Numbers:
        """Distance of every run to a query. [1]"""
        total: Numbers = np.sum(list(self.terms(query).values()), axis=0)
        return total

    def errors(self, known_model: bool) -> Numbers:
        """Signed errors like those that a query must expect, whose model is in the fit or not. [log]"""
        return self._errors[known_model][0]

    def scores(self, known_model: bool) -> Numbers:
        """|error less what the runs near it share| of each run: what the interval of a query must cover. [log]"""
        error, near = self._errors[known_model]
        return np.abs(error - near)

    def shared(self, distances: Numbers, known_model: bool) -> float:
        """Error that the runs close by have in common, drawn to 0 where there are few. [log]"""
        weights = self.weights * np.exp(-distances / SHARED_WIDTH)
        return float(weights @ self.errors(known_model) / (weights.sum() + SHARED_PRIOR))

    def half_width(
        self, distances: Numbers, known_model: bool, parameter_spread: float = 0.0
    ) -> tuple[float, dict[str, float]]:
        """Half of the interval in log, and its parts.

        sqrt((scale x local quantile)^2 + (growth x reach)^2 + (1.645 parameter_spread)^2), reach the mean
        distance of the nearest runs. Infinite distances are left out.
        """
        local = local_quantile(distances, self.scores(known_model), self.weights)
        near = np.partition(distances, REACH - 1)[:REACH] if len(self) > REACH else distances
        parts = {
            "errors of the nearest runs": self.spread["scale"] * local,
            "distance of the nearest runs": self.spread["growth"] * float(near[np.isfinite(near)].mean()),
            "constants of the fit and the speed of hosts": Z * parameter_spread,
        }
        return math.sqrt(sum(part**2 for part in parts.values())), parts

    def without(self, distances: Numbers, run_id: str) -> Numbers:
        """Distances with one run, the query itself, out of reach."""
        known, values = self.codes["id"]
        return np.where(values == known[run_id], np.inf, distances) if run_id in known else distances
