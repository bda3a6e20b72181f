"""The GLM-MoE-DSA model, built from megatron-core modules."""
