"""Seconds: rooflines with shape-aware efficiency, collectives, overlap as exposed time, host time."""
