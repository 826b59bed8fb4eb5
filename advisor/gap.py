"""Predicted beside measured: every term that is told, the one to blame, what to change, and its ceiling."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from advisor.diagnosis import Diagnosed, diagnosis_of, rule_here
from advisor.measured.run import Measured
from executor.compare import Row, compare, verdict
from executor.diagnose import Rule, load_rules
from executor.logs.compare import log_rows, profile_rows

# Row -> the rule of diagnoses.toml that says what to do about it.
CURES = {
    "gradient reduction, exposed": "dp_overlap_failed",
    "data-parallel, exposed": "dp_overlap_failed",
    "tensor-parallel, exposed": "tp_exposed",
    "context-parallel, exposed": "cp_exposed",
    "expert dispatch, exposed": "ep_exposed",
    "pipeline: bubble and transfers": "pipeline_waits",
    "pipeline, waiting and transfers": "pipeline_waits",
    "optimizer and parameter gather": "optimizer_slow",
    "optimizer kernels": "optimizer_slow",
    "idle: host, data, stragglers": "host_bound",
    "element-wise kernels": "small_kernels",
    "attention kernels": "unfused_attention",
    "quantisation kernels": "low_fp8_gain",
    "linear kernels": "compute_slow",
    "other communication, exposed": "exposed_communication",
    "forward": "compute_slow",
    "backward": "compute_slow",
    "communication and waiting": "exposed_communication",
    "optimizer": "optimizer_slow",
    "forward compute": "compute_slow",
    "backward compute": "compute_slow",
    "forward and backward": "compute_slow",
    "everything else": "data_stall",
}
# Rows of the whole, which are no terms.
WHOLE = (
    "step time",
    "tokens/s/GPU",
    "tokens/s of each process",
    "model TFLOP/s/GPU",
    "allocated memory of the worst rank",
)


@dataclass(frozen=True)
class Blame:
    """The term that holds most of the gap.

    excess [s]: measured less predicted, in the direction of the gap; share: of the gap [1], above 1 when other terms
    go the other way. ceiling: the share of the measured step that is won when the term takes what was predicted [1].
    """

    row: Row
    excess: float
    share: float
    ceiling: float
    cure: Rule | None


@dataclass
class Gap:
    """A measurement beside its prediction."""

    measured: Measured

    def __post_init__(self) -> None:
        if self.measured.predicted is None:
            raise ValueError(
                f"{self.measured.source} does not show the plan that ran. Give it: "
                f"`advisor compare PLAN {shlex.quote(self.measured.source)}`."
            )

    @property
    def predicted(self) -> dict[str, Any]:
        """The object of `predict --json`."""
        assert self.measured.predicted is not None
        return self.measured.predicted

    @cached_property
    def rows(self) -> list[Row]:
        """Of the log: the step, its terms, memory."""
        found = self.measured
        if found.run is not None:
            return compare(self.predicted, found.run)
        if found.log is None or found.kept is None:
            step, interval = float(self.predicted["step_time_s"]), self.predicted["interval"]
            said = verdict(step, found.step, interval["low"], interval["high"])
            return [Row("step time", step, found.step, "s", said)]
        return log_rows(self.predicted, found.log, found.kept, found.peak)

    @cached_property
    def traced(self) -> list[Row]:
        """Of the trace whose device waits most."""
        if not self.measured.profiles:
            return []
        return profile_rows(
            self.predicted, max(self.measured.profiles, key=lambda each: each.exposed + each.idle)
        )

    @property
    def seconds(self) -> float:
        """Measured less predicted step. [s]"""
        return self.measured.step - float(self.predicted["step_time_s"])

    @property
    def verdict(self) -> str:
        """Where the measured step lies."""
        return self.rows[0].verdict

    @cached_property
    def blame(self) -> Blame | None:
        """The term that goes furthest in the direction of the gap; None when nothing tells terms of the same run."""
        if self.measured.another or self.measured.unmarked:
            return None
        terms = [row for row in self.traced or self.rows if row.unit == "s" and row.name not in WHOLE]
        if not terms or not self.seconds:
            return None
        sign = 1.0 if self.seconds > 0 else -1.0
        worst = max(terms, key=lambda row: sign * (row.measured - row.predicted))
        excess = sign * (worst.measured - worst.predicted)
        if excess <= 0:
            return None
        cure = next((rule for rule in load_rules() if rule.id == CURES.get(worst.name)), None)
        return Blame(
            worst,
            excess,
            excess / abs(self.seconds),
            excess / self.measured.step if sign > 0 else 0.0,
            rule_here(cure, self.measured.case) if cure and self.measured.case else cure,
        )

    @cached_property
    def diagnosed(self) -> Diagnosed:
        """Symptoms of the same measurement."""
        return Diagnosed(self.measured, diagnosis_of(self.measured), {})

    def to_dict(self) -> dict[str, Any]:
        """The object of `compare --json` for a log."""
        found, blame = self.measured, self.blame
        kept = found.kept
        return {
            "source": found.source,
            "framework": found.log.framework if found.log else None,
            "verdict": self.verdict,
            "another_run": found.another,
            "gap_s": self.seconds,
            "gap_share": self.seconds / float(self.predicted["step_time_s"]),
            "rows": [row.to_dict() | {"delta": row.measured - row.predicted} for row in self.rows],
            "trace_rows": [row.to_dict() | {"delta": row.measured - row.predicted} for row in self.traced],
            "blame": None
            if blame is None
            else {
                "term": blame.row.name,
                "excess_s": blame.excess,
                "share_of_gap": blame.share,
                "ceiling_share": blame.ceiling,
                "do": blame.cure.do if blame.cure else None,
                "knobs": list(blame.cure.knobs) if blame.cure else [],
            },
            "findings": [each.to_dict() for each in self.diagnosed.diagnosis.findings],
            "measured": {"step_time_s": found.step, "steady": kept.to_dict() if kept else None},
            "prediction": self.predicted,
            "notes": found.notes,
            "warnings": found.warnings,
        }
