"""Model specs from a local Hugging Face `config.json`: one mapping per architecture, no network.

References: the configuration classes of huggingface/transformers. Keys absent from a file take the default
of its class where the class has one that matters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from costmodel.huggingface import dense, experts, hybrid, windows
from costmodel.huggingface import shared_experts as shared
from costmodel.huggingface.values import Config
from costmodel.model_file import from_mapping, nearest, read_text
from costmodel.model_spec import ModelSpec


def read_hf_config(path: Path) -> ModelSpec:
    """A model from a config.json. ValueError in one line that names the file and the key."""
    text = read_text(path)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} is not valid JSON: {reason[:120]}. Give a Hugging Face config.json."
        ) from None
    try:
        return _convert(config, path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_hf_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """A model called `name` from the contents of a config.json. ValueError in one line that names the key."""
    values, architecture = _values(dict(config))
    return from_mapping(values | {"name": name, "source": f"its Hugging Face configuration ({architecture})"})


def _convert(config: Any, path: Path) -> ModelSpec:
    if not isinstance(config, dict):
        raise ValueError("the file is not a JSON object. Give a Hugging Face config.json.")
    values, architecture = _values(config)
    folder = path.resolve().parent.name if path.name == "config.json" else path.stem
    return from_mapping(values | {"name": folder or "model", "source": f"{path.name} ({architecture})"})


def _values(config: Config) -> tuple[Config, str]:
    """Fields of the model that a configuration describes, and its architecture."""
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if architectures is None:
        name = _MODEL_TYPES.get(str(config.get("model_type")))
    if not isinstance(name, str) or name not in ARCHITECTURES:
        if isinstance(name, str) and name in _NOT_TOLD:
            raise ValueError(
                f"{name} is not supported: {_NOT_TOLD[name]}. "
                "A model TOML can tell one of its size with layers of ours."
            )
        said = config.get("model_type")
        kind = f" with model_type {said!r:.60}" if architectures is None and said is not None else ""
        near = nearest(name, list(ARCHITECTURES), "For") if isinstance(name, str) else ""
        raise ValueError(
            f"architectures {architectures!r:.80}{kind} is not supported.{near} {len(ARCHITECTURES)} classes are, such "
            f"as {', '.join(_EXAMPLES)}; docs/extending.md lists them. Others can be written as a model TOML."
        )
    return ARCHITECTURES[name](config), name


def language_part(convert: Callable[[Config], Config]) -> Callable[[Config], Config]:
    """The language model of a file that describes an encoder of images beside it."""

    def read(config: Config) -> Config:
        # Qwen2-VL's earlier files have the language model's keys beside vision_config.
        text = config.get("text_config", config if "hidden_size" in config else None)
        if not isinstance(text, dict):
            raise ValueError("text_config is missing. Give it in the file.")
        tied = (
            {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
        )
        values = convert(tied | text)
        left_out = ("the encoder of images", values.get("left_out", ""))
        return values | {"left_out": ", ".join(each for each in left_out if each)}

    return read


ARCHITECTURES: dict[str, Callable[[Config], Config]] = {
    "LlamaForCausalLM": dense.llama,
    "MistralForCausalLM": dense.mistral,
    "Qwen2ForCausalLM": dense.qwen2,
    "Qwen3ForCausalLM": dense.qwen3,
    "GemmaForCausalLM": dense.gemma,
    "Gemma2ForCausalLM": dense.gemma2,
    "Gemma3ForCausalLM": dense.gemma3,
    "Phi3ForCausalLM": dense.phi3,
    "Olmo2ForCausalLM": dense.olmo2,
    "Olmo3ForCausalLM": dense.olmo3,
    "SmolLM3ForCausalLM": dense.smollm3,
    "GlmForCausalLM": dense.glm,
    "Glm4ForCausalLM": dense.glm4,
    "NemotronForCausalLM": dense.nemotron,
    "Starcoder2ForCausalLM": dense.starcoder2,
    "GPT2LMHeadModel": dense.gpt2,
    "GPTNeoXForCausalLM": dense.gpt_neox,
    "MiMoForCausalLM": dense.mimo,
    "Ernie4_5ForCausalLM": dense.ernie,
    "ExaoneForCausalLM": dense.exaone,
    "Exaone4ForCausalLM": dense.exaone4,
    "InternLM3ForCausalLM": dense.internlm3,
    "IQuestCoderForCausalLM": dense.iquestcoder,
    "SeedOssForCausalLM": dense.seed_oss,
    "ArceeForCausalLM": dense.arcee,
    "Jais2ForCausalLM": dense.jais2,
    "GraniteForCausalLM": dense.granite,
    "HunYuanDenseV1ForCausalLM": dense.hunyuan,
    "Ministral3ForCausalLM": dense.ministral3,
    "GPTBigCodeForCausalLM": dense.gpt_bigcode,
    "OPTForCausalLM": dense.opt,
    "StableLmForCausalLM": dense.stablelm,
    "FalconForCausalLM": dense.falcon,
    "YoutuForCausalLM": experts.youtu,
    "MixtralForCausalLM": experts.mixtral,
    "Qwen2MoeForCausalLM": experts.qwen2_moe,
    "Qwen3MoeForCausalLM": experts.qwen3_moe,
    "OlmoeForCausalLM": experts.olmoe,
    "DeepseekV2ForCausalLM": experts.deepseek,
    "DeepseekV3ForCausalLM": experts.deepseek,
    "DeepseekV32ForCausalLM": experts.deepseek_v32,
    "Glm4MoeLiteForCausalLM": experts.glm4_moe_lite,
    "GlmMoeDsaForCausalLM": experts.glm_moe_dsa,
    "DeepseekV4ForCausalLM": experts.deepseek_v4,
    "Qwen3NextForCausalLM": experts.gated_delta_moe,
    "Qwen3_5ForCausalLM": experts.gated_delta,
    "Qwen3_5MoeForCausalLM": experts.gated_delta_moe,
    "Glm4MoeForCausalLM": experts.glm4_moe,
    "GptOssForCausalLM": experts.gpt_oss,
    "MiniMaxM2ForCausalLM": experts.minimax_m2,
    "MiniMaxM3ForCausalLM": experts.minimax_m3,
    "Llama4ForCausalLM": experts.llama4,
    "HYV3ForCausalLM": shared.hy_v3,
    "BailingMoeV2ForCausalLM": shared.bailing_moe_v2,
    "ExaoneMoeForCausalLM": shared.exaone_moe,
    "ExaoneMoEForCausalLM": shared.exaone_moe,
    "Ernie4_5_MoeForCausalLM": shared.ernie_moe,
    "SarvamMoEForCausalLM": shared.sarvam_moe,
    "SarvamMLAForCausalLM": shared.sarvam_mla,
    "Dots1ForCausalLM": shared.dots1,
    "SolarOpenForCausalLM": shared.solar_open,
    "HunYuanMoEV1ForCausalLM": shared.hunyuan_moe,
    "GraniteMoeForCausalLM": shared.granite_moe,
    "GraniteMoeSharedForCausalLM": shared.granite_moe,
    "FlexOlmoForCausalLM": shared.flex_olmo,
    "MiMoV2FlashForCausalLM": windows.mimo_v2_flash,
    "Step3p5ForCausalLM": windows.step3p5,
    "Gemma4ForCausalLM": windows.gemma4,
    "NemotronHForCausalLM": hybrid.nemotron_h,
    "Gemma3ForConditionalGeneration": language_part(dense.gemma3),
    "Gemma4ForConditionalGeneration": language_part(windows.gemma4),
    "Mistral3ForConditionalGeneration": language_part(dense.mistral),
    "Qwen2VLForConditionalGeneration": language_part(dense.qwen2_vl),
    "Qwen2_5_VLForConditionalGeneration": language_part(dense.qwen2_vl),
    "Qwen3VLForConditionalGeneration": language_part(dense.qwen3_vl),
    "Qwen3VLMoeForConditionalGeneration": language_part(experts.qwen3_vl_moe),
    "Qwen3_5ForConditionalGeneration": language_part(experts.gated_delta),
    "Qwen3_5MoeForConditionalGeneration": language_part(experts.gated_delta_moe),
    "Glm4vMoeForConditionalGeneration": language_part(experts.glm4_moe),
    "KimiVLForConditionalGeneration": language_part(experts.deepseek),
    "KimiK25ForConditionalGeneration": language_part(experts.deepseek),
    "Llama4ForConditionalGeneration": language_part(experts.llama4),
    "MiniMaxM3SparseForConditionalGeneration": language_part(experts.minimax_m3),
    "Step3p7ForConditionalGeneration": language_part(windows.step3p5),
}
# What layers of known classes have that ours cannot say. Sources: huggingface/transformers 5.24 and, of DeciLM,
# Megatron-Bridge 0.6.2, llama_nemotron_bridge.py.
_EXAMPLES = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM")
_ONE_NORM = "its attention and MLP stand side by side behind one norm"
_NOT_TOLD = {
    "ApertusForCausalLM": "its activation, xIELU, is none of ours",
    "CohereForCausalLM": _ONE_NORM,
    "Cohere2ForCausalLM": _ONE_NORM,
    "DeciLMForCausalLM": "its layers differ in their widths and heads (block_configs), and some have no attention",
    "GPTJForCausalLM": _ONE_NORM,
    "KimiK3ForConditionalGeneration": "Kimi delta attention is none of ours",
    "KimiLinearForCausalLM": "Kimi delta attention is none of ours",
    "PhiForCausalLM": _ONE_NORM,
    "OlmoForCausalLM": "its norms have no weights",
}
# Files that training scripts write may name the type alone, as "qwen3_moe".
_MODEL_TYPES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "bailing_moe_v2": "BailingMoeV2ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "exaone_moe": "ExaoneMoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mimo": "MiMoForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "sarvam_mla": "SarvamMLAForCausalLM",
    "sarvam_moe": "SarvamMoEForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
}
