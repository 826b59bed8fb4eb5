"""Models of every family, and random legal plans for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import hardware_db
from costmodel.layer import block_work
from costmodel.model_registry import load_model
from costmodel.model_spec import ModelSpec
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction, TermValue
from costmodel.symbols import BLOCKS
from costmodel.work.block import BlockWork
from costmodel.workload import Workload

# Dense, experts (with dense layers, shared experts, latents), MLA, Mamba, gated delta, MTP heads, heads of windows,
# norms around every block.
FAMILIES = (
    "gpt3-175b",
    "llama3-70b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "gpt-oss-120b",
    "llama4-maverick",
    "deepseek-v3",
    "kimi-k2",
    "moonlight-16b-a3b",
    "qwen3-next-80b-a3b",
    "nemotronh-56b",
    "nemotron3-nano-30b-a3b",
    "nemotron3-super-120b-a12b",
    "mimo-v2-flash",
    "gemma4-26b-a4b",
)
SPARSE_FAMILIES = tuple(name for name in FAMILIES if load_model(name).moe is not None)
# Time and memory without what published runs say of them, which takes most of a prediction's time. Laws of time and
# memory need no more; `test_parts_sum_to_the_total` of each file asks the runs too, for plans of every kind.
unjudged = partial(predict, judged=False)
B200 = hardware_db.resolve("b200", None)[0]
H100 = hardware_db.resolve("h100", None)[0]
# Each family runs the law by itself, so a few examples each are many together.
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODULES_OF_EXPERTS = ("moe", "moe_act", "shared_experts")
OFFLOADABLE = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
)


def value_columns(model: ModelSpec) -> int:
    """Value columns of QKV projections, over all layers, that Megatron-Core holds where keys are values. [1]"""
    if not model.values_are_keys:
        return 0
    layers = sum("attention" in kind and "window" not in kind for kind in model.layer_kinds())
    return layers * model.hidden * model.num_kv_heads * model.head_dim


def tensor_sizes(model: ModelSpec) -> list[int]:
    """Tensor parallel sizes that split every head and group of the model without copies."""
    counts = [model.num_heads, model.num_kv_heads if model.mla is None else model.num_heads]
    counts += [model.window_heads.num_heads, model.window_heads.num_kv_heads] if model.windows_apart else []
    if model.mamba is not None:
        counts += [model.mamba.num_heads, model.mamba.num_groups]
    if model.gated_delta is not None:
        counts += [model.gated_delta.num_key_heads, model.gated_delta.num_value_heads]
    return [tp for tp in (1, 2, 4, 8) if not any(count % tp for count in counts)]


def expert_sizes(model: ModelSpec, ranks: int) -> list[tuple[int, int]]:
    """(ep, etp) that fit the ranks of one pipeline stage."""
    if model.moe is None:
        return [(1, 1)]
    return [
        (ep, etp)
        for ep in (1, 2, 4, 8, 16, 32)
        for etp in (1, 2)
        if model.moe.num_experts % ep == 0 and ranks % (ep * etp) == 0
    ]


@st.composite
def sizes(draw: st.DrawFn, model: ModelSpec, stages: tuple[int, ...] = (1, 2, 4, 8)) -> dict[str, Any]:
    """Parallel sizes that divide what they split; sequence parallelism whenever there is tp."""
    tp = draw(st.sampled_from(tensor_sizes(model)))
    cp, dp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 8]))
    ep, etp = draw(st.sampled_from(expert_sizes(model, tp * cp * dp)))
    pp = draw(st.sampled_from(stages))
    return {
        "tp": tp,
        "cp": cp,
        "dp": dp,
        "pp": pp,
        "ep": ep,
        "etp": etp,
        "vpp": draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        "sequence_parallel": tp > 1,
    }


@st.composite
def cases(draw: st.DrawFn, model: ModelSpec, precision: str = "") -> tuple[Plan, Workload]:
    """A random plan of a model and a workload that it divides."""
    knobs = draw(sizes(model))
    fsdp = knobs["pp"] == 1 and draw(st.booleans())
    micro_batch = draw(st.sampled_from([1, 2]))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    plan = Plan(
        **knobs,
        micro_batch=micro_batch,
        fsdp=fsdp,
        zero_stage=draw(st.sampled_from([2, 3])) if fsdp else draw(st.sampled_from([0, 1])),
        precision=precision or draw(st.sampled_from(["bf16", "fp8-cs", "mxfp8"])),
        cp_comm_type=draw(st.sampled_from(["p2p", "all_gather", "a2a"])),
        recompute=recompute,
        recompute_modules=("layernorm", "moe_act") if recompute == "selective" else (),
        moe_dispatcher=draw(st.sampled_from(["alltoall", "allgather", "deepep", "hybridep"])),
        moe_capacity_factor=(capacity := draw(st.sampled_from([0.0, 1.0]))),
        moe_pad_expert_input_to_capacity=capacity > 0 and draw(st.booleans()),
        overlap_moe_comm=draw(st.booleans()),
        shared_expert_overlap=draw(st.booleans()),
        tp_comm_overlap=draw(st.booleans()),
        overlap_grad_reduce=draw(st.booleans()),
        cuda_graph=draw(st.booleans()),
    )
    passes = knobs["pp"] * draw(st.integers(1, 6))
    seq_len = draw(st.sampled_from([2048, 8192]))
    return plan, Workload(seq_len, passes * micro_batch * knobs["dp"])


def blocks_on_rank(prediction: Prediction) -> dict[str, BlockWork]:
    """The blocks of a prediction as plain numbers."""
    x = SimpleNamespace(**prediction.values)
    return {name: block_work(x, name, prediction.features) for name in BLOCKS if name in prediction.features}


def walk(term: TermValue) -> Iterable[TermValue]:
    """A term and everything below it."""
    yield term
    for part in term.parts:
        yield from walk(part)


# A small dense model, as a file has it.
SMALL = {
    "name": "small",
    "num_layers": 8,
    "hidden": 2048,
    "ffn_hidden": 8192,
    "num_heads": 16,
    "num_kv_heads": 4,
    "head_dim": 128,
    "vocab": 32000,
    "source": "a test",
}
