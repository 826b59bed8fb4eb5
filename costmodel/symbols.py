"""The words of the cost model: every input symbol with its unit, meaning and where it is bound.

Formulas are written in these symbols and in nothing else; `costmodel.binding` gives them numbers.
`docs/glossary.md` is printed from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.norm_symbols import NORMS
from costmodel.plan_symbols import PLAN

# group: "plan" symbols are arrays over plans, the others single numbers.
GROUPS = ("plan", "model", "workload", "hardware", "precision", "step")


@dataclass(frozen=True)
class Input:
    """One input symbol: name, group, unit and meaning."""

    name: str
    group: str
    unit: str
    meaning: str


def _inputs(group: str, table: str) -> list[Input]:
    rows = (line.split("|") for line in table.strip().splitlines())
    return [Input(name.strip(), group, unit.strip(), meaning.strip()) for name, unit, meaning in rows]


# Collectives with constants of their own inside a domain, and those constants in the order in which they are fitted:
# unit and meaning; see `costmodel.timing.network`. send/recv has latency and bandwidth alone.
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
COLLECTIVE_CONSTANTS = {
    "latency": ("s", "simple protocol, fixed time"),
    "latency_per_rank": ("s", "simple protocol, time of each further rank"),
    "bandwidth": ("byte/s", "simple protocol, bus bandwidth of many ranks"),
    "half_ranks": ("1", "ranks of half that bandwidth"),
    "low_latency": ("s", "low-latency protocol, fixed time"),
    "low_latency_per_rank": ("s", "low-latency protocol, time of each further rank"),
    "low_latency_bandwidth": ("byte/s", "low-latency protocol, bus bandwidth"),
}


def _collective_inputs() -> list[Input]:
    return [
        Input(f"{operation}_{name}", "hardware", unit, f"{operation}: {meaning}")
        for operation in COLLECTIVES
        for name, (unit, meaning) in COLLECTIVE_CONSTANTS.items()
    ]


# Blocks of which layers are made; a transformer layer is a mixer and an MLP or experts.
BLOCKS = ("attention", "window_attention", "mla", "dsa", "csa", "mamba", "delta", "mlp", "experts")
# Those of attention without latents: of all layers, or beside those with windows that have heads of their own.
HEADED_BLOCKS = ("attention", "window_attention")
# Those with an attention core.
ATTENTION_BLOCKS = (*HEADED_BLOCKS, "mla", "dsa", "csa")
# What those of layers with windows have of their own, each after WINDOW_.
HEAD_SIZES = ("a", "k", "d", "d_v", "gate_width", "sinks", "unfusable", "tied_values")
# Of these, those whose queries come from a latent by an up projection.
LATENT_BLOCKS = ("mla", "dsa", "csa")
# Stages of which the blocks are counted: the first, the second, of those between first and last the one with most
# parameters, the one with most work, the last.
STAGES = ("first", "second", "fullest", "pace", "last")


def _block_inputs() -> list[Input]:
    """How many blocks of each kind stand on a stage; see `costmodel.layout`."""
    whose = {
        "pace": "the stage with most work in its layers",
        "fullest": "the stage with most parameters of those between the first and the last",
    }
    return [
        Input(f"{block}_{stage}", "plan", "1", f"{block} blocks of {whose.get(stage, f'the {stage} stage')}")
        for block in BLOCKS
        for stage in STAGES
    ] + [
        Input(f"{block}_{kind}", "model", "1", f"{block} blocks of {meaning}")
        for kind, meaning in (("total", "the whole model"), ("mtp", "one multi-token-prediction head"))
        for block in BLOCKS
    ]


INPUTS: tuple[Input, ...] = tuple(
    _inputs("plan", PLAN)
    + _inputs(
        "model",
        """
        h | 1 | hidden size
        f | 1 | feed-forward hidden size
        a | 1 | attention heads (queries)
        k | 1 | key/value heads
        d | 1 | head dimension, of queries and keys where that of values is another
        gates | 1 | 1 when the MLP is gated (SwiGLU), else 0
        squared_relu | 1 | 1 when the activation function is squared ReLU
        V | 1 | vocabulary
        V_multiple | 1 | the vocabulary is padded to a multiple of this times tp
        positions | 1 | learned positions (0 with rotary embedding)
        rotary | 1 | share of attention layers with rotary embedding
        tied | 1 | 1 when input and output embedding share weights
        norm_vectors | 1 | vectors of one norm: 1 RMSNorm, 2 LayerNorm
        biases | 1 | 1 when linear layers have biases
        qkv_biases | 1 | 1 when only the QKV projection (or all linear layers) has a bias
        qk_norms | 1 | 1 when queries and keys are normalised
        output_gate | 1 | 1 when attention output is gated
        head_gate | 1 | 1 when that gate is one number a head, however wide it is laid out
        gate_width | 1 | columns of one head's gate in the QKV projection, 0 without
        values_scaled | 1 | 1 when values are multiplied by a constant
        sinks | 1 | 1 when attention has learned sinks
        window | 1 | tokens of sliding-window attention, 0 none
        window_share | 1 | share of the attention blocks with a window
        window_a | 1 | attention heads (queries) of window_attention blocks
        window_k | 1 | their key/value heads
        window_d | 1 | their head dimension of queries and keys
        window_d_v | 1 | their head dimension of values
        window_gate_width | 1 | columns of one of their heads' gate
        window_sinks | 1 | 1 when they have learned sinks
        window_unfusable | 1 | 1 when no fused kernel takes their heads
        window_tied_values | 1 | 1 when their keys are values too
        unfusable | 1 | 1 when no fused kernel takes attention with such heads
        tied_values | 1 | 1 when one projection makes keys and values
        chunk | 1 | tokens of chunked attention, 0 none
        chunk_share | 1 | share of the attention blocks that attend within chunks
        E | 1 | experts of one layer
        topk | 1 | experts that a token visits
        router_groups | 1 | equal groups of experts, of which the router first picks some
        router_picks | 1 | groups in which a token's experts are
        router_aux | 1 | 1 when the router has an auxiliary loss
        fe | 1 | feed-forward hidden size of one expert
        fs | 1 | feed-forward hidden size of the shared experts
        he | 1 | width of what experts read: hidden size, or the latent size
        fc1_copies | 1 | outputs of the experts' FC1 that stay: 2 when they are clamped first
        fc2_copies | 1 | inputs of the experts' FC2 that stay: 2 when the probabilities multiply them apart
        expert_bias | 1 | 1 when the router balances loads by a bias an expert
        biased_experts | 1 | 1 when the linear layers of experts have biases
        router_wide | 1 | 1 when the router works in FP32: stated, or 32 experts or more
        results_wide | 1 | 1 when results of experts are reduced in FP32: a router that is stated to work in it
        shared_gate | 1 | 1 when the shared experts are gated by a scalar
        q_lora | 1 | MLA: width of the query latent, 0 when queries are projected directly
        kv_lora | 1 | MLA: width of the key-value latent
        d_nope | 1 | MLA: head dimension of queries and keys without position
        d_rope | 1 | MLA: head dimension with rotary position
        d_v | 1 | head dimension of values
        csa_light | 1 | compressed attention: tokens of one summary on light layers
        csa_heavy | 1 | the same on heavy layers
        csa_window | 1 | compressed attention: tokens attended to as they are
        index_heads | 1 | sparse attention: heads of the indexer
        index_dim | 1 | head dimension of the indexer
        index_topk | 1 | tokens, or summaries of compressed attention, that the indexer picks for a query
        index_interval | 1 | layers over those that pick, as several may share a choice of the indexer
        out_groups | 1 | compressed attention: groups of heads of the output projection
        out_lora | 1 | rank of each group's output projection
        residual_streams | 1 | residual streams of hyper-connections
        mamba_heads | 1 | Mamba-2: heads
        mamba_dim | 1 | Mamba-2: head dimension
        mamba_state | 1 | Mamba-2: state dimension
        mamba_groups | 1 | Mamba-2: groups that share B and C
        delta_key_heads | 1 | gated delta: key heads
        delta_value_heads | 1 | gated delta: value heads
        delta_key_dim | 1 | gated delta: key head dimension
        delta_value_dim | 1 | gated delta: value head dimension
        conv | 1 | taps of the mixers' short convolution
        enc_layers | 1 | layers of the encoder
        enc_h | 1 | hidden size of the encoder
        enc_f | 1 | feed-forward hidden size of the encoder
        enc_a | 1 | attention heads of the encoder
        enc_gates | 1 | 1 when its MLP is gated
        enc_tokens | 1 | tokens that the encoder sees for each sequence
        mtp_total | 1 | multi-token-prediction heads
        """,
    )
    + _inputs("model", NORMS)
    + _block_inputs()
    + _inputs(
        "workload",
        """
        s | 1 | tokens of one sequence
        scores_wide | 1 | 1 when scores of unfused attention are masked and normalised in FP32, a kernel each
        document | 1 | tokens of a document as attention meets them: E[length^2] / E[length]
        fill | 1 | share of the tokens that are not padding
        documents | 1 | documents packed into one sequence, 0 where each fills its own
        document_spread | 1 | standard deviation of a sequence's attention work over its mean
        trained | 1 | 1 when the model's own weights are trained, 0 with adapters alone
        lora_rank | 1 | rank of the adapters, 0 without
        lora_qkv | 1 | 1 when QKV projections have adapters
        lora_proj | 1 | 1 when attention output projections do
        lora_mlp | 1 | 1 when MLPs, experts, Mamba and gated delta layers do
        imbalance | 1 | tokens of the busiest expert rank over the mean
        adjacent | 1 | 1 when a token's experts stand side by side
        """,
    )
    + _inputs(
        "precision",
        """
        weight_bytes | byte | bytes of one parameter in the model's own format
        quantised_copy_bytes | byte | extra bytes of one linear weight for its quantised copies
        activation_bytes | byte | bytes of one activation element outside the linear layers
        saved_bytes | byte | bytes of one linear input kept for the weight gradient
        operand_bytes | byte | bytes of one GEMM operand element
        quantise_input_bytes | byte | HBM bytes to quantise one activation element for forward and weight gradient
        quantise_grad_bytes | byte | HBM bytes to quantise one output-gradient element
        quantise_weight_bytes | byte | HBM bytes to quantise one weight element, per micro-batch
        products_apart | 1 | 1 when the recipe's products are operators that per-op recompute does not know
        cast_anew | 1 | 1 when weights are quantised for every pass and nothing is gathered quantised
        columns_gathered | 1 | 1 when rows and columns of a quantised gradient, each with scales, are gathered apart
        joint_scale | 1 | 1 when tensor-parallel ranks agree on one scale for what sequence parallelism gathers
        transpose_bytes | byte | HBM bytes to transpose one element of an operand that was gathered in 8 bits
        shared_history | 1 | 1 when ranks agree on the maxima from which later passes take their scales
        loss_scaled | 1 | 1 when a NaN in gradients is a signal to the scale of the loss, for which nothing checks
        norm_writes | 1 | 1 when a norm that is one module with a linear layer writes that layer's operand
        cudnn_writes | 1 | 1 when the norm of such a module does if it is cuDNN's
        maximum_bytes | byte | HBM bytes of reading one element of an operand for its maximum, before it is quantised
        quantise_kernels | 1 | kernels one operand's quantisation launches
        quantised_together | 1 | 1 when they quantise the rows of all experts of a grouped product
        experts_fused | 1 | 1 when grouped GEMMs of experts may hold the activation function
        fused_casts | 1 | 1 when those quantise what they write too
        linear_peak | FLOP/s | dense peak of the linear layers' format
        linear_fraction | 1 | fraction of linear_peak that large GEMMs reach
        linear_wave | 1 | weight of the last, partly filled wave of tiles
        linear_fill | 1 | steps of K in whose time a tile of a linear GEMM fills and is written
        linear_launch | s | fixed time of one linear GEMM
        """,
    )
    + _inputs(
        "hardware",
        """
        gpu_sms | 1 | streaming multiprocessors
        sm_cycles | Hz | cycles of all streaming multiprocessors in a second
        swiglu_backward_cycles | 1 | cycles of one multiprocessor for an element of SwiGLU's output, backward
        rotary_forward_cycles | 1 | the same for an element of fused rotary embedding, forward
        rotary_backward_cycles | 1 | the same, backward
        head_copy_cycles | 1 | the same for an element of a strided copy of heads
        timed_cycles | 1 | 1 where cycles of routers, maps and sinks were timed, 0 where such kernels go by their bytes
        gpu_peak | FLOP/s | dense peak of the 16-bit (or model) format, used by attention and vocabulary
        gpu_memory | byte | device memory usable by the process
        hbm_bandwidth | byte/s | datasheet memory bandwidth
        gemm_fraction | 1 | fraction of gpu_peak that large 16-bit GEMMs reach
        gemm_wave | 1 | weight of the last wave, 16-bit GEMMs
        gemm_fill | 1 | steps of K in whose time a tile fills and is written, 16-bit GEMMs
        gemm_launch | s | fixed time of one 16-bit GEMM
        gemm_bandwidth_fraction | 1 | fraction of hbm_bandwidth a memory-bound GEMM reaches
        attention_forward_fraction | 1 | fraction of gpu_peak of long-sequence attention, forward
        attention_forward_half | 1 | sequence length of half that rate, forward
        attention_backward_fraction | 1 | fraction of gpu_peak, backward
        attention_backward_half | 1 | sequence length of half that rate, backward
        attention_forward_tail | 1 | waves in whose time SMs wait for the last thread blocks, forward
        attention_backward_tail | 1 | the same, backward
        attention_launch | s | fixed time of one attention kernel
        elementwise_fraction | 1 | fraction of hbm_bandwidth of element-wise kernels
        contiguous_fraction | 1 | fraction of hbm_bandwidth of kernels that read and write tensors in their order
        permute_fraction | 1 | fraction of hbm_bandwidth of kernels that permute rows
        norm_fraction | 1 | fraction of hbm_bandwidth of fused norms, forward
        norm_backward_fraction | 1 | fraction of hbm_bandwidth of fused norms, backward
        stream_fraction | 1 | fraction of hbm_bandwidth of plain streaming (optimizer)
        kernel_launch | s | device-side gap of one kernel launch
        graph_launch | s | the same inside a CUDA graph
        host_kernel | s | host time to issue one kernel, eager
        unbound_launch | 1 | host time of a kernel where ranks are not bound to cores, over that of bound ones
        pass_host | s | host time of one micro-batch's embedding, logits and loss, not hidden; 0 on GPUs
        layer_update_host | s | host time of the optimizer for one layer's tensors, not hidden; 0 on GPUs
        queued | 1 | 1 where kernels of several streams need one hardware queue to stay in order (before Blackwell)
        switch_reduces | 1 | 1 where NVLink switches reduce (NVLS: Hopper and later)
        network_reduces | 1 | 1 where the network's switches can reduce (SHARP: InfiniBand)
        boost_slider | 1 | 1 where the GPU has a boost slider (Hopper and later)
        attention_forward_fp8_gain | 1 | rate of FP8 attention's forward kernel over the 16-bit one
        attention_backward_fp8_gain | 1 | rate of FP8 attention's backward kernel over the 16-bit one
        host_link | byte/s | bandwidth between a GPU and its host, one direction
        host_memory | byte/s | memory bandwidth of the host, a GPU's share
        peer_links | 1 | links that share a GPU's bandwidth in a domain: one to each other GPU in a mesh, 1 to a switch
        send_recv_latency | s | point-to-point inside a domain, fixed time
        send_recv_bandwidth | byte/s | point-to-point between two GPUs of a domain
        network_bandwidth | byte/s | bus bandwidth of one GPU's network cards
        network_latency | s | time of a collective over the network for each doubling of the domains
        attention_forward_half_window | 1 | twice the keys of half that rate under a sliding window, forward
        attention_backward_half_window | 1 | the same, backward
        attention_forward_half_dim | 1 | head dimension at which exponentials take as long as matrix products, forward
        attention_backward_half_dim | 1 | the same of the backward kernel
        attention_forward_wide | 1 | exponent of the fall of the forward kernel's rate for heads wider than 128
        attention_backward_wide | 1 | the same of the backward kernel
        fragmentation | 1 | share of activation memory lost to allocator fragmentation
        graph_pool | 1 | memory of CUDA graph pools over the activations they hold fast
        context_bytes | byte | memory of CUDA context, libraries and NCCL buffers
        """,
    )
    + _collective_inputs()
    + _inputs(
        "step",
        """
        linear_scale | 1 | rate of linear layers inside a training step over the kernel tables
        gemm_scale | 1 | the same for 16-bit GEMMs outside the recipe (logits, unfused attention)
        wgrad_scale | 1 | GEMM rate of weight gradients over that of other passes
        library_scale | 1 | rate of matrix kernels of PyTorch's wheels over those of NVIDIA's containers
        release_scale | 1 | rate of all kernels of a software release over the tables
        expert_bias_fused | 1 | 1 when grouped GEMMs of captured expert blocks add the experts' biases
        scatter_gather | 1 | 1 when stages send a share of the hidden states from each tensor-parallel rank
        plain_norms | 1 | 1 when norms are PyTorch's own kernels
        composed_norms | 1 | 1 when an RMSNorm that nothing compiles is a row of element-wise kernels
        collective_mean | 1 | 1 when recipes let reductions of gradients average them, but under FSDP
        norm_linear | 1 | 1 when a norm and the linear layer behind it are one module
        norm_maxima | 1 | 1 when the norm of such a module finds the maximum of what it writes
        plain_routers | 1 | 1 when the stack has no fused kernels for routers of experts
        plain_permutations | 1 | 1 when the stack has none for the permutation to the experts' order
        plain_squared_relu | 1 | 1 when squared ReLU is PyTorch's own kernels, one for each operation
        packs_attention | 1 | 1 when tokens are gathered in front of the attention core and scattered behind it
        scales_sinks | 1 | 1 when the attention output of heads with learned sinks is scaled in kernels of their own
        native_loss | 1 | 1 when a release has no fused loss but Megatron-Core's own
        loss_metrics | 1 | 1 when the trainer logs two losses that it computes again of each micro-batch's logits
        counts_guesses | 1 | 1 when tokens that MTP heads guess right are counted by the largest of their logits
        holds_mtp_logits | 1 | 1 when the last MTP head's logits outlive its loss, until the main head has its own
        complex_rotary | 1 | 1 when rotary embedding that is not fused multiplies complex numbers
        separate_gate | 1 | 1 when gate and rest of an MLP, and queries, keys and values, are products of their own
        stand_ins | 1 | 1 when a tensor for each shape of a weight stands for its gradients
        strided_delta | 1 | 1 when gated delta nets convolve tokens as they lie, without a copy that has them innermost
        master_shards | 1 | 1 when FSDP shards the FP32 parameters themselves
        dtensor | 1 | 1 when collectives of tensor parallelism wait where they stand, as PyTorch's DTensor has them
        megatron_core | 1 | 1 when the framework trains with Megatron-Core or its Megatron-LM
        reads_documents | 1 | 1 when the host reads lengths of packed documents for rotary embedding that is not fused
        documents_apart | 1 | 1 when rotary embedding that is not fused turns one packed document after the other
        partial_rings | 1 | 1 when a ring over some of a domain's GPUs leaves it at one GPU's share of the network cards
        unbalanced_rings | 1 | 1 when a context ring's ranks hold contiguous chunks, of which the last sees most
        early_zero3 | 1 | 1 when sharded parameters and gradients move at the rate of one network card a node
        fsdp1 | 1 | 1 when FSDP is PyTorch's first one, of flat parameters
        fsdp2 | 1 | 1 when FSDP is PyTorch's fully_shard
        root_unit | 1 | 1 when embedding and output layer are one unit of FSDP, its root, whole through a step
        defers_gradients | 1 | 1 when FSDP reduces gradients once a step, whatever the micro-batches
        fuses_fp4_experts | 1 | 1 when fused MLPs of experts may be in NVFP4
        fuses_squared_relu | 1 | 1 when fused MLPs of experts may have squared ReLU
        eager | 1 | 1 when nothing compiles the layers, whatever a plan fuses
        blocking_sends | 1 | 1 when a pipeline stage waits for its messages, interleaved or not
        foreach_adam | 1 | 1 when Adam is a row of element-wise kernels, not one
        large_buckets | 1 | 1 when recipes cut gradients into buckets of 128 Mi elements where a plan says nothing
        gathers_on_demand | 1 | 1 when a module's forward pass gathers its parameters, and has the next bucket follow
        checks_gradients | 1 | 1 when training can look for NaN in each bucket of gradients before it is reduced
        checks_loss | 1 | 1 when it can in the loss of each micro-batch too
        early_stop | 1 | 1 when full recompute ends with the last saved tensor
        attention_scale | 1 | rate of attention inside a training step over the kernel tables
        elementwise_scale | 1 | bandwidth of element-wise kernels inside a training step over the tables
        tuned_stream_scale | 1 | the same of norms, casts and passes over gradients and optimizer states
        grouped_scale | 1 | rate of grouped GEMMs of uneven groups (no capacity) over a plain GEMM of as many tiles
        scan_rate | FLOP | what Mamba and delta scans do in a cycle of a streaming multiprocessor
        dispatch_scale | 1 | bandwidth of DeepEP's and HybridEP's dispatch over that of an all-to-all
        dispatch_row | byte | bytes in whose time HybridEP sends a row beside the row's own
        dispatch_network | 1 | bandwidth of expert dispatch between domains over that of one card
        expert_kernels | 1 | kernels of one expert block's router, permutation and dispatch, forward
        pass_start | s | time in which a pipeline stage begins a pass: exchange with its neighbours, change of chunk
        expert_host | 1 | host work of one pass of an expert block beside its kernels, in kernels' worth
        loop_launch | 1 | host time of one launch in a row, as over a rank's experts or documents, over that of a kernel
        expert_wait | s | round trip in which the host learns a number from the device: how many tokens came to experts
        intra_scale | 1 | bandwidth of collectives inside a scale-up domain over the tables
        inter_scale | 1 | bandwidth of collectives between domains over the tables
        one_card_scale | 1 | bandwidth of collectives and sends of ranks with one network card each over the tables
        ring_hop | s | hop between domains of a ring that all-gathers or reduce-scatters
        overlap_slowdown | 1 | compute time lost for each second of communication that runs under it
        unfused_gemm_fraction | 1 | rate of the batched GEMMs of unfused attention, of 16-bit GEMMs
        straggler | 1 | step time lost to the slowest rank for each doubling of the GPUs
        step_overhead | s | fixed time of one step: data loader, logging, scheduler
        """,
    )
)
BY_NAME: dict[str, Input] = {entry.name: entry for entry in INPUTS}


def symbol(name: str) -> Amount:
    """An input, or an entry of a ledger, as a sympy symbol: none of them is below 0."""
    import sympy

    return sympy.Symbol(name, nonnegative=True)


def symbol_table() -> SimpleNamespace:
    """Every input as a symbol, by attribute: `x.tp`, `x.hbm_bandwidth`."""
    return SimpleNamespace(**{entry.name: symbol(entry.name) for entry in INPUTS})


def of_block(x: SimpleNamespace, block: str) -> SimpleNamespace:
    """The symbols, or numbers, as a block's formulas read them: of layers with windows their heads, and no others.

    Unfused is attention that a plan has so, or whose heads no fused kernel takes.
    """
    if block not in HEADED_BLOCKS:
        return x
    own: dict[str, Amount] = {}
    if block == "window_attention":
        own = {name: getattr(x, f"window_{name}") for name in HEAD_SIZES}
        own |= {"window_share": 1, "chunk_share": 0}
    unfusable = own.get("unfusable", x.unfusable)
    own["unfused"] = 1 - (1 - x.unfused) * (1 - unfusable)
    return SimpleNamespace(**{**vars(x), **own})


def in_stage(x: SimpleNamespace, block: str, stage: str) -> Amount:
    """Blocks of a kind, or MTP heads ("mtp"), on one of STAGES. [1]"""
    return getattr(x, f"{block}_{stage}")
