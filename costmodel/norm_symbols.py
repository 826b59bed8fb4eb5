"""Symbols of layers with more norms than one in front of each block; see `costmodel.symbols` for the form."""

NORMS = """
written_attention | 1 | norms of the hidden state around attention, written out in FP32
written_mlp | 1 | the same around an MLP, or experts
written_heads | 1 | 1 when norms of heads are written out so too
fused_behind | 1 | fused norms behind attention
fused_behind_mlp | 1 | the same behind an MLP, or experts
value_norm | 1 | 1 when values are normalised, without weights
router_norm | 1 | 1 when the router normalises and scales what it reads
layer_scale | 1 | 1 when a constant multiplies what a layer puts out
capped_logits | 1 | 1 when kernels of their own cap the logits
capped_scores | 1 | 1 when kernels of their own cap the scores of attention
"""
