"""The words of the cost model: every input symbol with its unit, meaning and where it is bound.

Formulas are written in these symbols and in nothing else; `costmodel.binding` gives them numbers.
`docs/glossary.md` is printed from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

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


def _collective_inputs() -> list[Input]:
    """Constants of each collective inside a domain; see `costmodel.timing.network`."""
    meanings = {
        "latency": ("s", "simple protocol, fixed time"),
        "latency_per_rank": ("s", "simple protocol, time of each further rank"),
        "bandwidth": ("byte/s", "simple protocol, bus bandwidth of many ranks"),
        "half_ranks": ("1", "ranks of half that bandwidth"),
        "low_latency": ("s", "low-latency protocol, fixed time"),
        "low_latency_per_rank": ("s", "low-latency protocol, time of each further rank"),
        "low_latency_bandwidth": ("byte/s", "low-latency protocol, bus bandwidth"),
    }
    operations = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    return [
        Input(f"{operation}_{name}", "hardware", unit, f"{operation}: {meaning}")
        for operation in operations
        for name, (unit, meaning) in meanings.items()
    ]


INPUTS: tuple[Input, ...] = tuple(
    _inputs(
        "plan",
        """
        tp | 1 | tensor parallel size
        pp | 1 | pipeline parallel size (stages)
        vpp | 1 | virtual pipeline size (model chunks on each stage)
        cp | 1 | context parallel size
        dp | 1 | data parallel size
        b | 1 | micro-batch: sequences in one forward pass
        m | 1 | micro-batches of one replica in one step
        sp | 1 | 1 with sequence parallelism
        optimizer_sharded | 1 | 1 when data parallel shards the optimizer state (ZeRO 1 and up)
        grads_sharded | 1 | 1 when it shards gradients too (ZeRO 2 and up)
        params_sharded | 1 | 1 when it shards parameters too (ZeRO 3)
        fsdp | 1 | 1 with fully sharded data parallel
        shard | 1 | ranks over which optimizer state, and with FSDP gradients and parameters, are sharded
        cp_p2p | 1 | 1 when context parallel exchanges keys and values in a ring
        cp_all_gather | 1 | 1 when it all-gathers them
        cp_a2a | 1 | 1 when it exchanges heads for sequence by all-to-all
        cp_a2a_size | 1 | ranks of one all-to-all group (1 without, cp with plain a2a)
        recompute_layers | 1 | share of the layers whose whole forward pass is computed again
        recompute_attention | 1 | 1 when the attention core is computed again
        recompute_mlp | 1 | 1 when the MLP is computed again
        recompute_norm | 1 | 1 when norms are computed again
        recompute_activation | 1 | 1 when the activation function is computed again
        unfused | 1 | 1 when attention writes its score matrix
        tp_overlap | 1 | 1 when tensor-parallel collectives are pipelined with their GEMMs
        overlap_reduce | 1 | 1 when gradients are reduced under the last backward pass
        overlap_gather | 1 | 1 when parameters are gathered under the first forward pass
        overlap_p2p | 1 | 1 when pipeline send/recv is overlapped (interleaved schedules)
        graph | 1 | 1 when kernels are replayed from CUDA graphs
        grad_bytes | byte | bytes of one gradient element in memory and on the wire
        gather_bytes | byte | bytes of one parameter element on the wire of the gather
        param_gather | 1 | 1 when parameters are kept and gathered in FP8
        state_bytes | byte | optimizer bytes of one parameter: master copy and two moments
        account_embedding | 1 | 1 when the embedding counts as a layer in the pipeline split
        account_loss | 1 | 1 when the loss counts as a layer in the pipeline split
        fused_loss | 1 | 1 with fused cross-entropy
        dropout | 1 | 1 with dropout
        """,
    )
    + _inputs(
        "model",
        """
        L | 1 | decoder layers
        h | 1 | hidden size
        f | 1 | feed-forward hidden size
        a | 1 | attention heads (queries)
        k | 1 | key/value heads
        d | 1 | head dimension
        gates | 1 | 1 when the MLP is gated (SwiGLU), else 0
        V | 1 | vocabulary
        V_multiple | 1 | the vocabulary is padded to a multiple of this times tp
        positions | 1 | learned positions (0 with rotary embedding)
        rotary | 1 | 1 with rotary embedding
        tied | 1 | 1 when input and output embedding share weights
        norm_vectors | 1 | vectors of one norm: 1 RMSNorm, 2 LayerNorm
        biases | 1 | 1 when linear layers have biases
        qkv_biases | 1 | 1 when only the QKV projection (or all linear layers) has a bias
        qk_norms | 1 | 1 when queries and keys are normalised
        """,
    )
    + _inputs(
        "workload",
        """
        s | 1 | tokens of one sequence
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
        quantise_kernels | 1 | kernels one operand's quantisation launches
        linear_peak | FLOP/s | dense peak of the linear layers' format
        linear_fraction | 1 | fraction of linear_peak that large GEMMs reach
        linear_wave | 1 | weight of the last, partly filled wave of tiles
        linear_launch | s | fixed time of one linear GEMM
        """,
    )
    + _inputs(
        "hardware",
        """
        gpu_sms | 1 | streaming multiprocessors
        gpu_peak | FLOP/s | dense peak of the 16-bit (or model) format, used by attention and vocabulary
        gpu_memory | byte | device memory usable by the process
        hbm_bandwidth | byte/s | datasheet memory bandwidth
        gemm_fraction | 1 | fraction of gpu_peak that large 16-bit GEMMs reach
        gemm_wave | 1 | weight of the last wave, 16-bit GEMMs
        gemm_launch | s | fixed time of one 16-bit GEMM
        gemm_bandwidth_fraction | 1 | fraction of hbm_bandwidth a memory-bound GEMM reaches
        attention_forward_fraction | 1 | fraction of gpu_peak of long-sequence attention, forward
        attention_forward_half | 1 | sequence length of half that rate, forward
        attention_backward_fraction | 1 | fraction of gpu_peak, backward
        attention_backward_half | 1 | sequence length of half that rate, backward
        attention_launch | s | fixed time of one attention kernel
        elementwise_fraction | 1 | fraction of hbm_bandwidth of element-wise kernels
        norm_fraction | 1 | fraction of hbm_bandwidth of fused norms, forward
        norm_backward_fraction | 1 | fraction of hbm_bandwidth of fused norms, backward
        stream_fraction | 1 | fraction of hbm_bandwidth of plain streaming (optimizer)
        kernel_launch | s | device-side gap of one kernel launch
        graph_launch | s | the same inside a CUDA graph
        host_kernel | s | host time to issue one kernel, eager
        domain | 1 | GPUs of one scale-up (NVLink) domain
        send_recv_latency | s | point-to-point inside a domain, fixed time
        send_recv_bandwidth | byte/s | point-to-point inside a domain
        network_bandwidth | byte/s | bus bandwidth of one GPU's network cards
        network_latency | s | time of a collective over the network for each doubling of the domains
        attention_half_dim | 1 | head dimension at which exponentials take as long as matrix products
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
        library_scale | 1 | rate of a framework's matrix kernels (library release) over those of the tables
        attention_scale | 1 | rate of attention inside a training step over the kernel tables
        elementwise_scale | 1 | bandwidth of element-wise kernels inside a training step over the tables
        kernel_fusion | 1 | element-wise bandwidth of a framework's kernels over fused ones
        intra_scale | 1 | bandwidth of collectives inside a scale-up domain over the tables
        inter_scale | 1 | bandwidth of collectives between domains over the tables
        overlap_slowdown | 1 | compute time lost for each second of communication that runs under it
        unfused_gemm_fraction | 1 | rate of the batched GEMMs of unfused attention, of 16-bit GEMMs
        straggler | 1 | step time lost to the slowest rank for each doubling of the GPUs
        step_overhead | s | fixed time of one step: data loader, logging, scheduler
        """,
    )
)
BY_NAME: dict[str, Input] = {entry.name: entry for entry in INPUTS}


def symbol_table() -> SimpleNamespace:
    """Every input as a positive sympy symbol, by attribute: `x.tp`, `x.hbm_bandwidth`."""
    import sympy

    return SimpleNamespace(**{entry.name: sympy.Symbol(entry.name, nonnegative=True) for entry in INPUTS})
