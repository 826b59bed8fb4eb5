"""docs/json.md is true: the keys that it lists are those of the documents that commands print."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from page_blocks import ROOT

from advisor.cli import advisor

TEXT = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
SMALL = ["--model", "tiny-gpt", "--gpus", "2", "--gpu", "h100", "--global-batch", "8"]
LOG = "\n".join(
    f" iteration {step:8d}/ 9 | elapsed time per iteration (ms): 50.0 | global batch size: 8 | lm loss: 9.0E+00 |"
    for step in range(1, 10)
)
RUNS = (
    "id,model,system,gpus,precision,gbs,mbs,seq_len,fsdp,tp,pp,cp,vp,step_time_s\n"
    "a,llama3-8b,dgx-h100,8,fp8-cs,128,1,8192,0,1,1,2,1,10.1\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Plans, a log and a table of runs."""
    path = tmp_path_factory.mktemp("json")
    for name, more in (("a", []), ("b", ["--tp", "2"])):
        ranks = ["--dp", "1"] if more else ["--dp", "2"]
        said = ["predict", *SMALL, *ranks, *more, "--save", str(path / f"{name}.toml")]
        assert CliRunner().invoke(advisor, said).exit_code == 0
    (path / "train.log").write_text(LOG)
    (path / "runs.csv").write_text(RUNS)
    return path


def tables(heading: str) -> list[set[str]]:
    """Keys of every table below a heading: what stands in code in the first column."""
    part = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert part, heading
    found = []
    for table in re.findall(r"^\| key \| holds \|\n\|[-|]+\n((?:\|.*\n)+)", part, re.MULTILINE):
        cells = [line.split("|")[1] for line in table.splitlines()]
        found.append({name for cell in cells for name in re.findall(r"`(\w+)`", cell)})
    return found


def refuse(word: str) -> float:
    """JSON knows no such number."""
    raise AssertionError(word)


@pytest.mark.parametrize(
    ("heading", "number", "words"),
    [
        ("predict", 0, ["predict", "a.toml"]),
        ("explain", 0, ["explain", *SMALL]),
        ("check", 0, ["check", "a.toml"]),
        ("whatif", 0, ["whatif", "a.toml", "--knob", "tp"]),
        ("compare", 0, ["compare", "a.toml", "b.toml"]),
        ("compare", 1, ["compare", "a.toml", "train.log"]),
        ("diagnose", 0, ["diagnose", "train.log"]),
        ("export", 0, ["export", "a.toml", "--to", "megatron-lm"]),
        ("trace, report", 0, ["trace", "a.toml", "-o", "t.json"]),
        ("validate", 0, ["validate", "runs.csv"]),
    ],
    ids=lambda each: "-".join(each[:2]) if isinstance(each, list) else None,
)
def test_a_document_has_the_keys_of_the_page(folder, monkeypatch, heading, number, words):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(advisor, [*words, "--json"], catch_exceptions=False)
    document = json.loads(done.stdout, parse_constant=refuse)
    assert set(document) == tables(heading)[number]


@pytest.mark.parametrize(
    ("words", "place", "left_out"),
    [
        (["explain", *SMALL], ("plans", 0, "prediction"), {"gpus_of_sizes", "violations"}),
        (["compare", "a.toml", "b.toml"], ("a", "prediction"), {"gpus_of_sizes", "violations"}),
        (["whatif", "a.toml", "--knob", "tp"], ("base",), set()),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else None,
)
def test_a_prediction_inside_a_document_has_the_keys_of_predict(folder, monkeypatch, words, place, left_out):
    """The page promised violations inside `explain` and `compare`, where they stand beside the plans or not at all."""
    monkeypatch.chdir(folder)
    inside = json.loads(CliRunner().invoke(advisor, [*words, "--json"], catch_exceptions=False).stdout)
    for key in place:
        inside = inside[key]
    assert set(inside) == tables("predict")[0] - left_out
    told = TEXT.partition("\n## predict\n")[2].partition("| key |")[0]
    assert all(f"`{key}`" in told for key in left_out)


def test_every_key_that_the_rules_of_names_speak_of_is_a_number(folder, monkeypatch):
    """`_s`, `_gib` and `_share` name numbers (or lists of them, or nothing), never texts with a unit."""
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(advisor, ["predict", "a.toml", "--json"], catch_exceptions=False)

    def walk(value, name=""):
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, key)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, name)
        elif name.endswith(("_s", "_gib", "_share", "_usd", "_tflops_per_gpu")):
            assert value is None or isinstance(value, int | float), (name, value)

    walk(json.loads(done.stdout))
