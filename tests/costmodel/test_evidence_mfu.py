"""The best published MFU on GPUs of one peak: counted as predictions count it, and said where a prediction is above."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.sections import numbers
from costmodel.evidence.mfu import best_published, published_flops
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.predict import predict
from costmodel.workload import Workload
from hardware_db import load_cluster
from hardware_db.evidence import load_evidence

TUNED = Plan(tp=4, pp=4, vpp=10, dp=16, sequence_parallel=True)


def predicted(where: str = "dgx-a100", **workload):
    asked = Workload(8192, 512, **workload)
    return predict(load_model("llama3-70b"), asked, load_cluster(where), TUNED)


@pytest.mark.parametrize("model", ["llama3-8b", "llama3-70b", "gpt3-175b", "mpt-3b", "nemotron4-15b"])
def test_flops_of_published_runs_are_those_of_predictions(model):
    run = next(each for each in load_evidence() if each.model == model and each.task == "pretrain")
    workload = Workload(run.seq_len, run.global_batch)
    same = predict(load_model(model), workload, load_cluster("dgx-h100"), Plan(dp=1), judged=False)
    assert published_flops(run) == pytest.approx(same.values["model_flops"], rel=0.03)


def test_the_best_run_is_of_the_gpu_and_format_and_reaches_what_its_source_says():
    """llm-foundry's own table has 62.1 % for MPT-3B on A100 80 GB, at best."""
    mfu, count, run = best_published("ampere", 312e12, "bf16")
    assert run.gpu.startswith("a100")
    assert run.precision in ("bf16", "fp16")
    assert count > 200
    assert 0.6 < mfu < 0.66
    assert best_published("ada", 165.2e12, "bf16") is None


def test_an_mfu_that_nobody_published_is_told_as_such():
    """70B on 256 A100: 66 %, where no published run has more than 63 %."""
    found = replace(predicted(), mfu=0.664)
    told = found.beyond_published
    assert told.startswith("no run published on ampere GPUs of this peak has such an MFU: the best of ")
    assert "mpt-3b" in told
    assert told in " ".join(" ".join(numbers(found)).split())
    assert found.to_dict()["mfu_beyond_published"] == told


def test_an_mfu_within_the_published_is_not_remarked_on():
    found = predicted()
    mfu, _, _ = best_published("ampere", 312e12, "bf16")
    assert replace(found, mfu=mfu).beyond_published == ""
    assert replace(found, mfu=mfu).to_dict()["mfu_beyond_published"] is None
    assert predicted("dgx-h100").beyond_published == ""
