"""The best MFU that a published run reaches on GPUs of one peak, and whether a prediction is above.

The model FLOP of a published run are counted as 6 for each parameter that multiplies a token and 6 x layers x hidden
size x sequence length for causal attention, of each token: exact to 3 % for dense models
(`tests/costmodel/test_evidence_mfu.py`), and too many for models with few layers of attention, so that no prediction is
called above what was reached there in vain.
"""

from __future__ import annotations

from functools import lru_cache

from costmodel.binding import precision_recipe
from costmodel.model_registry import load_model
from hardware_db import Gpu, load_gpu
from hardware_db.evidence import Evidence, load_evidence

# A prediction this much above the best is above it, whatever the count of FLOP errs by. [1]
ABOVE = 1.03


@lru_cache(maxsize=2048)
def published_flops(run: Evidence) -> float:
    """Model FLOP of one step of a published run, recompute not counted. [FLOP]"""
    model = load_model(run.model)
    looked_up = 0 if model.tied_embeddings else model.vocab * model.hidden
    return _most_flops(run) - 6 * looked_up * run.seq_len * run.global_batch


@lru_cache(maxsize=64)
def number_format(precision: str) -> str:
    """The format of a recipe's matrix products; bf16 for fp16 too, whose peak is the same."""
    dtype = str(precision_recipe(precision)["gemm"])
    return "bf16" if dtype == "fp16" else dtype


@lru_cache(maxsize=64)
def best_published(generation: str, peak: float, dtype: str) -> tuple[float, int, Evidence] | None:
    """The best MFU [1] of published runs on GPUs of a generation and peak [FLOP/s], of how many, and which; or None.

    LoRA is left out: its frozen weights have no gradient.
    """
    alike = [
        run
        for run in load_evidence()
        if run.generation == generation
        and run.task != "lora"
        and number_format(run.precision) == dtype
        and _peak(run.gpu, dtype) == peak
    ]
    if not alike:
        return None
    best: tuple[float, Evidence] | None = None
    # Parameters that are looked up need the model's file: read for those alone that can be the best.
    for most, run in sorted(
        ((_rate(run, _most_flops(run)), run) for run in alike), key=lambda each: -each[0]
    ):
        if best is not None and most <= best[0] * peak:
            break
        mfu = _rate(run, published_flops(run)) / peak
        if best is None or mfu > best[0]:
            best = (mfu, run)
    assert best is not None
    return best[0], len(alike), best[1]


def _rate(run: Evidence, flops: float) -> float:
    return flops / (run.measured_step_time_s * run.gpus)


def _most_flops(run: Evidence) -> float:
    """What `published_flops` is not above. [FLOP]"""
    a_token = 6 * run.parameters + 6 * run.layers * run.hidden * run.seq_len
    return a_token * run.seq_len * run.global_batch


@lru_cache(maxsize=256)
def _peak(gpu: str, dtype: str) -> float | None:
    return load_gpu(gpu).peak(dtype)


def beyond_published(mfu: float, gpu: Gpu, precision: str, task: str) -> str:
    """One sentence without full stop where no published run on such GPUs has the MFU predicted, else ""."""
    if task == "lora":
        return ""
    dtype = number_format(precision)
    best = best_published(gpu.generation, gpu.peak(dtype) or 0.0, dtype)
    if best is None or mfu <= ABOVE * best[0]:
        return ""
    reached, count, run = best
    runs = f"the best of {count} reaches" if count > 1 else "the only one reaches"
    return (
        f"no run published on {gpu.generation} GPUs of this peak has such an MFU: {runs} about {100 * reached:.0f} % "
        f"({run.model}, {run.gpus:,} GPUs of {run.cluster}, {run.source})"
    )
