"""Hugging Face configurations of relatives of Llama, Qwen and DeepSeek-V3: keys that decide, at sizes of their classes.

Sources: configuration classes of transformers 5.24.0, whose defaults these are; MiMo-7B's config.json as
aiconfigurator-core 0.12.0 has it; of Ling, Megatron-Bridge 0.6.2, configuration_bailing_moe_v2.py.
"""

from __future__ import annotations

MIMO_7B = {
    "architectures": ["MiMoForCausalLM"],
    "attention_bias": True,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_window_layers": 32,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 640000,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vocab_size": 151680,
}
ERNIE_03B = {
    "architectures": ["Ernie4_5ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 18,
    "num_key_value_heads": 2,
    "vocab_size": 103424,
}
ERNIE_21B = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_layer_end_index": 27,
    "moe_num_experts": 64,
    "num_attention_heads": 20,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 103424,
}
EXAONE3 = {
    "activation_function": "silu",
    "architectures": ["ExaoneForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_epsilon": 1e-05,
    "num_attention_heads": 32,
    "num_layers": 32,
    "vocab_size": 102400,
}
EXAONE4 = {
    "architectures": ["Exaone4ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "vocab_size": 102400,
}
EXAONE_MOE = EXAONE4 | {
    "architectures": ["ExaoneMoEForCausalLM"],
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 32,
}
HY3 = {
    "architectures": ["HYV3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 13312,
    "mlp_layer_types": ["dense"] + ["sparse"] * 79,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 1,
    "router_scaling_factor": 2.826,
    "vocab_size": 120832,
}
LING_MINI = {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "vocab_size": 157184,
}
SARVAM_30B = {
    "architectures": ["SarvamMoEForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "moe_intermediate_size": 1024,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 19,
    "num_key_value_heads": 4,
    "num_shared_experts": 1,
    "vocab_size": 262144,
}
SARVAM_105B = {
    "architectures": ["SarvamMLAForCausalLM"],
    "head_dim": 576,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 32,
    "num_shared_experts": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "deepseek_yarn"},
    "v_head_dim": 128,
    "vocab_size": 262144,
}
SEED_OSS = {
    "architectures": ["SeedOssForCausalLM"],
    "attention_bias": True,
    "attention_out_bias": False,
    "hidden_size": 4096,
    "intermediate_size": 27648,
    "num_attention_heads": 80,
    "num_hidden_layers": 64,
    "vocab_size": 155136,
}
ARCEE = {
    "architectures": ["ArceeForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
}
JAIS2 = {
    "architectures": ["Jais2ForCausalLM"],
    "hidden_size": 3328,
    "intermediate_size": 26624,
    "num_attention_heads": 26,
    "num_hidden_layers": 32,
    "vocab_size": 150272,
}
INTERNLM3 = {
    "architectures": ["InternLM3ForCausalLM"],
    "bias": True,
    "hidden_size": 4096,
    "intermediate_size": 10240,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "qkv_bias": True,
    "vocab_size": 128512,
}
IQUEST_CODER = {
    "architectures": ["IQuestCoderForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_attention_heads": 40,
    "num_hidden_layers": 80,
    "vocab_size": 76800,
}
GRANITE = {
    "architectures": ["GraniteForCausalLM"],
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12.0,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "logits_scaling": 16.0,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "residual_multiplier": 0.22,
    "vocab_size": 32000,
}
GRANITE_MOE = GRANITE | {
    "architectures": ["GraniteMoeSharedForCausalLM"],
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "shared_intermediate_size": 1024,
}
HUNYUAN = {
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "attention_head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rope_scaling": {"alpha": 1000.0, "type": "dynamic"},
    "rope_theta": 10000.0,
    "vocab_size": 290943,
}
HUNYUAN_MOE = HUNYUAN | {
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "moe_intermediate_size": [11008] * 32,
    "moe_topk": [2] * 32,
    "num_experts": 16,
    "num_shared_expert": [1] * 32,
}
DOTS1 = {
    "architectures": ["Dots1ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": 4608,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 62,
    "vocab_size": 152064,
}
SOLAR_OPEN = {
    "architectures": ["SolarOpenForCausalLM"],
    "hidden_size": 4096,
    "moe_intermediate_size": 1280,
    "n_routed_experts": 128,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "vocab_size": 196608,
}
FLEX_OLMO = {
    "architectures": ["FlexOlmoForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 100352,
}
MINISTRAL3 = {
    "architectures": ["Ministral3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 34,
    "num_key_value_heads": 8,
    "rope_parameters": {
        "factor": 16.0,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
        "rope_type": "yarn",
    },
    "vocab_size": 131072,
}
GPT_BIGCODE = {
    "architectures": ["GPTBigCodeForCausalLM"],
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "vocab_size": 50257,
}
OPT = {
    "architectures": ["OPTForCausalLM"],
    "ffn_dim": 3072,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
STABLELM = {
    "architectures": ["StableLmForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "use_qkv_bias": True,
    "vocab_size": 50304,
}
FALCON = {
    "architectures": ["FalconForCausalLM"],
    "hidden_size": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
    "vocab_size": 65024,
}
YOUTU = {
    "architectures": ["YoutuForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}
