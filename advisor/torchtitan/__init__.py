"""Job files of torchtitan read as plans: its keys, its models' flavours, and the run that they mean."""
