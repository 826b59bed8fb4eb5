"""Micro-batches of a run: generated text with a structure to learn, or an indexed dataset of Megatron-Core.

A sequence depends on its place in the global batch only, so that every layout trains on the same text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

# Tokens that the generated text uses; few, so that a small model learns it in some steps.
ALPHABET = 64
SEED = 1234

Batch = dict[str, torch.Tensor]
Draw = Callable[[int, list[int]], torch.Tensor]


def source(job: dict[str, Any]) -> Draw:
    """Where sequences come from: step and places in the global batch to tokens (places, length + 1)."""
    if job.get("data"):
        return indexed(job)
    length = job["workload"]["seq_len"]
    return lambda step, places: generated(step, places, length)


def batches(job: dict[str, Any], draw: Draw, step: int, data_rank: int) -> list[Batch]:
    """Micro-batches of one step of one data-parallel rank, over the whole sequence."""
    length, size = job["workload"]["seq_len"], job["plan"]["micro_batch"]
    places = [
        place
        for index in range(job["num_microbatches"])
        for first in [(index * job["plan"]["dp"] + data_rank) * size]
        for place in range(first, first + size)
    ]
    return [
        {
            "tokens": part[:, :-1].contiguous(),
            "labels": part[:, 1:].contiguous(),
            "positions": torch.arange(length).expand(size, -1).contiguous(),
        }
        for part in draw(step, places).split(size)
    ]


def own_chunks(batch: Batch, rank: int, ranks: int) -> Batch:
    """A rank's part of the sequences under context parallelism: chunks r and 2 cp - 1 - r of 2 cp.

    One with few tokens before it and one with many, so that causal attention is balanced. Source: Megatron-Core,
    utils.py, get_batch_on_this_cp_rank, whose arguments differ between releases.
    """
    if ranks == 1:
        return batch
    found = {}
    for name, tensor in batch.items():
        chunks = tensor.chunk(2 * ranks, dim=1)
        found[name] = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]], dim=1)
    return found


def generated(step: int, places: list[int], length: int) -> torch.Tensor:
    """Noisy arithmetic sequences: nine tokens of ten follow from the one before."""
    draws = []
    for place in places:
        draw = torch.Generator().manual_seed(step * 1_000_003 + place)
        noise = torch.randint(0, ALPHABET, (length + 1,), generator=draw)
        draws.append((noise, torch.rand(length + 1, generator=draw) < 0.9))
    # Positions first: the rule walks along them for all sequences at once.
    tokens = torch.stack([noise for noise, _ in draws], dim=1)
    follow = torch.stack([kept for _, kept in draws], dim=1)
    for position in range(1, length + 1):
        next_token = (5 * tokens[position - 1] + 7) % ALPHABET
        tokens[position] = torch.where(follow[position], next_token, tokens[position])
    return tokens.T.contiguous()


def indexed(job: dict[str, Any]) -> Draw:
    """Sequences of an indexed dataset (PREFIX.bin and PREFIX.idx), shuffled as Megatron-Core shuffles them."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    prefix, length = job["data"], job["workload"]["seq_len"]
    batch, vocab = job["workload"]["global_batch"], job["model"]["vocab"]
    # The end of a document is written into the data; the rest of a tokenizer is not asked for.
    tokenizer = SimpleNamespace(
        vocab_size=vocab, eod=vocab - 1, pad=vocab - 1, unique_identifiers={"vocab": vocab}
    )
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=length,
        blend=([prefix], None),
        split="1",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        path_to_cache=str(Path(job["out"]) / "dataset"),
    )
    wanted = [job["steps"] * batch, 0, 0]
    dataset = BlendedMegatronDatasetBuilder(GPTDataset, wanted, lambda: True, config).build()[0]
    dist.barrier()

    def draw(step: int, places: list[int]) -> torch.Tensor:
        samples = [dataset[step * batch + place] for place in places]
        tokens = torch.stack([torch.cat([each["tokens"], each["labels"][-1:]]) for each in samples])
        largest = int(tokens.max())
        if largest >= vocab:
            raise ValueError(
                f"--data {prefix} holds token {largest}, and {job['model']['name']} has {vocab}: another tokenizer. "
                "Try the data of the model's own"
            )
        return tokens.long()

    return draw
