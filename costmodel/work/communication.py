"""Messages of one rank: bytes, group sizes, and how many ranks of a group share a scale-up domain.

Ranks are placed in Megatron's order tp-cp-ep-dp-pp: neighbours in tp first, pipeline stages last.
Sizes follow nccl-tests: the gathered buffer for all-gather, the input for reduce-scatter, the full
buffer for all-reduce, the per-rank buffer for all-to-all and send/recv.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from costmodel.amount import Amount, is_more_than_one, maximum, minimum
from costmodel.work.linear import tokens


def world(x: SimpleNamespace) -> Amount:
    """GPUs of the plan: dp x cp x (tp x pp + the encoder's tp x pp where it has GPUs of its own). [1]"""
    return x.cp * x.dp * (x.tp * x.pp + x.enc_own * x.enc_tp * x.enc_pp)


def ranks_in_domain(x: SimpleNamespace, ranks: Amount, stride: Amount, straddle: Amount = 0) -> Amount:
    """How many ranks of a group share one scale-up domain, when they stand `stride` GPUs apart. [1]

    min(ranks, domain / stride), at least one; for a group that straddles the edge of a domain the ranks on its
    smaller side (`costmodel.placement.smaller_side`), which carry its traffic. Source: Megatron-Core,
    parallel_state.RankGenerator, order tp-cp-ep-dp-pp.
    """
    usual = maximum(minimum(ranks, x.domain / stride), 1)
    straddles = minimum(straddle, 1)
    return straddles * straddle + (1 - straddles) * usual


def tensor_parallel_bytes(x: SimpleNamespace) -> Amount:
    """Hidden states of one micro-batch, reduced over tp; 16-bit also under FP8. [byte]

    Source: arXiv:2205.05198, sec. 4.2.
    """
    return x.activation_bytes * tokens(x) * x.h


def context_parallel_ring_bytes(x: SimpleNamespace, width: Amount) -> Amount:
    """Keys and values that one rank passes on in one step of the ring, forward. [byte]

    width: columns of keys and of values on this rank together. Backward passes keys, values and their
    gradients: twice this. Source: Ring attention, arXiv:2310.01889; Transformer Engine, AttnFuncWithCPAndKVP2P.
    """
    return x.activation_bytes * tokens(x) * width


@dataclass(frozen=True)
class ContextColumns:
    """Columns of keys and values together, of queries and of the output of attention, on one rank. [1]"""

    keys: Amount
    queries: Amount
    output: Amount

    @property
    def everything(self) -> Amount:
        """All that an all-to-all exchanges in a pass. [1]"""
        return self.keys + self.queries + self.output


def ring_merge_bytes(x: SimpleNamespace, columns: ContextColumns) -> dict[str, Amount]:
    """HBM bytes by which one step of the ring is merged with what came before, forward and backward. [byte]

    Forward: a partial output is scaled and added to a sum in FP32 (2 + 4 + 4 bytes). Backward: gradients of queries,
    keys and values are added (three times the element). Half of the steps of a causal, balanced ring work on
    half of the queries. Source: Transformer Engine, context_parallel.py, flash_attn_fwd_out_correction.
    """
    rows = 0.75 * tokens(x)
    return {
        "forward": (x.activation_bytes + 8) * rows * columns.output,
        "backward": 3 * x.activation_bytes * rows * (columns.queries + columns.keys),
    }


def context_parallel_a2a_bytes(x: SimpleNamespace, width: Amount) -> Amount:
    """Queries, keys, values and output that one rank exchanges, forward; the same backward. [byte]

    width: their columns on this rank together. Source: DeepSpeed-Ulysses, arXiv:2309.14509.
    """
    return x.activation_bytes * tokens(x) * width


def pipeline_bytes(x: SimpleNamespace) -> Amount:
    """Hidden states of one micro-batch that one rank sends to the next stage. [byte]

    Divided by tp with sequence parallelism, and where a stack scatters them; with hyper-connections every residual
    stream, which the next stage's layers mix. Sources: arXiv:2104.04473, sec. 3.2 and 4.1; arXiv:2409.19606.
    """
    return pipeline_width(x) / (1 + maximum(x.sp, x.scatter_gather) * (x.tp - 1))


def pipeline_width(x: SimpleNamespace) -> Amount:
    """Hidden states between two stages, all tensor-parallel ranks' parts. [byte]"""
    return x.residual_streams * tensor_parallel_bytes(x)


def pipeline_gather_bytes(x: SimpleNamespace) -> Amount:
    """Hidden states that a stage joins again where a stack scatters them. [byte] Source: arXiv:2104.04473, sec. 4.1."""
    return x.scatter_gather * (1 - x.sp) * pipeline_width(x)


def gradient_bytes(x: SimpleNamespace, parameters: Amount) -> Amount:
    """Gradients of trained parameters, reduced over the ranks that hold the same ones. [byte]"""
    return x.grad_bytes * parameters


def gather_bytes(x: SimpleNamespace, parameters: Amount) -> Amount:
    """One rank's parameters, gathered after the optimizer step. [byte]"""
    return x.gather_bytes * parameters


def data_parallel_ranks(x: SimpleNamespace) -> Amount:
    """Ranks that hold the same parameters: dp x cp. [1] Source: Megatron-Core, DATA_PARALLEL_GROUP_WITH_CP."""
    return x.dp * x.cp


def state_shard(x: SimpleNamespace, ranks: Amount, shard: Amount) -> Amount:
    """Ranks over which optimizer state is sharded: a shard group's, or all of them where its replicas share it. [1]

    Source: Megatron-Core 0.19.2, megatron_fsdp, outer_dp_sharding_strategy.
    """
    return shard + x.outer_sharded * (ranks - shard)


def pipeline_ranks_in_domain(x: SimpleNamespace) -> Amount:
    """Ends of a message between neighbouring stages that share a domain: both, else one. [1]

    The last boundary decides: once the plan is larger than a domain, some stage boundary leaves it.
    """
    return 1 + minimum(1, maximum(0, x.domain + 1 - world(x))) * is_more_than_one(x.pp)
