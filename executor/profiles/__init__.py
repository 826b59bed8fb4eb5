"""Traces of torch.profiler and exports of Nsight Systems read into exposed times."""
