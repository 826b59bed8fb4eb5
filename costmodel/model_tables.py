"""Tables of a model beside its sizes: experts, latents, mixers, windows, positions, an encoder. Checked when built."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.model_checks import Checked

ROTARY_KINDS = ("none", "yarn", "llama3", "linear", "dynamic", "longrope")


@dataclass(frozen=True, kw_only=True)
class Moe(Checked):
    """Mixture of experts. Layer i is sparse when i >= dense_first_layers, every layer_interval-th one.

    router_pre_softmax: softmax over all experts before the choice, so that the weights of the chosen do not sum to one;
    false is over the chosen alone, the same as over all and normalised. router_scaling_factor: the chosen experts'
    weights are multiplied by it [1], None where the source does not say. Neither costs time.
    """

    _where = "moe."
    num_experts: int
    topk: int
    expert_ffn: int
    shared_expert_ffn: int = 0
    shared_expert_gate: bool = False
    dense_first_layers: int = 0
    layer_interval: int = 1
    latent_size: int | None = None
    router_score: str = "softmax"
    router_pre_softmax: bool = False
    router_scaling_factor: float | None = None
    router_dtype: str | None = None
    aux_loss_coeff: float | None = None
    load_balancing: str | None = None
    expert_bias: bool = False
    router_groups: int = 1
    router_group_topk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topk > self.num_experts:
            raise ValueError(
                f"moe.topk {self.topk} is more than moe.num_experts {self.num_experts}. Lower topk."
            )
        groups, picked = self.router_groups, self.router_group_topk
        if self.num_experts % groups or picked > groups or self.topk > picked * self.num_experts // groups:
            raise ValueError(
                f"moe.topk {self.topk} in moe.router_group_topk {picked} of moe.router_groups {groups} does not fit "
                f"{self.num_experts} experts: groups are equal and hold the chosen ones. Set both to 1 for no groups."
            )


@dataclass(frozen=True, kw_only=True)
class Mla(Checked):
    """Multi-head latent attention; q_lora_rank None projects queries directly."""

    _where = "mla."
    q_lora_rank: int | None
    kv_lora_rank: int | None
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, kw_only=True)
class Indexer(Checked):
    """Of sparse latent attention: it picks the `topk` tokens that a query attends to.

    A choice serves `interval` layers, from layer `offset` on, counted from 1; those before it pick for themselves.
    """

    _where = "indexer."
    heads: int
    head_dim: int
    topk: int
    interval: int = 1
    offset: int = 1

    def picks(self, index: int) -> bool:
        """Whether the layer of this place, counted from 0, picks tokens. Source: is_dsa_skip_topk_layer, dsa.py."""
        return max(index + 1 - self.offset, 0) % self.interval == 0


@dataclass(frozen=True, kw_only=True)
class Mamba(Checked):
    """Mamba-2 mixer."""

    _where = "mamba."
    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    conv_kernel: int = 4


@dataclass(frozen=True, kw_only=True)
class GatedDelta(Checked):
    """Gated delta net on all layers but every full_attention_interval-th."""

    _where = "gated_delta."
    full_attention_interval: int
    num_value_heads: int
    num_key_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4


@dataclass(frozen=True, kw_only=True)
class CompressedAttention(Checked):
    """Compressed sparse attention with one shared key-value head.

    Every layer attends to the last `window` tokens and to summaries: of light_ratio tokens each, of which an
    indexer picks index_topk, on half of the layers, and of heavy_ratio tokens each on the others. Output goes through
    out_groups low-rank projections. residual_streams: hyper-connections.
    """

    _where = "compressed_attention."
    q_lora_rank: int
    rope_head_dim: int
    window: int
    light_ratio: int
    heavy_ratio: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    out_groups: int
    out_lora_rank: int
    residual_streams: int = 1


@dataclass(frozen=True, kw_only=True)
class Encoder(Checked):
    """A vision or audio encoder in front of the decoder: attention over all of a sample's `tokens`, and an MLP."""

    _where = "encoder."
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    tokens: int
    gated: bool = False


@dataclass(frozen=True)
class Heads:
    """Heads of an attention block: of queries, of keys and values; their size, and that of values; learned sinks."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    sinks: bool


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Checked):
    """Attention over the last `window` tokens, on all layers but every full_attention_interval-th one.

    pattern: which layers, where they are no every n-th ones: a letter a layer, W with a window, F without. num_heads,
    num_kv_heads, head_dim, v_head_dim: of layers with windows where the others have another number or size; sinks:
    whether their heads have learned sinks where those of the others have none.
    """

    _where = "sliding_window."
    window: int
    full_attention_interval: int | None = None
    pattern: str = ""
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    sinks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = sorted(set(self.pattern) - set("WF"))
        if wrong:
            raise ValueError(
                f"sliding_window.pattern has {wrong[0]!r}; its letters are W (window) and F (full)."
            )
        if self.pattern and self.full_attention_interval is not None:
            raise ValueError(
                "sliding_window.pattern and sliding_window.full_attention_interval both say which layers have "
                "windows. Leave one out."
            )

    def covers(self, index: int) -> bool:
        """Whether the layer of this place, counted from 0, has a window. Source: window_attn_skip_freq."""
        if self.pattern:
            return self.pattern[index] == "W"
        return not self.full_attention_interval or (index + 1) % self.full_attention_interval != 0

    def heads(self, others: Heads) -> Heads:
        """Heads of layers with windows, where those without have `others`."""
        own = ("num_heads", "num_kv_heads", "head_dim", "v_head_dim")
        if self.head_dim is not None and self.v_head_dim is None and others.v_head_dim == others.head_dim:
            others = replace(others, v_head_dim=self.head_dim)
        sizes = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        return replace(others, **sizes, sinks=self.sinks or others.sinks)


@dataclass(frozen=True, kw_only=True)
class Norms(Checked):
    """Norms of a layer that has more than one in front of each block, as those of Gemma 2 to 4 have.

    attention, mlp: norms of the hidden state around attention, and around the MLP, or around experts and the shared
    experts beside them [1]. values: one over each head of values, without weights. router: one without weights in front
    of the router, whose input a vector scales, and a number for each expert the weights of those chosen. layer_scale: a
    number that is not trained multiplies what a layer puts out. written: where Megatron-Bridge writes them out as
    element-wise operations in FP32: all, mlp, or none where all are kernels of Transformer Engine.
    """

    _where = "norms."
    attention: int = 1
    mlp: int = 1
    values: bool = False
    router: bool = False
    layer_scale: bool = False
    written: str = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.written not in ("all", "mlp", "none"):
            raise ValueError(f"norms.written {self.written!r:.60} is not known. Use all, mlp or none.")


@dataclass(frozen=True, kw_only=True)
class RotaryScaling(Checked):
    """How rotary positions are stretched to longer contexts than the `original_positions` they were trained for.

    kind: none (the source says that they are not), yarn, llama3, linear, dynamic or longrope. factor: of the stretch
    [1]. low_freq_factor, high_freq_factor: of llama3 [1]. beta_fast, beta_slow: turns between which yarn mixes [1];
    mscale, mscale_all_dim: of its attention factor [1], None where the source leaves it to 0.1 ln(factor) + 1;
    round_to_int: whether it rounds the range of dimensions that it mixes.
    """

    _where = "rotary_scaling."
    kind: str
    factor: float = 1.0
    original_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    round_to_int: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in ROTARY_KINDS:
            raise ValueError(
                f"rotary_scaling.kind {self.kind!r:.60} is not known. Use one of {', '.join(ROTARY_KINDS)}."
            )


@dataclass(frozen=True, kw_only=True)
class AttentionTemperature(Checked):
    """Queries of layers without positions times 1 + scale log(1 + (position + 1) // floor), as Llama 4 has them."""

    _where = "attention_temperature."
    floor: int
    scale: float
