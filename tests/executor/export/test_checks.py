"""Checks for NaN, and where maxima of delayed scaling are agreed on, in the words of each framework and back."""

from __future__ import annotations

import pytest

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.export import megatron_bridge, megatron_lm, nemo
from executor.export.bundle import bundle
from executor.export.exported import Job

WHOLE = {"cuda_graph": True, "cuda_graph_scope": ("full_iteration",)}


def job(**knobs) -> Job:
    place = hardware_db.load_cluster("dgx-h100")
    return Job(Plan(dp=8, **knobs), Workload(8192, 128), load_model("llama3-8b"), place)


TARGETS = {"megatron-bridge": megatron_bridge, "megatron-lm": megatron_lm, "nemo": nemo}


def read_back(name: str, asked: Job) -> Plan:
    # The script of Megatron-LM stands beside its arguments.
    made = bundle(asked, name, slurm=False) if name == "megatron-lm" else TARGETS[name].export(asked)
    files = made.files
    return Plan(**TARGETS[name].read("\n".join(files.values())).knobs)


@pytest.mark.parametrize("knobs", [{}, {"check_for_nan_in_grad": False}, WHOLE], ids=str)
def test_checks_for_nan_are_written_and_read(knobs):
    on = not knobs
    bridge, core, two = (target.export(job(**knobs)) for target in (megatron_bridge, megatron_lm, nemo))
    assert bridge.settings["ddp.check_for_nan_in_grad"] == on
    assert bridge.settings["rerun_state_machine.check_for_nan_in_loss"] == on
    assert two.settings["trainer.strategy.ddp.check_for_nan_in_grad"] == on
    assert ("--no-check-for-nan-in-loss-and-grad" in core.command) != on
    for name in TARGETS:
        assert read_back(name, job(**knobs)).check_for_nan_in_grad == on


def test_where_maxima_are_agreed_on_is_written_and_read():
    inside = {"precision": "fp8-delayed", "tp_only_amax_red": True}
    for name in ("megatron-bridge", "nemo"):
        assert read_back(name, job(**inside)).tp_only_amax_red
    assert any("tp_only_amax_red" in note for note in megatron_lm.export(job(**inside)).notes)


def test_the_optimizer_that_is_offloaded_is_the_one_that_was_priced():
    """Megatron-LM's arguments want the precision-aware one: it was added, and the memory told was the other's."""
    with pytest.raises(ValueError, match=r"Try --precision-aware-optimizer, or --to megatron-bridge"):
        megatron_lm.export(job(optimizer_offload=50))
    both = job(optimizer_offload=50, precision_aware_optimizer=True)
    assert "--use-precision-aware-optimizer" in megatron_lm.export(both).command
    assert not [note for note in megatron_lm.export(both).notes if "precision" in note]
    for name in TARGETS:
        back = read_back(name, both)
        assert (back.optimizer_offload, back.precision_aware_optimizer) == (50, True)
    assert not read_back("megatron-bridge", job(optimizer_offload=50)).precision_aware_optimizer
