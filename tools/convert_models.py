"""Write costmodel/models/*.toml from a collection of published architectures.

    python tools/convert_models.py shared/data/models.json

Each model keeps its source, its note and its published totals. Models of the collection without sizes are
named and skipped; files this script did not write (hand-written models, aliases) are left alone.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from costmodel.model_file import from_mapping, to_mapping

FOLDER = Path(__file__).parent.parent / "costmodel" / "models"
FACTS = tomllib.loads(Path(__file__).with_name("model_facts.toml").read_text(encoding="utf-8"))
HEADER = "# Written by tools/convert_models.py; counts in units of one. Correct the script, not this file.\n"

# What the collection leaves open or states wrongly, with the reason.
CORRECTIONS: dict[str, dict[str, Any]] = {
    "qwen3-next-80b-a3b": {
        "norm": "RMSNorm",
        "qk_norm": True,
        "attention_output_gate": True,
        # The collection's own count takes every layer for full attention and says that it is not valid.
        "params_computed": None,
        "params_active_computed": None,
        "note": "3 of 4 layers are gated delta net; attention output gate, norm of Q and K and "
        "shared expert gate as transformers Qwen3NextConfig and modeling_qwen3_next",
    },
    "deepseek-v4-flash": {
        "norm": "RMSNorm",
        "note": "compressed sparse attention: compressors counted as four projections a layer of light compression "
        "and two of heavy, half of the layers each; the router's "
        "score is softmax as in the resolved recipe, while transformers' DeepseekV4Config says sqrtsoftplus, which "
        "Megatron-Core has in 0.19",
    },
}
# Total that the source prints for the model itself, where its first number is not that.
PRINTED_TOTALS = {"nemotron3-nano-30b-a3b": 31_600_000_000}
# Groups of experts and how many of them a token's experts are in, which the collection has not.
# Source: n_group and topk_group of transformers DeepseekV2Config and DeepseekV3Config as published with the weights.
ROUTER_GROUPS = {"deepseek-v2": (8, 3), "deepseek-v3": (8, 4)}
# Parts of a citation that only the collector can follow.
PRIVATE = (
    (r"\(file id \d+: ", "("),
    (r",? ?\(file id \d+\)", ""),
    (r" \(data/recipe_flags\.json\.gz\)| \(read visually\)", ""),
    (r"; the value that reproduces [^;]*flops_formula\.md|,? see flops_formula\.md", ""),
    (r"\b(the )?notes on ", ""),
    (r"report note", "report"),
)


def main(path: str) -> None:
    """Convert the collection at `path`, one file per model."""
    collection = json.loads(Path(path).read_text(encoding="utf-8"))
    for name, entry in collection.items():
        if name == "_meta":
            continue
        if entry["layers"] is None:
            print(f"skipped {name}: {entry['source']}")
            continue
        spec = from_mapping(with_facts(name, convert(name, entry) | CORRECTIONS.get(name, {})))
        text = tomli_w.dumps(to_mapping(spec))
        (FOLDER / f"{name}.toml").write_text(HEADER + text, encoding="utf-8")


def convert(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Our field names and units for one entry of the collection."""
    values: dict[str, Any] = {
        "name": name,
        "num_layers": entry["layers"],
        "hidden": entry["hidden"],
        "ffn_hidden": entry["ffn_hidden"],
        "num_heads": entry["heads"],
        "num_kv_heads": entry["kv_groups"],
        "head_dim": entry["head_dim"],
        "gated": entry["gated"],
        "activation": entry["activation"],
        "norm": entry["norm"],
        "vocab": entry["vocab"],
        "vocab_divisible_by": entry.get("vocab_divisible_by"),
        "vocab_padded": entry.get("vocab_padded"),
        "tied_embeddings": entry["tied_embeddings"],
        "qk_norm": entry.get("qk_layernorm", False),
        "linear_bias": entry["linear_bias"],
        "qkv_bias": entry["qkv_bias"],
        "learned_positions": entry.get("learned_pos", 0),
        "seq_len": entry.get("seq_len", 0),
        "layer_pattern": entry.get("layer_pattern") or "",
        "attention_chunk": entry.get("attention_chunk_size", 0),
        "nope_layer_interval": entry.get("nope_layer_interval", 0),
        "attention_sink": "attention_sink" in entry,
        "mtp_layers": entry.get("mtp_layers", 0),
        "mtp_pattern": entry.get("mtp_pattern") or "",
        "params_published": PRINTED_TOTALS.get(name, printed_total(entry.get("params_published"))),
        "params_printed": entry.get("params_published", ""),
        "params_published_source": public(entry.get("params_published_source", "")),
        "params_computed": entry["params_total_computed"],
        "params_active_computed": entry["params_active_computed"],
        "vocab_source": public(entry.get("vocab_source", "")),
        "source": public(entry["source"]),
        "note": public(entry.get("note", "")),
    }
    tables = convert_tables(entry)
    if name in ROUTER_GROUPS:
        groups, picked = ROUTER_GROUPS[name]
        tables["moe"] |= {"router_groups": groups, "router_group_topk": picked}
    return values | tables


def with_facts(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The model with what FACTS says of its norms, rotary positions and router."""
    own = dict(FACTS.get(name, {}))
    if moe := own.pop("moe", None):
        own["moe"] = values["moe"] | moe
    if source := own.pop("source", ""):
        own["source"] = f"{values['source']}; {source}"
    return values | own


def convert_tables(entry: dict[str, Any]) -> dict[str, Any]:
    """Nested tables of one entry."""
    tables: dict[str, Any] = {}
    if "moe" in entry:
        moe = dict(entry["moe"])
        pattern = moe.pop("moe_layer_pattern")
        first = moe["dense_first_layers"]
        interval = 2 if isinstance(pattern, list) and 0 in pattern[first:] else 1
        if isinstance(pattern, list):
            rule = [int(i >= first and (i - first) % interval == 0) for i in range(entry["layers"])]
            assert rule == pattern, f"the rule of sparse layers does not give {pattern}"
        gate = "shared expert gate" in entry.get("note_gdn", "")
        experts = moe.pop("experts")
        tables["moe"] = {
            "num_experts": experts,
            **moe,
            "layer_interval": interval,
            "shared_expert_gate": gate,
        }
    if "csa" in entry:
        tables["compressed_attention"] = convert_csa(entry)
    elif "mla" in entry:
        tables["mla"] = entry["mla"]
    if "mamba" in entry:
        tables["mamba"] = entry["mamba"]
    if "gdn" in entry:
        tables["gated_delta"] = {key.removeprefix("linear_"): value for key, value in entry["gdn"].items()}
    if "sliding_window" in entry:
        window = entry["sliding_window"]
        assert window["pattern"].startswith("alternating: odd layers (1-indexed) sliding-window")
        tables["sliding_window"] = {"window": window["window"][0], "full_attention_interval": 2}
    return tables


def convert_csa(entry: dict[str, Any]) -> dict[str, Any]:
    """Sizes of compressed sparse attention, which the collection prints as a sentence."""
    patterns = {
        "q_lora_rank": r"q_lora (\d+)",
        "window": r"window (\d+)",
        "light_ratio": r"compress ratios (\d+)/",
        "heavy_ratio": r"compress ratios \d+/(\d+)",
        "index_heads": r"index heads (\d+)x",
        "index_head_dim": r"index heads \d+x(\d+)",
        "index_topk": r"topk (\d+)",
        "out_groups": r"o_groups (\d+)/",
        "out_lora_rank": r"o_lora (\d+)",
        "residual_streams": r"hyper-connections mult (\d+)",
    }
    found = {name: re.search(pattern, entry["csa"]) for name, pattern in patterns.items()}
    sizes = {name: int(match[1]) for name, match in found.items() if match}
    return sizes | {"rope_head_dim": entry["mla"]["qk_pos_emb_head_dim"]}


def printed_total(text: str | None) -> int | None:
    """The first number of a printed total such as '236B / 21B'. [1]"""
    match = re.match(r"([\d.]+)([BT])", text or "")
    return round(float(match[1]) * {"B": 1e9, "T": 1e12}[match[2]]) if match else None


def public(text: str) -> str:
    """A citation without what only the collector can follow."""
    for pattern, replacement in PRIVATE:
        text = re.sub(pattern, replacement, text)
    return text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the path of models.json: python tools/convert_models.py shared/data/models.json")
    main(sys.argv[1])
