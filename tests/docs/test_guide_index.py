"""The index from the guides to knobs, rules and tests: whole, and equal to its data."""

from __future__ import annotations

import re

import pytest
from guide_docs import anchor, claim_files, guide_page, index_names, load_guides, main, unmet_claims

from advisor.rules import load_rules
from costmodel.knobs import CATALOGUE
from costmodel.knobs.names import find
from executor.diagnose import load_rules as load_symptoms

DATA = load_guides()
ADVICE = [advice for topic in DATA["topic"] for advice in topic["advice"]]


def named(key: str) -> set[str]:
    return {name for advice in ADVICE for name in advice.get(key, ())}


def test_the_page_equals_its_data(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_can_fail(tmp_path):
    page = tmp_path / "page.md"
    assert main(["--check", "--page", str(page)]) == 1
    assert main(["--page", str(page)]) == 0
    assert main(["--check", "--page", str(page)]) == 0


def test_every_name_of_the_guides_indexes_leads_to_advice():
    names = index_names()
    assert set(names) == {"nemo", "bridge"}
    assert sum(map(len, names.values())) > 100
    lost = [
        name
        for each in names.values()
        for name in each
        if not {knob.name for knob in find(name)} & named("knobs")
    ]
    assert lost == []


def test_every_claim_is_of_a_guide_or_from_elsewhere():
    elsewhere = set(DATA["elsewhere"]["claims"])
    assert named("claims") | elsewhere == set(claim_files())
    assert named("claims") & elsewhere == set()


def test_every_rule_that_names_a_guide_as_its_source_is_advice():
    guided = {rule.id for rule in load_rules() if re.search("performance (tuning )?guide", rule.source)}
    assert len(guided) >= 6
    assert guided - named("rules") == set()


def test_every_symptom_is_advice():
    """Each quotes the guide that it is from."""
    symptoms = {rule.id: rule.guide for rule in load_symptoms()}
    assert all(re.match(r"00[0-4] ", guide) for guide in symptoms.values())
    assert set(symptoms) - named("symptoms") == set()


def test_a_claim_that_the_model_does_not_meet_is_marked_with_the_reason():
    """A claim whose test is expected to fail must not look like one that holds."""
    page = guide_page(DATA)
    assert {"CL015", "CL057"} <= set(unmet_claims())
    assert "CL014" not in unmet_claims()
    for name, reasons in unmet_claims().items():
        if name in named("claims"):
            assert all(reason.replace("|", "\\|") in page for reason in reasons)
            assert not re.search(rf"\[{name}\]\([^)]*\)(?! in part)", page)
    assert not re.search(r"\[CL014\]\([^)]*\) in part", page)


def test_every_knob_that_a_rule_of_an_advice_watches_is_in_the_catalogue():
    rules = {rule.id: rule for rule in load_rules()}
    assert all(knob in CATALOGUE for name in named("rules") for knob in rules[name].knobs)


def test_topics_stand_in_guides_that_are_listed():
    assert all(set(topic["at"]) <= set(DATA["guides"]) for topic in DATA["topic"])
    assert {guide for topic in DATA["topic"] for guide in topic["at"]} == set(DATA["guides"])
    titles = [topic["title"] for topic in DATA["topic"]]
    assert len({anchor(title) for title in titles}) == len(titles)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"knobs": ["no_such_knob"]}, "no_such_knob"),
        ({"rules": ["no_such_rule"]}, "no_such_rule"),
        ({"claims": ["CL999"]}, "CL999"),
        ({"symptoms": ["no_such_symptom"]}, "no_such_symptom"),
    ],
)
def test_a_name_that_is_none_is_told(change, said):
    topic = {"title": "T", "at": {"nemo": "H"}, "advice": [{"says": "x", "knobs": []} | change]}
    with pytest.raises(ValueError, match=said):
        guide_page(DATA | {"topic": [topic]})
