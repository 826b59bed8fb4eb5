"""Parameters of a model: one formula per kind of layer. `costmodel.parameter_counts` sums them over a whole model.

The formulas take `Amount`s, so that memory and communication use the same ones with symbols. Flags
(`gated`, `bias`, ...) are 0 or 1. Unit: parameters [1]. Multi-token-prediction layers are counted
apart, and the vocabulary is the true one: padding depends on the tensor-parallel size.
"""

from __future__ import annotations

from costmodel.amount import Amount
from costmodel.work.csa import INDEX_PROJECTIONS, KEY_PROJECTIONS
from costmodel.work.dsa import index_weights


def norm_parameters(width: Amount, weights: Amount = 1) -> Amount:
    """Parameters of one normalisation. [1]

    Parameters
    ----------
    width
        Elements normalised, usually h. [1]
    weights
        1 for RMSNorm (scale), 2 for LayerNorm (scale and shift). [1]

    References
    ----------
    B. Zhang, R. Sennrich, NeurIPS 2019, arXiv:1910.07467.
    """
    return weights * width


def embedding_parameters(h: Amount, vocab: Amount, positions: Amount = 0) -> Amount:
    """Parameters of the token table and, where learned, of the position table. [1]

    Parameters
    ----------
    h
        Hidden size. [1]
    vocab
        Tokens in the vocabulary, padded or not as the caller means. [1]
    positions
        Learned positions; 0 for rotary. [1]

    References
    ----------
    D. Narayanan et al., SC 2021, eq. 2, arXiv:2104.04473: (V + s) h.
    """
    return (vocab + positions) * h


def attention_parameters(
    h: Amount,
    a: Amount,
    k: Amount,
    d: Amount,
    *,
    qkv_bias: Amount = 0,
    linear_bias: Amount = 0,
    qk_norm: Amount = 0,
    output_gate: Amount = 0,
    sink: Amount = 0,
    v: Amount | None = None,
    tied_values: Amount = 0,
) -> Amount:
    """Parameters of grouped-query attention: query, key, value and output projections. [1]

    Parameters
    ----------
    h, a, k, d
        Hidden size, query heads, key-value heads (k = a is multi-head attention), head size. [1]
    qkv_bias, linear_bias
        1 when the QKV, or the output, projection has a bias.
    qk_norm
        Weights of the norm over each head of queries and of keys: 0, 1 (RMSNorm) or 2 (LayerNorm).
    output_gate
        Columns that the query projection also yields as a gate of each head: its values' size (Qwen3-Next), or 1
        (Step-3.5). [1]
    sink
        1 when each head has a learned softmax sink (gpt-oss).
    v
        Head size of values where it is another than d (MiMo-V2). [1]
    tied_values
        1 when the key projection makes values too (Gemma 4).

    Examples
    --------
    >>> attention_parameters(4096, 32, 8, 128)
    41943040

    References
    ----------
    J. Ainslie et al., EMNLP 2023, arXiv:2305.13245.
    """
    v = d if v is None else v
    qkv_width = a * (d + output_gate) + k * (d + (1 - tied_values) * v)
    projections = h * qkv_width + a * v * h
    return projections + qkv_bias * qkv_width + linear_bias * h + 2 * d * qk_norm + sink * a


def mla_parameters(
    h: Amount,
    a: Amount,
    *,
    q_lora_rank: int,
    kv_lora_rank: Amount,
    qk_head_dim: Amount,
    qk_pos_emb_head_dim: Amount,
    v_head_dim: Amount,
    latent_norm: Amount = 1,
) -> Amount:
    """Parameters of multi-head latent attention. [1]

    Parameters
    ----------
    h, a
        Hidden size, heads. [1]
    q_lora_rank
        Width of the query latent; 0 when queries are projected directly. [1]
    kv_lora_rank
        Width of the shared key-value latent. [1]
    qk_head_dim, qk_pos_emb_head_dim, v_head_dim
        Per head: part of query and key without position, part with rotary position, value. [1]
    latent_norm
        Vectors of the norm on each latent: 1 for RMSNorm, 0 without (Megatron-Core without qk_layernorm). [1]

    References
    ----------
    DeepSeek-AI, DeepSeek-V2, sec. 2.1, arXiv:2405.04434; Megatron-Core 0.16.1, gpt_layer_specs.py:231-242.
    """
    query_width = a * (qk_head_dim + qk_pos_emb_head_dim)
    query = q_lora_rank * (h + query_width + latent_norm) if q_lora_rank else h * query_width
    down = h * (kv_lora_rank + qk_pos_emb_head_dim)
    up = kv_lora_rank * (a * (qk_head_dim + v_head_dim) + latent_norm)
    return query + down + up + a * v_head_dim * h


def mlp_parameters(h: Amount, f: Amount, gated: Amount, bias: Amount = 0) -> Amount:
    """Parameters of one feed-forward block, which is also one expert. [1]

    Parameters
    ----------
    h, f
        Hidden size, feed-forward size. [1]
    gated
        1 for SwiGLU-like blocks (three matrices), 0 for plain ones (two).
    bias
        1 when every linear has a bias.

    Examples
    --------
    >>> mlp_parameters(4096, 14336, gated=1)
    176160768

    References
    ----------
    N. Shazeer, 2020, arXiv:2002.05202.
    """
    return (2 + gated) * h * f + bias * ((1 + gated) * f + h)


def router_parameters(h: Amount, experts: Amount, *, bias: Amount = 0, expert_bias: Amount = 0) -> Amount:
    """Parameters that choose experts: scores, their bias, and the balancing bias. [1]

    The balancing bias (`expert_bias`) is not trained by gradient but stands in checkpoints.

    References
    ----------
    DeepSeek-AI, DeepSeek-V3, sec. 2.1.2, arXiv:2412.19437.
    """
    return h * experts + bias * experts + expert_bias * experts


def mamba_parameters(
    h: Amount,
    *,
    num_heads: Amount,
    head_dim: Amount,
    state_dim: Amount,
    num_groups: Amount,
    conv_kernel: Amount,
) -> Amount:
    """Parameters of a Mamba-2 mixer. [1]

    Input projection to z, x, B, C and dt; a causal convolution with bias over x, B, C; A, D and the
    bias of dt per head; a gated RMSNorm; output projection.

    References
    ----------
    T. Dao, A. Gu, ICML 2024, arXiv:2405.21060; megatron.core.ssm.mamba_mixer.
    """
    inner = num_heads * head_dim
    convolved = inner + 2 * num_groups * state_dim
    projections = h * (inner + convolved + num_heads) + inner * h
    return projections + convolved * (conv_kernel + 1) + 3 * num_heads + inner


def gated_delta_parameters(
    h: Amount,
    *,
    num_key_heads: Amount,
    num_value_heads: Amount,
    key_head_dim: Amount,
    value_head_dim: Amount,
    conv_kernel: Amount,
) -> Amount:
    """Parameters of a gated delta net mixer. [1]

    Input projection to q, k, v, the output gate z and two scalars per value head; a convolution
    without bias over q, k, v; A and the bias of dt per value head; a norm of one value head.

    References
    ----------
    S. Yang et al., ICLR 2025, arXiv:2412.06464; transformers Qwen3NextGatedDeltaNet.
    """
    key, value = num_key_heads * key_head_dim, num_value_heads * value_head_dim
    projections = h * (2 * key + 2 * value + 2 * num_value_heads) + value * h
    return projections + (2 * key + value) * conv_kernel + 2 * num_value_heads + value_head_dim


def indexer_parameters(h: Amount, q_lora_rank: Amount, heads: Amount, head_dim: Amount) -> Amount:
    """Parameters of the indexer of sparse attention: queries from their latent, one key, a weight a head, a norm. [1]

    References
    ----------
    transformers DeepseekV32Config and GlmMoeDsaConfig; Megatron-Core 0.19.2, dsa.py, DSAIndexer.
    """
    return index_weights(h, q_lora_rank, heads, head_dim) + 2 * head_dim


def compressed_attention_parameters(
    h: Amount,
    a: Amount,
    d: Amount,
    *,
    q_lora_rank: Amount,
    index_heads: Amount,
    index_head_dim: Amount,
    out_groups: Amount,
    out_lora_rank: Amount,
) -> Amount:
    """Parameters of compressed sparse attention, mean of its light and heavy layers. [1]

    Queries through a latent, one shared key-value head, compressors (four projections to it on light layers, two
    on heavy), the indexer of light layers, grouped low-rank output, latent norms and sinks.

    References
    ----------
    transformers DeepseekV4Config and modeling_deepseek_v4.
    """
    queries = q_lora_rank * (h + a * d)
    keys = h * d * KEY_PROJECTIONS
    index_keys = INDEX_PROJECTIONS * index_head_dim + index_heads
    indexer = (q_lora_rank * index_heads * index_head_dim + h * index_keys) / 2
    output = a * d * out_lora_rank + out_groups * out_lora_rank * h
    return queries + keys + indexer + output + q_lora_rank + d + a


def mtp_parameters(h: Amount, norm_weights: Amount = 1) -> Amount:
    """Parameters of a multi-token-prediction head besides its layers: 2h to h projection, three norms. [1]

    Embedding and output layer are shared with the main model.

    References
    ----------
    DeepSeek-AI, DeepSeek-V3, sec. 2.2, arXiv:2412.19437; megatron.core multi_token_prediction.
    """
    return 2 * h * h + 3 * norm_parameters(h, norm_weights)
