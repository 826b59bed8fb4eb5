"""Words of messages alone: helpers of the rules' texts, and ways out that hold by themselves.

A size that a way names suits all that depends on it, with the GPUs as they are: the way names the data-parallel ranks
that follow, and where the batch does not divide over them, or another switch must change too, it says so. Plain Python
of one row, which `costmodel.javascript.functions` translates for the page.
"""

from __future__ import annotations

from typing import Any

# Chunks of a stage that a way out names at most, where fewer run by another split: as many as the search tries of the
# balancer's split. More is legal and seldom sane: 31 stages of one layer each, where a stage has 31.
FEW_CHUNKS = 7


def divisors(number: int) -> list[int]:
    """Divisors of a whole number, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def near(number: int, wanted: int, other: int = 0) -> int:
    """The divisor of `number`, and of `other` where that is not 0, nearest to `wanted`, the smaller of two."""
    fitting = [d for d in divisors(max(int(number), 1)) if other % d == 0]
    return min(fitting, key=lambda d: (abs(d - wanted), d))


def up(number: int, step: int) -> int:
    """The least multiple of `step` from `number` up."""
    return -(-number // step) * step


def layers_text(row: dict[str, Any]) -> tuple[str, str]:
    """How many layers count in the pipeline split, and the chunks of a stage that divide them, "" for none."""
    counted = [
        word for word, flag in (("embedding", "account_embedding"), ("loss", "account_loss")) if row[flag]
    ]
    text = f"{row['layers']} layers" + "".join(f" + 1 for the {word}" for word in counted)
    if row["accounted"] % row["pp"] != 0 or row["pp"] == 1:
        return text, ""
    every = chunks_of(row, max(row["accounted"] // row["pp"], 1))
    vpps = [v for v in every if v <= FEW_CHUNKS]
    if len(vpps) == 0 and len(counted) > 0:  # beside which there is no balanced layout
        vpps = every[:1]
    told = ", ".join(map(str, vpps))
    if row["overlap_moe_comm"] or one_chunk_option(row, 1) != "":  # which take no single chunk
        return text, told
    return text, f"1 or {told}" if vpps else "1"


def size_ways(row: dict[str, Any]) -> dict[str, str]:
    """Ways out that change one parallel size, as options."""
    tp = tp_near(row)
    return {
        "tp_way": tp_option(row, tp, row["cp"]),
        "tp_one_way": tp_option(row, 1, row["cp"]),
        "mixer_way": mixer_option(row, tp),
        "pp_way": pp_option(row),
        "cp_way": cp_option(row, cp_near(row)),
        "cp_one_way": cp_option(row, 1),
        "tp_kv_way": tp_option(row, tp_within(row, row["kv_heads"], row["cp"]), row["cp"]),
        "tp_for_cp_way": tp_option(row, tp_within(row, row["tp"] * row["cp"], 1), 1),
        "tp_cp_one_way": tp_option(row, 1, 1),
        "ep_way": ep_option(row),
        "mesh_way": mesh_option(row),
        "ranks_way": ranks_way(row),
        "batch_way": shared_batch(row, row["dp"], chunk_group(row)),
    }


def pipeline_ways(row: dict[str, Any]) -> dict[str, Any]:
    """Ways out that change chunks, stages and what needs them, as options; sizes, 0 where there is none."""
    return {
        "chunks": chunks(row),
        "balanced_chunks": balanced_chunks(row),
        "no_account": no_account(row),
        "two_stages": two_stages(row),
        "pp_one_way": one_stage_option(row),
        "vpp_one_way": "--vpp 1" + one_chunk_option(row, row["pp"]),
        "group_way": f"--vpp-group-size {row['pp']}" + ranks_option(row, row["dp"], row["pp"]),
        "no_moe_overlap": no_moe_overlap(row),
        "a2a_size": a2a_size(row),
        "fed_gpus": fed_gpus(row),
    }


def fed_gpus(row: dict[str, Any]) -> int:
    """The most GPUs that the batch divides over with these sizes, 0 where it is no multiple of the micro-batch. [1]"""
    batch, size = row["global_batch"], row["micro_batch"]
    if batch % size != 0:
        return 0
    replica, shards = row["world"] // row["dp"], row["tp"] * row["cp"]
    folds = row["ep"] * row["etp"] if row["experts"] > 0 else 1
    chunked = row["vpp"] > 1 and row["pp"] > 1
    fitting = [
        d
        for d in divisors(batch // size)
        if batch // size // d % row["pipeline_flushes"] == 0
        and shards * d % folds == 0
        and (not chunked or chunks_run(row, d, row["pp"]))
    ]
    return max(fitting) * replica if len(fitting) > 0 else 0


def mesh_option(row: dict[str, Any]) -> str:
    """More GPUs over which the experts fold as they are spread, "" where the batch feeds none."""
    batch, size, replica = row["global_batch"], row["micro_batch"], row["world"] // row["dp"]
    chunked = row["vpp"] > 1 and row["pp"] > 1
    fitting = [
        d
        for d in divisors(batch // size)
        if d > row["dp"]
        and batch % (size * d) == 0
        and row["tp"] * row["cp"] * d % (row["ep"] * row["etp"]) == 0
        and (not chunked or chunks_run(row, d, row["pp"]))
    ]
    return f"--gpus {min(fitting) * replica} --dp {min(fitting)}" if len(fitting) > 0 else ""


def no_moe_overlap(row: dict[str, Any]) -> str:
    """The exchange of experts as it comes, without what runs beside its overlap alone."""
    return "--no-overlap-moe-comm" + (" --no-delay-wgrad" if row["delay_wgrad"] else "")


def one_chunk_option(row: dict[str, Any], pp: int) -> str:
    """What runs between the chunks of a stage alone, switched off for stages of one chunk."""
    text = ""
    if row["overlap_moe_comm"] and pp > 1:
        text = " " + no_moe_overlap(row)
    if row["setting_overlap_p2p_comm_warmup_flush"]:
        text = text + " --set overlap_p2p_comm_warmup_flush=false"
    if row["setting_overlap_param_gather_with_optimizer_step"]:
        text = text + " --set overlap_param_gather_with_optimizer_step=false"
    return text


def chunks_run(row: dict[str, Any], dp: int, pp: int) -> bool:
    """Whether micro-batches of `dp` ranks run through `pp` stages of several chunks, see rule vpp_microbatches."""
    group = row["vpp_group_size"] if row["vpp_group_size"] > 0 else pp
    if row["global_batch"] % (row["micro_batch"] * dp) != 0 or group < pp or row["mamba_heads"] > 0:
        return False
    number = row["global_batch"] // (row["micro_batch"] * dp * row["pipeline_flushes"])
    return number >= group and (number % group == 0 or number % group >= pp)


def chunks_of(row: dict[str, Any], layers: int) -> list[int]:
    """Chunks above one that the layers of a stage divide into, and those of them that are recomputed."""
    return [v for v in divisors(layers) if v > 1 and row["recompute_num_layers"] % v == 0]


def chunks(row: dict[str, Any]) -> int:
    """The fewest chunks above one that the layers of each stage divide into, 0 where none run. [1]

    None are told where few of a balanced layout run instead, see `balanced_chunks`.
    """
    if not row["even"] or row["accounted"] % row["pp"] != 0 or not takes_chunks(row) or balanced_chunks(row):
        return 0
    found = chunks_of(row, row["accounted"] // row["pp"])
    return found[0] if len(found) > 0 else 0


def balanced_chunks(row: dict[str, Any]) -> bool:
    """Whether two chunks a stage run with a balanced layout, and evenly none do, or only many: 31 of 31 layers."""
    if not takes_chunks(row) or not (row["even"] or row["layout"]) or 2 * row["pp"] > row["layers"] + 1:
        return False
    if row["index_interval"] > 1 or row["recompute_num_layers"] % 2 != 0:
        return False
    if not row["even"] or row["accounted"] % row["pp"] != 0:
        return True
    found = chunks_of(row, row["accounted"] // row["pp"])
    return len(found) == 0 or found[0] > FEW_CHUNKS


def no_account(row: dict[str, Any]) -> str:
    """The account flags that are set, switched off, as a layout takes none."""
    embedding = " --no-account-embedding" if row["account_embedding"] else ""
    return embedding + (" --no-account-loss" if row["account_loss"] else "")


def takes_chunks(row: dict[str, Any]) -> bool:
    """Whether micro-batches run through stages of several chunks, however layers are split."""
    return row["pp"] > 1 and chunks_run(row, row["dp"], row["pp"]) and (row["pp"] > 2 or row["overlap_p2p"])


def two_stages(row: dict[str, Any]) -> bool:
    """Whether two stages run in the place of one, of half as many data-parallel ranks."""
    dp, vpp = row["dp"] // 2, row["vpp"]
    if row["dp"] % 2 != 0 or not row["even"] or row["accounted"] % (2 * vpp) != 0:
        return False
    if row["mesh"] // 2 % (row["ep"] * row["etp"]) != 0:
        return False
    return row["overlap_p2p"] and chunks_run(row, dp, 2) if vpp > 1 else not row["overlap_moe_comm"]


def a2a_size(row: dict[str, Any]) -> int:
    """The inner size nearest to the one given that divides the ranks of cp and the heads of each, 0 for none. [1]"""
    tp, wanted = row["tp"], row["cp_a2a_size"] if row["cp_a2a_size"] > 2 else 2
    sizes = [
        d
        for d in divisors(row["cp"])
        if d > 1 and row["heads"] % (tp * d) == 0 and row["kv_heads"] % (tp * d) == 0
        if row["window_heads"] % (tp * d) == 0 and row["window_kv_heads"] % (tp * d) == 0
    ]
    return min(sizes, key=lambda d: (abs(d - wanted), d)) if len(sizes) > 0 else 0


def cp_near(row: dict[str, Any]) -> int:
    """The size nearest to cp over which key/value heads, the GPUs and the sequence divide."""
    ranks, split = row["cp"] * row["dp"], row["tp"] if row["sequence_parallel"] else 1
    fitting = [
        d
        for d in divisors(max(row["kv_heads"] // row["tp"], 1))
        if ranks % d == 0
        and max(row["window_kv_heads"] // row["tp"], 1) % d == 0
        and (d == 1 or (row["seq_len"] % (2 * d) == 0 and row["seq_len"] % (split * d) == 0))
    ]
    return min(fitting, key=lambda d: (abs(d - row["cp"]), d))


def tp_near(row: dict[str, Any]) -> int:
    """The size nearest to tp that divides all parts of the model, the GPUs and, where it is split, the sequence."""
    ranks, split = row["tp"] * row["dp"], row["sequence_parallel"] or row["experts"] > 0
    fitting = [
        d
        for d in divisors(row["tp_common"])
        if ranks % d == 0 and (d == 1 or not split or row["seq_len"] % (d * row["cp"]) == 0)
    ]
    return min(fitting, key=lambda d: (abs(d - row["tp"]), d))


def tp_within(row: dict[str, Any], wanted: int, cp: int) -> int:
    """The largest size up to `wanted` in a domain that divides the model, the GPUs and, where split, the sequence."""
    ranks, split = row["tp"] * row["cp"] * row["dp"], row["sequence_parallel"] or row["experts"] > 0
    most = wanted if wanted < row["domain"] else row["domain"]
    fitting = [
        d
        for d in divisors(row["tp_common"])
        if d <= most and ranks % (d * cp) == 0 and (d == 1 or not split or row["seq_len"] % (d * cp) == 0)
    ]
    return max(fitting)


def ranks_option(row: dict[str, Any], dp: int, group: int) -> str:
    """Data-parallel ranks where they change, and the least global batch that they and groups of micro-batches share.

    Of a plan for other GPUs than there are, the rule about GPUs tells the ranks, and the batch is of those that they
    leave: of no whole number of ranks there is none.
    """
    if row["gpus"] in (0, row["world"]):
        ranks, text = dp, "" if dp == row["dp"] else f" --dp {dp}"
    else:
        ranks, text = dp * row["gpus"] // row["world"], ""
        if ranks * row["world"] != dp * row["gpus"]:
            return ""
    batch = shared_batch(row, ranks, group)
    return text if row["global_batch"] == batch else text + f" --global-batch {batch}"


def shared_batch(row: dict[str, Any], ranks: int, group: int) -> int:
    """The least global batch from the one at hand that ranks and groups of micro-batches share.

    Gradients that are put off need a second micro-batch.
    """
    each = row["micro_batch"] * ranks
    batch = up(row["global_batch"], each * group)
    return batch + each * group if row["defer_embedding_wgrad"] and batch == each else batch


def ranks_way(row: dict[str, Any]) -> str:
    """Data-parallel ranks that take up the GPUs there are, and a batch that they share; "" where none do."""
    replica = row["world"] // row["dp"]
    if row["gpus"] == 0 or row["gpus"] % replica != 0:
        return ""
    dp = row["gpus"] // replica
    shards, mesh = row["cp"] * dp, row["tp"] * row["cp"] * dp
    if row["experts"] > 0 and mesh % (row["ep"] * row["etp"]) != 0:
        return ""
    if row["fsdp"] and row["fsdp_shard_size"] > 0 and shards % row["fsdp_shard_size"] != 0:
        return ""
    if row["optimizer_instances"] > 1 and shards % row["optimizer_instances"] != 0:
        return ""
    batch = shared_batch(row, dp, chunk_group(row))
    return f"set dp = {dp}" + ("" if row["global_batch"] == batch else f" with --global-batch {batch}")


def chunk_group(row: dict[str, Any]) -> int:
    """Micro-batches that must be whole together: those of a group where stages have several chunks. [1]"""
    return int(row["group"]) if row["vpp"] > 1 and row["pp"] > 1 else 1


def tp_option(row: dict[str, Any], tp: int, cp: int) -> str:
    """Another tensor-parallel size, and another context-parallel size beside it."""
    split = row["sequence_parallel"]
    text = f"--tp {tp}" + ("" if cp == row["cp"] else f" --cp {cp}")
    if cp == 1 and row["cp"] > 1 and row["cp_mixed"]:
        text = text + " --cp-comm-type p2p"
    if split and tp == 1:
        text = text + " --no-sequence-parallel"
    if tp > 1 and row["experts"] > 0 and not split and row["seq_len"] % (tp * cp) == 0:
        text = text + " --sequence-parallel"
    elif tp > 1 and row["tp"] == 1 and row["tp_comm_overlap"] and not split:
        text = text + " --no-tp-comm-overlap"
    if row["experts"] > 0 and row["ep"] == 1 and row["etp"] == row["tp"] and row["etp"] != tp:
        text = text + f" --etp {tp}"
    return text + ranks_option(row, row["tp"] * row["cp"] * row["dp"] // (tp * cp), chunk_group(row))


def mixer_option(row: dict[str, Any], tp: int) -> str:
    """A tensor-parallel size over which the heads of Mamba and gated delta layers divide, without cp if they must."""
    ranks = tp * row["cp"]
    heads = [row["mamba_heads"], row["delta_key_heads"], row["delta_value_heads"]]
    whole = all(number % ranks == 0 for number in heads)
    return tp_option(row, tp, row["cp"] if whole else 1)


def pp_option(row: dict[str, Any]) -> str:
    """Another number of stages, of one chunk each; "" for fewer that may not fit, where a layout is told beside it."""
    mesh, over, pp = row["mesh"], row["ep"] * row["etp"], row["pp"]
    folded = row["experts"] == 0 or mesh % over != 0
    fitting = [
        d
        for d in divisors(row["accounted"])
        if row["dp"] * pp % d == 0 and (folded or mesh * pp // d % over == 0)
    ]
    stages = min(fitting, key=lambda d: (abs(d - pp), d))
    # A rank takes at most so many times as much as it has fewer stages.
    if row["memory_percent"] * pp > 100 * stages and not row["account_embedding"] and not row["account_loss"]:
        return ""
    text = f"--pp {stages} --vpp 1" + one_chunk_option(row, stages)
    if stages == 1 and row["defer_embedding_wgrad"]:
        text = text + " --no-defer-embedding-wgrad"
    return text + ranks_option(row, row["dp"] * pp // stages, 1)


def one_stage_option(row: dict[str, Any]) -> str:
    """The whole model on each rank that pipeline stages shared."""
    text = "--pp 1" + (" --vpp 1" if row["vpp"] > 1 else "") + one_chunk_option(row, 1)
    if row["defer_embedding_wgrad"]:
        text = text + " --no-defer-embedding-wgrad"
    return text + ranks_option(row, row["dp"] * row["pp"], 1)


def cp_option(row: dict[str, Any], cp: int) -> str:
    """Another context-parallel size."""
    ring = " --cp-comm-type p2p" if cp == 1 and row["cp_mixed"] else ""
    return f"--cp {cp}" + ring + ranks_option(row, row["cp"] * row["dp"] // cp, chunk_group(row))


def ep_option(row: dict[str, Any]) -> str:
    """Ranks over which experts fold: another size, and what needs more than one rank switched off where one is left.

    Without expert parallelism they are split as all else is, or nothing is: see `unsummed_experts` in stacks.toml.
    """
    mesh, etp, hidden, tp = row["mesh"], row["etp"], max(row["expert_ffn"], 1), row["tp"]
    suits = mesh % etp == 0 and hidden % etp == 0
    inner = etp if suits else near(hidden, etp, mesh)
    ep = near(max(row["experts"], 1), row["ep"], mesh // inner)
    alone = ep == 1 and inner != tp
    splits = alone and hidden % tp == 0 and not row["linear_bias"]
    if alone:
        inner = tp if splits else 1
    text = f"--ep {ep}" + ("" if inner == etp else f" --etp {inner}")
    if alone and not splits:
        text = text + " " + tp_option(row, 1, row["cp"])
    if ep * inner == 1 and row["moe_dispatcher_deepep"]:
        text = text + " --moe-dispatcher alltoall"
    if ep == 1 and row["overlap_moe_comm"]:
        text = text + " " + no_moe_overlap(row)
    return text
