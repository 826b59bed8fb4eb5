"""What a target cannot say of a setting is a note: nothing that a plan carries goes without a word."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

import hardware_db
from costmodel.knobs import SETTINGS
from costmodel.model_registry import load_model
from costmodel.model_tables import Encoder, Moe
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export.bundle import bundle, target_module
from executor.export.exported import TARGETS, Job
from executor.export.megatron_lm_arguments import setting_flags
from executor.export.overlap_table import row_in
from executor.export.unsaid import setting_value
from tests.executor.export.round_trip import undefined

TEXTS = {"profile_ranks": "0,3", "nccl_algo": "Ring", "nccl_proto": "Simple", "ckpt_format": "zarr"}


def another(record):
    """A value that the setting does not have by itself."""
    if record.kind == "bool":
        return not record.default
    if record.choices:
        return next(choice for choice in record.choices if choice != record.default)
    return TEXTS.get(record.name, "other") if record.kind == "text" else max(record.low, 1) + 1


def made(target: str, plan: Plan, slurm: bool = False):
    cluster = hardware_db.load_cluster("dgx-h100")
    return bundle(Job(plan, Workload(4096, 64), load_model("llama3-8b"), cluster), target, slurm)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "name", [name for name, record in SETTINGS.items() if not record.mcore and not record.env]
)
def test_a_setting_changes_the_export_or_is_a_note(target: str, name: str) -> None:
    plan = {"tp": 2, "dp": 4, "sequence_parallel": True, "tp_comm_overlap": True, "manual_gc": True}
    value = another(SETTINGS[name])
    usual, own = made(target, Plan(**plan)), made(target, Plan(**plan, settings=((name, value),)))
    said = set(own.exported.notes) - set(usual.exported.notes)
    assert said or own.files != usual.files


@pytest.mark.parametrize(
    ("target", "version"),
    [("megatron-bridge", "0.2"), ("megatron-bridge", "0.6"), ("nemo", "2.3"), ("nemo", "2.6")],
)
@pytest.mark.parametrize(
    "own",
    [
        {"tp_overlap_sms": 8, "tp_overlap_cga": 1, "tp_overlap_splits": 4},
        {"tp_overlap_splits": 4, "settings": (("tp_overlap_fp8_buf", True),)},
    ],
    ids=str,
)
def test_knobs_of_overlapped_gemms_are_written_and_read(target: str, version: str, own: dict) -> None:
    """They were left to a table that the user had to write, and the read back had the defaults."""
    usual = Plan(tp=2, dp=4, sequence_parallel=True, tp_comm_overlap=True)
    plan = replace(usual, **own)
    cluster, model = hardware_db.load_cluster("dgx-h100"), load_model("llama3-8b")
    text = target_module(target).export(Job(plan, Workload(4096, 64), model, cluster, version=version))
    (code,) = [each for name, each in text.files.items() if name.endswith(".py")]
    tree = ast.parse(code)
    assert not undefined(tree)
    (table,) = [each for each in ast.walk(tree) if isinstance(each, ast.Assign) and row_in(each.value)]
    row = row_in(table.value)
    assert row == {
        "num_sm": plan.tp_overlap_sms,
        "cga_size": plan.tp_overlap_cga,
        "num_splits": plan.tp_overlap_splits,
        "set_sm_margin": True,
        "fp8_buf": bool(plan.settings),
    }
    knobs = target_module(target).read(code).knobs
    for name in ("tp_overlap_sms", "tp_overlap_cga", "tp_overlap_splits"):
        assert knobs[name] == getattr(plan, name), name
    assert knobs.get("settings", {}).get("tp_overlap_fp8_buf", False) is bool(plan.settings)
    quiet = target_module(target).export(Job(usual, Workload(4096, 64), model, cluster, version=version))
    assert "PipelineOverlapCfg" not in "".join(quiet.files.values())


def test_splits_that_are_not_named_are_written_as_they_are_priced() -> None:
    """The file of Megatron-LM said 4 where a plan is priced with as many as ranks."""
    plan = Plan(tp=2, dp=4, sequence_parallel=True, tp_comm_overlap=True, tp_overlap_sms=8)
    assert "num_splits: 2\n" in made("megatron-lm", plan).files["tp_comm_overlap.yaml"]


def test_the_file_of_overlapped_gemms_holds_its_precision() -> None:
    plan = Plan(tp=2, dp=4, sequence_parallel=True, tp_comm_overlap=True, precision="fp8-cs")
    own = Plan(**(plan.to_dict() | {"settings": (("tp_overlap_fp8_buf", True),)}))
    files = made("megatron-lm", own).files
    assert "fp8_buf: true" in files["tp_comm_overlap.yaml"]
    assert "tp_comm_overlap.yaml" not in made("megatron-lm", plan).files


@pytest.mark.parametrize("target", ["nemo", "megatron-bridge"])
def test_a_preset_of_overlapped_gemms_is_a_text(target) -> None:
    """NeMo's file assigned a bare name, `preset.yaml`, which nothing defines."""
    plan = Plan(tp=2, dp=4, sequence_parallel=True, tp_comm_overlap=True, tp_overlap_sms=8)
    own = Plan(**(plan.to_dict() | {"settings": (("tp_comm_overlap_cfg", "preset.yaml"),)}))
    text = next(text for name, text in made(target, own).files.items() if name.endswith(".py"))
    assert "preset.yaml" in {
        node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
    }


def test_remarks_in_brackets_are_no_flags() -> None:
    assert setting_flags("(in the file of --tp-comm-overlap-cfg)") == []
    assert setting_flags("--one, --two (not --three)") == ["--one", "--two"]


def test_ranks_are_numbers() -> None:
    assert setting_value("profile_ranks", "0,3") == [0, 3]
    with pytest.raises(ValueError, match="profile_ranks=0,1"):
        setting_value("profile_ranks", "all")


@pytest.mark.parametrize("target", TARGETS)
def test_boosted_clocks_are_a_note_where_no_job_script_sets_them(target: str) -> None:
    plan = Plan(dp=8, vboost=True)
    assert "boost-slider" in " ".join(made(target, plan).exported.notes)
    job = made(target, plan, slurm=True)
    assert "boost-slider" not in " ".join(job.exported.notes)
    assert any("boost-slider" in text for text in job.files.values())


@pytest.mark.parametrize("target", TARGETS)
def test_the_encoder_that_is_left_out_is_the_first_note(target):
    encoder = Encoder(num_layers=32, hidden=1280, ffn_hidden=5120, num_heads=16, tokens=2048)
    model = replace(load_model("llama3-8b"), name="vision", encoder=encoder)
    job = Job(Plan(dp=8), Workload(4096, 64), model, hardware_db.load_cluster("dgx-h100"))
    notes = bundle(job, target, False, ["memory"], ", predicted 1 s").exported.notes
    assert notes[0] == (
        "this trains the decoder of vision alone: the encoder in front of it is left out, predicted 1 s"
    )
    assert notes[1] == "memory"
    assert sum("encoder in front" in note for note in notes) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_heads_without_the_experts_of_the_last_layer_are_refused(target):
    """K-EXAONE's: GPTModel makes heads of multi-token prediction like the last layer."""
    moe = Moe(num_experts=8, topk=2, expert_ffn=1024)
    model = replace(load_model("llama3-8b"), name="heads", family="", moe=moe, mtp_layers=1)
    cluster = hardware_db.load_cluster("dgx-h100")
    plan, workload = Plan(dp=8), Workload(4096, 64)
    assert bundle(Job(plan, workload, model, cluster), target, False).exported.settings
    apart = replace(model, mtp_pattern="*-")
    with pytest.raises(ValueError, match="heads of multi-token prediction without the experts"):
        bundle(Job(plan, workload, apart, cluster), target, False)
    # An MLP is what the last layer of a dense model has.
    dense = replace(apart, family="", moe=None)
    assert bundle(Job(plan, workload, dense, cluster), target, False).exported.settings
