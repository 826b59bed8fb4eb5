"""Record what torchtitan's releases read from a job file, and the sizes of their flavours.

    python tools/record_torchtitan.py FOLDER             reads the wheels in FOLDER, writes advisor/torchtitan/*.toml
    python tools/record_torchtitan.py FOLDER --download  fetches those that are missing first (about 1 MB, from PyPI)

Wheels are read as zip files and their Python as syntax trees; nothing of them is imported. Flavours are those of the
last release that lists them, in the terms of our model files.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.torchtitan.job import tables
from advisor.torchtitan.python_form import read_source
from advisor.torchtitan.python_job import recorded

HERE = Path(__file__).resolve().parent.parent / "advisor" / "torchtitan"
# Releases that are configured by a TOML file, oldest first, and the module of its classes.
RELEASES = {
    "0.1.0": "torchtitan/config_manager.py",
    **dict.fromkeys(("0.2.0", "0.2.1", "0.2.2"), "torchtitan/config/job_config.py"),
}
# The release that is configured in Python: its module of classes, and those of them that hold keys.
PYTHON = "0.3.0"
CONFIGS = "torchtitan/config/configs.py"
PARTS = {
    "training": "TrainingConfig",
    "parallelism": "ParallelismConfig",
    "compile": "CompileConfig",
    "debug": "DebugConfig",
}
FIRST, LAST = min(RELEASES), max(RELEASES)
# Models of decoders of text: where their flavours and the defaults of those stand in the last release.
FAMILIES = {
    "llama3": "TransformerModelArgs",
    "llama4": "TransformerModelArgs",
    "deepseek_v3": "DeepSeekV3ModelArgs",
    "qwen3": "Qwen3ModelArgs",
    "gpt_oss": "GptOssModelArgs",
}
Values = dict[str, Any]
# Flavours that came with 0.3.0, as arguments of the class before it: models/llama3/__init__.py, _1b and _3b.
SMALL = {"n_kv_heads": 8, "multiple_of": 1024, "rope_theta": 500000, "enable_weight_tying": True}
NEWER: dict[str, dict[str, Values]] = {
    "llama3": {
        "1B": SMALL | {"dim": 2048, "n_layers": 16, "n_heads": 32, "ffn_dim_multiplier": 1.5},
        "3B": SMALL | {"dim": 3072, "n_layers": 28, "n_heads": 24, "ffn_dim_multiplier": 1.0},
    }
}


def main() -> None:
    """Write both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--download", action="store_true")
    given = parser.parse_args()
    releases = (*RELEASES, PYTHON)
    wheels = {release: given.folder / f"torchtitan-{release}-py3-none-any.whl" for release in releases}
    for release, wheel in wheels.items():
        if given.download and not wheel.exists():
            command = [sys.executable, "-m", "pip", "download", f"torchtitan=={release}", "--no-deps"]
            subprocess.run([*command, "--ignore-requires-python", "-d", str(given.folder)], check=True)
    sources = {release: zipfile.ZipFile(wheel) for release, wheel in wheels.items()}
    (HERE / "keys.toml").write_text(keys_text(sources), encoding="utf-8")
    (HERE / "registry.toml").write_text(registry_text(sources[PYTHON], PYTHON), encoding="utf-8")
    (HERE / "flavors.toml").write_text(flavors_text(sources[LAST], LAST), encoding="utf-8")


def _tree(wheel: zipfile.ZipFile, path: str) -> ast.Module:
    return ast.parse(wheel.read(path).decode())


def keys_text(wheels: Mapping[str, zipfile.ZipFile]) -> str:
    """keys.toml: type and default of every key, and the releases that have it where not all do."""
    found = {release: _keys(_tree(wheels[release], path)) for release, path in RELEASES.items()}
    found[PYTHON] = _keys(_tree(wheels[PYTHON], CONFIGS), PARTS)
    lines = [
        "# Written by tools/record_torchtitan.py from torchtitan's wheels. Correct the script, not this file.",
        "# Keys of a job file: type as Python writes it and default, of the last release that has the key; since,",
        "# until: the releases that have it, where not all do. Source: config_manager.py of 0.1.0, else",
        "# config/job_config.py.",
        "# files: releases that job files configure, not Python.",
        f"releases = [{', '.join(map(_quoted, found))}]",
        f"files = [{', '.join(map(_quoted, RELEASES))}]",
        "",
        "[keys]",
    ]
    for name in dict.fromkeys(name for keys in found.values() for name in keys):
        having = [release for release in found if name in found[release]]
        kind, default = found[having[-1]][name]
        parts = [f"type = {_quoted(kind)}"]
        parts += [] if default is None else [f"default = {_literal(default)}"]
        parts += [] if having[0] == FIRST else [f'since = "{having[0]}"']
        parts += [] if having[-1] == PYTHON else [f'until = "{having[-1]}"']
        lines.append(f'"{name}" = {{ {", ".join(parts)} }}')
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str | list | bool) else repr(value)


def _keys(tree: ast.Module, parts: Mapping[str, str] | None = None) -> dict[str, tuple[str, Any]]:
    """Type and default of every leaf of JobConfig, or of the classes of some parts, by its dotted name."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found: dict[str, tuple[str, Any]] = {}

    def walk(name: str, above: str) -> None:
        for node in classes[name].body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            kind = ast.unparse(node.annotation)
            if kind in classes:
                walk(kind, f"{above}{node.target.id}.")
            else:
                found[above + node.target.id] = (kind, _value(node.value, {}))

    for part, name in (parts or {"": "JobConfig"}).items():
        walk(name, f"{part}." if part else "")
    return found


def _value(node: ast.expr | None, classes: Mapping[str, ast.ClassDef]) -> Any:
    """A literal, what a field's factory makes, or the arguments of a class over its defaults."""
    if node is None:
        return None
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called == "field":
            made = node.keywords[0].value
            if isinstance(made, ast.Lambda):
                return _value(made.body, classes)
            return _instance(ast.unparse(made), {}, classes) if ast.unparse(made) in classes else []
        return _instance(called, {word.arg or "": word.value for word in node.keywords}, classes)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _value(node.left, classes) * _value(node.right, classes)
    return ast.literal_eval(node)


def _instance(name: str, given: Mapping[str, ast.expr], classes: Mapping[str, ast.ClassDef]) -> Values:
    values: Values = {}
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            values[node.target.id] = _value(given.get(node.target.id, node.value), classes)
    return values


def flavors_text(wheel: zipfile.ZipFile, release: str) -> str:
    """flavors.toml: each flavour of each family as a model of ours, with what it says beside sizes."""
    flavors: dict[str, dict[str, Values]] = {}
    for family, kind in FAMILIES.items():
        folder = f"torchtitan/models/{family}"
        trees = [_tree(wheel, path) for path in (f"{folder}/model/args.py", "torchtitan/models/moe/moe.py")]
        classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
        source = _tree(wheel, f"{folder}/__init__.py")
        pipelined = "pipelining_fn=None" not in ast.unparse(source)
        steered = "build_optimizers_with_moe_load_balancing" in ast.unparse(source).partition("def get_")[2]
        table = next(
            node.value for node in source.body if isinstance(node, ast.Assign) and _is_table(node.value, kind)
        )
        assert isinstance(table, ast.Dict)
        flavors[family] = {
            ast.literal_eval(name): _model(family, _value(made, classes), steered, pipelined)
            for name, made in zip(table.keys, table.values, strict=True)
            if name is not None
        } | {
            name: _model(family, _instance(kind, {}, classes) | args, steered, pipelined)
            for name, args in NEWER.get(family, {}).items()
        }
    lines = [
        "# Written by tools/record_torchtitan.py from torchtitan's wheel. Correct the script, not this file.",
        "# Flavours by model, as in a model file: sizes, and parts of it; every: what all its flavours have.",
        "# kernel: of attention, where not PyTorch's fused one; documents: attention stays in each; steered: a bias",
        "# of each expert is by its load; pipelined: false where it has no pipeline stages. Source:",
        "# models/*/__init__.py, model/args.py and model/model.py.",
        f"release = {_quoted(release)}",
    ]
    for family, found in flavors.items():
        every = _shared(list(found.values()))
        for name, said in {
            "every": every,
            **{key: _without(each, every) for key, each in found.items()},
        }.items():
            lines += ["", f"[models.{family}.{_key(name)}]"]
            lines += [f"{key} = {_inline(value)}" for key, value in said.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else _quoted(name)


def _inline(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if not isinstance(value, dict):
        return _literal(value)
    return f"{{ {', '.join(f'{_key(name)} = {_inline(each)}' for name, each in value.items())} }}"


def registry_text(wheel: zipfile.ZipFile, release: str) -> str:
    """registry.toml: what the configurations of each family make, without keys that change no step."""
    idle = {*tables("roles")["idle"]}
    lines = [
        "# Written by tools/record_torchtitan.py from torchtitan's wheel. Correct the script, not this file.",
        "# What each function of models/*/config_registry.py makes, as advisor/torchtitan/python_form.py reads it:",
        '# "()" is what a call calls, "*" its arguments without a name.',
        f"release = {_quoted(release)}",
    ]
    for family in FAMILIES:
        path = f"torchtitan/models/{family}/config_registry.py"
        if path not in wheel.namelist():
            continue
        for name, made in recorded(read_source(wheel.read(path).decode())).items():
            if "debug" in name:  # of a few layers
                continue
            made["model_spec"]["from"] = f"torchtitan.models.{family}.model_registry"
            lines += ["", f"[configurations.{family}.{name}]"]
            for part, value in made.items():
                kept = _without_idle(part, value, idle)
                lines += [f"{_key(part)} = {_inline(kept)}"] if kept != {} else []
    return "\n".join(lines) + "\n"


def _without_idle(part: str, value: Any, idle: set[str]) -> Any:
    if part not in PARTS or not isinstance(value, dict):
        return {"()": value["()"]} if part in ("loss", "optimizer") else value
    return {
        name: each for name, each in value.items() if f"{part}.{name}" not in idle and name not in ("()", "*")
    }


def _shared(models: list[Values]) -> Values:
    """What all models say alike, parts of tables too."""
    first, *others = models
    found: Values = {}
    for name, value in first.items():
        if isinstance(value, dict) and all(name in each for each in others):
            found[name] = _shared([each[name] for each in models])
        elif all(each.get(name) == value for each in others):
            found[name] = value
    return found


def _without(model: Values, shared: Values) -> Values:
    left = {
        name: _without(value, shared.get(name, {})) if isinstance(value, dict) else value
        for name, value in model.items()
        if isinstance(value, dict) or name not in shared
    }
    return {name: value for name, value in left.items() if value != {}}


def _is_table(node: ast.expr, kind: str) -> bool:
    return isinstance(node, ast.Dict) and all(
        isinstance(each, ast.Call) and ast.unparse(each.func) == kind for each in node.values
    )


def _model(family: str, args: Values, steered: bool, pipelined: bool) -> Values:
    model: Values = {
        "num_layers": args["n_layers"],
        "hidden": args["dim"],
        "num_heads": args["n_heads"],
        "num_kv_heads": args.get("n_kv_heads") or args["n_heads"],
        "head_dim": args.get("head_dim") or args["dim"] // args["n_heads"],
        "gated": True,
        "activation": "silu",
        "norm": "RMSNorm",
        "norm_epsilon": args["norm_eps"],
        "vocab": args["vocab_size"],
        "tied_embeddings": args.get("enable_weight_tying", False),
        "qk_norm": args.get("qk_norm", False),
        "rotary_base": int(args["rope_theta"]),
    }
    moe: Values | None = args.get("moe_args") if args.get("moe_enabled", True) else None
    if family.startswith("llama"):
        model |= _llama(args, moe)
    elif family == "deepseek_v3":
        model |= _deepseek(args)
    elif family == "gpt_oss":
        model |= {
            "ffn_hidden": args["moe_inter_dim"],
            "activation": "quick_gelu",
            "linear_bias": True,
            "qkv_bias": True,
            "attention_sink": True,
            "sliding_window": {"window": args["sliding_window_size"], "full_attention_interval": 2},
        }
    else:
        model["ffn_hidden"] = args["hidden_dim"]
    if moe:
        model["moe"] = _experts(args, moe, model)
    kernel = args.get("attn_type", "sdpa")
    extra = {"kernel": kernel} if kernel != "sdpa" else {}
    extra |= {"documents": True} if "block_causal" in args.get("attn_mask_type", "") else {}
    extra |= {"steered": True} if moe and steered else {}
    extra |= {} if pipelined else {"pipelined": False}
    tables = {name: value for name, value in model.items() if isinstance(value, dict)}
    return extra | {"sizes": {name: value for name, value in model.items() if name not in tables}} | tables


def _rounded(hidden: int, args: Values) -> int:
    """Width of a Llama's MLP: model/model.py, FeedForward."""
    width = int(2 * hidden / 3)
    return int(args["ffn_dim_multiplier"] * width) if args["ffn_dim_multiplier"] is not None else width


def _whole(width: int, multiple: int) -> int:
    return multiple * -(-width // multiple)


def _llama(args: Values, moe: Values | None) -> Values:
    width = _rounded(4 * args["dim"], args)
    model: Values = {"ffn_hidden": _whole(width, args["multiple_of"])}
    if args.get("every_n_layers_nope"):
        model |= {
            "nope_layer_interval": args["every_n_layers_nope"],
            "attention_chunk": args["fixed_attn_block_size"],
        }
    if moe:
        shared = moe["top_k"] + moe["num_shared_experts"] if args["auto_scale_hidden_dim"] else 1
        args["moe_inter_dim"] = _whole(int(width / shared), args["multiple_of"])
        args["layer_interval"] = args["interleave_moe_layer_step"]
    return model


def _deepseek(args: Values) -> Values:
    return {
        "ffn_hidden": args["inter_dim"],
        "num_kv_heads": args["n_heads"],
        "head_dim": args["qk_nope_head_dim"],
        "mla": {
            **({"q_lora_rank": args["q_lora_rank"]} if args["q_lora_rank"] else {}),
            "kv_lora_rank": args["kv_lora_rank"],
            "qk_head_dim": args["qk_nope_head_dim"],
            "qk_pos_emb_head_dim": args["qk_rope_head_dim"],
            "v_head_dim": args["v_head_dim"],
        },
        "qk_norm": True,
    }


def _experts(args: Values, moe: Values, model: Values) -> Values:
    interval = args.get("layer_interval", 1)
    return {
        "num_experts": moe["num_experts"],
        "topk": moe["top_k"],
        "expert_ffn": args["moe_inter_dim"],
        "shared_expert_ffn": moe["num_shared_experts"] * args["moe_inter_dim"],
        # Of each `interval` layers the last has experts.
        "dense_first_layers": args.get("n_dense_layers", interval - 1),
        "layer_interval": interval,
        "router_score": moe["score_func"],
        "router_scaling_factor": moe["route_scale"],
        "router_groups": moe["num_expert_groups"] or 1,
        "router_group_topk": moe["num_limited_groups"] or 1,
    }


if __name__ == "__main__":
    main()
