"""The rules as JavaScript: conditions written down by evaluating them, texts translated from their templates."""

from __future__ import annotations

import ast
import inspect
import string
from collections.abc import Iterator, Mapping
from typing import Any

from advisor.rules import SEVERITIES, Rule, message_words, rules_of
from advisor.rules.facts import HELPERS
from advisor.rules.message_words import divisors, layers_text, near, pipeline_ways, size_ways, up
from advisor.rules.ways import NOTHING_ELSE
from costmodel.javascript import object_javascript, script_json
from costmodel.javascript.columns import Trace, is_traced, literal
from costmodel.javascript.functions import expression, is_division

# What texts may call, by its name in the rules.
CALLS = {"near": "near", "up": "up", "maximum": "Math.max", "minimum": "Math.min"}
assert set(CALLS) | {"str"} == set(HELPERS)
FUNCTIONS = (divisors, near, up, layers_text, size_ways, pipeline_ways)
# Words of messages alone, made of the row by `message_words`.
ROW_WORDS = (
    *("layers_text", "layers_chunks", "tp_way", "tp_one_way", "mixer_way", "pp_way", "cp_way", "cp_one_way"),
    *("tp_kv_way", "tp_for_cp_way", "tp_cp_one_way", "ranks_way", "batch_way"),
    *(
        "ep_way",
        "mesh_way",
        "chunks",
        "balanced_chunks",
        "no_account",
        "two_stages",
        "vpp_one_way",
        "pp_one_way",
        "group_way",
        "no_moe_overlap",
        "a2a_size",
        "fed_gpus",
    ),
)


def rules_script(trace: Trace, words: Mapping[str, Any], stack: str | None) -> str:
    """An object: rules that some setting of the page breaks, and `judge(c, x)`.

    It gives which are broken, the words of their texts, and for each way out of each which of the rules about what the
    stack or the machine lacks keeps a plan from it, -1 for none.
    """
    fired = [(rule, rule.broken(words)) for rule in rules_of(stack)]
    reachable = [(rule, mask) for rule, mask in fired if is_traced(mask) or bool(mask)]
    reachable.sort(key=lambda each: SEVERITIES.index(each[0].severity))
    needed = {word for rule, _ in reachable for word in _words(rule)}
    if needed & set(ROW_WORDS):
        needed |= _row_words()
    shown = {name: words[name] for name in sorted(needed - set(ROW_WORDS))}
    missing = [[way.missing(words, rules) for way, rules in rule.ways] for rule, _ in reachable]
    results = {f"rule {number}": mask for number, (_, mask) in enumerate(reachable)} | shown
    results |= {
        f"way {place} {number}": each
        for place, ways in enumerate(missing)
        for number, each in enumerate(ways)
    }
    masks = ",".join(literal(mask) for _, mask in reachable)
    lacks = ",".join(f"[{','.join(map(literal, ways))}]" for ways in missing)
    found = object_javascript({name: literal(value) for name, value in shown.items()})
    made = "[w.layers_text, w.layers_chunks] = layers_text(w);\nObject.assign(w, size_ways(w), pipeline_ways(w));\n"
    extra = made if needed & set(ROW_WORDS) else ""
    body = f"{trace.lines(results)}const w = {found};\n{extra}return {{broken: [{masks}], words: w, lacks: [{lacks}]}};"
    judge = f"(c, x) => {{\n{body}\n}}"
    records = ",".join(_record(rule) for rule, _ in reachable)
    return f"{{nothing: {script_json(NOTHING_ELSE)}, rules: [{records}],\njudge: {judge}}}"


def _record(rule: Rule) -> str:
    known = {"id": rule.id, "severity": rule.severity, "knobs": list(rule.knobs), "source": rule.source}
    ways = ",".join(
        f"[{_template(way.text)},[{','.join(_template(each.lacks) for each in rules)}]]"
        for way, rules in rule.ways
    )
    beyond = f",{rule.most},{script_json(rule.then)}" if rule.most or rule.then else ""
    return (
        script_json(known)[:-1]
        + f',"text":(w)=>{_template(rule.says)},"way_out":(w,lacks)=>wayOut([{ways}],lacks{beyond})}}'
    )


def _template(text: str) -> str:
    """The template of a message as an expression of JavaScript."""
    pieces = ['""']
    for before, field, specification, conversion in string.Formatter().parse(text):
        if before:
            pieces.append(script_json(before))
        if field is not None:
            assert (specification or "", conversion) == ("", None), f"a format in {text!r}"
            value = expression(field, lambda name: CALLS.get(name, f"w.{name}"))
            pieces.append(f"general({value})" if is_division(field) else f"text({value})")
    return " + ".join(pieces)


def _fields(rule: Rule) -> Iterator[str]:
    lacks = [each.lacks for _, rules in rule.ways for each in rules]
    for text in (rule.says, *rule.way_out, *lacks):
        yield from (field for _, field, _, _ in string.Formatter().parse(text) if field is not None)


def _words(rule: Rule) -> set[str]:
    """Words that the texts of a rule use."""
    names = {
        node.id
        for field in _fields(rule)
        for node in ast.walk(ast.parse(field))
        if isinstance(node, ast.Name)
    }
    return names - set(HELPERS)


def _row_words() -> set[str]:
    """Words that the functions of `message_words` read of a row."""
    tree = ast.parse(inspect.getsource(message_words))
    return {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "row"
        and isinstance(node.slice, ast.Constant)
    } | {"account_embedding", "account_loss"}
