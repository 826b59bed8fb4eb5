"""Indexed datasets as Megatron-Core's builder writes them, and sequences that do not depend on the layout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import train_all

from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload
from executor.launch import RunFailed, run_worker
from executor.record import read_steps, write_json
from executor.run import make_job, missing_software

pytestmark = pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core")

TINY = load_model("tiny-gpt")
SHORT = Workload(64, 4)
WRITE = """
import sys, torch, numpy
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
for prefix, largest in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.int32)
    for document in range(40):
        builder.add_document(torch.arange(document, document + 50) % largest, [50])
    builder.finalize(prefix + ".idx")
"""
ALONE = Plan(precision="fp32")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Prefixes of two datasets of 40 documents that count up: with tokens below 60, and below any of theirs."""
    folder = tmp_path_factory.mktemp("datasets")
    few, many = str(folder / "few"), str(folder / "many")
    told = [few, "60", many, str(TINY.vocab + 60)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITE, *told], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return few, many


def job_of(plan: Plan, prefix: str) -> dict:
    """A short run on a dataset."""
    return make_job(plan, SHORT, TINY, steps=3, warmup=0, cuda=False, data=prefix)


@pytest.mark.launch
def test_an_indexed_dataset_trains_the_same_in_two_layouts(datasets, tmp_path):
    folders = {tmp_path / "one": ALONE, tmp_path / "two": Plan(dp=2, precision="fp32")}
    jobs = {folder: job_of(plan, datasets[0]) for folder, plan in folders.items()}
    train_all(jobs, tmp_path / "launch")
    one, two = map(read_steps, jobs)
    assert [step["loss"] for step in one] == pytest.approx([step["loss"] for step in two], rel=1e-3)
    assert one[-1]["loss"] < one[0]["loss"]


@pytest.mark.launch
def test_data_of_another_tokenizer_is_refused_by_name(datasets, tmp_path):
    path = Path(datasets[1] + ".bin")
    path.write_bytes(
        path.read_bytes().replace((30).to_bytes(4, "little"), (TINY.vocab + 5).to_bytes(4, "little"))
    )
    write_json(tmp_path / "job.json", job_of(ALONE, datasets[1]))
    with pytest.raises(RunFailed, match=f"holds token {TINY.vocab + 5}"):
        run_worker("executor.workers.train", [str(tmp_path / "job.json")], 1, tmp_path, 300)


def test_sequences_depend_on_their_place_alone():
    """Generated text and own chunks, in a process that may import torch."""
    code = """
import json, sys, torch
from executor.workers.data import batches, generated, own_chunks
def rows(dp, size):
    found = {}
    job = {"workload": {"seq_len": 16}, "plan": {"micro_batch": size, "dp": dp}, "num_microbatches": 8 // dp // size}
    for rank in range(dp):
        for index, batch in enumerate(batches(job, lambda step, places: generated(step, places, 16), 3, rank)):
            for row in range(size):
                found[(index * dp + rank) * size + row] = batch["tokens"][row].tolist()
    return [found[place] for place in range(8)]
assert rows(1, 1) == rows(2, 1) == rows(2, 2) == rows(4, 2)
tokens = torch.arange(24).view(1, 24)
parts = [own_chunks({"tokens": tokens}, rank, 3)["tokens"][0].tolist() for rank in range(3)]
assert parts[0] == [0, 1, 2, 3, 20, 21, 22, 23]
assert sorted(sum(parts, [])) == list(range(24))
print(json.dumps("well"))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == "well"
