"""Many updates in a row: each samples from the policy that the one before left, and leaves a sealed run."""
