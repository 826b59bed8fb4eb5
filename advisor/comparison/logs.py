"""Two logs beside each other where one shows no plan: what was measured, and nothing of why."""

from __future__ import annotations

from typing import Any

from advisor.alternatives import EVEN_WITHIN
from advisor.measured import read_measured
from advisor.measured.run import Measured
from advisor.render import bold, heading, memory, percent, seconds, table, wrap
from executor.logs.compare import last_batch

# Share of a run's time from which on its spikes are told. [1]
SPIKES = 0.01


class Logs:
    """Two measured logs. ValueError in one line where one cannot be read."""

    def __init__(self, first: str, second: str, options: dict[str, Any]) -> None:
        self.a, self.b = (read_measured(path, (), None, options) for path in (first, second))

    @property
    def batches(self) -> tuple[int, int]:
        """Sequences of the last steps, 0 where a log does not say."""
        one, other = (last_batch(each.log) if each.log else 0 for each in (self.a, self.b))
        return one, other

    @property
    def by_sequence(self) -> bool:
        """Whether the batches differ, so that sequences compare and steps do not."""
        one, other = self.batches
        return bool(one and other and one != other)

    def time(self, side: Measured) -> float:
        """Seconds of a step, or of a sequence where batches differ."""
        batch = self.batches[0 if side is self.a else 1]
        return side.step / batch if self.by_sequence else side.step

    def answer(self) -> str:
        """One line: who is quicker, by how much, and whether that is more than the scatter of the steps."""
        first, second = self.time(self.a), self.time(self.b)
        names = ("A", "B") if first <= second else ("B", "A")
        share = max(first, second) / min(first, second) - 1
        unit = "a sequence" if self.by_sequence else "a step"
        if share < EVEN_WITHIN:
            return f"A and B take the same time: {seconds(first)} {unit} measured."
        low, high = sorted((first, second))
        spread = sum(each.kept.scatter for each in (self.a, self.b) if each.kept)
        sure = "more than" if share > spread else "no more than"
        how = f"{percent(share)} faster than" if share < 1 else f"{1 + share:.2f} times as fast as"
        return (
            f"{names[0]} is {how} {names[1]}: {seconds(low)} {unit} measured against "
            f"{seconds(high)}, {sure} the scatter of their steps."
        )

    def _unknown(self) -> str:
        """What keeps the two from being predicted, and the way out."""
        from executor.logs.plan_text import plan_text

        planless = [
            name
            for name, each in (("A", self.a), ("B", self.b))
            if each.predicted is None and not (each.log and plan_text(each.log)[0])
        ]
        if not planless:
            return "No machine is named (--gpu or --cluster)"
        who = "Neither log shows" if len(planless) == 2 else f"{planless[0]} does not show"
        return f"{who} the plan that ran (`advisor compare PLAN LOG` sets a log beside its plan)"

    def lines(self) -> list[str]:
        """The page."""
        found = [
            bold(wrap(self.answer())),
            *map(wrap, self._spikes()),
            wrap(
                f"{self._unknown()}, so no term is compared. `advisor diagnose LOG` tells what slows one of them."
            ),
            heading("Measured"),
        ]
        rows = [
            ["file", self.a.source, self.b.source],
            ["framework", *(each.log.framework if each.log else "-" for each in (self.a, self.b))],
            ["step time", *(seconds(each.step) for each in (self.a, self.b))],
            [
                "mean, spikes too",
                *(seconds(each.kept.mean) if each.kept else "-" for each in (self.a, self.b)),
            ],
            ["scatter", *(percent(each.kept.scatter) if each.kept else "-" for each in (self.a, self.b))],
            [
                "steady lines",
                *(f"{each.kept.num_lines:,}" if each.kept else "-" for each in (self.a, self.b)),
            ],
            ["sequences a step", *(f"{batch:,}" if batch else "-" for batch in self.batches)],
            ["peak memory", *(memory(each.peak) if each.peak else "-" for each in (self.a, self.b))],
        ]
        found += table(["", "A", "B"], rows, "lrr")
        for name, side in (("A", self.a), ("B", self.b)):
            found += [wrap(f"warning: {name}: {text}", "  ", "    ") for text in side.warnings]
        return found

    def _spikes(self) -> list[str]:
        """Slow steps, which a median does not show, where they cost one of the runs more than SPIKES."""
        found = []
        for name, side in (("A", self.a), ("B", self.b)):
            if side.kept and side.kept.spike_loss > SPIKES:
                one = len(side.kept.spikes) == 1
                steps = "1 step" if one else f"{len(side.kept.spikes)} steps"
                found.append(
                    f"{name} has {steps} far above that, which add{'s' * one} "
                    f"{percent(side.kept.spike_loss)} to its time: {seconds(side.kept.mean)} a step on average."
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The object of `compare --json` for such logs."""
        return {
            "text": self.answer(),
            "unit": "s a sequence" if self.by_sequence else "s a step",
            **{
                name: {
                    "path": side.source,
                    "framework": side.log.framework if side.log else None,
                    "step_time_s": side.step,
                    "global_batch": batch or None,
                    "steady": side.kept.to_dict() if side.kept else None,
                    "warnings": side.warnings,
                    "notes": side.notes,
                }
                for name, side, batch in zip(("a", "b"), (self.a, self.b), self.batches, strict=True)
            },
        }
