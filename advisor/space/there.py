"""Options of the declared space that a software stack has: what `advisor.rules.features` says it lacks is not tried."""

from __future__ import annotations

from functools import reduce

import numpy as np

from advisor.request import Request
from advisor.rules import stack_rules
from advisor.rules.facts import knob_words
from advisor.rules.model_words import cluster_words, model_words, workload_words
from advisor.rules.setting_words import setting_words
from costmodel.columns import ITEMS, default_columns

Row = dict[str, float]


def there(rows: list[Row], request: Request, precision: str) -> list[Row]:
    """Rows of a table of options that use nothing the stack of the request lacks; all of them where each does."""
    given = {ITEMS[name][0] if name in ITEMS else name for name in rows[0]}
    absent = [rule for rule in stack_rules(request.stack) if given.intersection(rule.knobs)]
    if not absent:
        return rows
    columns = {name: np.asarray(value) for name, value in default_columns().items()}
    columns["cp"] = np.asarray(2.0)  # so that how ranks exchange keys and values counts
    columns |= {name: np.array([row[name] for row in rows]) for name in rows[0]}
    fixed = model_words(request.model) | workload_words(request.workload) | setting_words(request.settings)
    words = knob_words(columns, fixed | cluster_words(request.cluster, precision, request.gpus))
    broken = reduce(np.logical_or, (rule.broken(words) for rule in absent))
    kept = [row for row, fault in zip(rows, np.broadcast_to(broken, len(rows)), strict=True) if not fault]
    return kept or rows
