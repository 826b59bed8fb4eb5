"""What starts an export: the environment, the launch script as bash runs it, the job script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import TASKS, Workload
from executor.export.bundle import bundle
from executor.export.environment import (
    OF_HYBRIDEP,
    environment,
    environment_knobs,
    environment_lines,
    read_environment,
)
from executor.export.exported import TARGETS, Job
from executor.export.launch import _inputs, nodes_of
from executor.export.slurm import sbatch_script


def job_of(plan: Plan, machine: str = "dgx-h100", model: str = "llama3-70b") -> Job:
    """A job of 4096 tokens."""
    return Job(plan, Workload(4096, 64), load_model(model), hardware_db.load_cluster(machine))


def variables(plan: Plan, machine: str = "dgx-h100", model: str = "llama3-70b") -> dict[str, str | None]:
    """Names and values."""
    return {variable.name: variable.value for variable in environment(job_of(plan, machine, model))}


FSDP = {"fsdp": True, "zero_stage": 3}


@pytest.mark.parametrize(
    ("knobs", "machine", "value"),
    [
        ({"tp": 4, "dp": 2}, "dgx-h100", "1"),
        ({"cp": 2, "dp": 4}, "dgx-a100", "1"),
        ({"tp": 4, "dp": 2}, "dgx-b200", "32"),
        ({"dp": 8}, "dgx-h100", None),
        ({"dp": 8, **FSDP}, "dgx-h100", None),
        ({"tp": 4, "dp": 2, **FSDP}, "dgx-h100", None),
        ({"dp": 8, "max_connections": 8}, "dgx-h100", "8"),
    ],
)
def test_connections_follow_gpu_and_overlap(knobs, machine, value):
    assert variables(Plan(**knobs), machine)["CUDA_DEVICE_MAX_CONNECTIONS"] == value


def test_what_excludes_growing_segments():
    assert variables(Plan(dp=8))["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert variables(Plan(dp=8, nccl_ub=True))["PYTORCH_CUDA_ALLOC_CONF"] is None
    assert variables(Plan(dp=8, expandable_segments=False))["PYTORCH_CUDA_ALLOC_CONF"] is None
    assert "NCCL_GRAPH_REGISTER" not in variables(Plan(dp=8))
    assert variables(Plan(dp=8, cuda_graph=True))["NCCL_GRAPH_REGISTER"] == "0"


def test_settings_of_the_plan_win_and_experts_get_theirs():
    assert variables(Plan(dp=8, settings={"nccl_debug": "INFO"}))["NCCL_DEBUG"] == "INFO"
    hybrid = variables(Plan(dp=64, ep=64, moe_dispatcher="hybridep"), "gb200-nvl72", "deepseek-v3")
    assert hybrid["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "64"
    assert hybrid["USE_MNNVL"] == "1"
    assert variables(Plan(dp=8), "aws-p5en")["FI_PROVIDER"] == "efa"
    assert variables(Plan(dp=8, offload_modules=("core_attn",)))["NVTE_CPU_OFFLOAD_V1"] == "1"


@pytest.mark.parametrize(
    ("machine", "knobs", "ranks"),
    [
        ("gb200-nvl72", {"dp": 256, "ep": 128}, "64"),  # 64 of 72 GPUs are used: 72 is no divisor of 128
        ("gb200-nvl72", {"dp": 144, "ep": 16, "nvl_segment": 72}, "8"),
        ("gb200-nvl72", {"dp": 64, "ep": 32}, "32"),
        ("gb200-nvl72", {"dp": 32, "ep": 8, "etp": 2}, "16"),
        ("dgx-h100", {"dp": 64, "ep": 16}, "8"),
    ],
)
def test_hybridep_is_told_the_ranks_that_share_a_domain(machine, knobs, ranks):
    """72 of ep 128 were said to share an NVL72 of which the job uses 64: memory of another rack was to be mapped."""
    made = variables(Plan(moe_dispatcher="hybridep", **knobs), machine, "deepseek-v3")
    assert made["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == ranks


@pytest.mark.parametrize("target", ["nemo", "megatron-bridge"])
def test_variables_of_hybridep_are_for_targets_that_have_it(target):
    plan = Plan(dp=64, ep=64, moe_dispatcher="hybridep")
    made = bundle(job_of(plan, "gb200-nvl72", "deepseek-v3"), target, slurm=False)
    has = target != "nemo"
    for text in (made.files["train.sh"], str(made.to_dict()["environment"])):
        for name in OF_HYBRIDEP:
            assert (name in text) == has
    assert any("priced with HybridEP" in note for note in made.exported.notes) == (not has)


def test_offloading_on_grace_keeps_the_network_off_its_path():
    for offload in ({"offload_layers": 8}, {"offload_modules": ("core_attn",)}, {"optimizer_offload": 50}):
        assert variables(Plan(dp=8, **offload), "gb200-nvl72")["NCCL_NET_GDR_C2C"] == "1"
        assert "NCCL_NET_GDR_C2C" not in variables(Plan(dp=8, **offload))
    assert "NCCL_NET_GDR_C2C" not in variables(Plan(dp=8), "gb200-nvl72")
    own = Plan(dp=8, offload_layers=8, settings={"nccl_net_gdr_c2c": False})
    assert variables(own, "gb200-nvl72")["NCCL_NET_GDR_C2C"] == "0"


def test_every_variable_has_its_reason_and_reads_back():
    plan = Plan(tp=4, dp=2, nvls=True, layernorm_sm_margin=20, settings={"nccl_algo": "Ring"})
    lines = environment_lines(environment(job_of(plan)))
    assert all("  # " in line for line in lines)
    knobs = environment_knobs(read_environment("\n".join(lines)))
    assert knobs["nvls"] is True
    assert knobs["layernorm_sm_margin"] == 20
    assert knobs["max_connections"] == 1
    assert knobs["expandable_segments"] is True
    assert knobs["settings"] == {"nccl_algo": "Ring"}


@pytest.mark.parametrize("on", [True, False])
def test_norms_of_cudnn_are_asked_for_and_read_back(on):
    found = variables(Plan(dp=8, precision="mxfp8", cudnn_norms=on), "dgx-b200")
    assert found.get("NVTE_NORM_FWD_USE_CUDNN") == ("1" if on else None)
    assert environment_knobs(found).get("cudnn_norms", False) == on


def test_a_world_fills_whole_nodes():
    assert nodes_of(job_of(Plan(dp=4))) == (1, 4)
    assert nodes_of(job_of(Plan(dp=16))) == (2, 8)
    with pytest.raises(ValueError, match="Try --gpus 16"):
        nodes_of(job_of(Plan(dp=12)))


def run_script(folder: Path, plan: Plan, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run train.sh where torchrun only tells its words and variables, and starts the first rank's command."""
    (folder / "train.sh").write_text(bundle(job_of(plan), "megatron-lm", slurm=False).files["train.sh"])
    programs = {
        "torchrun": 'echo "ENV $CUDA_DEVICE_MAX_CONNECTIONS"; for word in "$@"; do echo "WORD $word"; done\n'
        'while [[ "$1" != --no-python ]]; do shift; done; shift; RANK=8 LOCAL_RANK=0 "$@"\n',
        "python": 'echo "PYTHON $#"\n',
        "nsys": 'while [[ "$1" == -* || "$1" != python ]]; do echo "NSYS $1"; shift; done; "$@"\n',
        "nvidia-smi": "echo 00000000:0F:00.0\n",
    }
    for name, body in programs.items():
        (folder / name).write_text("#!/bin/bash\n" + body)
        (folder / name).chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    command = ["bash", str(folder / "train.sh"), "--rotary-base", "500000"]
    return subprocess.run(command, env=path | environment, capture_output=True, text=True, timeout=30)


def test_the_launch_script_runs(tmp_path):
    given = {"DATA_PATH": "/data/my text", "TOKENIZER_MODEL": "t", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
    done = run_script(tmp_path, Plan(tp=8, dp=2, sequence_parallel=True), given)
    assert done.returncode == 0, done.stderr
    words = [line[5:] for line in done.stdout.splitlines() if line.startswith("WORD ")]
    assert "ENV 1" in done.stdout
    assert words[words.index("--nproc-per-node") + 1] == "8"
    assert words[words.index("--nnodes") + 1] == "2"
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--master-addr") + 1] == "node0"
    assert words[words.index("--data-path") + 1] == "/data/my text"
    assert words[-2:] == ["--rotary-base", "500000"]
    assert "PYTHON" in done.stdout  # through the binding of the script itself


@pytest.mark.parametrize("binding", [True, False])
@pytest.mark.parametrize(
    ("settings", "traced"),
    [
        ({"use_nsys_profiler": True, "profile_ranks": "0,8"}, True),
        ({"use_nsys_profiler": True}, False),
        ({"use_nsys_profiler": False, "profile_ranks": "8"}, False),
        ({}, False),
    ],
)
def test_traced_ranks_run_under_nsight_systems(tmp_path, settings, traced, binding):
    """--profile alone marks steps, and no file comes of it: the profiler has to stand around the process."""
    given = {"DATA_PATH": "/data", "TOKENIZER_MODEL": "t", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
    plan = Plan(tp=8, dp=2, sequence_parallel=True, cpu_binding=binding, settings=settings)
    done = run_script(tmp_path, plan, given)
    assert done.returncode == 0, done.stderr
    assert "PYTHON" in done.stdout
    assert ("NSYS --capture-range=cudaProfilerApi" in done.stdout) == traced
    assert ("NSYS trace-rank8" in done.stdout) == traced


@pytest.mark.parametrize("missing", ["DATA_PATH", "TOKENIZER_MODEL", "MASTER_ADDR", "NODE_RANK"])
def test_the_launch_script_asks_for_what_is_missing(tmp_path, missing):
    given = {"DATA_PATH": "/data", "TOKENIZER_MODEL": "t", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
    given.pop(missing)
    done = run_script(tmp_path, Plan(tp=8, dp=2), given)
    assert done.returncode != 0
    assert missing in done.stderr
    assert "WORD" not in done.stdout


@pytest.mark.parametrize("slurm", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("task", TASKS)
def test_bash_reads_the_scripts_of_every_task_and_target(task, target, slurm):
    """Fine-tuning with Megatron-Bridge told of an apostrophe's form, and bash looked for the other quote."""
    workload = Workload(4096, 64, task=task)
    job = Job(Plan(dp=16), workload, load_model("llama3-8b"), hardware_db.load_cluster("dgx-h100"))
    if (task, target) == ("lora", "megatron-lm"):
        with pytest.raises(ValueError, match="lora"):
            bundle(job, target, slurm)
        return
    made = bundle(job, target, slurm)
    for name in {"train.sh", "job.sbatch"} & set(made.files):
        done = subprocess.run(["bash", "-n"], input=made.files[name], text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, ""), name


@pytest.mark.parametrize("words", ["NeMo's form", "a }", "`it`", "$HOME", 'a "name"'])
def test_words_that_bash_would_read_otherwise_reach_no_script(words):
    with pytest.raises(AssertionError, match="would end or change"):
        _inputs({"PRETRAINED": ("", words)})


def test_the_job_script_names_nodes_container_and_rendezvous(tmp_path):
    text = sbatch_script(job_of(Plan(dp=64, nvl_segment=32, vboost=True), "gb200-nvl72"))
    assert "#SBATCH --nodes=16" in text
    assert "#SBATCH --gpus-per-node=4" in text
    assert "#SBATCH --segment=8" in text
    assert "#SBATCH --requeue" in text
    assert "boost-slider" in text
    assert '--container-image="$CONTAINER_IMAGE"' in text
    (tmp_path / "job").write_text(text)
    assert subprocess.run(["bash", "-n", str(tmp_path / "job")]).returncode == 0


@pytest.mark.parametrize(("gpus", "nodes"), [(64, 16), (68, 17), (72, 18), (128, 16), (76, None)])
def test_a_job_that_fits_one_nvlink_domain_asks_for_one(gpus, nodes):
    """65 to 72 GPUs of an NVL72 got no --segment: 18 nodes are no multiple of 16."""
    text = sbatch_script(job_of(Plan(dp=gpus), "gb200-nvl72"))
    assert (f"--segment={nodes}\n" in text) if nodes else "#SBATCH --segment" not in text


@pytest.mark.parametrize(("segment", "asked"), [(0, None), (48, 12), (72, 18)])
def test_a_placement_that_cannot_be_asked_for_is_told(segment, asked):
    """144 GPUs on 64 of each rack of 72: 36 nodes are no multiple of 16, and neither job nor notes said so."""
    made = bundle(job_of(Plan(dp=144, nvl_segment=segment), "gb200-nvl72"), "megatron-bridge", slurm=True)
    text = made.files["job.sbatch"]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    notes = [note for note in made.exported.notes if "--segment cannot ask for that" in note]
    assert (f"#SBATCH --segment={asked}" in text) if asked else notes
    assert not (asked and notes)
    if notes:
        assert "16 nodes of each NVLink domain, in 3 domains" in notes[0]
        assert "--nvl-segment 36 or 48 or 72 can be asked for" in notes[0]
        assert "16 nodes of each NVLink domain" in text.replace("\n# ", " ")


@pytest.mark.parametrize(
    ("gpus", "segment", "told"),
    [
        (144, 72, "priced on 18 nodes of each NVLink domain (nvl_segment)"),
        (64, 0, "priced on all 16 nodes in one NVLink domain"),
        (144, 0, "--segment cannot ask for that"),
        (4, 0, ""),
    ],
)
def test_without_a_job_script_the_placement_that_was_priced_is_told(gpus, segment, told):
    """nvl_segment 72 instead of 64 was worth 11 % of a step, and nothing of the export said it."""
    made = bundle(job_of(Plan(dp=gpus, nvl_segment=segment), "gb200-nvl72"), "megatron-lm", slurm=False)
    notes = [note for note in made.exported.notes if "NVLink domain" in note]
    assert len(notes) == (1 if told else 0)
    assert all(told in note and note in made.files["train.sh"] for note in notes)


# What each word of Megatron-Core asserts of NVTE_FLASH_ATTN, NVTE_FUSED_ATTN and NVTE_UNFUSED_ATTN, where they are set.
ASSERTED = {"auto": "111", "flash": "100", "fused": "010", "unfused": "001"}


@pytest.mark.parametrize("target", ["megatron-bridge", "nemo", "megatron-lm"])
@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "auto"),
        ({"nvte_flash_attn": True}, "auto"),
        ({"nvte_fused_attn": False}, "flash"),  # recipes on AWS
        ({"nvte_flash_attn": False, "nvte_fused_attn": True}, "fused"),  # NeMo guide, Operator Fusion
        ({"nvte_flash_attn": False, "nvte_fused_attn": False}, "unfused"),
        ({"nvte_unfused_attn": False}, "auto"),
    ],
)
def test_megatron_core_does_not_stop_at_the_variables_of_attention(target, settings, word):
    files = bundle(job_of(Plan(dp=8, settings=settings), model="llama3-8b"), target, slurm=False).files
    written = {
        "megatron-bridge": f"cfg.model.attention_backend = AttnBackend.{word}",
        "nemo": f"recipe.model.config.attention_backend = AttnBackend.{word}",
        "megatron-lm": f"--attention-backend {word}",
    }[target]
    assert (written in "\n".join(files.values())) == (target != "nemo" or word != "auto")
    found = read_environment(files["train.sh"])
    names = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
    given = [found.get(name) for name in names]
    assert all(value in (None, wanted) for value, wanted in zip(given, ASSERTED[word], strict=True))
    own = {name.upper() for name, value in settings.items()}
    assert own <= set(found)
