"""Indexed datasets as Megatron-Core's builder writes them, and sequences that do not depend on the layout."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
prefix, largest = sys.argv[1], int(sys.argv[2])
builder = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.int32)
for document in range(40):
    builder.add_document(torch.arange(document, document + 50) % largest, [50])
builder.finalize(prefix + ".idx")
"""


def dataset(folder, largest: int) -> str:
    """The prefix of a dataset of 40 documents that count up, with tokens below `largest`."""
    prefix = str(folder / "text")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITE, prefix, str(largest)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return prefix


def trained(folder, plan: Plan, prefix: str) -> list[dict]:
    """Steps of a short run on a dataset."""
    folder.mkdir()
    write_json(
        folder / "job.json",
        make_job(plan, SHORT, TINY, steps=3, warmup=0, cuda=False, data=prefix),
    )
    run_worker("executor.workers.train", [str(folder / "job.json")], plan.world, folder, 300)
    return read_steps(folder)


@pytest.mark.launch
def test_an_indexed_dataset_trains_the_same_in_two_layouts(tmp_path):
    prefix = dataset(tmp_path, 60)
    one = trained(tmp_path / "one", Plan(precision="fp32"), prefix)
    two = trained(tmp_path / "two", Plan(dp=2, precision="fp32"), prefix)
    assert [step["loss"] for step in one] == pytest.approx([step["loss"] for step in two], rel=1e-3)
    assert one[-1]["loss"] < one[0]["loss"]


@pytest.mark.launch
def test_data_of_another_tokenizer_is_refused_by_name(tmp_path):
    prefix = dataset(tmp_path, TINY.vocab + 60)
    path = tmp_path / "text.bin"
    path.write_bytes(
        path.read_bytes().replace((30).to_bytes(4, "little"), (TINY.vocab + 5).to_bytes(4, "little"))
    )
    with pytest.raises(RunFailed, match=f"holds token {TINY.vocab + 5}"):
        trained(tmp_path / "run", Plan(precision="fp32"), prefix)


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
