"""What frameworks keep apart that Megatron-Core does not: products of one input, chunks of a ring, copies."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import hardware_db
from costmodel.binding.attention import attention_inputs
from costmodel.bound import Bound
from costmodel.data_parallel import ring_sms
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.prediction import Prediction
from costmodel.stack import load_stack
from costmodel.work.vocabulary import cross_entropy_bytes, guesses_bytes
from costmodel.workload import Workload

SHARD = {"tp": 8, "sequence_parallel": True}


def on_h100(stack: str, seq_len: int = 8192, **knobs) -> Prediction:
    cluster = hardware_db.load_cluster("dgx-h100")
    return predict(load_model("llama3-8b"), Workload(seq_len, 64), cluster, Plan(**knobs), stack)


@pytest.mark.parametrize(("ranks", "most"), [(1, 1.0), (2, 1.5), (4, 1.75), (8, 1.875)])
def test_the_last_rank_of_an_unbalanced_ring_works_longest(ranks, most):
    """PyTorch 2.5's ring against 2.6's: a chunk and a half of two, three and a half of four, over the mean."""
    old, new = (
        on_h100(stack, 65536, dp=8, cp=ranks).values for stack in ("torchtitan-24.12", "torchtitan-25.05")
    )
    for name in ("attention_core_forward", "attention_core_backward"):
        kernels = new["release_scale"] / old["release_scale"]
        assert old[name] / new[name] == pytest.approx(most * kernels, rel=1e-3)


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_all_keys_gathered_leave_chunks_as_uneven(kind):
    """The last rank's queries see all keys however these come: else what-if told 38 % less of a step for all_gather."""
    old, new = (
        on_h100(stack, 65536, dp=8, cp=8, cp_comm_type="all_gather").values
        for stack in ("torchtitan-24.12", "torchtitan-25.05")
    )
    kernels = new["release_scale"] / old["release_scale"]
    name = f"attention_core_{kind}"
    assert old[name] / new[name] == pytest.approx(1.875 * kernels, rel=1e-3)


def test_products_kept_apart_leave_gradients_to_sum():
    """Llama 3 8B, 8,192 tokens of 4,096 columns in 16 bits: each gradient more is a read in the compiled norm."""
    gradient = 2 * 8192 * 4096

    def moved(stack: str, block: str, **knobs) -> float:
        values = on_h100(stack, **knobs).values
        name = f"{block}_input_gradients_backward"
        bandwidth = values["hbm_bandwidth"] * values["elementwise_scale"] * values["release_scale"]
        return values.get(name, 0.0) * bandwidth * values["elementwise_fraction"] / gradient

    assert moved("torchtitan", "attention", dp=8) == pytest.approx(2)
    assert moved("torchtitan", "mlp", dp=8) == pytest.approx(1)
    # With tensor parallelism the sum is written, in the order in which it is scattered.
    assert moved("torchtitan", "attention", **SHARD) == pytest.approx(4)
    assert moved("torchtitan", "mlp", **SHARD) == pytest.approx(3)
    # Nothing compiled: two at a time, each read and the sum written.
    eager = {"bias_activation_fusion": False, "bias_dropout_fusion": False}
    assert moved("torchtitan", "attention", dp=8, **eager) == pytest.approx(6)
    assert moved("nemo", "attention", dp=8) == 0


def test_dtensor_copies_what_it_gathers_along_the_sequence():
    """Read and written once: the block's input and what it puts out, of all tensor-parallel ranks."""
    values = on_h100("torchtitan", **SHARD, tp_comm_overlap=False).values
    bandwidth = values["hbm_bandwidth"] * values["elementwise_scale"] * values["release_scale"]
    copy = 2 * 2 * 8192 * 4096 / (bandwidth * values["elementwise_fraction"])
    sent = values["mlp_all_gather"] + values["mlp_reduce_scatter"]
    assert values["mlp_tp_exposed_forward"] == pytest.approx(sent + 2 * copy)
    megatron = on_h100("nemo", **SHARD, tp_comm_overlap=False).values
    sent = megatron["mlp_all_gather"] + megatron["mlp_reduce_scatter"]
    assert megatron["mlp_tp_exposed_forward"] == pytest.approx(sent)


def kernel_of(where: str, stack: str) -> dict[str, Bound]:
    cluster = hardware_db.load_cluster(where)
    tables = hardware_db.load_calibration(cluster.gpu)
    return attention_inputs(tables, cluster, "bf16", load_stack(stack), mla=False)


def test_attention_kernels_without_a_table_go_by_the_nearest():
    own, older = kernel_of("dgx-h100", "torchtitan-25.06"), kernel_of("dgx-h100", "llm_foundry-23.11")
    for kind, share in (("forward", 0.78), ("backward", 0.5)):
        name = f"attention_{kind}_fraction"
        assert older[name].value == pytest.approx(share * own[name].value)
        assert older[name].source == f"{own[name].source}; x {share} for flash1, which has no table"
    name = "attention_forward_fraction"
    new, old = kernel_of("dgx-h100", "nemo-26.06"), kernel_of("dgx-h100", "nemo-24.05")
    assert old[name].value == pytest.approx(0.55 * new[name].value)
    assert old["attention_forward_half"] == new["attention_forward_half"]
    # Ampere's own table is of FlashAttention-2's rate.
    assert kernel_of("dgx-a100", "nemo-24.05") == kernel_of("dgx-a100", "nemo-26.06")


@pytest.mark.parametrize(("stack", "grows"), [("torchtitan-25.06", True), ("llm_foundry-23.11", False)])
def test_the_rate_of_flash_attention_in_triton_does_not_grow_with_the_head(stack, grows):
    """Measured on an H200: 1.5 times as near to FlashAttention-2 on heads of 64 as on heads of 128."""
    wide = load_model("llama3-8b")
    narrow = replace(wide, head_dim=64, num_heads=64, num_kv_heads=16)
    wide_core, narrow_core = (
        predict(each, Workload(8192, 8), hardware_db.load_cluster("dgx-h100"), Plan(dp=8), stack).values[
            "attention_core_forward"
        ]
        for each in (wide, narrow)
    )
    assert (narrow_core > 1.05 * wide_core) == grows
    assert narrow_core == pytest.approx(wide_core, rel=0.2)


def test_a_trainer_that_logs_its_losses_computes_them_again():
    """Composer: cross entropy and perplexity, each a softmax in 16 bits and a cast: 20 bytes a logit."""
    assert load_stack("llm_foundry-23.11").loss_metrics
    assert not load_stack("torchtitan-25.06").loss_metrics
    named = {"fused_loss": 1, "native_loss": 0, "megatron_core": 0, "loss_native": 0, "capped_logits": 0}
    sizes = {"s": 4096, "b": 2, "cp": 1, "tp": 2, "V": 50304, "V_multiple": 1}
    logged, plain = (cross_entropy_bytes(SimpleNamespace(**named, **sizes, loss_metrics=on)) for on in (1, 0))
    assert logged - plain == pytest.approx(20 * 2 * 4096 * 50304 / 2)


def test_right_guesses_of_heads_are_counted_by_their_logits():
    """Megatron-Core 0.19 reads each MTP head's logits once more; without heads, and before, nobody does."""
    assert load_stack("nemo-26.08").counts_guesses
    assert not load_stack("nemo-26.06").counts_guesses
    sizes = {"s": 4096, "b": 2, "cp": 1, "tp": 2, "V": 50304, "V_multiple": 1, "activation_bytes": 2}
    counted, plain = (guesses_bytes(SimpleNamespace(**sizes, counts_guesses=on)) for on in (1, 0))
    assert (counted, plain) == (2 * 2 * 4096 * 50304 / 2, 0)
    cluster, plan = hardware_db.load_cluster("dgx-b200"), Plan(dp=8, ep=8)
    heads, without = (
        predict(
            replace(load_model("deepseek-v3"), num_layers=8, mtp_layers=layers),
            Workload(4096, 8),
            cluster,
            plan,
            stack,
        )
        for layers, stack in ((1, "nemo-26.08"), (0, "nemo-26.08"))
    )
    assert heads.values["mtp_guesses"] > 0
    assert "mtp_guesses" not in without.values


def test_a_loss_under_autocast_is_cast_behind_its_softmax():
    """What the bytes of a trainer's metric rest on: PyTorch's own operators, on tensors of a GPU that are not there."""
    torch = pytest.importorskip("torch")
    from torch._subclasses import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            if operator.namespace == "aten":
                seen.append((operator.name(), args[0].dtype))
            return operator(*args, **(kwargs or {}))

    was = torch.is_autocast_enabled("cuda")
    with FakeTensorMode():
        logits = torch.empty(8, 100, device="cuda", dtype=torch.bfloat16)
        labels = torch.zeros(8, dtype=torch.long, device="cuda")
        torch.set_autocast_enabled("cuda", True)
        try:
            with Log():
                torch.nn.CrossEntropyLoss(reduction="sum")(logits, labels)
        finally:
            torch.set_autocast_enabled("cuda", was)
            torch.clear_autocast_cache()
    assert seen == [
        ("aten::_log_softmax", torch.bfloat16),
        ("aten::_to_copy", torch.bfloat16),
        ("aten::nll_loss_forward", torch.float32),
    ]


def test_a_ring_that_few_cards_feed_takes_few_sms():
    x = SimpleNamespace(
        domain=8,
        partial_rings=0,
        network_bandwidth=50e9,
        inter_scale=1.0,
        one_card_scale=1.0,
        all_gather_bandwidth=400e9,
        intra_scale=1.0,
    )
    assert ring_sms(x, 8, 0) == 16
    assert ring_sms(x, 8, 1) == pytest.approx(16)
    assert ring_sms(x, 4, 1) == pytest.approx(8)
    assert ring_sms(x, 1, 1) == pytest.approx(4)
