"""The comparison of a dry run: equal amounts agree, every planted difference is found, known ones are said."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.dryrun_text import headline
from costmodel.amounts import rank_amounts
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.plan_file import PlanFile, last_plan_path, load_plan_file, save_plan_file
from costmodel.rank_amounts import Message, RankAmounts
from costmodel.workload import Workload
from executor import dryrun
from executor.core_here import core_of
from executor.dryrun import dry_run, traced_microbatches, traced_model, which_stages
from executor.dryrun_terms import DIFFERS, EQUAL, SAVED_TOLERANCE, WITHIN, compare, differences
from executor.megatron_model import not_expressed

MODEL = load_model("llama3-8b")
PLAN = Plan(tp=2, pp=2, dp=2, sequence_parallel=True)
WORK = Workload(2048, 8)
AMOUNTS = rank_amounts(PLAN, WORK, MODEL, 0, 1)
OPTIONS = (
    *("--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--seq-len", "2048", "--global-batch", "8"),
    *("--tp", "2", "--pp", "2", "--sequence-parallel"),
)


def changed(amounts: RankAmounts, part: str) -> RankAmounts:
    """The amounts with one number of a part one unit larger; saved activations beyond their tolerance."""
    if part == "messages":
        first, *rest = amounts.messages
        return replace(amounts, messages=(replace(first, bytes=first.bytes + 1), *rest))
    if part == "flops":
        name, size = next(iter(amounts.flops.items()))
        return replace(amounts, flops={**amounts.flops, name: {**size, "backward": size["backward"] + 1}})
    sizes = dict(getattr(amounts, part))
    name = next(iter(sizes))
    sizes[name] += 1.1 * SAVED_TOLERANCE * sum(sizes.values()) if part == "saved" else 1
    return replace(amounts, **{part: sizes})


def test_equal_amounts_agree():
    terms = compare(AMOUNTS, AMOUNTS)
    assert {term.section for term in terms} == {"flops", "messages", "parameters", "state", "saved"}
    assert all(term.verdict == EQUAL and not term.difference for term in terms)


@pytest.mark.parametrize("part", ["flops", "messages", "parameters", "state", "saved"])
def test_one_unit_more_is_found(part):
    for ours, theirs in ((AMOUNTS, changed(AMOUNTS, part)), (changed(AMOUNTS, part), AMOUNTS)):
        (term,) = [term for term in compare(ours, theirs) if term.verdict != EQUAL]
        assert term.section == part
        assert term.verdict == DIFFERS


def test_what_only_one_side_has_is_found():
    more = replace(AMOUNTS, messages=(*AMOUNTS.messages, Message("all_gather", "ep", 4, 4096, 2, "forward")))
    for ours, theirs in ((AMOUNTS, more), (more, AMOUNTS)):
        (term,) = [term for term in compare(ours, theirs) if term.verdict == DIFFERS]
        assert term.name == "ep all_gather forward"
        assert 8192 in (term.predicted, term.counted)


def test_saved_activations_have_a_tolerance():
    sizes = {name: size * (1 + SAVED_TOLERANCE / 2) for name, size in AMOUNTS.saved.items()}
    terms = compare(AMOUNTS, replace(AMOUNTS, saved=sizes))
    assert [term.verdict for term in terms if term.section == "saved"] == [WITHIN]


def test_differences_are_bounded_and_have_reasons():
    for known in differences():
        assert known.terms
        assert len(known.reason) > 40, known.name
        assert all(
            pattern.split()[0] in ("flops", "messages", "parameters", "state", "saved")
            for pattern in known.terms
        )
        assert not known.explains("flops qkv forward", 1.0, 2.0, frozenset()), known.name


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("all", [0, 1, 2, 3]), ("first,middle,last", [0, 2, 3]), ("last, 1", [3, 1]), ("0,first", [0])],
)
def test_stages(wanted, found):
    assert which_stages(Plan(pp=4), wanted) == found


def test_a_plan_without_stages_has_one():
    assert which_stages(Plan(), "first,middle,last") == [0]


@pytest.mark.parametrize("wanted", ["4", "second", "", "-1"])
def test_stages_that_are_not_there(wanted):
    with pytest.raises(ValueError, match="--stages"):
        which_stages(Plan(pp=4), wanted)


def test_the_stage_that_is_not_there_is_told_by_the_option_that_was_given():
    """--stage 7 was answered as --stages '7', with a way out that --stage does not take."""
    with pytest.raises(
        ValueError, match=r"^--stage '7' is no stage of --pp 4: .*from 0 to 3\. Try --stage 0\.$"
    ):
        which_stages(Plan(pp=4), "7", "--stage")
    with pytest.raises(ValueError, match="--stages '²' is no stage"):
        which_stages(Plan(pp=4), "²")


def test_microbatches_follow_the_schedule():
    assert traced_microbatches(PLAN, WORK, None) == 1
    assert traced_microbatches(Plan(pp=4, vpp=2), Workload(2048, 16), None) == 4
    assert traced_microbatches(Plan(pp=4, vpp=2), Workload(2048, 16), 8) == 8
    for wanted in (3, 32):
        with pytest.raises(ValueError, match="--microbatches"):
            traced_microbatches(Plan(pp=4, vpp=2), Workload(2048, 16), wanted)


def planted(part: str = ""):
    """A measurement that says what the model says, but for one number."""

    def measure(job, folder):
        amounts = rank_amounts(PLAN, WORK, MODEL, job["stage"], job["num_microbatches"])
        return changed(amounts, part) if part else amounts

    return measure


def test_heads_are_traced_like_the_last_layer():
    """As GPTModel builds them; a note says so where a model has others."""
    model = replace(load_model("glm4.5-air"), mtp_pattern="*-")
    assert (
        traced_model(model, core_of("0.16.1")).mtp_layer_kinds()
        == model.layer_kinds()[-1:]
        != model.mtp_layer_kinds()
    )
    assert any("GPTModel makes them like the last" in note for note in not_expressed(model))
    assert not any("GPTModel" in note for note in not_expressed(load_model("glm4.5-air")))


def test_a_run_sums_up_its_stages(tmp_path):
    both = {"stages": [0, 1], "num_microbatches": 1, "folder": tmp_path}
    good = dry_run(PLAN, WORK, MODEL, **both, measure=planted())
    assert not good.differing
    assert good.num_equal == len(good.exact) > 30
    bad = dry_run(PLAN, WORK, MODEL, **both, measure=planted("state"))
    assert len(bad.differing) == 2
    record = json.loads(json.dumps(bad.to_dict()))
    assert record["agrees"] is False
    assert [stage["stage"] for stage in record["stages"]] == [0, 1]


@pytest.mark.parametrize(("part", "code"), [("", 0), ("flops", 1)])
def test_the_command_answers_first(monkeypatch, part, code):
    monkeypatch.setattr(
        dryrun.dry_run, "__kwdefaults__", {**dryrun.dry_run.__kwdefaults__, "measure": planted(part)}
    )
    done = CliRunner().invoke(advisor, ["dryrun", *OPTIONS], catch_exceptions=False)
    assert done.exit_code == code
    first = done.output.splitlines()[0]
    assert first.startswith("differs: " if part else "agrees: ")
    # A reader had to look through hundreds of rows for the one that differs.
    head = " ".join(done.output.partition("llama3-8b, TP2")[0].split())
    named = "without a known reason: FLOPs of products and attention, qkv backward, on stage 0 ("
    assert (named in head, "worth a report" in head) == (bool(part), bool(part))
    assert ("DIFFERS" in done.output) == bool(part)
    table = done.output.partition("Counted otherwise")[0].splitlines()[3:]
    assert len(table) > 60
    # A reader saw 15 % between two numbers under "agrees", and no word of it.
    assert re.search(
        r"^    [+-][\d.]+ %, no verdict: no exact formula, loss as of uncompiled operations$",
        done.output,
        re.MULTILINE,
    )
    assert max(map(len, table)) <= 80


def test_without_the_software_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(
        "executor.run.missing_software", lambda: "`advisor run` needs torch. Try: pip install x."
    )
    done = CliRunner().invoke(advisor, ["dryrun", *OPTIONS])
    assert isinstance(done.exception, ValueError)
    assert str(done.exception).startswith("`advisor dryrun` needs torch")


def test_what_cannot_be_traced_of_the_last_plan_says_whose_it_is(monkeypatch, tmp_path):
    """A bare `advisor dryrun` ended with "--fsdp: amounts are ...", an option that nobody had given."""
    monkeypatch.setenv("ADVISOR_CACHE", str(tmp_path))
    monkeypatch.setattr("executor.run.missing_software", lambda: "")
    fsdp = Plan(dp=8, zero_stage=3, fsdp=True)
    save_plan_file(last_plan_path(), PlanFile("llama3-8b", WORK, "dgx-h100", 8, fsdp))
    said = str(CliRunner().invoke(advisor, ["dryrun"]).exception)
    assert said.startswith("the plan that `advisor explain` gave last: --fsdp: ")
    kept = save_plan_file(tmp_path / "named.toml", load_plan_file(str(last_plan_path())))
    assert str(CliRunner().invoke(advisor, ["dryrun", str(kept)]).exception).startswith("--fsdp: ")


def test_the_counts_of_the_headline_add_up(tmp_path):
    """ "154 of 162 exact amounts equal, 10 with a documented difference": two of the ten were no exact amounts."""
    deepseek, plan = load_model("deepseek-v3"), Plan(ep=8, dp=8, recompute="full")

    def measure(job, folder):
        found = rank_amounts(plan, WORK, deepseek, 0, 1)
        return replace(found, saved={name: size / 1.015 for name, size in found.saved.items()})

    given = {"stages": [0], "num_microbatches": 1, "folder": tmp_path, "measure": measure}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dryrun, "traced_model", lambda model, core: model)
        result = dry_run(plan, WORK, deepseek, **given)
    assert not result.differing
    whole = len(result.exact)
    said = f"agrees: {whole} of {whole} exact amounts equal, saved activations within 1.5 % (documented)"
    assert " ".join(headline(result).split()) == said
