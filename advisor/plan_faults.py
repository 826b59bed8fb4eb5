"""Plans that do not hold where no prediction can say so: told in one line, with exit code 1 as of other plans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.case import Case
    from advisor.rules import Violation


class PlanError(ValueError):
    """A plan that breaks an ERROR rule and of which nothing can be told. The input is good: exit code 1, not 2."""

    exit_code = 1


def errors_of(case: Case) -> list[Violation]:
    """ERROR rules that the plan of a case breaks; memory, which needs a prediction, is not among them."""
    return [each for each in case.violations() if each.severity == "ERROR"]


@contextmanager
def plan_faults(case: Case, path: str = "") -> Iterator[None]:
    """What cannot be told of a plan is a PlanError where the plan breaks an ERROR rule; else it stays as it is.

    path: the plan's file, named in the line where a command takes several.
    """
    try:
        yield
    except PlanError:
        raise
    except ValueError as error:
        line = f"{path}: {error}" if path else str(error)
        errors = errors_of(case)
        if not errors:
            raise ValueError(line) from None
        more = f" `advisor check` tells all {len(errors)} rules that the plan breaks." * (len(errors) > 1)
        raise PlanError(line + more) from None


def refuse_broken(case: Case, what: str, anywhere: bool = False) -> None:
    """PlanError in one line where the plan breaks an ERROR rule. what: what is not done, as "it is not traced".

    anywhere: only rules that hold on every machine, whatever software runs there.
    """
    errors = errors_of(case)
    if anywhere:
        from advisor.rules import everywhere

        kept = {rule.id for rule in everywhere(case.cluster)}
        errors = [each for each in errors if each.id in kept]
    if errors:
        lines = " ".join(f"{each.line().rstrip('.')}." for each in errors)
        raise PlanError(f"the plan breaks {len(errors)} rule{'s' * (len(errors) != 1)}, so {what}: {lines}")
