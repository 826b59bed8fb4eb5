"""The environment of an export comes back: from a Python file alone, and from the launch script beside it."""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import hardware_db
from advisor.case_from import read_foreign
from advisor.cli import advisor
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from executor.export import megatron_bridge, nemo
from executor.export.bundle import bundle, target_module
from executor.export.environment import Variable
from executor.export.exported import TARGETS, Job
from executor.export.python_environment import environment_code, variables_of

CLUSTER = hardware_db.load_cluster("dgx-h100")
OTHER = {
    "nvls": True,
    "expandable_segments": False,
    "avoid_record_streams": False,
    "layernorm_sm_margin": 4,
    "settings": {"nccl_algo": "Ring", "torch_nccl_high_priority": True},
}
PYTHON = ("megatron-bridge", "nemo")


def a_job(version: str = "", **knobs) -> Job:
    plan = Plan(tp=2, dp=8, sequence_parallel=True, **knobs)
    return Job(plan, Workload(8192, 128), load_model("llama3-8b"), CLUSTER, version=version)


@pytest.mark.parametrize("target", PYTHON)
@pytest.mark.parametrize("version", ["", "0.2", "2.3"])
def test_the_python_file_alone_says_the_environment(target, version):
    """It stood in train.sh only: read back, a plan lost it and took another time."""
    if (target == "nemo") == version.startswith("0."):
        return
    job = a_job(version, **OTHER)
    module = target_module(target)
    reading = module.read(module.export(job).files[module.FILE])
    back = Plan(**reading.knobs)
    for name in OTHER:
        if name != "settings":
            assert getattr(back, name) == getattr(job.plan, name), name
    assert set(job.plan.settings) <= set(back.settings)
    assert back.max_connections == 1
    assert set(reading.unseen) == {"cpu_binding", "vboost"}
    before, after = (predict(job.model, job.workload, CLUSTER, plan) for plan in (job.plan, back))
    assert after.step_time_s == pytest.approx(before.step_time_s, rel=1e-9)


def test_a_recipe_of_bridge_sets_none_of_what_must_not_be_set():
    """0.6.2's recipes set growing segments themselves wherever a launch script has unset them."""
    text = megatron_bridge.export(a_job(**OTHER)).files[megatron_bridge.FILE]
    line = next(line for line in text.splitlines() if "cfg.env_vars =" in line)
    recipe = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_NVLS_ENABLE": 0, "MINE": 1}
    cfg = SimpleNamespace(env_vars=recipe)
    names = {"cfg": cfg, "NOT_SET": ["PYTORCH_CUDA_ALLOC_CONF"], "ENVIRONMENT": {"NCCL_NVLS_ENABLE": "1"}}
    exec(line.strip(), names)
    assert cfg.env_vars == {"NCCL_NVLS_ENABLE": "1", "MINE": 1}
    assert "cfg.env_vars" not in megatron_bridge.export(a_job("0.5.1")).files[megatron_bridge.FILE]


@pytest.mark.parametrize("gpus", [8, 16])
def test_nemo_run_starts_processes_with_the_environment(gpus):
    """Without train.sh, NeMo-Run's executors started them bare."""
    job = a_job()
    job = Job(Plan(dp=gpus), job.workload, job.model, CLUSTER)
    assert "env_vars=ENVIRONMENT" in nemo.export(job).files[nemo.FILE]


def test_what_a_launcher_has_set_wins(tmp_path, monkeypatch):
    code = environment_code([Variable("ONE_OF_OURS", "1", ""), Variable("TWO_OF_OURS", "2", "")])
    path = tmp_path / "head.py"
    path.write_text("\n".join(code))
    monkeypatch.setenv("ONE_OF_OURS", "launcher")
    monkeypatch.delenv("TWO_OF_OURS", raising=False)
    runpy.run_path(str(path))
    assert (os.environ["ONE_OF_OURS"], os.environ.pop("TWO_OF_OURS")) == ("launcher", "2")


@pytest.mark.parametrize(
    "text",
    [
        'import os\nos.environ["NCCL_NVLS_ENABLE"] = "1"\n',
        'import os\nos.environ.setdefault("NCCL_NVLS_ENABLE", "1")\n',
        'import os\ndef f(cfg):\n    cfg.env_vars = {"NCCL_NVLS_ENABLE": 1}\n',
        'import os\ndef f(cfg):\n    cfg.env_vars["NCCL_NVLS_ENABLE"] = True\n',
        "env_vars.NCCL_NVLS_ENABLE=1",
        "_target_: x.ConfigContainer\nenv_vars: {NCCL_NVLS_ENABLE: 1}\n",
    ],
)
def test_variables_in_each_form_of_a_configuration(text):
    pytest.importorskip("yaml")
    reading = megatron_bridge.read(text)
    assert reading.knobs["nvls"] is True
    assert "nvls" not in reading.unseen


def test_variables_are_texts():
    assert variables_of({"env_vars.A": 1, "env_vars.B": True, "env_vars.C": None, "model.d": 2}) == {
        "A": "1",
        "B": "1",
        "C": None,
    }


@pytest.mark.parametrize("target", TARGETS)
def test_scripts_beside_the_file_are_read_with_it(target, tmp_path):
    """Binding and clocks stand nowhere else."""
    job = a_job(vboost=True, cpu_binding=target == "megatron-lm", **OTHER)
    made = bundle(job, target, slurm=True)
    for name, text in made.files.items():
        (tmp_path / name).write_text(text)
    path = next((tmp_path / name for name in made.files if name.endswith(".py")), tmp_path / "train.sh")
    case = read_foreign(target, str(path), {"gpu": "h100"})
    assert case.plan.vboost
    assert case.plan.cpu_binding == job.plan.cpu_binding
    assert any("beside it" in note for note in case.notes)
    assert not any("not in the text" in note for note in case.notes)


@pytest.mark.parametrize("target", PYTHON)
def test_what_the_user_changes_in_the_launch_script_counts(target, tmp_path):
    made = bundle(a_job(), target, slurm=False)
    for name, text in made.files.items():
        (tmp_path / name).write_text(text.replace("NCCL_NVLS_ENABLE=0", "NCCL_NVLS_ENABLE=1"))
    case = read_foreign(target, str(tmp_path / made.exported.command[0]), {"gpu": "h100"})
    assert case.plan.nvls


def test_what_no_text_says_is_told_with_the_way_to_say_it():
    lines = "model.num_layers=32 model.hidden_size=4096 model.num_attention_heads=32 train.micro_batch_size=1"
    command = ["check", "--from", "megatron-bridge", lines, "--gpu", "h100", "--model", "llama3-8b"]
    told = CliRunner().invoke(advisor, command).output
    assert "--max-connections" in told
    assert "--cpu-binding" in told
    less = CliRunner().invoke(advisor, [*command, "--cpu-binding", "--no-vboost"]).output
    assert "--max-connections" in less
    assert "--cpu-binding" not in less
