"""Diagnosis of a measurement: facts from all that is known, rules, and what the model expects of the cures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from advisor.measured import read_measured
from advisor.measured.run import Measured
from costmodel.columns import plan_columns
from costmodel.stack import default_stack, load_stack
from executor.diagnose import Diagnosis, Finding, Rule, diagnose, table
from executor.evidence import COUNTED, ENDINGS, log_facts, prediction_facts, profile_facts, run_facts
from hardware_db import platform_of

if TYPE_CHECKING:
    from advisor.case import Case
    from advisor.whatif import Change
    from hardware_db import Platform

# Cures of this many findings are predicted; each takes some predictions.
PRICED = 4
# Findings that memory is short: what takes more of it is no cure, however quick.
OF_MEMORY = frozenset({"out_of_memory", "memory_edge", "fragmentation"})


@dataclass
class Diagnosed:
    """A measurement, what is wrong with it, and by finding the best change that the model expects to help."""

    measured: Measured
    diagnosis: Diagnosis
    expected: dict[str, Change]

    def to_dict(self) -> dict[str, Any]:
        """The object of `diagnose --json`."""
        from advisor.whatif.neighbours import label

        found = self.measured
        log = found.log
        priced = {
            name: {
                "change": label(change.neighbour),
                "delta_share": change.share,
                "delta_memory_gib": change.delta_memory / 2**30,
                "fits": change.fits,
            }
            for name, change in self.expected.items()
        }
        return {
            "source": found.source,
            "framework": log.framework if log else None,
            "step_time_s": found.step,
            "predicted_step_time_s": found.predicted["step_time_s"] if found.predicted else None,
            "steady": found.kept.to_dict() if found.kept else None,
            "findings": [
                each.to_dict() | {"expected": priced.get(each.rule.id), "lines": examples(found, each)}
                for each in self.diagnosis.findings
            ],
            "clear": list(self.diagnosis.clear),
            "unseen": {name: list(facts) for name, facts in self.diagnosis.unseen.items()},
            "traces": [each.to_dict() for each in found.profiles],
            "notes": found.notes,
            "warnings": found.warnings,
        }


def diagnosed(source: str, traces: Sequence[str], plan: str | None, options: dict[str, Any]) -> Diagnosed:
    """Diagnosis of a log, a run or a trace. ValueError in one line."""
    found = read_measured(source, traces, plan, options)
    result = diagnosis_of(found)
    expected = _expected(found.case, result.findings) if found.case else {}
    return Diagnosed(found, result, expected)


def diagnosis_of(found: Measured) -> Diagnosis:
    """What is wrong with a measurement, with the ways out that the stack and the machine of its plan have."""
    result = diagnose(facts_of(found), apart=bool(found.another))
    if found.case is None:
        return result
    platform = platform_of(found.case.cluster.gpu.vendor)
    here = tuple(
        told_there(replace(each, rule=rule_here(each.rule, found.case)), platform) for each in result.findings
    )
    return replace(result, findings=here)


def told_there(finding: Finding, platform: Platform) -> Finding:
    """A finding in the words of a machine's platform; in place of NVIDIA's tools the one that shows its devices."""
    if not platform.is_rocm:
        return finding
    rule, look = finding.rule, f"look at the node's devices with {platform.monitor}"
    ways = dict.fromkeys(look if "nvidia" in way else platform.told(way) for way in rule.ways)
    told = replace(rule, title=platform.told(rule.title), cause=platform.told(rule.cause), ways=tuple(ways))
    return replace(finding, rule=told, evidence=platform.told(finding.evidence))


def rule_here(rule: Rule, case: Case) -> Rule:
    """A symptom with those of several ways out that a case's stack and machine have, less the knobs of the others."""
    from advisor.rules import rules_of
    from advisor.rules.facts import facts, row_words
    from advisor.rules.ways import Way

    plan, stack = case.plan, load_stack(case.stack or default_stack())
    setting = (case.model, case.workload, case.cluster, plan.precision, plan_columns([plan]))
    words = row_words(facts(*setting, case.gpus, plan.settings), 0)
    lacking = rules_of(case.stack)[0].lacking
    if len(rule.ways) == 1:
        return rule
    kept: list[str] = []
    named: dict[bool, set[str]] = {True: set(), False: set()}
    for text in rule.ways:
        way = Way(text)
        there = stack.transformer_engine or "NVTE_" not in text
        there = there and int(way.missing(words, way.lacks(lacking))) < 0
        kept += [text] * there
        named[there] |= set(way.takes)
    gone = named[False] - named[True]
    return replace(rule, ways=tuple(kept), knobs=tuple(name for name in rule.knobs if name not in gone))


def facts_of(found: Measured) -> dict[str, Any]:
    """Every fact that the measurement, the plan and its prediction tell."""
    facts: dict[str, Any] = {}
    if found.predicted:
        facts |= prediction_facts(found.predicted)
    if found.case:
        facts |= _case_facts(found.case)
    facts |= profile_facts(found.profiles, found.predicted["knobs"] if found.predicted else None)
    if found.log is not None and found.kept is not None:
        facts |= log_facts(found.log, found.kept)
        facts |= run_facts(found.run) if found.run is not None else {}
    elif "profile_step" in facts:
        facts["step"] = facts["profile_step"]
    return facts


def _case_facts(case: Case) -> dict[str, Any]:
    """Of the machine, and groups that straddle by the rule of `check`."""
    broken = {each.id for each in case.violations()}
    return {
        "domain": case.cluster.domain_size,
        "hopper": case.cluster.gpu.generation == "hopper",
        "straddles": "domain_straddled" in broken,
    }


def _expected(case: Case, findings: Sequence[Finding]) -> dict[str, Change]:
    """By finding the change of its knobs that the model expects to help most, where one helps; of memory, less."""
    from advisor.whatif import HELPS_ABOVE, NUMERICS, what_if
    from costmodel.knobs import KNOBS

    found = {}
    for finding in [each for each in findings if each.rule.knobs][:PRICED]:
        knobs = [name for name in finding.rule.knobs if name in KNOBS and name not in NUMERICS]
        if not knobs:
            continue
        tried = what_if(case, knobs)
        if finding.rule.id in OF_MEMORY:
            tried = replace(tried, changes=tuple(each for each in tried.changes if each.delta_memory < 0))
        best = tried.best(numerics=False)
        if best is not None and best.share < -HELPS_ABOVE:
            found[finding.rule.id] = best
    return found


def examples(found: Measured, finding: Finding) -> list[str]:
    """The first line of the log of every kind that a finding counts."""
    if found.log is None:
        return []
    lines = COUNTED | ENDINGS
    kinds = [kind for fact in sorted(finding.words & set(lines)) for kind in lines[fact]]
    return [found.log.examples[kind].strip() for kind in kinds if kind in found.log.examples]


def how_to_see(facts: Sequence[str]) -> str:
    """What would tell missing facts: the second half of their meaning in diagnoses.toml."""
    meanings = table()["facts"]
    ways = dict.fromkeys(str(meanings[name]).rpartition("; ")[2] for name in facts)
    return ", ".join(ways)
