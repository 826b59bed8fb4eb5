"""Two logs compared as runs, with or without a machine and their plans."""

from __future__ import annotations

import json
import random

import pytest
from log_cases import DUMP
from written import megatron_log, nemo_line


def test_two_logs_are_compared_as_runs(ask, tmp_path):
    paths = []
    for name, seconds in (("a.log", 2.0), ("b.log", 1.6)):
        paths.append(tmp_path / name)
        paths[-1].write_text(megatron_log([(step, seconds) for step in range(1, 30)], dump=DUMP))
    code, text = ask("compare", *map(str, paths), "--gpu", "h100")
    assert code == 0
    assert text.startswith(
        "B is 25.0 % faster than A: 1.600 s a step measured against 2.000 s a step measured"
    )


@pytest.mark.parametrize(
    ("slow", "words"), [(9.9, "B is 98.0 % faster than A"), (25.0, "B is 5.00 times as fast as A")]
)
def test_from_twice_on_logs_are_compared_by_a_factor_as_plans_are(ask, tmp_path, slow, words):
    """Five times as fast was told as 399.9 % faster."""
    paths = []
    for name, seconds in (("a.log", slow), ("b.log", 5.0)):
        paths.append(str(tmp_path / name))
        (tmp_path / name).write_text(megatron_log([(step, seconds) for step in range(1, 30)]))
    assert ask("compare", *paths)[1].startswith(words)


def test_two_logs_of_an_unknown_machine_are_compared_by_what_was_measured(ask, tmp_path):
    """Their arguments show the plan; only --gpu is missing, which is what to give."""
    paths = []
    for name, seconds in (("a.log", 2.0), ("b.log", 1.6)):
        paths.append(str(tmp_path / name))
        (tmp_path / name).write_text(megatron_log([(step, seconds) for step in range(1, 30)], dump=DUMP))
    code, text = ask("compare", *paths)
    assert code == 0
    told = " ".join(text.split())
    assert told.startswith("B is 25.0 % faster than A: 1.600 s a step measured against 2.000 s")
    assert "No machine is named (--gpu or --cluster), so no term is compared" in told
    plain = tmp_path / "plain.log"
    plain.write_text(megatron_log([(step, 2.0) for step in range(1, 30)]))
    told = " ".join(ask("compare", paths[0], str(plain))[1].split())
    assert "B does not show the plan that ran" in told


def test_two_logs_without_plans_are_compared_by_what_was_measured(ask, tmp_path):
    """NeMo prints no plan; before and after a change are worth comparing all the same."""
    paths, dice = [], random.Random(5)
    for name, seconds in (("before.log", 10.0), ("after.log", 9.0)):
        paths.append(str(tmp_path / name))
        lines = [nemo_line(step, dice.gauss(seconds, 0.01)) for step in range(1, 31)]
        (tmp_path / name).write_text("\n".join(lines))
    code, text = ask("compare", *paths)
    assert code == 0
    told = " ".join(text.split())
    assert told.startswith("B is 11.")
    assert "more than the scatter of their steps" in told
    assert "Neither log shows the plan that ran" in told
    record = json.loads(ask("compare", *paths, "--json")[1])
    assert record["a"]["step_time_s"] == pytest.approx(10.0, rel=0.01)
    assert "far above" not in told
    slow = tmp_path / "slow.log"
    slow.write_text("\n".join(nemo_line(step, 9.0 if step % 7 else 18.0) for step in range(1, 60)))
    told = " ".join(ask("compare", paths[0], str(slow))[1].split())
    assert "B has 8 steps far above that, which add 1" in told  # the median alone would hide them
    once = tmp_path / "once.log"
    once.write_text("\n".join(nemo_line(step, 9.0 if step != 20 else 90.0) for step in range(1, 60)))
    told = " ".join(ask("compare", str(once), str(once))[1].split())
    assert told.startswith("A and B take the same time: 9.000 s a step measured.")
    assert "A has 1 step far above that, which adds 15" in told
    half = tmp_path / "half.log"
    half.write_text("\n".join(nemo_line(step, 9.0, global_batch_size=256.0) for step in range(1, 31)))
    assert "a sequence measured against" in ask("compare", paths[0], str(half))[1]
    dumped = tmp_path / "dumped.log"
    dumped.write_text(megatron_log([(step, 1.0) for step in range(1, 30)], dump=DUMP))
    assert "B does not show" in " ".join(ask("compare", str(dumped), paths[0], "--gpu", "h100")[1].split())
