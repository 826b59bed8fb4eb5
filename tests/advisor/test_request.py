"""Requests: defaults are told, and what cannot be meant is refused in one line with a way out."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import advisor
from advisor.precisions import choose_precisions
from advisor.request import (
    Request,
    make_request,
    parse_pins,
)
from advisor.sizes import MOST_GPUS
from advisor.usual_sizes import MOST_TOKENS, SEQUENCES, default_global_batch, usual_seq_len
from costmodel.knobs import CATALOGUE
from costmodel.model_registry import load_model
from costmodel.workload import Workload
from hardware_db import resolve

H100 = resolve("h100", None)[0]
LLAMA = load_model("llama3-70b")


def ask(**changes) -> Request:
    settings = {"model": LLAMA, "gpus": 64, "cluster": H100, "workload": Workload(8192, 128)}
    return Request(**settings | changes)


@pytest.mark.parametrize(
    ("model", "gpus", "gpu", "batch"),
    [
        ("llama3-70b", 64, "h100", 128),
        ("llama3-70b", 256, "h100", 512),
        ("llama3-70b", 1024, "gb200", 2048),
        ("llama3-8b", 8, "b200", 128),
        ("llama3.1-405b", 512, "h100", 1024),
    ],
)
def test_default_batches_are_those_of_published_recipes(model, gpus, gpu, batch):
    request = make_request(model, gpus, gpu)
    assert request.workload == Workload(8192, batch)
    assert any("sequence length 8192" in note for note in request.notes)
    assert any(f"global batch {batch}" in note for note in request.notes)


@given(
    st.integers(1, 4096), st.sampled_from([512, 2048, 8192, 32768, 131072]), st.sampled_from(list(SEQUENCES))
)
def test_default_batch_is_a_multiple_or_a_divisor_of_the_gpus(gpus, seq_len, task):
    batch = default_global_batch(gpus, seq_len, task)
    assert batch % gpus == 0 or gpus % batch == 0
    least, each = SEQUENCES[task]
    assert batch * seq_len >= max(least, each * gpus) * seq_len * 8192 / max(seq_len, 8192) * (1 - 1e-9)


def test_longer_sequences_keep_the_tokens_of_a_step():
    assert default_global_batch(8, 131072, "pretrain") * 131072 == 128 * 8192


@pytest.mark.parametrize(("gpus", "batch"), [(24, 12), (96, 12), (100, 25), (64, 8)])
def test_the_usual_batch_of_long_sequences_can_be_shared_out(gpus, batch):
    """24 GPUs were given 8 sequences, of which no plan of a hybrid without a third of anything could be made."""
    assert default_global_batch(gpus, 131072, "pretrain") == batch


@pytest.mark.parametrize(("gpus", "batch"), [(4096, 8192), (8192, 8192), (16384, 8192), (65536, 8192)])
def test_a_step_takes_no_more_tokens_than_published_runs(gpus, batch):
    """16,384 GPUs were given 268 million tokens a step, "as published recipes do"; Llama 3.1 405B took 16 million."""
    assert default_global_batch(gpus, 8192, "pretrain") == batch


@pytest.mark.parametrize(
    ("model", "gpus", "published"),
    [
        ("qwen3-30b-a3b", 8, (512, 512)),
        ("nemotron3-nano-30b-a3b", 8, (512, 512)),
        ("gpt-oss-120b", 64, (512, 1280)),
        ("deepseek-v3", 256, (2048, 8192)),
        ("qwen3-235b-a22b", 256, (2048, 8192)),
        ("deepseek-v3", 1024, (8192, 16384)),
        ("deepseek-v3", 2048, (15360, 16384)),
    ],
)
def test_the_usual_batch_of_experts_is_that_of_their_recipes(model, gpus, published):
    """They were given the 2 sequences a GPU of dense models, and were told to try more."""
    request = make_request(model, gpus, "gb200")
    least, most = published
    assert least <= request.workload.global_batch <= most
    assert request.workload.tokens_per_step <= MOST_TOKENS
    (told,) = (note for note in request.notes if "global batch" in note)
    assert told.endswith("as published recipes of mixtures of experts do")


def test_experts_are_tuned_with_the_batch_of_dense_models():
    """Published LoRA of Qwen3 30B on 4 to 16 GPUs takes 32 sequences."""
    for task in ("sft", "lora"):
        request = make_request("qwen3-30b-a3b", 8, "h100", task=task)
        assert request.workload.global_batch == 32
        assert any(note.endswith("as published recipes do") for note in request.notes)


@pytest.mark.parametrize(("gpus", "batch"), [(3, 144), (6, 144), (12, 144), (24, 144), (100, 200)])
def test_micro_batches_divide_the_usual_batch_of_odd_numbers_of_gpus(gpus, batch):
    """12 GPUs were given 11 sequences each, which leave no micro-batch but 1."""
    assert default_global_batch(gpus, 8192, "pretrain") == batch


def test_an_odd_number_of_gpus_does_not_blow_up_the_usual_batch():
    assert default_global_batch(100, 1 << 20, "pretrain") == 2


def test_a_length_that_nothing_tells_is_not_called_usual(tmp_path):
    path = tmp_path / "mine.toml"
    sizes = "num_layers = 4\nhidden = 256\nffn_hidden = 512\nnum_heads = 4\nvocab = 1000\n"
    path.write_text(sizes)
    assert (
        "sequence length 4096, as nothing tells how mine is trained"
        in make_request(str(path), 8, "h100").notes
    )
    path.write_text(sizes + "seq_len = 4096\n")
    assert "sequence length 4096, as mine is usually trained" in make_request(str(path), 8, "h100").notes
    assert (
        "sequence length 4096, as qwen3-30b-a3b is usually trained"
        in make_request("qwen3-30b-a3b", 8, "h100").notes
    )


def test_the_position_table_is_the_usual_length():
    assert usual_seq_len(load_model("gpt3-175b")) == 2048
    assert usual_seq_len(load_model("llama3-8b")) == 8192


@pytest.mark.parametrize(
    ("gpu", "recipes"),
    [
        ("a100", ("bf16",)),
        ("h100", ("bf16", "fp8-cs")),
        ("b200", ("bf16", "fp8-cs", "mxfp8")),
        ("gb300", ("bf16", "fp8-cs", "mxfp8")),
        ("mi300x", ("bf16", "fp8-cs")),
        ("mi355x", ("bf16", "fp8-cs")),
    ],
)
def test_auto_precision_is_what_the_generation_is_recommended(gpu, recipes):
    found, note = choose_precisions("auto", resolve(gpu, None)[0])
    assert found == recipes
    assert all(recipe in note for recipe in recipes)


def test_named_precisions_are_kept_in_order_without_a_note():
    assert choose_precisions("fp8-cs, bf16,fp8-cs", H100) == (("fp8-cs", "bf16"), "")


def test_precisions_are_read_in_any_spelling_and_beside_auto():
    assert choose_precisions("FP8_CS,fp8_mx", H100)[0] == ("fp8-cs", "mxfp8")
    assert choose_precisions("nvfp4,auto", H100)[0] == ("nvfp4", "bf16", "fp8-cs")
    with pytest.raises(
        ValueError, match=r"'FP8' is not one of .* Did you mean fp8-delayed, fp8-cs, fp8-sc\?"
    ):
        choose_precisions("FP8", H100)


@pytest.mark.parametrize(
    ("gpu", "told", "searched"),
    [
        ("mi355x", "so MXFP8, of which no rate on MI355X is measured", "mxfp8"),
        ("rtx5090", "FP8, which GeForce RTX 5090 has, was not searched, as which", "fp8-cs"),
    ],
)
def test_formats_that_a_gpu_has_and_auto_leaves_out_are_told_with_the_way_to_them(gpu, told, searched):
    """GPUs were compared by BF16 on one side and by FP8 on the other, and nothing said so."""
    cluster = resolve(gpu, None)[0]
    recipes, note = choose_precisions("auto", cluster)
    assert told in note
    way = f"auto,{searched}"
    assert f"--precision {way} searches it too" in note
    assert choose_precisions(way, cluster)[0] == (*recipes, searched)


@pytest.mark.parametrize("gpu", ["a100", "h100", "mi300x", "b200"])
def test_nothing_is_left_out_where_auto_has_what_the_gpu_has(gpu):
    assert choose_precisions("auto", resolve(gpu, None)[0])[1].endswith("; others only when named")


@pytest.mark.parametrize("command", ["explain", "predict", "check"])
@pytest.mark.parametrize("order", [1, -1])
def test_formats_that_a_gpu_lacks_are_not_suggested(command, order):
    """fp8 on an A100 was answered with three recipes of FP8, none of which it has."""
    options = [["--gpu", "a100"], ["--precision", "fp8"]][::order]
    given = [command, "--model", "8b", "--gpus", "8", *options[0], *options[1]]
    said = str(CliRunner().invoke(advisor, given).exception)
    assert said == (
        "--precision 'fp8' is no recipe, and A100 SXM4 80GB has no FP8, or no peak of it on file. "
        "It takes bf16, fp16. Try --precision bf16."
    )


def test_pinned_precision_is_the_only_one_searched():
    assert make_request("8b", 8, "h100", pins=["precision=bf16"]).precisions == ("bf16",)


@pytest.mark.parametrize("precision", ["bf16", "bf16,mxfp8"])
def test_a_precision_and_a_pin_of_another_are_refused_as_two_pins_are(precision):
    with pytest.raises(
        ValueError, match=f"--precision {precision} contradicts --pin precision=fp8-cs. Leave"
    ):
        make_request("8b", 8, "h100", precision=precision, pins=["precision=fp8-cs"])
    with pytest.raises(ValueError, match="contradicts"):
        ask(pins={"precision": "fp8-cs"})
    assert make_request("8b", 8, "h100", precision="fp8-cs,bf16", pins=["precision=bf16"]).precisions == (
        "bf16",
    )


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        (
            ["recompute=none", "recompute_num_layers=4"],
            "recompute=none contradicts recompute_num_layers=4, which is of recompute=full. "
            "Leave one out, or say recompute=full.",
        ),
        (
            ["recompute=full", "recompute_modules=core_attn+mlp"],
            "recompute=full contradicts recompute_modules=core_attn+mlp, which is of "
            "recompute=selective. Leave one out, or say recompute=selective.",
        ),
        (
            ["recompute_modules=mlp", "recompute_num_layers=4"],
            "recompute_modules=mlp, which is of recompute=selective, contradicts "
            "recompute_num_layers=4, which is of recompute=full. Leave one out.",
        ),
    ],
)
def test_pins_of_two_kinds_of_recompute_are_refused(pins, says):
    with pytest.raises(ValueError) as refusal:
        ask(pins=parse_pins(pins))
    assert str(refusal.value) == says


def test_pins_are_read_as_their_knobs():
    found = parse_pins(["tp=4", "--cuda-graph=on".removeprefix("--"), "recompute-modules=mlp+layernorm"])
    assert found == {"tp": 4, "cuda_graph": True, "recompute_modules": ("mlp", "layernorm")}


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("tensor_model_parallel_size=2", {"tp": 2}),
        ("model.tensor_model_parallel_size=2", {"tp": 2}),
        ("ddp.nccl_ub=true", {"nccl_ub": True}),
        ("--no-overlap-p2p=true", {"overlap_p2p": False}),
        ("ddp.nccl_ub=true,model.cp_comm_type=a2a", {"nccl_ub": True, "cp_comm_type": "a2a"}),
    ],
)
def test_pins_go_by_any_name_that_set_takes(text, pins):
    """The names of frameworks are what the section *Set these* prints."""
    assert parse_pins([text]) == pins


@pytest.mark.parametrize(
    "knob",
    [knob for knob in CATALOGUE.values() if knob.home in ("knob", "setting")],
    ids=lambda knob: knob.name,
)
def test_our_own_name_of_a_knob_pins_that_knob(knob):
    values = {"bool": "on", "choice": knob.choices[-1:], "list": knob.choices[-1:], "text": "some"}
    value = values.get(knob.kind, str(knob.high))
    pin = value if isinstance(value, str) else value[0]
    assert parse_pins([f"{knob.name}={pin}"]) == {knob.name: knob.parse(pin)}


def test_pins_of_one_knob_under_two_names_are_one_or_refused():
    assert parse_pins(["tp=2", "tensor_model_parallel_size=2"]) == {"tp": 2}
    with pytest.raises(ValueError, match="--why-not gives tp twice: 2 and 4"):
        parse_pins(["tp=2", "tensor_model_parallel_size=4"], "--why-not")
    with pytest.raises(ValueError, match=r"--pin seq_length: .* stands with the workload. Use --seq-len"):
        parse_pins(["seq_length=4096"])


def test_pinned_settings_are_carried_by_every_plan():
    pins = parse_pins(["tp=2", "moe-paged-stash=true", "moe_expert_rank_capacity_factor=1.5"])
    request = ask(pins=pins)
    assert request.knob_pins == {"tp": 2}
    assert dict(request.settings) == {"moe_expert_rank_capacity_factor": 1.5, "moe_paged_stash": True}
    with pytest.raises(ValueError, match="is not a number from 0 to 64"):
        parse_pins(["moe_expert_rank_capacity_factor=much"])
    with pytest.raises(ValueError, match="is not a number from 0 to 64"):
        ask(pins={"moe_expert_rank_capacity_factor": -1.0})


def test_a_request_says_what_the_gpu_name_means():
    assert any("h100 means" in note for note in make_request("8b", 8, "h100").notes)


def test_the_way_out_of_pins_that_do_not_fit_works():
    with pytest.raises(ValueError, match="not a multiple of tp x pp = 64") as refusal:
        ask(gpus=96, pins={"tp": 8, "pp": 8})
    text = str(refusal.value)
    assert "Try --gpus 128, or --pin tp=" in text
    size = int(text.rsplit("=", 1)[1].rstrip("."))
    ask(gpus=96, pins={"tp": size, "pp": 8})
    ask(gpus=128, pins={"tp": 8, "pp": 8})


def test_a_tensor_size_is_proposed_that_the_heads_divide_over_too():
    """60 GPUs would take tp=6, Llama's 64 heads would not."""
    with pytest.raises(ValueError, match=r"Try --gpus 64, or --pin tp=4\.$"):
        ask(gpus=60, pins={"tp": 8})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": 0}, "--gpus 0"),
        ({"gpus": -8}, "--gpus -8"),
        ({"gpus": 6.5}, "whole number"),
        ({"gpus": True}, "whole number"),
        ({"gpus": "64"}, "whole number"),
        ({"gpus": MOST_GPUS + 1}, "Try --gpus"),
        ({"objective": "thruput"}, "Did you mean throughput"),
        ({"top": 0}, "--top"),
        ({"tokens": -1.0}, "--tokens"),
        ({"tokens": float("nan")}, "--tokens"),
        ({"tokens": float("inf")}, "--tokens"),
        ({"precisions": ("fp8",)}, "is not one of"),
        ({"pins": {"tp": 0}}, "--tp 0"),
        ({"pins": {"teepee": 1}}, "is not a knob"),
        ({"pins": {"dp": 48}}, "does not fit dp=48"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(changes, words):
    with pytest.raises(ValueError) as refusal:
        ask(**changes)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["tp"], "NAME=VALUE"),
        (["tpp=4"], "Did you mean"),
        (["tp=four"], "whole number"),
        (["tp=4", "tp=8"], "twice"),
        (["cuda_graph=maybe"], "true or false"),
        (["recompute=ful"], "Did you mean"),
    ],
)
def test_pins_that_cannot_be_read_are_refused_in_one_line(texts, words):
    with pytest.raises(ValueError, match=words) as refusal:
        parse_pins(texts)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("precision", ["", " , ", "fp9", "bf16;fp8-cs"])
def test_unknown_precisions_are_refused(precision):
    with pytest.raises(ValueError):
        make_request("8b", 8, "h100", precision=precision)


def test_a_scope_of_graphs_is_of_plans_that_have_graphs():
    request = make_request("llama3-8b", 8, "h100", pins=["cuda_graph_scope=attn"])
    assert request.pins == {"cuda_graph": True, "cuda_graph_scope": ("attn",)}


@pytest.mark.parametrize("tokens", [15, 8191])
def test_a_training_run_shorter_than_its_step_is_refused(tokens):
    """--tokens 15, for 15T, was answered: 0 steps, 0 GPU-hours, $0, and 2 GPUs in time."""
    with pytest.raises(ValueError, match=f"^--tokens {tokens:,} is less than one step, of 8,192 tokens. Say"):
        make_request("llama3-8b", 8, "h100", seq_len=1024, global_batch=8, tokens=tokens)
    assert make_request("llama3-8b", 8, "h100", seq_len=1024, global_batch=8, tokens=8192).tokens == 8192
