"""Plans in the words of the frameworks that run them: Megatron-LM, Megatron-Bridge, NeMo 2."""
