"""What one check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

STATUSES = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """One line of the examination.

    check: its name; status: ok, warn or fail, of which only fail stops a run; found: what is there, with numbers;
    why: why it matters, and way_out: what to do, both empty for ok; source: where the rule is read.
    """

    check: str
    status: str
    found: str
    why: str = ""
    way_out: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        assert self.status in STATUSES
        assert self.status == "ok" or (self.why and self.way_out), self

    def line(self) -> str:
        """One line for errors."""
        return f"{self.check}: {self.found}: {self.why}. {self.way_out}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return asdict(self)


def worst(findings: Iterable[Finding]) -> str:
    """The gravest status among them."""
    return max((finding.status for finding in findings), key=STATUSES.index, default="ok")
