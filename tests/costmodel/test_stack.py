"""The software stack: its names, what follows from a family, and releases that nobody published."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

import pytest

import hardware_db
from costmodel.binding import bind, step_keys
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.stack import (
    FLAGS,
    STACK_FILE,
    Stack,
    default_stack,
    families,
    load_stack,
    nearest_release,
    newest_stack,
    release_has,
    released,
    shown_stack,
)
from costmodel.step_constants import maturity
from costmodel.workload import Workload
from hardware_db.schema import Quantity


def on_h100(stack: str | None, **knobs) -> Prediction:
    cluster = hardware_db.load_cluster("dgx-h100")
    return predict(load_model("llama3-8b"), Workload(8192, 64), cluster, Plan(dp=8, **knobs), stack)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nemo-26.06", "nemo-26.06"),
        ("26.06", "nemo-26.06"),
        ("nemo-26.02.01", "nemo-26.02.01"),
        ("26.04.01", "nemo-26.04.01"),
        ("26.06.01", "nemo-26.06"),
        ("mcore-26.03.01", "mcore-26.03"),
        ("nemo", default_stack()),
        ("mcore-26.03", "mcore-26.03"),
        ("26.03", "mcore-26.03"),
        ("torchtitan", "torchtitan-26.06"),
        ("local", "local"),
    ],
)
def test_names(text, name):
    assert load_stack(text).name == name


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("nemmo-26.06", "nemo"),
        ("nemo-latest", "year.month"),
        ("nemo-26.13", "year.month"),
        ("", "Families"),
        ("xyz", "Families"),
    ],
)
def test_wrong_names_end_in_one_line(text, way_out):
    with pytest.raises(ValueError, match=way_out) as caught:
        load_stack(text)
    assert "\n" not in str(caught.value)
    assert "--stack" in str(caught.value)


def test_the_default_is_the_newest_of_the_first_family():
    name, family = next(iter(families().items()))
    assert default_stack() == f"{name}-{family['newest']}"
    assert on_h100(None).step_time_s == on_h100(default_stack()).step_time_s


@pytest.mark.parametrize("native", [True, False])
def test_the_newest_of_a_framework_is_the_newest_with_that_loss(native):
    found = load_stack(newest_stack("megatron_lm", native))
    assert (found.names, found.native_loss) == ("megatron_lm", native)
    others = [load_stack(f"mcore-{release}") for release in families()["mcore"]["releases"]]
    assert found.release == max(each.release for each in others if each.native_loss == native)


def test_gpus_of_a_vendor_have_names_of_what_trains_on_them_and_a_stack_that_is_named_keeps_its_own():
    assert shown_stack(None, "AMD").names == "megatron_lm"
    assert shown_stack(None, "NVIDIA") == shown_stack(None) == load_stack(default_stack())
    assert shown_stack("nemo-26.06", "AMD").names == "megatron_bridge"
    known = {gpu.vendor for gpu in hardware_db.list_gpus()}
    assert {vendor for family in families().values() for vendor in family.get("vendors", {})} <= known


def test_every_family_is_whole():
    for name, family in families().items():
        assert {"title", "releases", "attention"} <= family.keys(), name
        assert {"early_stop", "early_stop_until"} & family.keys(), name
        assert family["releases"] == sorted(family["releases"], key=released), name
        assert family.get("newest", "") in ("", *family["releases"]), name


# What the first releases of a family had.
EARLIER = {"early_attention", "early_until", "early_names", "early_names_until"}


def explained() -> set[str]:
    """Names that a comment of the file begins with, or that stand behind the first in one."""
    lines = re.findall(
        r"^# ([a-z0-9_]+(?:, [a-z0-9_]+)*): ", STACK_FILE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {name for line in lines for name in line.split(", ")}


def test_every_field_of_a_stack_is_explained_in_its_file_and_nothing_else_is():
    told = {entry.name for entry in fields(Stack)} - {"family", "release"}
    assert explained() == told | EARLIER | {"releases", "newest", "vendors"}


def test_a_family_says_nothing_that_no_stack_reads():
    """A misspelt flag would be taken for one that the family lacks."""
    known = explained() | {f"{flag}_{end}" for flag in FLAGS for end in ("from", "until")}
    for name, family in families().items():
        assert family.keys() <= known, name
        assert all(isinstance(family[flag], bool) for flag in FLAGS if flag in family), name


def test_a_flag_holds_for_the_releases_between_its_dates_or_outside_of_them():
    def flag(release: str, **dates: str) -> bool:
        return release_has(dates, "flag", release)

    assert [flag(each, flag_from="25.02") for each in ("25.01", "25.02", "25.02.01", "")] == [0, 1, 1, 1]
    assert [flag(each, flag_until="25.02") for each in ("25.01", "25.02", "25.03", "")] == [1, 1, 0, 0]
    between = {"flag_from": "25.02", "flag_until": "25.04"}
    assert [flag(each, **between) for each in ("25.01", "25.02", "25.04", "25.05", "")] == [0, 1, 1, 0, 0]
    outside = {"flag_until": "25.02", "flag_from": "25.04"}
    assert [flag(each, **outside) for each in ("25.02", "25.03", "25.04", "")] == [1, 0, 1, 1]
    assert not flag("25.02")


def test_a_patch_comes_a_month_after_what_it_mends_and_changes_no_feature():
    assert released("26.02.01") == released("26.02") + 1 < released("26.04")
    assert nearest_release("26.03", ["26.02", "26.02.01"]) == "26.02.01"
    patched, plain = load_stack("nemo-26.02.01"), load_stack("nemo-26.02")
    assert replace(patched, release=plain.release) == plain


def test_the_nearest_release_is_the_one_nearest_in_time():
    assert nearest_release("25.12", ["24.01", "25.11", "26.02"]) == "25.11"
    assert nearest_release("26.01", ["25.12", "26.02"]) == "26.02"  # the later of two as near
    assert nearest_release("26.01", []) is None


def test_a_release_nobody_published_takes_the_nearest_ones_rates_and_says_so():
    unknown, known = on_h100("nemo-26.07"), on_h100("nemo-26.06")
    assert unknown.step_time_s == pytest.approx(known.step_time_s, rel=0.2)
    assert any("nemo-26.07: no published run" in note for note in unknown.assumptions)
    assert not any("no published run on" in note for note in known.assumptions)


def test_a_framework_without_runs_on_a_generation_says_so():
    cluster = hardware_db.load_cluster("dgx-b200")
    prediction = predict(load_model("llama3-8b"), Workload(8192, 64), cluster, Plan(dp=8), "automodel-26.04")
    assert any("no published run of automodel on blackwell" in note for note in prediction.assumptions)
    assert prediction.values["release_scale"] < 0.95


def test_a_checkpoint_that_stops_early_repeats_less():
    early, whole = (
        on_h100(stack, recompute="full", recompute_num_layers=32).values for stack in ("llm_foundry", "nemo")
    )
    share = [values["mlp_recompute"] / values["mlp_forward"] for values in (early, whole)]
    assert share[0] < share[1] == pytest.approx(1)
    assert early["attention_recompute"] == pytest.approx(early["attention_forward"])


def test_early_releases_ran_earlier_attention_kernels():
    assert load_stack("nemo-24.05").attention != load_stack("nemo-24.07").attention


def test_a_generation_without_runs_takes_what_others_show_and_says_so():
    prediction = predict(
        load_model("llama3-8b"), Workload(8192, 64), hardware_db.load_cluster("mi300x-8"), Plan(dp=8)
    )
    assert any("what others of their kind show" in note for note in prediction.assumptions)
    assert "other" in prediction.sources["elementwise_scale"]


@pytest.mark.parametrize(
    ("rate", "scales"),
    [
        ("elementwise_rate", ("elementwise_scale", "tuned_stream_scale")),
        ("inter_rate", ("inter_scale", "one_card_scale")),
    ],
)
def test_a_profile_with_one_rate_holds_for_both_that_became_of_it(rate, scales):
    """As profiles were written until 2026-11-29: what a machine was measured at stays."""
    cluster = hardware_db.load_cluster("dgx-h100")
    leaf = Quantity(0.31, "1", "measured", "own runs")
    gpu = replace(cluster.gpu, own_calibration=cluster.gpu.own_calibration | {"step": {rate: leaf}})
    bound = bind(load_model("llama3-8b"), Workload(8192, 64), replace(cluster, gpu=gpu), "bf16", None)
    assert [bound[each].value for each in scales] == [0.31, 0.31]


def test_guesses_are_noted_on_a_constant_that_is_one():
    cluster = hardware_db.load_cluster("mi300x-8")
    bound = bind(load_model("llama3-8b"), Workload(8192, 64), cluster, "bf16", None)
    (noted,) = [name for name, entry in bound.items() if "no published step determines" in entry.note]
    key = step_keys(load_model("llama3-8b"), cluster, "bf16")[noted]
    assert key.replace("/", " (") in bound[noted].note


def test_stacks_that_scatter_send_less_between_stages():
    """Without sequence parallelism each of tp ranks sends its share; with it, every stack does."""

    def sent(stack: str, **knobs) -> float:
        cluster = hardware_db.load_cluster("dgx-a100")
        plan = Plan(tp=8, pp=4, micro_batch=4, **knobs)
        predicted = predict(load_model("gpt3-175b"), Workload(2048, 32), cluster, plan, stack)
        return predicted.values["pp_send_recv"]

    assert sent("deepspeed-23.06") < 0.5 * sent("mcore-25.04")
    assert sent("deepspeed-23.06", sequence_parallel=True) == pytest.approx(
        sent("mcore-25.04", sequence_parallel=True), rel=0.3
    )


def test_flash_attention_2_has_tables_of_its_own_where_it_was_measured():
    """Slower than cuDNN's kernel on Hopper, most at long sequences, and less bothered by small heads."""
    flash, cudnn = (on_h100(stack).values for stack in ("torchtitan-25.06", "nemo"))
    assert "attention.flash2" in on_h100("torchtitan-25.06").sources["attention_forward_fraction"]
    assert flash["attention_forward_fraction"] < 0.6 * cudnn["attention_forward_fraction"]
    assert flash["attention_forward_half"] < cudnn["attention_forward_half"]
    for name in ("forward", "backward"):
        assert flash[f"attention_{name}_half_dim"] < cudnn[f"attention_{name}_half_dim"]


def test_torchtitan_runs_cudnns_attention_since_its_0_2():
    assert "attention.bf16" in on_h100("torchtitan-26.06").sources["attention_forward_fraction"]


def test_a_gpu_without_that_table_takes_the_formats():
    cluster = hardware_db.load_cluster("mi300x-8")
    prediction = predict(load_model("llama3-8b"), Workload(8192, 64), cluster, Plan(dp=8), "torchtitan")
    assert "attention.bf16" in prediction.sources["attention_forward_fraction"]


def test_eager_frameworks_pay_for_plain_norms_and_packing():
    def streams(stack: str) -> dict[str, float]:
        values = on_h100(stack).values
        rate = values["release_scale"]
        return {name: values[name] * rate for name in ("attention_norm_backward", "mlp_norm_forward")}

    eager, fused = streams("llm_foundry"), streams("torchtitan")
    assert eager["attention_norm_backward"] == pytest.approx(2.2 * fused["attention_norm_backward"])
    assert eager["mlp_norm_forward"] == pytest.approx(fused["mlp_norm_forward"])
    assert on_h100("llm_foundry").values["attention_packing_forward"] > 0
    assert on_h100("torchtitan").values["attention_packing_forward"] == 0


def test_software_for_a_new_generation_is_expected_to_be_slow_at_first():
    ages = [maturity(release, "blackwell") for release in ("25.01", "25.07", "26.06", "30.01")]
    assert ages == sorted(ages)
    assert ages[0] == pytest.approx(math.exp(-0.15))
    assert ages[-1] == pytest.approx(1, abs=0.01)
    assert maturity("25.07", "rdna") == maturity("", "hopper") == 1


def test_matrix_kernels_of_wheels_have_a_rate_and_those_of_containers_are_the_measure():
    wheel, container = (on_h100(stack) for stack in ("torchtitan", "nemo"))
    assert container.values["library_scale"] == 1
    assert "library_rate.wheel" in wheel.sources["library_scale"]
    assert wheel.values["library_scale"] < 1


def test_casts_to_nvfp4_read_twice_until_one_kernel_wrote_rows_and_columns():
    cluster, workload = hardware_db.load_cluster("gb300-nvl72"), Workload(8192, 64)

    def traffic(precision: str, stack: str) -> list[float]:
        bound = bind(load_model("llama3-70b"), workload, cluster, precision, stack)
        return [
            bound[name].value for name in ("quantise_input_bytes", "quantise_grad_bytes", "quantise_kernels")
        ]

    apart, together = traffic("nvfp4", "nemo-26.02"), traffic("nvfp4", "nemo-26.04")
    assert [before - after for before, after in zip(apart, together, strict=True)] == pytest.approx([2, 2, 1])
    assert traffic("mxfp8", "nemo-26.02") == traffic("mxfp8", "nemo-26.04")


@pytest.mark.parametrize(
    ("stack", "precision", "told"),
    [
        (
            "nemo-24.05",
            "nvfp4",
            "stack nemo-24.05: the first published run of nemo in nvfp4 is of nemo-26.02",
        ),
        ("nemo-25.04", "mxfp8", "the first published run of nemo in mxfp8 is of nemo-25.07"),
        ("nemo-26.02", "nvfp4", ""),
        (None, "mxfp8", ""),
        ("nemo-23.05", "bf16", ""),
        ("local", "fp8-cs", ""),
    ],
)
def test_a_release_older_than_every_run_of_a_format_is_told(stack, precision, told):
    cluster = hardware_db.load_cluster("dgx-b200")
    plan = Plan(dp=8, precision=precision)
    found = predict(load_model("llama3-8b"), Workload(8192, 64), cluster, plan, stack)
    lines = [line for line in found.assumptions if "check that your release has the format" in line]
    assert len(lines) == bool(told)
    assert all(told in line for line in lines)


def test_dtensor_waits_for_each_collective_where_megatron_core_has_a_product_beside_it():
    """Backward: the output gradient's gather and the input gradient's scatter; under recompute of ops a gather more.

    What was gathered along the sequence is copied into its order, read and written once.
    """
    ops = {"recompute": "selective", "recompute_modules": ("ops",)}

    def waits(stack: str, **knobs) -> float:
        shard = {"tp": 8, "sequence_parallel": True, "tp_comm_overlap": False}
        values = on_h100(stack, **shard | knobs).values
        spent = values["mlp_tp_exposed_backward"]
        return spent / values["mlp_all_gather"]

    values = on_h100("torchtitan", tp=8, sequence_parallel=True, tp_comm_overlap=False).values
    scatter = values["mlp_reduce_scatter_backward"] / values["mlp_all_gather"]
    gather = values["mlp_all_gather_backward"] / values["mlp_all_gather"]
    bandwidth = values["hbm_bandwidth"] * values["elementwise_scale"] * values["release_scale"]
    copy = 4 * 8192 * 4096 / (bandwidth * values["elementwise_fraction"]) / values["mlp_all_gather"]
    assert waits("torchtitan") == pytest.approx(gather + copy + scatter)
    assert waits("torchtitan", **ops) == pytest.approx(gather + copy + scatter + 1 + copy)
    assert waits("torchtitan", recompute="full") == pytest.approx(gather + copy + scatter)
    assert waits("nemo") < gather + 0.5 * scatter
    # Asynchronous tensor parallelism pipelines the gather, but no product writes the sum that is scattered.
    assert scatter < waits("torchtitan", tp_comm_overlap=True) < 0.7 * waits("torchtitan")
    assert waits("torchtitan", tp_comm_overlap=True, **ops) > scatter + 1


def test_queues_order_the_kernels_of_megatron_alone():
    shard = {"tp": 8, "sequence_parallel": True, "tp_comm_overlap": True}
    for stack, same in (("torchtitan", True), ("nemo", False)):
        one, many = (on_h100(stack, max_connections=number, **shard).step_time_s for number in (1, 8))
        assert (one == many) == same


def test_dtensor_keeps_what_its_products_gathered():
    """Two inputs of 8,192 tokens and 4,096 columns in a layer of 32, in BF16: seven of eight parts more with TP8."""
    shard = {"tp": 8, "sequence_parallel": True}
    own, gathered = (
        on_h100(stack, **shard).values["memory_first_activations"] for stack in ("nemo", "torchtitan")
    )
    more = 2 * 32 * 2 * 8192 * 4096 * 7 / 8
    assert gathered - own == pytest.approx(more, rel=0.15)


def test_torchaos_rowwise_recipe_gathers_in_16_bits_and_casts_weights_for_every_pass():
    """Transformer Engine casts weights once a step, whatever the micro-batches, and gathers what it has cast."""
    cluster = hardware_db.load_cluster("dgx-h100")

    def told(stack: str, precision: str, batch: int) -> Prediction:
        plan = Plan(tp=8, sequence_parallel=True, precision=precision)
        return predict(load_model("llama3-8b"), Workload(8192, batch), cluster, plan, stack)

    def casts(stack: str, batch: int) -> float:
        return told(stack, "fp8-sc", batch).values["attention_qkv_quantise_forward"]

    assert casts("torchtitan-25.06", 8) == pytest.approx(casts("torchtitan-25.06", 1))
    assert casts("nemo-26.06", 8) < casts("nemo-26.06", 1)
    # Transformer Engine gathers a gradient twice, rows and columns: as many bytes as 16 bits once.
    for name, wider in (("mlp_all_gather", 1.5), ("mlp_all_gather_backward", 0.99)):
        wide, narrow = (told(stack, "fp8-sc", 8).values[name] for stack in ("torchtitan-25.06", "nemo-26.06"))
        assert wide > wider * narrow
        assert wide == pytest.approx(told("torchtitan-25.06", "bf16", 8).values[name])
    wide, plain = (told("torchtitan-25.06", each, 8).peak_memory_bytes for each in ("fp8-sc", "bf16"))
    assert wide == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(
    ("stack", "acts"),
    [("nemo-26.06", True), ("nemo-26.04.01", False), ("mcore-26.05", True), ("mcore-26.03", False), ("local", False),
     ("automodel-26.04", True)],
)  # fmt: skip
def test_full_recompute_of_hybrids_follows_the_release(stack, acts):
    """Megatron-Core 0.17.1, ssm/mamba_block.py, keeps everything; 0.18.2 checkpoints."""
    cluster = hardware_db.load_cluster("dgx-h100")
    fixed = (load_model("nemotronh-8b"), Workload(8192, 64), cluster)
    plan = Plan(dp=8) if stack != "automodel-26.04" else Plan(dp=8, fsdp=True, zero_stage=3)
    kept = predict(*fixed, plan, stack)
    again = predict(*fixed, replace(plan, recompute="full"), stack)
    assert (again.peak_memory_bytes < 0.9 * kept.peak_memory_bytes) == acts
    assert (again.step_time_s > 1.05 * kept.step_time_s) == acts
    if not acts:
        assert (again.peak_memory_bytes, again.step_time_s) == (kept.peak_memory_bytes, kept.step_time_s)
