"""The experiment: plans executed with Megatron-Core, measured, and put beside their predictions."""
