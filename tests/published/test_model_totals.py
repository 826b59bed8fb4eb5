"""Parameter totals to the digit against an independent count, and against what publishers print.

The table is the count of `shared/data/models.json` (total, active per token), made by another script from the
framework's own configuration classes; padding and multi-token prediction left out.
"""

from __future__ import annotations

import re

import pytest

from costmodel.model_registry import list_models, load_model
from costmodel.parameter_counts import count_parameters

COUNTED = [
    ("llama3-8b", 8_030_261_248, 8_030_261_248),
    ("llama3-70b", 70_553_706_496, 70_553_706_496),
    ("llama3.1-405b", 405_853_388_800, 405_853_388_800),
    ("llama2-7b", 6_738_415_616, 6_738_415_616),
    ("llama2-13b", 13_015_864_320, 13_015_864_320),
    ("llama2-70b", 68_976_648_192, 68_976_648_192),
    ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
    ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520),
    ("qwen3-8b", 8_190_735_360, 8_190_735_360),
    ("deepseek-v3", 671_026_419_200, 37_552_297_472),
    ("deepseek-v2", 235_741_434_880, 21_375_800_320),
    ("moonlight-16b-a3b", 15_960_118_400, 2_914_784_384),
    ("gpt-oss-120b", 116_829_156_672, 5_711_982_912),
    ("gpt-oss-20b", 20_914_757_184, 4_187_440_704),
    ("kimi-k2", 1_026_408_232_448, 32_861_500_928),
    ("nemotronh-8b", 8_100_852_736, 8_100_852_736),
    ("nemotronh-47b", 46_791_554_816, 46_791_554_816),
    ("nemotronh-56b", 56_324_350_464, 56_324_350_464),
    ("nemotron3-nano-30b-a3b", 31_577_940_288, 3_580_076_352),
    ("nemotron3-super-120b-a12b", 120_668_707_840, 12_770_237_440),
    ("nemotron3-ultra-550b-a55b", 549_308_993_536, 56_058_843_136),
    ("nemotron3.5-lightning-30b-a3b", 31_577_937_344, 3_580_073_408),
    ("nemotron3-nano-4b", 3_973_556_832, 3_973_556_832),
    ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
    ("mixtral-8x22b", 140_630_071_296, 39_161_468_928),
    ("nemotron-8b", 8_540_135_424, 8_540_135_424),
    ("nemotron-22b", 21_266_116_608, 21_266_116_608),
    ("nemotron4-15b", 15_628_775_424, 15_628_775_424),
    ("nemotron4-340b", 341_029_195_776, 341_029_195_776),
    ("llama4-scout", 107_769_861_120, 17_172_894_720),
    ("llama4-maverick", 400_711_848_960, 17_184_691_200),
    ("gpt3-126m", 125_226_240, 125_226_240),
    ("gpt3-5b", 5_047_365_632, 5_047_365_632),
    ("gpt3-20b", 20_256_221_184, 20_256_221_184),
    ("gpt3-40b", 39_088_316_416, 39_088_316_416),
    ("gpt3-175b", 174_604_259_328, 174_604_259_328),
    ("megatron-22b", 22_074_273_792, 22_074_273_792),
    ("megatron-175b", 174_615_846_912, 174_615_846_912),
    ("megatron-530b", 529_600_819_200, 529_600_819_200),
    ("megatron-1t", 1_008_038_758_400, 1_008_038_758_400),
    ("mcore-gpt-1.7b", 1_753_862_144, 1_753_862_144),
    ("mcore-gpt-7.1b", 7_131_922_432, 7_131_922_432),
    ("mcore-gpt-16b", 16_133_861_376, 16_133_861_376),
    ("mcore-gpt-32b", 31_507_904_512, 31_507_904_512),
    ("mcore-gpt-70b", 69_835_735_040, 69_835_735_040),
    ("mcore-gpt-119b", 118_501_355_520, 118_501_355_520),
    ("mcore-gpt-177b", 177_233_092_608, 177_233_092_608),
    ("mcore-gpt-314b", 313_620_201_472, 313_620_201_472),
    ("mcore-gpt-462b", 461_542_920_192, 461_542_920_192),
    ("narayanan-gpt-1.7b", 1_652_230_656, 1_652_230_656),
    ("narayanan-gpt-3.6b", 3_562_168_320, 3_562_168_320),
    ("narayanan-gpt-7.5b", 7_467_786_240, 7_467_786_240),
    ("narayanan-gpt-18b", 18_449_756_160, 18_449_756_160),
    ("narayanan-gpt-39b", 39_096_041_472, 39_096_041_472),
    ("narayanan-gpt-76b", 76_050_739_200, 76_050_739_200),
    ("narayanan-gpt-145b", 145_622_261_760, 145_622_261_760),
    ("narayanan-gpt-310b", 310_130_540_544, 310_130_540_544),
    ("narayanan-gpt-530b", 529_600_819_200, 529_600_819_200),
    ("narayanan-gpt-1t", 1_008_038_758_400, 1_008_038_758_400),
    ("megascale-175b", 174_773_133_312, 174_773_133_312),
    ("megascale-530b", 529_862_963_200, 529_862_963_200),
    ("mpt-125m", 125_311_488, 125_311_488),
    ("mpt-350m", 355_985_408, 355_985_408),
    ("mpt-760m", 760_470_528, 760_470_528),
    ("mpt-1b", 1_315_950_592, 1_315_950_592),
    ("mpt-3b", 2_651_837_440, 2_651_837_440),
    ("mpt-7b", 6_658_859_008, 6_658_859_008),
    ("mpt-13b", 12_853_954_560, 12_853_954_560),
    ("mpt-30b", 29_975_214_080, 29_975_214_080),
    ("mpt-70b", 64_862_437_376, 64_862_437_376),
    ("grok1-314b", 316_454_737_920, 84_526_503_936),
    ("qwen2.5-7b", 7_615_616_512, 7_615_616_512),
    ("qwen2.5-32b", 32_763_876_352, 32_763_876_352),
    ("mixtral-8x22b-g8t8", 140_649_338_880, 22_269_302_784),
    ("llama3-8x70b", 465_159_069_696, 126_930_395_136),
    # Parameters of transformers 5.24.0's Gemma4ForCausalLM on torch's meta device; the idle experts' by hand.
    ("gemma4-31b", 30_697_345_280, 30_697_345_280),
    ("gemma4-26b-a4b", 25_233_141_760, 3_822_530_560),
    # Parameters and balancing biases of transformers 5.24.0's classes on torch's meta device; the idle experts' by hand.
    ("mimo-v2-flash", 308_778_780_864, 15_445_936_320),
    ("step3.5-flash", 196_956_130_368, 11_987_323_968),
    ("step3.7-flash", 196_956_130_368, 11_987_323_968),
]
# Printed totals that no parameter count meets, and why.
PRINTED_OTHERWISE = {
    "llama4-scout": "109B has the vision tower, the file the text tower alone",
    "glm4.5-355b": "352.8B without its layer of multi-token prediction, 356.8B with it",
    "grok1-314b": "314B is the original, the benchmark changed the vocabulary",
    "nemotron3.5-lightning-30b-a3b": "30B names its family; the count is that of Nemotron 3 Nano, 31.6B",
}


@pytest.mark.parametrize(("name", "total", "active"), COUNTED)
def test_counts_to_the_digit(name, total, active):
    count = count_parameters(load_model(name))
    assert (count.total, count.active) == (total, active)


def test_table_has_every_counted_model():
    """Not counted there: hand-written models, compressed attention, and the gated delta net of Qwen3-Next."""
    counted = {name for name in list_models() if load_model(name).params_computed is not None}
    assert {name for name, _, _ in COUNTED} == counted


def test_files_hold_the_independent_count():
    for name, total, active in COUNTED:
        spec = load_model(name)
        assert (spec.params_computed, spec.params_active_computed) == (total, active)


def test_parameters_of_every_model_are_known():
    assert [name for name in list_models() if not load_model(name).parameters_known] == []


@pytest.mark.parametrize("name", [name for name in list_models() if load_model(name).params_published])
def test_agrees_with_printed_total(name):
    """Within one unit of the last printed digit: names cut as often as they round (405B is 405.85e9)."""
    spec = load_model(name)
    if not spec.parameters_known:
        return
    text = re.search(r"\((3[\d.]+B)\)", spec.params_printed) or re.match(r"([\d.]+[BT])", spec.params_printed)
    number = text[1]
    unit = {"B": 1e9, "T": 1e12}[number[-1]]
    last_digit = unit * 10.0 ** -len(number[:-1].partition(".")[2])
    agrees = abs(count_parameters(spec).total - spec.params_published) <= last_digit
    assert agrees == (name not in PRINTED_OTHERWISE)


def test_qwen3_next_with_and_without_mtp():
    """Hugging Face Qwen/Qwen3-Next-80B-A3B-Instruct: 81,324,862,720 with its multi-token-prediction layer."""
    count = count_parameters(load_model("qwen3-next-80b-a3b"))
    assert count.total == 79_674_391_296
    assert count.total + count.mtp == 81_324_862_720


def test_deepseek_v3_mtp():
    """README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: 11.5B of its own besides shared embedding and head."""
    assert count_parameters(load_model("deepseek-v3")).mtp == pytest.approx(11.5e9, rel=0.01)


def test_qwen2_57b():
    """arXiv 2407.10671 names it 57B with 14B active; the counted 57.4B and 14.2B bear the sizes out."""
    count = count_parameters(load_model("qwen2-57b-a14b"))
    assert (round(count.total / 1e8), round(count.active / 1e8)) == (574, 142)


def test_narayanan2021_equation2():
    """arXiv 2104.04473 eq. 2: P = 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)); ours adds the final norm, 2h."""
    for name in list_models():
        if not name.startswith("narayanan-gpt"):
            continue
        spec = load_model(name)
        layers, h, s = spec.num_layers, spec.hidden, spec.learned_positions
        printed = 12 * layers * h * h + 13 * layers * h + (spec.vocab + s) * h
        assert count_parameters(spec).total == printed + 2 * h
