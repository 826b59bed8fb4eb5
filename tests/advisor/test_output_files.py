"""Nothing is lost by an output: what a command reads, its other output, and files of another kind are not replaced."""

from __future__ import annotations

import errno
import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli import advisor, main
from costmodel.output_file import KINDS, check_output

SETTING = "--model tiny-gpt --gpus 2 --gpu h100 --seq-len 1024 --global-batch 8"
TABLE = "id,step_time_s\na,1.0\n"


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Runs a command line in a folder of its own; gives the error in one line, "" where there is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))

    def _ask(line: str) -> str:
        done = CliRunner().invoke(advisor, line.split())
        if isinstance(done.exception, ValueError | OSError):
            return str(done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return ""

    assert not _ask(f"predict {SETTING} --save plan.toml")
    Path("a.csv").write_text(TABLE)
    Path("t.sh").write_text(
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4\n"
    )
    return _ask


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("report plan.toml -o plan.toml", "-o plan.toml is what the command reads"),
        ("report plan.toml -o ./plan.toml", "is what the command reads"),
        ("trace plan.toml -o plan.toml", "-o plan.toml is what the command reads"),
        ("check --from megatron-lm t.sh --gpu h100 --save t.sh", "--save t.sh is what the command reads"),
        (f"explain {SETTING} --save x.toml --html x.toml", "--html x.toml is to hold two things"),
        (f"explain {SETTING} --save a.csv", "--save a.csv is there and is no plan file"),
        (f"explain {SETTING} --html a.csv", "--html a.csv is there and is no page"),
        (f"report {SETTING} -o plan.toml", "-o plan.toml is there and is no page"),
        (f"trace {SETTING} -o a.csv", "-o a.csv is there and is no trace"),
        ("calibrate --from RUN --gpu h100 -o ./plan.toml", "-o plan.toml is there and is no profile"),
        ("calibrate --from RUN --gpu h100 -o no/such/a.toml", "its folder does not exist"),
    ],
)
def test_a_file_that_would_be_lost_is_left(ask, tmp_path, line, says):
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    assert says in ask(line)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*")} == before
    assert not Path("no").exists()


def test_a_file_of_the_same_kind_is_replaced(ask, tmp_path):
    for _ in range(2):
        assert not ask(f"predict {SETTING} --save again.toml")
        assert not ask("trace plan.toml -o trace.json")
        assert not ask("trace plan.toml -o trace.json.gz")
        assert not ask("check --from megatron-lm t.sh --gpu h100 --save read.toml")
    assert not ask("predict plan.toml --tp 2 --save plan.toml")
    assert "tp = 2" in Path("plan.toml").read_text()
    assert KINDS["model file"](tmp_path / "read-model.toml")
    (tmp_path / "read-model.toml").write_text(TABLE)
    assert "is no model file" in ask("check --from megatron-lm t.sh --gpu h100 --save read.toml")


def test_kinds_are_told_by_what_is_in_a_file(tmp_path):
    texts = {
        "page": "\n<!DOCTYPE html>\n<html></html>",
        "trace": '{"otherData": {}, "traceEvents": [\n]}',
        "plan file": '[model]\nname = "a"\n',
        "model file": 'name = "a"\nnum_layers = 2\n',
        "profile": "[calibration]\n",
    }
    assert set(texts) == set(KINDS)
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        assert [kind for kind in KINDS if KINDS[kind](path)] == [name]
        path.write_bytes(b"\xff\xfe\x00")
        assert not any(told(path) for told in KINDS.values())
        path.write_text("")
        check_output("-o", path, name)  # an empty file is no loss
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(gzip.compress(texts["trace"].encode())[:-9])
    with pytest.raises(ValueError, match="no trace"):
        check_output("-o", packed, "trace")


def test_links_and_names_that_are_no_paths(tmp_path):
    plan, link = tmp_path / "plan.toml", tmp_path / "link.toml"
    plan.write_text('[model]\nname = "a"\n')
    link.symlink_to(plan)
    with pytest.raises(ValueError, match="reads"):
        check_output("-o", link, "page", [str(plan)])
    check_output("-o", plan, "plan file", [None, "", "h100", "--tensor-parallel " * 999, "a\0b"])
    check_output("--save", "70b", "plan file", ["70b"])  # a model's name, and no file


def test_a_plan_that_there_is_not_is_told_as_not_written(tmp_path, monkeypatch):
    """Nothing fitted, and of --save not a word was said."""
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    path = tmp_path / "none.toml"
    asked = f"explain --model 405b --gpus 1 --gpu h100 --save {path}"
    done = CliRunner().invoke(advisor, asked.split())
    assert done.exit_code == 1
    assert done.output.rstrip().endswith(f"{path} is not written: no plan fits.")
    assert not path.exists()


def test_files_that_a_full_disk_cuts_leave_what_was_there(ask, tmp_path, monkeypatch):
    """An export with --force and a trace were cut where they stood: a job script of no bytes, the older one lost."""
    assert not ask("export plan.toml --to megatron-lm --slurm -o run")
    assert not ask("trace plan.toml -o t.json")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    whole = Path.write_text

    def full(path, text, **more):
        if "sbatch" in path.name:
            whole(path, text[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, text, **more)

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device: 'run'" in ask("export plan.toml --to megatron-lm --slurm -o run --force")
    assert "No space left on device: 'new'" in ask("export plan.toml --to megatron-lm --slurm -o new")
    monkeypatch.setattr(
        "executor.trace.json.dumps", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
    )
    assert "full: 't.json'" in ask("trace plan.toml -o t.json")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("number", "way"),
    [
        (errno.ENOSPC, "Free room there, or name a place on another disk."),
        (errno.EDQUOT, "Free room there, or name a place on another disk."),
        (errno.EACCES, "Check the path and its permissions."),
    ],
)
def test_a_full_disk_is_no_matter_of_permissions(monkeypatch, capsys, number, way):
    def fails(*_, **__):
        raise OSError(number, "why", "there")

    monkeypatch.setattr("advisor.cli.advisor.main", fails)
    monkeypatch.setattr("sys.argv", ["advisor", "models"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"Error: there: why. {way}\n"
