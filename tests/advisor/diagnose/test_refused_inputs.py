"""What diagnose and compare refuse: files that are none, options that do not go together."""

from __future__ import annotations

import pytest
from log_cases import DUMP
from written import megatron_log


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("diagnose", "nowhere.log"), "is no file"),
        (("diagnose", "/dev/null"), "is a device or pipe"),
        (("diagnose", "{plain}", "{plan}"), "--plan {plan}`"),
        (("diagnose", "{plain}", "rank0.json.gz"), "--trace rank0.json.gz`"),
        (("diagnose", "{plain}", "{dumped}"), "`advisor compare {plain} {dumped}`"),
        (("compare", "{plan}"), "name what to compare it with"),
        (("compare", "{dumped}"), "give --gpu"),
        (("compare", "{plain}"), "does not show the plan"),
        (("compare", "{plain}", "--gpu", "h100"), "does not show the plan"),
        (("compare", "{plan}", "{plan}", "--gpu", "h100"), "go with a log"),
        (("diagnose", "{plain}", "--trace", "{plain}"), "not the whole JSON"),
        (("compare", "{plan}", "{binary}"), "is binary"),
        (("compare", "{plan}", "{empty}"), "is empty"),
        (("diagnose", "{other}"), "no training log"),
        (("diagnose", "{plain}", "--gpu", "h100x"), "Did you mean h100"),
    ],
)
def test_errors_in_one_line(ask, tmp_path, words, said):
    files = {name: tmp_path / name for name in ("plan", "dumped", "plain", "binary", "empty", "other")}
    files["plan"] = tmp_path / "plan.toml"
    ask("explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--save", str(files["plan"]))
    files["dumped"].write_text(megatron_log([(step, 1.0) for step in range(1, 9)], dump=DUMP))
    files["plain"].write_text(megatron_log([(step, 1.0) for step in range(1, 9)]))
    files["binary"].write_bytes(bytes(range(256)) * 40)
    files["empty"].write_bytes(b"")
    files["other"].write_text("make: *** [all] Error 2\n")
    code, text = ask(*(word.format(**files) for word in words))
    assert code == 2
    assert said.format(**files) in text
    assert "\n" not in text.strip()
