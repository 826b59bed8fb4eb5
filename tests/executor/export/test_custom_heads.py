"""Models whose heads no configuration says: exported around their publisher's recipe, or refused in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hardware_db
from costmodel.model_file import from_mapping
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import core_model, megatron_bridge, megatron_lm, nemo
from executor.export.exported import Job
from executor.megatron_here import why_not_built, why_not_traced
from executor.megatron_model import model_fields

H100 = hardware_db.load_cluster("dgx-h100")
STEP, MIMO = load_model("step3.5-flash"), load_model("mimo-v2-flash")
GEMMA = load_model("gemma4-26b-a4b")


def job(model=STEP, version="") -> Job:
    return Job(Plan(ep=8, dp=64), Workload(4096, 512), model, H100, version=version)


@pytest.mark.parametrize("version", ["0.5.1", "0.6.2"])
def test_the_recipe_says_the_heads_and_no_override_changes_them(version):
    found = megatron_bridge.export(job(version=version))
    assert "cfg = step35_196b_a11b_pretrain_config()" in found.files["train_megatron_bridge.py"]
    said = {name.removeprefix("model.") for name in found.settings}
    assert not said & {
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "window_size",
        "window_attn_skip_freq",
    }
    assert not said & {"attention_output_gate", "layer_types", "num_layers", "moe_layer_freq"}
    assert found.settings["model.expert_model_parallel_size"] == 8


@pytest.mark.parametrize(
    ("target", "asked", "said"),
    [
        (
            megatron_bridge,
            job(version="0.4.2"),
            "no recipe that builds them. Try --target-version 0.5.1 or later",
        ),
        (megatron_bridge, job(MIMO), "no recipe that builds them. `advisor predict` knows its cost"),
        (megatron_bridge, job(GEMMA), "no recipe that builds them. `advisor predict` knows its cost"),
        (megatron_lm, job(GEMMA), "`advisor predict` knows its cost"),
        (megatron_lm, job(), "heads of their own in layers with windows.*Try --to megatron-bridge"),
        (nemo, job(), "heads of their own in layers with windows.*Try --to megatron-bridge"),
        (nemo, job(MIMO), "`advisor predict` knows its cost"),
        (
            megatron_bridge,
            job(replace(STEP, sliding_window=replace(STEP.sliding_window, num_heads=64 + 64))),
            "sliding_window of step3.5-flash is changed.*Leave it as `advisor models step3.5-flash` shows it",
        ),
    ],
)
def test_what_would_train_another_model_is_refused(target, asked, said):
    with pytest.raises(ValueError, match=said) as refused:
        target.export(asked)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("model", [STEP, MIMO, GEMMA])
def test_it_is_neither_built_nor_traced_here(model):
    assert "heads of their own" in why_not_built(model)
    assert "heads of their own" in why_not_traced(Plan(), model)


def test_a_pattern_of_windows_goes_and_comes_back_as_a_list():
    """Where heads are the same, Megatron-Core's own list of layers says which have a window."""
    sizes = {
        "num_layers": 4,
        "hidden": 1024,
        "ffn_hidden": 4096,
        "num_heads": 8,
        "num_kv_heads": 8,
        "head_dim": 128,
    }
    window = {"window": 512, "pattern": "FWWF"}
    model = from_mapping({"name": "w", "vocab": 32000, "source": "a test", **sizes, "sliding_window": window})
    fields = model_fields(model)
    assert fields["window_attn_skip_freq"] == [0, 1, 1, 0]
    assert core_model.architecture(fields)["sliding_window"] == window
    text = " ".join(megatron_lm.export(replace(job(model), plan=Plan(dp=64))).command)
    assert "--window-attn-skip-freq" in text


@pytest.mark.parametrize(
    "own",
    [
        {"head_wise_attn_gate": True},
        {"hybrid_attention_pattern": [0, 1]},
        {"global_head_dim": 512},
    ],
)
def test_heads_of_a_class_of_its_own_are_not_read_as_those_of_all_layers(own):
    fields = {"num_layers": 20, "hidden_size": 4096, "num_attention_heads": 64}
    assert core_model.architecture(fields)["num_heads"] == 64
    with pytest.raises(ValueError, match=r"models of the catalogue alone.*\[sliding_window\]") as refused:
        core_model.architecture(fields | own)
    assert "\n" not in str(refused.value)
