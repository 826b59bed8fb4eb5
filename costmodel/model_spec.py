"""What a model is: the sizes that decide its work and memory, checked when built.

Counts are whole numbers [1]. Files and names are read in `model_file`, `huggingface` and `model_registry`.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.model_checks import Checked
from costmodel.model_tables import (
    AttentionTemperature,
    CompressedAttention,
    Encoder,
    GatedDelta,
    Heads,
    Indexer,
    Mamba,
    Mla,
    Moe,
    Norms,
    RotaryScaling,
    SlidingWindow,
)

# Kinds of layer. DENSE and SPARSE are a whole transformer layer, and so are those whose attention sees a window with
# heads of its own; the others stand in hybrid patterns, except GATED_DELTA, a transformer layer whose attention is
# replaced.
DENSE = "attention + mlp"
SPARSE = "attention + experts"
WINDOW_DENSE = "window attention + mlp"
WINDOW_SPARSE = "window attention + experts"
GATED_DELTA = "gated delta"
ATTENTION = "attention only"
WINDOW_ATTENTION = "window attention only"
MLP = "mlp only"
MOE = "experts only"
MAMBA = "mamba"
PATTERN_LETTERS = {"M": MAMBA, "*": ATTENTION, "-": MLP, "E": MOE}
# Those of the layers of a multi-token-prediction head: with W, attention as layers with windows have it.
MTP_LETTERS = PATTERN_LETTERS | {"W": WINDOW_ATTENTION}

NORMS = ("RMSNorm", "LayerNorm")
# fast_gelu is the tanh one as Megatron-Core has it by itself, in no fused kernel.
ACTIVATIONS = ("silu", "gelu", "fast_gelu", "quick_gelu", "squared_relu", "relu")
# FlashAttention 2 and 3 take no wider heads, and FlashAttention 4 none of 512 for queries and values alike. Source:
# Transformer Engine 2.16.1 to 2.20.2, dot_product_attention/utils.py; that cuDNN has no backward pass of such heads is
# from memory.
WIDEST_FUSED_HEAD = 256
DEFAULT_VOCAB_DIVISIBLE_BY = 128  # Megatron --make-vocab-size-divisible-by


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Checked):
    """Sizes of one decoder. Raises ValueError (given, rule, way out) when they cannot be meant.

    name: as in `costmodel/models`. family: follows from the other fields and is filled in. num_layers; hidden [h];
    ffn_hidden [f]: of dense layers. num_heads [a]; num_kv_heads [k]; head_dim [d]: need not be h / a; v_head_dim: head
    size of values where it is another than that of queries and keys; value_scale: factor of values [1], a kernel of its
    own. gated: three MLP matrices. vocab: true tokens. vocab_divisible_by: None is Megatron's 128. vocab_padded: fixed
    by the source.
    qk_norm: norm over each head of Q and K; with MLA over the latents, and on unless a file or mapping says false.
    norm_epsilon: added to the variance in every norm [1], None where the source does not say. zero_centered_norm: norms
    multiply by 1 + weight, and weights start and decay at 0. linear_bias: output, MLP and router.
    learned_positions: length of the position table, 0 = rotary or none. rotary_base: theta of rotary positions [1],
    None where the source does not say; rotary_percent: share of a head's dimensions that rotate [1]; rotary_local_base:
    theta of layers with windows where it is another; rotary_scaling: None where the source does not say.
    qk_l2_norm: norm without weights over each head of rotated Q and K. softmax_scale: factor of scores where it is not
    1 / sqrt(head size) [1]; score_cap, logit_cap: tanh bounds of scores and logits [1]; embedding_scale: factor of
    embeddings [1]. All of these cost little, and an export without them trains another model.
    seq_len: the source's training length [token], 0 unknown. layer_pattern: a letter a layer (M mamba, * attention,
    - mlp, E experts), '' uniform; mtp_pattern: the same of the layers in a multi-token-prediction head, with W for
    attention as layers with windows have it. attention_output_gate: a gate as wide as a head's values, or with
    attention_head_gate one number a head. indexer: with MLA, whose queries then meet the tokens it picks.
    values_are_keys: one projection for both in layers that see everything. norms: where a layer has more than one in
    front of each block. local_layers: Megatron-Bridge builds it of Megatron-Core's own layers, without Transformer
    Engine.
    params_published: total as printed, params_printed its text. params_computed and params_active_computed:
    an independent count to the digit, without multi-token prediction and padding.
    parameters_known: false where our formulas do not cover the model, `note` says why. left_out: what of the model is
    not counted; every prediction says it.
    """

    name: str
    family: str = ""
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    value_scale: float | None = None
    gated: bool = True
    activation: str = "silu"
    norm: str = "RMSNorm"
    norm_epsilon: float | None = None
    zero_centered_norm: bool = False
    vocab: int
    vocab_divisible_by: int | None = None
    vocab_padded: int | None = None
    tied_embeddings: bool = False
    qk_norm: bool = False
    linear_bias: bool = False
    qkv_bias: bool = False
    learned_positions: int = 0
    rotary_base: int | None = None
    rotary_percent: float = 1.0
    rotary_local_base: int | None = None
    rotary_scaling: RotaryScaling | None = None
    qk_l2_norm: bool | None = None
    attention_temperature: AttentionTemperature | None = None
    softmax_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float | None = None
    seq_len: int = 0
    layer_pattern: str = ""
    moe: Moe | None = None
    mla: Mla | None = None
    indexer: Indexer | None = None
    mamba: Mamba | None = None
    gated_delta: GatedDelta | None = None
    sliding_window: SlidingWindow | None = None
    encoder: Encoder | None = None
    attention_chunk: int = 0
    nope_layer_interval: int = 0
    attention_sink: bool = False
    attention_output_gate: bool = False
    attention_head_gate: bool = False
    values_are_keys: bool = False
    norms: Norms | None = None
    local_layers: bool = False
    compressed_attention: CompressedAttention | None = None
    mtp_layers: int = 0
    mtp_pattern: str = ""
    params_published: int | None = None
    params_printed: str = ""
    params_published_source: str = ""
    params_computed: int | None = None
    params_active_computed: int | None = None
    parameters_known: bool = True
    vocab_source: str = ""
    source: str = ""
    note: str = ""
    left_out: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choices()
        self._check_sizes()
        self._check_pattern()
        derived = self._derived_family()
        if self.family not in ("", derived):
            raise ValueError(
                f"family {self.family!r} does not fit the sizes, which make it {derived!r}. Leave it out."
            )
        object.__setattr__(self, "family", derived)

    def padded_vocab(self, tp: int) -> int:
        """Rows of the embedding over all tensor-parallel ranks. [1]

        ceil(vocab / (divisible_by tp)) divisible_by tp, as `_vocab_size_with_padding` of Megatron-LM;
        where the source fixes a padded size, that size, raised to a multiple of tp.
        """
        step, least = (self.vocab_divisible_by or DEFAULT_VOCAB_DIVISIBLE_BY) * tp, self.vocab
        if self.vocab_padded is not None:
            step, least = tp, self.vocab_padded
        return -(-least // step) * step

    def layer_kinds(self) -> tuple[str, ...]:
        """Kind of each layer, first to last."""
        if self.layer_pattern:
            return tuple(PATTERN_LETTERS[letter] for letter in self.layer_pattern)
        return tuple(self._layer_kind(index) for index in range(self.num_layers))

    def layer_counts(self) -> dict[str, int]:
        """Number of layers of each kind, in order of first appearance."""
        kinds = self.layer_kinds()
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def mtp_layer_kinds(self) -> tuple[str, ...]:
        """Kinds of the layers inside one multi-token-prediction head: its pattern, or the last kind."""
        if not self.mtp_layers:
            return ()
        if self.mtp_pattern:
            return tuple(MTP_LETTERS[letter] for letter in self.mtp_pattern)
        return self.layer_kinds()[-1:]

    @property
    def heads(self) -> Heads:
        """Heads of attention without latents, in layers that see everything where those with windows have their own."""
        sizes = self.num_heads, self.num_kv_heads, self.head_dim, self.v_head_dim or self.head_dim
        return Heads(*sizes, self.attention_sink)

    @property
    def window_heads(self) -> Heads:
        """Heads of attention in layers with windows; those of the others where there are none of their own."""
        return self.sliding_window.heads(self.heads) if self.sliding_window else self.heads

    @property
    def windows_apart(self) -> bool:
        """Whether layers with windows are of a kind of their own, for the sake of their heads."""
        return self.window_heads != self.heads

    def has_fused_core(self, heads: Heads) -> bool:
        """Whether a fused kernel computes attention with such heads, forward and backward."""
        return not self.local_layers and heads.head_dim <= WIDEST_FUSED_HEAD

    @property
    def custom_heads(self) -> str:
        """What of the heads Megatron-Core's configuration does not say, so that modules are the model's own; or "".

        Source: Megatron-Core 0.19.2, transformer_config.py and attention.py.
        """
        found = {
            "heads of their own in layers with windows": self.windows_apart,
            "values of another head size": self.heads.v_head_dim != self.head_dim,
            "a constant that multiplies values": self.value_scale is not None,
            "a gate of one number a head": self.attention_head_gate,
            "keys that are values too": self.values_are_keys,
            "norms of its own": self.norms is not None and self.norms.written != "none",
        }
        return next((text for text, has in found.items() if has), "")

    @property
    def position_embedding(self) -> str:
        """learned_absolute, rope, or none: attention of hybrids with Mamba needs no positions.

        Source: Megatron-Bridge 0.6.2, nemotron_h_bridge.py; Megatron-Core 0.16.1, mamba_model.py (its default).
        """
        if self.learned_positions:
            return "learned_absolute"
        return "none" if self.mamba is not None else "rope"

    @property
    def rotary_share(self) -> float:
        """Share of the attention layers with rotary embedding. [1]"""
        if self.position_embedding != "rope":
            return 0.0
        return 1.0 - 1.0 / self.nope_layer_interval if self.nope_layer_interval else 1.0

    @property
    def residual_streams(self) -> int:
        """Residual streams that hyper-connections mix; 1 without them. [1]"""
        return self.compressed_attention.residual_streams if self.compressed_attention else 1

    @property
    def picking_layers(self) -> int:
        """Layers whose indexer picks tokens, for themselves and for those behind them that share its choice. [1]"""
        return 0 if self.indexer is None else sum(map(self.indexer.picks, range(self.num_layers)))

    @property
    def sparse_attention(self) -> str:
        """What attention is called whose queries meet what an indexer picks; "" for others."""
        if self.indexer is not None:
            return "sparse latent attention"
        return "compressed sparse attention" if self.compressed_attention else ""

    def _layer_kind(self, index: int) -> str:
        delta, moe = self.gated_delta, self.moe
        if delta is not None and (index + 1) % delta.full_attention_interval:
            return GATED_DELTA
        window = self.sliding_window
        apart = window is not None and window.covers(index) and self.windows_apart
        dense, sparse = (WINDOW_DENSE, WINDOW_SPARSE) if apart else (DENSE, SPARSE)
        if moe is None or index < moe.dense_first_layers:
            return dense
        return sparse if (index - moe.dense_first_layers) % moe.layer_interval == 0 else dense

    def _derived_family(self) -> str:
        if self.mamba is not None:
            return "hybrid-moe" if self.moe is not None else "hybrid"
        if self.gated_delta is not None:
            return "gated-delta-moe" if self.moe is not None else "gated-delta"
        if self.compressed_attention is not None:
            return "csa-moe" if self.moe is not None else "csa"
        if self.mla is not None:
            kind = "dsa" if self.indexer is not None else "mla"
            return f"{kind}-moe" if self.moe is not None else kind
        return "moe" if self.moe is not None else "dense"

    def _check_choices(self) -> None:
        for key, known in (("norm", NORMS), ("activation", ACTIVATIONS)):
            if getattr(self, key) not in known:
                raise ValueError(f"{key} {getattr(self, key)!r} is not known. Use one of {', '.join(known)}.")
        if not self.name.strip() or "\n" in self.name:
            raise ValueError(f"name {self.name!r} is empty or has a line break. Give the model a short name.")

    def _check_sizes(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}, "
                "so query heads cannot share them evenly. Change one of the two."
            )
        self._check_windows()
        if self.vocab_padded is not None and self.vocab_padded < self.vocab:
            raise ValueError(
                f"vocab_padded {self.vocab_padded} is below vocab {self.vocab}. Raise it or leave it out."
            )
        if self.moe is not None and self.moe.dense_first_layers > self.num_layers:
            raise ValueError(
                f"moe.dense_first_layers {self.moe.dense_first_layers} is more than "
                f"num_layers {self.num_layers}. Lower it."
            )
        if self.mla is not None and self.mla.kv_lora_rank is None and self.parameters_known:
            raise ValueError("mla.kv_lora_rank is missing. Give the width of the key-value latent, as 512.")
        if self.indexer is not None and (self.mla is None or not self.mla.q_lora_rank):
            raise ValueError("[indexer] needs [mla] with q_lora_rank. Give both, or leave [indexer] out.")

    def _check_windows(self) -> None:
        window, own = self.sliding_window, self.window_heads
        if window is not None and window.pattern and len(window.pattern) != self.num_layers:
            raise ValueError(
                f"sliding_window.pattern has {len(window.pattern)} letters for num_layers {self.num_layers}. "
                "Give one letter a layer."
            )
        if own.num_heads % own.num_kv_heads:
            raise ValueError(
                f"layers with windows have {own.num_heads} heads, which is not a multiple of their {own.num_kv_heads} "
                "key-value heads. Change sliding_window.num_heads or sliding_window.num_kv_heads."
            )
        others = (self.mla, self.indexer, self.compressed_attention, self.gated_delta, self.mamba)
        plain = not any(others) and not self.layer_pattern
        if (self.windows_apart or self.heads.v_head_dim != self.head_dim) and not plain:
            raise ValueError(
                "heads of their own in [sliding_window], and v_head_dim, are of models whose layers all have plain "
                "attention. Leave them out, or the tables of other attention."
            )
        if (self.values_are_keys or self.norms or self.local_layers) and not plain:
            raise ValueError(
                "values_are_keys, local_layers and [norms] are of models whose layers all have plain attention. Leave "
                "them out, or the tables of other attention."
            )
        if self.values_are_keys and self.heads.v_head_dim != self.head_dim:
            raise ValueError(
                f"values_are_keys with v_head_dim {self.v_head_dim} and head_dim {self.head_dim}: values that are keys "
                "have their size. Leave v_head_dim out."
            )
        if self.attention_head_gate and not self.attention_output_gate:
            raise ValueError(
                "attention_head_gate says how wide a gate is: set attention_output_gate = true with it."
            )
        if "W" in self.mtp_pattern and not self.windows_apart:
            raise ValueError(
                "mtp_pattern has W, but layers with windows have no heads of their own. Write * in its place."
            )

    def _check_pattern(self) -> None:
        for key, known in (("layer_pattern", PATTERN_LETTERS), ("mtp_pattern", MTP_LETTERS)):
            wrong = sorted(set(getattr(self, key)) - set(known))
            if wrong:
                raise ValueError(f"{key} has {wrong[0]!r}; its letters are {' '.join(known)}.")
        if self.layer_pattern and len(self.layer_pattern) != self.num_layers:
            raise ValueError(
                f"layer_pattern has {len(self.layer_pattern)} letters for num_layers {self.num_layers}. "
                "Give one letter a layer."
            )
        letters = set(self.layer_pattern + self.mtp_pattern)
        if ("M" in letters) != (self.mamba is not None):
            raise ValueError("layer_pattern with M and table [mamba] need each other. Give both or neither.")
        if "E" in letters and self.moe is None:
            raise ValueError("layer_pattern has E but there is no table [moe]. Give it.")
