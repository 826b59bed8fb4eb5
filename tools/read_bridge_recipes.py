"""Write the plans of Megatron-Bridge's performance recipes as rows of a table of runs, without times.

    python tools/read_bridge_recipes.py FOLDER benchmarks/bridge_recipes.csv

FOLDER is an unpacked wheel (`pip download --no-deps megatron-bridge==0.6.2`, then unzip). A recipe is a function that
fills in a configuration; it runs here among stand-ins (`bridge_stand_ins`). Recipes of models and GPUs that we do not
know are counted and left out.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bridge_stand_ins import Bridge, Recorded

from costmodel.model_registry import load_model

SYSTEMS = {
    "h100": "dgx-h100",
    "b200": "dgx-b200",
    "b300": "dgx-b300",
    "gb200": "dgx-gb200-nvl72",
    "gb300": "dgx-gb300-nvl72",
}
PRECISIONS = {"bf16": "bf16", "fp8cs": "fp8-cs", "fp8mx": "mxfp8", "nvfp4": "nvfp4"}
TASKS = {"pretrain": "pretrain", "sft": "sft", "peft": "lora"}
NAME = re.compile(
    r"(?P<model>.+)_(?P<task>pretrain|sft|peft)_(?P<gpus>\d+)gpu_(?P<gpu>[a-z]+\d+)_(?P<precision>[a-z0-9]+)_"
)
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
# What stands in the column of other flags, as in tables of runs.
FLAGS = {
    "model": "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split apply_rope_fusion "
    "attention_backend cp_comm_type cross_entropy_fusion_impl fp8_output_proj "
    "gradient_accumulation_fusion moe_expert_rank_capacity_factor moe_hybridep_num_sms moe_mlp_glu_interleave_size "
    "moe_paged_stash moe_permute_fusion moe_router_fusion moe_shared_expert_overlap "
    "recompute_method use_transformer_engine_op_fuser",
    "ddp": "average_in_collective bucket_size data_parallel_sharding_strategy fsdp_double_buffer "
    "num_distributed_optimizer_instances outer_dp_sharding_strategy use_distributed_optimizer",
    "optimizer": "exp_avg_dtype exp_avg_sq_dtype main_grads_dtype main_params_dtype",
    "mixed_precision": "fp8_dot_product_attention fp8_recipe num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 "
    "reuse_grad_buf_for_mxfp8_param_ag",
}


def recipes(folder: Path) -> Iterator[tuple[re.Match[str], Any]]:
    """Names of recipes and the configurations that they make."""
    sys.meta_path.insert(0, Bridge(folder))
    for file in sorted(folder.glob("megatron/bridge/perf_recipes/*/*/*.py")):
        module = importlib.import_module(".".join(file.relative_to(folder).with_suffix("").parts))
        for name, make in inspect.getmembers(module, inspect.isfunction):
            found = NAME.match(name)
            if found and name.endswith("_config") and make.__module__ == module.__name__:
                yield found, make


def section(config: Any, name: str) -> dict[str, Any]:
    """What was set in a part of a configuration."""
    values = vars(getattr(config, name)) if hasattr(getattr(config, name), "__dict__") else {}
    return {key: value for key, value in values.items() if not isinstance(value, Recorded)}


def row(name: re.Match[str], config: Any) -> dict[str, Any]:
    """Columns of a table of runs; flags that are off are left out."""
    model, ddp, overlap = (section(config, part) for part in ("model", "ddp", "comm_overlap"))
    train, precision, optimizer = (
        section(config, part) for part in ("train", "mixed_precision", "optimizer")
    )
    sizes = {
        column: model.get(f"{field}_parallel_size") or 1
        for column, field in {
            "tp": "tensor_model",
            "pp": "pipeline_model",
            "cp": "context",
            "ep": "expert_model",
        }.items()
    }
    gpus = int(name["gpus"])
    selective = model.get("recompute_granularity") == "selective"
    switches = {
        "moe_a2a_overlap": overlap.get("overlap_moe_expert_parallel_comm"),
        "moe_force_balance": model.get("moe_router_force_load_balancing"),
        "tp_comm_overlap": overlap.get("tp_comm_overlap"),
        "sequence_parallel": model.get("sequence_parallel"),
        "nccl_ub": ddp.get("nccl_ub"),
        "fp8_param_gather": precision.get("fp8_param_gather"),
        "grad_reduce_in_fp32": ddp.get("grad_reduce_in_fp32"),
        "precision_aware_optimizer": optimizer.get("use_precision_aware_optimizer"),
        "overlap_grad_reduce": ddp.get("overlap_grad_reduce"),
        "overlap_param_gather": ddp.get("overlap_param_gather"),
        "fsdp": ddp.get("use_megatron_fsdp"),
    }
    return {
        "id": name.string,
        "task": TASKS[name["task"]],
        "model": name["model"].replace("_", "-"),
        "system": SYSTEMS[name["gpu"]],
        "gpus": gpus,
        "precision": PRECISIONS[name["precision"]],
        "gbs": train["global_batch_size"],
        "mbs": train["micro_batch_size"],
        "seq_len": model.get("seq_length", 4096),
        **sizes,
        "vp": model.get("virtual_pipeline_model_parallel_size") or "",
        "etp": model.get("expert_tensor_parallel_size") or "",
        "dp": gpus // (sizes["tp"] * sizes["pp"] * sizes["cp"]),
        **{column: int(bool(on)) for column, on in switches.items()},
        "cuda_graph": graph(model),
        "recompute_granularity": model.get("recompute_granularity") or "none",
        "recompute_modules": "+".join(model.get("recompute_modules") or []) if selective else "",
        "recompute_num_layers": model.get("recompute_num_layers") or "",
        "act_offload_layers": (model.get("cpu_offloading") and model["cpu_offloading_num_layers"]) or 0,
        "fine_grained_offload": offloaded(model),
        "moe_dispatcher": dispatcher(model),
        "moe_token_drop": "dropless" if model.get("moe_token_dispatcher_type") else "",
        "pp_layout": layout(model.get("pipeline_model_parallel_layout")),
        "first_stage_layers": model.get("num_layers_in_first_pipeline_stage") or "",
        "last_stage_layers": model.get("num_layers_in_last_pipeline_stage") or "",
        "mtp_layers": model.get("mtp_num_layers") or "",
        "optimizer": optimizer.get("optimizer", ""),
        "other_flags": json.dumps(flags(config), sort_keys=True),
    }


def flags(config: Any) -> dict[str, Any]:
    """What stands in the column of other flags; layers in BF16 at the ends count where they are switched on."""
    ends = section(config, "mixed_precision").get("first_last_layers_bf16")
    return {
        key: str(value).removeprefix("torch.") if key.endswith("dtype") else value
        for part, names in FLAGS.items()
        for key, value in section(config, part).items()
        if key in names.split() and value and (ends or not key.startswith("num_layers_at"))
    }


def graph(model: Mapping[str, Any]) -> str:
    """Implementation of CUDA graphs and the parts of a layer in them, or the whole step."""
    kind = model.get("cuda_graph_impl") or "none"
    parts = model.get("cuda_graph_scope") or model.get("cuda_graph_modules") or []
    parts = [parts] if isinstance(parts, str) else parts
    if "full_iteration" in (kind, *parts):
        return "full_iteration"
    return kind if kind == "none" or not parts else f"{kind}:{'+'.join(parts)}"


def offloaded(model: Mapping[str, Any]) -> str:
    """Modules whose inputs wait on the host."""
    on = model.get("fine_grained_activation_offloading")
    return "+".join(model.get("offload_modules") or []) if on else ""


def dispatcher(model: Mapping[str, Any]) -> str:
    """Token dispatcher, with the backend of a flexible one."""
    kind = model.get("moe_token_dispatcher_type") or ""
    return f"flex-{model.get('moe_flex_dispatcher_backend') or 'deepep'}" if kind == "flex" else kind


def layout(stages: Any) -> str:
    """Layers of the stages in Megatron's letters."""
    if not stages or isinstance(stages, str):
        return stages or ""
    return "|".join("".join(LETTERS[layer] for layer in stage) for stage in stages)


def known(name: re.Match[str]) -> str:
    """Why a recipe is left out, '' when it is not."""
    if name["gpu"] not in SYSTEMS:
        return f"GPU {name['gpu']}"
    try:
        load_model(name["model"].replace("_", "-"))
    except ValueError:
        return f"model {name['model']}"
    return "" if name["precision"] in PRECISIONS else f"precision {name['precision']}"


def main(folder: str, out: str) -> None:
    """Write every recipe that we can express."""
    rows, left_out = [], Counter[str]()
    for name, make in recipes(Path(folder)):
        reason = known(name)
        if reason:
            left_out[reason] += 1
        else:
            rows.append(row(name, make()))
    version = re.sub(r".*megatron_bridge-([\d.]+\d).*", r"\1", str(Path(folder).resolve()))
    common = {"source": f"Megatron-Bridge {version} perf_recipes", "recipe_match": "exact"}
    rows = [{**one, **common, "recipe_key": f"v{version}:{one['id']}"} for one in rows]
    with Path(out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} recipes; left out: {dict(left_out)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
