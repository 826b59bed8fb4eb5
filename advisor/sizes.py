"""Sizes that the GPUs are no multiple of: told with ways out that divide the GPUs and that the model can take too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from costmodel.knobs import KNOBS

Changes: TypeAlias = Mapping[str, int]
# All of them may be data-parallel.
MOST_GPUS = int(KNOBS["dp"].high)
# Values of one size or of the GPUs, and of all sizes at once, that are tried before a way out is given up.
TRIED = 8
TRIED_AT_ONCE = 40
# Other batches that are told, as a share of the own.
NEAR_BATCH = 0.05


class SizesError(ValueError):
    """GPUs that are no multiple of the sizes; its text is what was given and the rule, without a way out.

    said: that text. gpus: GPUs given. sizes: parallel sizes above 1 by name, which a way out may change.
    ranks: GPUs that other sizes take together [1]; sizes left out are as given.
    """

    def __init__(
        self, said: str, gpus: int, sizes: Mapping[str, int], ranks: Callable[[Changes], int]
    ) -> None:
        super().__init__(said)
        self.gpus, self.ranks = gpus, ranks
        self.sizes = {name: size for name, size in sizes.items() if size > 1}

    def line(self, broken: Callable[[Changes], int | None], option: str = "--{} {}") -> str:
        """What was given, the rule and ways out: the nearest changes after which the fewest rules are broken.

        broken: ERROR rules that the plan breaks with other sizes or other "gpus"; None where it is no plan.
        option: how a size is said, of its name and its value.
        """
        alone = (self._gpus(), *map(self._one, self.sizes))
        found = [self._best(itertools.islice(changes, TRIED), broken) for changes in alone]
        if not any(each and each[0] == 0 for each in found[1:]):
            found.append(self._best(itertools.islice(self._several(), TRIED_AT_ONCE), broken))
        held = [each for each in found if each]
        least = min((count for count, _ in held), default=0)
        ways = dict.fromkeys(self._words(changes, option) for count, changes in held if count == least)
        return f"{self} Try {', or '.join(ways or ['smaller sizes'])}."

    @staticmethod
    def _best(
        tried: Iterator[dict[str, int]], broken: Callable[[Changes], int | None]
    ) -> tuple[int, dict[str, int]] | None:
        """The first of the changes that break fewest rules, with their number; None where none is a plan."""
        best: tuple[int, dict[str, int]] | None = None
        for changes in tried:
            count = broken(changes)
            if count is not None and (best is None or count < best[0]):
                best = count, changes
            if count == 0:
                break
        return best

    def _gpus(self) -> Iterator[dict[str, int]]:
        """Multiples of the sizes, the nearest to the GPUs given first, of two as near the larger."""
        each = self.ranks({})
        near = range(max(1, self.gpus // each - TRIED), self.gpus // each + TRIED)
        for count in sorted(near, key=lambda count: (abs(count * each - self.gpus), -count)):
            yield {"gpus": count * each}

    def _one(self, name: str) -> Iterator[dict[str, int]]:
        """Other values of one size with which the GPUs are a multiple of all."""
        for size in _nearest(self.sizes[name], self.gpus):
            if self.gpus % self.ranks({name: size}) == 0:
                yield {name: size}

    def _several(self) -> Iterator[dict[str, int]]:
        """Other values of all sizes at once, the nearest first."""
        names = list(self.sizes)
        divisors = [list(_nearest(self.sizes[name], self.gpus)) for name in names]
        fitting = [
            dict(zip(names, values, strict=True))
            for values in itertools.product(*divisors)
            if self.gpus % self.ranks(dict(zip(names, values, strict=True))) == 0
        ]
        yield from sorted(
            fitting, key=lambda sizes: sum(abs(math.log(sizes[name] / self.sizes[name])) for name in names)
        )

    def _words(self, changes: Changes, option: str) -> str:
        changed = {name: size for name, size in changes.items() if size != self.sizes.get(name)}
        return " ".join(
            f"--gpus {size}" if name == "gpus" else option.format(name.replace("_", "-"), size)
            for name, size in changed.items()
        )


def _nearest(size: int, gpus: int) -> Iterator[int]:
    """Divisors of the GPUs below twice a size, the nearest first, of two as near the smaller."""
    divisors = (each for each in range(1, min(2 * size, gpus + 1)) if gpus % each == 0)
    yield from sorted(divisors, key=lambda each: (abs(each - size), each))


def check_gpus(gpus: Any) -> None:
    """ValueError in one line unless `gpus` is a number of GPUs that can be meant."""
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise ValueError(f"--gpus {gpus!r} is not a whole number from 1 to {MOST_GPUS}. Try --gpus 8.")
    if gpus > MOST_GPUS:
        from hardware_db.evidence import load_evidence

        largest = max(run.gpus for run in load_evidence())
        raise ValueError(
            f"--gpus {gpus} is more than {MOST_GPUS:,}, the largest --dp of a plan; published runs, by which "
            f"predictions are judged, end at {largest:,} GPUs. Try --gpus {largest}, or at most {MOST_GPUS}."
        )


def most_ranks(batch: int, gpus: int) -> int:
    """The most data-parallel ranks that divide the GPUs and the sequences of a step."""
    return math.gcd(batch, gpus)


def kinder_batch(batch: int, gpus: int) -> int | None:
    """The batch within NEAR_BATCH that feeds most ranks, at least twice as many; None where none does.

    Examples
    --------
    >>> kinder_batch(97, 64)
    96
    """
    reach = int(batch * NEAR_BATCH)
    near = range(batch - reach, batch + reach + 1)
    other = max(near, key=lambda each: (most_ranks(each, gpus), -abs(each - batch)))
    return other if most_ranks(other, gpus) >= 2 * most_ranks(batch, gpus) else None
