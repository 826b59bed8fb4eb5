"""Seconds of a block's element-wise kernels: of their bytes at the memory's rate, or of the cycles they take of SMs."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.exposed import Times
from costmodel.rates import outlasted, stream, tuned_stream
from costmodel.term import Ledger
from costmodel.work.block import BlockWork

# NVTE_FWD/BWD_LAYERNORM_SM_MARGIN of the published recipes.
USUAL_NORM_MARGIN = 16


def stream_times(ledger: Ledger, x: SimpleNamespace, block: BlockWork) -> Times:
    """Forward and backward time of each of the block's element-wise streams.

    Norms leave SMs to communication, which a memory-bound kernel feels by half; tables hold the usual 16.
    """
    margin = 1 - (x.norm_margin - USUAL_NORM_MARGIN) / x.gpu_sms / 2
    rates = {
        ("norm", "forward"): x.norm_fraction * margin,
        ("norm", "backward"): x.norm_backward_fraction * margin,
        ("contiguous", "forward"): x.contiguous_fraction,
        ("contiguous", "backward"): x.contiguous_fraction,
        ("permute", "forward"): x.permute_fraction,
        ("permute", "backward"): x.permute_fraction,
    }
    return {
        one.name: {
            name: ledger.define(
                f"{block.name}_{one.name}_{name}",
                outlasted(
                    x,
                    (tuned_stream if one.kind == "norm" else stream)(
                        x, size, rates.get((one.kind, name), x.elementwise_fraction)
                    ),
                    getattr(x, cycles) * busy if cycles else 0,
                ),
                "s",
                f"costmodel.work.elementwise.{one.name}"
                if one.name in ("norm", "residual", "rotary", "activation")
                else "costmodel.timing.kernels.stream_time",
            )
            for name, size, busy, cycles in (
                ("forward", one.forward, one.busy[0], one.cycles[0]),
                ("backward", one.backward, one.busy[1], one.cycles[1]),
            )
        }
        for one in block.streams
    }
