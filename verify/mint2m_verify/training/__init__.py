"""An online training, verified: every step's run, and how the steps hang together. Needs neither torch nor a GPU."""
