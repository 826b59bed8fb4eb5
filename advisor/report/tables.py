"""What the what-if section looks up instead of computing: bound inputs, words of the setting, pipeline layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from advisor.report.controls import Control
from advisor.rules.layouts import fullest_stage, layout_problem
from advisor.rules.model_words import cluster_words
from costmodel.binding import bind, recipe_formats
from costmodel.layout import Layout
from costmodel.prediction import Prediction
from costmodel.stage_inputs import LAYOUT_COLUMNS, layout_by_numbers, stage_record


def values_of(controls: Sequence[Control], prediction: Prediction, name: str) -> tuple[Any, ...]:
    """Values that a knob can have on the page: those offered, else the plan's alone."""
    for control in controls:
        if control.knob == name:
            return control.values
    plan, load = prediction.plan, prediction.workload
    return (getattr(plan, name) if hasattr(plan, name) else getattr(load, name),)


def differing(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What `other` says otherwise than `base`."""
    return {name: value for name, value in other.items() if base.get(name) != value}


def bound_tables(prediction: Prediction, controls: Sequence[Control], stack: str | None) -> dict[str, Any]:
    """Inputs that are not of the plan: as bound for the plan, and what each precision and length changes.

    longest: what the time of a step counts otherwise where sequences are padded to the longest of a batch, by
    length and batch.
    """
    model, load, cluster = prediction.model, prediction.workload, prediction.cluster

    def numbers(precision: str, seq_len: int, padded_with: int = 0) -> dict[str, float]:
        own = replace(load, seq_len=seq_len)
        if padded_with:
            own = replace(own, global_batch=padded_with).padded_to_longest()
        bound = bind(model, own, cluster, precision, stack)
        return {name: entry.value for name, entry in bound.items()}

    own, lengths = prediction.plan.precision, values_of(controls, prediction, "seq_len")
    base = numbers(own, load.seq_len)
    varied = not load.packed and load.length_cv is not None
    return {
        "base": base,
        "precision": {
            precision: differing(base, numbers(precision, load.seq_len))
            for precision in values_of(controls, prediction, "precision")
        },
        "seq_len": {str(length): differing(base, numbers(own, length)) for length in lengths},
        "longest": {
            f"{length},{batch}": differing(numbers(own, length), numbers(own, length, batch))
            for length in lengths
            for batch in (values_of(controls, prediction, "global_batch") if varied else ())
        },
    }


def precision_tables(prediction: Prediction, controls: Sequence[Control]) -> dict[str, dict[str, Any]]:
    """Precision -> its "formats" for the plan's inputs and its "words" for the rules, as plain values."""
    found: dict[str, dict[str, Any]] = {}
    for precision in values_of(controls, prediction, "precision"):
        words = cluster_words(prediction.cluster, precision, prediction.plan.world)
        plain = {name: getattr(value, "item", lambda value=value: value)() for name, value in words.items()}
        found[precision] = {"formats": recipe_formats(precision), "words": plain}
    return found


def layout_tables(prediction: Prediction, controls: Sequence[Control]) -> dict[str, Any]:
    """Every pipeline layout that the controls reach and that gives each virtual stage something to do.

    index: sizes, flags, layout's number and sequence length -> number of the row, or why there is none. A row is
    the inputs `names`, and the chunks of the virtual stages in order as pairs of a kind's number and a count.
    problems: what the rules say of a layout; layers: of its fullest stage.
    """
    model = prediction.model
    texts = values_of(controls, prediction, "pipeline_layout")
    choices = [
        range(len(texts)) if name == "pipeline_layout" else values_of(controls, prediction, name)
        for name in LAYOUT_COLUMNS
    ]
    tables = _Layouts(prediction)
    for length, key in product(values_of(controls, prediction, "seq_len"), product(*choices)):
        pp, vpp, embedding, loss, text, *_ = key
        place = ",".join(str(int(part)) for part in (*key, length))
        if problem := layout_problem(model, texts[text], pp, vpp):
            tables.problems[place] = problem
        if texts[text]:
            tables.layers[place] = fullest_stage(model, texts[text], pp, vpp, length)
        if pp * vpp > model.num_layers + embedding + loss + model.mtp_layers:
            continue
        try:
            layout = layout_by_numbers(model, length, key, texts[text])
        except ValueError as error:
            tables.index[place] = str(error)
        else:
            tables.index[place] = tables.row(layout, length)
    return tables.to_dict()


class _Layouts:
    """Distinct layouts and kinds of chunks, numbered as they come."""

    def __init__(self, prediction: Prediction) -> None:
        self.model = prediction.model
        self.index: dict[str, int | str] = {}
        self.problems: dict[str, str] = {}
        self.layers: dict[str, int] = {}
        self.names: list[str] = []
        self._rows: dict[str, list[Any]] = {}
        self._kinds: dict[tuple[tuple[tuple[str, int], ...], int], int] = {}
        self._seen: dict[tuple[str, int, int], int] = {}

    def row(self, layout: Layout, length: int) -> int:
        """The number of a layout's row."""
        key = (layout.text, len(layout.chunks), length)
        if key not in self._seen:
            record = stage_record(self.model, layout, length)
            self.names = list(record)
            row = [list(record.values()), self._runs(layout)]
            self._rows.setdefault(repr(row), row)
            self._seen[key] = list(self._rows).index(repr(row))
        return self._seen[key]

    def _runs(self, layout: Layout) -> list[int]:
        """Kinds of the virtual stages in order, each with how many of it follow each other."""
        runs: list[int] = []
        for stages in zip(*layout.chunks, strict=True):
            for chunk in stages:
                kind = self._kinds.setdefault((chunk.blocks, chunk.mtp), len(self._kinds))
                if runs and runs[-2] == kind:
                    runs[-1] += 1
                else:
                    runs += [kind, 1]
        return runs

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the page."""
        return {
            "names": self.names,
            "rows": list(self._rows.values()),
            "kinds": [{"blocks": [list(pair) for pair in blocks], "mtp": mtp} for blocks, mtp in self._kinds],
            "index": self.index,
            "problems": self.problems,
            "layers": self.layers,
        }
