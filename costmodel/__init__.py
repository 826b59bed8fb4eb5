"""The physics: symbols in, expressions out. `predict` binds them to numbers."""
