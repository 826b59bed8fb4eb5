"""How many plans a search looked at and what dropped the others, in words that add up."""

from __future__ import annotations

from advisor.search import SearchResult
from costmodel.prediction import TIGHT_ABOVE

ADDED_UP = (
    "each combination is counted once, by the first of these that it meets; with those that fit they make up all "
    "combinations"
)


def counted(result: SearchResult) -> str:
    """Combinations, those evaluated, those that fit, and what of them is not ranked."""
    tight = ""
    if result.tight:
        above = f"above {100 * TIGHT_ABOVE:.0f} % of the device's memory, where the allocator stalls"
        rest = (
            "ranked only where nothing else fits"
            if result.tight < result.feasible
            else "and nothing else fits"
        )
        tight = f", {result.tight:,} of those {above}: {rest}"
    return (
        f"{result.enumerated:,} combinations, {result.legal:,} of them legal and evaluated, "
        f"{result.feasible:,} fit ({result.seconds:.2f} s){tight}."
    )


def reasons(result: SearchResult, most: int) -> list[tuple[str, str, str]]:
    """What dropped combinations, how many and for example: the first `most` reasons, others in one row if several."""
    shown = result.rejected[: most if len(result.rejected) > most + 1 else most + 1]
    rows = [(each.reason, f"{each.count:,}", each.example) for each in shown]
    if others := result.rejected[len(shown) :]:
        rows.append((f"{len(others)} others", f"{sum(each.count for each in others):,}", ""))
    return rows
