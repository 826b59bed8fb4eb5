"""Logs of Megatron-LM, Megatron-Bridge and NeMo read into one record."""
