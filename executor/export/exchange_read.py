"""How context-parallel ranks exchange, read back: one word, or a list with a word for each layer.

A plan has one exchange for all layers. A list of one word is that word; of a mixed list the word of most layers is
read, and a line says so. Source: TransformerConfig.cp_comm_type; Megatron-Core 0.16.1 checks the length of a list
(transformer_config.py:1928-1938) and reads the next layer's word (transformer_layer.py:297), 0.19.2 the layer's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from costmodel.knobs import KNOBS

KNOB = KNOBS["cp_comm_type"]


def exchange_of(fields: Mapping[str, Any]) -> str:
    """The exchange of all layers, or of most. ValueError in one line for a word or a number of words that is none."""
    words = _words(fields)
    return Counter(words).most_common(1)[0][0] if words else str(KNOB.default)


def mixed_exchange(fields: Mapping[str, Any]) -> Iterator[str]:
    """A line about a list whose layers differ, which no plan says."""
    counts = Counter(_words(fields)).most_common()
    if len(counts) > 1:
        said = " and ".join(f"{word} for {number}" for word, number in counts)
        others = " or ".join(f"--cp-comm-type {word}" for word, _ in counts[1:])
        yield (
            f"cp_comm_type {said} of {sum(number for _, number in counts)} layers (a plan has one for all layers, so "
            f"{counts[0][0]} is read; {others} tells what the others cost)"
        )


def _words(fields: Mapping[str, Any]) -> list[str]:
    """The exchange of each layer that is named, in our words; none where nothing or a variable is said."""
    said = fields.get("cp_comm_type")
    words = [str(word) for word in said] if isinstance(said, list | tuple) else [str(said)] if said else []
    if any("$" in word for word in words):
        return []
    layers = fields.get("num_layers")
    if len(words) > 1 and isinstance(layers, int) and len(words) != layers:
        raise ValueError(
            f"cp_comm_type names {len(words)} exchanges for {layers} layers: Megatron-Core wants one word for each "
            f"layer, or one for all. Try {words[0]} alone."
        )
    return [KNOB.parse(word) for word in words]
