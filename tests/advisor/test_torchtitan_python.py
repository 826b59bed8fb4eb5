"""Configurations of torchtitan in Python, and start lines: read from syntax, as the job files that they replace."""

from __future__ import annotations

import pytest
from torchtitan_jobs import SEVENTY, P, toml

from advisor.case_from import read_foreign
from advisor.rules import violations
from advisor.torchtitan.job import tables
from advisor.torchtitan.python_form import Maker, read_source
from advisor.torchtitan.reading import read_text

HEAD = """
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_70b
from torchtitan.trainer import Trainer

TP = 4
"""
WHOLE = (
    HEAD
    + """
def mine() -> Trainer.Config:
    compile_config = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config()),
        model_spec=model_registry("70B", converters=[
            Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=compile_config.enable),
        ]),
        optimizer=default_adamw(lr=1e-4),
        training=TrainingConfig(local_batch_size=2, global_batch_size=2 * 64, seq_len=8192, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(tensor_parallel_degree=TP),
        activation_checkpoint=FullAC.Config(),
        compile=compile_config,
    )
"""
)
CHANGED = (
    HEAD
    + """
def _base(batch: int = 2) -> Trainer.Config:
    config = llama3_70b()
    config.training.local_batch_size = batch
    config.training.global_batch_size = 128
    return config

def mine() -> Trainer.Config:
    config = _base()
    config.training.disable_cuda_graphs = True
    config.parallelism.tensor_parallel_degree = TP
    config.compile = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return config
"""
)
EP = (
    HEAD.replace("llama3 import model_registry", "deepseek_v3 import model_registry")
    + """
def mine() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry(
            "16B", moe_comm_backend="hybridep", non_blocking_capacity_factor=CAPACITY, num_mtp_layers=1
        ),
        parallelism=ParallelismConfig(expert_parallel_degree=8, context_parallel_degree=2),
        activation_checkpoint=None,
    )
"""
)


def with_step(step: str) -> str:
    """CHANGED with a statement before its configuration is returned."""
    end = CHANGED.rindex("    return config")
    return f"{CHANGED[:end]}    {step}\n{CHANGED[end:]}"


LINE = (
    "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_405b "
    "--training.disable_cuda_graphs --training.local-batch-size=1 --parallelism.tensor_parallel_degree 8 "
    "--metrics.log_freq 1 --compile.components model,loss"
)


def read(text: str, **options):
    return read_foreign("torchtitan", text, {"gpu": "h100", "gpus": 32, **options})


@pytest.mark.parametrize("text", [WHOLE, CHANGED])
def test_a_function_is_the_plan_of_the_job_file_that_says_the_same(text):
    """Whether it makes the configuration or changes one that torchtitan ships; rowwise is 0.3.0's only FP8."""
    said = SEVENTY | {
        "training.local_batch_size": 2,
        "training.global_batch_size": 128,
        f"{P}tensor_parallel_degree": 4,
        f"{P}enable_async_tensor_parallel": True,
        "compile.enable": True,
        "activation_checkpoint.mode": "full",
        "model.converters": ["quantize.linear.float8"],
        "quantize.linear.float8.recipe_name": "rowwise",
        "quantize.linear.float8.filter_fqns": ["output"],
    }
    found, same = read(text), read(toml(said), stack="torchtitan-26.09")
    assert (found.model, found.plan, found.workload) == (same.model, same.plan, same.workload)
    assert found.stack == same.stack == "torchtitan-26.09"


def test_a_start_line_is_its_configuration_and_what_it_sets():
    found = read(LINE)
    assert (found.model.name, found.plan.tp, found.plan.micro_batch) == ("llama3.1-405b", 8, 1)
    assert found.plan.tp_comm_overlap
    assert (found.plan.precision, found.plan.recompute, found.plan.cuda_graph) == ("fp8-sc", "full", False)
    graphs = read(LINE.replace("--training.disable_cuda_graphs", "--training.no_disable_cuda_graphs"))
    assert (graphs.plan.cuda_graph, graphs.plan.cuda_graph_scope) == (True, ("full_iteration",))


def test_a_script_of_an_older_release_is_its_job_file_and_what_it_sets(tmp_path):
    job, script = tmp_path / "job.toml", tmp_path / "run.sh"
    job.write_text(toml(SEVENTY | {"compile.enable": True, "training.local_batch_size": 1}))
    script.write_text(
        f'CONFIG_FILE="{job}"\ntorchrun -m torchtitan.train --job.config_file ${{CONFIG_FILE}} \\\n'
        "  --training.seq_len 16384 --compile.no-enable --parallelism.context_parallel_degree $CP\n"
    )
    found = read(str(script))
    assert (found.workload.seq_len, found.plan.micro_batch, found.plan.rope_fusion) == (16384, 1, False)
    assert any("context_parallel_degree $CP. It counts as not said" in note for note in found.notes)
    assert found.stack == "torchtitan-26.02"


@pytest.mark.parametrize(
    "line",
    [
        "CONFIG_FILE={job} ./run_train.sh",
        'NGPU=8 CONFIG_FILE="{job}" ./run_train.sh',
        "export CONFIG_FILE=${{CONFIG_FILE:-{job}}}\n./run_train.sh",
        'CONFIG_FILE={job}\ntorchrun -m torchtitan.train --job.config_file ${{CONFIG_FILE}} "$@"',
        "CONFIG_FILE={job}\ntorchrun -m torchtitan.train --job.config_file $CONFIG_FILE | tee log.txt",
        "torchrun -m torchtitan.train --job.config_file {job} --training.seq_len 8192 ${{@:2}}",
        "torchrun -m torchtitan.train --job.config_file {job} --training.seq_len 8192 $*",
    ],
)
def test_the_start_lines_of_torchtitans_readme_name_a_job_file(tmp_path, line):
    job = tmp_path / "l8.toml"
    job.write_text(toml(SEVENTY))
    found, same = read(line.format(job=job)), read(toml(SEVENTY))
    assert (found.model, found.plan, found.workload) == (same.model, same.plan, same.workload)
    assert found.notes == same.notes


@pytest.mark.parametrize(
    "line",
    [
        "MODULE=llama3 CONFIG=llama3_8b ./run_train.sh",
        'MODULE=llama3\nCONFIG=${CONFIG:-"llama3_8b"}\ntorchrun --module ${MODULE} --config ${CONFIG} "$@"',
    ],
)
def test_the_start_lines_of_torchtitans_readme_name_a_configuration(line):
    found, same = read(line), read("--module llama3 --config llama3_8b")
    assert (found.model, found.plan, found.workload) == (same.model, same.plan, same.workload)


def test_arguments_alone_are_a_job_too():
    found = read(
        "--model.name qwen3 --model.flavor 8B --training.seq_len 4096 --activation_checkpoint.mode none"
    )
    assert (found.model.name, found.workload.seq_len, found.plan.recompute) == ("qwen3-8b", 4096, "none")


@pytest.mark.parametrize(
    ("family", "config"),
    [(family, name) for family, found in tables("registry")["configurations"].items() for name in found],
)
def test_every_configuration_that_torchtitan_ships_is_read_and_predicted(family, config):
    here = {"gpus": 1} if "minimal" in config else {}  # whose degrees are 1
    found = read(f"--module {family} --config {config} --training.disable_cuda_graphs", gpu="b200", **here)
    assert found.predict().step_time_s > 0
    assert found.stack == "torchtitan-26.09"


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("gpt_oss", "gpt_oss_20b"),
        ("gpt_oss", "gpt_oss_120b"),
        ("qwen3", "qwen3_30b_a3b"),
        ("deepseek_v3", "deepseek_v3_16b_hybridep"),
    ],
)
def test_a_graph_of_experts_is_refused_where_torchtitan_refuses_it_alone(family, config):
    """trainer.py, _validate_cuda_graphs, takes experts on one rank and HybridEP with a capacity factor."""
    found = read(f"--module {family} --config {config}", gpu="b200")
    assert found.plan.cuda_graph
    broken = violations(found.model, found.workload, found.cluster, found.plan, found.gpus, stack=found.stack)
    assert not [each.id for each in broken if each.severity == "ERROR"]


def test_a_start_line_names_a_function_of_ones_own_file(tmp_path):
    file = tmp_path / "config_registry.py"
    file.write_text(WHOLE + CHANGED.replace("mine", "other"))
    found = read(f"--module {file} --config other --training.seq_len 4096")
    assert (found.plan, found.workload.seq_len) == (read(CHANGED).plan, 4096)
    with pytest.raises(ValueError, match=r"mine, other, not others\. Did you mean other\?"):
        read(f"--module {file} --config others")


def test_parameters_are_cast_without_shards_too_as_of_0_3_0():
    text = "--module llama3 --config llama3_70b --parallelism.tensor_parallel_degree 8 --training.disable_cuda_graphs"
    assert read(text, gpus=8).plan.precision == "bf16"
    copies = " --parallelism.data_parallel_replicate_degree 4 --parallelism.data_parallel_shard_degree 1"
    found = read(text + copies).plan
    assert (found.fsdp, found.zero_stage, found.dp, found.precision) == (False, 0, 4, "bf16")


def test_layers_of_nvfp4_are_those_before_the_tail_in_16_bits():
    """As the published run of Llama 3 8B, whose layers 27 to 31 stay in BF16; plans have half at each end."""
    found = read("--module llama3 --config llama3_8b_first_85_pct_layers_nvfp4", gpu="b200", gpus=4)
    assert (found.plan.precision, found.plan.bf16_end_layers) == ("nvfp4", 2)
    assert (
        read_text("--module llama3 --config llama3_8b_first_85_pct_layers_nvfp4").said["nvfp4.layers"] == 27
    )


def test_experts_dispatch_and_mtp_follow_the_model_registry():
    found = read(EP.replace("CAPACITY", "1.0"))
    assert (found.plan.moe_dispatcher, found.plan.ep, found.model.mtp_layers) == ("hybridep", 8, 1)
    assert (found.plan.recompute, found.plan.cp_comm_type) == ("none", "all_gather")
    assert found.workload.moe_imbalance == 1.04


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--module llama3", "given together"),
        ("MODULE=llama3 ./run_train.sh", "given together"),
        ("CONFIG_FILE=no/such.toml ./run_train.sh", "no/such.toml, which --job.config_file names"),
        ("CONFIG_FILE= ./run_train.sh", "this starts nothing of torchtitan"),
        ("--module llama3 --config $MINE", r"--config \$MINE is left to a variable"),
        ("--module llama3 --config llama3_9b", "Did you mean llama3_8b"),
        ("--module lama3 --config llama3_8b", "Did you mean llama3_8b"),
        (
            "--module llama3 --config llama3_8b --training.seq_length 4",
            "training.seq_length is no key of torchtitan 0.3.0",
        ),
        ("--module llama3 --config llama3_8b --training.seq_len 4k", "is a whole number, not '4k'"),
        ("--module llama3 --config llama3_8b --compile.enable maybe", "is true or false, not 'maybe'"),
        (
            "--job.config_file no/such.toml --training.seq_len 4",
            "no/such.toml, which --job.config_file names",
        ),
        ("--training.seq_length 4", "Did you mean training.seq_len"),
        (
            "--module llama3 --config llama3_8b --parallelism.pipeline_parallel_degree 2",
            "CUDA graphs, which torchtitan",
        ),
        (
            "--module deepseek_v3 --config deepseek_v3_16b --training.no-disable_cuda_graphs",
            "do not take experts",
        ),
        (
            EP.replace("CAPACITY", "None"),
            "without a bound on their tokens. Try training.disable_cuda_graphs = true, or",
        ),
        (EP.replace("CAPACITY", "1.0").replace("hybridep", "deepep"), "by this dispatcher. Try training.dis"),
        (
            "--module llama3 --config llama3_70b --compile.enable_async_tensor_parallel "
            "--parallelism.tensor_parallel_degree 8",
            "^compile.enable_async_tensor_parallel is torch.compile's",
        ),
        ("import torchtitan\n", "makes no Trainer.Config"),
        (WHOLE + CHANGED.replace("mine", "other"), "mine, other, 2 in all. Name one by '--module FILE.py"),
        ("--module no/such.py --config mine", "no/such.py, which --module names, is no file"),
        (WHOLE.replace('"70B"', "flavor()"), "does not say whose flavour"),
        (
            WHOLE.replace("llama3 import model_registry", "mine import model_registry"),
            "does not say whose flavour",
        ),
        (WHOLE.replace("FullAC.Config()", "OwnAC.Config()"), "activation_checkpoint 'OwnAC' is not followed"),
        (WHOLE.replace("seq_len=8192", "sequence=8192"), "training.sequence is no key of torchtitan 0.3.0"),
        (WHOLE.replace("seq_len=8192", "seq_len='8192'"), "training.seq_len is a whole number"),
        (HEAD + "def mine() -> Trainer.Config:\n    return mine()\n", "mine calls itself"),
        (HEAD + "def mine() -> Trainer.Config:\n    return build()\n", "mine is not followed"),
        (HEAD + "def mine( -> Trainer.Config:\n", "this is no Python"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(text, told):
    with pytest.raises(ValueError, match=told) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_what_syntax_does_not_tell_is_told_and_left_at_its_default():
    job = read_text(WHOLE.replace("local_batch_size=2", "local_batch_size=int(os.environ['B'])"))
    assert job["training.local_batch_size"] == 8
    assert any("Not read, as its code makes it: training.local_batch_size" in note for note in job.notes)


def test_a_call_of_ones_own_function_takes_its_arguments_and_defaults():
    text = CHANGED.replace("config = _base()", "config = _base(6)")
    made = Maker(read_source(text), lambda _: {"()": "Trainer.Config", "training": {}}).make("mine")
    assert made["training"]["local_batch_size"] == 6
    assert made["parallelism"] == {"tensor_parallel_degree": 4}


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (
            "if BIG:\n        config.training.seq_len = 4",
            "Not followed: if BIG: config.training.seq_len = 4 in line",
        ),
        ("for each in X:\n        config.training.seq_len = each", "Not followed: for each in X:"),
        ("config.training.seq_len *= size()", "Not followed: config.training.seq_len *= size() in line"),
        ("helper(config)", "Not followed: helper(config) in line"),
        ('setattr(config.training, "seq_len", 4)', "Not followed: setattr(config.training, 'seq_len', 4)"),
        ("config.training.seq_len, other = 4, 5", "Not followed: config.training.seq_len, other = (4, 5)"),
        ("config.training['seq_len'] = 4", "Not followed: config.training['seq_len'] = 4"),
        ("elsewhere.training.seq_len = 4", "Not followed: elsewhere.training.seq_len = 4"),
        ("config.training = TT", "Not read, as its code makes it: training, as a whole"),
        ("config.training = mine_too(seq_len=4)", "Not read, as its code makes it: training, as a whole"),
        ("config.training = TrainingConfig(4)", "what TrainingConfig is given without names"),
        ("config.training = TrainingConfig(**K)", "Not followed: **K in line"),
        ("config = _base(*K)\n    config.parallelism.tensor_parallel_degree = 4", "Not followed: *K in line"),
        ("config.optimizer = OPT", "Not read, as its code makes it: optimizer. It counts as AdamW"),
        ("config.loss = LOSS", "Not read, as its code makes it: loss. It counts as that of whole sequences"),
        (
            'config.model_spec = model_registry("70B", converters=C)',
            "converters of model_registry. It counts as none",
        ),
        (
            'config.model_spec = model_registry("70B", attn_backend=A)',
            "attn_backend of model_registry. It counts as flex",
        ),
    ],
)
def test_a_statement_or_part_that_is_not_followed_is_told(step, told):
    text = with_step(step)
    added = set(read_text(text).notes) - set(read_text(CHANGED).notes)
    assert any(told in note for note in added)
    assert not any("\n" in note for note in added)
    assert read(text).plan.tp == 4


@pytest.mark.parametrize(
    ("step", "length"),
    [
        ("config.training.seq_len *= 4", 32768),
        ("config.training.seq_len += 8", 8200),
        ("config.training.seq_len //= 2", 4096),
        ("config.training = TrainingConfig(**SMALL)", 1024),
        ("pass", 8192),
    ],
)
def test_what_is_reckoned_of_numbers_or_spread_is_followed(step, length):
    text = with_step(step)
    job = read_text(text.replace("TP = 4", 'TP = 4\nSMALL = {"seq_len": 1024}'))
    assert job["training.seq_len"] == length
    assert not any("Not followed" in note for note in job.notes)


@pytest.mark.parametrize("step", ["TP *= 2", "if BIG:\n    TP = 8", "TP, PP = 1, 2"])
def test_a_constant_that_the_file_changes_elsewhere_is_not_known(step):
    job = read_text(WHOLE.replace("TP = 4\n", f"TP = 4\n{step}\n"))
    assert any(
        "Not read, as its code makes it: parallelism.tensor_parallel_degree" in note for note in job.notes
    )


NVFP4 = "NVFP4LinearConverter.Config(fqns=nvfp4_bf16_tail_fqns(80, FRACTION))"


@pytest.mark.parametrize(
    ("converter", "told"),
    [
        ("Float8LinearConverter.Config(filter_fqns=FF)", "filter_fqns of Float8LinearConverter.Config"),
        ("Float8LinearConverter.Config(filter_fqns=3)", "filter_fqns of Float8LinearConverter.Config"),
        ("Float8LinearConverter.Config(filter_fqns=[FF, 1])", "filter_fqns of Float8LinearConverter.Config"),
        ("Float8LinearConverter.Config(recipe_name=R)", "recipe_name of Float8LinearConverter.Config"),
        ("MXFP8LinearConverter.Config(fqns=FF)", "fqns of MXFP8LinearConverter.Config"),
        (
            "NVFP4LinearConverter.Config(fqns=FF)",
            "fqns of NVFP4LinearConverter.Config. It counts as every layer",
        ),
        (NVFP4.replace("FRACTION", "F"), "fqns of NVFP4LinearConverter.Config. It counts as every layer"),
    ],
)
def test_a_value_of_another_type_is_told_and_never_a_traceback(converter, told):
    text = CHANGED.replace('Float8LinearConverter.Config(filter_fqns=["lm_head"])', converter)
    assert any(told in note for note in read(text, gpu="b200").notes)


@pytest.mark.parametrize("fraction", ["1e400", "1.0", "-0.1"])
def test_a_tail_of_all_layers_is_refused_as_torchtitan_does(fraction):
    text = CHANGED.replace(
        'Float8LinearConverter.Config(filter_fqns=["lm_head"])', NVFP4.replace("FRACTION", fraction)
    )
    with pytest.raises(ValueError, match="leaves no layer of 80 in 4 bits"):
        read(text)
