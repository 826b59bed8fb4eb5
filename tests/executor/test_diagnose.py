"""Rules of diagnosis: the file is whole, each rule fires on its evidence and not without it, ceilings hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.knobs import KNOBS, SETTINGS
from executor.diagnose import SEVERITIES, Facts, Unseen, compiled, diagnose, load_rules, table, value

CALM = {
    "step": 2.0,
    "scatter": 0.004,
    "low_step": 1.98,
    "spikes": 0,
    "spike_loss": 0.0,
    "spike_data": 0.0,
    "period": 0,
    "trend": 0.0,
    "num_lines": 100,
    "last_step": 100,
    "planned": 100,
    "killed_lines": 0,
    "skipped_share": 0.0,
    "nan_share": 0.0,
    "first_lost": 12,
    "misspelt": "",
    "socket_lines": 0,
    "fast_network_lines": 16,
    "no_device_lines": 0,
    "no_gpu_direct_lines": 0,
    "shm_lines": 0,
    "out_of_memory_lines": 0,
    "kernel_fault_lines": 0,
    "retry_lines": 0,
    "loader_lines": 0,
    "overlap_off_lines": 0,
    "unfused_lines": 0,
    "timeout_lines": 0,
    "xid_lines": 0,
    "throttle_lines": 0,
    "timer_grads": 0.01,
    "timer_optimizer": 0.02,
    "timer_data": 0.001,
    "timer_transfers": 0.05,
    "timer_save": 0.0,
    "save_delay": 0.0,
    "compute_low": 1.6,
    "compute_high": 1.62,
    "allocated": 60 * 2**30,
    "lowest_allocated": 58 * 2**30,
    "reserved": 62 * 2**30,
    "device_used": 66 * 2**30,
    "straggle": 1.01,
    "clock_ratio": 0.99,
    "slow_rank": 3,
    "slow_rank_share": 0.2,
    "idle_share": 0.02,
    "gap_share": 0.01,
    "exposed_share": 0.05,
    "compute_share": 0.92,
    "copy_share": 0.001,
    "linear_share": 0.6,
    "quantise_share": 0.02,
    "small_share": 0.1,
    "profile_step": 2.0,
    "lead": 2e-3,
    "exposed_tp": 0.01,
    "exposed_cp": 0.0,
    "exposed_ep": 0.0,
    "exposed_dp": 0.01,
    "exposed_pp": 0.03,
    "exposed_unknown": 0.0,
    "device_imbalance": 1.01,
    "queued_share": 0.02,
    "waiting": 0.15,
    "p_messages": 0.14,
    "p_step": 1.98,
    "p_low": 1.8,
    "p_high": 2.2,
    "p_compute": 1.6,
    "p_linear": 1.2,
    "p_attention": 0.15,
    "p_elementwise": 0.2,
    "p_quantisation": 0.03,
    "p_recompute": 0.0,
    "p_tp": 0.02,
    "p_cp": 0.0,
    "p_ep": 0.0,
    "p_pp": 0.1,
    "p_dp": 0.02,
    "p_host": 0.01,
    "p_optimizer": 0.02,
    "p_jitter": 0.02,
    "device": 80 * 2**30,
    "domain": 8,
    "hopper": True,
    "straddles": False,
    "quantised": True,
    "task": "pretrain",
    "packed": True,
    "tp": 2,
    "pp": 2,
    "cp": 1,
    "ep": 1,
    "dp": 4,
    "cp_comm_type": "p2p",
    "overlap_grad_reduce": True,
    "tp_comm_overlap": False,
    "overlap_moe_comm": False,
    "max_connections": 1,
    "fsdp": False,
}
# Rule -> facts that plant its symptom into a calm run. Every rule must stand here.
PLANTED = {
    "ended_early": {"killed_lines": 2, "last_step": 40},
    "kernel_fault": {"kernel_fault_lines": 1},
    "out_of_memory": {"out_of_memory_lines": 3},
    "loss_lost": {"nan_share": 0.1},
    "collective_timeout": {"timeout_lines": 1},
    "misspelt_variable": {"misspelt": "NVTE_FLASH_ATT (meant: NVTE_FLASH_ATTN)"},
    "tcp_fallback": {"socket_lines": 32, "fast_network_lines": 0, "exposed_share": 0.4},
    "host_bound": {"gap_share": 0.2, "lead": 8e-6},
    "cores_shared": {"queued_share": 0.3},
    "ranks_wait": {"waiting": 0.6},
    "jitter": {"scatter": 0.06, "low_step": 1.8},
    "garbage_collection": {"period": 10, "spikes": 9, "spike_loss": 0.02},
    "irregular_spikes": {"spikes": 9, "spike_loss": 0.02},
    "data_stall": {"timer_data": 0.2},
    "slowing": {"trend": 0.1},
    "throttled": {"clock_ratio": 0.8},
    "straggler": {"straggle": 1.2},
    "dp_overlap_failed": {"exposed_dp": 0.12},
    "dp_not_overlapped": {"overlap_grad_reduce": False, "exposed_dp": 0.12},
    "overlap_switched_off": {"overlap_off_lines": 1},
    "tp_overlap_failed": {"tp_comm_overlap": True, "exposed_tp": 0.15},
    "tp_exposed": {"exposed_tp": 0.15},
    "cp_exposed": {"cp": 4, "exposed_cp": 0.1},
    "ep_exposed": {"ep": 8, "exposed_ep": 0.3},
    "pipeline_waits": {"exposed_pp": 0.25},
    "exposed_communication": {"exposed_unknown": 0.2},
    "tp_beyond_domain": {"tp": 16},
    "straddled_domain": {"straddles": True},
    "no_gpu_direct": {"no_gpu_direct_lines": 4},
    "host_memory_channels": {"shm_lines": 8},
    "low_fp8_gain": {"linear_share": 0.3},
    "memory_edge": {"reserved": 78 * 2**30, "allocated": 76 * 2**30},
    "fragmentation": {"reserved": 70 * 2**30, "allocated": 50 * 2**30},
    "memory_uneven": {"allocated": 70 * 2**30, "lowest_allocated": 40 * 2**30, "reserved": 72 * 2**30},
    "recompute_unneeded": {"p_recompute": 0.3, "reserved": 40 * 2**30, "allocated": 38 * 2**30},
    "offload_exposed": {"copy_share": 0.1},
    "experts_uneven": {"ep": 8, "pp": 1, "compute_high": 1.9},
    "stages_uneven": {"compute_high": 1.9},
    "unfused_attention": {"unfused_lines": 1},
    "small_kernels": {"small_share": 0.3},
    "compute_slow": {"linear_share": 0.8},
    "optimizer_slow": {"timer_optimizer": 0.3},
    "checkpoints": {"timer_save": 0.1},
    "unpacked": {"task": "sft", "packed": False},
    "slower_than_predicted": {"step": 2.5},
    "quicker_than_predicted": {"step": 1.5},
}


def fired(facts):
    """Names of the rules that fire."""
    return {finding.rule.id for finding in diagnose(facts).findings}


def test_of_a_run_quicker_than_predicted_nothing_is_inferred():
    """Seconds predicted for another run say nothing of this one; what was measured still does."""
    quick = CALM | {"step": 1.5, "pp": 4, "p_pp": 1.0, "tp": 1, "p_cp": 0.5, "cp": 2}
    assert fired(quick) == {"quicker_than_predicted"}
    assert fired(quick | {"exposed_pp": 0.3}) == {"quicker_than_predicted", "pipeline_waits"}


def test_a_calm_run_has_no_findings():
    found = diagnose(CALM)
    assert found.findings == ()
    assert not found.unseen
    assert len(found.clear) == len(load_rules())


def test_every_rule_is_planted():
    assert set(PLANTED) == {rule.id for rule in load_rules()}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_symptom_is_found(name):
    found = {each.rule.id: each for each in diagnose(CALM | PLANTED[name]).findings}
    assert name in found
    evidence = found[name].evidence
    assert "{" not in evidence
    assert any(letter.isdigit() for letter in evidence) or name == "misspelt_variable"


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_without_its_evidence_it_is_unseen_not_clear(name):
    """With the measured facts gone, a rule may say that it cannot see, and never that all is well."""
    rule = next(rule for rule in load_rules() if rule.id == name)
    measured = [each for each in rule.seen if each.measured]
    if not measured:
        pytest.skip("rests on plan and prediction alone")
    gone = set().union(*(each.words for each in measured)) - {"step", "num_lines"}
    left = {fact: known for fact, known in CALM.items() if fact not in gone}
    found = diagnose(left)
    assert name not in found.clear


def test_every_word_is_explained_and_every_explanation_used():
    used = set().union(*(evidence.words for rule in load_rules() for evidence in rule.seen))
    assert used == set(table()["facts"])


def test_knobs_are_of_the_catalogue_and_severities_known():
    for rule in load_rules():
        assert rule.severity in SEVERITIES
        assert rule.guide
        for knob in rule.knobs:
            assert knob in KNOBS or knob in SETTINGS, f"{rule.id}: {knob}"


def test_every_finding_of_lost_time_has_a_ceiling():
    for rule in load_rules():
        if rule.severity == "loss":
            assert any(evidence.ceiling for evidence in rule.seen) or rule.id in (
                "overlap_switched_off",
                "host_memory_channels",
            ), rule.id


@given(
    st.fixed_dictionaries(
        {}, optional={name: st.floats(1e-3, 4) for name in CALM if isinstance(CALM[name], float)}
    )
)
def test_ceilings_are_shares_and_nothing_breaks(changes):
    for finding in diagnose(CALM | changes).findings:
        assert finding.ceiling is None or 0 <= finding.ceiling <= 1


def test_faults_come_first_then_what_is_measured_by_ceiling():
    planted = PLANTED["loss_lost"] | PLANTED["dp_overlap_failed"] | PLANTED["host_bound"] | {"step": 2.5}
    names = [each.rule.id for each in diagnose(CALM | planted).findings]
    assert names[0] == "loss_lost"
    assert names.index("host_bound") < names.index("dp_overlap_failed")
    assert names[-1] == "slower_than_predicted"


def test_expressions_are_arithmetic_only():
    for text in ("__import__('os')", "step.real", "[x for x in (1,)]", "open('x')"):
        with pytest.raises(AssertionError):
            compiled(text)


def test_an_absent_fact_is_unseen():
    with pytest.raises(Unseen, match="lead"):
        value("lead > 0", Facts(step=1.0))
    with pytest.raises(Unseen, match="lead"):
        value("lead > 0", Facts(lead=None))
    assert value("step > 2 and lead > 0", Facts(step=1.0)) is False


def test_the_page_tells_every_symptom():
    import importlib.util

    path = Path(__file__).parents[2] / "tools" / "write_diagnoses.py"
    spec = importlib.util.spec_from_file_location("write_diagnoses", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, "run tools/write_diagnoses.py"
    stale = module.PAGE.read_text(encoding="utf-8").replace("NCCL fell back to TCP", "NCCL is slow")
    assert module.page(stale) != stale


def test_a_way_out_that_begins_with_a_knob_keeps_its_name():
    ways = {rule.id: rule.do for rule in load_rules()}
    assert ways["tp_overlap_failed"][0].isupper()
    assert ways["unfused_attention"].startswith("attention_backend ")
    assert ways["tp_exposed"].startswith("tp_comm_overlap ")
