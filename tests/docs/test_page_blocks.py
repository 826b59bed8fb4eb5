"""The runner of pages: what it takes for a command, what it finds wrong, and how it writes a page anew."""

from __future__ import annotations

import os

from page_blocks import Outcome, Step, difference, main, run_steps, segments, steps_of, written

PAGE = """# A page

```console
$ for word in one two \\
>     three; do echo $word; done
one
...
three
$ x=5
```

<!-- page: exit 3 -->
```console
$ echo $x >&2; exit_with() { return 3; }; exit_with
5
```

```sh
cat > file <<'EOF'
kept
EOF
```

```toml
name = "no command"
```
"""


def test_commands_of_a_page_run_in_one_shell(tmp_path):
    steps = steps_of(PAGE)
    assert [step.command.splitlines()[0] for step in steps] == [
        "for word in one two \\",
        "x=5",
        "echo $x >&2; exit_with() { return 3; }; exit_with",
        "cat > file <<'EOF'",
    ]
    outcomes = run_steps(steps, tmp_path, dict(os.environ))
    assert [difference(step, outcome) for step, outcome in zip(steps, outcomes, strict=True)] == [""] * 4
    assert (tmp_path / "file").read_text() == "kept\n"
    assert written(PAGE, steps, outcomes) == PAGE


def test_a_command_that_failed_leaves_what_is_shown():
    """A tutorial showed the error of a run that a busy machine had not ended."""
    steps = steps_of(PAGE)
    error = Outcome(("Error: nothing was written.",), 1)
    assert written(PAGE, steps, [error, *run_nothing(steps[1:])]) == PAGE


def run_nothing(steps: list[Step]) -> list[Outcome]:
    """What commands that did not run leave."""
    return [Outcome((), -1) for _ in steps]


def test_what_differs_is_told_and_written():
    page = "```console\n$ step\nhead 1\n...\ntail 7 s\n$ next\nold\n```\n"
    first, second = steps_of(page)
    printed = Outcome(("head 2", "between", "tail 8 s"), 0)
    assert "+head 2" in difference(first, printed)
    assert difference(second, Outcome(("old",), 0)) == ""
    renewed = written(page, [first, second], [printed, Outcome(("new", "lines"), 0)])
    assert renewed == "```console\n$ step\nhead 2\n...\ntail 8 s\n$ next\nnew\nlines\n```\n"


def test_a_wrong_exit_code_and_a_command_that_never_ran_are_told():
    assert "ended with 1, not 0" in difference(Step("x", (), 1), Outcome(("bad",), 1))
    assert "ended with -1" in difference(Step("x", (), 1), Outcome((), -1))
    assert difference(Step("x", (), 1, exit_code=1), Outcome((), 1)) == ""


def test_lines_left_out_do_not_hide_what_is_shown():
    step = Step("x", ("a", "...", "c"), 1)
    assert segments(step.shown) == [["a"], ["c"]]
    for lines, good in (
        (("a", "b", "c"), True),
        (("a", "c"), True),
        (("a", "c", "d"), False),
        (("b", "c"), False),
    ):
        assert (difference(step, Outcome(lines, 0)) == "") is good, lines
    open_end = Step("x", ("...", "b", "..."), 1)
    assert difference(open_end, Outcome(("a", "b", "c"), 0)) == ""
    assert difference(open_end, Outcome(("a", "c"), 0)) != ""


def test_measured_lines_are_compared_up_to_their_first_number():
    step = Step("x", ("step   time  1.25 s  as predicted", "done"), 1, measured=True)
    assert difference(step, Outcome(("step time 980 ms  2.0 x predicted", "done"), 0)) == ""
    wrapped = ("note", "step time 980 ms", "  2.0 x predicted", "warning: load 3", "done")
    assert difference(step, Outcome(wrapped, 0)) == ""
    assert difference(step, Outcome(("whole time 980 ms", "done"), 0)) != ""
    assert difference(step, Outcome(("done", "step time 980 ms"), 0)) != ""
    counted = Step("x", ("2 passed in 1.2s",), 1, measured=True)
    assert difference(counted, Outcome(("....", "3 passed in 13.7s"), 0)) == ""
    assert difference(counted, Outcome(("1 failed, 2 passed in 1.2s",), 0)) != ""


def test_a_page_from_the_command_line(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo new\nold\n```\n")
    assert main(["--check", str(page)]) == 1
    assert "+new" in capsys.readouterr().err
    assert main([str(page)]) == 0
    assert page.read_text() == "```console\n$ echo new\nnew\n```\n"
    assert main(["--check", str(page)]) == 0
