"""What goes into a run: documents, fixtures, directories that appear whole. Torch, ray and megatron stay out."""
