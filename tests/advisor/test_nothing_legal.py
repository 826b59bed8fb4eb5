"""A search without a legal plan names what leaves none, and only that."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from advisor.cli import advisor
from advisor.options import as_pins
from advisor.request import make_request, parse_pins
from advisor.search import search
from advisor.space import build_space


def refused(model: str, gpus: int, **pins: object) -> str:
    request = make_request(model=model, gpus=gpus, gpu="h100", pins=pins)
    with pytest.raises(ValueError, match="leaves no legal plan") as caught:
        search(request)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("model", "pins", "reason"),
    [
        ("llama3-70b", {"ep": 4}, "ep = 4, etp = 1: the model has no experts"),
        ("mixtral-8x7b", {"ep": 3}, "ep x etp = 3 does not divide 64 GPUs"),
        ("mixtral-8x7b", {"ep": 16}, "8 experts do not divide over ep = 16"),
        ("llama3-70b", {"pp": 16, "vpp": 7}, "80 layers do not make pp x vpp = 16 x 7 chunks"),
    ],
)
def test_the_reason_is_the_one_that_every_plan_has(model, pins, reason):
    """Any rule that one plan broke was told too, such as a batch that other sizes divide."""
    text = refused(model, 64, **pins)
    assert f"of {model}: {reason}. " in text


def test_rules_that_leave_nothing_together_are_told_with_their_ways():
    """63 GPUs and 8,190 tokens in FP8 were told of heads over tp = 3 and to relax pins that were none."""
    asked = {"gpu": "h100", "seq_len": 8190, "pins": {"recompute": "full", "cuda_graph": False}}
    with pytest.raises(ValueError, match="leaves no legal plan") as caught:
        search(make_request("llama3-70b", 63, precision="fp8-cs", **asked))
    text = str(caught.value)
    assert "fp8-cs needs tokens of one pass in multiples of 16" in text
    assert "heads" not in text
    assert "Try --seq-len 8192, or --precision bf16." in text


def test_chunks_that_no_stages_have():
    text = refused("llama3-70b", 64, vpp=80)
    assert "80 layers do not make pp x vpp = 2 x 80 chunks" in text
    assert "global batch" not in text.partition(": ")[2]


@pytest.mark.parametrize(("model", "layers"), [("llama3-8b", 32), ("llama3-70b", 80)])
def test_more_layers_than_there_are_cannot_be_recomputed_on_any_number_of_gpus(model, layers):
    """On 62 they were, where the balancer splits the layers: the rule was of even splits."""
    text = refused(model, 64, recompute="full", recompute_num_layers=1000)
    assert text.endswith(
        f"recompute_num_layers 1000 is more than the {layers} layers of a pipeline stage. "
        f"Try --pin recompute_num_layers={layers}, or 0 for all."
    )
    pins = {"recompute": "full", "recompute_num_layers": layers}
    assert build_space(make_request(model=model, gpus=64, gpu="h100", pins=pins), "bf16").legal


def test_a_way_out_is_told_as_pins():
    text = "Try --vpp 2 --no-fsdp, or --cuda-graph-scope attn,moe_router, or --tp-comm-overlap. --gpus 8; --dp 4."
    assert as_pins(text) == (
        "Try --pin vpp=2 --pin fsdp=off, or --pin cuda_graph_scope=attn,moe_router, or --pin tp_comm_overlap=on. "
        "--gpus 8; --pin dp=4."
    )
    assert as_pins("Add --sequence-parallel, or --precision bf16; a smaller --tp with --cp.") == (
        "Add --pin sequence_parallel=on, or --precision bf16; a smaller tp with cp."
    )
    assert as_pins("Try a larger --micro-batch, or --pp 2.") == "Try a larger micro_batch, or --pin pp=2."


def test_settings_and_set_are_pins_too():
    # Nobody gave what the search chose.
    assert as_pins("Try --pp 1, or drop --fsdp.") == "Try --pin pp=1, or try --pin fsdp=off."
    assert as_pins("Drop --fsdp.") == "Try --pin fsdp=off."
    assert as_pins("drop --gpu") == "drop --gpu"
    assert as_pins("Try --set tp_overlap_fp8_buf=true.") == "Try --pin tp_overlap_fp8_buf=true."
    assert as_pins("Add --calculate-per-token-loss.") == "Add --pin calculate_per_token_loss=on."


@pytest.mark.parametrize(
    ("given", "pinned"),
    [
        (["--tp", "4"], "--pin tp=4,"),
        (["--tp=4"], "--pin tp=4,"),
        (["--no-bias-activation-fusion"], "--pin bias_activation_fusion=off,"),
        (["--set", "nccl_debug=INFO"], "--pin nccl_debug=INFO,"),
    ],
)
def test_the_option_of_a_knob_is_told_as_its_pin(given, pinned):
    """`explain --tp 4` was refused with other options that look alike."""
    asked = ["explain", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", *given]
    with pytest.raises(ValueError, match="explain searches the knobs") as refusal:
        CliRunner().invoke(advisor, asked, catch_exceptions=False)
    assert f"Try {pinned}" in str(refusal.value)


def test_explain_fuses_no_activation_without_a_kernel():
    """A plan of squared ReLU was told to be mended by a pin that explain can set itself; the pin is still taken."""
    asked = ["explain", "--model", "nemotron4-15b", "--gpus", "64", "--gpu", "h100", "--top", "1"]
    told = CliRunner().invoke(advisor, asked, catch_exceptions=False).output
    assert "--pin bias_activation_fusion=off" not in told
    done = CliRunner().invoke(
        advisor, [*asked, "--pin", "bias_activation_fusion=off"], catch_exceptions=False
    )
    assert "bias_activation_fusion has no kernel" not in done.output


def test_a_batch_that_the_pinned_micro_batch_divides_is_the_way_out():
    text = refused("llama3-8b", 8, micro_batch=3)
    assert text.endswith("Try --global-batch 120.")


def test_pins_are_said_as_they_are_given():
    assert "--pin sequence_parallel=on --pin tp=1" in refused("llama3-8b", 8, sequence_parallel=True, tp=1)


def test_one_pin_may_hold_several():
    """`--why-not` took them so, `--pin` called the rest a part of the number."""
    assert parse_pins(["tp=2,pp=4", "recompute_modules=mlp,layernorm"]) == {
        "tp": 2,
        "pp": 4,
        "recompute_modules": ("mlp", "layernorm"),
    }


def test_gpus_that_are_offered_go_with_the_pins():
    """It said --gpus 5 beside --pin dp=3, which is refused."""
    request = make_request(model="llama3-8b", gpus=6, gpu="h100", global_batch=128, pins={"dp": 3})
    with pytest.raises(ValueError, match=r"legal plan of .*\. Try --global-batch 126\.$"):
        search(request)


def test_a_way_out_of_several_rules_is_told_once():
    assert refused("llama3-8b", 24, tp=3).count("Try --pin tp=2") == 1
