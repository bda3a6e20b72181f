"""Makes the verification vectors: real runs as bases, and one change at a time on top of them."""
