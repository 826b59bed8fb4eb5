"""Laws of fully sharded data parallelism: its units, what waits in every micro-batch, copies, gradients that wait."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import hardware_db
from costmodel.fully_sharded import CHUNK_CAT, flat_copies
from costmodel.model_registry import load_model
from costmodel.optimizer import adam_bytes
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.rates import accumulated_bytes, tuned_stream
from costmodel.workload import Workload

H100 = hardware_db.resolve("h100", None)[0]
LLAMA = load_model("llama3-8b")
TABLE = 128_256 * 4096
FSDP: dict[str, Any] = {"dp": 8, "fsdp": True, "zero_stage": 3}


def values(stack: str = "nemo", batch: int = 8, model: str = "llama3-8b", **knobs: Any) -> SimpleNamespace:
    plan = Plan(**FSDP | knobs)
    return SimpleNamespace(**predict(load_model(model), Workload(8192, batch), H100, plan, stack).values)


@pytest.mark.parametrize(
    ("stack", "first", "output"),
    [("torchtitan-25.06", 2, 0), ("torchtitan-26.06", 1, 1), ("nemo", 1, 1)],
)
def test_the_root_gathers_embedding_and_output_layer_together_where_layers_alone_are_wrapped(
    stack, first, output
):
    x = values(stack)
    assert x.dp_first_parameters == pytest.approx(first * TABLE, rel=1e-4)
    assert getattr(x, "dp_output_parameters", 0) == pytest.approx(output * TABLE, rel=1e-4)


def test_layers_alone_are_gathered_in_8_bits():
    narrow, wide = (values("torchtitan", precision="fp8-cs", fp8_param_gather=fp8) for fp8 in (True, False))
    assert narrow.dp_fsdp_gather < 0.6 * wide.dp_fsdp_gather
    assert narrow.dp_fsdp_first_gather == wide.dp_fsdp_first_gather
    assert narrow.fsdp_exposed < wide.fsdp_exposed  # less is copied too


def test_a_tied_output_layer_is_no_unit():
    assert values(model="gpt3-5b").dp_output_parameters == 2 * 4096  # the norm in front of it


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("stack", ["nemo", "torchtitan-25.06", "torchtitan-26.06"])
def test_over_a_dead_slow_link_each_collective_is_waited_for_once(stack, accumulated):
    slow = replace(H100, inter=replace(H100.inter, bandwidth=1e-5 * H100.inter.bandwidth))
    plan = Plan(**FSDP | {"dp": 64})
    x = SimpleNamespace(**predict(LLAMA, Workload(8192, 64 * accumulated), slow, plan, stack).values)
    tables = x.dp_fsdp_first_gather + getattr(x, "dp_fsdp_output_gather", 0)
    layers = 2 * 32 * x.dp_fsdp_gather
    scatters = x.dp_fsdp_first_scatter + getattr(x, "dp_fsdp_output_scatter", 0) + 32 * x.dp_fsdp_scatter
    # Megatron's FSDP releases layers alone, PyTorch's all it gathers.
    of_tables = tables * (1 if stack == "nemo" else accumulated)
    assert x.fsdp_exposed == pytest.approx(accumulated * (layers + scatters) + of_tables, rel=1e-3)


@pytest.mark.parametrize("stack", ["nemo", "torchtitan"])
def test_every_micro_batch_waits_for_the_first_units_and_for_the_last_gradients(stack):
    one, four = (values(stack, batch) for batch in (8, 32))
    spared = (4 * one.fsdp_exposed - four.fsdp_exposed) / 3
    if stack == "nemo":  # gathers its tables once a step, the output layer's in part under compute
        assert one.dp_fsdp_first_gather <= spared < one.dp_fsdp_first_gather + one.dp_fsdp_output_gather
    else:
        assert spared == pytest.approx(0, abs=1e-9)
    edges = one.dp_fsdp_gather + one.dp_fsdp_first_gather + one.dp_fsdp_scatter + one.dp_fsdp_first_scatter
    assert one.fsdp_exposed > edges > 4 * one.dp_fsdp_scatter


def test_what_is_not_sharded_is_gathered_once():
    def seconds(batch: int) -> float:
        return values(batch=batch, zero_stage=2).fsdp_exposed

    once = 2 * seconds(8) - seconds(16)
    assert once == pytest.approx(values(zero_stage=2).dp_gather_shown)


def test_deferred_gradients_are_reduced_once_a_step_and_added_up_before():
    """Time grows with the micro-batches as a straight line that does not start at nothing."""
    found = {batch: values("automodel", batch) for batch in (16, 32, 64)}
    assert all(x.fsdp_deferred == 1 and x.fsdp_kept == 0 for x in found.values())
    two, four, eight = (x.fsdp_exposed for x in found.values())
    assert eight - four == pytest.approx(2 * (four - two))
    x = found[16]
    assert two - (four - two) > x.dp_fsdp_scatter + x.dp_fsdp_first_scatter
    assert values("automodel", 8).fsdp_deferred == 0  # one micro-batch is the last


def test_a_pipeline_of_pytorchs_keeps_parameters_and_gradients_until_it_has_ended():
    knobs = {"dp": 4, "pp": 2}
    assert [values(stack, 32, **knobs).fsdp_kept for stack in ("torchtitan", "nemo")] == [1, 0]
    x = values("torchtitan", 32, **knobs)
    assert x.fsdp_exposed > 16 * x.dp_fsdp_scatter  # one reduction a layer, nothing beside it
    more = values("torchtitan", 64, **knobs).fsdp_exposed - x.fsdp_exposed
    added = 8 * (2 + 4 + 4) * (16 * x.dp_layer_parameters + x.dp_first_parameters)
    assert more == pytest.approx(tuned_stream(x, added, x.stream_fraction))  # no traffic


def test_experts_of_automodel_stay_gathered():
    assert values("automodel", 64, "qwen3-30b-a3b", ep=4).fsdp_kept == 1


def test_copies_of_each_kind_of_fsdp():
    owner = SimpleNamespace(layer=100.0, trained=100.0, first=40.0, output=20.0, shard=8)

    def moved(stack: str, kept: float = 0, deferred: float = 0) -> float:
        x = values(stack, 16)
        x = SimpleNamespace(**vars(x) | {"weight_bytes": 2, "grad_bytes": 4, "m": 2})
        seconds = flat_copies(x, owner, 10, (kept, deferred), 1)  # type: ignore[arg-type]
        rate = x.tuned_stream_scale * x.release_scale * x.stream_fraction * x.hbm_bandwidth
        return seconds * rate

    whole = 10 * 100 + 60
    assert moved("nemo") == 0
    assert moved("llm_foundry") == pytest.approx(2 * 2 * 2 * whole)
    assert moved("torchtitan") == pytest.approx(2 * (2 * 2 * (whole + 1000) + CHUNK_CAT * (2 + 4) * whole))
    # Out once; in the first micro-batch cast, in the second added, at the end copied from.
    waits = 2 * 2 * whole + ((2 + 4) + (2 + 4 + 4) + CHUNK_CAT * (4 + 4)) * whole
    assert moved("torchtitan", 1, 1) == pytest.approx(waits)


def test_a_weight_gradient_is_written_to_the_buffer_or_is_a_tensor_of_its_own():
    """Added to Megatron's buffer in FP32, written into that of Megatron's FSDP, left in 16 bits by PyTorch's."""

    def extra(stack: str, **knobs: Any) -> float:
        return accumulated_bytes(values(stack, grad_reduce_in_fp32=True, **knobs), 1, 1)

    plain = {"fsdp": False, "zero_stage": 1}
    assert [extra("nemo", **plain), extra("nemo"), extra("torchtitan"), extra("llm_foundry")] == [6, 2, 0, 0]
    assert extra("nemo", fsdp_implementation="torch") == 0
    split = [
        values("torchtitan", gradient_accumulation_fusion=fused).synchronous_time for fused in (True, False)
    ]
    assert split[0] == pytest.approx(split[1])


def test_adam_of_many_kernels_moves_nearly_three_times_the_bytes():
    many, one = (adam_bytes(values(stack)) for stack in ("torchtitan-24.12", "torchtitan-25.05"))
    assert many - one == 52


@pytest.mark.parametrize(("stack", "passes"), [("torchtitan-26.06", 3), ("nemo", 1)])
def test_fsdp_2_reduces_between_replicas_in_every_backward_pass(stack, passes):
    """Over a dead slow link nothing hides it: Megatron's FSDP does so once a step."""
    slow = replace(H100, inter=replace(H100.inter, bandwidth=1e-5 * H100.inter.bandwidth))
    plan = Plan(**FSDP | {"dp": 64, "fsdp_shard_size": 8})
    one, three = (
        SimpleNamespace(**predict(LLAMA, Workload(8192, 64 * count), slow, plan, stack).values)
        for count in (1, 3)
    )
    assert three.fsdp_exposed / one.fsdp_exposed == pytest.approx(passes, rel=1e-2)


def gathered(model: str, stack: str = "nemo", **knobs: Any) -> float:
    """Bytes that FSDP has whole in the first stage, at a sequence whose logits are small."""
    plan = Plan(**FSDP | {"recompute": "full"} | knobs)
    first = predict(load_model(model), Workload(512, 64), H100, plan, stack, judged=False).memory
    (whole,) = (part.value for part in first.parts if part.name.endswith("_gathered"))
    return float(whole)


def test_megatrons_fsdp_keeps_layers_in_use_alone_beside_stages_and_pytorchs_the_whole_stage():
    layer = 855_654_400 / 2  # of Llama 3 70B, at tp 2
    nemo = gathered("llama3-70b", tp=2, pp=4)
    assert nemo == gathered("llama3-70b", tp=2, pp=4, vpp=2) < 10 * layer * 4
    assert gathered("llama3-70b", "torchtitan", tp=2, pp=4) > 19 * layer * 4


@pytest.mark.parametrize(
    ("model", "elements", "prefetched", "queued"),
    [
        ("llama3-8b", 218_112_000, 3, 5),
        ("llama3-70b", 855_654_400, 1, 3),
        ("llama3.1-405b", 3_191_000_000, 1, 3),
    ],
)
def test_megatrons_fsdp_prefetches_and_queues_units_of_two_layers_or_1e9_parameters(
    model, elements, prefetched, queued
):
    wide, narrow = (gathered(model, grad_reduce_in_fp32=fp32) for fp32 in (True, False))
    assert (wide - narrow) / 2 == pytest.approx(queued * elements, rel=0.01)
    tables = 2 * load_model(model).vocab * load_model(model).hidden
    parameters = (1 + prefetched) * elements
    assert narrow / 2 == pytest.approx(parameters + tables + (1 + queued) * elements, rel=0.06)


def test_registered_buffers_hold_two_units_of_each():
    wide, narrow = (gathered("llama3-8b", nccl_ub=True, grad_reduce_in_fp32=fp32) for fp32 in (True, False))
    assert (wide - narrow) / 2 == pytest.approx(2 * 218_112_000, rel=0.01)
