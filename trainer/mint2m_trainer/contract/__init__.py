"""What goes into a run: documents, fixtures, directories that appear whole. No torch, ray or megatron."""
