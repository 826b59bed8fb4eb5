"""Scripts of Megatron-LM read: what is acted upon is never told as unread, and what they leave open is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hardware_db
from advisor.case_from import read_foreign
from advisor.commands.check import checked
from costmodel.model_file import from_mapping
from costmodel.plan import Plan
from costmodel.stack import load_stack
from costmodel.workload import Workload
from executor.export import megatron_lm
from executor.export.exported import Job
from executor.export.megatron_lm_arguments import LEGACY_LAYOUT, NO_MASK
from executor.export.megatron_lm_names import flag_of
from executor.export.megatron_lm_read import _unread
from executor.export.shell_words import left_open, read_flags

FOLDER = Path(megatron_lm.__file__).parent
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 4096 --global-batch-size 64 --bf16 "
)
SEVENTY = (
    LLAMA.replace("--num-layers 32 --hidden-size 4096", "--num-layers 80 --hidden-size 8192")
    .replace("14336", "28672")
    .replace("--num-attention-heads 32", "--num-attention-heads 64")
)
# Readers of flags, and of the fields that flags are turned into.
FLAGS = ("megatron_lm_read", "megatron_lm_fields", "environment")
FIELDS = (*FLAGS, "core_read", "core_model", "exchange_read", "model_read")
FIELD = re.compile(
    r'fields\.(?:get|pop|setdefault)\(\s*"([a-z0-9_]+)"|fields\["([a-z0-9_]+)"\]|"([a-z0-9_]+)" (?:not )?in fields'
)


def source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text()


def looked_up() -> set[str]:
    """Every flag that a reader asks for, by its name or by its field's."""
    flags = {flag for name in FLAGS for flag in re.findall(r'"(--[a-z][\w-]*\w)"', source(name))}
    fields = {field for name in FIELDS for words in FIELD.findall(source(name)) for field in words if field}
    return flags | {flag_of(field) for field in fields}


def test_every_flag_that_a_reader_asks_for_is_known():
    assert len(looked_up()) > 100
    assert [flag for flag in sorted(looked_up()) if list(_unread({flag: []}))] == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("--tensor-model-paralel-size 4", " (is --tensor-model-parallel-size meant?)"),
        ("--micro-batch-sise 2", " (is --micro-batch-size meant?)"),  # was set aside for how it begins
        ("--foo-bar 3", ""),
    ],
)
def test_a_misspelt_flag_is_told_with_the_one_that_it_means(said, told):
    """The plan was read without tensor parallelism, and the flag stood among those that nothing here knows."""
    flag, *values = said.split()
    assert _unread({flag: values}) == [said + told]


def test_a_flag_beside_the_one_that_it_resembles_is_its_own():
    assert _unread({"--tensor-model-parallel-sizes": ["2"], "--tensor-model-parallel-size": ["4"]}) == [
        "--tensor-model-parallel-sizes 2"
    ]
    assert _unread({"--overlap_grad_reduce": []}) == []  # as the library spells it, and read


def test_recompute_of_activations_is_read_and_not_called_unknown():
    found = megatron_lm.read(LLAMA + "--recompute-activations")
    assert found.knobs["recompute"] == "selective"
    assert not found.unread


@pytest.mark.parametrize(
    ("said", "native"),
    [("", True), (" --cross-entropy-fusion-impl native", True), (" --cross-entropy-fusion-impl te", False)],
)
def test_a_script_belongs_to_the_newest_release_that_has_its_loss(said, native):
    stack = load_stack(megatron_lm.read(f"{LLAMA} --cross-entropy-loss-fusion{said}").stack)
    assert (stack.names, stack.native_loss) == ("megatron_lm", native)


@pytest.mark.parametrize(
    ("said", "model"),
    [(128000, "llama3-70b"), (128512, "llama3-70b"), (32768, "llama2-70b"), (32000, "llama2-70b")],
)
def test_the_nearest_vocabulary_tells_models_apart(said, model):
    """128,000 and 128,512 were read as Llama 2, of 32,000, without a word."""
    found = megatron_lm.read(SEVENTY.replace("128256", str(said)))
    assert (found.model, found.alike) == (model, ())
    assert found.vocab == (said if said != 32000 else 0)
    told = read_foreign("megatron-lm", SEVENTY.replace("128256", str(said)), {"gpu": "h100"}).notes
    assert any(f"the configuration says {said:,}" in note for note in told) == bool(found.vocab)


def test_models_that_only_the_vocabulary_tells_apart_are_named():
    found = megatron_lm.read(SEVENTY.replace("--vocab-size 128256 ", ""))
    assert set(found.alike) == {"llama2-70b", "llama3-70b"}
    assert found.model == found.alike[0]
    assert not megatron_lm.read(SEVENTY).alike


def test_a_base_of_rotary_positions_that_is_no_default_tells_the_model():
    """A script of Llama 3 without its vocabulary was read as Llama 2. Logs print the default too: it tells nothing."""
    found = megatron_lm.read(SEVENTY.replace("--vocab-size 128256", "--rotary-base 500000"))
    assert (found.model, found.alike) == ("llama3-70b", ("llama3-70b",))
    default = megatron_lm.read(SEVENTY.replace("--vocab-size 128256", "--rotary-base 10000"))
    assert set(default.alike) == {"llama2-70b", "llama3-70b"}


def test_the_vocabulary_that_counts_where_none_is_said_is_told():
    """A script of a GPT without one was read as mpt-7b, and how many tokens that has stood nowhere."""
    said = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --bf16"
    for text, told in ((said, "50,368 tokens of mpt-7b"), (SEVENTY, "")):
        notes = read_foreign("megatron-lm", text, {"gpu": "h100"}).notes
        assert [told in note for note in notes if "vocabulary is not said" in note] == (
            [True] if told else []
        )


def test_its_fine_tuning_packs():
    """--finetune alone leaves optimizer states behind and goes on with data of pretraining."""
    assert megatron_lm.read(f"{LLAMA} --sft").workload["task"] == "sft"
    assert "task" not in megatron_lm.read(f"{LLAMA} --finetune").workload


@pytest.mark.parametrize(
    ("length", "options"),
    [("--seq-length 4096", {}), ("--seq-length $SEQ", {"seq_len": 4096}), ("", {"seq_len": 4096}), ("", {})],
)
def test_it_packs_whoever_says_the_length(length, options):
    """Rule packed_micro_batch held where the text left the length to a variable or to our command line."""
    script = f"{LLAMA.replace('--seq-length 4096', length)} --sft --micro-batch-size 4"
    case = read_foreign("megatron-lm", script, {"gpu": "h100"} | options)
    assert case.workload.packed
    assert any(each.id == "packed_micro_batch" for each in checked(case).violations)


SHAPE = LLAMA.replace("--num-layers 32", "--num-layers 7").replace("--position-embedding-type rope ", "")


@pytest.mark.parametrize(
    ("said", "table", "kind"),
    [
        ("", 4096, "learned_absolute"),
        ("--max-position-embeddings 8192", 8192, "learned_absolute"),
        (
            "--max-position-embeddings 8192 --position-embedding-type learned_absolute",
            8192,
            "learned_absolute",
        ),
        ("--max-position-embeddings 8192 --position-embedding-type rope", 0, "rope"),
        ("--max-position-embeddings 8192 --position-embedding-type yarn", 0, "rope"),
        ("--max-position-embeddings 8192 --use-rotary-position-embeddings", 0, "rope"),
    ],
)
def test_positions_are_learned_unless_a_text_says_otherwise(said, table, kind):
    """Defaults of arguments.py, 0.17 to 0.19: a text without the flag was priced and exported as rotary."""
    found = megatron_lm.read(SHAPE + said)
    model = from_mapping({"name": "read", **found.architecture})
    assert model.learned_positions == table
    assert model.position_embedding == kind
    assert not found.otherwise
    job = Job(Plan(), Workload(4096, 64), model, hardware_db.load_cluster("dgx-h100"))
    assert megatron_lm.export(job).settings["--position-embedding-type"] == kind


@pytest.mark.parametrize(
    ("length", "batch", "size"), [(8192, 1, ""), (16384, 2, "0.5 GiB"), (131072, 1, "16.0 GiB")]
)
def test_a_large_mask_of_the_loader_is_told(length, batch, size):
    """A byte for each token and token on the GPU, which no prediction has."""
    text = re.sub(r"--seq-length \d+", f"--seq-length {length}", LLAMA)
    text = re.sub(r"--micro-batch-size \d+", "", text) + f" --micro-batch-size {batch} "
    assert "; ".join(megatron_lm.read(f"{text} {NO_MASK}").otherwise) == ""
    told = "; ".join(megatron_lm.read(text).otherwise)
    assert (f"takes {size} of each GPU" in told) if size else told == ""


def test_positions_other_than_those_of_the_model_on_file_are_told():
    def told(text: str) -> str:
        found = megatron_lm.read(text)
        assert found.model in ("llama3-8b", "")
        return "; ".join(found.otherwise)

    bare = LLAMA.replace("--position-embedding-type rope ", "")
    assert told(LLAMA) == told(bare + "--use-rotary-position-embeddings") == ""
    assert told(bare) == (
        "--position-embedding-type left out, which is learned_absolute there: llama3-8b has rope, which is counted"
    )
    assert told(f"{bare} --position-embedding-type none").startswith("--position-embedding-type none: llama3")
    assert (
        told(f"{SHAPE} --position-embedding-type none") == "--position-embedding-type none: rope is counted"
    )


def test_what_is_not_modelled_of_an_optimizer_is_told():
    text = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 --optimizer "
    for dealt in ("muon --use-distributed-optimizer", "dist_muon"):
        assert any("pads buckets" in line for line in megatron_lm.read(text + dealt).otherwise)
    assert not megatron_lm.read(text + f"muon --use-distributed-optimizer {LEGACY_LAYOUT}").otherwise
    other = megatron_lm.read(text + "adaptive_muon")
    assert other.knobs.get("optimizer", "adam") == "adam"
    assert any("optimizer adaptive_muon" in line for line in other.otherwise)


@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        ("--bf16 --overlap-grad-reduce", {"zero_stage": 0}),
        ("--bf16 --use-distributed-optimizer", {"overlap_grad_reduce": False}),
        ("--fp16", {"precision": "fp16", "grad_reduce_in_fp32": False}),
        ("--bf16 --num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 4", {"vpp": 4}),
        ("--bf16 --optimizer muon --use-distributed-optimizer", {"optimizer": "muon", "zero_stage": None}),
        ("--bf16 --optimizer dist_muon", {"optimizer": "muon", "zero_stage": None}),
        ("--bf16 --optimizer muon", {"optimizer": "muon", "zero_stage": 0}),
        ("--bf16 --recompute-activations", {"recompute": "selective", "recompute_modules": ("core_attn",)}),
        ("--bf16 --num-experts 8 --tensor-model-parallel-size 4", {"etp": 4, "moe_dispatcher": "allgather"}),
    ],
)  # fmt: skip
def test_what_is_left_out_stands_at_megatrons_default(text, knobs):
    found = megatron_lm.read(f"--num-layers 32 --hidden-size 4096 --num-attention-heads 32 {text}").knobs
    assert {name: found.get(name) for name in knobs} == knobs


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
# --tensor-model-parallel-size 16 is a remark
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=8; LAYERS="80"
GPT_ARGS="
    --num-layers $LAYERS \\
    --hidden-size ${HIDDEN:-8192} --num-attention-heads 16
"
DIST=(--tensor-model-parallel-size ${TP} --sequence-parallel)
srun python pretrain_gpt.py $GPT_ARGS "${DIST[@]}" --bf16 --seq-length=4096
echo --done
"""


def test_a_script_with_variables_arrays_and_remarks_is_read():
    found = megatron_lm.read(SCRIPT)
    assert found.knobs["tp"] == 8
    assert found.knobs["sequence_parallel"]
    assert found.knobs["dp"] == 4
    assert found.knobs["max_connections"] == 1
    assert found.workload == {"seq_len": 4096}
    assert found.architecture["num_layers"] == 80
    assert found.architecture["hidden"] == 8192


def test_yaml_of_functional_tests_and_of_arguments_is_read():
    pytest.importorskip("yaml")
    tests = (
        "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n"
    )
    tests += "  --num-attention-heads: 8\n  --bf16: true\n  --tensor-model-parallel-size: 2\n"
    tests += "  --sequence-parallel: true\n"
    arguments = "language_model:\n  num_layers: 12\n  hidden_size: 512\n  num_attention_heads: 8\n"
    arguments += "model_parallel:\n  tensor_model_parallel_size: 2\n  sequence_parallel: True\nbf16: True\n"
    for text in (tests, arguments):
        found = megatron_lm.read(text)
        assert found.knobs["tp"] == 2, text
        assert found.knobs["sequence_parallel"]
        assert found.architecture["num_layers"] == 12


@pytest.mark.parametrize("text", ["", "hello", "--lr 1", "a: b"])
def test_other_text_is_refused_in_one_line(text):
    with pytest.raises(ValueError) as error:
        megatron_lm.read(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "flag", ["--tensor-model-parallel-size", "--num-layers", "--global-batch-size", "--recompute-method"]
)
@pytest.mark.parametrize("rest", ["", "=", " --no-masked-softmax-fusion"])
def test_a_flag_without_its_value_is_refused_as_the_parser_does(flag, rest):
    with pytest.raises(ValueError, match=f"^{flag} has no value on its line, .* as {flag} "):
        megatron_lm.read(f"{LLAMA} {flag}{rest}")


@pytest.mark.parametrize(
    "script",
    [
        "A=(\n  --num-layers\n  80\n  --hidden-size\n  8192  # wide\n  --num-attention-heads 16\n)\nrun ${A[@]} --fp16",
        "A=(--num-layers\n80 --hidden-size\n8192)\nA+=(--num-attention-heads\n$((4 * 4)) --fp16)\nrun ${A[@]}",
        'A="\n  --num-layers\n  80 --hidden-size\n  8192\n --num-attention-heads 16"\nrun $A --fp16',
    ],
)
def test_a_value_on_the_line_after_its_flag_is_read_where_the_shell_does(script):
    """It was "no value on its line": in an array, and in a text put in by its name, a line's end is a blank."""
    found = megatron_lm.read(script)
    assert found.architecture["num_layers"] == 80
    assert found.architecture["hidden"] == 8192
    assert found.knobs["precision"] == "fp16"


def test_a_line_ends_a_command_after_an_array():
    with pytest.raises(ValueError, match="--num-layers has no value on its line"):
        megatron_lm.read("A=(--hidden-size 64)\nrun ${A[@]} --num-layers\n32\n")


def test_a_table_of_positions_is_as_long_as_the_configuration_says():
    text = f"{LLAMA.replace('rope', 'learned_absolute')} --max-position-embeddings 8192 --fp16"
    assert megatron_lm.read(text).positions == 8192
    assert megatron_lm.read(f"{LLAMA} --max-position-embeddings 8192 --fp16").positions == 0


def values(script: str) -> dict[str, list[str]]:
    return read_flags(script).given


def test_what_stands_behind_a_command_is_no_value_of_its_last_flag():
    """`--recompute-activations 2>&1 | tee $LOG` was told as left to variables, and so was the batch of a sum."""
    found = values("run --a 1 --b 2>&1 | tee logs/$(date +%s).log\nrun --c 3 > out.log; run --d; echo done")
    assert found == {"--a": ["1"], "--b": [], "--c": ["3"], "--d": []}


@pytest.mark.parametrize(
    ("script", "batch"),
    [
        ("GBS=$((128 * 4))\nrun --gbs $GBS", "512"),
        ("GPUS=8\nNODES=${NODES:-4}\nrun --gbs $((GPUS * $NODES / 2 + 1))", "17"),
        ("run --gbs=$((3 *4))", "12"),
        ('run --gbs "$((5 * 2))" --bf16', "10"),
        (': "${GBS:=64}"\nrun --gbs $GBS', "64"),
        ('GBS=32\n: "${GBS:=64}"\nrun --gbs $GBS', "32"),
    ],
)
def test_whole_numbers_are_worked_out_as_the_shell_does(script, batch):
    assert values(script)["--gbs"] == [batch]


@pytest.mark.parametrize("value", ["$((N * 4))", "$((1 / 0))", "$((2 ** 99))", "$(nproc --all)"])
def test_what_a_shell_alone_can_tell_stays_open(value):
    found = values(f"run --gbs {value} --bf16")
    assert left_open(found["--gbs"])
    assert found["--bf16"] == []


def test_variables_that_put_themselves_in_come_to_an_end():
    long = "".join(f'V{i}="{f"$V{i + 1} " * 60}"\n' for i in range(9))
    assert len(values(f"{long}A=$((A+A+A))\nrun --x $V0 --y $A")["--x"][0]) < 1 << 22


BRANCHES = """
TP=2
if [[ $SIZE == 70b ]]; then
  LAYERS=80; HIDDEN=8192
else
  LAYERS=32; HIDDEN=4096
fi
if [ -z "$LOG" ]; then LOG=out; fi
ARGS="--num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 32 --tensor-model-parallel-size $TP"
if [ "$FP8" = 1 ]; then
  ARGS+=" --fp8-format hybrid"
fi
run $ARGS --bf16 --tensorboard-dir $LOG
"""


def test_what_branches_decide_is_told():
    """The last branch counted without a word: a script of two models was read as its second."""
    found = megatron_lm.read(BRANCHES)
    (told,) = [line for line in found.otherwise if "last branch" in line]
    assert told.startswith("--num-layers, --hidden-size, --fp8-format: as the last branch")
    assert not [line for line in megatron_lm.read(SCRIPT).otherwise if "last branch" in line]
