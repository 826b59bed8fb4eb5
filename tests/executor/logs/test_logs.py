"""Logs of each framework read: what they print, and what terminals, launchers and kills make of it."""

from __future__ import annotations

import gzip
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import DATA, bridge_lines, megatron_line, megatron_log, memory_line, nemo_line, timers

from costmodel.plan import Plan
from executor.export import megatron_lm
from executor.logs.plan_text import gpus_of, plan_text
from executor.logs.read import read_log
from executor.logs.summary import median_of, steady, timer_medians

STEPS = [(1, 30.0), (2, 4.1), *((step, 3.5 + 0.01 * (step % 3)) for step in range(3, 41))]


def test_megatron_lm_line_by_line(write):
    log = write(megatron_log(STEPS, tflops=412.3, power=655.0))
    assert log.framework == "Megatron-LM"
    assert [each.step for each in log.iterations] == [step for step, _ in STEPS]
    one = log.iterations[4]
    assert (one.seconds, one.tflops, one.loss, one.global_batch) == (3.52, 412.3, 9.5, 32)
    assert (one.grad_norm, one.power, one.skipped, one.nan, one.span) == (1.25, 655.0, 0, 0, 1)
    assert log.parameters == {(0, 0): 2007629824, (1, 1): 2007633920}
    assert log.memory[0].max_allocated == 30100.25 * 2**20
    assert {each.rank for each in log.memory} == {0, 4}


def test_intervals_of_several_steps_and_old_formats(write):
    old = (
        " iteration       {0}/   500 | consumed samples:  12 | elapsed time per iteration (ms): 812.34 | "
        "learning rate: 1.0E-05 | global batch size:  8 | lm loss: 1.05E+01 | loss scale: 1.0 | "
        "grad norm: 2.1 | number of skipped iterations:   1 | number of nan iterations:   0 |\n"
    )
    log = write("".join(old.format(step) for step in range(10, 110, 10)))
    assert log.iterations[3].span == 10
    assert log.iterations[3].rounding == pytest.approx(0.5e-5)
    assert sum(each.skipped for each in log.iterations) == 10
    assert steady(log).num_steps == 90


@pytest.mark.parametrize("option", ["minmax", "max", "all"])
def test_timers_of_every_option(write, option):
    times = {"forward-backward": (3.0, 3.2), "all-grads-sync": (0.01, 0.21), "optimizer": (0.05, 0.06)}
    lines = []
    for step in range(1, 12):
        lines += [megatron_line(step, 3.5), *timers(times, option)]
        lines.insert(-2, "[rank3]: some other rank's remark")
    log = write("\n".join(lines))
    found = timer_medians(log, steady(log))
    for name, (low, high) in times.items():
        assert found[name][1] == pytest.approx(high)
        assert found[name][0] == (None if option == "max" else pytest.approx(low))


def test_bridge_is_known_by_its_own_line_and_counts_once(write):
    lines = [line for step in range(1, 20) for line in bridge_lines(step, 12.34, 812.3)]
    log = write("\n".join(lines))
    assert log.framework == "Megatron-Bridge"
    assert len(log.iterations) == 19
    assert steady(log).seconds == pytest.approx(12.34)
    assert median_of(log, "tflops", steady(log)) == 812.3


def test_nemo_lines(write):
    lines = [
        nemo_line(step, 46.84 if step > 1 else 120.0, TFLOPS_per_GPU=812.345, max_memory_allocated=8.39e10)
        for step in range(1, 31)
    ]
    log = write("\n".join(lines))
    assert log.framework == "NeMo"
    assert [each.step for each in log.iterations] == list(range(1, 31))
    found = steady(log)
    assert found.seconds == 46.84
    assert found.rounding == pytest.approx(0.005)
    assert found.left_out["warm-up"] == 1
    assert log.memory[-1].max_allocated == 8.39e10
    assert log.iterations[-1].loss == 11.03


def test_the_guides_wrapped_example(write):
    """The example of the AWS recipes, whose one line stands on three."""
    text = (
        "Training epoch 1, iteration 10/999 | lr: 4.498e-06 | global_batch_size: 512 | \n"
        "global_step: 29 | reduced_train_loss: 11.03 | train_step_timing in s: 46.84 | \nconsumed_samples: 15360\n"
    )
    (one,) = write(text).iterations
    assert (one.step, one.seconds, one.loss, one.global_batch) == (30, 46.84, 11.03, 512)


def test_a_drawn_bar_counts_every_step_once(write):
    bar = (
        "\rEpoch 0: :  {0}%|##  | {0}/100 [00:46<10:01, reduced_train_loss=9.120, global_step={1}.0, "
        "consumed_samples=64.0, train_step_timing in s=2.{2}]"
    )
    text = "".join(bar.format(step, step - 1, step % 2) * 3 for step in range(1, 31))
    log = write(text)
    assert len(log.iterations) == 30
    assert log.iterations[5].seconds in (2.0, 2.1)


@given(
    st.lists(
        st.sampled_from(["", "12: ", "[default3]:", "[rank0]: ", "\x1b[32m", "[1,0]<stdout>: ", " 3: 0: "]),
        min_size=12,
        max_size=12,
    ),
    st.sampled_from(["\n", "\r\n", "\r", "\x1b[0m\n"]),
)
def test_prefixes_and_colours_change_nothing(tmp_path_factory, prefixes, end):
    path = tmp_path_factory.mktemp("logs") / "train.log"
    lines = [megatron_line(step, 3.5 + step / 100) for step in range(1, 13)]
    path.write_text(end.join(prefix + line for prefix, line in zip(prefixes, lines, strict=True)))
    log = read_log(path)
    assert [(each.step, each.seconds) for each in log.iterations] == [
        (step, pytest.approx(3.5 + step / 100, abs=1e-4)) for step in range(1, 13)
    ]


@given(st.integers(min_value=0, max_value=60_000))
def test_a_log_cut_anywhere_still_reads_or_says_why(tmp_path_factory, cut):
    text = megatron_log(STEPS, dump="llama3-8b-tp2-pp2-vpp2-dp4")[:cut]
    path = tmp_path_factory.mktemp("logs") / "train.log"
    path.write_text(text)
    if re.search(r"iteration \(ms\): [\d.]+ \|", text):
        # The last line may be cut, those before it are whole; a time that was cut does not count.
        found = read_log(path).iterations
        assert len(found) == len(re.findall(r"iteration \(ms\): [\d.]+ \|", text))
        assert [(each.step, each.seconds) for each in found] == STEPS[: len(found)]
    else:
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            read_log(path)


def test_ranks_that_print_between_and_twice_do_not_count_twice(write):
    lines = []
    for step in range(1, 20):
        lines += [megatron_line(step, 3.5), "3: NCCL INFO comm 0x1 rank 3", megatron_line(step, 3.5)]
    late = [*lines, megatron_line(12, 3.5)]
    assert len(write("\n".join(lines)).iterations) == 19
    assert len(write("\n".join(late)).iterations) == 19


def test_a_restart_replaces_the_steps_it_repeats(write):
    lines = [megatron_line(step, 3.5) for step in range(1, 20)]
    lines += [megatron_line(step, 4.5, loss=8.0) for step in range(11, 30)]
    log = write("\n".join(lines))
    assert log.restarts == [11]
    assert [each.step for each in log.iterations] == list(range(1, 30))
    assert log.iterations[11].seconds == 4.5


# torchtitan 0.2.2, components/metrics.py, as ConsoleLogger colours it.
TITAN = (
    b"[rank0]:[titan] 2026-03-01 10:00:05,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  9.1042  "
    b"\x1b[38;2;180;60;0mgrad_norm:  1.2000  \x1b[38;2;54;234;195mmemory: 47.01GiB(59.35%)  "
    b"\x1b[34mtps: 7,501  \x1b[36mtflops: 435.12  \x1b[35mmfu: 44.00%\x1b[39m\n"
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n\n", "holds no line of text"),
        (b"\x7fELF" + bytes(range(32)) * 200, "is binary"),
        (b"Solver started\nEpoch 1 loss 0.3\n", "no training log that is known here"),
        (TITAN, "a log of torchtitan: .* Give a trace of its run by torch.profiler"),
        (
            TITAN + b"torch.OutOfMemoryError: CUDA out of memory.\n",
            "of torchtitan tells of trouble: out of memory",
        ),
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", "out of memory"),
        ((DATA / "arguments-deepseek-v3-pp16-ep16.txt").read_bytes(), "without one iteration"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "some.log"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as refused:
        read_log(path)
    assert "\n" not in str(refused.value)


def test_a_small_packed_log_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    """Of one of less than a megabyte nothing was: `holds no line of text`. Members one after another are one log."""
    text = [megatron_line(step, 3.5 + step / 1000) for step in range(1, 60)]
    packed = gzip.compress("\n".join(text).encode())
    path = tmp_path / "train.log.gz"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    assert 10 < len(read_log(path).iterations) < 59
    path.write_bytes(gzip.compress("\n".join(text[:30]).encode() + b"\n") + gzip.compress(text[30].encode()))
    assert len(read_log(path).iterations) == 31


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path, tmp_path / "none.log"):
        with pytest.raises(ValueError, match=r"folder|no file"):
            read_log(path)


def test_packed_logs_and_long_lines(tmp_path):
    path = tmp_path / "train.log.gz"
    text = megatron_log(STEPS) + "x" * 3_000_000 + "\n" + megatron_line(41, 3.5)
    path.write_bytes(gzip.compress(text.encode()))
    assert read_log(path).last_step == 41


def test_a_packed_log_that_was_cut_reads_as_far_as_it_goes(tmp_path):
    path = tmp_path / "train.log.gz"
    lines = [megatron_line(step, 3.5 + random.Random(step).random()) for step in range(1, 20_000)]
    packed = gzip.compress("\n".join(lines).encode())
    path.write_bytes(packed[: len(packed) // 2])
    assert 1000 < read_log(path).last_step < 19_999
    middle = len(packed) // 2
    for broken in (packed[:2] + b"no gzip at all", packed[:middle] + bytes(400) + packed[middle + 400 :]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="no whole gzip file"):
            read_log(path)


@pytest.mark.parametrize(
    ("name", "plan", "model"),
    [
        (
            "llama3-8b-tp2-pp2-vpp2-dp4",
            {"tp": 2, "pp": 2, "vpp": 2, "dp": 4, "sequence_parallel": True, "overlap_grad_reduce": True},
            "llama3-8b",
        ),
        (
            "deepseek-v3-pp16-ep16",
            {"tp": 1, "pp": 16, "dp": 16, "ep": 16, "first_stage_layers": 4, "last_stage_layers": 1},
            "deepseek-v3",
        ),
    ],
)
def test_the_dump_of_the_real_parser_is_the_plan(write, name, plan, model):
    """Dumps as Megatron-LM 0.19.2 prints the arguments that its own parser derived from our exports."""
    log = write(megatron_log(STEPS, dump=name))
    target, text = plan_text(log)
    found = megatron_lm.read(text)
    assert target == "megatron-lm"
    assert found.model == model
    read = Plan(**found.knobs)
    assert {knob: getattr(read, knob) for knob in plan} == plan
    assert gpus_of(log) == read.world
    assert read.cpu_binding == Plan().cpu_binding  # which a log does not tell
    assert found.workload["seq_len"] == 4096


@pytest.mark.parametrize("told", ["None", "32000"])
def test_the_tokenizers_vocabulary_is_taken_where_the_dump_has_none(write, told):
    text = megatron_log([(1, 1.0)], dump="llama3-8b-tp2-pp2-vpp2-dp4")
    text = re.sub(r"(?m)^(  vocab_size \.+ ).*$", rf"\g<1>{told}", text)
    log = write(text + " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n")
    assert log.vocab == 50257
    assert f"--vocab-size '{50257 if told == 'None' else told}'" in plan_text(log)[1]


def test_the_summary_and_the_yaml_of_megatron_bridge(write):
    summary = [
        "=" * 70,
        "Configuration Summary (Non-Default Values vs Megatron Core)",
        "=" * 70,
        "",
        "[model] Non-default values (vs Mcore TransformerConfig):",
        "  attention_backend: <AttnBackend.auto: 5>  (Mcore default: <AttnBackend.flash: 1>)",
        "  pipeline_model_parallel_size: 2  (Mcore default: 1)",
        "  tensor_model_parallel_size: 4  (Mcore default: 1)",
        "",
        "-" * 70,
        "Other Configuration Values:",
        "-" * 70,
        "",
        "[train]:",
        "  global_batch_size: 128",
        "  micro_batch_size: 2",
        "",
        "=" * 70,
    ]
    lines = [*summary, *(line for step in range(1, 9) for line in bridge_lines(step, 2.5, 500.0))]
    log = write("\n".join(lines))
    target, text = plan_text(log)
    assert target == "megatron-bridge"
    assert "model.tensor_model_parallel_size=4" in text
    assert "model.attention_backend=auto" in text
    assert len(log.iterations) == 8


def test_a_yaml_ends_where_megatrons_indented_lines_begin(write):
    """` [date] iteration ...` and ` > number of parameters` begin with a space as the inside of a mapping does."""
    yaml = ["_target_: megatron.bridge.training.config.ConfigContainer", "model:", "  num_layers: 32"]
    after = [" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 5"]
    for between in ([], after):
        log = write(
            "\n".join([*yaml, *between, *(bridge_lines(1, 2.5, 500.0)), *bridge_lines(2, 2.5, 500.0)])
        )
        assert log.yaml == yaml
        assert [each.step for each in log.iterations] == [1, 2]
        assert [each.tflops for each in log.iterations] == [500.0, 500.0]


def test_a_traceback_is_told_by_what_it_ends_with(write):
    raised = "RuntimeError: Rank 12, iteration 35: Unexpected result nan (message='found NaN in local loss')"
    trace = ["Traceback (most recent call last):", '  File "pretrain_gpt.py", line 300, in <module>', raised]
    later = ["Traceback (most recent call last):", "torch.distributed.DistBackendError: NCCL error"]
    log = write("\n".join([*(megatron_line(step, 2.0) for step in range(1, 9)), *trace, *later]))
    assert log.counted["traceback"] == 2
    assert log.examples["traceback"] == raised


def test_the_number_of_microbatches_is_read(write):
    told = "setting number of microbatches to constant 16"
    assert write("\n".join([told, megatron_line(1, 2.0), megatron_line(2, 2.0)])).num_microbatches == 16


def test_nccl_tells_the_network_and_the_variables(write):
    lines = [
        "node1:123:456 [0] NCCL INFO NET/IB : No device found.",
        "node1:123:456 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "node1:123:456 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0",
        "node1:123:456 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "node1:123:456 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.",
        "+ export CUDA_DEVICE_MAX_CONNECTIONS=1",
    ]
    log = write("\n".join([*lines, megatron_log(STEPS)]))
    assert log.counted["nccl socket channel"] == 1
    assert log.counted["nccl no device"] == 1
    assert log.variables["NCCL_NVLS_ENABLE"] == "0"
    assert log.variables["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_the_straggler_detector_is_read(write):
    line = (
        "[2026-03-04 10:00:00] | MnRtt/Rnk: 3021.11ms/4 | MxRtt/Rnk: 3444.20ms/11 | MnPwr/Rnk: 540.00W/2 | "
        "MnClk/Rnk: 1305.00MHz/11 | MxClk/Rnk: 1980.00MHz/0 | MnEtpt/Rnk: 401.00TF/11 | MxEtpt/Rnk: 455.00TF/4"
    )
    (found,) = write("\n".join([line, megatron_log(STEPS)])).stragglers
    assert found["MxRtt/Rnk"] == (3444.2, 11)
    assert found["MnClk/Rnk"] == (1305.0, 11)
    assert found["MnEtpt/Rnk"] == (401.0, 11)


def test_memory_of_a_rank_is_found_between_prefixes(write):
    log = write("\n".join([megatron_log(STEPS), "7: " + memory_line(7, 2, 1.0, 2.0, 3.0)]))
    assert log.memory[-1].rank == 7
