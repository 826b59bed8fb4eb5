"""A run as it was measured, with the plan and the prediction that belong to it, where they are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executor.logs.record import Log
from executor.logs.summary import Steady
from executor.profiles.profile import Profile

if TYPE_CHECKING:
    from advisor.case import Case


@dataclass
class Measured:
    """A measurement with its prediction. log and kept are None where only traces are given.

    predicted: the object of `predict --json`, None when plan or machine are unknown. case: the plan in its setting,
    where one can be built. run: what the record of a run keeps as measured. notes: what was taken for granted;
    warnings: what makes the comparison doubtful. another: what shows that the log is of another run than the plan's,
    so that their times do not compare. own_plan: the plan is the log's own, no option changed it.
    """

    source: str
    log: Log | None = None
    kept: Steady | None = None
    profiles: list[Profile] = field(default_factory=list)
    predicted: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
    case: Case | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    another: list[str] = field(default_factory=list)
    own_plan: bool = False

    @property
    def step(self) -> float:
        """Of a steady step: of the run's record, the log or the slowest trace. [s]"""
        if self.run is not None:
            return float(self.run["step_time_s"])
        if self.kept is not None:
            return self.kept.seconds
        return max(each.step_seconds for each in self.profiles)

    @property
    def unmarked(self) -> bool:
        """Whether nothing tells how many steps a trace holds."""
        return any(not each.steps for each in self.profiles)

    @property
    def apart(self) -> str:
        """One sentence where measured and predicted are two different runs, else ""."""
        if not self.another:
            return ""
        told = ", ".join(self.another[:5])
        more = f" and {len(self.another) - 5} more" if len(self.another) > 5 else ""
        if self.own_plan:
            return f"The plan read from the log does not agree with the log's other lines: {told}{more}."
        return f"The log is of another run than the plan: {told}{more}."

    @property
    def remedy(self) -> str:
        """What to give where measured and predicted are two different runs."""
        return "name the model (--model) or the plan that ran" if self.own_plan else "name the plan that ran"

    @property
    def peak(self) -> float | None:
        """Largest peak of torch's allocator over the ranks that tell. [byte]"""
        peaks = [each.max_allocated for each in self.log.memory if each.max_allocated] if self.log else []
        return max(peaks) if peaks else None
