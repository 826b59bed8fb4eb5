"""Amounts of one rank: FLOPs, HBM bytes, messages, kernels, saved activations. Never seconds."""
