"""Programs that run in processes of their own. Only here are torch and Megatron-Core imported."""
