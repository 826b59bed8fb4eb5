"""Forward work of a block that its recompute setting repeats in the backward pass, in seconds."""

from __future__ import annotations

from types import SimpleNamespace

from costmodel.amount import Amount
from costmodel.block_kernels import norm_again
from costmodel.exposed import Times
from costmodel.symbols import ATTENTION_BLOCKS, HEADED_BLOCKS, LATENT_BLOCKS, symbol
from costmodel.term import Ledger
from costmodel.work.recompute import kept_products


def recompute_time(
    ledger: Ledger,
    x: SimpleNamespace,
    name: str,
    label: str,
    gemms: Times,
    small: Times,
    core: Amount,
    forward: dict[str, Amount],
) -> Amount:
    """Forward work that a block's recompute setting repeats, as an entry of the ledger. [s]

    name: kind of the block; label: of its entries. gemms, small: times of its linear layers and of its element-wise
    kernels, by layer or kernel, then by pass; core: forward of what mixes tokens, with what context parallelism
    exchanges for it; forward: of the whole block, by kind [s].

    Full recompute repeats everything of its layers, or stops early, at the last tensor that is saved; selective
    recompute what was named. Source: PyTorch, torch.utils.checkpoint.set_checkpoint_early_stop.
    """
    everything = ledger.define(
        f"{label}_forward", sum(forward.values()), "s", "sum over the kinds of work, forward"
    )
    tensor_parallel = forward.get("tensor_parallel", 0)
    named: Amount = norm_again(x, name) * small["norm"]["forward"]
    if name in ATTENTION_BLOCKS:
        # Megatron-Core checkpoints it with what context parallelism exchanges for it (attention.py).
        named += x.recompute_attention * core
    if name in LATENT_BLOCKS:
        named += x.recompute_mla_up_proj * _up_projections(x, name, label, gemms, small)
    if name == "csa":
        # Both blocks' hyper-connections are counted here.
        named += x.recompute_mhc * (small["hyper"]["forward"] + 2 * small["residual"]["forward"])
    if name in HEADED_BLOCKS:
        named += _attention_products(x, gemms)
    last: Amount = 0
    if name == "mlp":
        named += _mlp(x, gemms, small, tensor_parallel, forward.get("adapters", 0))
        # Nothing saved hangs on the output of the block's last product.
        last = gemms["fc2"]["forward"] + tensor_parallel / 2 + small["residual"]["forward"]
    if name == "experts":
        named += _experts(x, gemms, small, tensor_parallel, everything)
    again = x.recompute_layers * (everything - x.early_stop * last) + (1 - x.recompute_layers) * named
    return ledger.define(
        f"{label}_recompute", again, "s", "forward work repeated in the backward pass, by recompute setting"
    )


def _products(gemms: Times, *names: str) -> Amount:
    """Linear layers forward, with their quantisation. [s]"""
    return sum(gemms[layer]["forward"] + gemms[layer]["quantise_forward"] for layer in names)


def _unkept(x: SimpleNamespace) -> Amount:
    """Layers under recompute of ops of which it keeps no product: see `kept_products`. [1]"""
    return x.recompute_ops - kept_products(x)


def _up_projections(x: SimpleNamespace, name: str, label: str, gemms: Times, small: Times) -> Amount:
    """From latents to heads. Those of MLA with the gathers of both latents and the rotation. [s]

    Source: Megatron-Core, multi_latent_attention.py, qkv_up_proj_and_rope_apply.
    """
    if name == "csa":
        return _products(gemms, "q_up") + small["query_norm"]["forward"] + small["rotary"]["forward"]
    ups = _products(gemms, *(layer for layer in gemms if layer in ("q_up", "kv_up")))
    if name == "dsa":
        # Values go through theirs behind the core.
        values = x.d_v / (x.d_nope + x.d_v) * _products(gemms, "kv_up")
        return ups - values + small["rotary"]["forward"] + small["absorbed"]["forward"]
    gathers = x.sp * symbol(f"{label}_all_gather")
    return ups + gathers + small["rotary"]["forward"] + small["heads"]["forward"]


def _attention_products(x: SimpleNamespace, gemms: Times) -> Amount:
    """Recompute of ops: every other product of the order Q, K, V, projection; the key product's share of QKV. [s]"""
    keys = x.k * x.d / (x.a * x.d + x.k * (x.d + x.d_v))
    repeated = x.recompute_ops * (keys * _products(gemms, "qkv") + _products(gemms, "proj"))
    return repeated + _unkept(x) * (1 - keys) * _products(gemms, "qkv")


def _mlp(x: SimpleNamespace, gemms: Times, small: Times, tensor_parallel: Amount, adapters: Amount) -> Amount:
    """Recompute of ops, of the whole MLP, or of its activation alone. [s]"""
    activation = small["activation"]["forward"]
    whole = _products(gemms, "fc1", "fc2") + activation + tensor_parallel + adapters
    ops = (x.recompute_ops * x.gates / 2 + _unkept(x) * (1 - x.gates / 2)) * _products(gemms, "fc1")
    return ops + x.recompute_mlp * whole + x.recompute_activation * (1 - x.recompute_mlp) * activation


def _experts(
    x: SimpleNamespace, gemms: Times, small: Times, tensor_parallel: Amount, everything: Amount
) -> Amount:
    """Recompute of all that stands between norm and residual, else of the activation and of shared experts. [s]

    Norm and residual stand outside what is checkpointed. Source: Megatron-Core, moe_layer.py, forward.
    """
    apart = x.recompute_moe_act * (small["activation"]["forward"] + small["clamp"]["forward"])
    if "shared_fc1" in gemms:
        whole = _products(gemms, "shared_fc1", "shared_fc2") + small["shared_activation"]["forward"]
        apart += x.recompute_shared_experts * (whole + tensor_parallel)
    inner = everything
    for name in ("norm", "residual", "written_norms", "layer_scale"):
        inner -= small[name]["forward"] if name in small else 0
    return x.recompute_moe * inner + (1 - x.recompute_moe) * apart
